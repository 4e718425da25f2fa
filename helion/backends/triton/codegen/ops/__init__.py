"""Printers of ops, by kind."""
