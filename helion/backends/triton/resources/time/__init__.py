"""Predicted time: the demand of a launch on each unit of a GPU, and its duration."""
