"""What the first configs are, and why."""
