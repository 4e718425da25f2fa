"""The module of products in sequence."""
