"""A kernel as data: the programs of its warps, the pipelines between them, and the barriers."""
