"""The toolchain: from the text of a module to a binary and its resources, with the DSL and no GPU."""
