"""Mixture of experts: the choice of experts for each token, and the matmuls of tokens with their experts.

Tokens are sorted by expert, so that those of an expert are consecutive rows. The number of rows per expert is known on
the device only: kernels load the bounds of their loops. They are specialized for the number of experts, with which the rows
of one are known on average. Both matmuls take most of the time where experts are few (measurement ``moe_products``).
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .._operators import FLOATS, INDICES, Operator, check, check_tensor, rows, shaped
from .gated import swiglu


@helion.kernel(static_shapes=False)
def route_kernel(
    logits: torch.Tensor, count: hl.constexpr, renormalize: hl.constexpr
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the `count` largest probabilities of each row of `logits[M, E]`, and their experts, largest first."""
    m = logits.size(0)
    experts = hl.specialize(logits.size(1))
    weights = torch.empty([m, count], dtype=torch.float32, device=logits.device)
    indices = torch.empty([m, count], dtype=torch.int32, device=logits.device)
    for tile in hl.tile(m):
        row = torch.softmax(logits[tile, :experts].to(torch.float32), dim=-1)
        chosen, expert = torch.topk(row, count, dim=-1)
        if renormalize:
            chosen = chosen / torch.sum(chosen, dim=-1, keepdim=True)
        weights[tile, :] = chosen
        indices[tile, :] = expert.to(torch.int32)
    return weights, indices


@helion.kernel(static_shapes=False)
def route_backward_kernel(
    grad: torch.Tensor,
    logits: torch.Tensor,
    weights: torch.Tensor,
    indices: torch.Tensor,
    count: hl.constexpr,
    renormalize: hl.constexpr,
) -> torch.Tensor:
    """Compute the gradient of `logits[M, E]` from that of the weights, `grad[M, count]`."""
    m = logits.size(0)
    experts = hl.specialize(logits.size(1))
    out = torch.empty([m, experts], dtype=logits.dtype, device=logits.device)
    for tile in hl.tile(m):
        along = hl.zeros([tile], dtype=torch.float32)
        given = hl.zeros([tile, experts], dtype=torch.float32)
        chosen = hl.zeros([tile, experts], dtype=torch.float32)
        for at in hl.static_range(count):
            own = hl.arange(experts)[None, :] == indices[tile, at][:, None]
            along = along + grad[tile, at] * weights[tile, at]
            given = given + torch.where(own, grad[tile, at][:, None], 0.0)
            chosen = chosen + torch.where(own, weights[tile, at][:, None], 0.0)
        p = chosen if renormalize else torch.softmax(logits[tile, :].to(torch.float32), dim=-1)
        out[tile, :] = p * (given - along[:, None])
    return out


@helion.kernel(static_shapes=False)
def grouped_matmul_kernel(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Compute `x[offsets[g] : offsets[g + 1]] @ weight[g]` of `x[T, K]` and `weight[G, K, N]`, and no other row."""
    groups, k, n = hl.specialize(weight.size(0)), hl.specialize(weight.size(1)), hl.specialize(weight.size(2))
    out = torch.empty([x.size(0), n], dtype=x.dtype, device=x.device)
    for tile_g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        group = tile_g.begin
        for tile_m in hl.tile(offsets[group], offsets[group + 1]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], weight[group, tile_k, tile_n], acc=acc)
            out[tile_m, tile_n] = acc
    return out


@helion.kernel(static_shapes=False)
def clear_rest_kernel(out: torch.Tensor, offsets: torch.Tensor) -> None:
    """Set the rows of `out[T, N]` before the first group and after the last one to 0."""
    (t, n), groups = out.size(), offsets.size(0) - 1
    for tile_t in hl.tile(t, block_size=64):
        first, after = offsets[0], offsets[groups]
        if (tile_t.begin < first) | (tile_t.end > after):
            outside = (tile_t.index < first) | (tile_t.index >= after)
            for tile_n in hl.tile(n, block_size=128):
                zeros = hl.zeros([tile_t, tile_n], dtype=out.dtype)
                hl.store(out, [tile_t, tile_n], zeros, extra_mask=outside[:, None])


@helion.kernel(static_shapes=False)
def gated_experts_kernel(x: torch.Tensor, gate_up: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Compute `silu(rows @ gate) * (rows @ up)` of the rows of each group, with `gate_up[G, K, 2 * N]` side by side."""
    groups, k, n = hl.specialize(gate_up.size(0)), hl.specialize(gate_up.size(1)), hl.specialize(gate_up.size(2)) // 2
    out = torch.empty([x.size(0), n], dtype=x.dtype, device=x.device)
    for tile_g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        group = tile_g.begin
        for tile_m in hl.tile(offsets[group], offsets[group + 1]):
            gate = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            up = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                rows_of_tile = x[tile_m, tile_k]
                gate = hl.dot(rows_of_tile, gate_up[group, tile_k, tile_n], acc=gate)
                up = hl.dot(rows_of_tile, gate_up[group, tile_k, tile_n.index + n], acc=up)
            out[tile_m, tile_n] = gate * torch.sigmoid(gate) * up
    return out


@helion.kernel(static_shapes=False)
def order_by_expert_kernel(
    indices: torch.Tensor, experts: hl.constexpr
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sort `indices[S]`, numbers from 0 to `experts - 1`, in the order of their positions where they are equal.

    Returns the position of each sorted number, its inverse, and the first place of each expert with the end of the last
    one. A program places the numbers of one expert: it counts those of the experts before.
    """
    slots = indices.size(0)
    order = torch.empty([slots], dtype=torch.int32, device=indices.device)
    places = torch.empty([slots], dtype=torch.int32, device=indices.device)
    offsets = torch.empty([experts + 1], dtype=torch.int32, device=indices.device)
    for expert in hl.grid(experts):
        place = hl.zeros([], dtype=torch.int32)
        for tile in hl.tile(slots):
            place = place + torch.sum((indices[tile] < expert).to(torch.int32), dtype=torch.int32)
        offsets[expert] = place
        if expert == experts - 1:
            offsets[experts] = slots
        for tile in hl.tile(slots):
            own = (indices[tile] == expert).to(torch.int32)
            at = place + hl.cumsum(own, dim=0) - 1
            hl.store(order, [at], tile.index.to(torch.int32), extra_mask=own > 0)
            hl.store(places, [tile], at, extra_mask=own > 0)
            place = place + torch.sum(own, dtype=torch.int32)
    return order, places, offsets


@helion.kernel(static_shapes=False)
def gather_tokens_kernel(x: torch.Tensor, order: torch.Tensor, count: hl.constexpr) -> torch.Tensor:
    """Return row `order[i] // count` of `x[T, K]` for each `i`."""
    slots, k = order.size(0), x.size(1)
    out = torch.empty([slots, k], dtype=x.dtype, device=x.device)
    for tile in hl.tile(slots):
        token = order[tile] // count
        for tile_k in hl.tile(k):
            out[tile, tile_k] = x[token, tile_k]
    return out


@helion.kernel(static_shapes=False)
def combine_kernel(found: torch.Tensor, places: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the sums of the rows `found[places[t, j]]` of each token `t`, times `weights[t, j]`."""
    tokens, k = weights.size(0), found.size(1)
    count = hl.specialize(weights.size(1))
    out = torch.empty([tokens, k], dtype=found.dtype, device=found.device)
    for tile_t, tile_k in hl.tile([tokens, k]):
        total = hl.zeros([tile_t, tile_k], dtype=torch.float32)
        for at in hl.static_range(count):
            rows_of_tile = found[places[tile_t, at], tile_k].to(torch.float32)
            total = total + rows_of_tile * weights[tile_t, at].to(torch.float32)[:, None]
        out[tile_t, tile_k] = total
    return out


@helion.kernel(static_shapes=False)
def grouped_matmul_backward_kernel(
    grad: torch.Tensor, x: torch.Tensor, offsets: torch.Tensor, dtype: hl.constexpr
) -> torch.Tensor:
    """Compute the gradient of `weight[G, K, N]` from that of the result, `grad[T, N]`."""
    groups = hl.specialize(offsets.size(0)) - 1
    k, n = hl.specialize(x.size(1)), hl.specialize(grad.size(1))
    out = torch.empty([groups, k, n], dtype=dtype, device=x.device)
    for tile_g, tile_k, tile_n in hl.tile([groups, k, n], block_size=[1, None, None]):
        group = tile_g.begin
        acc = hl.zeros([tile_k, tile_n], dtype=torch.float32)
        for tile_m in hl.tile(offsets[group], offsets[group + 1]):
            acc = hl.dot(x[tile_m, tile_k].T, grad[tile_m, tile_n], acc=acc)
        out[group, tile_k, tile_n] = acc
    return out


_route_backward = Operator(
    "route_backward(Tensor grad, Tensor logits, Tensor weights, Tensor indices, int count, bool renormalize) -> Tensor",
    route_backward_kernel,
    fake=lambda grad, logits, *others: logits.new_empty(logits.shape),
)
_route_backward.differentiate_once()
_route = Operator(
    "route(Tensor logits, int count, bool renormalize) -> (Tensor, Tensor)",
    route_kernel,
    fake=lambda logits, count, renormalize: (
        logits.new_empty(logits.size(0), count, dtype=torch.float32),
        logits.new_empty(logits.size(0), count, dtype=torch.int32),
    ),
)


def _save_route(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    logits, ctx.count, ctx.renormalize = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(logits, *output)


def _gradients_of_route(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
    return _route_backward(grad, *ctx.saved_tensors, ctx.count, ctx.renormalize), None, None


_route.differentiate(_save_route, _gradients_of_route)

_grouped_backward = Operator(
    "grouped_matmul_weight_backward(Tensor grad, Tensor x, Tensor offsets, ScalarType dtype) -> Tensor",
    grouped_matmul_backward_kernel,
    fake=lambda grad, x, offsets, dtype: x.new_empty(offsets.size(0) - 1, x.size(1), grad.size(1), dtype=dtype),
)
_grouped_backward.differentiate_once()


def _grouped_rows(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = grouped_matmul_kernel(x, weight, offsets)
    clear_rest_kernel(out, offsets)
    return out


_grouped = Operator(
    "grouped_matmul(Tensor x, Tensor weight, Tensor offsets) -> Tensor",
    grouped_matmul_kernel,
    clear_rest_kernel,
    run=_grouped_rows,
    fake=lambda x, weight, offsets: x.new_empty(x.size(0), weight.size(2)),
)


def _save_grouped(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients_of_grouped(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    x, weight, offsets = ctx.saved_tensors
    of_x = _grouped(grad, weight.transpose(1, 2), offsets) if ctx.needs_input_grad[0] else None
    of_weight = _grouped_backward(grad, x, offsets, weight.dtype) if ctx.needs_input_grad[1] else None
    return of_x, of_weight, None


_grouped.differentiate(_save_grouped, _gradients_of_grouped)


_order_by_expert = Operator(
    "order_by_expert(Tensor indices, int experts) -> (Tensor, Tensor, Tensor)",
    order_by_expert_kernel,
    fake=lambda indices, experts: (
        *(indices.new_empty(indices.shape, dtype=torch.int32) for _ in range(2)),
        indices.new_empty(experts + 1, dtype=torch.int32),
    ),
)


def _layers(
    x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Compute `moe` of rows: a gather, the two matmuls with `swiglu` in the first one's epilogue, and a weighted sum."""
    order, places, offsets = order_by_expert_kernel(indices.reshape(-1), gate_up.size(0))
    gathered = gather_tokens_kernel(x, order, weights.size(1))
    found = grouped_matmul_kernel(gated_experts_kernel(gathered, gate_up, offsets), down, offsets)
    out: torch.Tensor = combine_kernel(found, places.view(weights.shape), weights)
    return out


_moe = Operator(
    "moe(Tensor x, Tensor weights, Tensor indices, Tensor gate_up, Tensor down) -> Tensor",
    order_by_expert_kernel,
    gather_tokens_kernel,
    gated_experts_kernel,
    grouped_matmul_kernel,
    combine_kernel,
    run=_layers,
    fake=lambda x, *others: x.new_empty(x.shape),
)


def _differentiable_layers(
    x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Compute `_layers` from operators that have gradients, with the matmul before `swiglu` in memory."""
    order, _, offsets = _order_by_expert(indices.reshape(-1), gate_up.size(0))
    token = order // weights.size(1)
    gate, up = grouped_matmul(x[token], gate_up, offsets).chunk(2, dim=-1)
    found = grouped_matmul(swiglu(gate, up), down, offsets).float() * weights.reshape(-1)[order, None]
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device).index_add(0, token, found)
    return total.to(x.dtype)


def route(logits: torch.Tensor, count: int, *, renormalize: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose the experts with the largest probabilities of each token.

    Args:
        logits: `[..., E]`; float32, bfloat16 or float16.
        count: number of experts per token, from 1 to E.
        renormalize: divide the weights of a token by their sum.

    Returns:
        fp32 weights and int32 experts, both `[..., count]`, largest weight first. The weights have a gradient.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or value.
    """
    check_tensor("route", "logits", logits, least_dims=1)
    check("route", "count", 0 < count <= logits.size(-1), f"from 1 to {logits.size(-1)}", count)
    weights, indices = _route(rows(logits), count, renormalize)
    shape = (*logits.shape[:-1], count)
    return weights.view(shape), indices.view(shape)


def grouped_matmul(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Multiply consecutive groups of rows, each with a matrix of its own.

    fp32 tensors are multiplied in TF32 on a GPU.

    Args:
        x: `[T, K]`; float32, bfloat16 or float16.
        weight: `[G, K, N]` of the same dtype, of any strides.
        offsets: `[G + 1]`; int32 or int64. Group g has the rows from `offsets[g]` to `offsets[g + 1] - 1`; offsets do
            not decrease, and are from 0 to T.

    Returns:
        `[T, N]` in the dtype of `x`; rows of no group are 0.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    op = "grouped_matmul"
    check_tensor(op, "x", x, dims=2)
    check_tensor(op, "weight", weight, dtypes=(x.dtype,), dims=3, like=x)
    check_tensor(op, "weight", weight, dtypes=(x.dtype,), shape=(weight.size(0), x.size(1), weight.size(2)))
    check_tensor(op, "offsets", offsets, dtypes=INDICES, shape=(weight.size(0) + 1,), like=x)
    out: torch.Tensor = _grouped(x, weight, offsets)
    return out


def moe(
    x: torch.Tensor, weights: torch.Tensor, indices: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Apply to each token the feed-forward layers of its experts, and add their results by weight.

    A layer is `swiglu` between two matmuls. Tokens are sorted by expert without a synchronization of the host.

    Args:
        x: `[..., K]`; float32, bfloat16 or float16.
        weights: `[..., count]`, as from `route`; any of these dtypes.
        indices: `[..., count]`, the experts, from 0 to E - 1; int32 or int64.
        gate_up: `[E, K, 2 * N]` in the dtype of `x`, the gate in the first half.
        down: `[E, N, K]` in the dtype of `x`.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape or device.
    """
    op = "moe"
    check_tensor(op, "x", x, dtypes=FLOATS, least_dims=1)
    check_tensor(op, "weights", weights, least_dims=1, like=x)
    check_tensor(op, "weights", weights, shape=(*x.shape[:-1], weights.size(-1)))
    check_tensor(op, "indices", indices, dtypes=INDICES, shape=weights.shape, like=x)
    check_tensor(op, "down", down, dtypes=(x.dtype,), dims=3, like=x)
    experts, width = down.shape[:2]
    check_tensor(op, "down", down, dtypes=(x.dtype,), shape=(experts, width, x.size(-1)))
    check_tensor(op, "gate_up", gate_up, dtypes=(x.dtype,), shape=(experts, x.size(-1), 2 * width), like=x)
    given = rows(x), rows(weights), rows(indices), gate_up, down
    differentiates = torch.is_grad_enabled() and any(each.requires_grad for each in given)
    out: torch.Tensor = (_differentiable_layers if differentiates else _moe)(*given)
    return shaped(out, x.shape)
