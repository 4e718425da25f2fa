"""Parts of an epilogue's trace that not every matmul has."""
