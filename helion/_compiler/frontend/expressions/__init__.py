"""What each expression of a kernel's source gives."""
