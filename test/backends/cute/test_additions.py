"""Loops that add the gradient of queries to memory: changed in one place, refused by name or right; where sums are stored."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from backends.cute.edited_source import GRADIENTS, compare_gradients, edited
from backends.cute.printed_gradients import CUTLASS

import helion
from helion import exc
from helion.backends.cute.codegen.attention import atomic

PART = "hl.dot(differences.to(q.dtype), k[h, tile_n, :]) * 0.125"
ADDED = "hl.atomic_add(dq, [h, tile_m, slice(None)], part)"
TEXT = GRADIENTS
for old, new in (
    ("delta, extra)", "delta, factor)"),
    ("    dk, dv = ", "    dq = torch.zeros_like(q, dtype=torch.float32)\n    dk, dv = "),
    ("        dk[", f"            part = {PART}\n            {ADDED}\n        dk["),
    ("return dk", "return dq, dk"),
):
    TEXT = TEXT.replace(old, new)
CHANGES = {
    "no change": ("part = hl.dot", "part = hl.dot", None),
    "no factor": (PART, "hl.dot(differences.to(q.dtype), k[h, tile_n, :])", None),
    "a factor of the launch": (PART, "-hl.dot(differences.to(q.dtype), k[h, tile_n, :]) * factor", None),
    "a quotient": (PART, "hl.dot(differences.to(q.dtype), k[h, tile_n, :]) / 8", None),
    "initial values": ("torch.zeros_like(q, dtype=torch.float32)", "torch.full_like(q, 0.5, dtype=torch.float32)", None),
    "indices of columns": (ADDED, ADDED.replace("slice(None)", "hl.arange(dims)"), None),
    "a number is added": (PART, f"{PART} + 1.0", "no product times numbers"),
    "a square": (PART, "hl.dot(differences.to(q.dtype), k[h, tile_n, :]) ** 2", "no product times numbers"),
    "positions": (PART, f"{PART} * tile_m.index[:, None]", "indices in sums"),
    "another left operand": (PART, PART.replace("differences", "weights"), "another left operand"),
    "values as right operand": (PART, PART.replace("k[h", "v[h"), None),
    "another head": (PART, PART.replace("k[h", "k[0"), "by no product before it"),
    "16 bits": ("dtype=torch.float32)\n    dk, dv", "dtype=torch.bfloat16)\n    dk, dv", "float32 is implemented"),
    "a maximum": (ADDED, ADDED.replace("atomic_add", "atomic_max"), "other than a relaxed addition"),
    "an acquiring addition": (ADDED, ADDED.replace("part)", 'part, sem="acq_rel")'), "other than a relaxed addition"),
    "two additions": (ADDED, f"{ADDED}\n            {ADDED}", "more than one atomic"),
    "an old value that is read": (ADDED, f"value_sum = value_sum + {ADDED}.sum() * 0.0", "no other effect"),
    "a sum that is read": ("part = hl", "differences = differences + dq[h, tile_m, :].sum(-1)[:, None]\n            part = hl", "another left operand"),
    "a tensor that is read": ("part = hl", "more = dq[h, tile_m, :]\n            part = hl", None),
    "gradients to a tensor that is read": ("weights = torch", "scores = scores + dq[h, tile_m, 0][:, None]\n            weights = torch", "and read or stored"),
    "fewer rows": (ADDED, ADDED.replace("dq,", "dq[:, :-4],"), "another shape|no tensor|host"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_addition_is_refused_or_right(name: str, tmp_path: Path) -> None:
    compare_gradients(TEXT, CHANGES[name], tmp_path / "gradients.py", 0.125, exc.Base)


def test_a_part_of_the_dimensions_is_refused(tmp_path: Path) -> None:
    text = TEXT.replace(
        "torch.zeros_like(q, dtype=torch.float32)", "q.new_zeros([heads, m, 2 * dims], dtype=torch.float32)"
    )
    function = edited(text, ADDED, ADDED.replace("slice(None)", "hl.arange(dims)"), tmp_path / "gradients.py").gradients
    tensors = tuple(torch.empty(2, 150, 64, dtype=torch.bfloat16, device="meta") for _ in range(4))
    numbers = tuple(torch.empty(2, 150, device="meta") for _ in range(2))
    with pytest.raises(exc.CuteUnsupported, match="indexed by a part of the dimensions"):
        helion.kernel(backend="cute")(function).bind((*tensors, *numbers, 0.125))


GROUPS, HALF_WARP, BANKS = 2, 16, 32


class Written(dict):
    """Shared memory from the place of a thread on, by the strides of the printed views: its own stores, in order."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    def __setitem__(self, at: tuple[int, int, int] | int, value: object) -> None:
        if isinstance(at, int):
            at = (128 * at, 0, 0)
        i, row, half = at
        super().__setitem__(self.place + i + 256 * row + 2048 * half, value)


def test_transposed_sums_are_stored_where_the_copy_engine_reads_them() -> None:
    """The same of a transposed accumulator: rows of 64 bytes, two of which are one line of banks. Each store has all banks."""
    names: dict[str, object] = {"cutlass": CUTLASS}
    plan = SimpleNamespace(keys=96, groups=GROUPS)
    for lines in atomic._turned_stores(plan):  # type: ignore[arg-type]
        exec("\n".join(lines), names)
    places, store = names["sum_places"], names["store_sum"]
    memory: dict[int, object] = {}
    for group, warp in itertools.product(range(GROUPS), range(4)):
        orders = []
        for lane in range(32):
            elements = [(lane // 4 + e // 2 % 2 * 8, e // 4 * 8 + lane % 4 * 2 + e % 2) for e in range(24)]
            written = [Written(place) for place in places(lane, warp, group)]  # type: ignore[operator]
            numbers = [torch.tensor(64 * (48 * group + row) + 16 * warp + column) for column, row in elements]
            store(numbers, written, lane % 2 == 1)  # type: ignore[operator]
            orders.append([place for part in written for place in part])
            for part in written:
                assert not memory.keys() & part.keys(), "stores meet"
                memory |= part
        assert all(len({place % BANKS for place in step}) == BANKS for step in zip(*orders, strict=True))
    for group, row, column in itertools.product(range(GROUPS), range(48), range(64)):
        part = (column % 16 // 4) ^ (row // 2 % 4)
        place = (4 * group + column // 16) * 768 + row * 16 + part * 4 + column % 4
        assert memory[place] == 64 * (48 * group + row) + column


def test_sums_are_stored_where_the_copy_engine_reads_them() -> None:
    """Run the printed stores of all threads. TMA swizzles 16-byte parts of rows of 128 bytes by the row. A half-warp's
    8-byte stores have all banks."""
    names: dict[str, object] = {"cutlass": CUTLASS}
    for lines in atomic._stores():
        exec("\n".join(lines), names)
    places, store = names["sum_places"], names["store_sum"]
    memory: dict[int, object] = {}
    for group in range(GROUPS):
        for warp in range(4):
            orders = []
            for lane in range(32):
                elements = [
                    (16 * warp + lane // 4 + e // 2 % 2 * 8, e // 4 * 8 + lane % 4 * 2 + e % 2) for e in range(32)
                ]
                written = [Written(place) for place in places(lane, warp, group)]  # type: ignore[operator]
                numbers = [torch.tensor(64 * row + column) for row, column in elements]
                store(numbers, written, lane // 4 % 2 == 1)  # type: ignore[operator]
                orders.append([place for part in written for place in part if place % 2 == 0])
                for part in written:
                    assert not memory.keys() & part.keys(), "stores meet"
                    memory |= part
            for step in zip(*orders, strict=True):
                for first in (0, HALF_WARP):
                    banks = {(place + i) % BANKS for place in step[first : first + HALF_WARP] for i in range(2)}
                    assert len(banks) == BANKS
    for group in range(GROUPS):
        for row in range(64):
            for column in range(64):
                part = (column % 32 // 4) ^ (row % 8)
                place = group * 4096 + column // 32 * 2048 + row * 32 + part * 4 + column % 4
                assert memory[place] == 64 * row + column
