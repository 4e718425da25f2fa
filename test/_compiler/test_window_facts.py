"""Facts of windows: rows that share loads, and steps of computed subscripts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import facts_of, tensor

import helion
import helion.language as hl


def resized(x, rows: int, scale: float):
    n, h, w = x.size()
    out = torch.empty([n, rows, 2 * w], dtype=x.dtype, device=x.device)
    for image, y, at in hl.tile(out.size(), block_size=[1, None, None]):
        row = torch.clamp((y.index * scale).to(torch.int32), 0, h - 1)
        column = torch.floor((at.index + 0.5) * 0.5).to(torch.int32)
        out[image.begin, y, at] = x[image.begin, row, column]
    return out


def rolled(x):
    h, w = x.size()
    out = torch.empty_like(x)
    for y, at in hl.tile([h, w]):
        above = torch.where(y.index == 0, h - 1, y.index - 1)
        out[y, at] = x[above, (at.index + 3) % w]
    return out


def looked_up(x, at):
    out = torch.empty_like(x)
    for y, columns in hl.tile(x.size()):
        out[y, columns] = x[y, at[columns]]
    return out


def halved(x):
    h, w = x.size()
    out = torch.empty([h, 2 * w], dtype=x.dtype, device=x.device)
    for y, at in hl.tile(out.size()):
        out[y, at] = x[y, at.index // 2]
    return out


def packed_sums(x, offsets):
    out = torch.empty([offsets.size(0) - 1], dtype=torch.float32, device=x.device)
    for rows in hl.tile(out.size(0)):
        begin = offsets[rows]
        total = hl.zeros([rows])
        for part in hl.jagged_tile(offsets[rows.index + 1] - begin):
            total += x[begin[:, None] + part.index[None, :]].to(torch.float32).sum(1)
        out[rows] = total
    return out


def moved_columns(x, at):
    out = torch.empty_like(x)
    for y, columns in hl.tile(x.size()):
        out[y, columns] = x[y, (at[columns] + columns.index) % x.size(1)]
    return out


IMAGE = tensor(64, 64)
PACKED, OFFSETS = tensor(3200), tensor(65, dtype=torch.int64)


@pytest.mark.parametrize(
    ("fn", "args", "steps"),
    [
        (resized, (tensor(3, 32, 64), 96, 0.3), ((1, 64 * 32 / 96), (2, 0.5))),
        (rolled, (IMAGE,), ((0, 64.0), (1, 1.0))),
        (looked_up, (IMAGE, tensor(64, dtype=torch.int32)), ()),
        (halved, (IMAGE,), ()),
        (packed_sums, (PACKED, OFFSETS), ((0, 3200 / 64), (1, 1.0))),
        (moved_columns, (IMAGE, tensor(64, dtype=torch.int32)), ()),
    ],
)
def test_steps(fn: Any, args: tuple[Any, ...], steps: tuple[tuple[int, float], ...]) -> None:
    facts = facts_of(fn, *args)
    gathered = [op for op in facts.memory_ops if op.gathered]
    (load,) = gathered
    assert dict(load.steps) == pytest.approx(dict(steps)) and load.kind == "load"
    assert all(not op.steps for op in facts.memory_ops if not op.gathered)


def filtered(x, step: hl.constexpr, masked: hl.constexpr):
    h, n = x.size()
    out = torch.empty([h // step - 2, n], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile(out.size()):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for tap in hl.static_range(3):
            y = rows.index * step + tap
            inside = (y >= (tap if masked else 0))[:, None]
            acc = acc + hl.load(x, [y, columns], extra_mask=inside).to(torch.float32)
        out[rows, columns] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize(
    ("step", "masked", "loads"), [(1, False, (24, 10)), (2, False, (24, 17)), (1, True, (24, 10)), (3, False, None)]
)
def test_rows_that_windows_share(step: int, masked: bool, loads: tuple[int, int] | None) -> None:
    facts = helion.kernel(filtered).bind((IMAGE, step, masked), target="sm_90").facts
    found = [window.loads(8) for window in facts.row_windows if window.axis == 0]
    assert found == ([] if loads is None else [loads]), "windows apart share nothing; only rows at an edge are masked"


def test_sums_of_rows_are_no_windows() -> None:
    def summed(x):
        out = torch.empty([x.size(0) - 2], dtype=torch.float32, device=x.device)
        for rows in hl.tile(out.size(0)):
            total = x[rows, :] + x[rows.index + 1, :] + x[rows.index + 2, :]
            out[rows] = total.to(torch.float32).sum(-1)
        return out

    assert facts_of(summed, IMAGE).row_windows == ()
