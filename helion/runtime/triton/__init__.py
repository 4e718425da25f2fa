"""Triton functions for kernels that run over several GPUs, under the names of the public API. Those that are not implemented can be imported, and refuse calls."""
