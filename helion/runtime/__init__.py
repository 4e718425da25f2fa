"""Calling kernels."""
