"""Bias, dropout and residual in one kernel, as after the projections of a transformer layer.

The mask is never stored: the backward pass generates the same random numbers again from the seed. The seed is a tensor
on the device, so that CUDA graphs replay with fresh numbers.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .._block_sums import block_sums_kernel
from .._operators import Operator, check, check_tensor, rows, shaped, split

#: Random numbers from one counter: one for each quarter of a row.
NUMBERS = 4
#: Rows of a tile of the backward pass, which adds up the gradient of the bias over them.
ROWS = 32
#: Columns of a tile of the backward pass: less for a single tile of rows, so that there are programs for all SMs.
COLUMNS, COLUMNS_OF_FEW = 64, 16


@helion.kernel(static_shapes=False)
def dropout_kernel(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    seed: torch.Tensor,
    p: float,
    drops: hl.constexpr,
) -> torch.Tensor:
    """Compute `dropout(x[M, S, N] + bias[S, N]) + residual[M, S, N]`, where elements are dropped with probability `p`."""
    m, n = x.size(0), x.size(2)
    pieces = hl.specialize(x.size(1))
    out = torch.empty([m, pieces, n], dtype=residual.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        # Triton moves no load past a store, so the loads of all pieces come first.
        values = [x[tile_m, piece, tile_n].to(torch.float32) for piece in range(pieces)]
        added = [residual[tile_m, piece, tile_n].to(torch.float32) for piece in range(pieces)]
        if bias is not None:
            values = [values[piece] + bias[piece, tile_n].to(torch.float32)[None, :] for piece in range(pieces)]
        numbers = hl.rand4x(seed[0], tile_m.index[:, None] * n + tile_n.index[None, :])
        for piece in hl.static_range(pieces):
            kept = torch.where(numbers[piece] >= p, values[piece] / (1 - p), 0.0) if drops else values[piece]
            out[tile_m, piece, tile_n] = kept + added[piece]
    return out


@helion.kernel(static_shapes=False)
def dropout_backward_kernel(
    grad: torch.Tensor,
    seed: torch.Tensor,
    p: float,
    drops: hl.constexpr,
    dtype: hl.constexpr,
    sums: hl.constexpr,
    columns: hl.constexpr,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute the gradient of `x + bias` from that of the result, `grad[M, S, N]`.

    Also compute its sums over blocks of rows, in the dtype `sums`, unless that is None.
    """
    m, n = grad.size(0), grad.size(2)
    pieces = hl.specialize(grad.size(1))
    out = torch.empty([m, pieces, n], dtype=dtype, device=grad.device)
    partial = torch.empty([1, helion.cdiv(m, ROWS), pieces, n], dtype=sums, device=grad.device) if sums else None
    for tile_m, tile_n in hl.tile([m, n], block_size=[ROWS, columns]):
        given = [grad[tile_m, piece, tile_n].to(torch.float32) for piece in range(pieces)]
        numbers = hl.rand4x(seed[0], tile_m.index[:, None] * n + tile_n.index[None, :])
        for piece in hl.static_range(pieces):
            kept = torch.where(numbers[piece] >= p, given[piece] / (1 - p), 0.0) if drops else given[piece]
            out[tile_m, piece, tile_n] = kept
            if partial is not None:
                partial[0, tile_m.id, piece, tile_n] = torch.sum(kept, dim=0)
    return out, partial


def _pieces(columns: int) -> int:
    """Return the number of pieces of a row of which one element each takes its random number from the same counter."""
    return NUMBERS if columns % NUMBERS == 0 else 1


def _run(
    x: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor, seed: torch.Tensor, p: float
) -> torch.Tensor:
    pieces = _pieces(x.size(1))
    sizes = pieces, x.size(1) // pieces
    bias = None if bias is None else bias.view(sizes)
    return dropout_kernel(split(x, 1, *sizes), bias, split(residual, 1, *sizes), seed, p, p > 0).flatten(1)


def _run_backward(
    grad: torch.Tensor, seed: torch.Tensor, p: float, dtype: torch.dtype, bias_dtype: torch.dtype | None
) -> tuple[torch.Tensor, torch.Tensor]:
    pieces = _pieces(grad.size(1))
    grad = split(grad, 1, pieces, grad.size(1) // pieces)
    is_single = 0 < grad.size(0) <= ROWS
    columns, sums = (COLUMNS_OF_FEW, bias_dtype) if is_single else (COLUMNS, bias_dtype and torch.float32)
    out, partial = dropout_backward_kernel(grad, seed, p, p > 0, dtype, sums, columns)
    if partial is None:
        return out.flatten(1), grad.new_empty(0)
    if is_single:
        return out.flatten(1), partial.view(-1)
    return out.flatten(1), block_sums_kernel(partial.flatten(2), bias_dtype).view(-1)


_backward = Operator(
    "dropout_backward(Tensor grad, Tensor seed, float p, ScalarType dtype, ScalarType? bias_dtype) -> (Tensor, Tensor)",
    dropout_backward_kernel,
    block_sums_kernel,
    run=_run_backward,
    fake=lambda grad, seed, p, dtype, bias_dtype: (
        grad.new_empty(grad.shape, dtype=dtype),
        grad.new_empty(0 if bias_dtype is None else grad.size(1), dtype=bias_dtype),
    ),
)
_backward.differentiate_once()
_dropout = Operator(
    "bias_dropout_residual(Tensor x, Tensor? bias, Tensor residual, Tensor seed, float p) -> Tensor",
    dropout_kernel,
    run=_run,
    fake=lambda x, bias, residual, seed, p: residual.new_empty(residual.shape),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, bias, residual, seed, ctx.p = inputs
    ctx.dtype, ctx.bias_dtype, ctx.residual_dtype = x.dtype, None if bias is None else bias.dtype, residual.dtype
    ctx.save_for_backward(seed)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    grad_x, grad_bias = _backward(grad, *ctx.saved_tensors, ctx.p, ctx.dtype, ctx.bias_dtype)
    return grad_x, None if ctx.bias_dtype is None else grad_bias, grad.to(ctx.residual_dtype), None, None


_dropout.differentiate(_save, _gradients)


def bias_dropout_residual(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor,
    *,
    p: float,
    training: bool = True,
) -> torch.Tensor:
    """Add a bias to `x`, drop elements, scale the others by `1 / (1 - p)` and add a residual, in fp32.

    The seed is drawn from torch's generator of the device, so `torch.manual_seed` makes a run repeatable.

    Args:
        x: `[..., N]`; float32, bfloat16 or float16.
        bias: `[N]`, or None; any of these dtypes.
        residual: a tensor of the shape of `x`, of any of these dtypes.
        p: probability of an element to be dropped, from 0 to less than 1.
        training: False drops nothing.

    Returns:
        A tensor of the shape of `x` and the dtype of `residual`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    op = "bias_dropout_residual"
    check_tensor(op, "x", x, least_dims=1)
    if bias is not None:
        check_tensor(op, "bias", bias, shape=x.shape[-1:], like=x)
    check_tensor(op, "residual", residual, shape=x.shape, like=x)
    check(op, "p", 0 <= p < 1, "from 0 to less than 1", p)
    seed = torch.randint(2**62, [1], device=x.device)
    out: torch.Tensor = _dropout(rows(x), bias, rows(residual), seed, float(p) if training else 0.0)
    return shaped(out, x.shape)
