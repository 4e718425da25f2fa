"""Loading and launching of Triton kernels: on a GPU, through a native call, or interpreted on CPU tensors."""
