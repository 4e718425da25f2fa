"""Attention in one pass over the keys: full, causal, in a window, with soft-capped scores, sinks and grouped heads.

Scores never reach memory. A tile of keys may raise the running maximum of a row, and the accumulator is rescaled. The
forward pass keeps one number per row, the logarithm of the sum of exponentials. Two backward kernels compute the
weights again from it: one loops over queries for the gradients of keys and values, one over keys for that of queries.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import helion
import helion.language as hl

from ...backends import GENERAL
from .._operators import Operator, check, check_tensor, rows

#: Maximum of a row that has seen no key, below all scores. It is finite, so that rows whose first tiles are masked have
#: no NaN.
MASKED = -1e30
#: Dimensions of heads for which one kernel of all gradients is the fastest.
TOGETHER = 64, 128
#: Kernels with arguments by whether the general backend runs them, and the most of these that are remembered.
_GENERAL: dict[tuple[Any, ...], bool] = {}
MOST_KNOWN = 1024


@helion.kernel(static_shapes=False)
def attention_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None,
    shared: hl.constexpr,
    scale: float | None,
    causal: hl.constexpr,
    window: hl.constexpr,
    softcap: hl.constexpr,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the attention of `q[H, M, D]` to `k[G, N, D]` and `v[G, N, E]`; return the result and the log-sum-exp of each row.

    Consecutive `shared` heads of `q` share a head of `k`. Query i has the position i + N - M. With `causal` it sees the
    keys up to that position, with `window` only the last `window` of these. `sinks[S]` are scores without values, that
    of head h at h modulo S. Log-sum-exp and scores are in base 2. A `scale` of None is `1 / sqrt(D)`.
    """
    heads, m = q.size(0), q.size(1)
    n = k.size(1)
    depth, width = hl.specialize(q.size(2)), hl.specialize(v.size(2))
    factor = depth**-0.5 if scale is None else scale
    later = n - m
    out = torch.empty([heads, m, width], dtype=q.dtype, device=q.device)
    normalizers = torch.empty([heads, m], dtype=torch.float32, device=q.device)
    for tile_h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        head = tile_h.begin
        group = head // shared
        query = q[head, tile_m, :]
        highest = hl.full([tile_m], MASKED, dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, width], dtype=torch.float32)
        begin = max(tile_m.begin + later - window + 1, 0) if window else 0
        end = min(tile_m.end + later, n) if causal else n
        for tile_n in hl.tile(begin, end):
            scores = hl.dot(query, k[group, tile_n, :].T)
            if softcap:
                scores = softcap * torch.tanh(scores * (factor / softcap)) * math.log2(math.e)
            else:
                scores = scores * (factor * math.log2(math.e))
            if causal:
                after = tile_n.index[None, :] - tile_m.index[:, None]
                seen = (after <= later) & (after > later - window) if window else after <= later
                scores = torch.where(seen, scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, dim=-1))
            weights = torch.exp2(scores - raised[:, None])
            shrink = torch.exp2(highest - raised)
            total = total * shrink + torch.sum(weights, dim=-1)
            acc = hl.dot(weights.to(v.dtype), v[group, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        if sinks is not None:
            total = total + torch.exp2(sinks[head % sinks.size(0)].to(torch.float32) * math.log2(math.e) - highest)
        out[head, tile_m, :] = acc / total[:, None]
        normalizers[head, tile_m] = highest + torch.log2(total)
    return out, normalizers


@helion.kernel(static_shapes=False)
def row_products_kernel(grad: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Compute the sum of `grad * out` of each row of `[H, M, E]`."""
    heads, m, _ = grad.size()
    along = torch.empty([heads, m], dtype=torch.float32, device=grad.device)
    for tile_h, tile_m in hl.tile([heads, m]):
        given, found = grad[tile_h, tile_m, :].to(torch.float32), out[tile_h, tile_m, :].to(torch.float32)
        along[tile_h, tile_m] = torch.sum(given * found, dim=-1)
    return along


@helion.kernel(static_shapes=False)
def attention_keys_backward_kernel(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    normalizers: torch.Tensor,
    along: torch.Tensor,
    shared: hl.constexpr,
    scale: float | None,
    causal: hl.constexpr,
    window: hl.constexpr,
    softcap: hl.constexpr,
    together: hl.constexpr = False,
) -> tuple[torch.Tensor, ...]:
    """Compute the gradients of `k[G, N, D]` and `v[G, N, E]`; `along[H, M]` is the sum of `grad * out` of each row.

    With `together` also that of `q[H, M, D]` in fp32, which programs add to memory in any order.
    """
    m = q.size(1)
    groups, n = k.size(0), k.size(1)
    depth, width = hl.specialize(q.size(2)), hl.specialize(v.size(2))
    factor = depth**-0.5 if scale is None else scale
    later = n - m
    grad_k = torch.empty([groups, n, depth], dtype=k.dtype, device=k.device)
    grad_v = torch.empty([groups, n, width], dtype=v.dtype, device=v.device)
    if together:
        grad_q = torch.zeros(q.size(), dtype=torch.float32, device=q.device)
    for tile_g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        group = tile_g.begin
        key, value = k[group, tile_n, :], v[group, tile_n, :]
        acc_k = hl.zeros([tile_n, depth], dtype=torch.float32)
        acc_v = hl.zeros([tile_n, width], dtype=torch.float32)
        begin = max(tile_n.begin - later, 0) if causal else 0
        end = min(tile_n.end - later + window - 1, m) if window else m
        for member in hl.grid(shared):
            head = group * shared + member
            for tile_m in hl.tile(begin, end):
                query, given = q[head, tile_m, :], grad[head, tile_m, :]
                scores = hl.dot(key, query.T)
                if softcap:
                    tangent = torch.tanh(scores * (factor / softcap))
                    scores = softcap * tangent * math.log2(math.e)
                else:
                    scores = scores * (factor * math.log2(math.e))
                weights = torch.exp2(scores - normalizers[head, tile_m][None, :])
                if causal:
                    after = tile_n.index[:, None] - tile_m.index[None, :]
                    seen = (after <= later) & (after > later - window) if window else after <= later
                    weights = torch.where(seen, weights, 0.0)
                acc_v = hl.dot(weights.to(given.dtype), given, acc=acc_v)
                grad_scores = weights * (hl.dot(value, given.T) - along[head, tile_m][None, :])
                if softcap:
                    grad_scores = grad_scores * (1 - tangent * tangent)
                changes = grad_scores.to(query.dtype)
                acc_k = hl.dot(changes, query, acc=acc_k)
                if together:
                    hl.atomic_add(grad_q, [head, tile_m, slice(None)], hl.dot(changes.T, key) * factor)
        grad_k[group, tile_n, :] = acc_k * factor
        grad_v[group, tile_n, :] = acc_v
    return (grad_k, grad_v, grad_q) if together else (grad_k, grad_v)


@helion.kernel(static_shapes=False)
def attention_queries_backward_kernel(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    normalizers: torch.Tensor,
    along: torch.Tensor,
    shared: hl.constexpr,
    scale: float | None,
    causal: hl.constexpr,
    window: hl.constexpr,
    softcap: hl.constexpr,
) -> torch.Tensor:
    """Compute the gradient of `q[H, M, D]`."""
    heads, m = q.size(0), q.size(1)
    n = k.size(1)
    depth = hl.specialize(q.size(2))
    factor = depth**-0.5 if scale is None else scale
    later = n - m
    grad_q = torch.empty([heads, m, depth], dtype=q.dtype, device=q.device)
    for tile_h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        head = tile_h.begin
        group = head // shared
        query, given = q[head, tile_m, :], grad[head, tile_m, :]
        normalizer, total = normalizers[head, tile_m], along[head, tile_m]
        acc = hl.zeros([tile_m, depth], dtype=torch.float32)
        begin = max(tile_m.begin + later - window + 1, 0) if window else 0
        end = min(tile_m.end + later, n) if causal else n
        for tile_n in hl.tile(begin, end):
            key = k[group, tile_n, :]
            scores = hl.dot(query, key.T)
            if softcap:
                tangent = torch.tanh(scores * (factor / softcap))
                scores = softcap * tangent * math.log2(math.e)
            else:
                scores = scores * (factor * math.log2(math.e))
            weights = torch.exp2(scores - normalizer[:, None])
            if causal:
                after = tile_n.index[None, :] - tile_m.index[:, None]
                seen = (after <= later) & (after > later - window) if window else after <= later
                weights = torch.where(seen, weights, 0.0)
            grad_scores = weights * (hl.dot(given, v[group, tile_n, :].T) - total[:, None])
            if softcap:
                grad_scores = grad_scores * (1 - tangent * tangent)
            acc = hl.dot(grad_scores.to(key.dtype), key, acc=acc)
        grad_q[head, tile_m, :] = acc * factor
    return grad_q


def is_general(kernel: helion.Kernel, given: tuple[Any, ...]) -> bool:
    """Return whether the general backend runs a kernel, remembered by what binding it depends on: that takes longer."""
    tensors = ((each.shape, each.dtype, each.device) if torch.is_tensor(each) else each for each in given)
    key = (kernel, *tensors)
    if key not in _GENERAL:
        if len(_GENERAL) >= MOST_KNOWN:
            _GENERAL.clear()
        _GENERAL[key] = kernel.bind(given).backend_on_gpu == GENERAL
    return _GENERAL[key]


def runs_together(kernel: helion.Kernel, q: torch.Tensor, v: torch.Tensor, given: tuple[Any, ...]) -> bool:
    """Return whether ``kernel`` computes all gradients: five products of a block, and not seven, in any order of additions.

    Capped scores have two kernels: registers do not hold their derivatives as well.
    """
    softcap = given[-1]
    of_size = (
        q.is_cuda and q.size(2) == v.size(2) and q.size(2) in TOGETHER and q.dtype in (torch.bfloat16, torch.float16)
    )
    free = of_size and not softcap and not torch.are_deterministic_algorithms_enabled()
    return free and not is_general(kernel, (*given, True))


def _run_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    sinks, out, normalizers, *options = others
    along = row_products_kernel(grad, out)
    args = (grad, q, k, v, normalizers, along, *options)
    of_sinks = gradient_of_sinks(sinks, normalizers, along)
    keys_kernel: Any = attention_keys_backward_kernel
    if runs_together(keys_kernel, q, v, args):
        grad_k, grad_v, sums = keys_kernel(*args, True)
        return sums.to(q.dtype), grad_k, grad_v, of_sinks
    grad_k, grad_v = keys_kernel(*args)
    return attention_queries_backward_kernel(*args), grad_k, grad_v, of_sinks


def gradient_of_sinks(sinks: torch.Tensor | None, normalizers: torch.Tensor, along: torch.Tensor) -> torch.Tensor:
    """Return the gradient of sinks from `[H, M]` log-sum-exp and sums of `grad * out`; an empty tensor without sinks."""
    if sinks is None:
        return along.new_empty(0)
    scores = sinks.float().repeat(along.size(0) // sinks.numel()) * math.log2(math.e)
    shares = torch.exp2(scores[:, None] - normalizers)
    return -(shares * along).sum(1).view(-1, sinks.numel()).sum(0).to(sinks.dtype)


_OPTIONS = "SymInt shared, float? scale, bool causal, int window, float softcap"
_attention = Operator(
    f"attention(Tensor q, Tensor k, Tensor v, Tensor? sinks, {_OPTIONS}) -> (Tensor, Tensor)",
    attention_kernel,
    fake=lambda q, k, v, *others: (
        q.new_empty(*q.shape[:2], v.size(2)),
        q.new_empty(q.shape[:2], dtype=torch.float32),
    ),
)
_backward = Operator(
    "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor out, Tensor normalizers, "
    f"{_OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)",
    attention_queries_backward_kernel,
    attention_keys_backward_kernel,
    row_products_kernel,
    run=_run_backward,
    fake=lambda grad, q, k, v, sinks, *others: (
        *(t.new_empty(t.shape) for t in (q, k, v)),
        q.new_empty(0, dtype=torch.float32) if sinks is None else sinks.new_empty(sinks.shape),
    ),
)
_backward.differentiate_once()


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    *tensors, ctx.shared, ctx.scale, ctx.causal, ctx.window, ctx.softcap = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
    options = ctx.shared, ctx.scale, ctx.causal, ctx.window, ctx.softcap
    *found, of_sinks = _backward(grad, *ctx.saved_tensors, *options)
    return (*found, of_sinks if ctx.saved_tensors[3] is not None else None, *(None,) * 5)


_attention.differentiate(_save, _gradients)


def check_scores(
    op: str,
    q: torch.Tensor,
    heads: int,
    causal: bool,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> None:
    """Check the arguments that change scores."""
    check(op, "window", window is None or (causal and window > 0), "above 0, and only with causal=True", window)
    check(op, "softcap", softcap is None or softcap > 0, "above 0", softcap)
    if sinks is not None:
        check_tensor(op, "sinks", sinks, shape=(heads,), like=q)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `softmax(scale * q @ k.T) @ v` per head.

    Query i has the position i + N - M, so that the last query is at the last key. fp32 tensors are multiplied in
    TF32 on a GPU. Gradients of heads of 64 and 128 dimensions may be added in any order on a GPU, unless torch is asked for
    deterministic algorithms.

    Args:
        q: `[B, H, M, D]`; float32, bfloat16 or float16.
        k: `[B, G, N, D]` of the same dtype, N at least 1. G divides H: consecutive heads of `q` share a head of `k`.
        v: `[B, G, N, E]` of the same dtype.
        causal: a query sees the keys up to its own position; needs M at most N.
        window: with `causal`, the number of last keys that a query sees, its own among them; None: all.
        softcap: limit of the scores: each score s becomes `softcap * tanh(s / softcap)`; None: no limit.
        scale: factor of the scores; None means `1 / sqrt(D)`.
        sinks: `[H]`, a score for each head that takes part in the softmax and has no value; any of these dtypes, or
            None. It is neither scaled nor capped.

    Returns:
        `[B, H, M, E]` in the dtype of `q`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    op = "attention"
    check_tensor(op, "q", q, dims=4)
    batch, heads, m, depth = q.shape
    check_tensor(op, "k", k, dtypes=(q.dtype,), dims=4, like=q)
    groups, n = k.shape[1:3]
    check_tensor(op, "k", k, dtypes=(q.dtype,), shape=(batch, groups, n, depth))
    check_tensor(op, "v", v, dtypes=(q.dtype,), dims=4, like=q)
    check_tensor(op, "v", v, dtypes=(q.dtype,), shape=(batch, groups, n, v.size(3)))
    check(op, "k", n > 0, "of at least one key", f"shape {list(k.shape)}")
    check(
        op,
        "k",
        groups > 0 and heads > 0 and heads % groups == 0,
        f"of a number of heads that divides {heads}",
        f"{groups} heads",
    )
    check(op, "q", not causal or m <= n, f"of at most {n} queries if attention is causal", f"{m} queries")
    check_scores(op, q, heads, causal, window, softcap, sinks)
    factor = None if scale is None else float(scale)
    flat = (rows(tensor, kept=2) for tensor in (q, k, v))
    out: torch.Tensor
    out, _ = _attention(*flat, sinks, heads // groups, factor, causal, window or 0, float(softcap or 0))
    return out.view(batch, heads, m, v.size(3))
