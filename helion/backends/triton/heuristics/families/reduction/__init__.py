"""Reductions over rows, columns and several dimensions, without a matmul."""
