"""Printing of a plan as the text of a module. It makes no decisions."""
