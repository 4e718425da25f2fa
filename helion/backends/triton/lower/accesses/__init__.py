"""Rewrites of loads and stores that join those of neighbouring elements."""
