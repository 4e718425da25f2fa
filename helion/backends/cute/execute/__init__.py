"""Launches: compiled kernels as shared objects, the calls that launch them, and evaluation on CPU tensors."""
