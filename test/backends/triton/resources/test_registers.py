"""Predicted registers of three kernels whose values or addresses stay, and those that ptxas gave them."""

from __future__ import annotations

import pytest
import torch
from harness import facts_of

import helion.language as hl
from helion._compiler.facts.records import KernelFacts
from helion.autotuner.proposal import Predicted
from helion.backends.triton.resources.predict import predict
from helion.hardware import target

BF16, FP32 = torch.bfloat16, torch.float32


def bilinear_form(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for rows in hl.tile(x.size(0)):
        total = hl.zeros([rows], dtype=torch.float32)
        for columns in hl.tile(w.size(1)):
            acc = hl.zeros([rows, columns], dtype=torch.float32)
            for at in hl.tile(w.size(0)):
                acc = torch.addmm(acc, x[rows, at], w[at, columns])
            total = total + (acc * y[rows, columns]).sum(-1)
        out[rows] = total
    return out


def weight_norm(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for columns in hl.tile(x.size(1)):
        squares = hl.zeros([columns], dtype=torch.float32)
        for rows in hl.tile(x.size(0)):
            values = x[rows, columns].float()
            squares = squares + (values * values).sum(0)
        factor = g[columns].float() / torch.sqrt(squares)
        for rows in hl.tile(x.size(0)):
            out[rows, columns] = (x[rows, columns].float() * factor[None, :]).to(x.dtype)
    return out


def mel_bands(real: torch.Tensor, imaginary: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty([real.size(0), w.size(1)], dtype=torch.float32, device=real.device)
    for rows, columns in hl.tile([real.size(0), w.size(1)]):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for at in hl.tile(real.size(1)):
            a, b = real[rows, at], imaginary[rows, at]
            acc = hl.dot(a * a + b * b, w[at, columns], acc=acc)
        out[rows, columns] = torch.log(acc + 1e-6)
    return out


def found(facts: KernelFacts, sizes: tuple[int, ...], warps: int, gpu: str) -> Predicted:
    tiles = dict(zip((axis.block_id for axis in facts.tunable_axes), sizes, strict=True))
    return predict(facts, tiles, warps, 3, target(gpu))


def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


#: Arguments that give the facts of each kernel.
GIVEN = {
    bilinear_form: (empty(BF16, 16384, 512), empty(BF16, 512, 512), empty(BF16, 16384, 512)),
    weight_norm: (empty(BF16, 4096, 4096), empty(BF16, 4096)),
    mel_bands: (empty(FP32, 48000, 257), empty(FP32, 48000, 257), empty(FP32, 257, 80)),
}


@pytest.mark.parametrize(
    ("kernel", "sizes", "warps", "gpu", "registers", "spilled"),
    [
        # a tile in bf16 is converted before a product with it is summed; Triton 3.7, ptxas 12.8 and 13.1
        (bilinear_form, (64, 256, 32), 4, "sm_90", 255, 680),
        (bilinear_form, (128, 256, 32), 8, "sm_90", 255, 392),
        (bilinear_form, (64, 256, 32), 8, "sm_90", 174, 0),
        (bilinear_form, (64, 256, 64), 8, "sm_100", 180, 0),
        (bilinear_form, (64, 128, 64), 4, "sm_80", 188, 0),
        # rows that two loops read stay in registers if each loop has one step
        (weight_norm, (16, 4096, 4096), 16, "sm_90", 128, 664),
        (weight_norm, (16, 4096, 4096), 16, "sm_100", 128, 688),
        (weight_norm, (16, 4096, 1024), 16, "sm_100", 40, 0),
        # each element of rows that begin anywhere has an address
        (mel_bands, (64, 64, 32), 2, "sm_90", 168, 0),
        (mel_bands, (128, 64, 16), 2, "sm_90", 255, 512),
    ],
)
def test_what_stays_takes_registers(
    kernel: object, sizes: tuple[int, ...], warps: int, gpu: str, registers: int, spilled: int
) -> None:
    facts = facts_of(kernel, *GIVEN[kernel])
    predicted = found(facts, sizes, warps, gpu)
    assert (predicted.spill_risk > 0) == (spilled > 0)
    assert spilled or kernel is weight_norm or abs(predicted.registers_per_thread / registers - 1) < 0.2


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), w.size(0)], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([x.size(0), w.size(0)]):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for at in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[rows, at], w[columns, at].T)
        out[rows, columns] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize(("columns", "spills"), [(2048, False), (2046, False), (2047, True)])
def test_addresses_of_narrow_stores_take_registers(columns: int, spills: bool) -> None:
    """Of 254 registers, 1120 bytes are spilled with 2047 columns (measurement ``narrow_stores``)."""
    facts = facts_of(product, empty(BF16, 8192, 1024), empty(BF16, columns, 1024))
    assert (found(facts, (128, 256, 64), 8, "sm_90").spill_risk > 0) == spills
