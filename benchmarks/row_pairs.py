"""Row kernels that store packed codes of 4 bits, or one element for each pair of columns, and their checks."""

from __future__ import annotations

import sys
from typing import Any

import torch

import helion.language as hl

FP8, UINT8 = torch.float8_e4m3fn, torch.uint8
#: The numbers halfway between those of e2m1, and whether a tie rounds up to an even mantissa.
ENDS = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))


def code(values: torch.Tensor) -> torch.Tensor:
    """Return the code of e2m1 of each number: to the nearest, ties to even."""
    size = torch.abs(values)
    found = (size > 0.25).to(torch.int32) + (size >= 0.75).to(torch.int32) + (size > 1.25).to(torch.int32)
    found = found + (size >= 1.75).to(torch.int32) + (size > 2.5).to(torch.int32) + (size >= 3.5).to(torch.int32)
    return found + (size > 5.0).to(torch.int32) + 8 * (values < 0).to(torch.int32)


def of_rows(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    n = hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        step = torch.clamp(torch.amax(torch.abs(row), -1), min=1e-12) / 6.0
        even, odd = hl.split(code(row / step[:, None]).reshape(tile, n // 2, 2))
        low[tile, :] = (even | (odd << 4)).to(torch.uint8)
        scale[tile] = step


def of_blocks(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    """NVFP4: a scale in e4m3 for each 16 columns."""
    n = hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        blocks = x[tile, :].to(torch.float32).reshape(tile, n // 16, 16)
        step = (torch.amax(torch.abs(blocks), -1) / 6.0).to(torch.float8_e4m3fn)
        scale[tile, :] = step
        even, odd = hl.split(code(blocks / step.to(torch.float32)[:, :, None]).reshape(tile, n // 2, 2))
        low[tile, :] = (even | (odd << 4)).to(torch.uint8)


def of_powers(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    """MXFP4: the exponent of a power of two for each 32 columns."""
    n = hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        blocks = x[tile, :].to(torch.float32).reshape(tile, n // 32, 32)
        largest = torch.clamp(torch.amax(torch.abs(blocks), -1), min=1e-30)
        exponent = torch.clamp(torch.floor(torch.log2(largest)) - 2.0, -127.0, 127.0)
        scale[tile, :] = (exponent + 127.0).to(torch.uint8)
        scaled = torch.clamp(blocks * torch.exp2(-exponent)[:, :, None], -6.0, 6.0)
        even, odd = hl.split(code(scaled).reshape(tile, n // 2, 2))
        low[tile, :] = (even | (odd << 4)).to(torch.uint8)


def normed(
    x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, out: torch.Tensor, low: torch.Tensor, scale: torch.Tensor
) -> None:
    """A residual, a norm and its codes, with a scale for each row."""
    n = hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        total = x[tile, :] + residual[tile, :]
        out[tile, :] = total
        row = total.to(torch.float32)
        row = row * torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-5) * w[:].to(torch.float32)
        step = torch.clamp(torch.amax(torch.abs(row), -1, keepdim=True), min=1e-12) / 6.0
        even, odd = hl.split(code(row / step).reshape(tile, n // 2, 2))
        low[tile, :] = (even | (odd << 4)).to(torch.uint8)
        scale[tile, :] = step


def int4(x: torch.Tensor, low: torch.Tensor, scale: torch.Tensor) -> None:
    n = hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        step = torch.clamp(torch.amax(torch.abs(row), -1), min=1e-12) / 7.0
        rounded = torch.clamp(torch.round(row / step[:, None]), -8.0, 7.0).to(torch.int32)
        even, odd = hl.split(rounded.reshape(tile, n // 2, 2))
        low[tile, :] = ((even & 15) | ((odd & 15) << 4)).to(torch.uint8)
        scale[tile] = step


def gated(x: torch.Tensor, out: torch.Tensor, total: torch.Tensor) -> None:
    """Gates and values take turns along a row."""
    n = hl.specialize(x.size(1))
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        gate, up = hl.split((row - row.mean(-1, keepdim=True)).reshape(tile, n // 2, 2))
        out[tile, :] = (torch.nn.functional.silu(gate) * up).to(out.dtype)
        total[tile] = row.sum(-1)


def codes_of(values: torch.Tensor) -> torch.Tensor:
    """Return packed codes of fp32 numbers, by the ends of their intervals."""
    size, found = values.abs(), torch.zeros(values.shape, dtype=UINT8, device=values.device)
    for end, closed in ENDS:
        found += (size >= end if closed else size > end).to(torch.uint8)
    found += 8 * (values < 0).to(torch.uint8)
    return found[:, ::2] | (found[:, 1::2] << 4)


def _blocks(make: Any, m: int, n: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows, memory of their codes, and their groups of columns on the CPU, whose quotients are exact."""
    n = n // 128 * 128
    x = (make.random(m, n, dtype=torch.float32) - 2).bfloat16()
    return x, make.empty(m, n // 2, dtype=UINT8), x.cpu().float().view(m, n // group, group)


def _same(name: str, got: torch.Tensor, want: torch.Tensor) -> bool:
    """Return whether two tensors are equal, bit by bit; else print how many elements differ, and the first of them."""
    got, want = (each.cpu().contiguous().view(UINT8).view(-1, each.element_size()) for each in (got, want))
    differs = (got != want).any(-1).nonzero()[:, 0]
    if len(differs):
        first = int(differs[0])
        print(
            f"{name}: {len(differs)} of {len(got)} differ, {first}: {got[first].tolist()} for {want[first].tolist()}",
            file=sys.stderr,
        )
    return not len(differs)


def _of_rows(make: Any, m: int, n: int) -> Any:
    x, low, blocks = _blocks(make, m, n, 128)
    row, scale = blocks.view(x.shape), make.empty(m)
    step = row.abs().amax(-1) / 6.0

    def check() -> bool:
        return _same("scales", scale, step) & _same("codes", low, codes_of(row / step[:, None]))

    return of_rows, {}, (x, low, scale), check


def _nvfp4(make: Any, m: int, n: int) -> Any:
    x, low, blocks = _blocks(make, m, n, 16)
    step = (blocks.abs().amax(-1) / 6.0).to(FP8)
    want, scale = codes_of((blocks / step.float()[:, :, None]).view(x.shape)), make.empty(*step.shape, dtype=FP8)
    return of_blocks, {}, (x, low, scale), lambda: _same("scales", scale, step) & _same("codes", low, want)


def _mxfp4(make: Any, m: int, n: int) -> Any:
    x, low, blocks = _blocks(make, m, n, 32)
    power = torch.floor(torch.log2(blocks.abs().amax(-1).double())) - 2
    want = codes_of((blocks * torch.exp2(-power).float()[:, :, None]).clamp(-6, 6).view(x.shape))
    scale, exponent = make.empty(*power.shape, dtype=UINT8), (power + 127).to(UINT8)
    return of_powers, {}, (x, low, scale), lambda: _same("exponents", scale, exponent) & _same("codes", low, want)


def _int4(make: Any, m: int, n: int) -> Any:
    x, low, blocks = _blocks(make, m, n, 128)
    row, scale = blocks.view(x.shape), make.empty(m)
    rounded = torch.round(row / (row.abs().amax(-1) / 7.0)[:, None]).clamp(-8, 7).to(torch.int32) & 15
    want = (rounded[:, ::2] | (rounded[:, 1::2] << 4)).to(UINT8)
    return int4, {}, (x, low, scale), lambda: _same("codes", low, want)


def _gated(make: Any, m: int, n: int) -> Any:
    n = n // 8 * 8
    x, out, total = make.random(m, n), make.empty(m, n // 2, dtype=torch.bfloat16), make.empty(m)
    row = x.double() - x.double().mean(-1, keepdim=True)
    want = torch.nn.functional.silu(row[:, ::2]) * row[:, 1::2]
    return gated, {}, (x, out, total), lambda: bool(((out - want).abs() <= 2**-8 * (want.abs() + 0.02)).all())


CASES = {"fp4 of rows": _of_rows, "nvfp4": _nvfp4, "mxfp4": _mxfp4, "int4": _int4, "gates between": _gated}
