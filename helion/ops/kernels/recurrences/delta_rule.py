"""The gated delta rule: linear attention whose state forgets what a key held before it writes, by chunks of the sequence."""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from ..._operators import Operator, check, check_tensor, rows
from . import delta_rule_backward as backward

#: Positions of a chunk.
CHUNK = 64


@helion.kernel(static_shapes=False)
def delta_chunks_kernel(
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    shared: int,
    chunk: hl.constexpr,
    keeps: hl.constexpr,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute `fresh[H, S, E]` and `erased[H, S, D]` so that `fresh - erased @ state` are the values that a chunk adds.

    `state` is that before the chunk. Within it, the values of a position depend on those before it. This triangular
    system of equations is solved by forward substitution, since products of powers lose all digits where keys repeat.
    One that `keeps` the inverse matrices `[H, S, chunk]` returns them, too.
    """
    heads, length = v.size(0), v.size(1)
    depth, width = hl.specialize(k.size(2)), hl.specialize(v.size(2))
    fresh = torch.empty([heads, length, width], dtype=v.dtype, device=v.device)
    erased = torch.empty([heads, length, depth], dtype=v.dtype, device=v.device)
    inverses = torch.empty([heads, length if keeps else 0, chunk], dtype=v.dtype, device=v.device)
    for tile_h, tile in hl.tile([heads, length], block_size=[1, chunk]):
        head = tile_h.begin
        key = k[head // shared, tile, :]
        rate = beta[head, tile].to(torch.float32)
        since = hl.cumsum(decay[head, tile], dim=0)  # decay from the beginning of the chunk up to each position
        row, column = tile.index[:, None], tile.index[None, :]
        between = torch.exp(torch.where(row > column, since[:, None] - since[None, :], float("-inf")))
        lower = hl.dot(key, key.T) * between * rate[:, None]
        inverse = torch.where(row == column, 1.0, 0.0)
        for step in hl.grid(chunk):
            own = row == tile.begin + step
            factors = torch.sum(torch.where(own, lower, 0.0), dim=0)
            inverse = inverse - torch.where(own, torch.sum(factors[:, None] * inverse, dim=0)[None, :], 0.0)
        solution = inverse.to(v.dtype)
        if keeps:
            inverses[head, tile, :] = solution
        faded = key.to(torch.float32) * (rate * torch.exp(since))[:, None]
        erased[head, tile, :] = hl.dot(solution, faded.to(v.dtype))
        fresh[head, tile, :] = hl.dot(solution, (v[head, tile, :].to(torch.float32) * rate[:, None]).to(v.dtype))
    return fresh, erased, inverses


@helion.kernel(static_shapes=False)
def gated_delta_rule_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    fresh: torch.Tensor,
    erased: torch.Tensor,
    decay: torch.Tensor,
    state: torch.Tensor,
    shared: int,
    scale: float,
    chunk: hl.constexpr,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the results `[H, S, E]` and the last state, from `state[H, D, E]` and the solutions of all chunks."""
    heads, length = fresh.size(0), fresh.size(1)
    depth, width = hl.specialize(q.size(2)), hl.specialize(fresh.size(2))
    out = torch.empty([heads, length, width], dtype=fresh.dtype, device=q.device)
    last = torch.empty([heads, depth, width], dtype=torch.float32, device=q.device)
    for tile_h, tile_e in hl.tile([heads, width], block_size=[1, None]):
        head = tile_h.begin
        group = head // shared
        memory = state[head, :, tile_e]
        for tile in hl.tile(length, block_size=chunk):
            query, key = q[group, tile, :], k[group, tile, :]
            steps = decay[head, tile]
            since = hl.cumsum(steps, dim=0)
            until = torch.sum(steps, dim=0) - since
            read = hl.dot(erased[head, tile, :], memory.to(fresh.dtype))
            values = (fresh[head, tile, tile_e].to(torch.float32) - read).to(fresh.dtype)
            seen = tile.index[:, None] >= tile.index[None, :]
            between = torch.exp(torch.where(seen, since[:, None] - since[None, :], float("-inf")))
            scores = hl.dot(query, key.T) * between
            result = hl.dot(scores.to(fresh.dtype), values)
            result = result + hl.dot(query, memory.to(q.dtype)) * torch.exp(since)[:, None]
            out[head, tile, tile_e] = result * scale
            decayed = (key.to(torch.float32) * torch.exp(until)[:, None]).to(fresh.dtype)
            memory = memory * torch.exp(torch.sum(steps, dim=0)) + hl.dot(decayed.T, values)
        last[head, :, tile_e] = memory
    return out, last


def _run_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    shared: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    fresh, erased, _ = delta_chunks_kernel(k, v, decay, beta, shared, CHUNK, False)
    found: tuple[torch.Tensor, torch.Tensor] = gated_delta_rule_kernel(
        q, k, fresh, erased, decay, state, shared, scale, CHUNK
    )
    return found


def _run_backward(
    grad: torch.Tensor,
    last: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    shared: int,
    scale: float,
) -> tuple[torch.Tensor, ...]:
    """Compute the gradients by whole chunks: positions after the end have zeros, which change nothing."""
    length = v.size(1)
    padding = -length % CHUNK
    if padding:
        q, k, v, grad = (torch.nn.functional.pad(t, (0, 0, 0, padding)) for t in (q, k, v, grad))
        decay, beta = (torch.nn.functional.pad(t, (0, padding)) for t in (decay, beta))
    fresh, erased, inverses = delta_chunks_kernel(k, v, decay, beta, shared, CHUNK, True)
    states, added = backward.delta_states_kernel(k, fresh, erased, decay, state, shared, CHUNK)
    of_states, of_added, of_state = backward.delta_states_gradient_kernel(
        grad, last, q, k, erased, decay, shared, scale, CHUNK
    )
    of_q, of_k, of_since, of_whole = backward.delta_scores_gradient_kernel(
        grad, q, k, decay, added, states, of_states, shared, scale, CHUNK
    )
    of_v, of_decay, of_beta = backward.delta_chunks_gradient_kernel(
        *(k, v, decay, beta, fresh, erased, inverses), *(states, of_added, of_k, of_since, of_whole), shared, CHUNK
    )
    of_q, of_k = (t.view(-1, shared, *t.shape[1:]).sum(1).to(q.dtype) for t in (of_q, of_k))
    found = (of_q, of_k, of_v, of_decay, of_beta)
    return *(t[:, :length].contiguous() for t in found), of_state


_backward = Operator(
    "gated_delta_rule_backward(Tensor grad, Tensor last, Tensor q, Tensor k, Tensor v, Tensor decay, Tensor beta, "
    "Tensor state, SymInt shared, float scale) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    delta_chunks_kernel,
    *backward.KERNELS,
    run=_run_backward,
    fake=lambda grad, last, *args: tuple(t.new_empty(t.shape) for t in args[:6]),
)
_backward.differentiate_once()
_delta_rule = Operator(
    "gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor decay, Tensor beta, Tensor state, SymInt shared, float scale) "
    "-> (Tensor, Tensor)",
    delta_chunks_kernel,
    gated_delta_rule_kernel,
    run=_run_delta_rule,
    fake=lambda q, k, v, decay, beta, state, *options: (v.new_empty(v.shape), state.new_empty(state.shape)),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    *tensors, ctx.shared, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad: torch.Tensor, last: torch.Tensor) -> tuple[Any, ...]:
    return *_backward(grad, last, *ctx.saved_tensors, ctx.shared, ctx.scale), None, None


_delta_rule.differentiate(_save, _gradients)


def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    *,
    scale: float | None = None,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute causal linear attention whose state forgets what a key held before it writes.

    The state of a head is a matrix: `kept = exp(decay[t]) * state[t - 1]`, and
    `state[t] = kept + outer(k[t], beta[t] * (v[t] - k[t] @ kept))`. The result is `scale * q[t] @ state[t]`. Models
    divide keys by their length, so that the state stays bounded. Sums are in fp32. fp32 tensors are multiplied in TF32
    on a GPU. The backward pass computes the states before all chunks again, in the dtype of `v`.

    Args:
        q: `[B, G, S, D]`; float32, bfloat16 or float16. G divides H: consecutive heads of `v` share a head.
        k: `[B, G, S, D]` of the same dtype.
        v: `[B, H, S, E]` of the same dtype.
        decay: fp32 `[B, H, S]`, logarithms of the factors of the state, at most 0.
        beta: `[B, H, S]`, the part that a position writes, from 0 to 1; float32, bfloat16 or float16.
        scale: factor of the result; None means `1 / sqrt(D)`.
        state: fp32 `[B, H, D, E]`, the state before the first position; None means 0.

    Returns:
        The results, `[B, H, S, E]` in the dtype of `v`, and the state after the last position, fp32 `[B, H, D, E]`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    op = "gated_delta_rule"
    check_tensor(op, "q", q, dims=4, least_dims=1)
    batch, groups, length, depth = q.shape
    check_tensor(op, "k", k, dtypes=(q.dtype,), shape=q.shape, like=q)
    check_tensor(op, "v", v, dtypes=(q.dtype,), dims=4, least_dims=1, like=q)
    heads, width = v.size(1), v.size(3)
    check_tensor(op, "v", v, dtypes=(q.dtype,), shape=(batch, heads, length, width))
    divides = groups > 0 and heads > 0 and heads % groups == 0
    check(op, "q", divides, f"of a number of heads that divides {heads}", f"{groups} heads")
    check_tensor(op, "decay", decay, dtypes=(torch.float32,), shape=v.shape[:3], like=q)
    check_tensor(op, "beta", beta, shape=v.shape[:3], like=q)
    if state is None:
        state = q.new_zeros(batch, heads, depth, width, dtype=torch.float32)
    check_tensor(op, "state", state, dtypes=(torch.float32,), shape=(batch, heads, depth, width), like=q)
    factor = depth**-0.5 if scale is None else float(scale)
    flat = *(rows(t, kept=2) for t in (q, k, v)), *(rows(t) for t in (decay, beta))
    out, last = _delta_rule(*flat, rows(state, kept=2), heads // groups, factor)
    return out.view(v.shape), last.view(state.shape)
