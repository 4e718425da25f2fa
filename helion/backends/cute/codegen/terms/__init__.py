"""Code of sums of matmuls."""
