"""Cache of tuning: one row per kernel, specialization, target, versions and space, with all candidates tried."""
