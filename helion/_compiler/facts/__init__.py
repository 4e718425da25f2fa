"""Properties of a program, independent of any config."""
