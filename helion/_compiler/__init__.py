"""The compiler: from a user's function to a module of a backend."""
