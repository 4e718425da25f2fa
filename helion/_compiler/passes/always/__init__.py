"""Passes and steps for every config."""
