"""The Triton code generator."""
