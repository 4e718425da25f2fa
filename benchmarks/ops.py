"""``helion.ops`` on a GPU: all cases of its tests against fp64, then times of each operator, torch.compile and eager.

    python benchmarks/ops.py [--out FILE.json] [--seconds S] [--workers N] [--no-check | --only-check] [--cells KEY ...] [NAME ...]

Operators have shapes of models in use. Workers share the cases and the cells. They check and compile side by side, and note
the time of first calls. Then each in turn has the GPU alone and times all variants, with a cold L2: device time of a
forward pass, and with gradients that of both passes and the memory that they need. For few rows it also takes the host's
time of a call. Cells and cases that it does not reach are listed. A variant that fails has no time but a reason.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import inspect
import itertools
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
from torch._higher_order_ops.associative_scan import associative_scan  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from benchmarks.timing import GraphTimer, reason  # noqa: E402
from helion import ops  # noqa: E402
from helion._testing import import_path  # noqa: E402
from helion.testing import check, map_tensors  # noqa: E402

OUT = ROOT / "build" / "ops.json"
DEVICE = "cuda"
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
#: Operators that multiply fp32 matrices in TF32 on a GPU: 10 bits of mantissa, so 2^-11 an operand, with sums of some.
IN_TF32 = (
    "attention",
    "linear_cross_entropy",
    "int4_linear",
    "int8_linear",
    "grouped_matmul",
    "moe",
    "varlen_attention",
    "decode",
    "latent_decode",
    "paged_decode",
    "linear_attention",
    "gated_delta_rule",
)
TF32_TOLERANCE = 1e-2
#: Rows and columns with one scale.
BLOCK = 128
#: Keys that a query of the cells with sinks sees.
WINDOW = 128
#: Host time is taken where there are at most so many rows.
FEW_ROWS = 64
CALLS = 200


@dataclass(frozen=True)
class Cell:
    """An operator at one shape; ``eager`` takes the same arguments, and gradients are those of ``differentiated``."""

    name: str
    shape: str
    op: Callable[..., Any]
    eager: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    differentiated: tuple[int, ...] = ()
    rows: int = 1 << 30

    @property
    def key(self) -> str:
        return f"{self.name} {self.shape}"


def normal(*shape: int, dtype: torch.dtype = BF16, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, device=DEVICE) * scale).to(dtype)


def integers(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, high, shape, device=DEVICE, dtype=dtype)


def bounds(segments: int, rows: int) -> torch.Tensor:
    """Return `segments + 1` offsets from 0 to `rows`."""
    inner = integers(rows, segments - 1).sort().values
    return torch.cat((inner.new_zeros(1), inner, inner.new_full([1], rows)))


def angles(length: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    at = torch.arange(length, device=DEVICE)[:, None] * 1e4 ** -torch.linspace(0, 1, depth // 2, device=DEVICE)
    return at.cos(), at.sin()


# --- eager PyTorch -------------------------------------------------------------------------------------------------------


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, [x.size(-1)], weight, 1e-6)


def add_rms(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rms(x + residual, weight), x + residual


def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, [x.size(-1)], weight, bias)


def add_layer(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return layer(x + residual, weight, bias), x + residual


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[: x.size(-3), None], sin[: x.size(-3), None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def normed_heads(q: torch.Tensor, k: torch.Tensor, qw: torch.Tensor, kw: torch.Tensor, *at: torch.Tensor) -> Any:
    return rotate(rms(q, qw), *at), rotate(rms(k, kw), *at)


def quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = (x.float().abs().amax(-1) / torch.finfo(E4M3).max).clamp(min=1e-12)
    return (x.float() / scale[:, None]).to(E4M3), scale


def scaled_matmul(x: torch.Tensor, weight: torch.Tensor, x_scale: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(x, weight.T, x_scale[:, None], scale[None, :], out_dtype=BF16, use_fast_accum=True)


def quantize_groups(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, scale = quantize(x.view(-1, BLOCK))
    return values.view_as(x), scale.view(*x.shape[:-1], -1)


def add_rms_groups(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    normed, added = add_rms(x, residual, weight)
    return *quantize_groups(normed), added


def layer_groups(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return quantize_groups(layer(*args))


def add_layer_groups(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
    normed, added = add_layer(*args)
    return *quantize_groups(normed), added


def gated_groups(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return quantize_groups(F.silu(gate) * up)


def block_scaled_matmul(
    x: torch.Tensor, weight: torch.Tensor, x_scale: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    wide = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return (x.to(BF16) * x_scale.to(BF16).repeat_interleave(BLOCK, 1)) @ (weight.to(BF16) * wide.to(BF16)).T


def quantize_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = weight.float().unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
    scale = (blocks.abs().amax((1, 3)) / torch.finfo(E4M3).max).clamp(min=1e-12)
    return (blocks / scale[:, None, :, None]).to(E4M3).view_as(weight), scale


def quantize_int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    groups = weight.float().unflatten(1, (-1, 2, BLOCK // 2))
    scale = groups.abs().amax((2, 3)) / 7
    low, high = torch.round(groups / scale[..., None, None]).to(torch.int8).unbind(2)
    return ((high << 4) | (low & 15)).flatten(1), scale


def int4_linear(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    halves = packed.unflatten(1, (scale.size(1), -1))
    weight = torch.cat(((halves << 4) >> 4, halves >> 4), 2).to(x.dtype) * scale.to(x.dtype)[..., None]
    return F.linear(x, weight.flatten(1))


def linear_loss(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy((x @ weight.T).float(), labels)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def attention_with_sinks(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    length = k.size(2)
    scores = (q @ k.repeat_interleave(q.size(1) // k.size(1), 1).mT).float() * q.size(-1) ** -0.5
    ahead = torch.arange(length, device=q.device)[:, None] - torch.arange(length, device=q.device)
    scores = scores.masked_fill((ahead < 0) | (ahead >= WINDOW), float("-inf"))
    sink = sinks.float()[None, :, None, None].expand(*scores.shape[:3], 1)
    weights = torch.cat((scores, sink), -1).softmax(-1)[..., :length].to(v.dtype)
    return weights @ v.repeat_interleave(q.size(1) // v.size(1), 1)


def packed_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, offsets: torch.Tensor, attend: Any, longest: int
) -> torch.Tensor:
    at = offsets.to(torch.int32)
    found: torch.Tensor = attend(q, k, v, at, at, longest, longest)
    return found


def packed_reference() -> Callable[..., torch.Tensor]:
    """Return the causal attention of torch for packed sequences; its arguments differ by version."""
    from torch.nn.attention.varlen import varlen_attn  # not in all versions

    windows = "window_size" in inspect.signature(varlen_attn).parameters
    return functools.partial(varlen_attn, **({"window_size": (-1, 0)} if windows else {"is_causal": True}))


def growing(sequences: int, rows: int) -> list[int]:
    """Return the bounds of sequences whose lengths grow linearly."""
    return [rows * i * (i + 1) // (sequences * (sequences + 1)) for i in range(sequences + 1)]


def latent_decode(q: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    rows = cache[table].flatten(1, 2)
    seen = torch.arange(rows.size(1), device=q.device) < lengths[:, None]
    scores = (q @ rows.mT).float().mul(0.1).masked_fill(~seen[:, None], float("-inf"))
    return scores.softmax(-1).to(q.dtype) @ rows[..., :512]


def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    seen = torch.arange(k.size(1), device=q.device) < lengths[:, None]
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q[:, :, None], keys, values, seen[:, None, None], enable_gqa=True)[:, :, 0]


def paged(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    return decode(q, k[table].flatten(1, 2), v[table].flatten(1, 2), lengths)


def routed(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    weights, indices = logits.float().softmax(-1).topk(count)
    return weights / weights.sum(-1, keepdim=True), indices


def grouped(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return torch._grouped_mm(x, weight, offs=offsets[1:].to(torch.int32))


def mixture(
    x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    by_expert, order = indices.flatten().sort(stable=True)
    experts = torch.arange(1, down.size(0) + 1, dtype=by_expert.dtype, device=x.device)
    ends = torch.searchsorted(by_expert, experts, out_int32=True)
    gate, up = torch._grouped_mm(x[order // weights.size(1)], gate_up, offs=ends).chunk(2, dim=-1)
    found = torch._grouped_mm(F.silu(gate) * up, down, offs=ends)
    places = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel(), device=x.device))
    return (found[places].view(*weights.shape, -1) * weights[..., None]).sum(1).to(x.dtype)


def int8_linear(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight.to(x.dtype)) * scale


def sampled(logits: torch.Tensor) -> torch.Tensor:
    """Sample as ``sample(logits, temperature=0.7, top_k=50, top_p=0.9)`` does."""
    best, tokens = (logits.float() / 0.7).topk(50)
    p = best.softmax(-1)
    p = torch.where(p.cumsum(-1) - p < 0.9, p, 0.0)
    return tokens.gather(-1, (p / torch.empty_like(p).exponential_()).argmax(-1, keepdim=True))[:, 0]


def nucleus(logits: torch.Tensor) -> torch.Tensor:
    """Sample as ``sample(logits, top_p=0.9)`` does."""
    p, tokens = logits.float().softmax(-1).sort(descending=True)
    p = torch.where(p.cumsum(-1) - p < 0.9, p, 0.0)
    return tokens.gather(-1, (p / torch.empty_like(p).exponential_()).argmax(-1, keepdim=True))[:, 0]


def bag(table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return F.embedding_bag(indices, table, offsets, mode="sum", include_last_offset=True)


def segment_mean(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return torch.segment_reduce(x.float(), "mean", offsets=offsets, axis=0).to(x.dtype)


def segment_softmax(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    segment = torch.searchsorted(offsets, torch.arange(x.size(0), device=x.device), right=True)[:, None] - 1
    at = segment.expand_as(x)
    highest = x.new_zeros(offsets.numel() - 1, x.size(1)).scatter_reduce(0, at, x, "amax", include_self=False)
    e = (x.float() - highest.float().gather(0, at)).exp()
    return (e / e.new_zeros(highest.shape).scatter_add(0, at, e).gather(0, at)).to(x.dtype)


def scan(
    x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, skip: torch.Tensor
) -> torch.Tensor:
    """Compute `selective_scan` with the states of all positions in memory."""
    factors = (dt[..., None].float() * a.float()).exp()
    written = (dt * x).float()[..., None] * b[:, :, None, :].float()
    after = lambda first, then: (first[0] * then[0], first[1] * then[0] + then[1])  # noqa: E731
    states = associative_scan(after, (factors, written), 1, combine_mode="pointwise" if x.is_cuda else "generic")[1]
    return ((states * c[:, :, None, :]).sum(-1) + skip * x).to(x.dtype)


def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    since = decay.cumsum(-1)
    between = (since[..., :, None] - since[..., None, :]).tril().exp().tril()
    return q.size(-1) ** -0.5 * ((q @ k.transpose(-1, -2)).float() * between).to(v.dtype) @ v


def delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    """Compute `gated_delta_rule` by chunks of 64 positions, of as many heads of `q` as of `v`."""
    heads, dtype = [t.unflatten(2, (-1, 64)).float() for t in (q, k, v, decay, beta)], v.dtype
    q, k, v, decay, beta = heads
    since = decay.cumsum(-1)
    between = (since[..., :, None] - since[..., None, :]).tril().exp().tril()
    system = (k @ k.mT * between * beta[..., None]).tril(-1) + torch.eye(64, device=q.device)
    right = torch.cat((v * beta[..., None], k * (beta * since.exp())[..., None]), -1)
    fresh, erased = torch.linalg.solve_triangular(system, right, upper=False).split((v.size(-1), k.size(-1)), -1)
    scores, state, found = q @ k.mT * between, v.new_zeros(*v.shape[:2], k.size(-1), v.size(-1)), []
    for c in range(q.size(2)):
        values = fresh[:, :, c] - erased[:, :, c] @ state
        found.append(scores[:, :, c] @ values + q[:, :, c] * since[:, :, c].exp()[..., None] @ state)
        faded = k[:, :, c] * (since[:, :, c, -1:] - since[:, :, c]).exp()[..., None]
        state = state * since[:, :, c, -1].exp()[..., None, None] + faded.mT @ values
    return torch.cat(found, 2).mul(k.size(-1) ** -0.5).to(dtype)


# --- cells -----------------------------------------------------------------------------------------------------------------


def cells() -> Iterator[Cell]:
    for m, n in ((8192, 4096), (32, 8192)):
        yield from _row_cells(m, n)
    for m, n in ((4096, 128256), (8192, 32000)):
        made = lambda m=m, n=n: (normal(m, n), integers(n, m))  # noqa: E731
        yield Cell("cross_entropy", f"{m}x{n}", ops.cross_entropy, F.cross_entropy, made, (0,), m)
    for m, k, n in ((4096, 4096, 128256), (8192, 4096, 128256), (8192, 2048, 32000)):
        made = lambda m=m, k=k, n=n: (normal(m, k), normal(n, k, scale=0.02), integers(n, m))  # noqa: E731
        yield Cell("linear_cross_entropy", f"{m}x{k}x{n}", ops.linear_cross_entropy, linear_loss, made, (0, 1), m)
    yield from _head_cells()
    yield from _matmul_cells()
    yield from _sequence_cells()


def _row_cells(m: int, n: int) -> Iterator[Cell]:
    shape = f"{m}x{n}"

    def row(*counts: int) -> Callable[[], tuple[torch.Tensor, ...]]:
        return lambda: (*(normal(m, n) for _ in range(counts[0])), *(normal(n) for _ in range(counts[1])))

    yield Cell("rms_norm", shape, ops.rms_norm, rms, row(1, 1), (0, 1), m)
    yield Cell("add_rms_norm", shape, ops.add_rms_norm, add_rms, row(2, 1), (0, 1, 2), m)
    yield Cell("layer_norm", shape, ops.layer_norm, layer, row(1, 2), (0, 1, 2), m)
    yield Cell("add_layer_norm", shape, ops.add_layer_norm, add_layer, row(2, 2), (0, 1, 2, 3), m)
    yield Cell("softmax", shape, ops.softmax, lambda x: x.softmax(-1), row(1, 0), (0,), m)
    yield Cell("swiglu", shape, ops.swiglu, lambda gate, up: F.silu(gate) * up, row(2, 0), (0, 1), m)
    yield Cell("geglu", shape, ops.geglu, lambda gate, up: F.gelu(gate) * up, row(2, 0), (0, 1), m)
    yield Cell("quantize_fp8", shape, ops.quantize_fp8, quantize, row(1, 0), (), m)
    yield Cell("rms_norm_fp8", shape, ops.rms_norm_fp8, lambda x, w: quantize(rms(x, w)), row(1, 1), (), m)
    in_groups = functools.partial(ops.rms_norm_fp8, group=BLOCK)
    yield Cell("rms_norm_fp8", f"{shape} groups", in_groups, lambda x, w: quantize_groups(rms(x, w)), row(1, 1), (), m)
    added = functools.partial(ops.add_rms_norm_fp8, group=BLOCK)
    yield Cell("add_rms_norm_fp8", f"{shape} groups", added, add_rms_groups, row(2, 1), (), m)
    of_layer = functools.partial(ops.layer_norm_fp8, group=BLOCK)
    yield Cell("layer_norm_fp8", f"{shape} groups", of_layer, layer_groups, row(1, 2), (), m)
    of_sum = functools.partial(ops.add_layer_norm_fp8, group=BLOCK)
    yield Cell("add_layer_norm_fp8", f"{shape} groups", of_sum, add_layer_groups, row(2, 2), (), m)
    geglu = functools.partial(ops.geglu_fp8, group=BLOCK)
    yield Cell("geglu_fp8", f"{shape} groups", geglu, lambda a, b: quantize_groups(F.gelu(a) * b), row(2, 0), (), m)
    gated = functools.partial(ops.swiglu_fp8, group=BLOCK)
    yield Cell("swiglu_fp8", f"{shape} groups", gated, gated_groups, row(2, 0), (), m)
    yield Cell(
        "bias_dropout_residual",
        shape,
        lambda x, residual, bias: ops.bias_dropout_residual(x, bias, residual, p=0.1),
        lambda x, residual, bias: F.dropout(x + bias, 0.1) + residual,
        row(2, 1),
        (0, 1, 2),
        m,
    )


def _head_cells() -> Iterator[Cell]:
    for batch, length in ((4, 4096), (32, 1)):
        shape, rows = f"{batch}x{length}x32x128", batch * length

        def one(batch: int = batch, length: int = length) -> tuple[torch.Tensor, ...]:
            return normal(batch, length, 32, 128), *angles(length, 128)

        def two(batch: int = batch, length: int = length) -> tuple[torch.Tensor, ...]:
            heads = normal(batch, length, 32, 128), normal(batch, length, 8, 128)
            return *heads, normal(128), normal(128), *angles(length, 128)

        yield Cell("rope", shape, ops.rope, rotate, one, (0,), rows)
        yield Cell("qk_norm_rope", shape, ops.qk_norm_rope, normed_heads, two, (0, 1, 2, 3), rows)
    causal = lambda q, k, v: ops.attention(q, k, v, causal=True)  # noqa: E731
    for batch, heads, groups, length, depth in ((4, 32, 8, 4096, 128), (16, 16, 16, 1024, 64)):
        made = lambda b=batch, h=heads, g=groups, s=length, d=depth: (  # noqa: E731
            normal(b, h, s, d),
            normal(b, g, s, d),
            normal(b, g, s, d),
        )
        yield Cell("attention", f"{batch}x{heads}/{groups}x{length}x{depth}", causal, attention, made, (0, 1, 2))
    windowed = lambda q, k, v, sinks: ops.attention(q, k, v, causal=True, window=WINDOW, sinks=sinks)  # noqa: E731
    sunk = lambda: (normal(2, 64, 4096, 64), normal(2, 8, 4096, 64), normal(2, 8, 4096, 64), normal(64))  # noqa: E731
    yield Cell("attention", "2x64/8x4096x64 sinks", windowed, attention_with_sinks, sunk, (0, 1, 2, 3))
    in_order, attend = functools.partial(ops.varlen_attention, causal=True), packed_reference()
    for sequences, tokens, depth in ((16, 16384, 128), (512, 32768, 64)):
        made_packs = lambda b=sequences, t=tokens, d=depth: (  # noqa: E731
            *(normal(t, 16, d) for _ in range(3)),
            torch.tensor(growing(b, t), device=DEVICE),
        )
        longest = max(end - begin for begin, end in itertools.pairwise(growing(sequences, tokens)))
        shape = f"{sequences} in {tokens}x16x{depth}"
        yield Cell(
            "varlen_attention",
            shape,
            in_order,
            functools.partial(packed_attention, attend=attend, longest=longest),
            made_packs,
            (0, 1, 2),
        )
    latent = functools.partial(ops.latent_decode, width=512, scale=0.1)
    for batch, length in ((32, 8192), (1, 65536)):

        def latents(b: int = batch, s: int = length) -> tuple[torch.Tensor, ...]:
            table = torch.randperm(b * s // 64, device=DEVICE).view(b, s // 64).to(torch.int32)
            return normal(b, 128, 576), normal(b * s // 64, 64, 576), table, torch.full([b], s - 5, device=DEVICE)

        yield Cell("latent_decode", f"{batch}x128x{length}x576", latent, latent_decode, latents, (), batch)
    for batch, length in ((32, 8192), (1, 65536)):
        made_cache = lambda b=batch, s=length: (  # noqa: E731
            normal(b, 32, 128),
            normal(b, s, 8, 128),
            normal(b, s, 8, 128),
            torch.full([b], s - 5, device=DEVICE),
        )
        yield Cell("decode", f"{batch}x32/8x{length}x128", ops.decode, decode, made_cache, (), batch)

        def pages(b: int = batch, s: int = length) -> tuple[torch.Tensor, ...]:
            table = torch.randperm(b * s // 64, device=DEVICE).view(b, s // 64).to(torch.int32)
            cache = normal(b * s // 64, 64, 8, 128), normal(b * s // 64, 64, 8, 128)
            return normal(b, 32, 128), *cache, table, torch.full([b], s - 5, device=DEVICE)

        yield Cell("paged_decode", f"{batch}x32/8x{length}x128", ops.paged_decode, paged, pages, (), batch)


def _matmul_cells() -> Iterator[Cell]:
    for m, n, k in ((4096, 4096, 4096), (32, 14336, 4096)):
        shape = f"{m}x{n}x{k}"
        scaled = lambda m=m, n=n, k=k: _interleaved(quantize(normal(m, k)), quantize(normal(n, k)))  # noqa: E731
        yield Cell("scaled_matmul", shape, ops.scaled_matmul, scaled_matmul, scaled, (), m)

        def blocks(m: int = m, n: int = n, k: int = k) -> tuple[torch.Tensor, ...]:
            return _interleaved(ops.quantize_fp8(normal(m, k), group=BLOCK), ops.quantize_fp8_blocks(normal(n, k)))

        def nibbles(m: int = m, n: int = n, k: int = k) -> tuple[torch.Tensor, ...]:
            return normal(m, k), *ops.quantize_int4(normal(n, k))

        yield Cell("block_scaled_matmul", shape, ops.block_scaled_matmul, block_scaled_matmul, blocks, (), m)
        yield Cell("int4_linear", shape, ops.int4_linear, int4_linear, nibbles, (0,), m)

        def weights(m: int = m, n: int = n, k: int = k) -> tuple[torch.Tensor, ...]:
            return normal(m, k), integers(255, n, k).sub(127).to(torch.int8), torch.rand(n, device=DEVICE).to(BF16) / 64

        yield Cell("int8_linear", shape, ops.int8_linear, int8_linear, weights, (0,), m)
    for n, k in ((4096, 4096), (14336, 4096)):
        weight = lambda n=n, k=k: (normal(n, k),)  # noqa: E731
        yield Cell("quantize_fp8_blocks", f"{n}x{k}", ops.quantize_fp8_blocks, quantize_blocks, weight, ())
        yield Cell("quantize_int4", f"{n}x{k}", ops.quantize_int4, quantize_int4, weight, ())
    in_best = functools.partial(ops.sample, temperature=0.7, top_k=50, top_p=0.9)
    for m, n in ((1, 128256), (64, 151936)):
        words = lambda m=m, n=n: (normal(m, n, scale=3.0),)  # noqa: E731
        yield Cell("sample", f"{m}x{n} top_k, top_p", in_best, sampled, words, (), m)
        yield Cell("sample", f"{m}x{n} top_p", functools.partial(ops.sample, top_p=0.9), nucleus, words, (), m)
    for tokens, experts, count in ((8192, 128, 8), (32, 8, 2)):
        made = lambda t=tokens, e=experts, c=count: (normal(t, e), c)  # noqa: E731
        yield Cell("route", f"{tokens}x{experts} top {count}", ops.route, routed, made, (), tokens)
    for tokens, experts, k, n in ((16384, 8, 4096, 14336), (16384, 128, 2048, 768)):

        def groups(t: int = tokens, e: int = experts, k: int = k, n: int = n) -> tuple[torch.Tensor, ...]:
            return normal(t, k), normal(e, k, n, scale=0.02), bounds(e, t)

        yield Cell("grouped_matmul", f"{tokens}x{experts}x{k}x{n}", ops.grouped_matmul, grouped, groups, (0, 1))
    for tokens, (experts, count, k, n) in itertools.product(
        (1024, 4096, 8192), ((8, 2, 4096, 14336), (128, 8, 2048, 768))
    ):

        def layer(
            t: int = tokens, e: int = experts, c: int = count, k: int = k, n: int = n
        ) -> tuple[torch.Tensor, ...]:
            chosen = torch.rand(t, e, device=DEVICE).topk(c).indices.to(torch.int32)
            matrices = normal(e, k, 2 * n, scale=0.02), normal(e, n, k, scale=0.02)
            return normal(t, k), torch.rand(t, c, device=DEVICE), chosen, *matrices

        yield Cell("moe", f"{tokens}x{experts}x{k}x{n} top {count}", ops.moe, mixture, layer, (), tokens)


def _interleaved(x: tuple[torch.Tensor, ...], weight: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return x[0], weight[0], x[1], weight[1]


def _sequence_cells() -> Iterator[Cell]:
    for segments, mean, n in ((4096, 64, 128), (64, 2048, 512)):
        shape = f"{segments} of {mean}x{n}"

        def parts(b: int = segments, mean: int = mean, n: int = n) -> tuple[torch.Tensor, ...]:
            return normal(b * mean, n), bounds(b, b * mean)

        def lookups(b: int = segments, mean: int = mean, n: int = n) -> tuple[torch.Tensor, ...]:
            return normal(100_000, n), integers(100_000, b * mean), bounds(b, b * mean)

        yield Cell("jagged_mean", shape, ops.jagged_mean, segment_mean, parts, (0,))
        yield Cell("jagged_softmax", shape, ops.jagged_softmax, segment_softmax, parts, (0,))
        yield Cell("embedding_bag", shape, ops.embedding_bag, bag, lookups, ())
    for batch, heads, length in ((4, 16, 2048), (1, 32, 8192)):

        def linear(b: int = batch, h: int = heads, s: int = length) -> tuple[torch.Tensor, ...]:
            return *(normal(b, h, s, 64) for _ in range(3)), -torch.rand(b, h, s, device=DEVICE) * 0.1

        def deltas(b: int = batch, h: int = heads, s: int = length) -> tuple[torch.Tensor, ...]:
            key = F.normalize(normal(b, h, s, 128).float(), dim=-1).to(BF16)
            steps = -torch.rand(b, h, s, device=DEVICE) * 0.1
            return normal(b, h, s, 128), key, normal(b, h, s, 128), steps, torch.rand(b, h, s, device=DEVICE)

        forward = lambda *args: ops.gated_delta_rule(*args)[0]  # noqa: E731
        yield Cell("gated_delta_rule", f"{batch}x{heads}x{length}x128", forward, delta_rule, deltas, ())
        shape = f"{batch}x{heads}x{length}x64"
        yield Cell("linear_attention", shape, ops.linear_attention, linear_attention, linear, ())
    for batch, length, channels in ((4, 2048, 1536), (1, 4096, 4096)):

        def steps(b: int = batch, s: int = length, c: int = channels) -> tuple[torch.Tensor, ...]:
            state = normal(b, s, 16), normal(b, s, 16), normal(c)
            return normal(b, s, c), torch.rand(b, s, c, device=DEVICE) * 0.1, -torch.rand(c, 16, device=DEVICE), *state

        yield Cell("selective_scan", f"{batch}x{length}x{channels}x16", ops.selective_scan, scan, steps, ())


# --- running ---------------------------------------------------------------------------------------------------------------


def passes(cell: Cell, function: Callable[..., Any], args: Sequence[Any], *, backward: bool) -> Callable[[], Any]:
    """Return a call without arguments: the forward pass, or both passes."""
    if not backward:
        return lambda: function(*args)
    leaves = [a.detach().requires_grad_() if at in cell.differentiated else a for at, a in enumerate(args)]
    wanted = [leaves[at] for at in cell.differentiated]

    def both() -> Any:
        found = function(*leaves)
        results = [r for r in (found if isinstance(found, tuple) else (found,)) if r.requires_grad]
        return torch.autograd.grad(results, wanted, [torch.ones_like(r) for r in results])

    return both


def first_calls(cell: Cell, compiled: Callable[..., Any]) -> dict[str, Any]:
    """Call the operator and torch.compile's function once; return seconds of first calls and errors."""
    row: dict[str, Any] = {"first_s": {}, "failed": {}}
    for name, function in (("helion", cell.op), ("compile", compiled)):
        torch.manual_seed(0)
        args = cell.make()
        for backward in (False, True) if cell.differentiated else (False,):
            began = time.perf_counter()
            try:
                passes(cell, function, args, backward=backward)()
                torch.cuda.synchronize()
            except Exception as error:  # of any library: it belongs into the table
                row["failed"][name] = reason(error)
                break
            row["first_s"].setdefault(name, []).append(round(time.perf_counter() - began, 2))
    return row


def timed(cell: Cell, compiled: Callable[..., Any], timer: GraphTimer) -> dict[str, Any]:
    """Return microseconds of all variants, of the device and with few rows of the host, and MiB of both passes."""
    torch.manual_seed(0)
    args = cell.make()
    variants = {"helion": cell.op, "compile": compiled, "eager": cell.eager}
    row: dict[str, Any] = {"failed": {}}
    for label, backward in (("forward", False), ("both", True)):
        if backward and not cell.differentiated:
            continue
        calls = {name: passes(cell, function, args, backward=backward) for name, function in variants.items()}
        times, failures = timer.time(calls)
        row[label] = {name: round(each.median, 2) for name, each in times.items()}
        row["failed"] |= failures
        if backward:
            row["peak_mib"] = {name: round(peak_mib(calls[name]), 1) for name in times}
    if cell.rows <= FEW_ROWS:
        kept = {name: f for name, f in variants.items() if name not in row["failed"]}
        row["host"] = {name: round(host_us(passes(cell, f, args, backward=False)), 2) for name, f in kept.items()}
    return row


def peak_mib(call: Callable[[], Any]) -> float:
    """Return the most MiB that a call holds at once, results included and arguments not."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def host_us(call: Callable[[], Any]) -> float:
    """Return the microseconds of a call on the host, the GPU's work included where it takes longer."""
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - began) / CALLS


def cases() -> tuple[Any, list[Any]]:
    """Return the module of the tests' cases, and the cases."""
    table = import_path(ROOT / "test" / "ops" / "table.py")
    return table, table.cases()


def wrong(table: Any, case: Any) -> str | None:
    """Compare a case of the tests with fp64 on the GPU; return what is wrong."""
    args = map_tensors(case.args, lambda t: t.to(DEVICE))
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    rounded = max(table.ROUNDED.get(t.dtype, 0.0) for t in tensors)
    tf32 = TF32_TOLERANCE if case.name.startswith(IN_TF32) else 0.0
    try:
        check(case.name, case.op, case.reference, args, slack=max(2, case.slack), rtol=tf32 or None)
        if case.differentiated:
            op, reference = table.gradients(case)
            check(case.name, op, reference, args, rtol=max(rounded, tf32), slack=case.slack)
    except Exception as error:  # a failed comparison as well as a kernel that does not compile
        return reason(error, 500)
    return None


def work(channel: Connection, share: Sequence[int], checked: Sequence[int], until: float) -> None:
    """Check the cases at ``checked``, compile the cells at ``share``, and time them in the turn of this process.

    Sends pairs of a kind and its content: ``("wrong", (case, what))``, ``("late", case)``, ``("row", (cell, row))``, ``("ready", None)``
    before its turn, and ``("done", None)``.
    """
    table, known = cases() if checked else (None, [])
    for at in checked:
        late = time.time() > until
        channel.send(("late", known[at].name) if late else ("wrong", (known[at].name, wrong(table, known[at]))))
    every = list(cells())
    compiled = {}
    for at in share:
        if time.time() < until:
            compiled[at] = torch.compile(every[at].eager, fullgraph=True)
            channel.send(("row", (at, first_calls(every[at], compiled[at]))))
    channel.send(("ready", None))
    end = channel.recv()
    timer = GraphTimer()
    for at, function in compiled.items():
        if time.time() < end:
            channel.send(("row", (at, timed(every[at], function, timer))))
    channel.send(("done", None))


def is_picked(cell: Cell, names: Sequence[str], keys: Sequence[str]) -> bool:
    """Return whether a run times a cell; without names and keys it times all."""
    return cell.name in names or cell.key.startswith(tuple(keys)) if names or keys else True


def shown(row: dict[str, Any]) -> str:
    parts = []
    for label in ("forward", "both", "host"):
        if times := row.get(label):
            ours = times.get("helion", math.nan)
            others = " ".join(f"{name} {us:.1f} ({us / ours:.2f}x)" for name, us in times.items() if name != "helion")
            parts.append(f"{label} {ours:.1f} us; {others}")
    if peaks := row.get("peak_mib"):
        parts.append("MiB " + " ".join(f"{name} {peak:.0f}" for name, peak in peaks.items()))
    return f"{row['name']:22} {row['shape']:24} {' | '.join(parts)} {row['failed'] or ''}"


def start(shares: Sequence[tuple[Any, ...]]) -> dict[Connection, BaseProcess]:
    """Start a process with each share of the work."""
    spawned = multiprocessing.get_context("spawn")
    workers = {}
    for share in shares:
        ours, theirs = spawned.Pipe()
        workers[ours] = spawned.Process(target=work, args=(theirs, *share), daemon=True)
        workers[ours].start()
        theirs.close()
    return workers


def run_in_turn(workers: Mapping[Connection, BaseProcess], took: Callable[[str, Any], None], end: float) -> None:
    """Receive what workers send until ``end``; once all have compiled, or two thirds of the time are over, let each time alone."""
    waiting, ready = set(workers), []
    turns_from = time.time() + 0.65 * (end - time.time())
    timing: Connection | None = None
    while waiting and time.time() < end:
        for channel in wait(waiting, timeout=0.2):
            assert isinstance(channel, Connection)
            try:
                kind, content = channel.recv()
            except EOFError:  # the process died
                kind, content = "done", None
            if kind == "ready":
                ready.append(channel)
            elif kind == "done":
                waiting.discard(channel)
                timing = None if channel is timing else timing
            else:
                took(kind, content)
        if timing is None and ready and (len(ready) == len(waiting) or time.time() > turns_from):
            timing = ready.pop(0)
            timing.send(end)
    for process in workers.values():
        process.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="operators; all if none is named")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FILE.json")
    parser.add_argument(
        "--cells", nargs="*", default=[], metavar="KEY", help='times cells alone whose "name shape" begins so'
    )
    parser.add_argument("--seconds", type=float, default=230.0, help="time for everything")
    parser.add_argument("--workers", type=int, default=15, help="processes that check and compile")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--no-check", action="store_true", help="time only")
    only.add_argument("--only-check", action="store_true", help="time nothing")
    options = parser.parse_args()
    began = time.time()
    every = () if options.only_check else enumerate(cells())
    wanted = {at: cell for at, cell in every if is_picked(cell, options.names, options.cells)}
    picked = [
        at for at, case in enumerate(cases()[1]) if not options.names or case.name.startswith(tuple(options.names))
    ]
    rows = {at: {"name": cell.name, "shape": cell.shape, "failed": {}} for at, cell in wanted.items()}
    found: dict[str, str] = {}
    late: list[str] = []

    def take(kind: str, content: Any) -> None:
        """Put a message of a worker into the results."""
        if kind == "late":
            late.append(content)
        elif kind == "wrong" and content[1] is not None:
            found[content[0]] = content[1]
        elif kind == "row":
            at, row = content
            rows[at] |= {**row, "failed": rows[at]["failed"] | row["failed"]}
            if "forward" in row:
                print(shown(rows[at]), flush=True)

    count = options.workers
    checked = [] if options.no_check else picked
    workers = start([(list(wanted)[i::count], checked[i::count], began + 0.6 * options.seconds) for i in range(count)])
    run_in_turn(workers, took=take, end=began + options.seconds)
    for row in rows.values():
        if "forward" not in row and "helion" not in row["failed"]:
            row["failed"]["time"] = "not reached in time"
    environment = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "date": datetime.date.today().isoformat(),
        "seconds": round(time.time() - began),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(
        json.dumps({"environment": environment, "wrong": found, "late": late, "rows": list(rows.values())}, indent=1)
        + "\n"
    )
    print(*(f"WRONG {name}: {what}" for name, what in found.items()), sep="\n")
    print(
        f"{len(found)} of {len(checked)} cases wrong, {len(late)} not reached in time, {sum(bool(r['failed']) for r in rows.values())} of {len(rows)} cells incomplete, in {environment['seconds']} s"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
