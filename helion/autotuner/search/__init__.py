"""Searches: each is asked for configs to try, and told what became of them."""
