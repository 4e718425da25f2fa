"""Cases of ``helion.ops``: a call, and the same in plain torch, which the tests run in fp64."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

import helion.ops as ops
from helion.ops.kernels.recurrences.selective_scan import SCAN_POSITIONS
from helion.testing import outputs

#: Relative errors of sums of values that were rounded to a dtype.
ROUNDED = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 4e-5}
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@dataclass(frozen=True)
class Case:
    """A call ``op(*args)``; the arguments at ``differentiated`` have gradients."""

    name: str
    op: Callable[..., Any]
    reference: Callable[..., Any]
    args: tuple[Any, ...]
    differentiated: tuple[int, ...] = ()
    #: Factor on the tolerance of gradients, for matmuls of values that were rounded.
    slack: float = 1


def _normal(*shape: int, dtype: torch.dtype = F32, mean: float = 0.5) -> torch.Tensor:
    return (torch.randn(shape) + mean).to(dtype)


def _rms(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return F.rms_norm(x, [x.size(-1)], weight, eps)


def _add_rms(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _rms(x + residual, weight), x + residual


def _layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return F.layer_norm(x, [x.size(-1)], weight, bias)


def _add_layer(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    return _layer(x + residual, weight, bias), x + residual


def norms() -> list[Case]:
    x, w, b = _normal(3, 5, 67), _normal(67, mean=1), _normal(67)
    strided = _normal(9, 2 * 67, dtype=BF16)[:, 67:]
    return [
        Case("rms_norm, fp32", ops.rms_norm, _rms, (x, w, 0.1), (0, 1)),
        Case("rms_norm, strided bf16", ops.rms_norm, _rms, (strided, w), (0, 1)),
        Case("rms_norm, no rows", ops.rms_norm, _rms, (x[:0], w), (0, 1)),
        Case("rms_norm, one row", ops.rms_norm, _rms, (x[0, 0], w), (0, 1)),
        Case("add_rms_norm, fp32", ops.add_rms_norm, _add_rms, (x, x + 1, w), (0, 1, 2)),
        Case("add_rms_norm, fp16 and fp32", ops.add_rms_norm, _add_rms, (x.half(), x + 1, w.half()), (0, 1, 2)),
        Case("layer_norm, fp32", ops.layer_norm, _layer, (x, w, b), (0, 1, 2)),
        Case("layer_norm, no bias, bf16", ops.layer_norm, _layer, (x.bfloat16(), w.bfloat16()), (0, 1)),
        Case("layer_norm, no rows", ops.layer_norm, _layer, (x[:0], w, b), (0, 1, 2)),
        Case("add_layer_norm, fp32", ops.add_layer_norm, _add_layer, (x, x + 1, w, b), (0, 1, 2, 3)),
        Case("add_layer_norm, no bias, bf16", ops.add_layer_norm, _add_layer, (strided, strided + 1, w), (0, 1, 2)),
    ]


def losses() -> list[Case]:
    x = _normal(3, 7, 101) * 3
    labels = torch.randint(0, 101, [3, 7])
    labels[1, 2:5] = -100

    def cross_entropy(**options: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def reference(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            found = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), **options)
            return found.view(labels.shape) if options.get("reduction") == "none" else found

        return lambda logits, labels: ops.cross_entropy(logits, labels, **options), reference

    smoothed = cross_entropy(label_smoothing=0.2, reduction="sum")
    return [
        Case("softmax, fp32", ops.softmax, lambda x: x.softmax(-1), (x,), (0,)),
        Case("softmax, bf16", ops.softmax, lambda x: x.softmax(-1), (x.bfloat16(),), (0,)),
        Case("softmax, no rows", ops.softmax, lambda x: x.softmax(-1), (x[:0],), (0,)),
        Case("cross_entropy, fp32", *cross_entropy(), (x, labels), (0,)),
        Case("cross_entropy, none, fp16", *cross_entropy(reduction="none"), (x.half(), labels), (0,)),
        Case("cross_entropy, strided bf16", *cross_entropy(), (x.bfloat16()[..., :50], labels.clamp(max=49)), (0,)),
        Case("cross_entropy, smoothed, ignored 3", *smoothed, (x, labels.abs().int().long() % 101), (0,)),
    ]


def pointwise() -> list[Case]:
    gate, up = (_normal(4, 2 * 33) * 2).chunk(2, dim=-1)

    def gelu(approximate: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
        return (
            lambda gate, up: ops.geglu(gate, up, approximate=approximate),
            lambda gate, up: F.gelu(gate, approximate=approximate) * up,
        )

    return [
        Case("swiglu, fp32", ops.swiglu, lambda gate, up: F.silu(gate) * up, (gate, up), (0, 1)),
        Case("swiglu, bf16", ops.swiglu, lambda g, u: F.silu(g) * u, (gate.bfloat16(), up.bfloat16()), (0, 1)),
        Case("geglu, fp32", *gelu("none"), (gate, up), (0, 1)),
        Case("geglu, tanh, fp16", *gelu("tanh"), (gate.half(), up.half()), (0, 1)),
        Case("geglu, no rows", *gelu("none"), (torch.empty(0, 33), torch.empty(0, 33)), (0, 1)),
    ]


def _rotated(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor | None = None, apart: bool = True
) -> torch.Tensor:
    at = torch.arange(x.size(-3)) if positions is None else positions
    cos, sin = cos[at].unsqueeze(-2), sin[at].unsqueeze(-2)
    first, second = x.chunk(2, dim=-1) if apart else (x[..., ::2], x[..., 1::2])
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.cat(turned, dim=-1) if apart else torch.stack(turned, dim=-1).flatten(-2)


def rotations() -> list[Case]:
    x = _normal(2, 9, 3, 12)
    angles = torch.arange(17)[:, None] * 10000.0 ** -torch.linspace(0, 1, 6)
    cos, sin = angles.cos(), angles.sin()
    positions = torch.randint(0, 17, [2, 9])
    return [
        Case("rope, fp32", ops.rope, _rotated, (x, cos, sin), (0,)),
        Case("rope, bf16, positions", ops.rope, _rotated, (x.bfloat16(), cos, sin, positions.int()), (0,)),
        Case(
            "rope, interleaved, transposed",
            lambda *args: ops.rope(*args, interleaved=True),
            lambda *args: _rotated(*args, apart=False),
            (x.transpose(0, 1), cos, sin, positions.t()),
            (0,),
        ),
        Case("rope, no tokens", ops.rope, _rotated, (x[:0], cos, sin), (0,)),
    ]


def _normed_and_rotated(
    q: torch.Tensor, k: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor, *angles: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return _rotated(_rms(q, q_weight), *angles), _rotated(_rms(k, k_weight), *angles)


def heads() -> list[Case]:
    q, k = _normal(2, 9, 4, 12), _normal(2, 9, 2, 12)
    weights = _normal(12, mean=1), _normal(12, mean=1)
    angles = torch.arange(17)[:, None] * 10000.0 ** -torch.linspace(0, 1, 6)
    cos, sin = angles.cos(), angles.sin()
    half = (q.bfloat16(), k.bfloat16(), *weights, cos, sin, torch.randint(0, 17, [2, 9]))
    wanted = (0, 1, 2, 3)
    return [
        Case("qk_norm_rope, fp32", ops.qk_norm_rope, _normed_and_rotated, (q, k, *weights, cos, sin), wanted),
        Case("qk_norm_rope, bf16, positions", ops.qk_norm_rope, _normed_and_rotated, half, wanted),
        Case(
            "qk_norm_rope, 4 and 3 heads",
            ops.qk_norm_rope,
            _normed_and_rotated,
            (q, k[:, :, [0, 1, 1]], *half[2:6]),
            wanted,
        ),
        Case(
            "qk_norm_rope, 3 for each",
            ops.qk_norm_rope,
            _normed_and_rotated,
            (q[:, :, :3], k[:, :, :1], *half[2:6]),
            wanted,
        ),
        Case("qk_norm_rope, no tokens", ops.qk_norm_rope, _normed_and_rotated, (q[:0], k[:0], *half[2:6]), wanted),
    ]


def linear_losses() -> list[Case]:
    x, weight = _normal(2, 11, 30, mean=0.2), _normal(157, 30, mean=0.1)
    labels = torch.randint(0, 157, [2, 11])
    labels[1, 2:5] = -100

    def reference(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy((x @ weight.T).flatten(0, -2), labels.flatten())

    def by_row(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy((x @ weight.T).flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)

    half = (x.bfloat16(), weight.bfloat16(), labels.int())
    rowwise = lambda *args: ops.linear_cross_entropy(*args, reduction="none")  # noqa: E731
    return [
        Case("linear_cross_entropy, fp32", ops.linear_cross_entropy, reference, (x, weight, labels), (0, 1)),
        Case("linear_cross_entropy, none, bf16", rowwise, lambda x, w, i: by_row(x, w, i.long()), half, (0, 1), 4),
        Case("linear_cross_entropy, no rows", rowwise, by_row, (x[:0], weight, labels[:0]), (0, 1)),
    ]


def _attended(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    shared = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    scores = q @ k.transpose(-1, -2) * (scale or q.size(-1) ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    queries, keys = (torch.arange(n, device=q.device) for n in (q.size(2), k.size(2)))
    ahead = queries[:, None] + k.size(2) - q.size(2) - keys
    seen = (ahead >= 0) & (ahead < (window or k.size(2))) if causal else ahead == ahead
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks[None, :, None, None].expand(*scores.shape[:3], 1)), -1)
    return scores.softmax(-1)[..., : k.size(2)] @ v


def _with_sinks(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return a function whose fourth argument is the sinks."""
    return lambda q, k, v, sinks: function(q, k, v, sinks=sinks, **options)


def attentions() -> list[Case]:
    q, k, v = _normal(2, 4, 150, 24), _normal(2, 2, 170, 24), _normal(2, 2, 170, 16, mean=1)

    def case(name: str, args: tuple[torch.Tensor, ...], **options: Any) -> Case:
        op, reference = (functools.partial(f, **options) for f in (ops.attention, _attended))
        return Case(f"attention, {name}", op, reference, args, (0, 1, 2), 4)

    def with_sinks(name: str, args: tuple[torch.Tensor, ...], **options: Any) -> Case:
        op, reference = (_with_sinks(f, **options) for f in (ops.attention, _attended))
        return Case(f"attention, sinks, {name}", op, reference, args, (0, 1, 2, 3), 4)

    square = q[:1, :, :65], k[:1, :, :65], v[:1, :, :65]
    token_major = tuple(t.transpose(1, 2).contiguous().transpose(1, 2).bfloat16() for t in square)
    return [
        case("fp32", square, scale=0.3),
        case("causal, bf16, token-major", token_major, causal=True),
        case("window", (q, k, v), causal=True, window=40),
        case("softcap, fp16", (square[0].half(), square[1].half(), square[2].half()), softcap=2.0),
        case("window, softcap", square, causal=True, window=7, softcap=3.0),
        case("one query", (q[:, :, :1], k, v), causal=True),
        case("no batch", (q[:0], k[:0], v[:0])),
        with_sinks("window", (q, k, v, _normal(4) * 3), causal=True, window=40),
        with_sinks("softcap, bf16", (*(t.bfloat16() for t in square), _normal(4, dtype=BF16)), softcap=2.0),
    ]


def _sequences(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: torch.Tensor,
    k_offsets: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """Attend sequence by sequence; a query without keys gives 0."""
    parts = [q[: int(offsets[0]), :, :1] * v[:1, :1] * k[:1, :1, :1] * 0]
    k_bounds = (offsets if k_offsets is None else k_offsets).tolist()
    for (begin, end), (k_begin, k_end) in zip(
        itertools.pairwise(offsets.tolist()), itertools.pairwise(k_bounds), strict=True
    ):
        blind = max(end - begin - (k_end - k_begin), 0) if options.get("causal") or k_begin == k_end else 0
        parts.append(q[begin : begin + blind, :, :1] * v[:1, :1] * k[:1, :1, :1] * 0)
        operands = q[begin + blind : end], k[k_begin:k_end], v[k_begin:k_end]
        if end > begin + blind:
            parts.append(_attended(*(t.transpose(0, 1)[None] for t in operands), **options)[0].transpose(0, 1))
    return torch.cat([*parts, q[int(offsets[-1]) :, :, :1] * v[:1, :1] * k[:1, :1, :1] * 0])


def packs() -> list[Case]:
    q, k, v = _normal(150, 4, 24), _normal(170, 2, 24), _normal(170, 2, 16, mean=1)
    offsets, k_offsets = torch.tensor([2, 9, 9, 30, 130, 140]), torch.tensor([0, 20, 30, 35, 160, 160])
    half = *(t[:150].bfloat16() for t in (q, k, v)), offsets.int()

    def case(name: str, args: tuple[Any, ...], **options: Any) -> Case:
        op, reference = (functools.partial(f, **options) for f in (ops.varlen_attention, _sequences))
        return Case(f"varlen_attention, {name}", op, reference, args, (0, 1, 2), 4)

    sinks = {
        "op": lambda q, k, v, sinks, *at: ops.varlen_attention(q, k, v, *at, sinks=sinks, causal=True),
        "reference": lambda q, k, v, sinks, *at: _sequences(q, k, v, *at, sinks=sinks, causal=True),
    }
    return [
        case("fp32", (q, k, v, offsets, k_offsets), scale=0.3),
        case("causal, bf16", half, causal=True),
        case("window, softcap", (q, k, v, offsets, k_offsets), causal=True, window=9, softcap=2.0),
        Case(
            "varlen_attention, sinks",
            args=(q, k, v, _normal(4) * 3, offsets, k_offsets),
            differentiated=(0, 1, 2, 3),
            slack=4,
            **sinks,
        ),
        case("no rows", (q[:0], k, v, offsets * 0, k_offsets)),
    ]


def integers() -> list[Case]:
    x, bias = _normal(3, 5, 70), _normal(21)
    weight, scale = torch.randint(-127, 128, [21, 70], dtype=torch.int8), torch.rand(21) * 0.01 + 0.01

    def reference(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bias: Any = None) -> torch.Tensor:
        return F.linear(x, weight.to(x.dtype) * scale[:, None], bias)

    half = x.bfloat16(), weight, scale
    tall = torch.randint(-127, 128, [1600, 70], dtype=torch.int8), torch.rand(1600) * 0.01 + 0.01
    return [
        Case("int8_linear, fp32", ops.int8_linear, reference, (x, weight, scale, bias), (0, 3)),
        Case("int8_linear, no bias, bf16", ops.int8_linear, reference, half, (0,), 4),
        Case("int8_linear, gradient in parts, bf16", ops.int8_linear, reference, (x.bfloat16(), *tall), (0,), 4),
        Case("int8_linear, no rows", ops.int8_linear, reference, (x[:0], weight, scale, bias), (0, 3)),
    ]


def packed() -> list[Case]:
    x, bias, dense = _normal(3, 5, 96), _normal(21), _normal(21, 96, mean=0.2)

    def quantize(weight: torch.Tensor, group: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
        parts = weight.unflatten(1, (-1, 2, group // 2))
        scale = parts.abs().amax((2, 3)) / 7
        low, high = torch.round(parts / scale[..., None, None]).unbind(2)
        return (high * 16 + low % 16).flatten(1), scale

    def linear(x: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, bias: Any = None) -> torch.Tensor:
        halves = packed.unflatten(1, (scale.size(1), -1))
        weight = torch.cat(((halves << 4) >> 4, halves >> 4), 2).to(x.dtype) * scale[..., None]
        return F.linear(x, weight.flatten(1), bias)

    of_groups = functools.partial(ops.quantize_int4, group=32)
    weight, scale = of_groups(dense)
    wide, one = ops.quantize_int4(_normal(40, 64), group=64)
    half = x[..., :64].bfloat16(), wide, one.bfloat16()
    return [
        Case("quantize_int4, fp32", of_groups, quantize, (dense,)),
        Case("int4_linear, fp32", ops.int4_linear, linear, (x, weight, scale, bias), (0, 3)),
        Case("int4_linear, one group, bf16", ops.int4_linear, linear, half, (0,), 4),
        Case(
            "int4_linear, many rows, fp16", ops.int4_linear, linear, (_normal(300, 64, dtype=F16), wide, one), (0,), 4
        ),
        Case("int4_linear, no rows", ops.int4_linear, linear, (x[:0], weight, scale, bias), (0, 3)),
    ]


def _routed(logits: torch.Tensor, count: int, renormalize: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    weights, indices = logits.softmax(-1).topk(count)
    return weights / weights.sum(-1, keepdim=True) if renormalize else weights, indices


def _grouped(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    begins, *others = offsets.tolist()
    parts = [x[:begins] @ weight[0] * 0]
    for group, end in enumerate(others):
        parts.append(x[begins:end] @ weight[group])
        begins = end
    return torch.cat([*parts, x[begins:] @ weight[0] * 0])


def _moe(
    x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    gate, up = torch.einsum("...k,ekn->...en", x, gate_up).chunk(2, dim=-1)
    found = torch.einsum("...en,enk->...ek", F.silu(gate) * up, down)
    return (found.gather(-2, indices.long()[..., None].expand(*indices.shape, x.size(-1))) * weights[..., None]).sum(-2)


def mixtures() -> list[Case]:
    logits = torch.rand(2, 19, 13).argsort(-1) / 4 - 1  # no two are equal, so that their order is clear
    x, weight = _normal(40, 24), _normal(5, 24, 18, mean=0.1)
    offsets = torch.tensor([2, 9, 9, 30, 31, 37])
    tokens = _normal(2, 9, 24)
    gate_up, down = _normal(13, 24, 20, mean=0.1) * 0.2, _normal(13, 10, 24, mean=0.1)
    weights, indices = _routed(logits[:, :9], 3)
    indices = indices.int()
    all_of = functools.partial(ops.route, renormalize=False), functools.partial(_routed, renormalize=False)
    transposed = weight.transpose(1, 2).contiguous().transpose(1, 2)
    half = x.bfloat16(), transposed.bfloat16(), offsets.int()
    return [
        Case("route, fp32", _first(ops.route), _first(_routed), (logits, 3), (0,)),
        Case("route, shares of all, bf16", *map(_first, all_of), (logits.bfloat16(), 4), (0,)),
        Case("route, indices", ops.route, _routed, (logits, 5)),
        Case("route, no rows", ops.route, _routed, (logits[:0], 5)),
        Case("grouped_matmul, fp32", ops.grouped_matmul, _grouped, (x, weight, offsets), (0, 1)),
        Case("grouped_matmul, transposed bf16", ops.grouped_matmul, _grouped, half, (0, 1), 4),
        Case("grouped_matmul, no rows", ops.grouped_matmul, _grouped, (x[:0], weight, offsets * 0), (0, 1)),
        Case("moe, fp32", ops.moe, _moe, (tokens, weights, indices, gate_up, down), (0, 1, 3, 4), 2),
    ]


def _first(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: function(*args)[0]


def _segments(function: Callable[[torch.Tensor], torch.Tensor], whole: bool) -> Callable[..., torch.Tensor]:
    """Return the function of each segment; ``whole`` if it gives a row per row, which are all that there are."""

    def reference(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        bounds = offsets.tolist()
        parts = [function(x[begin:end]) for begin, end in itertools.pairwise(bounds)]
        if whole:
            return torch.cat([x[: bounds[0]] * 0, *parts, x[bounds[-1] :] * 0])
        return torch.stack(parts) if parts else x[:0]

    return reference


def bags() -> list[Case]:
    x, table = _normal(40, 37), _normal(23, 37)
    offsets, indices = torch.tensor([2, 9, 9, 30, 31, 37]), torch.randint(0, 23, [40])
    mean = _segments(lambda rows: rows.sum(0) / max(len(rows), 1), False)
    softmax = _segments(lambda rows: rows.softmax(0), True)
    averaged = functools.partial(ops.embedding_bag, mode="mean")

    def bag(table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return _segments(lambda rows: rows.sum(0), False)(table[indices], offsets)

    def averaged_bag(table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return mean(table[indices], offsets)

    half = x.bfloat16(), offsets.int()
    return [
        Case("jagged_mean, fp32", ops.jagged_mean, mean, (x, offsets), (0,)),
        Case("jagged_mean, bf16", ops.jagged_mean, mean, half, (0,)),
        Case("jagged_mean, no segments", ops.jagged_mean, mean, (x, offsets[:1]), (0,)),
        Case("jagged_softmax, fp32", ops.jagged_softmax, softmax, (x, offsets), (0,)),
        Case("jagged_softmax, bf16", ops.jagged_softmax, softmax, half, (0,)),
        Case("jagged_softmax, no rows", ops.jagged_softmax, softmax, (x[:0], offsets * 0), (0,)),
        Case("embedding_bag, fp32", ops.embedding_bag, bag, (table, indices, offsets), (0,)),
        Case("embedding_bag, mean, bf16", averaged, averaged_bag, (table.bfloat16(), indices.int(), offsets), (0,)),
    ]


def _decoded(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    shared = q.size(1) // k.size(2)
    k, v = k.repeat_interleave(shared, 2), v.repeat_interleave(shared, 2)
    scores = torch.einsum("bhd,bnhd->bhn", q, k) * (scale or q.size(-1) ** -0.5)
    scores = scores.masked_fill(torch.arange(k.size(1), device=q.device) >= lengths[:, None, None], float("-inf"))
    return torch.einsum("bhn,bnhe->bhe", scores.softmax(-1).nan_to_num(0), v)


def _paged(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    return _decoded(q, k[table.long()].flatten(1, 2), v[table.long()].flatten(1, 2), lengths)


def caches() -> list[Case]:
    q, k, v = _normal(3, 6, 24), _normal(3, 50, 2, 24), _normal(3, 50, 2, 17, mean=1)
    lengths = torch.tensor([50, 0, 13])
    pages = _normal(40, 16, 2, 24), _normal(40, 16, 2, 17, mean=1)
    table = torch.randperm(40)[:36].view(1, 36).int()
    half = q[:1].bfloat16(), *(t.bfloat16() for t in pages), table, torch.tensor([570], dtype=torch.int32)
    latent = functools.partial(ops.latent_decode, width=32, scale=0.25)
    few = torch.randperm(30)[:12].view(3, 4)
    halves = _normal(1, 20, 40, dtype=BF16), _normal(40, 16, 40, dtype=BF16)
    wide = _normal(1, 5, 296, dtype=BF16), _normal(8, 16, 296, dtype=BF16), few[:1, :2] % 8, lengths[2:]
    in_slices = functools.partial(ops.latent_decode, width=288, scale=0.25)
    return [
        Case("decode, fp32", ops.decode, _decoded, (q, k, v, lengths)),
        Case("decode, no batch", ops.decode, _decoded, (q[:0], k[:0], v[:0], lengths[:0])),
        Case("paged_decode, in two parts, bf16", ops.paged_decode, _paged, half),
        Case("latent_decode, fp32", latent, _latent, (_normal(3, 20, 40), _normal(30, 16, 40), few, lengths)),
        Case("latent_decode, in two parts, bf16", latent, _latent, (*halves, table, half[-1])),
        Case("latent_decode, two slices, bf16", in_slices, functools.partial(_latent, width=288), wide),
        Case("latent_decode, no batch", latent, _latent, (_normal(0, 20, 40), halves[1].float(), few[:0], lengths[:0])),
    ]


def _latent(
    q: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor, width: int = 32
) -> torch.Tensor:
    rows = cache[table.long()].flatten(1, 2).unsqueeze(2)
    return _decoded(q, rows, rows[..., :width], lengths, scale=0.25)


def _attended_linearly(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    since = decay.cumsum(-1)
    between = (since[..., :, None] - since[..., None, :]).tril().exp().tril()
    return (scale or q.size(-1) ** -0.5) * (q @ k.transpose(-1, -2) * between) @ v


def _scanned(
    x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, skip: torch.Tensor
) -> torch.Tensor:
    state, found = x.new_zeros(x.size(0), *a.shape), []
    for t in range(x.size(1)):
        state = state * torch.exp(dt[:, t, :, None] * a) + (dt[:, t] * x[:, t])[..., None] * b[:, t, None]
        found.append((state * c[:, t, None]).sum(-1) + skip * x[:, t])
    return torch.stack(found, 1) if found else x * skip


def _by_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    shared = v.size(1) // q.size(1)
    q, k = q.repeat_interleave(shared, 1), k.repeat_interleave(shared, 1)
    memory = v.new_zeros(*v.shape[:2], q.size(3), v.size(3)) if state is None else state
    found = []
    for t in range(v.size(2)):
        kept = memory * decay[:, :, t].exp()[..., None, None]
        written = beta[:, :, t, None] * (v[:, :, t] - (k[:, :, t, None] @ kept)[:, :, 0])
        memory = kept + k[:, :, t, :, None] * written[:, :, None]
        found.append((q[:, :, t, None] @ memory)[:, :, 0])
    return torch.stack(found, 2) * (scale or q.size(-1) ** -0.5), memory


def delta_rules() -> list[Case]:
    q, k, v = _normal(2, 2, 77, 12, mean=0.2), _normal(2, 2, 77, 12, mean=0), _normal(2, 4, 77, 10)
    k = F.normalize(k, dim=-1)
    decay, beta, state = -torch.rand(2, 4, 77) * 0.3, torch.rand(2, 4, 77), _normal(2, 4, 12, 10)
    same_keys = q, k[:, :, :1].expand_as(k), v, decay * 0, beta * 0 + 1, state
    half = (*(t.bfloat16() for t in (q, k, v)), decay, beta.bfloat16())

    def continued(*args: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return ops.gated_delta_rule(*args[:-1], state=args[-1], scale=0.5)

    def reference(*args: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return _by_delta_rule(*args, scale=0.5)

    return [
        Case("gated_delta_rule, fp32", ops.gated_delta_rule, _by_delta_rule, (q, k, v, decay, beta), (0, 1, 2, 3, 4)),
        Case("gated_delta_rule, repeated keys", continued, reference, same_keys, (0, 1, 2, 3, 4, 5), slack=4),
        Case(
            "gated_delta_rule, bf16",
            _first(ops.gated_delta_rule),
            _first(_by_delta_rule),
            half,
            (0, 1, 2, 3, 4),
            slack=4,
        ),
        Case(
            "gated_delta_rule, one position",
            continued,
            reference,
            (*(t[:, :, :1] for t in (q, k, v, decay, beta)), state),
            (0, 1, 2, 3, 4, 5),
        ),
    ]


def samples() -> list[Case]:
    logits = (_normal(3, 4, 201) * 3).scatter_add(-1, torch.randint(201, [3, 4, 1]), torch.full([3, 4, 1], 30.0))

    def largest(logits: torch.Tensor) -> torch.Tensor:
        return logits.argmax(-1)

    def case(name: str, logits: torch.Tensor, **options: Any) -> Case:
        return Case(f"sample, {name}", functools.partial(ops.sample, **options), largest, (logits,))

    return [
        case("largest", logits, temperature=0),
        case("one, bf16", logits[0].bfloat16().contiguous(), top_k=1),
        case("least mass, fp16", logits.half(), top_p=1e-4),
        case("no rows", logits[:0], top_k=3, top_p=0.5),
    ]


def recurrences() -> list[Case]:
    q, k, v = _normal(2, 2, 77, 12, mean=0.2), _normal(2, 2, 77, 12, mean=0), _normal(2, 2, 77, 10)
    decay = -torch.rand(2, 2, 77) * 0.3
    x, dt, a = _normal(2, 7, 13), torch.rand(2, 7, 13), -torch.rand(13, 5)
    b, c, skip = _normal(2, 7, 5), _normal(2, 7, 5), _normal(13)
    half = q.bfloat16(), k.bfloat16(), v.bfloat16(), decay
    long = 2 * SCAN_POSITIONS
    in_parts = _normal(1, long, 6), torch.rand(1, long, 6), a[:6], _normal(1, long, 5), _normal(1, long, 5), skip[:6]
    every = (0, 1, 2, 3, 4, 5)
    mixed = x.bfloat16(), dt.bfloat16(), a, b.bfloat16(), c.bfloat16(), skip
    return [
        Case("linear_attention, fp32", ops.linear_attention, _attended_linearly, (q, k, v, decay), (0, 1, 2, 3), 4),
        Case("linear_attention, bf16", ops.linear_attention, _attended_linearly, half, (0, 1, 2, 3), 4),
        Case("selective_scan, fp32", ops.selective_scan, _scanned, (x, dt, a, b, c, skip), every),
        Case("selective_scan, bf16", ops.selective_scan, _scanned, mixed, every),
        Case("selective_scan, in parts", ops.selective_scan, _scanned, in_parts),
        Case("selective_scan, no batch", ops.selective_scan, _scanned, (x[:0], dt[:0], a, b[:0], c[:0], skip)),
    ]


def quantized() -> list[Case]:
    x, w = _normal(9, 70), _normal(70, mean=1)
    x[3] = 0
    gate, up = (_normal(2, 5, 2 * 96, dtype=BF16) * 2).chunk(2, dim=-1)

    def quantize(
        x: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn, group: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        parts = x if group is None else x.unflatten(-1, (-1, group))
        highest = parts.abs().amax(-1)
        scale = torch.where(highest > 0, highest / torch.finfo(dtype).max, 1.0)
        return (parts / scale[..., None]).view_as(x), scale

    def blocks(x: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
        m, n = x.shape
        padded = F.pad(x, (0, -n % block, 0, -m % block)).unflatten(0, (-1, block)).unflatten(2, (-1, block))
        scale = padded.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
        return x / widened(scale, block)[:m, :n], scale

    def case(name: str, op: Callable[..., Any], reference: Callable[..., Any], *args: Any, **options: Any) -> Case:
        return Case(name, functools.partial(op, **options), functools.partial(reference, **options), args)

    def norm(x: torch.Tensor, w: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return quantize(_rms(x, w), **options)

    def layer(x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor, **options: Any) -> tuple[torch.Tensor, ...]:
        return quantize(F.layer_norm(x, [x.size(-1)], w, *bias), **options)

    def after_sum(reference: Callable[..., Any]) -> Callable[..., tuple[torch.Tensor, ...]]:
        return lambda x, y, *others, **options: (*reference(x + y, *others, **options), x + y)

    def gated(gate: torch.Tensor, up: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return quantize(F.silu(gate) * up, **options)

    def geglu(gate: torch.Tensor, up: torch.Tensor, approximate: str = "none", **options: Any) -> tuple[Any, ...]:
        return quantize(F.gelu(gate, approximate=approximate) * up, **options)

    y, bias = _normal(*x.shape), _normal(x.size(-1))

    return [
        case("quantize_fp8, fp32", ops.quantize_fp8, quantize, x),
        case("quantize_fp8, e5m2, bf16", ops.quantize_fp8, quantize, x.bfloat16(), torch.float8_e5m2),
        case("quantize_fp8, groups", ops.quantize_fp8, quantize, x, group=14),
        case("quantize_fp8_blocks, fp32", ops.quantize_fp8_blocks, blocks, _normal(70, 45), block=32),
        case("rms_norm_fp8, bf16", ops.rms_norm_fp8, norm, x.bfloat16(), w),
        case("rms_norm_fp8, groups", ops.rms_norm_fp8, norm, x, w, group=10),
        case("add_rms_norm_fp8, fp32", ops.add_rms_norm_fp8, after_sum(norm), x, y, w),
        case("add_rms_norm_fp8, groups", ops.add_rms_norm_fp8, after_sum(norm), x.bfloat16(), y, w, group=10),
        case("layer_norm_fp8, bf16", ops.layer_norm_fp8, layer, x.bfloat16(), w, bias),
        case("layer_norm_fp8, groups without bias", ops.layer_norm_fp8, layer, x, w, group=10),
        case("add_layer_norm_fp8, fp32", ops.add_layer_norm_fp8, after_sum(layer), x, y, w, bias),
        case("add_layer_norm_fp8, groups", ops.add_layer_norm_fp8, after_sum(layer), x, y, w, bias, group=14),
        case("geglu_fp8, groups", ops.geglu_fp8, geglu, gate.float(), up, group=32),
        case("geglu_fp8, approximated", ops.geglu_fp8, geglu, gate, up, approximate="tanh"),
        case("swiglu_fp8, strided bf16", ops.swiglu_fp8, gated, gate, up),
        case("swiglu_fp8, groups", ops.swiglu_fp8, gated, gate.float(), up, group=32),
        case("swiglu_fp8, no rows", ops.swiglu_fp8, gated, gate[:0], up[:0], group=32),
    ]


def widened(scale: torch.Tensor, block: int) -> torch.Tensor:
    """Repeat each scale for the rows and columns of its block."""
    return scale.repeat_interleave(block, 0).repeat_interleave(block, 1)


def scaled_products() -> list[Case]:
    x8, x_scale = ops.quantize_fp8(_normal(9, 70))
    w8, w_scale = ops.quantize_fp8(_normal(21, 70))

    def product(x: torch.Tensor, weight: torch.Tensor, x_scale: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x * x_scale[..., None]) @ (weight * scale[:, None]).T

    def by_block(x: torch.Tensor, weight: torch.Tensor, x_scale: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        columns = x_scale.repeat_interleave(32, -1)[..., : x.size(-1)]
        return (x * columns) @ (weight * widened(scale, 32)[: weight.size(0), : x.size(-1)]).T

    blockwise = functools.partial(ops.block_scaled_matmul, block=32)
    y8, y_scale = ops.quantize_fp8(_normal(3, 5, 96), group=32)
    v8, v_scale = ops.quantize_fp8_blocks(_normal(70, 96), block=32)
    return [
        Case("scaled_matmul", ops.scaled_matmul, product, (x8, w8, x_scale, w_scale)),
        Case(
            "scaled_matmul, batches",
            lambda *args: ops.scaled_matmul(*args, dtype=F32),
            product,
            (x8.view(3, 3, 70), w8, x_scale.view(3, 3), w_scale),
        ),
        Case("scaled_matmul, no rows", ops.scaled_matmul, product, (x8[:0], w8, x_scale[:0], w_scale)),
        Case("block_scaled_matmul, batches", blockwise, by_block, (y8, v8, y_scale, v_scale)),
        Case(
            "block_scaled_matmul, a part of a block",
            functools.partial(blockwise, dtype=F32),
            by_block,
            (y8[0, :, :70], v8[:37, :70], y_scale[0], v_scale[:2]),
        ),
        Case("block_scaled_matmul, no rows", blockwise, by_block, (y8[:0], v8, y_scale[:0], v_scale)),
    ]


FAMILIES = (
    *(norms, losses, pointwise, rotations, heads, linear_losses, attentions, packs, integers, mixtures, bags, caches),
    *(recurrences, delta_rules, samples, quantized, scaled_products, packed),
)


def cases() -> list[Case]:
    """Make the arguments of all cases, the same each time."""
    torch.manual_seed(0)
    return [case for family in FAMILIES for case in family()]


def gradients(case: Case) -> tuple[Any, Any]:
    """Return functions of the same arguments that give the gradients of the op and of its reference."""

    def of(function: Any) -> Any:
        def found(*args: Any) -> tuple[torch.Tensor, ...]:
            leaves = list(args)
            for at in case.differentiated:
                leaves[at] = args[at].detach().requires_grad_()
            results = outputs(function(*leaves))
            generator = torch.Generator().manual_seed(1)
            given = [torch.randn(r.shape, generator=generator, device="cpu").add(0.5).bfloat16().to(r) for r in results]
            return torch.autograd.grad(results, [leaves[at] for at in case.differentiated], given)

        return found

    return of(case.op), of(case.reference)
