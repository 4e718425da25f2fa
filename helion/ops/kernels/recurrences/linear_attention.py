"""Linear attention with a decay per head and position, by chunks of the sequence."""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.experimental
import helion.language as hl

from ..._operators import Operator, check_tensor, rows


@helion.kernel(static_shapes=False)
def linear_attention_kernel(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, scale: float
) -> torch.Tensor:
    """Compute `scale * q[t] @ state[t]`, with `state[t] = exp(decay[t]) * state[t - 1] + outer(k[t], v[t])`.

    The tensors are `q[H, S, D]`, `k[H, S, D]`, `v[H, S, E]` and fp32 `decay[H, S]`.
    """
    heads, length = q.size(0), q.size(1)
    depth, width = hl.specialize(q.size(2)), hl.specialize(v.size(2))
    out = torch.empty([heads, length, width], dtype=v.dtype, device=q.device)
    for tile_h, tile_e in hl.tile([heads, width], block_size=[1, None]):
        head = tile_h.begin
        state = hl.zeros([depth, tile_e], dtype=torch.float32)
        for chunk in hl.tile(length):
            query, key, value = q[head, chunk, :], k[head, chunk, :], v[head, chunk, tile_e]
            steps = decay[head, chunk]
            since = hl.cumsum(steps, dim=0)  # decay from the beginning of the chunk up to each position
            until = torch.sum(steps, dim=0) - since
            earlier = chunk.index[:, None] >= chunk.index[None, :]
            between = torch.where(earlier, since[:, None] - since[None, :], float("-inf"))
            scores = hl.dot(query, key.T) * torch.exp(between)
            result = hl.dot(scores.to(v.dtype), value)
            result = result + hl.dot(query, state.to(q.dtype)) * torch.exp(since)[:, None]
            out[head, chunk, tile_e] = result * scale
            decayed = (key.to(torch.float32) * torch.exp(until)[:, None]).to(k.dtype)
            state = state * torch.exp(torch.sum(steps, dim=0)) + hl.dot(decayed.T, value)
    return out


def _run_backward(grad: torch.Tensor, *args: Any) -> tuple[torch.Tensor, ...]:
    """Run the backward kernel that the compiler derives."""
    found = helion.experimental.backward(linear_attention_kernel, grad, *args)
    return tuple(g.contiguous() for g in found)


_backward = Operator(
    "linear_attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor decay, float scale) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    linear_attention_kernel,
    run=_run_backward,
    fake=lambda grad, *args: tuple(t.new_empty(t.shape) for t in args[:4]),
)
_backward.differentiate_once()
_attention = Operator(
    "linear_attention(Tensor q, Tensor k, Tensor v, Tensor decay, float scale) -> Tensor",
    linear_attention_kernel,
    fake=lambda q, k, v, decay, scale: v.new_empty(v.shape),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


_attention.differentiate(_save, lambda ctx, grad: (*_backward(grad, *ctx.saved_tensors, ctx.scale), None))


def linear_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, *, scale: float | None = None
) -> torch.Tensor:
    """Compute causal linear attention with a decay per head and position.

    The state of a head is a matrix: `state[t] = exp(decay[t]) * state[t - 1] + outer(k[t], v[t])`, and the result
    `scale * q[t] @ state[t]`. Sums are in fp32. fp32 tensors are multiplied in TF32 on a GPU. The backward kernel is
    derived by the compiler.

    Args:
        q: `[B, H, S, D]`; float32, bfloat16 or float16.
        k: `[B, H, S, D]` of the same dtype.
        v: `[B, H, S, E]` of the same dtype.
        decay: fp32 `[B, H, S]`, logarithms of the factors of the state, at most 0.
        scale: factor of the result; None means `1 / sqrt(D)`.

    Returns:
        `[B, H, S, E]` in the dtype of `v`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    op = "linear_attention"
    check_tensor(op, "q", q, dims=4, least_dims=1)
    check_tensor(op, "k", k, dtypes=(q.dtype,), shape=q.shape, like=q)
    check_tensor(op, "v", v, dtypes=(q.dtype,), dims=4, least_dims=1, like=q)
    check_tensor(op, "v", v, dtypes=(q.dtype,), shape=(*q.shape[:3], v.size(3)))
    check_tensor(op, "decay", decay, dtypes=(torch.float32,), shape=q.shape[:3], like=q)
    factor = q.size(3) ** -0.5 if scale is None else float(scale)
    flat = (*(rows(t, kept=2) for t in (q, k, v)), rows(decay))
    out: torch.Tensor = _attention(*flat, factor)
    return out.view(v.shape)
