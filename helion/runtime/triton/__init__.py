"""Triton functions for kernels that run over several GPUs, under the names of the public API. Calls are refused."""
