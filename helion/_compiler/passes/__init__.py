"""Pure changes of programs."""
