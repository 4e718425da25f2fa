"""Proof that the roles of a plan cannot hang, overrun or read stale data, and that what they use fits."""
