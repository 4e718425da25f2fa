"""Families of heuristics: each matches facts and yields candidates with a reason."""
