"""From source to device IR."""
