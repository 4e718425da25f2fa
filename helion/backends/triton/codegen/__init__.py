"""A plan as the text of a module. Prints, and decides nothing."""
