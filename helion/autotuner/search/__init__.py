"""Searches: each proposes configs to try, and receives their outcomes."""
