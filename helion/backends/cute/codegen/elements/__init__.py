"""Code of elements of an epilogue that have forms of their own."""
