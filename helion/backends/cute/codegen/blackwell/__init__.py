"""Code of parts that tcgen05 alone has."""
