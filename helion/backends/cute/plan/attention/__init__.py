"""Attention: two chained matmuls with a softmax between them."""
