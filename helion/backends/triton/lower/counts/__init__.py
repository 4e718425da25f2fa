"""Counts of conditions in fp32, along a dimension and over the steps of a loop."""
