"""A kernel's definition and the arguments of its calls, before anything is compiled."""
