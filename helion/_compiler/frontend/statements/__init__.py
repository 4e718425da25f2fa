"""What each statement of a kernel's source does."""
