"""Rolls whole dimensions into loops over chunks."""
