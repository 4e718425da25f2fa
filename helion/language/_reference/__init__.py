"""Eager reference mode: sessions, axes of values, accesses and random numbers."""
