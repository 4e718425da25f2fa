"""Linear recurrences over a sequence, whose states stay in registers."""
