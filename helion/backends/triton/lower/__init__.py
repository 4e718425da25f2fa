"""Triton's own rewrites of a program, after those that a config requests."""
