"""``python -m helion``: one module per subcommand, which are rows of the table in ``commands``."""
