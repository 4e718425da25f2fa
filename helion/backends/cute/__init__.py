"""Matrix products as warp-specialised CuTe DSL kernels. Nothing in here imports the DSL before a kernel is compiled."""
