"""Functions that synchronize several GPUs, for ``hl.triton_kernel``.

``symm_mem_sync`` is implemented. Other names can be imported; a call raises ``exc.SeveralGpusUnsupported``.
"""

from __future__ import annotations

from typing import Any

from ...backends import synchronization
from ._several_gpus import function_of


def __getattr__(name: str) -> Any:
    return synchronization(name) if name == "symm_mem_sync" else function_of(__name__, name)
