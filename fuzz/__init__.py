"""Differential fuzzing: random kernels under random legal configs, against eager PyTorch in fp64.

    python -m fuzz --out build/fuzz --minutes 8 --workers 14

`families/` draws kernels and `configs.py` draws configs. `worker.py` runs one pair of them at a time in a process that
may crash or hang. `session.py` drives the workers, `journal.py` keeps the outcomes. `shrink.py` makes a failure small
and `reproducer.py` writes it as a standalone file. `sanitize.py` runs a sample under compute-sanitizer.
"""
