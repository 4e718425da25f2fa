"""Normalization of the heads of queries and keys, followed by rotary position embedding, in one kernel.

A program takes heads of keys, with the heads of queries that share each. Where these are many, or differ in number, it
loops over all heads of some tokens. The backward kernel undoes the rotation, and continues as that of the norm.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .._block_sums import block_sums_kernel
from .._operators import INDICES, Operator, check, check_tensor, rows, shaped, split

#: Most heads of queries that a program holds for each head of keys.
MOST_SHARED = 8


def normalized(
    first: torch.Tensor, second: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Divide heads by their root mean square, given as two halves; return the halves and the factor."""
    squares = torch.mean(first * first + second * second, dim=-1, keepdim=True) * 0.5
    factor = torch.rsqrt(squares + eps)
    return first * factor, second * factor, factor


@helion.kernel(static_shapes=False)
def qk_norm_rope_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    length: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalize and rotate `q[T, H, D]` and `k[T, G, D]`. Token t is at `positions[t]`, or at `t % length`."""
    tokens = q.size(0)
    heads, groups, half = hl.specialize((q.size(1), k.size(1), cos.size(1)))
    out_q = torch.empty([tokens, heads, 2 * half], dtype=q.dtype, device=q.device)
    out_k = torch.empty([tokens, groups, 2 * half], dtype=k.dtype, device=k.device)
    for tile_t in hl.tile(tokens):
        at = positions[tile_t] if positions is not None else tile_t.index % length
        cosine = cos[at, :].to(torch.float32)[:, None, :]
        sine = sin[at, :].to(torch.float32)[:, None, :]
        for tile_h in hl.tile(heads):
            first, second, _ = normalized(
                q[tile_t, tile_h, :half].to(torch.float32), q[tile_t, tile_h, half:].to(torch.float32), eps
            )
            first = first * q_weight[:half].to(torch.float32)
            second = second * q_weight[half:].to(torch.float32)
            out_q[tile_t, tile_h, :half] = first * cosine - second * sine
            out_q[tile_t, tile_h, half:] = second * cosine + first * sine
        for tile_g in hl.tile(groups):
            first, second, _ = normalized(
                k[tile_t, tile_g, :half].to(torch.float32), k[tile_t, tile_g, half:].to(torch.float32), eps
            )
            first = first * k_weight[:half].to(torch.float32)
            second = second * k_weight[half:].to(torch.float32)
            out_k[tile_t, tile_g, :half] = first * cosine - second * sine
            out_k[tile_t, tile_g, half:] = second * cosine + first * sine
    return out_q, out_k


@helion.kernel(static_shapes=False)
def grouped_norm_rope_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    length: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the same of `q[T, G, S, D]` and `k[T, G, D]`, where S heads of `q` share a head of `k`."""
    tokens = q.size(0)
    groups, shared, half = hl.specialize((q.size(1), q.size(2), cos.size(1)))
    out_q = torch.empty([tokens, groups, shared, 2 * half], dtype=q.dtype, device=q.device)
    out_k = torch.empty([tokens, groups, 2 * half], dtype=k.dtype, device=k.device)
    for tile_t, tile_g in hl.tile([tokens, groups]):
        # Triton moves no load past a store, so all loads come first.
        at = positions[tile_t] if positions is not None else tile_t.index % length
        cosine = cos[at, :].to(torch.float32)[:, None, :]
        sine = sin[at, :].to(torch.float32)[:, None, :]
        first, second, _ = normalized(
            q[tile_t, tile_g, :, :half].to(torch.float32), q[tile_t, tile_g, :, half:].to(torch.float32), eps
        )
        k_first, k_second, _ = normalized(
            k[tile_t, tile_g, :half].to(torch.float32), k[tile_t, tile_g, half:].to(torch.float32), eps
        )
        first = first * q_weight[:half].to(torch.float32)
        second = second * q_weight[half:].to(torch.float32)
        k_first = k_first * k_weight[:half].to(torch.float32)
        k_second = k_second * k_weight[half:].to(torch.float32)
        out_q[tile_t, tile_g, :, :half] = first * cosine[:, :, None, :] - second * sine[:, :, None, :]
        out_q[tile_t, tile_g, :, half:] = second * cosine[:, :, None, :] + first * sine[:, :, None, :]
        out_k[tile_t, tile_g, :half] = k_first * cosine - k_second * sine
        out_k[tile_t, tile_g, half:] = k_second * cosine + k_first * sine
    return out_q, out_k


@helion.kernel(static_shapes=False)
def norm_rope_backward_kernel(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    length: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the gradient of `x[T, H, D]`, which is `q` or `k`, and that of its `weight[D]` of each block of tokens."""
    tokens = x.size(0)
    heads, half = hl.specialize((x.size(1), cos.size(1)))
    block = hl.register_block_size(tokens)
    grad_x = torch.empty([tokens, heads, 2 * half], dtype=x.dtype, device=x.device)
    partial = torch.empty([1, helion.cdiv(tokens, block), 2 * half], dtype=torch.float32, device=x.device)
    for outer in hl.tile(tokens, block_size=block):
        sum_first = hl.zeros([half], dtype=torch.float32)
        sum_second = hl.zeros([half], dtype=torch.float32)
        for tile_t, tile_h in hl.tile([outer.begin, 0], [outer.end, heads]):
            at = positions[tile_t] if positions is not None else tile_t.index % length
            cosine = cos[at, :].to(torch.float32)[:, None, :]
            sine = sin[at, :].to(torch.float32)[:, None, :]
            given_first = grad[tile_t, tile_h, :half].to(torch.float32)
            given_second = grad[tile_t, tile_h, half:].to(torch.float32)
            back_first = given_first * cosine + given_second * sine
            back_second = given_second * cosine - given_first * sine
            first, second, factor = normalized(
                x[tile_t, tile_h, :half].to(torch.float32), x[tile_t, tile_h, half:].to(torch.float32), eps
            )
            sum_first += torch.sum(torch.sum(back_first * first, dim=0), dim=0)
            sum_second += torch.sum(torch.sum(back_second * second, dim=0), dim=0)
            back_first = back_first * weight[:half].to(torch.float32)
            back_second = back_second * weight[half:].to(torch.float32)
            along = 0.5 * torch.mean(back_first * first + back_second * second, dim=-1, keepdim=True)
            grad_x[tile_t, tile_h, :half] = (back_first - first * along) * factor
            grad_x[tile_t, tile_h, half:] = (back_second - second * along) * factor
        partial[0, outer.id, :half] = sum_first
        partial[0, outer.id, half:] = sum_second
    return grad_x, partial


def _run(q: torch.Tensor, k: torch.Tensor, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    groups = k.size(1)
    shared, rest = divmod(q.size(1), groups) if groups else (0, 0)
    if rest or not 0 < shared <= MOST_SHARED:
        return qk_norm_rope_kernel(q, k, *others)
    out_q, out_k = grouped_norm_rope_kernel(split(q, 1, groups, shared), k, *others)
    return out_q.flatten(1, 2), out_k


def _run_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_x, partial = norm_rope_backward_kernel(grad, x, weight, *others)
    return grad_x, block_sums_kernel(partial, weight.dtype).view(-1)


_ANGLES = "Tensor cos, Tensor sin, Tensor? positions, SymInt length, float eps"
_backward = Operator(
    f"norm_rope_backward(Tensor grad, Tensor x, Tensor weight, {_ANGLES}) -> (Tensor, Tensor)",
    norm_rope_backward_kernel,
    block_sums_kernel,
    run=_run_backward,
    fake=lambda grad, x, weight, *others: (x.new_empty(x.shape), weight.new_empty(weight.shape)),
)
_backward.differentiate_once()
_qk_norm_rope = Operator(
    f"qk_norm_rope(Tensor q, Tensor k, Tensor q_weight, Tensor k_weight, {_ANGLES}) -> (Tensor, Tensor)",
    grouped_norm_rope_kernel,
    qk_norm_rope_kernel,
    run=_run,
    fake=lambda q, k, *others: (q.new_empty(q.shape), k.new_empty(k.shape)),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    *tensors, ctx.length, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad_q: torch.Tensor, grad_k: torch.Tensor) -> tuple[Any, ...]:
    q, k, q_weight, k_weight, *angles = ctx.saved_tensors
    of_q, of_q_weight = _backward(grad_q, q, q_weight, *angles, ctx.length, ctx.eps)
    of_k, of_k_weight = _backward(grad_k, k, k_weight, *angles, ctx.length, ctx.eps)
    return of_q, of_k, of_q_weight, of_k_weight, *(None,) * 5


_qk_norm_rope.differentiate(_save, _gradients)


def qk_norm_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None = None,
    *,
    eps: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalize each head of queries and keys as `rms_norm` does, and rotate it as `rope` does, in one kernel.

    There are gradients with respect to `q`, `k` and both weights; none with respect to the angles.

    Args:
        q: `[..., S, H, D]`, S tokens of H heads; float32, bfloat16 or float16.
        k: `[..., S, G, D]`; any of these dtypes.
        q_weight: `[D]`, the weight of each head of `q`; any of these dtypes.
        k_weight: `[D]`, that of `k`.
        cos: `[P, D // 2]`, the cosines of the angles at P positions; any of these dtypes.
        sin: their sines, of the shape of `cos`.
        positions: `[..., S]`, the position of each token, from 0 to P - 1; int64 or int32. None: 0 to S - 1.
        eps: added to the mean of squares.

    Returns:
        Queries and keys, of the shapes and dtypes of `q` and `k`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    op = "qk_norm_rope"
    check_tensor(op, "q", q, least_dims=3)
    length, _, features = q.shape[-3:]
    check(op, "q", features % 2 == 0, "of an even number of features", f"{features} features")
    check_tensor(op, "k", k, dims=q.dim(), like=q)
    check_tensor(op, "k", k, shape=(*q.shape[:-2], k.size(-2), features))
    check_tensor(op, "q_weight", q_weight, shape=(features,), like=q)
    check_tensor(op, "k_weight", k_weight, shape=(features,), like=q)
    check_tensor(op, "cos", cos, dims=2, like=q)
    check_tensor(op, "cos", cos, shape=(cos.size(0), features // 2))
    check_tensor(op, "sin", sin, shape=cos.shape, like=q)
    if positions is None:
        check(op, "cos", cos.size(0) >= length, f"of at least {length} rows, one per token", f"{cos.size(0)} rows")
    else:
        check_tensor(op, "positions", positions, dtypes=INDICES, shape=q.shape[:-2], like=q)
        positions = positions.reshape(-1)
    angles = cos.detach(), sin.detach(), positions, length, eps
    out_q, out_k = _qk_norm_rope(rows(q, kept=2), rows(k, kept=2), q_weight, k_weight, *angles)
    return shaped(out_q, q.shape), shaped(out_k, k.shape)
