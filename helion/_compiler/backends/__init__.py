"""Code generators, one folder each, with the same file names."""
