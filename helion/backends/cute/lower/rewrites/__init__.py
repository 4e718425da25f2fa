"""Rewrites of programs to the forms that lowering knows."""
