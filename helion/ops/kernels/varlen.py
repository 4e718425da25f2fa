"""Attention of sequences of any lengths that lie one after another, without padding.

Each query sees a range of consecutive keys: those of its sequence, fewer with a causal mask or a window. A tile of
queries loops from the lowest to the highest key of its ranges. It may span several short sequences. Ranges do not
decrease from query to query, so that no other keys lie between.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import helion
import helion.language as hl

from .._operators import INDICES, Operator, check, check_tensor
from .attention import MASKED, check_scores, gradient_of_sinks, row_products_kernel, runs_together

#: A window that no sequence is longer than.
ALL = 1 << 30
#: Rows of a tile, and offsets that they are compared with at a time.
ROWS, OFFSETS = 128, 32


@helion.kernel(static_shapes=False)
def varlen_ranges_kernel(
    offsets: torch.Tensor, k_offsets: torch.Tensor, rows: int, window: int, causal: hl.constexpr
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the first key that each of `rows` rows sees, and the key after the last one; equal if it sees none.

    The offsets `[B + 1]` do not decrease. `ALL` keys are a window without an end.
    """
    last = offsets.size(0) - 1
    begins = torch.empty([rows], dtype=torch.int32, device=offsets.device)
    ends = torch.empty([rows], dtype=torch.int32, device=offsets.device)
    for tile in hl.tile(rows, block_size=ROWS):
        row = tile.index.to(torch.int32)
        after = hl.zeros([tile], dtype=torch.int32)  # 0 before the first sequence, B + 1 after the last one
        for part in hl.tile(offsets.size(0), block_size=OFFSETS):
            reached = offsets[part].to(torch.int32)[None, :] <= row[:, None]
            after = after + torch.sum(reached, dim=-1).to(torch.int32)
        begin = k_offsets[torch.clamp(after - 1, min=0)].to(torch.int32)
        end = k_offsets[torch.clamp(after, max=last)].to(torch.int32)
        if causal:
            own = row + end - offsets[torch.clamp(after, max=last)].to(torch.int32)
            earliest = begin
            begin = torch.maximum(begin, own - (window - 1))
            end = torch.maximum(torch.minimum(end, own + 1), earliest)
            begin = torch.minimum(begin, end)
        begins[tile] = begin
        ends[tile] = end
    return begins, ends


@helion.kernel(static_shapes=False)
def varlen_attention_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None,
    begins: torch.Tensor,
    ends: torch.Tensor,
    shared: int,
    scale: float | None,
    softcap: hl.constexpr,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the attention of row t of `q[T, H, D]` to the rows from `begins[t]` to `ends[t] - 1` of `k[S, G, D]` and `v[S, G, E]`.

    Returns also the log-sum-exp `[H, T]` in base 2, infinite for a query without keys, whose result is 0. A `scale` of
    None is `1 / sqrt(D)`.
    """
    rows, heads = q.size(0), q.size(1)
    depth, width = hl.specialize((q.size(2), v.size(2)))
    factor = depth**-0.5 if scale is None else scale
    out = torch.empty([rows, heads, width], dtype=q.dtype, device=q.device)
    normalizers = torch.empty([heads, rows], dtype=torch.float32, device=q.device)
    for tile_h, tile_m in hl.tile([heads, rows], block_size=[1, None]):
        head = tile_h.begin
        group = head // shared
        query = q[tile_m, head, :]
        first, last = begins[tile_m], ends[tile_m]
        highest = hl.full([tile_m], MASKED, dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, width], dtype=torch.float32)
        for tile_n in hl.tile(torch.amin(first), torch.amax(last)):
            scores = hl.dot(query, k[tile_n, group, :].T)
            if softcap:
                scores = softcap * torch.tanh(scores * (factor / softcap)) * math.log2(math.e)
            else:
                scores = scores * (factor * math.log2(math.e))
            key = tile_n.index[None, :]
            scores = torch.where((key >= first[:, None]) & (key < last[:, None]), scores, MASKED)
            raised = torch.maximum(highest, torch.amax(scores, dim=-1))
            weights = torch.exp2(scores - raised[:, None])
            shrink = torch.exp2(highest - raised)
            total = total * shrink + torch.sum(weights, dim=-1)
            acc = hl.dot(weights.to(v.dtype), v[tile_n, group, :], acc=acc * shrink[:, None])
            highest = raised
        if sinks is not None:
            total = total + torch.exp2(sinks[head].to(torch.float32) * math.log2(math.e) - highest)
        out[tile_m, head, :] = torch.where((last > first)[:, None], acc / total[:, None], 0.0)
        normalizers[head, tile_m] = torch.where(last > first, highest + torch.log2(total), float("inf"))
    return out, normalizers


@helion.kernel(static_shapes=False)
def varlen_keys_backward_kernel(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    normalizers: torch.Tensor,
    along: torch.Tensor,
    first_rows: torch.Tensor,
    last_rows: torch.Tensor,
    shared: int,
    scale: float | None,
    softcap: hl.constexpr,
    together: hl.constexpr = False,
) -> tuple[torch.Tensor, ...]:
    """Compute the gradients of `k[S, G, D]` and `v[S, G, E]`.

    `along[H, T]` is the sum of `grad * out` of each row. Key s is seen by rows from `first_rows[s]` to `last_rows[s] - 1`.
    With `together` also that of `q[T, H, D]` in fp32, which programs add to memory in any order.
    """
    keys, groups = k.size(0), k.size(1)
    depth, width = hl.specialize(q.size(2)), hl.specialize(v.size(2))
    factor = depth**-0.5 if scale is None else scale
    grad_k = torch.empty([keys, groups, depth], dtype=k.dtype, device=k.device)
    grad_v = torch.empty([keys, groups, width], dtype=v.dtype, device=v.device)
    if together:
        grad_q = torch.zeros(q.size(), dtype=torch.float32, device=q.device)
    for tile_g, tile_n in hl.tile([groups, keys], block_size=[1, None]):
        group = tile_g.begin
        key, value = k[tile_n, group, :], v[tile_n, group, :]
        first, last = first_rows[tile_n], last_rows[tile_n]
        acc_k = hl.zeros([tile_n, depth], dtype=torch.float32)
        acc_v = hl.zeros([tile_n, width], dtype=torch.float32)
        for member in hl.grid(shared):
            head = group * shared + member
            for tile_m in hl.tile(torch.amin(first), torch.amax(last)):
                query, given = q[tile_m, head, :], grad[tile_m, head, :]
                scores = hl.dot(key, query.T)
                if softcap:
                    tangent = torch.tanh(scores * (factor / softcap))
                    scores = softcap * tangent * math.log2(math.e)
                else:
                    scores = scores * (factor * math.log2(math.e))
                at = tile_m.index[None, :]
                seen = (at >= first[:, None]) & (at < last[:, None])
                weights = torch.where(seen, torch.exp2(scores - normalizers[head, tile_m][None, :]), 0.0)
                acc_v = hl.dot(weights.to(given.dtype), given, acc=acc_v)
                grad_scores = weights * (hl.dot(value, given.T) - along[head, tile_m][None, :])
                if softcap:
                    grad_scores = grad_scores * (1 - tangent * tangent)
                changes = grad_scores.to(query.dtype)
                acc_k = hl.dot(changes, query, acc=acc_k)
                if together:
                    hl.atomic_add(grad_q, [tile_m, head, slice(None)], hl.dot(changes.T, key) * factor)
        grad_k[tile_n, group, :] = acc_k * factor
        grad_v[tile_n, group, :] = acc_v
    return (grad_k, grad_v, grad_q) if together else (grad_k, grad_v)


@helion.kernel(static_shapes=False)
def varlen_queries_backward_kernel(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    normalizers: torch.Tensor,
    along: torch.Tensor,
    begins: torch.Tensor,
    ends: torch.Tensor,
    shared: int,
    scale: float | None,
    softcap: hl.constexpr,
) -> torch.Tensor:
    """Compute the gradient of `q[T, H, D]`."""
    rows, heads = q.size(0), q.size(1)
    depth = hl.specialize(q.size(2))
    factor = depth**-0.5 if scale is None else scale
    grad_q = torch.empty([rows, heads, depth], dtype=q.dtype, device=q.device)
    for tile_h, tile_m in hl.tile([heads, rows], block_size=[1, None]):
        head = tile_h.begin
        group = head // shared
        query, given = q[tile_m, head, :], grad[tile_m, head, :]
        normalizer, total = normalizers[head, tile_m], along[head, tile_m]
        first, last = begins[tile_m], ends[tile_m]
        acc = hl.zeros([tile_m, depth], dtype=torch.float32)
        for tile_n in hl.tile(torch.amin(first), torch.amax(last)):
            key = k[tile_n, group, :]
            scores = hl.dot(query, key.T)
            if softcap:
                tangent = torch.tanh(scores * (factor / softcap))
                scores = softcap * tangent * math.log2(math.e)
            else:
                scores = scores * (factor * math.log2(math.e))
            at = tile_n.index[None, :]
            seen = (at >= first[:, None]) & (at < last[:, None])
            weights = torch.where(seen, torch.exp2(scores - normalizer[:, None]), 0.0)
            grad_scores = weights * (hl.dot(given, v[tile_n, group, :].T) - total[:, None])
            if softcap:
                grad_scores = grad_scores * (1 - tangent * tangent)
            acc = hl.dot(grad_scores.to(key.dtype), key, acc=acc)
        grad_q[tile_m, head, :] = acc * factor
    return grad_q


def _rows_of_keys(begins: torch.Tensor, ends: torch.Tensor, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first row that sees each key, and the row after the last one, as int32; equal if none does.

    Both are among the rows that see keys, so that no tile of keys reads rows before or after all sequences.
    """
    if begins.size(0) == 0:
        none = torch.zeros(keys, dtype=torch.int32, device=begins.device)
        return none, none
    key = torch.arange(keys, dtype=begins.dtype, device=begins.device)
    row = torch.arange(begins.size(0), dtype=torch.int32, device=begins.device)
    seeing = ends > begins
    first, last = torch.where(seeing, row, begins.size(0)).amin(), torch.where(seeing, row + 1, 0).amax()
    of_keys = (torch.searchsorted(t, key, right=True, out_int32=True) for t in (ends, begins))
    first_rows, last_rows = (rows.clamp(min=first, max=last) for rows in of_keys)
    return first_rows, last_rows


def _run_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    sinks, begins, ends, out, normalizers, *options = others
    along = row_products_kernel(grad.transpose(0, 1), out.transpose(0, 1))
    first_rows, last_rows = _rows_of_keys(begins, ends, k.size(0))
    args = (grad, q, k, v, normalizers, along)
    of_keys, of_sinks = (*args, first_rows, last_rows, *options), gradient_of_sinks(sinks, normalizers, along)
    keys_kernel: Any = varlen_keys_backward_kernel
    if runs_together(keys_kernel, q, v, of_keys):
        grad_k, grad_v, sums = keys_kernel(*of_keys, True)
        return sums.to(q.dtype), grad_k, grad_v, of_sinks
    grad_k, grad_v = keys_kernel(*of_keys)
    return varlen_queries_backward_kernel(*args, begins, ends, *options), grad_k, grad_v, of_sinks


_ranges = Operator(
    "varlen_ranges(Tensor offsets, Tensor k_offsets, SymInt rows, SymInt window, bool causal) -> (Tensor, Tensor)",
    varlen_ranges_kernel,
    fake=lambda offsets, k_offsets, rows, *others: (
        offsets.new_empty(rows, dtype=torch.int32),
        offsets.new_empty(rows, dtype=torch.int32),
    ),
)
_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor begins, Tensor ends"
_OPTIONS = "SymInt shared, float? scale, float softcap"
_attention = Operator(
    f"varlen_attention({_INPUTS}, {_OPTIONS}) -> (Tensor, Tensor)",
    varlen_attention_kernel,
    fake=lambda q, k, v, *others: (
        q.new_empty(*q.shape[:2], v.size(2)),
        q.new_empty(q.size(1), q.size(0), dtype=torch.float32),
    ),
)
_backward = Operator(
    f"varlen_attention_backward(Tensor grad, {_INPUTS}, Tensor out, Tensor normalizers, {_OPTIONS}) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    varlen_queries_backward_kernel,
    varlen_keys_backward_kernel,
    row_products_kernel,
    run=_run_backward,
    fake=lambda grad, q, k, v, sinks, *others: (
        *(t.new_empty(t.shape) for t in (q, k, v)),
        q.new_empty(0, dtype=torch.float32) if sinks is None else sinks.new_empty(sinks.shape),
    ),
)
_backward.differentiate_once()


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    *tensors, ctx.shared, ctx.scale, ctx.softcap = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
    *found, of_sinks = _backward(grad, *ctx.saved_tensors, ctx.shared, ctx.scale, ctx.softcap)
    return (*found, of_sinks if ctx.saved_tensors[3] is not None else None, *(None,) * 5)


_attention.differentiate(_save, _gradients)


def varlen_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    offsets: torch.Tensor,
    k_offsets: torch.Tensor | None = None,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `attention` of each sequence of a batch, which lie one after another.

    Query i of a sequence has the position i + n - m, with its numbers m of queries and n of keys. A query that sees no
    key, and a row of no sequence, gives 0. fp32 tensors are multiplied in TF32 on a GPU.

    Args:
        q: `[T, H, D]`; float32, bfloat16 or float16.
        k: `[S, G, D]` of the same dtype. G divides H: consecutive heads of `q` share a head of `k`.
        v: `[S, G, E]` of the same dtype.
        offsets: `[B + 1]`; int32 or int64. Sequence b has the queries from `offsets[b]` to `offsets[b + 1] - 1`;
            offsets do not decrease, and are from 0 to T.
        k_offsets: the same for the keys; None if they are equal.
        causal: a query sees the keys up to its own position.
        window: with `causal`, the number of last keys that a query sees, its own among them; None: all.
        softcap: limit of the scores: each score s becomes `softcap * tanh(s / softcap)`; None: no limit.
        scale: factor of the scores; None means `1 / sqrt(D)`.
        sinks: `[H]`, a score for each head that takes part in the softmax and has no value; any of these dtypes, or
            None.

    Returns:
        `[T, H, E]` in the dtype of `q`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    op = "varlen_attention"
    check_tensor(op, "q", q, dims=3)
    heads, depth = q.shape[1:]
    check_tensor(op, "k", k, dtypes=(q.dtype,), dims=3, like=q)
    groups = k.size(1)
    check_tensor(op, "k", k, dtypes=(q.dtype,), shape=(k.size(0), groups, depth))
    check_tensor(op, "v", v, dtypes=(q.dtype,), dims=3, like=q)
    check_tensor(op, "v", v, dtypes=(q.dtype,), shape=(*k.shape[:2], v.size(2)))
    divides = groups > 0 and heads > 0 and heads % groups == 0
    check(op, "k", divides, f"of a number of heads that divides {heads}", f"{groups} heads")
    check_tensor(op, "offsets", offsets, dtypes=INDICES, dims=1, least_dims=1, like=q)
    if k_offsets is None:
        check(op, "k_offsets", q.size(0) == k.size(0), f"given for {q.size(0)} queries and {k.size(0)} keys", None)
    else:
        check_tensor(op, "k_offsets", k_offsets, dtypes=INDICES, shape=offsets.shape, like=q)
    check_scores(op, q, heads, causal, window, softcap, sinks)
    factor = None if scale is None else float(scale)
    k_offsets = offsets if k_offsets is None else k_offsets
    ranges = _ranges(offsets, k_offsets, q.size(0), ALL if window is None else min(window, ALL), causal)
    out: torch.Tensor
    out, _ = _attention(q, k, v, sinks, *ranges, heads // groups, factor, float(softcap or 0))
    return out
