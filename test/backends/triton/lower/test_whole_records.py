"""Records of which a kernel accesses elements one by one: which are accessed as a whole, and the values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS

ONE_WARP = helion.Config(block_sizes=[32], num_warps=1)


def products(x: torch.Tensor) -> torch.Tensor:
    """Products of two matrices `[N, 6, 6]` with themselves: records of 36 elements."""
    n = x.size(0)
    out = torch.empty_like(x)
    for tile in hl.tile(n):
        rows = [[x[tile, i, j] for j in range(6)] for i in range(6)]
        for i in hl.static_range(6):
            for j in hl.static_range(6):
                total = rows[i][0] * rows[0][j]
                for p in hl.static_range(1, 6):
                    total = total + rows[i][p] * rows[p][j]
                out[tile, i, j] = total
    return out


def lower_parts(x: torch.Tensor) -> torch.Tensor:
    """Lower triangles of matrices `[N, 8, 8]`, twice as large; the other elements keep what they have."""
    out = torch.full_like(x, 7.0)
    for tile in hl.tile(x.size(0)):
        for i in hl.static_range(8):
            for j in hl.static_range(i + 1):
                out[tile, i, j] = x[tile, i, j] * 2
    return out


def upper_parts(x: torch.Tensor) -> torch.Tensor:
    """Upper triangles with the last element, which is the sign of the bits of a mask."""
    out = torch.full_like(x, 7.0)
    for tile in hl.tile(x.size(0)):
        for i in hl.static_range(8):
            for j in hl.static_range(i, 8):
                out[tile, i, j] = x[tile, i, j] * 2
    return out


def traces(x: torch.Tensor) -> torch.Tensor:
    """Squared norms of matrices `[5, 5, N]`: one result of each record, whose elements are loaded twice."""
    n = x.size(2)
    out = torch.empty([n], dtype=x.dtype, device=x.device)
    for tile in hl.tile(n):
        total = x[0, 0, tile] * 0
        for i in hl.static_range(5):
            for j in hl.static_range(5):
                total = total + x[i, j, tile] * x[i, j, tile]
        out[tile] = total
    return out


def in_place(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        for i in hl.static_range(6):
            for j in hl.static_range(6):
                x[tile, i, j] = x[tile, j, i] + 1 if i < j else x[tile, i, j] * 2
    return x


def with_neighbour(x: torch.Tensor) -> torch.Tensor:
    """A load of another record stays alone, with all others of the tensor."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        first = x[(tile.index + 1) % x.size(0), 0, 0]
        for i in hl.static_range(6):
            for j in hl.static_range(6):
                out[tile, i, j] = x[tile, i, j] + first
    return out


def squares(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    k = hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        first = x[tile, 0, 0]
        for i in hl.static_range(k):
            for j in hl.static_range(k):
                value = x[tile, i, j]
                out[tile, i, j] = value * value + first
    return out


Case = Callable[[torch.Tensor], torch.Tensor]


def _in_place(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    for i in range(6):
        for j in range(6):
            x[:, i, j] = x[:, j, i] + 1 if i < j else x[:, i, j] * 2
    return x


def _parts(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.where(keep, x * 2, 7.0)


WHOLE = torch.ones(8, 8, dtype=torch.bool)
CASES: tuple[tuple[Case, Case, int, bool], ...] = (
    (products, lambda x: x @ x, 6, False),
    (lower_parts, lambda x: _parts(x, WHOLE.tril()), 8, False),
    (upper_parts, lambda x: _parts(x, WHOLE.triu()), 8, False),
    (traces, lambda x: (x * x).sum((0, 1)), 5, True),
    (in_place, _in_place, 6, False),
    (with_neighbour, lambda x: x + x.roll(-1, 0)[:, :1, :1], 6, False),
)


def _given(n: int, k: int, last: bool, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(n, k, k).to(dtype)
    return x.permute(1, 2, 0) if last else x


@pytest.mark.parametrize("n", [32, 63, 1000])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_the_values(case: tuple[Case, Case, int, bool], static: bool, n: int) -> None:
    kernel, reference, k, last = case
    x = _given(n, k, last)
    expected = reference(x)
    got = helion.kernel(kernel, config=ONE_WARP, static_shapes=static)(x.clone(memory_format=torch.preserve_format))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types(dtype: torch.dtype) -> None:
    x = _given(63, 8, False, dtype)
    got = helion.kernel(lower_parts, config=ONE_WARP)(x)
    torch.testing.assert_close(got, _parts(x, WHOLE.tril()).to(dtype))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_which_are_whole(case: tuple[Case, Case, int, bool]) -> None:
    kernel, _, k, last = case
    x = torch.empty([4096, k, k], device="meta")
    code = helion.kernel(kernel, backend="triton").bind((x.permute(1, 2, 0) if last else x,), target="h200")
    text = code.to_triton_code(ONE_WARP)
    whole = {products: {"x", "out"}, lower_parts: {"x", "out"}, upper_parts: {"x", "out"}, traces: {"x"}}
    whole[with_neighbour] = {"out"}
    assert {name for name in ("x", "out") if f"{name}_records" in text} == whole.get(kernel, set())
    assert "tl.store(out" not in text or text.count("tl.store(") == 1


def test_the_default_is_of_one_warp() -> None:
    cell = CELLS["cholesky8"]
    bound = helion.kernel(cell.kernel.fn, backend="triton").bind(cell.arguments("meta", False), target="h200")
    config = bound.default_config()
    assert (config["block_sizes"], config["num_warps"]) == ([32], 1)
    code = bound.to_triton_code(config)
    assert code.count("tl.load(") == 1 and code.count("tl.store(") == 1


@pytest.mark.parametrize(("warps", "rows"), [(1, 64), (4, 512), (2, 32)])
def test_other_tiles_load_elements(warps: int, rows: int) -> None:
    """A thread has registers for one record, and without one for each thread lanes would be idle."""
    x = torch.empty([4096, 6, 6], device="meta")
    bound = helion.kernel(products, backend="triton").bind((x,), target="h200")
    assert "x_records" not in bound.to_triton_code(helion.Config(block_sizes=[rows], num_warps=warps))


@pytest.mark.parametrize(
    ("k", "dtype", "whole"), [(3, torch.float32, True), (3, torch.bfloat16, False), (4, torch.bfloat16, False)]
)
def test_records_of_a_sector_are_loaded_by_element(k: int, dtype: torch.dtype, whole: bool) -> None:
    """Memory moves 32 bytes at once: records of more take several accesses of each lane."""
    x = torch.empty([4096, k, k], device="meta", dtype=dtype)
    bound = helion.kernel(squares, backend="triton").bind((x,), target="h200")
    assert ("x_records" in bound.to_triton_code(ONE_WARP)) == whole
    assert (bound.default_config()["block_sizes"] == [32]) == whole


@pytest.mark.parametrize("n", [32, 63, 1000])
@pytest.mark.parametrize("k", [3, 4])
def test_short_records(k: int, n: int) -> None:
    x = torch.randn(n, k, k)
    torch.testing.assert_close(helion.kernel(squares, config=ONE_WARP)(x), x * x + x[:, :1, :1])
