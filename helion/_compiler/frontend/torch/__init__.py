"""Rules for torch functions on device values."""
