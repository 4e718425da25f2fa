"""The kernels of ``helion.ops``, a file for each kind of operator."""
