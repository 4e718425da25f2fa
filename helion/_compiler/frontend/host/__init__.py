"""Tensors of host code and the torch calls on them."""
