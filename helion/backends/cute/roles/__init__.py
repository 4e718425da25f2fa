"""A kernel as data: what its warps do, the pipelines they talk through, and the barriers they meet at."""
