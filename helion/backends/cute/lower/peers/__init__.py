"""Messages of a GEMM to and from the programs of other GPUs."""
