"""Generation of the module's text from a plan: the kernel, and the host function that launches it."""
