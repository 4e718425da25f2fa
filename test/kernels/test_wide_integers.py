"""Integers beyond 32 bits: indices, arguments and constants compute exactly, as integers of Python do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import helion
import helion.language as hl
from helion.runtime import stub_driver

BILLION = 10**9
BIG = 2**40
X = torch.zeros(5)
BOTH = pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])


def multiples(n: int, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.int64)
    for i in hl.grid(x.size(0)):
        out[i] = i * n
    return out


def linear(n: int, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.int64)
    for tile in hl.tile(x.size(0)):
        out[tile] = (tile.index + 1) * n - 3
    return out


def shifted(n: int, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.int64)
    for tile in hl.tile(x.size(0)):
        out[tile] = tile.index + n
    return out


def product(n: int, m: int, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.int64)
    for tile in hl.tile(x.size(0)):
        out[tile] = n * m + tile.index
    return out


def fields(n: int, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.int64)
    for tile in hl.tile(x.size(0), block_size=1):
        out[tile] = tile.begin * n + tile.id * n + tile.index * n
    return out


def derived(n: int, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.int64)
    for tile in hl.tile(x.size(0), block_size=8):
        half = torch.where(tile.index % 2 == 0, tile.index // 2, -tile.index)
        least = torch.minimum(half, tile.index) * n
        out[tile] = least + (tile.index & 3) * n + tile.index.amax() // 2 * n
    return out


def as_numbers(n: int, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float64)
    for tile in hl.tile(x.size(0)):
        out[tile] = (tile.index * n).to(torch.float64) + torch.where(tile.index * n >= 3 * n, 0.5, 0.25)
    return out


def compared(n: int, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.int64)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.where(tile.index < n, 1, 0) + torch.where(tile.index == n, 2, 0)
    return out


def constants(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.int64)
    for tile in hl.tile(x.size(0)):
        out[tile] = tile.index * BILLION + (tile.index << 31) + (tile.index + BIG) + tile.index // BIG
    return out


def squares(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.int64)
    for tile in hl.tile(x.size(0)):
        out[tile] = tile.index * tile.index + tile.index**2
    return out


def i64(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.size(0))


REFERENCES: dict[Callable[..., torch.Tensor], Callable[..., torch.Tensor]] = {
    multiples: lambda n, x: i64(x) * n,
    linear: lambda n, x: (i64(x) + 1) * n - 3,
    shifted: lambda n, x: i64(x) + n,
    fields: lambda n, x: i64(x) * 3 * n,
    derived: lambda n, x: (torch.where(i64(x) % 2 == 0, i64(x) // 2, -i64(x)) + (i64(x) & 3) + 2) * n,
    as_numbers: lambda n, x: (i64(x) * n).double() + torch.where(i64(x) * n >= 3 * n, 0.5, 0.25),
    compared: lambda n, x: (i64(x) < n).long() + 2 * (i64(x) == n),
}


@BOTH
@pytest.mark.parametrize("function", REFERENCES, ids=lambda function: function.__name__)
def test_an_argument_of_any_size(function: Callable[..., torch.Tensor], static: bool) -> None:
    """Small ones come first: their code must not run for the others."""
    kernel, reference = helion.kernel(function, static_shapes=static), REFERENCES[function]
    eager = helion.kernel(function, ref_mode=helion.RefMode.EAGER)
    for n in (3, BILLION, -BILLION, 2**31 - 2**24 - 1, 2**31, 2**32, -BIG, 4):
        assert torch.equal(kernel(n, X), reference(n, X)), n
        assert torch.equal(eager(n, X), reference(n, X)), n


def test_products_of_arguments_and_constants() -> None:
    kernel = helion.kernel(product)
    for n, m in ((2, 3), (2 * BILLION, 2), (BIG, -5)):
        assert torch.equal(kernel(n, m, X), i64(X) + n * m)
    index = i64(X)
    expected = index * BILLION + (index << 31) + (index + BIG)
    assert torch.equal(helion.kernel(constants)(X), expected)


@BOTH
def test_products_of_indices(static: bool) -> None:
    kernel = helion.kernel(squares, static_shapes=static)
    for size in (40, 70_000, 50):
        assert torch.equal(kernel(torch.zeros(size)), 2 * i64(torch.zeros(size)) ** 2)


def shifted_copy(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.zeros_like(x)
    for rows, columns in hl.tile(x.size()):
        flat = rows.index[:, None] * x.size(1) + columns.index[None, :]
        out[rows, columns] = torch.where(flat + 7 < n, x[rows, columns], 0.0)
    return out


def test_what_fits_stays_in_32_bits_and_is_not_compared() -> None:
    kernel, x = helion.kernel(shifted_copy), torch.ones(5, 9)
    assert kernel(x, 20).sum() == 13
    code = kernel.bind((x, 20)).to_triton_code()
    assert "tl.int64" not in code and "_otherwise" not in code


def test_written_calls_run_other_code_for_other_numbers() -> None:
    kernel = helion.kernel(multiples)
    with stub_driver() as stub:
        for n in (5, 6, BILLION, 7, BIG):
            kernel(n, X)
        assert len(stub.launches) == 5


def counted(n: int, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([3, x.size(0)], dtype=torch.int64)
    for i in hl.grid(x.size(0)):
        total = 0
        odd = 0
        last = -1
        for j in range(4):
            total = total + n
            if j % 2 == 1:
                odd = odd + i * n
                last = j
        out[0, i] = total
        out[1, i] = odd
        out[2, i] = last
    return out


@BOTH
def test_numbers_that_a_loop_adds_up(static: bool) -> None:
    kernel = helion.kernel(counted, static_shapes=static)
    for n in (3, BILLION, BIG):
        expected = torch.stack([torch.full([5], 4 * n), 2 * n * i64(X), torch.full([5], 3)])
        assert torch.equal(kernel(n, X), expected), n


def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.int64)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * n
    return out


def test_loaded_integers_keep_their_dtype() -> None:
    kernel, loaded = helion.kernel(scaled), torch.arange(5, dtype=torch.int32)
    assert torch.equal(kernel(loaded, BILLION), (loaded * BILLION).long())
    assert torch.equal(kernel(loaded.long(), BIG), loaded.long() * BIG)


def counted_on_some_paths(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        m = 1
        if x[0] > 0:
            if x[1] > 0:
                m = m + 1
            m += 3
        else:
            for _ in hl.grid(n):
                m = m + 1
        out[t] = x[t] + m
    return out


@pytest.mark.parametrize("x", [(1.0, 1.0), (1.0, -1.0), (-1.0, 1.0)])
def test_a_number_counted_on_some_paths_has_64_bits_on_all(x: tuple[float, float]) -> None:
    given = torch.tensor(x)
    m = 1 + (3 + (x[1] > 0) if x[0] > 0 else 5)
    assert torch.equal(helion.kernel(counted_on_some_paths)(given, 5), given + m)
