"""Rotary position embedding, alone or after the norm of each head.

Pairs of features are rotated by an angle that grows with the token's position. A pair is a feature of the first half
and one of the second, or with `interleaved` two neighbors. The gradient is the rotation by the negative angle.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .._operators import INDICES, Operator, check, check_tensor, rows, shaped


@helion.kernel(static_shapes=False)
def rope_kernel(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    length: int,
    sign: float,
    interleaved: hl.constexpr,
) -> torch.Tensor:
    """Rotate `x[T, H, D]` by the angles of `cos[P, D // 2]` and `sign * sin[P, D // 2]`.

    Token t is at `positions[t]`, or at `t % length` without them.
    """
    tokens, heads = x.size(0), x.size(1)
    half = hl.specialize(cos.size(1))
    out = torch.empty([tokens, heads, 2 * half], dtype=x.dtype, device=x.device)
    pairs = x.view(tokens, heads, half, 2)
    out_pairs = out.view(tokens, heads, half, 2)
    for tile_t, tile_h in hl.tile([tokens, heads]):
        at = positions[tile_t] if positions is not None else tile_t.index % length
        cosine = cos[at, :].to(torch.float32)[:, None, :]
        sine = sin[at, :].to(torch.float32)[:, None, :] * sign
        if interleaved:
            first, second = hl.split(pairs[tile_t, tile_h, :, :].to(torch.float32))
            turned = hl.join(first * cosine - second * sine, second * cosine + first * sine)
            out_pairs[tile_t, tile_h, :, :] = turned
        else:
            first = x[tile_t, tile_h, :half].to(torch.float32)
            second = x[tile_t, tile_h, half:].to(torch.float32)
            out[tile_t, tile_h, :half] = first * cosine - second * sine
            out[tile_t, tile_h, half:] = second * cosine + first * sine
    return out


_rope = Operator(
    "rope(Tensor x, Tensor cos, Tensor sin, Tensor? positions, SymInt length, float sign, bool interleaved) -> Tensor",
    rope_kernel,
    fake=lambda x, *others: x.new_empty(x.shape),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, cos, sin, positions, ctx.length, ctx.sign, ctx.interleaved = inputs
    ctx.save_for_backward(cos, sin, positions)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    grad_x = _rope(grad, *ctx.saved_tensors, ctx.length, -ctx.sign, ctx.interleaved)
    return (grad_x, *(None,) * 6)


_rope.differentiate(_save, _gradients)


def rope(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None = None,
    *,
    interleaved: bool = False,
) -> torch.Tensor:
    """Rotate pairs of features by angles that depend on the position, in fp32.

    There is a gradient with respect to `x`, also of higher order; none with respect to the angles.

    Args:
        x: `[..., S, H, D]`, S tokens of H heads; float32, bfloat16 or float16.
        cos: `[P, D // 2]`, the cosines of the angles at P positions; any of these dtypes.
        sin: their sines, of the shape of `cos`.
        positions: `[..., S]`, the position of each token, from 0 to P - 1; int64 or int32. None: 0 to S - 1.
        interleaved: a pair is two neighbors, not one feature of each half.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    op = "rope"
    check_tensor(op, "x", x, least_dims=3)
    length, _, features = x.shape[-3:]
    check(op, "x", features % 2 == 0, "of an even number of features", f"{features} features")
    check_tensor(op, "cos", cos, least_dims=2, like=x)
    check_tensor(op, "cos", cos, shape=(cos.size(0), features // 2))
    check_tensor(op, "sin", sin, shape=cos.shape, like=x)
    if positions is None:
        check(op, "cos", cos.size(0) >= length, f"of at least {length} rows, one per token", f"{cos.size(0)} rows")
    else:
        check_tensor(op, "positions", positions, dtypes=INDICES, shape=x.shape[:-2], like=x)
        positions = positions.reshape(-1)
    if cos.requires_grad or sin.requires_grad:
        cos, sin = cos.detach(), sin.detach()
    out: torch.Tensor = _rope(rows(x, kept=2), cos, sin, positions, length, 1.0, interleaved)
    return shaped(out, x.shape)
