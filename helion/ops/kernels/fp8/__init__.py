"""Operators with matrices in fp8: quantization, alone or after a norm or a gated unit, and products."""
