"""Generated modules: their files, and what they import from here."""
