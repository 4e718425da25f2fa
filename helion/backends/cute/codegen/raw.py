"""Code of raw tiles: sources of copied operands that TMA loads as they are, and copying warps read from shared memory."""

from __future__ import annotations

from ..plan.copied import Copied, raw_major
from ..plan.counts import copied_lines, counts, raw_operands
from ..plan.dtypes import itemsize
from ..plan.records import GemmPlan
from ..roles import grammar as g
from .numbers import batch_modes, batched

WORDS = {1: "cutlass.Uint8", 2: "cutlass.Uint16", 4: "cutlass.Uint32"}
"""The types that TMA moves elements as, by their bytes."""


def dtype(copied: Copied) -> str:
    """Return the type of the elements of raw tiles in shared memory."""
    return WORDS[itemsize(copied.sources[0].dtype)]


def _strides(plan: GemmPlan, copied: Copied) -> tuple[int, int]:
    """Return the steps from line to line and along K in a raw tile, which is as contiguous as its source."""
    along_k = raw_major(copied.sources[0], ()) == "k"
    return (plan.tile[2], 1) if along_k else (1, copied_lines(plan, copied))


def place(plan: GemmPlan, copied: Copied, line: str, k: str, cursor: str) -> str:
    """Return the index of an element of the raw tile in the stage of ``cursor``."""
    steps = _strides(plan, copied)
    tile = copied_lines(plan, copied) * plan.tile[2]
    return f"{cursor}.index * {tile} + ({line}) * {steps[0]} + ({k}) * {steps[1]}"


def host(plan: GemmPlan, extent: dict[str, str]) -> list[str]:
    """Return the TMA objects of raw tiles; ``extent`` are those of M, N and K in descriptors."""
    found = []
    ring = counts(plan).raw
    assert ring is not None
    for copied in raw_operands(plan):
        label, source, lines = copied.operand, copied.sources[0], copied_lines(plan, copied)
        modes = batch_modes(plan, label)
        sizes, steps = ("".join(f", {mode[at]}" for mode in modes) for at in (0, 1))
        shape = f"({extent['m' if label == 'a' else 'n']}, {extent['k']}{sizes})"
        first, second = _strides(plan, copied)
        tile = f"({lines}, {plan.tile[2]})"
        found += [
            f"matrix_raw_{label} = cute.make_tensor(",
            f"    cute.recast_ptr({label}, dtype={dtype(copied)}),",
            f"    cute.make_layout({shape}, stride=({source.pitch}, {source.k_pitch}{steps})),",
            ")",
            f"layout_raw_{label} = cute.make_layout(",
            f"    ({lines}, {plan.tile[2]}, {ring.stages}), stride=({first}, {second}, {lines * plan.tile[2]})",
            ")",
            f"tma_raw_{label}, tensor_raw_{label} = cpasync.make_tiled_tma_atom(",
            f"    cpasync.CopyBulkTensorTileG2SOp(), matrix_raw_{label}, cute.select(layout_raw_{label}, mode=[0, 1]), {tile}",
            ")",
        ]
    return found


def views(plan: GemmPlan) -> list[str]:
    """Define the TMA views of raw tiles: all tiles of a source, and the stages."""
    found = []
    for copied in raw_operands(plan):
        label = copied.operand
        modes = f"(None, None{', None' * len(batch_modes(plan, label))})"
        tile = f"({copied_lines(plan, copied)}, {plan.tile[2]})"
        found += [
            f"tiles_raw_{label} = cute.local_tile(tensor_raw_{label}, {tile}, {modes})",
            f"to_raw_{label}, from_raw_{label} = cpasync.tma_partition(",
            f"    tma_raw_{label}, 0, cute.make_layout(1),"
            f" cute.group_modes(shared_raw_{label}, 0, 2), cute.group_modes(tiles_raw_{label}, 0, 2)",
            ")",
        ]
    return found


def load(plan: GemmPlan, step: g.LoadRaw) -> list[str]:
    """Return the code that loads a raw tile."""
    label, cursor = step.operand, step.cursor
    tile = f"[None, {'tile_m' if label == 'a' else 'tile_n'}, k_tile{batched(plan, label)}]"
    return [
        f"cute.copy(tma_raw_{label}, from_raw_{label}{tile}, to_raw_{label}[None, {cursor}.index],"
        f" tma_bar_ptr=raw.producer_get_barrier({cursor}))"
    ]
