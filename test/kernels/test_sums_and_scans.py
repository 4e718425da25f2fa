"""Sums over columns, scans, recurrences and rows that begin anywhere, as users write them: right against fp64 with the first seeds
of several GPUs, which fit what those have."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import helion
import helion.language as hl

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "h200", "sm_100", "sm_120", "gfx942", "gfx950")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def reset_or_multiply(
    begun: torch.Tensor, value: torch.Tensor, begins: torch.Tensor, factor: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return begun | begins, torch.where(begins != 0, factor, value * factor)


@helion.kernel()
def running_maximum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.cummax(x[tile, :], -1).values
    return out


@helion.kernel()
def products_between_resets(x: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        factors = x[tile, :].to(torch.float32)
        _begun, values = hl.associative_scan(reset_or_multiply, (begins[tile, :], factors), dim=1)
        out[tile, :] = values.to(x.dtype)
    return out


@helion.kernel()
def sums_of_segments(x: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    """Sums of the columns of each segment of rows."""
    segments, n = begins.size(0) - 1, x.size(1)
    out = torch.empty([segments, n], dtype=torch.float32, device=x.device)
    for segment in hl.grid(segments):
        first, last = begins[segment], begins[segment + 1]
        for columns in hl.tile(n):
            acc = hl.zeros([columns], dtype=torch.float32)
            for rows in hl.tile(first, last):
                acc = acc + x[rows, columns].to(torch.float32).sum(0)
            out[segment, columns] = acc
    return out


@helion.kernel()
def variance_of_columns(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(1)], dtype=torch.float32, device=x.device)
    for columns in hl.tile(x.size(1)):
        values = x[:, columns].to(torch.float32)
        centred = values - values.mean(0)
        out[columns] = (centred * centred).sum(0) / x.size(0)
    return out


@helion.kernel()
def softmax_of_columns(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for columns in hl.tile(x.size(1)):
        out[:, columns] = torch.softmax(x[:, columns].to(torch.float32), 0).to(x.dtype)
    return out


@helion.kernel()
def log_probabilities(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.log_softmax(x[tile, :].to(torch.float32), -1).to(x.dtype)
    return out


@helion.kernel()
def numbered_probabilities(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    m, n = x.size()
    for tile in hl.tile(m):
        part = torch.softmax(x[tile, :].to(torch.float32), -1)
        out[tile, :] = (part * hl.arange(n)[None, :]).to(x.dtype)
    return out


@helion.kernel()
def smoothed_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    m, n = logits.size()
    flat = logits.view(-1)
    out = torch.empty([m], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(m):
        rows = logits[tile, :].to(torch.float32)
        picked = flat[tile.index * n + labels[tile]].to(torch.float32)
        out[tile] = torch.logsumexp(rows, -1) - 0.9 * picked - 0.1 * rows.mean(-1)
    return out


@helion.kernel()
def extremes_and_place(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    spread = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    place = torch.empty([x.size(0)], dtype=torch.int64, device=x.device)
    for tile in hl.tile(x.size(0)):
        rows = x[tile, :].to(torch.float32)
        spread[tile] = rows.amax(-1) - rows.amin(-1)
        place[tile] = rows.argmax(-1)
    return spread, place


@helion.kernel(ignore_warnings=[helion.exc.TensorOperationInWrapper])
def column_moments_in_parts(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    span = hl.register_block_size(m)
    parts = torch.zeros([2, helion.cdiv(m, span), n], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile([m, n], block_size=[span, None]):
        sums, squares = hl.zeros([columns], dtype=torch.float32), hl.zeros([columns], dtype=torch.float32)
        for row in hl.tile(rows.begin, rows.end):
            values = x[row, columns].to(torch.float32)
            sums = sums + values.sum(0)
            squares = squares + (values * values).sum(0)
        parts[0, rows.id, columns] = sums
        parts[1, rows.id, columns] = squares
    return parts.sum(1) / m


@helion.kernel()
def moving_averages(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Means and mean squares that fade, step by step; the spread of both."""
    t, c = x.size()
    out = torch.empty_like(x)
    for columns in hl.tile(c):
        mean, square = hl.zeros([columns], dtype=torch.float32), hl.zeros([columns], dtype=torch.float32)
        kept = keep[columns].to(torch.float32)
        for step in hl.grid(t):
            value = x[step, columns].to(torch.float32)
            mean = kept * mean + (1.0 - kept) * value
            square = kept * square + (1.0 - kept) * value * value
            out[step, columns] = (square - mean * mean).to(x.dtype)
    return out


def _products(x: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    value, found = torch.ones_like(x[:, 0]), []
    for at in range(x.size(1)):
        value = torch.where(begins[:, at] != 0, x[:, at], value * x[:, at])
        found.append(value)
    return torch.stack(found, 1)


def _averages(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    mean, square, found = torch.zeros_like(x[0]), torch.zeros_like(x[0]), []
    for row in x:
        mean, square = keep * mean + (1 - keep) * row, keep * square + (1 - keep) * row * row
        found.append(square - mean * mean)
    return torch.stack(found)


def _smoothed(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return x.logsumexp(-1) - 0.9 * x.gather(1, labels[:, None])[:, 0] - 0.1 * x.mean(-1)


def _resets(shape: tuple[int, ...], device: str) -> torch.Tensor:
    return (torch.arange(shape[1], device=device) % 7 == 0).to(torch.int32).expand(shape).contiguous()


def _begins(shape: tuple[int, ...], device: str) -> torch.Tensor:
    m = shape[0]
    return torch.tensor([0, m // 3, m // 3, m // 2, m], device=device)


@dataclass(frozen=True, kw_only=True)
class Case:
    """``small`` is run, ``large`` compiled; ``more`` makes the arguments behind the first."""

    reference: Callable[..., Any]
    small: tuple[int, int]
    large: tuple[int, int]
    more: tuple[Callable[[tuple[int, ...], str], torch.Tensor], ...] = ()


CASES: dict[helion.Kernel, Case] = {
    running_maximum: Case(reference=lambda x: torch.cummax(x, -1).values, small=(3, 1003), large=(64, 50257)),
    products_between_resets: Case(reference=_products, small=(2, 257), large=(16, 100003), more=(_resets,)),
    sums_of_segments: Case(
        reference=lambda x, b: torch.stack([x[i:j].sum(0) for i, j in itertools.pairwise(b)]),
        small=(63, 33),
        large=(100003, 1000),
        more=(_begins,),
    ),
    variance_of_columns: Case(reference=lambda x: x.var(0, correction=0), small=(129, 33), large=(32001, 1000)),
    softmax_of_columns: Case(reference=lambda x: torch.softmax(x, 0), small=(129, 33), large=(50257, 256)),
    log_probabilities: Case(reference=lambda x: torch.log_softmax(x, -1), small=(3, 1003), large=(4096, 50257)),
    numbered_probabilities: Case(
        reference=lambda x: torch.softmax(x, -1) * torch.arange(x.size(-1)), small=(3, 1003), large=(4096, 50257)
    ),
    smoothed_loss: Case(
        reference=_smoothed,
        small=(3, 701),
        large=(2048, 32001),
        more=(lambda shape, device: torch.arange(shape[0], device=device) % shape[1],),
    ),
    extremes_and_place: Case(
        reference=lambda x: (x.amax(-1) - x.amin(-1), x.argmax(-1)), small=(3, 701), large=(512, 100003)
    ),
    column_moments_in_parts: Case(
        reference=lambda x: torch.stack([x.mean(0), (x * x).mean(0)]), small=(70, 33), large=(100003, 1000)
    ),
    moving_averages: Case(
        reference=_averages,
        small=(65, 33),
        large=(4096, 2000),
        more=(lambda shape, device: torch.full((shape[1],), 0.875, device=device),),
    ),
}


def arguments(kernel: helion.Kernel, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    case = CASES[kernel]
    x = torch.randn(case.small, generator=torch.Generator().manual_seed(1)) / 4 + 1
    return (x.to(dtype), *(make(case.small, "cpu") for make in case.more))


@pytest.mark.parametrize("dtype", [FP32, BF16], ids=str)
@pytest.mark.parametrize("kernel", CASES, ids=lambda k: k.name)
def test_first_seeds_give_what_fp64_gives(kernel: helion.Kernel, dtype: torch.dtype) -> None:
    args = arguments(kernel, dtype)
    wide = [a.double() if a.is_floating_point() else a for a in args]
    expected = CASES[kernel].reference(*wide)
    eps = max(torch.finfo(dtype).eps, 1e-6)
    torch.testing.assert_close(kernel(*args), expected, rtol=8 * eps, atol=8 * eps, check_dtype=False)


@pytest.mark.parametrize("kernel", CASES, ids=lambda k: k.name)
def test_seeds_for_long_rows_are_predicted_to_fit(kernel: helion.Kernel) -> None:
    case = CASES[kernel]
    for gpu in TARGETS if os.environ.get("HELION_PROVE") else ("sm_86", "h200", "gfx942"):
        x = torch.empty(case.large, dtype=FP16, device="meta")
        more = (torch.empty_like(make(case.large, "cpu"), device="meta") for make in case.more)
        bound = kernel.bind((x, *more), target=gpu)
        config = bound.default_config()
        predicted = next(seed.predicted for seed in bound.seeds if seed.config == config)
        assert predicted.fits and not predicted.spill_risk, gpu
        if os.environ.get("HELION_PROVE"):
            found = bound.resources(config)
            assert found.fits and found.spill_bytes <= 64, gpu
            assert found.shared_bytes <= predicted.shared_bytes <= 1.1 * found.shared_bytes + 2048, gpu
