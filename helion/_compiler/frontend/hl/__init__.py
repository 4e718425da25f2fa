"""Rules for functions of ``hl``."""
