"""The space of configs, seeds and search."""
