"""Kernels that no rule was made for: families that users write, with shapes, references and what libraries offer."""
