"""Most warps of a matmul whose columns Triton divides among warpgroups.

An instruction of wgmma has 64 rows. Warpgroups that the rows of a tile leave over share its columns: a tile of 64 x 64
in 32 warps is eight instructions of 8 columns. These are slow, and ptxas before 13.0 leaves them out of loops
(``toolchain/narrow.py``).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..._compiler.decisions import Decisions
from ..._compiler.ir.grammar import DotAttrs, Op, Program
from ..._compiler.rewrites.unfuse_matmul import matmul_launch, matmul_tile
from ...hardware import GROUP_WARPS, WARP_ROWS
from .plan.dots import lanes
from .resources.matrix import ASYNC_ROWS

#: Fewest columns of an instruction that are fast and kept.
_COLUMNS = 16


def asynchronous_products(program: Program) -> tuple[Op, ...]:
    """Return the dots that wgmma may compute, of tiles with enough rows."""
    return tuple(op for op in program.walk() if op.kind == "dot" and not _is_exact(op))


def with_wide_columns(products: tuple[Op, ...], decisions: Decisions) -> Decisions:
    """Lower the warps until each instruction has enough columns. The kernel of unfused matmuls has its own."""
    warps: int = decisions.values["num_warps"]
    tile = matmul_tile(decisions)
    if tile is not None:
        theirs, _ = matmul_launch(decisions)
        rows, columns, _ = tile
        fewer = _most_warps(rows, columns, theirs)
        return decisions if fewer == theirs else decisions.with_values(matmul_num_warps=fewer)
    swapped = bool(decisions.values.get("swap_ab"))
    sides = (_sides(op, decisions.sizes, swapped) for op in products)
    fewer = min((_most_warps(*each, warps) for each in sides), default=warps)
    return decisions if fewer == warps else decisions.with_values(num_warps=fewer)


def _is_exact(op: Op) -> bool:
    dtypes = {value.dtype for value in list(op.values())[:2]}
    precision = op.attributes(DotAttrs).precision
    return torch.float64 in dtypes or (torch.float32 in dtypes and precision != "tf32")


def _sides(op: Op, sizes: Mapping[int, int], swapped: bool) -> tuple[int, int]:
    """Return the rows and columns of a dot's tile; no rows if it is batched, which wgmma does not compute."""
    *batch, rows, columns = (lanes(dim, sizes) for dim in op.result.dims)
    if any(count > 1 for count in batch):
        return 0, columns
    return (columns, rows) if swapped else (rows, columns)


def _most_warps(rows: int, columns: int, warps: int) -> int:
    """Return ``warps``, or as many as leave an instruction ``_COLUMNS`` columns."""
    if rows < ASYNC_ROWS or columns < _COLUMNS or warps <= GROUP_WARPS:  # wgmma takes no fewer columns
        return warps
    return min(warps, rows // WARP_ROWS * (columns // _COLUMNS))
