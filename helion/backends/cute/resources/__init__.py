"""Predicted resources and time of a launch, before anything is compiled."""
