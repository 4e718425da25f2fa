"""What tuning has found: one row per kernel, specialization, target, versions and space, with all that was tried."""
