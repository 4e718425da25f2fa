"""GEMMs as warp-specialized CuTe DSL kernels. No module here imports the DSL before a kernel is compiled."""
