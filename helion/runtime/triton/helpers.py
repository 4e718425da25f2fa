"""Functions that wait for words in memory, for ``hl.triton_kernel``.

``triton_wait_signal`` is implemented. Other names can be imported; a call raises ``exc.SeveralGpusUnsupported``.
"""

from __future__ import annotations

from typing import Any

from ...backends import synchronization
from ._several_gpus import function_of


def __getattr__(name: str) -> Any:
    return synchronization(name) if name == "triton_wait_signal" else function_of(__name__, name)
