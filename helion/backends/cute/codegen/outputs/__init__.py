"""Code of stores that TMA does not take."""
