"""Seed heuristics, one per file."""
