"""Row kernels of the suites *reductions* and *transfer* as ``auto`` runs them, for ``benchmarks/row_kernels.py``.

Each is compared with a copy of the same bytes, the general backend's default and torch.compile, all timed in one process.
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

LARGE_BYTES = 64_000_000
"""Bytes of a cell from which its share of a copy is counted."""
FEWER_ROWS, LONG_COLUMNS = 128, 32768
"""Rows that do not fill a GPU, and the columns of long ones: there the default of each backend is timed."""
FEW_ROUNDS = 5
"""Rounds in which the calls of few rows are timed by turns: they differ by less than the drift of the clock."""


def shapes() -> Iterator[tuple[str, str, int, int]]:
    """Yield kernel, type, rows and columns of each large cell, long rows first."""
    from benchmarks.cells import row_cells

    found = [(cell.kernel, cell.dtype, *_sizes(cell.case)) for cell in row_cells() if cell.summed is None]
    large = [each for each in found if each[2] * each[3] * (2 if each[1] == "bfloat16" else 4) >= LARGE_BYTES // 2]
    yield from sorted(large, key=lambda each: -each[3])


def few_shapes() -> Iterator[tuple[str, str, int, int]]:
    """Yield kernel, type, rows and columns of each cell with few rows."""
    from benchmarks.cells import few_row_cells

    yield from ((cell.kernel, cell.dtype, *_sizes(cell.case)) for cell in few_row_cells())


def _sizes(case: str) -> tuple[int, int]:
    m, n = (int(word) for word in case.split() if word.isdigit())
    return m, n


@functools.cache
def _cells() -> dict[tuple[str, str, int, int], Any]:
    from benchmarks.cells import few_row_cells, row_cells

    cells = [*(cell for cell in row_cells() if cell.summed is None), *few_row_cells()]
    return {(cell.kernel, cell.dtype, *_sizes(cell.case)): cell for cell in cells}


def cell_of(shape: tuple[str, str, int, int]) -> Any:
    """Return the cell of a kernel, type, rows and columns."""
    return _cells()[shape]


def _of_cute(fn: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Callable[[], Any]]:
    """Return the call of the cute backend's default, if it takes the kernel."""
    import helion

    try:
        bound = helion.kernel(fn, backend="cute").bind(args)
        return {"cute": functools.partial(bound.compile_config(bound.default_config()), *args)}
    except helion.exc.CuteUnsupported:
        return {}


def timed(
    shape: tuple[str, str, int, int],
    device: str,
    gpu: Callable[[], Any],
    time: Callable[[Callable[[], Any]], float],
    copies: Callable[[int], float],
) -> dict[str, Any]:
    """Check a cell against fp64 and time it. ``gpu`` enters the GPU, ``copies`` times a copy of a number of bytes.

    With few rows and long rows, the cute backend's default is timed as well where ``auto`` does not take it.
    """
    import torch

    import helion
    from benchmarks.cells import inputs
    from benchmarks.seeds import bound_of, least_bytes, relative_error
    from helion._testing import map_tensors

    cell = cell_of(shape)
    with gpu():
        args = inputs(cell, device)
    auto = helion.kernel(cell.function.fn, backend="auto").bind(args)
    calls = {"auto": functools.partial(auto.compile_config(auto.default_config()), *args)}
    if auto.backend != "triton":
        general = helion.kernel(cell.function.fn, backend="triton").bind(args)
        calls["triton"] = functools.partial(general.compile_config(general.default_config()), *args)
    elif shape[2] < FEWER_ROWS or shape[3] >= LONG_COLUMNS:
        calls |= _of_cute(cell.function.fn, args)
    torch._dynamo.reset()
    calls["compile"] = functools.partial(torch.compile(cell.baseline, dynamic=False), *args)
    for call in calls.values():
        call()  # compiles, while others have the GPU
    with gpu():
        wide = map_tensors(args, lambda t: t.double() if t.is_floating_point() else t)
        error = relative_error(calls["auto"](), cell.baseline(*wide))
        del wide
        size = least_bytes(cell, args)
        rounds = [
            {name: time(call) for name, call in calls.items()}
            for _ in range(FEW_ROUNDS if shape[2] < FEWER_ROWS else 1)
        ]
        times = {name: statistics.median(each[name] for each in rounds) for name in calls}
        copy = copies(size)
    found = {f"{name}_us": round(us, 2) for name, us in times.items()}
    return dict(
        suite=cell.suite,
        backend=auto.backend,
        bytes=size,
        ok=error <= bound_of(args),
        error=float(f"{error:.3g}"),
        **found,
        copy_us=round(copy, 2),
        share=round(copy / times["auto"], 3),
    )
