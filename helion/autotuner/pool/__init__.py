"""Processes that may die: each runs one piece of work that is not trusted, and is killed when it takes too long."""
