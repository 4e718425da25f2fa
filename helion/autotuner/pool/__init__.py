"""Disposable processes: each runs one untrusted job, and is killed when it takes too long."""
