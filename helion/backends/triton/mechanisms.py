"""Features of the installed Triton."""

from __future__ import annotations

import functools


@functools.cache
def mechanisms() -> frozenset[str]:
    """Return its indexing mechanisms: 3.9 has no block pointers."""
    import triton  # 0.2 s, paid when a kernel first asks for more than pointers

    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return frozenset(("pointer", "tensor_descriptor", *(("block_ptr",) if version < (3, 9) else ())))
