"""Options of a kernel with tables of tuned configs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class AotOptions:
    """Arguments of ``helion.aot_kernel`` besides the options of ``helion.kernel``.

    ``collect_fn`` and ``measure_fn`` return lists of argument tuples that are tuned too when a table is collected.
    ``batched`` names the batch dimensions. It is accepted without effect, since all sizes are compared.
    """

    batched: Any = None
    collect_fn: Callable[[], Sequence[Sequence[Any]]] | None = None
    measure_fn: Callable[[], Sequence[Sequence[Any]]] | None = None
