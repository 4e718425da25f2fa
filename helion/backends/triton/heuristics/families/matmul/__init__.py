"""Matmuls: plain, rewritten, unfused, several in one kernel."""
