"""What a kernel with tables of tuned configs was given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class AotOptions:
    """What ``helion.aot_kernel`` was given besides the options of ``helion.kernel``.

    ``collect_fn`` and ``measure_fn`` give lists of argument tuples that are tuned too when a table is collected;
    ``batched`` says which dimensions are batches, and is accepted without effect: sizes are compared as they are.
    """

    batched: Any = None
    collect_fn: Callable[[], Sequence[Sequence[Any]]] | None = None
    measure_fn: Callable[[], Sequence[Sequence[Any]]] | None = None
