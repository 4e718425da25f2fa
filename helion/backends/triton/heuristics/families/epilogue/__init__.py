"""Matmuls whose output rows are reduced in the same kernel."""
