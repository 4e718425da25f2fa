"""Functions that address the memory of several GPUs. None is implemented: a name can be imported, and a call raises ``exc.SeveralGpusUnsupported``."""

from __future__ import annotations

from ._several_gpus import OverSeveralGpus, function_of


def __getattr__(name: str) -> OverSeveralGpus:
    return function_of(__name__, name)
