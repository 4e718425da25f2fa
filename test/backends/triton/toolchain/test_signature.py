"""The signature that a kernel is compiled for before its first launch is that of the launch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion.backends.triton.toolchain.signature import offline_signature


@helion.kernel
def apart(x: torch.Tensor, begin: int) -> torch.Tensor:
    m, n = x.size()
    out = torch.empty_like(x)
    even, odd = x[:, 0::4], x[:, 1::2]
    rest, last = x.narrow(1, begin, 8), x[:, -8:]
    both, next_row = x[:, 4:][:, 4:], x.view(-1)[n:]
    for rows, columns in hl.tile([m, 4]):
        total = even[rows, columns] + odd[rows, columns] + rest[rows, columns] + last[rows, columns]
        out[rows, columns] = total + both[rows, columns] + next_row[columns][None, :]
    return out


def found(begin: int, columns: int, dtype: torch.dtype) -> set[str]:
    apart.reset()  # the numbers of the first call count
    bound = apart.bind((torch.empty(16, columns, dtype=dtype), begin), target="sm_90")
    code: Any = bound.variant.specialized.analysis.code(bound.variant.specialized.analysis.default_config)
    names = set(offline_signature(code.plan, bound.target)["signature"])
    return names - set(offline_signature(code.plan, bound.target)["divisible"])


@pytest.mark.parametrize(
    ("begin", "columns", "dtype", "misplaced"),
    [
        (8, 64, torch.bfloat16, {"odd"}),
        (4, 64, torch.bfloat16, {"odd", "rest"}),
        (4, 64, torch.float32, {"odd"}),
        (8, 36, torch.bfloat16, {"odd", "last", "next_row"}),
        (2, 36, torch.float32, {"odd", "rest"}),
    ],
)
def test_views_that_begin_between_16_bytes(begin: int, columns: int, dtype: torch.dtype, misplaced: set[str]) -> None:
    given = torch.empty(16, columns, dtype=dtype)
    views = {
        "odd": given[:, 1::2],
        "rest": given.narrow(1, begin, 8),
        "last": given[:, -8:],
        "both": given[:, 8:],
        "next_row": given.view(-1)[columns:],
    }
    assert misplaced == {name for name, view in views.items() if view.data_ptr() % 16}
    assert found(begin, columns, dtype) & views.keys() == misplaced
