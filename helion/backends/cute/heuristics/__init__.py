"""Heuristics for the first configs, with their reasons."""
