"""Code of warps that multiply K tiles of their own."""
