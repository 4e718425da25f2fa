"""``python -m helion``: one module per subcommand, listed in the table of ``commands``."""
