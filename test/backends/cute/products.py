"""Kernels of users that are products, with arguments and references; tests and measurements share them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import helion
import helion.language as hl


@helion.kernel(backend="cute", static_shapes=True)
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(out.dtype)
    return out


Epilogue = Callable[[torch.Tensor, tuple[Any, Any]], torch.Tensor]


@helion.kernel(backend="cute", static_shapes=True)
def fused(x: torch.Tensor, y: torch.Tensor, dtype: hl.constexpr, epilogue: Epilogue) -> torch.Tensor:
    """`epilogue` of the sums and the output's tile; it may capture tensors."""
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = epilogue(acc, (tile_m, tile_n))
    return out


@helion.kernel(backend="cute", static_shapes=True)
def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    _, n = gate.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        gated = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        value = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left = x[tile_m, tile_k]
            gated = torch.addmm(gated, left, gate[tile_k, tile_n])
            value = torch.addmm(value, left, up[tile_k, tile_n])
        out[tile_m, tile_n] = (torch.nn.functional.silu(gated) * value).to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def bmm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The batch as a dimension of tiles."""
    b, m, k = x.size()
    n = y.size(2)
    out = torch.empty([b, m, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_m, tile_n in hl.tile([b, m, n]):
        acc = hl.zeros([tile_b, tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.baddbmm(acc, x[tile_b, tile_m, tile_k], y[tile_b, tile_k, tile_n])
        out[tile_b, tile_m, tile_n] = acc.to(out.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def bmm_one_by_one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The batch as a scalar index, in tiles of one."""
    b, m, k = x.size()
    n = y.size(2)
    out = torch.empty([b, m, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_m, tile_n in hl.tile([b, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_b.begin, tile_m, tile_k], y[tile_b.begin, tile_k, tile_n])
        out[tile_b.begin, tile_m, tile_n] = acc.to(out.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def bmm_shared(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A loop over the batch, of one right operand."""
    b, m, k = x.size()
    n = y.size(1)
    out = torch.empty([b, m, n], dtype=x.dtype, device=x.device)
    for i in hl.grid(b):
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[i, tile_m, tile_k], y[tile_k, tile_n])
            out[i, tile_m, tile_n] = acc.to(out.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def bmm_fused(
    x: torch.Tensor, y: torch.Tensor, row: torch.Tensor, column: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    """A row and a matrix for each product, a column for all; D is (M, batch, N)."""
    b, m, k = x.size()
    n = y.size(2)
    out = torch.empty([m, b, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_m, tile_n in hl.tile([b, m, n]):
        acc = hl.zeros([tile_b, tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.baddbmm(acc, x[tile_b, tile_m, tile_k], y[tile_b, tile_k, tile_n])
        value = acc * column[tile_m][None, :, None] + row[tile_b, tile_n][:, None, :]
        value = torch.nn.functional.silu(value) + residual[tile_b, tile_m, tile_n]
        out[tile_m, tile_b, tile_n] = value.to(x.dtype).permute(1, 0, 2)
    return out


BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
BOUNDS = {FP32: 2e-5, FP16: 1e-3, BF16: 6e-3}
"""Of the norm of a row of the output, against the same computation of the same values in fp64."""


def values(*shape: int, dtype: torch.dtype, device: str, seed: int = 0, mean: float = 0.5) -> torch.Tensor:
    """Normal numbers around `mean`, with a scale of its own for every line of the first dimension."""
    generator = torch.Generator(device=device).manual_seed(seed + sum(shape))
    numbers = torch.randn(*shape, generator=generator, device=device) + mean
    scale = 0.5 + torch.rand(shape[0], *[1] * (len(shape) - 1), generator=generator, device=device)
    return (numbers * scale).to(dtype)


def operand(rows: int, columns: int, major: str, **how: Any) -> torch.Tensor:
    """A matrix whose rows ("row") or columns ("column") are contiguous, or rows with a gap behind ("padded")."""
    if major == "column":
        return values(columns, rows, **how).t()
    if major == "padded":
        return values(rows, columns + 16, **how)[:, :columns]
    return values(rows, columns, **how)


def reference(x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype, epilogue: Epilogue | None) -> torch.Tensor:
    """In fp32 from fp64 sums, rounded once; epilogues index with whole slices."""
    sums = (x.double() @ y.double()).float()
    whole = (slice(None), slice(None))
    return sums if epilogue is None else epilogue(sums, whole)


def row_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest distance of a row relative to its norm; not a number where something is not finite."""
    expected = expected.double()
    return float(((actual.double() - expected).norm(dim=1) / expected.norm(dim=1).clamp_min(1e-20)).max())


def epilogues(m: int, n: int, device: str) -> dict[str, tuple[torch.dtype, Epilogue]]:
    """Name to the output's dtype and the epilogue, of operands for an output of (m, n)."""
    row, scale = (values(n, dtype=dtype, device=device, seed=seed) for seed, dtype in enumerate((BF16, FP32)))
    column = values(m, dtype=FP32, device=device, seed=2)
    residual = values(m, n, dtype=BF16, device=device, seed=3)
    wide = values(m, n, dtype=FP32, device=device, seed=4) * 10
    return {
        "bias": (BF16, lambda acc, t: acc + row[t[1]]),
        "bias_gelu": (BF16, lambda acc, t: torch.nn.functional.gelu(acc + row[t[1]])),
        "bias_gelu_tanh": (FP16, lambda acc, t: torch.nn.functional.gelu((acc + row[t[1]]) * 0.01, approximate="tanh")),
        "bias_silu": (BF16, lambda acc, t: torch.nn.functional.silu(acc * 0.05 - row[t[1]])),
        "relu_scaled": (FP32, lambda acc, t: torch.relu(acc * 0.125 - 1.0)),
        "row_column_scales": (BF16, lambda acc, t: acc * column[t[0]][:, None] * scale[t[1]][None, :]),
        "scale_residual": (BF16, lambda acc, t: acc * scale[t[1]] + residual[t[0], t[1]]),
        "two_residuals": (FP32, lambda acc, t: torch.sigmoid(acc * 0.01) * wide[t[0], t[1]] + residual[t[0], t[1]]),
        "clamped": (BF16, lambda acc, t: torch.minimum(torch.maximum(acc, row[t[1]]), wide[t[0], t[1]])),
        "exp_log": (FP32, lambda acc, t: torch.log(1.0 + torch.exp(torch.tanh(acc * 0.01))) / (1.5 + acc.abs())),
    }
