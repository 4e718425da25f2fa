"""Loading and launching Triton kernels: on a GPU, through a native call, or interpreted on CPU tensors."""
