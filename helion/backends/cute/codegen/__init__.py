"""From a plan to the text of a module: one printer for the kernel and for the host function that launches it."""
