"""Decisions for one config, as data."""
