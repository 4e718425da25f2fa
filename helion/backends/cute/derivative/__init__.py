"""The gradients of an attention, derived from its problem as kernels of the language."""
