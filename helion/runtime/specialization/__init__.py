"""A kernel for one specialization: its analysis, its compiled configs, and the one it runs."""
