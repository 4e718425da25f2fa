"""From the text of a module to a binary and what it takes, with the DSL and no GPU."""
