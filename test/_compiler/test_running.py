"""Scans of whole dimensions that are walked in chunks: right against fp64, and what they cannot walk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion._compiler.ir.grammar import ForAttrs
from helion._compiler.ir.verifier import verify
from helion._compiler.rewrites.reduction_loops.roll import roll, rollable_blocks

Tensors = tuple[torch.Tensor, ...]


def affine(
    kept: torch.Tensor, value: torch.Tensor, factor: torch.Tensor, term: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return kept * factor, value * factor + term


def right_alone(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return right


@helion.kernel
def running_sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.cumsum(x[tile, :] + y[tile, :], -1)
    return out


@helion.kernel
def running_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.cumprod(1 + x[tile, :] / 64, -1) * y[tile, :]
    return out


@helion.kernel
def running_maxima(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    out, places = torch.empty_like(x), torch.empty_like(x, dtype=torch.int64)
    for tile in hl.tile(x.size(0)):
        values, at = torch.cummax(x[tile, :], -1)
        out[tile, :] = values
        places[tile, :] = at
    return out, places


@helion.kernel
def recurrence(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """No neutral element is known, and two values go together."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        _kept, values = hl.associative_scan(affine, (torch.sigmoid(y[tile, :]), x[tile, :]), dim=1)
        out[tile, :] = values
    return out


@helion.kernel
def scanned_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The second pass needs the scan again, behind a reduction of the first."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        sums = torch.cumsum(x[tile, :], -1)
        out[tile, :] = torch.cumsum(sums / sums.abs().amax(-1, keepdim=True), -1) + y[tile, :]
    return out


@helion.kernel
def of_scanned_columns(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The scan runs along another dimension than the one in chunks."""
    out = torch.empty([x.size(0)])
    for tile in hl.tile(x.size(0)):
        rows = hl.arange(4)
        spread = x[tile, None, :] * (1 + rows)[None, :, None]
        out[tile] = torch.cumsum(spread, 1).amax(1).sum(-1)
    return out


@helion.kernel
def taken_from_the_right(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = hl.associative_scan(right_alone, x[tile, :], dim=1)
    return out


@helion.kernel
def running_counts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x, dtype=torch.int64)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.cumsum((x[tile, :] > 0).to(torch.int32), -1)
    return out


def _recurrence(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    state, found = torch.zeros_like(x[:, 0]), []
    for at in range(x.size(1)):
        state = torch.sigmoid(y[:, at]) * state + x[:, at]
        found.append(state)
    return torch.stack(found, 1)


def _scanned_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    sums = x.cumsum(-1)
    return (sums / sums.abs().amax(-1, keepdim=True)).cumsum(-1) + y


KERNELS: dict[helion.Kernel, Callable[..., Any]] = {
    running_sums: lambda x, y: (x + y).cumsum(-1),
    running_products: lambda x, y: (1 + x / 64).cumprod(-1) * y,
    running_maxima: lambda x, y: torch.cummax(x, -1),
    recurrence: _recurrence,
    scanned_twice: _scanned_twice,
    of_scanned_columns: lambda x, y: (x[:, None, :] * (1 + torch.arange(4))[None, :, None]).cumsum(1).amax(1).sum(-1),
    taken_from_the_right: lambda x, y: x,
    running_counts: lambda x, y: (x > 0).cumsum(-1),
}


def arguments(n: int) -> Tensors:
    generator = torch.Generator().manual_seed(n)
    return tuple(torch.randn(3, n, generator=generator) + 0.25 for _ in range(2))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_chunks_give_what_fp64_gives(kernel: helion.Kernel) -> None:
    for n, chunk in ((37, 16), (64, 32), (1000, 256)):
        args = arguments(n)
        bound = kernel.bind(args)
        (size, *_) = bound.conservative_config()["reduction_loops"]
        assert size is None or size > 0
        loops = [chunk] * len(bound.conservative_config()["reduction_loops"])
        found = bound.compile_config({"block_sizes": [2], "reduction_loops": loops})(*args)
        expected = KERNELS[kernel](*(value.double() for value in args))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, check_dtype=False)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_fp32(dtype: torch.dtype) -> None:
    args = tuple(value.to(dtype) for value in arguments(1000))
    found = running_sums.bind(args).compile_config({"block_sizes": [1], "reduction_loops": [128]})(*args)
    expected = (args[0] + args[1]).double().cumsum(-1)
    torch.testing.assert_close(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-3)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_spreads_forward_only(special: float) -> None:
    x, y = arguments(100)
    x[1, 40] = special
    for kernel in (running_sums, recurrence):
        found = kernel.bind((x, y)).compile_config({"block_sizes": [2], "reduction_loops": [16]})(x, y)
        expected = KERNELS[kernel](x.double(), y.double())
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, check_dtype=False, equal_nan=True)


def test_places_of_maxima_are_those_of_the_row() -> None:
    """The last of equal ones, and a nan wherever it stands."""
    x, y = arguments(100)
    x[0, 70] = x[0].amax()
    x[1, 33] = float("nan")
    found = running_maxima.bind((x, y)).compile_config({"block_sizes": [2], "reduction_loops": [16]})(x, y)
    expected = torch.cummax(x, -1)
    torch.testing.assert_close(found[0], expected.values, equal_nan=True)
    assert torch.equal(found[1], expected.indices)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_rolled_programs_are_well_formed(kernel: helion.Kernel) -> None:
    program = kernel.bind(arguments(37))._analysis.program
    blocks, _ = rollable_blocks(program)
    assert blocks
    rolled = verify(roll(program, frozenset(blocks)), "roll")
    assert any(isinstance(op.attrs, ForAttrs) and op.attrs.chunked for op in rolled.walk())


def test_what_begins_at_the_end_is_not_rolled() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile, :] = hl.cumsum(x[tile, :], 1, reverse=True)
        return out

    blocks, reasons = rollable_blocks(kernel.bind((torch.empty(3, 100),))._analysis.program)
    assert not blocks
    assert list(reasons.values()) == ["a scan begins at the end of the dimension"]


def test_scans_of_booleans_are_not_rolled() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x, dtype=torch.bool)
        for tile in hl.tile(x.size(0)):
            out[tile, :] = hl.associative_scan(torch.logical_or, x[tile, :] > 0, dim=1)
        return out

    _, reasons = rollable_blocks(kernel.bind((torch.empty(3, 100),))._analysis.program)
    assert list(reasons.values()) == ["a scan of booleans uses the dimension"]
