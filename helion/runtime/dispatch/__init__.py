"""Written functions for calls, which skip the look-ups of the slow path."""
