"""Kernels under autograd and in graphs of torch: operators, their effects and their backward."""
