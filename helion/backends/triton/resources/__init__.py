"""How many registers, bytes and waves a config will take."""
