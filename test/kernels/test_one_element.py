"""Dimensions of size 1: whatever indexes them selects element 0, in the shape of the index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc

ROWS, COLUMNS = 5, 8


def grid(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    for b in hl.grid(x.size(0)):
        out[b, :] = x[b, :] + one[b, :]


def shifted_scalar(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    for b in hl.grid(x.size(0)):
        out[b, :] = x[b, :] + one[b * 7 - 3, :]


def loaded_scalar(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    places = torch.arange(4, 4 + x.size(0))
    for b in hl.grid(x.size(0)):
        out[b, :] = x[b, :] + one[places[b], :]


def begin_and_id(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        out[t, :] = x[t, :] + (one[t.begin, :] + one[t.id, :] * 0)[None, :]


def constant(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        out[t, :] = x[t, :] + one[3, :][None, :]


def tile(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    for t, c in hl.tile([x.size(0), x.size(1)]):
        out[t, c] = x[t, c] + one[t, c]


def reshaped(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        out[t, :] = x[t, :] + one[t, :].reshape(t.block_size, x.size(1))


def index_of_tile(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        out[t, :] = x[t, :] + one[t.index, :] + one[t.index + 5, :] * 0


def index_tensor(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    places = torch.arange(x.size(0)) * 9 - 4
    for t in hl.tile(x.size(0)):
        out[t, :] = x[t, :] + one[places[t], :]


def index_tensors_together(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    n = hl.specialize(x.size(1))
    for t in hl.tile(x.size(0)):
        rows = (t.index * 3)[:, None]
        columns = hl.arange(n)[None, :]
        out[t, :] = x[t, :] + one[rows, columns]


def extra_mask(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        everywhere = hl.load(one, [t, slice(None)], extra_mask=(t.index < 100)[:, None])
        nowhere = hl.load(one, [t, slice(None)], extra_mask=(t.index < 0)[:, None])
        out[t, :] = x[t, :] + everywhere + nowhere


LOADS = (
    grid, shifted_scalar, loaded_scalar, begin_and_id, constant, tile, reshaped, index_of_tile, index_tensor,
    index_tensors_together, extra_mask,
)  # fmt: skip


def modes(function: Callable[..., Any]) -> list[helion.Kernel]:
    return [
        helion.kernel(function),
        helion.kernel(function, static_shapes=False),
        helion.kernel(function, ref_mode=helion.RefMode.EAGER),
    ]


@pytest.mark.parametrize("function", LOADS, ids=lambda f: f.__name__)
def test_loads(function: Callable[..., None]) -> None:
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))
    one = torch.arange(100.0, 100 + COLUMNS)[None]
    for kernel in modes(function):
        # what lies behind the only row must not be read
        guarded = torch.full((3, COLUMNS), torch.nan)
        guarded[1] = one[0]
        out = torch.empty_like(x)
        kernel(guarded[1:2], x, out)
        torch.testing.assert_close(out, x + one)


def test_loads_of_some_block_sizes() -> None:
    x, one = torch.randn(ROWS, COLUMNS), torch.randn(1, COLUMNS)
    for function in (tile, index_of_tile, index_tensor, extra_mask):
        for size in (1, 2, 8):
            out = torch.empty_like(x)
            bound = helion.kernel(function).bind((one, x, out))
            count = len(bound.conservative_config()["block_sizes"])
            bound.compile_config({"block_sizes": [size] * count})(one, x, out)
            torch.testing.assert_close(out, x + one)


# --- reductions, stores and atomics --------------------------------------------------------------------------------------


def counted(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        hl.atomic_add(out, [0, slice(None)], one[t, :].sum(0))


def added_by_scalar(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    for b in hl.grid(x.size(0)):
        hl.atomic_add(out, [b, slice(None)], one[0, :])


def added_by_tile(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        hl.atomic_add(out, [t, slice(None)], one[t, :])


def added_by_index(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        hl.atomic_add(out, [t.index + 2, slice(None)], one[t, :])


def stored_by_scalar(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    for b in hl.grid(x.size(0)):
        out[b, :] = one[b, :] * 5


def stored_by_a_loaded_scalar(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    places = torch.tensor([6])
    for _ in hl.grid(1):
        out[places[0], :] = one[0, :] * 5


def stored_by_index(one: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    for t in hl.tile(x.size(0), block_size=1):
        out[t.index + 4, :] = one[t, :] * 5


@pytest.mark.parametrize(
    "function",
    [
        counted,
        added_by_scalar,
        added_by_tile,
        added_by_index,
        stored_by_scalar,
        stored_by_a_loaded_scalar,
        stored_by_index,
    ],
    ids=lambda f: f.__name__,
)
def test_each_row_in_range_counts_once(function: Callable[..., None]) -> None:
    one = torch.arange(1.0, 1 + COLUMNS)[None]
    for kernel in modes(function):
        guarded = torch.zeros(3, COLUMNS)
        kernel(one, torch.empty(ROWS, COLUMNS), guarded[1:2])
        assert torch.equal(guarded, torch.cat([torch.zeros_like(one), one * ROWS, torch.zeros_like(one)]))


def test_the_tile_of_a_loop_that_begins_elsewhere() -> None:
    @helion.kernel
    def kernel(one: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for t in hl.tile(3, 4):
            out[t, :] = x[t, :] + one[t, :]
        return out

    x, one = torch.randn(ROWS, COLUMNS), torch.randn(1, COLUMNS)
    torch.testing.assert_close(kernel(one, x)[3], x[3] + one[0])


def test_boxes_are_not_taken_for_repeated_rows() -> None:
    @helion.kernel
    def kernel(one: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for t, c in hl.tile(x.size()):
            out[t, c] = hl.load(one, [t, c]) + x[t, c]
        return out

    x, one = torch.randn(32, 64), torch.randn(1, 64)
    bound = kernel.bind((one, x))
    for mechanism in ("pointer", "block_ptr"):
        torch.testing.assert_close(
            bound.compile_config({"block_sizes": [16, 16], "indexing": mechanism})(one, x), x + one
        )


def test_a_dimension_of_two_is_checked_as_before() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for t in hl.tile(x.size(0)):
            out[t, :] = x[t, :] + x[3, :][None, :]
        return out

    with pytest.raises(exc.InvalidAPIUsage, match="out of range"):
        kernel(torch.ones(2, 4))


def test_rows_are_not_stored_into_one() -> None:
    @helion.kernel
    def one_value(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        for t in hl.tile(x.size(0)):
            out[t, :] = x[0, :][None, :]
        return out

    @helion.kernel
    def many_values(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        for t in hl.tile(x.size(0)):
            out[t, :] = x[t, :]
        return out

    x = torch.randn(5, 8)
    assert torch.equal(one_value(x, torch.empty(1, 8)), x[:1])
    with pytest.raises(exc.ShapeMismatch, match="would be stored into one element"):
        many_values(x, torch.empty(1, 8))


@helion.kernel(static_shapes=False)
def placed(x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
    n = x.size(0)
    behind, turned, at = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    for t, c in hl.tile(x.size()):
        hl.store(behind, [t.index + 1, c], x[t, c], extra_mask=(t.index + 1 < n)[:, None])
        turned[n - 1 - t.index, c] = x[t, c]
        at[places[t][:, None], c.index[None, :]] = x[t, c]
    return behind, turned, at


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 5), (6, 1), (6, 5)])
def test_places_that_are_computed(rows: int, columns: int) -> None:
    x, places = torch.randn(rows, columns), torch.randperm(rows)
    behind = torch.cat([torch.zeros(1, columns), x[:-1]])
    expected = (behind, x.flip(0), torch.zeros_like(x).index_copy(0, places, x))
    for kernel in (placed, helion.kernel(placed.fn)):
        for found, wanted in zip(kernel(x, places), expected, strict=True):
            assert torch.equal(found, wanted)


@helion.kernel
def ones_of_a_fixed_number(y: torch.Tensor, n: int) -> torch.Tensor:
    row = torch.ones(y.size(0), hl.specialize(n))
    out = torch.zeros(y.size(0), n)
    for a, b in hl.tile([y.size(0), n]):
        out[a, b] = row[a, b] + y[a][:, None]
    return out


@helion.kernel
def whole_rows_of_any_width(x: torch.Tensor, n: int) -> torch.Tensor:
    narrow = x.narrow(-1, 0, n)
    out = torch.zeros_like(narrow)
    for t in hl.tile(x.size(0)):
        out[t, :] = narrow[t, :] + 1
    return out


@pytest.mark.parametrize("first", [0, 1, 7])
def test_a_fixed_number_of_one_and_a_width_of_none(first: int) -> None:
    y, x = torch.randn(5), torch.randn(5, 7)
    whole_rows_of_any_width.reset()
    for n in (1, 3):
        torch.testing.assert_close(ones_of_a_fixed_number(y, n), (1 + y)[:, None].expand(5, n))
    for n in (first, 0, 1, 7, 3):
        torch.testing.assert_close(whole_rows_of_any_width(x, n), x[:, :n] + 1)


# --- loops that may have one element ------------------------------------------------------------------------------------


def softmax_of_segments(pointers: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.grid(pointers.size(0) - 1):
        begin, end = pointers[row], pointers[row + 1]
        for h in hl.tile(x.size(1)):
            largest, total = hl.full([h], float("-inf")), hl.zeros([h])
            for t in hl.tile(begin, end):
                largest = torch.maximum(largest, x[t, h].amax(0))
            for t in hl.tile(begin, end):
                total = total + torch.exp(x[t, h] - largest[None, :]).sum(0)
            for t in hl.tile(begin, end):
                out[t, h] = torch.exp(x[t, h] - largest[None, :]) / total[None, :]
    return out


def twice_by_segments(pointers: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Stored with a mask, added, and stored whole, by tiles with bounds of the run."""
    out, added, whole = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    for row in hl.grid(pointers.size(0) - 1):
        for t in hl.tile(pointers[row], pointers[row + 1]):
            hl.store(out, [t, slice(None)], x[t, :] * 2, extra_mask=(t.index < 1000)[:, None])
            hl.atomic_add(added, [t, slice(None)], x[t, :])
            whole[t, :] = x[t, :]
    return (out + added + whole) / 4


def first_rows(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.zeros([n, x.size(1)], dtype=x.dtype, device=x.device)
    for t, c in hl.tile([n, x.size(1)]):
        out[t, c] = x[t, c] + t.index[:, None]
    return out


@pytest.mark.parametrize("mode", ["static", "dynamic", "eager", "checked"])
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_tiles_of_the_run_in_a_dimension_of_one(rows: int, columns: int, mode: str) -> None:
    settings = helion.Settings(
        static_shapes=mode != "dynamic",
        ref_mode=helion.RefMode.EAGER if mode == "eager" else helion.RefMode.OFF,
        checked=mode == "checked",
    )
    x, pointers = torch.randn(rows, columns) + 1, torch.tensor([0, rows // 2, rows])
    parts = [torch.softmax(x[a:b], 0) for a, b in ((0, rows // 2), (rows // 2, rows))]
    torch.testing.assert_close(helion.kernel(softmax_of_segments, settings=settings)(pointers, x), torch.cat(parts))
    torch.testing.assert_close(helion.kernel(twice_by_segments, settings=settings)(pointers, x), x)
    expected = x + torch.arange(rows)[:, None]
    torch.testing.assert_close(helion.kernel(first_rows, settings=settings)(x, rows), expected)


@pytest.mark.parametrize("static", [True, False])
def test_loops_of_several_elements_are_not_stored_into_one(static: bool) -> None:
    def kernel(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        for t in hl.tile(x.size(0) + 1):
            hl.store(out, [t, 0], t.index * 2)
        return out

    with pytest.raises(exc.ShapeMismatch, match="would be stored into one element"):
        helion.kernel(kernel, static_shapes=static)(torch.empty(5, 8), torch.empty(1, 8))
