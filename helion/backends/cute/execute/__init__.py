"""Launching: compiled kernels as shared objects, the calls that launch them, and products of CPU tensors."""
