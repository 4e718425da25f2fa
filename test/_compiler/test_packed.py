"""Bits at which kernels put small integers into larger ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import helion
import helion.language as hl
from helion._compiler.facts.packed import packed_starts, rounded_dtypes


def shifted(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    view = x.view(m, n // 2, 2)
    out = torch.empty([m, n // 2], dtype=torch.uint8, device=x.device)
    for rows, columns in hl.tile([m, n // 2]):
        even, odd = hl.split(view[rows, columns, :].to(torch.int32) & 15)
        out[rows, columns] = (even | odd << 4).to(torch.uint8)
    return out


def multiplied(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    view = x.view(m, n // 2, 2)
    out = torch.empty([m, n // 2], dtype=torch.uint8, device=x.device)
    for rows, columns in hl.tile([m, n // 2]):
        even, odd = hl.split(view[rows, columns, :])
        out[rows, columns] = (even.to(torch.int32) + odd.to(torch.int32) * 16).to(torch.uint8)
    return out


def shifted_by_indices(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    view = x.view(m, n // 8, 8)
    out = torch.empty([m, n // 8], dtype=torch.int32, device=x.device)
    for rows, columns in hl.tile([m, n // 8]):
        words = view[rows, columns, :].to(torch.int32) << (hl.arange(8) * 4)[None, None, :]
        out[rows, columns] = words.sum(-1).to(torch.int32)
    return out


def rounded(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x, dtype=torch.int8)
    for rows in hl.tile(x.size(0)):
        out[rows, :] = x[rows, :].to(torch.int8)
    return out


def places(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x, dtype=torch.int64)
    for rows, columns in hl.tile(x.size()):
        out[rows, columns] = rows.index[:, None] * 64 + columns.index[None, :] + 0 * x[rows, columns].to(torch.int64)
    return out


@pytest.mark.parametrize(
    ("function", "starts"),
    [
        (shifted, (4,)),
        (multiplied, (4,)),
        (shifted_by_indices, tuple(range(4, 64, 4))),
        (rounded, ()),
        (places, ()),
    ],
)
def test_fields_begin_at_shifts_and_at_factors_of_rounded_numbers(
    function: Callable[..., torch.Tensor], starts: tuple[int, ...]
) -> None:
    bound = helion.kernel(function).bind((torch.randn(64, 64),), target="sm_90")
    assert packed_starts(bound._analysis.program) == starts


def brightened(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows, columns in hl.tile(x.size()):
        out[rows, columns] = (x[rows, columns].to(torch.float32) * 1.5 + 0.5).to(torch.uint8)
    return out


def thresholded(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x, dtype=torch.bool)
    for rows, columns in hl.tile(x.size()):
        out[rows, columns] = x[rows, columns].to(torch.float32) * 1.5 > 3.0
    return out


def inverted(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows, columns in hl.tile(x.size()):
        out[rows, columns] = 255 - x[rows, columns]
    return out


@pytest.mark.parametrize(
    ("function", "dtypes"), [(brightened, (torch.float32,)), (thresholded, (torch.float32,)), (inverted, ())]
)
def test_integers_are_rounded_from_numbers_that_a_kernel_computes(
    function: Callable[..., torch.Tensor], dtypes: tuple[torch.dtype, ...]
) -> None:
    bound = helion.kernel(function).bind((torch.zeros(64, 64, dtype=torch.uint8),), target="sm_90")
    assert rounded_dtypes(bound._analysis.program) == dtypes
