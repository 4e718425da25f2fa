"""Means and softmax over segments of rows, and sums of embeddings: rows per segment are known on the device only.

A program takes one segment and some columns, and loops over the segment's rows, between bounds that it loads. Gradients
of rows need no such loop: each row loads the gradient of its segment.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .._operators import INDICES, Operator, check, check_tensor


@helion.kernel(static_shapes=False)
def jagged_mean_kernel(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Compute the mean of the rows `x[offsets[b] : offsets[b + 1]]` of `x[T, N]`; 0 for none."""
    segments, n = offsets.size(0) - 1, x.size(1)
    out = torch.empty([segments, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_n in hl.tile([segments, n], block_size=[1, None]):
        begin, end = offsets[tile_b.begin], offsets[tile_b.begin + 1]
        total = hl.zeros([tile_n], dtype=torch.float32)
        for tile in hl.tile(begin, end):
            total += torch.sum(x[tile, tile_n].to(torch.float32), dim=0)
        out[tile_b.begin, tile_n] = total / torch.clamp((end - begin).to(torch.float32), min=1.0)
    return out


@helion.kernel(static_shapes=False)
def jagged_mean_backward_kernel(grad: torch.Tensor, offsets: torch.Tensor, segment: torch.Tensor) -> torch.Tensor:
    """Compute the gradient of `x[T, N]` from that of the means, `grad[B, N]`; `segment[T]` is that of each row."""
    count, n = segment.size(0), grad.size(1)
    segments = grad.size(0)
    out = torch.empty([count, n], dtype=grad.dtype, device=grad.device)
    for tile, tile_n in hl.tile([count, n]):
        own = segment[tile]
        inside = (own >= 0) & (own < segments)
        own = torch.where(inside, own, 0)
        length = (hl.load(offsets, [own + 1], extra_mask=inside) - offsets[own]).to(torch.float32)
        given = hl.load(grad, [own, tile_n], extra_mask=inside[:, None]).to(torch.float32)
        out[tile, tile_n] = given / torch.clamp(length, min=1.0)[:, None]
    return out


@helion.kernel(static_shapes=False)
def jagged_softmax_kernel(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Compute the softmax over the rows of each segment of `x[T, N]`, for each column; rows of no segment are 0."""
    segments, n = offsets.size(0) - 1, x.size(1)
    out = torch.zeros([x.size(0), n], dtype=x.dtype, device=x.device)
    for tile_b, tile_n in hl.tile([segments, n], block_size=[1, None]):
        begin, end = offsets[tile_b.begin], offsets[tile_b.begin + 1]
        highest = hl.full([tile_n], float("-inf"), dtype=torch.float32)
        for tile in hl.tile(begin, end):
            highest = torch.maximum(highest, torch.amax(x[tile, tile_n].to(torch.float32), dim=0))
        total = hl.zeros([tile_n], dtype=torch.float32)
        for tile in hl.tile(begin, end):
            total += torch.sum(torch.exp(x[tile, tile_n].to(torch.float32) - highest[None, :]), dim=0)
        for tile in hl.tile(begin, end):
            out[tile, tile_n] = torch.exp(x[tile, tile_n].to(torch.float32) - highest[None, :]) / total[None, :]
    return out


@helion.kernel(static_shapes=False)
def jagged_softmax_backward_kernel(grad: torch.Tensor, out: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Compute the gradient of the rows of which `out[T, N]` is the softmax."""
    segments, n = offsets.size(0) - 1, out.size(1)
    grad_x = torch.zeros([out.size(0), n], dtype=out.dtype, device=out.device)
    for tile_b, tile_n in hl.tile([segments, n], block_size=[1, None]):
        begin, end = offsets[tile_b.begin], offsets[tile_b.begin + 1]
        along = hl.zeros([tile_n], dtype=torch.float32)
        for tile in hl.tile(begin, end):
            along += torch.sum(grad[tile, tile_n].to(torch.float32) * out[tile, tile_n].to(torch.float32), dim=0)
        for tile in hl.tile(begin, end):
            given = grad[tile, tile_n].to(torch.float32) - along[None, :]
            grad_x[tile, tile_n] = out[tile, tile_n].to(torch.float32) * given
    return grad_x


@helion.kernel(static_shapes=False)
def embedding_bag_kernel(
    table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, mean: hl.constexpr
) -> torch.Tensor:
    """Add the rows of `table[V, N]` that the indices of each segment name, or average them."""
    segments, n = offsets.size(0) - 1, table.size(1)
    out = torch.empty([segments, n], dtype=table.dtype, device=table.device)
    for tile_b, tile_n in hl.tile([segments, n], block_size=[1, None]):
        begin, end = offsets[tile_b.begin], offsets[tile_b.begin + 1]
        total = hl.zeros([tile_n], dtype=torch.float32)
        for tile in hl.tile(begin, end):
            total += torch.sum(table[indices[tile], tile_n].to(torch.float32), dim=0)
        if mean:
            total = total / torch.clamp((end - begin).to(torch.float32), min=1.0)
        out[tile_b.begin, tile_n] = total
    return out


@helion.kernel(static_shapes=False)
def embedding_bag_backward_kernel(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    segment: torch.Tensor,
    rows: int,
    mean: hl.constexpr,
) -> torch.Tensor:
    """Compute the fp32 gradient of the table `[rows, N]`, by atomics, from that of the bags, `grad[B, N]`."""
    count, n = segment.size(0), grad.size(1)
    segments = grad.size(0)
    out = torch.zeros([rows, n], dtype=torch.float32, device=grad.device)
    for tile, tile_n in hl.tile([count, n]):
        own = segment[tile]
        inside = (own >= 0) & (own < segments)
        own = torch.where(inside, own, 0)
        given = hl.load(grad, [own, tile_n], extra_mask=inside[:, None]).to(torch.float32)
        if mean:
            length = (hl.load(offsets, [own + 1], extra_mask=inside) - offsets[own]).to(torch.float32)
            given = given / torch.clamp(length, min=1.0)[:, None]
        hl.atomic_add(out, [indices[tile], tile_n], given)
    return out


def _segment(offsets: torch.Tensor, count: int) -> torch.Tensor:
    """Return the segment of each of `count` rows: -1 before the first, and the number of segments after the last."""
    at = torch.arange(count, dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets, at, right=True, out_int32=True) - 1


_mean_backward = Operator(
    "jagged_mean_backward(Tensor grad, Tensor offsets, SymInt count) -> Tensor",
    jagged_mean_backward_kernel,
    run=lambda grad, offsets, count: jagged_mean_backward_kernel(grad, offsets, _segment(offsets, count)),
    fake=lambda grad, offsets, count: grad.new_empty(count, grad.size(1)),
)
_softmax_backward = Operator(
    "jagged_softmax_backward(Tensor grad, Tensor out, Tensor offsets) -> Tensor",
    jagged_softmax_backward_kernel,
    fake=lambda grad, out, offsets: out.new_empty(out.shape),
)
_bag_backward = Operator(
    "embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, SymInt count, bool mean) -> Tensor",
    embedding_bag_backward_kernel,
    run=lambda grad, indices, offsets, count, mean: embedding_bag_backward_kernel(
        grad, indices, offsets, _segment(offsets, indices.size(0)), count, mean
    ),
    fake=lambda grad, indices, offsets, count, mean: grad.new_empty(count, grad.size(1), dtype=torch.float32),
)
for _operator in (_mean_backward, _softmax_backward, _bag_backward):
    _operator.differentiate_once()

_mean = Operator(
    "jagged_mean(Tensor x, Tensor offsets) -> Tensor",
    jagged_mean_kernel,
    fake=lambda x, offsets: x.new_empty(offsets.size(0) - 1, x.size(1)),
)
_softmax = Operator(
    "jagged_softmax(Tensor x, Tensor offsets) -> Tensor",
    jagged_softmax_kernel,
    fake=lambda x, offsets: x.new_empty(x.shape),
)
_bag = Operator(
    "embedding_bag(Tensor table, Tensor indices, Tensor offsets, bool mean) -> Tensor",
    embedding_bag_kernel,
    fake=lambda table, indices, offsets, mean: table.new_empty(offsets.size(0) - 1, table.size(1)),
)


def _save_mean(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.count = inputs[0].size(0)
    ctx.save_for_backward(inputs[1])


def _save_softmax(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(output, inputs[1])


def _save_bag(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    table, indices, offsets, ctx.mean = inputs
    ctx.count, ctx.dtype = table.size(0), table.dtype
    ctx.save_for_backward(indices, offsets)


_mean.differentiate(_save_mean, lambda ctx, grad: (_mean_backward(grad, *ctx.saved_tensors, ctx.count), None))
_softmax.differentiate(_save_softmax, lambda ctx, grad: (_softmax_backward(grad, *ctx.saved_tensors), None))
_bag.differentiate(
    _save_bag,
    lambda ctx, grad: (
        _bag_backward(grad, *ctx.saved_tensors, ctx.count, ctx.mean).to(ctx.dtype),
        None,
        None,
        None,
    ),
)


def jagged_mean(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Compute the mean of the rows of each segment.

    Args:
        x: `[T, N]`; float32, bfloat16 or float16.
        offsets: `[B + 1]`; int32 or int64. Segment b has the rows from `offsets[b]` to `offsets[b + 1] - 1`; offsets do
            not decrease, and are from 0 to T.

    Returns:
        `[B, N]` in the dtype of `x`; the mean of no rows is 0.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    _check_segments("jagged_mean", x, offsets)
    out: torch.Tensor = _mean(x, offsets)
    return out


def jagged_softmax(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Compute the softmax over the rows of each segment, for each column.

    Args:
        x: `[T, N]`; float32, bfloat16 or float16.
        offsets: `[B + 1]`; int32 or int64. Segment b has the rows from `offsets[b]` to `offsets[b + 1] - 1`; offsets do
            not decrease, and are from 0 to T.

    Returns:
        A tensor of the shape and dtype of `x`; rows of no segment are 0.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    _check_segments("jagged_softmax", x, offsets)
    out: torch.Tensor = _softmax(x, offsets)
    return out


def embedding_bag(
    table: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, *, mode: str = "sum"
) -> torch.Tensor:
    """Add or average rows of a table, as ``torch.nn.functional.embedding_bag`` does with ``include_last_offset=True``.

    The gradient of the table is dense, and added by atomics in fp32, in no fixed order.

    Args:
        table: `[V, N]`; float32, bfloat16 or float16.
        indices: `[T]`, rows of the table, from 0 to V - 1; int32 or int64.
        offsets: `[B + 1]`; int32 or int64. Bag b has the indices from `offsets[b]` to `offsets[b + 1] - 1`.
        mode: `"sum"` or `"mean"`.

    Returns:
        `[B, N]` in the dtype of `table`; an empty bag is 0.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    op = "embedding_bag"
    check_tensor(op, "table", table, dims=2, least_dims=1)
    check_tensor(op, "indices", indices, dtypes=INDICES, dims=1, like=table)
    check_tensor(op, "offsets", offsets, dtypes=INDICES, dims=1, least_dims=1, like=table)
    check(op, "mode", mode in ("sum", "mean"), "'sum' or 'mean'", repr(mode))
    out: torch.Tensor = _bag(table, indices, offsets, mode == "mean")
    return out


def _check_segments(op: str, x: torch.Tensor, offsets: torch.Tensor) -> None:
    check_tensor(op, "x", x, dims=2, least_dims=1)
    check_tensor(op, "offsets", offsets, dtypes=INDICES, dims=1, least_dims=1, like=x)
