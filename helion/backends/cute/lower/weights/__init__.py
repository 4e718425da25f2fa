"""Weights of other types than the matmul's."""
