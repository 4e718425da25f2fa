"""Predictions of the registers, bytes and waves of a config."""
