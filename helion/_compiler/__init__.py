"""The compiler: from a user's function to a Triton or CuTe module."""
