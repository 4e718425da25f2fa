"""Kernels of users whose products are followed by reductions of whole rows, with references; tests and measurements share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from backends.cute.products import values

import helion
import helion.language as hl

F = torch.nn.functional
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

Chain = Callable[..., torch.Tensor]


@helion.kernel(backend="cute", static_shapes=True)
def whole_rows(
    x: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    column: torch.Tensor,
    residual: torch.Tensor,
    dtype: hl.constexpr,
    chain: Chain,
) -> torch.Tensor:
    """`chain` of the sums, a row, another one, a column and a matrix."""
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        out[tile_m, :] = chain(acc, weight[:], bias[:], column[tile_m][:, None], residual[tile_m, :]).to(dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def per_row(x: torch.Tensor, y: torch.Tensor, dtype: hl.constexpr, chain: Chain) -> torch.Tensor:
    """One number per row: `chain` of the sums."""
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m], dtype=dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, :], acc=acc)
        out[tile_m] = chain(acc).to(dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def softmax_with_statistics(
    x: torch.Tensor, y: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Probabilities, logits, and of each row the logsumexp and where it is largest."""
    m, k = x.size()
    n = hl.specialize(y.size(1))
    probabilities = torch.empty([m, n], dtype=x.dtype, device=x.device)
    logits = torch.empty([m, n], dtype=torch.float32, device=x.device)
    total = torch.empty([m, 1], dtype=torch.float32, device=x.device)
    place = torch.empty([m], dtype=torch.int64, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        largest = torch.amax(acc, dim=-1, keepdim=True)
        shifted = torch.exp(acc - largest)
        normalizer = torch.sum(shifted, dim=-1, keepdim=True)
        place[tile_m] = torch.argmax(acc, dim=-1)
        probabilities[tile_m, :] = (shifted / normalizer).to(x.dtype)
        logits[tile_m, :] = acc
        total[tile_m, :] = largest + torch.log(normalizer)
    return probabilities, logits, total, place


@helion.kernel(backend="cute", static_shapes=True)
def quantized_rows(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 rows and the number that brings each back."""
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=torch.int8, device=x.device)
    scale = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        step = torch.clamp(acc.abs().amax(dim=-1), min=1e-10) / 127.0
        scale[tile_m] = step
        out[tile_m, :] = torch.round(acc / step[:, None]).to(torch.int8)
    return out, scale


@helion.kernel(backend="cute", static_shapes=True)
def gated_rows(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """rms_norm of a gated product."""
    m, k = x.size()
    n = hl.specialize(gate.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        left = hl.zeros([tile_m, n], dtype=torch.float32)
        right = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left = torch.addmm(left, x[tile_m, tile_k], gate[tile_k, :])
            right = torch.addmm(right, x[tile_m, tile_k], up[tile_k, :])
        hidden = F.silu(left) * right
        out[tile_m, :] = (hidden * torch.rsqrt((hidden * hidden).mean(-1, keepdim=True) + 1e-6) * weight[:]).to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def scaled_norm(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, eps: float, scale: float) -> torch.Tensor:
    """Numbers that only a call knows, of rows and of elements."""
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, :], acc=acc)
        acc = acc * scale
        normalised = acc * torch.rsqrt(torch.mean(acc * acc, dim=-1) + eps)[:, None]
        out[tile_m, :] = (normalised * weight[:].to(torch.float32)).to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def scaled_rows(
    x: torch.Tensor, y: torch.Tensor, x_scale: torch.Tensor, y_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """rms_norm of a product of 8-bit floats with a scale per row of x and per column of y, as 8-bit floats with one per row."""
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, :], acc=acc)
        sums = acc * x_scale[tile_m][:, None] * y_scale[:][None, :]
        rows = sums * torch.rsqrt(torch.mean(sums * sums, dim=-1, keepdim=True) + 1e-6)
        step = torch.amax(torch.abs(rows), dim=-1) / 448.0
        out[tile_m, :] = (rows / step[:, None]).to(torch.float8_e4m3fn)
        scale[tile_m] = step
    return out, scale


@dataclass(frozen=True, kw_only=True)
class Case:
    """``chain`` is what the kernel says, ``eager`` what it means where torch has it in one piece."""

    chain: Chain
    dtype: torch.dtype = BF16
    eager: Chain | None = None

    @property
    def reference(self) -> Chain:
        return self.eager or self.chain


def _layer_norm(a: Any, w: Any, b: Any, c: Any, r: Any) -> Any:
    mean = a.mean(-1, keepdim=True)
    centred = a - mean
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred * torch.rsqrt(variance + 1e-5) * w + b


def _two_sums(a: Any, w: Any, b: Any, c: Any, r: Any) -> Any:
    mean = torch.sum(a, dim=1) / a.size(1)
    square = torch.sum(a * a, dim=1) / a.size(1)
    return (a - mean[:, None]) / torch.sqrt(square - mean * mean + 1e-5)[:, None]


def _two_norms(a: Any, w: Any, b: Any, c: Any, r: Any) -> Any:
    first = F.rms_norm(a, [a.size(-1)], eps=1e-6) * w
    return F.layer_norm(first + r, [a.size(-1)], eps=1e-5)


#: By name; each is given the sums, a row, another one, a column and a matrix.
CASES: dict[str, Case] = {
    "softmax": Case(chain=lambda a, w, b, c, r: torch.softmax(a, dim=-1)),
    "softmax of scaled sums": Case(chain=lambda a, w, b, c, r: F.softmax(a * 0.125 + b, dim=1), dtype=FP32),
    "log_softmax": Case(chain=lambda a, w, b, c, r: F.log_softmax(a + b, dim=-1), dtype=FP32),
    "minus logsumexp": Case(chain=lambda a, w, b, c, r: a - torch.logsumexp(a, dim=-1, keepdim=True), dtype=FP32),
    "rms_norm": Case(chain=lambda a, w, b, c, r: F.rms_norm(a, [a.size(-1)]) * w),
    "rms_norm by hand": Case(
        chain=lambda a, w, b, c, r: a * torch.rsqrt(torch.mean(a * a, dim=-1) + 1e-6)[:, None] * w
    ),
    "rms_norm of powers": Case(chain=lambda a, w, b, c, r: a / a.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt()),
    "silu before rms_norm": Case(
        chain=lambda a, w, b, c, r: (lambda h: h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6))(F.silu(a)) * w
    ),
    "layer_norm": Case(chain=lambda a, w, b, c, r: F.layer_norm(a, [a.size(-1)]) * w + b, dtype=FP16),
    "layer_norm by hand": Case(chain=_layer_norm),
    "layer_norm of two sums": Case(chain=_two_sums, dtype=FP32),
    "layer_norm of var_mean": Case(
        chain=lambda a, w, b, c, r: (lambda v: (a - v[1]) * torch.rsqrt(v[0] + 1e-5))(
            torch.var_mean(a, dim=-1, keepdim=True, correction=0)
        )
    ),
    "standardised": Case(chain=lambda a, w, b, c, r: (a - a.mean(1, keepdim=True)) / a.std(1, keepdim=True)),
    "normalize": Case(chain=lambda a, w, b, c, r: F.normalize(a + r, dim=-1)),
    "1-norm": Case(chain=lambda a, w, b, c, r: a * torch.reciprocal(a.abs().sum(-1, keepdim=True))),
    "scaled columns": Case(chain=lambda a, w, b, c, r: F.gelu(a * c) / torch.amax(a.abs(), dim=-1, keepdim=True)),
    "from the least": Case(chain=lambda a, w, b, c, r: a - torch.amin(a, dim=-1)[:, None], dtype=FP32),
    "rounded on the way": Case(chain=lambda a, w, b, c, r: torch.softmax(a.to(BF16), dim=-1)),
    "sum in bf16": Case(chain=lambda a, w, b, c, r: a / torch.sum(a.to(BF16).abs(), dim=-1, keepdim=True)),
    "residual and norm": Case(chain=lambda a, w, b, c, r: _layer_norm(a + r.to(FP32), w, b, c, r), dtype=FP32),
    "two norms": Case(chain=_two_norms),
    "argmax as a factor": Case(chain=lambda a, w, b, c, r: a * torch.argmax(a, dim=-1)[:, None], dtype=FP32),
    "no reduction": Case(chain=lambda a, w, b, c, r: F.silu(a + b) * w),
}

#: One number per row.
COLUMNS: dict[str, Case] = {
    "logsumexp": Case(chain=lambda a: torch.logsumexp(a, dim=-1), dtype=FP32),
    "absmax": Case(chain=lambda a: a.abs().amax(-1)),
    "argmax": Case(chain=lambda a: torch.argmax(a, dim=-1), dtype=torch.int64),
    "argmin": Case(chain=lambda a: torch.argmin(a, dim=1), dtype=torch.int32),
    "mean": Case(chain=lambda a: a.mean(-1), dtype=FP32),
    "entropy": Case(
        chain=lambda a: (lambda p: -torch.sum(p * torch.log(p + 1e-9), dim=-1))(torch.softmax(a * 0.1, dim=-1)),
        dtype=FP32,
    ),
}


def operands(m: int, n: int, k: int, dtype: torch.dtype, device: str = "cpu") -> tuple[torch.Tensor, ...]:
    """x, y, a row, another one, a column and a matrix, with sums of order one and means away from zero."""
    how: dict[str, Any] = {"dtype": FP32, "device": device}
    x, y = values(m, k, **how), values(k, n, seed=1, **how) * k**-0.5
    column = values(m, seed=4, **how)
    bias = values(n, seed=3, mean=-1.0, **how)
    weight, residual = values(n, seed=2, **how).to(BF16), values(m, n, seed=5, **how).to(BF16)
    return x.to(dtype), y.to(dtype), weight, bias, column, residual


def expected(case: Case, x: torch.Tensor, y: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """In fp64, but for the casts that the kernel itself has."""
    wide = [other.double() for other in others]
    if len(wide) == 4:
        wide[2] = wide[2][:, None]
    return case.reference(x.double() @ y.double(), *wide)
