"""``hl.jagged_tile``: rows of different lengths, under several configs and eagerly."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion.runtime.ref_mode import run_reference

LENGTHS = torch.tensor([3, 0, 9, 1, 5])
OFFSETS = torch.tensor([0, 3, 3, 12, 13, 18])
DENSE = torch.randn(5, 9, generator=torch.Generator().manual_seed(1)) + 1
PACKED = torch.randn(18, 7, generator=torch.Generator().manual_seed(2)) + 1


@helion.kernel
def sums(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Rows of a packed tensor, by tiles of columns."""
    rows, columns = offsets.size(0) - 1, x.size(1)
    out = torch.zeros([rows, columns])
    for row in hl.tile(rows):
        begin = offsets[row]
        lengths = offsets[row.index + 1] - begin
        for column in hl.tile(columns):
            acc = hl.zeros([row, column])
            for at in hl.jagged_tile(lengths):
                acc = acc + x[begin[:, None] + at.index[None, :], column].sum(1)
            out[row, column] = acc
    return out


@helion.kernel
def exponentials(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Lanes beyond a row are 0 when loaded, and count for nothing whatever is made of them."""
    out = torch.zeros([offsets.size(0) - 1])
    flat = x.view(-1)
    for row in hl.tile(out.size(0)):
        begin = offsets[row] * 7
        lengths = offsets[row.index + 1] * 7 - begin
        total, highest = hl.zeros([row]), hl.full([row], float("-inf"))
        for at in hl.jagged_tile(lengths):
            values = hl.load(flat, [begin[:, None] + at.index[None, :]])
            total = total + torch.exp(values).sum(1)
            highest = torch.maximum(highest, (values - 10).amax(1))
        out[row] = total + torch.where(highest == float("-inf"), 0.0, highest)
    return out


@helion.kernel
def written(x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, total = torch.zeros_like(x), torch.zeros([x.size(0)])
    for row in hl.tile(x.size(0)):
        acc = hl.zeros([row])
        for at in hl.jagged_tile(lengths[row]):
            values = x[row, at] + 1
            out[row, at] = values
            acc = acc + values.sum(1)
        total[row] = acc
    return out, total


def _rows(x: torch.Tensor, offsets: torch.Tensor) -> list[torch.Tensor]:
    return [x[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


def _sums(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return torch.stack([row.sum(0) for row in _rows(x, offsets)])


def _exponentials(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    rows = [torch.exp(row).sum() + (row.max() - 10 if row.numel() else 0) for row in _rows(x, offsets)]
    return torch.stack(rows)


def _written(x: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.where(torch.arange(x.size(1)) < lengths[:, None], x + 1, 0.0)
    return values, values.sum(1)


CASES: list[tuple[helion.Kernel, tuple[Any, ...], Any]] = [
    (sums, (PACKED, OFFSETS), _sums),
    (exponentials, (PACKED, OFFSETS), _exponentials),
    (written, (DENSE, LENGTHS), _written),
]


@pytest.mark.parametrize(("kernel", "args", "reference"), CASES, ids=[case[0].name for case in CASES])
def test_values(kernel: helion.Kernel, args: tuple[Any, ...], reference: Any) -> None:
    expected = reference(*args)
    torch.testing.assert_close(kernel(*args), expected)
    bound = kernel.bind(args)
    for seed in range(4):
        torch.testing.assert_close(bound.compile_config(bound.config_spec.random(Random(seed)))(*args), expected)
    torch.testing.assert_close(run_reference(kernel, args), expected)
    sizes = [2] * len(bound.config_spec.tunable)
    torch.testing.assert_close(run_reference(kernel, args, sizes), expected)


def test_what_it_takes_is_checked_eagerly_too() -> None:
    @helion.kernel
    def of_floats(x: torch.Tensor) -> torch.Tensor:
        for row in hl.tile(x.size(0)):
            for at in hl.jagged_tile(x[row, 0]):
                x[row, at] = 0
        return x

    for call in (of_floats.bind, lambda args: run_reference(of_floats, args)):
        with pytest.raises(exc.InvalidJaggedTileUsage, match="row lengths must be integers"):
            call((DENSE.clone(),))

    @helion.kernel
    def of_an_inner_tile(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        for column in hl.tile(1):
            for row in hl.tile(x.size(0)):
                for at in hl.jagged_tile(lengths[row]):
                    x[row, at] = column.index[0]
        return x

    with pytest.raises(exc.BackendUnsupported, match="make the rows the grid loop's"):
        run_reference(of_an_inner_tile, (DENSE.clone(), LENGTHS))


def test_a_value_without_the_rows_is_refused_at_its_line() -> None:
    @helion.kernel
    def without_rows(lengths: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(lengths)
        for row in hl.tile(lengths.size(0)):
            acc = hl.zeros([row], dtype=torch.int64)
            for at in hl.jagged_tile(lengths[row]):
                acc = acc + at.index.sum()
            out[row] = acc
        return out

    with pytest.raises(exc.InvalidJaggedTileUsage, match="not that of the rows") as caught:
        without_rows.bind((LENGTHS,))
    assert "acc = acc + at.index.sum()" in str(caught.value)


def test_an_index_of_the_jagged_dimension_needs_no_rows_where_nothing_is_masked() -> None:
    @helion.kernel
    def places(lengths: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(x.shape, dtype=torch.int64)
        for row in hl.tile(x.size(0)):
            for at in hl.jagged_tile(lengths[row]):
                out[row, at] = (at.index * 2)[None, :] + row.index[:, None]
        return out

    columns = torch.arange(DENSE.size(1))
    expected = torch.where(columns < LENGTHS[:, None], 2 * columns + torch.arange(DENSE.size(0))[:, None], 0)
    torch.testing.assert_close(places(LENGTHS, DENSE), expected)
