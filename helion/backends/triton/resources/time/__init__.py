"""Predicted time: what a launch asks of each unit of a GPU, and how long that takes."""
