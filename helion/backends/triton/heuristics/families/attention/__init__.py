"""Attention: forward, decoding and backward."""
