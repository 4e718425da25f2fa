"""Divisions of indices: where they are C's, where not, and the accesses and values that follow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl


@helion.kernel(backend="triton")
def split_rows(x: torch.Tensor, columns: hl.constexpr) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty([n // columns, m, columns], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        at = tile_n.index
        out[at[None, :] // columns, tile_m.index[:, None], at[None, :] % columns] = x[tile_m, tile_n]
    return out


@helion.kernel(backend="triton")
def signs(x: torch.Tensor, k: int) -> torch.Tensor:
    """Quotients of numbers that may be negative, and of products."""
    out = torch.empty([x.size(0)], dtype=torch.int32, device=x.device)
    for tile in hl.tile(x.size(0)):
        at = tile.index
        out[tile] = (at - 5) // 4 + (at - 5) % 3 + (at * k) % 7 + (at.to(torch.int8)) // 2 + at % 2
    return out


def text(kernel: Any, *args: Any) -> str:
    code = kernel.bind(args, target="h100").to_triton_code()
    return "\n".join(line for line in code.splitlines() if "# src" not in line)


def test_subscripts_are_divided_as_in_c() -> None:
    for columns in (32, 24):
        code = text(split_rows, tensor(64, 768), columns)
        assert f" // {columns}" in code and f" % {columns}" in code
        assert not any(each in code for each in (" >> ", " & ", "< 0"))


def test_other_numbers_round_down() -> None:
    code = text(signs, tensor(1000), 3)
    assert ">> 2" in code and "< 0" in code, "numbers below zero, and products"
    assert ">> 1" in code, "narrow numbers may be negative"
    assert "& 1" in code and "% 2" not in code, "values that are no subscripts keep masks"


@pytest.mark.parametrize(("m", "n", "columns"), [(5, 64, 32), (3, 72, 24), (17, 63, 7)])
def test_values(m: int, n: int, columns: int) -> None:
    x = torch.arange(m * n, dtype=torch.float32).view(m, n)
    assert torch.equal(split_rows(x, columns), x.view(m, -1, columns).transpose(0, 1))


@pytest.mark.parametrize("k", [2**30 + 7, -7, -(2**40) + 1])
def test_wide_and_negative_products(k: int) -> None:
    at = torch.arange(300)
    wanted = (at - 5) // 4 + (at - 5) % 3 + (at * k) % 7 + at.to(torch.int8) // 2 + at % 2
    assert torch.equal(signs(torch.zeros(300), k), wanted.to(torch.int32))
