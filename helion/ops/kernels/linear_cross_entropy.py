"""Cross-entropy of the logits of a linear layer, which are never stored as a whole.

Without gradients a program multiplies a tile of tokens by a tile of classes. It keeps the maximum and the sum of
exponentials of each row, and a second kernel combines these per row.

With gradients, the logits of some tokens are computed at a time. A kernel replaces them by the probabilities, from
which two products make the gradients of both operands. A loss of all rows does this in the forward pass, and its
backward pass only scales. A loss per row computes its logits again in the backward pass, since the gradient of the
weight cannot be scaled per row. So does float16, in which unscaled gradients underflow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

import helion
import helion.language as hl

from .._operators import INDICES, Operator, check, check_tensor, rows
from .cross_entropy import reduced_loss, reduced_loss_kernel

#: Gradients take the rows in at most this many parts, of at least LOGITS_AT_ONCE logits each. The gradient of the
#: weight is rounded to its dtype once for each part.
PARTS = 8
LOGITS_AT_ONCE = 1 << 27
#: Parts have a multiple of this many rows, and rows of logits begin at a multiple of this many elements.
ALIGNMENT = 64
#: Bytes of `x` that a forward pass without gradients multiplies at once. They stay in the L2 cache of a large GPU while
#: all of the weight is read.
CACHED_BYTES = 1 << 25


@helion.kernel(static_shapes=False)
def linear_normalizer_kernel(
    x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute partial maxima and sums of exponentials of `x[M, K] @ weight[N, K].T`, and the logits of the labels.

    The partial results have the shape `[blocks, M]`. A label that is no class keeps NaN.
    """
    m = x.size(0)
    n, k = hl.specialize(weight.size())
    block = hl.register_block_size(n)
    blocks = helion.cdiv(n, block)
    highest = torch.empty([blocks, m], dtype=torch.float32, device=x.device)
    total = torch.empty([blocks, m], dtype=torch.float32, device=x.device)
    picked = torch.full([m], float("nan"), dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[None, block]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], weight[tile_n, tile_k].T, acc=acc)
        largest = torch.amax(acc, dim=-1)
        highest[tile_n.id, tile_m] = largest
        total[tile_n.id, tile_m] = torch.sum(torch.exp(acc - largest[:, None]), dim=-1)
        label = labels[tile_m]
        own = torch.sum(torch.where(tile_n.index[None, :] == label[:, None], acc, 0.0), dim=-1)
        hl.store(picked, [tile_m], own, extra_mask=(label >= tile_n.begin) & (label < tile_n.end))
    return highest, total, picked


@helion.kernel(static_shapes=False)
def combined_loss_kernel(
    highest: torch.Tensor, total: torch.Tensor, picked: torch.Tensor, labels: torch.Tensor, ignore_index: int
) -> torch.Tensor:
    """Combine `highest[blocks, M]` and `total[blocks, M]`; return the losses of the rows, 0 at `ignore_index`."""
    blocks, m = highest.size()
    losses = torch.empty([m], dtype=torch.float32, device=highest.device)
    for tile_m in hl.tile(m):
        largest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        for tile_b in hl.tile(blocks):
            largest = torch.maximum(largest, torch.amax(highest[tile_b, tile_m], dim=0))
        normalizer = hl.zeros([tile_m], dtype=torch.float32)
        for tile_b in hl.tile(blocks):
            scales = torch.exp(highest[tile_b, tile_m] - largest[None, :])
            normalizer += torch.sum(total[tile_b, tile_m] * scales, dim=0)
        loss = largest + torch.log(normalizer) - picked[tile_m]
        losses[tile_m] = torch.where(labels[tile_m] == ignore_index, 0.0, loss)
    return losses


@helion.kernel(static_shapes=False)
def logits_kernel(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """Store `x[M, K] @ weight[N, K].T` in `out[M, N]`."""
    m = x.size(0)
    n, k = hl.specialize(weight.size())
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], weight[tile_n, tile_k].T, acc=acc)
        out[tile_m, tile_n] = acc


@helion.kernel(static_shapes=False)
def probability_kernel(logits: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Replace the rows of `logits[M, N]` by `scales[M]` times their softmax; return the logsumexp of each."""
    m = logits.size(0)
    n = hl.specialize(logits.size(1))
    normalizers = torch.empty([m], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(m):
        row = logits[tile, :n].to(torch.float32)
        highest = torch.amax(row, dim=-1)
        exponentials = torch.exp(row - highest[:, None])
        total = torch.sum(exponentials, dim=-1)
        normalizers[tile] = highest + torch.log(total)
        factor = scales[tile] / total
        logits[tile, :n] = exponentials * factor[:, None]
    return normalizers


@helion.kernel(static_shapes=False)
def label_gradient_kernel(grad: torch.Tensor, labels: torch.Tensor, scales: torch.Tensor) -> None:
    """Subtract `scales[M]` from the elements of `grad[M, N]` at the labels that are classes."""
    m, n = grad.size()
    for tile in hl.tile(m):
        label = labels[tile][:, None]
        is_class = (label >= 0) & (label < n)
        own = hl.load(grad, [tile.index[:, None], label], extra_mask=is_class).to(torch.float32)
        hl.store(grad, [tile.index[:, None], label], own - scales[tile][:, None], extra_mask=is_class)


@helion.kernel(static_shapes=False)
def weight_gradient_kernel(grad: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    """Add `grad[M, N].T @ x[M, K]` to `out[N, K]`."""
    m = x.size(0)
    n, k = hl.specialize(out.size())
    for tile_n, tile_k in hl.tile([n, k]):
        acc = hl.zeros([tile_n, tile_k], dtype=torch.float32)
        for tile_m in hl.tile(m):
            acc = hl.dot(grad[tile_m, tile_n].T, x[tile_m, tile_k], acc=acc)
        out[tile_n, tile_k] = acc + out[tile_n, tile_k]


@helion.kernel(static_shapes=False)
def scale_kernel(values: torch.Tensor, factor: torch.Tensor) -> None:
    """Multiply `values[M, N]` by `factor[1]` in place. A factor of 1 reads and writes nothing."""
    m, n = values.size()
    for tile_m in hl.tile(m, block_size=32):
        by = factor[0]
        if by != 1.0:
            for tile_n in hl.tile(n):
                values[tile_m, tile_n] = values[tile_m, tile_n].to(torch.float32) * by


def _run(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, ignore_index: int) -> torch.Tensor:
    losses = x.new_empty(x.size(0), dtype=torch.float32)
    step = ALIGNMENT * max(CACHED_BYTES // (x.size(1) * x.element_size() * ALIGNMENT), 1)
    for begin in range(0, x.size(0), step):
        part = slice(begin, begin + step)
        partial = linear_normalizer_kernel(x[part], weight, labels[part])
        losses[part] = combined_loss_kernel(*partial, labels[part], ignore_index)
    return losses


def _logits_in_parts(x: torch.Tensor, weight: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield parts of the rows and their logits, in memory that all parts share."""
    m, n = x.size(0), weight.size(0)
    least = helion.cdiv(m, PARTS * ALIGNMENT)
    step = ALIGNMENT * max(least, LOGITS_AT_ONCE // (n * ALIGNMENT))
    buffer = x.new_empty(min(step, m), ALIGNMENT * helion.cdiv(n, ALIGNMENT))
    buffer[:, n:] = 0  # some products on CPUs multiply elements between rows by 0
    for begin in range(0, m, step):
        part = slice(begin, min(begin + step, m))
        logits = buffer[: part.stop - begin, :n]
        logits_kernel(x[part], weight, logits)
        yield part, logits


def _at_labels(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the fp32 logits of the labels; NaN for a label that is no class."""
    is_class = (labels >= 0) & (labels < logits.size(1))
    own = logits.gather(1, labels.masked_fill(~is_class, 0).long()[:, None])
    return own[:, 0].float().masked_fill(~is_class, float("nan"))


def _losses_and_gradients(
    x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, scales: torch.Tensor, wanted: list[bool]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the losses of the rows, and the gradients of `(scales * losses).sum()`; an unwanted one is empty."""
    losses = x.new_empty(x.size(0), dtype=torch.float32)
    grad_x, grad_weight = _empty_gradients(x, weight, wanted)
    for part, logits in _logits_in_parts(x, weight):
        own = _at_labels(logits, labels[part])
        losses[part] = probability_kernel(logits, scales[part]) - own
        label_gradient_kernel(logits, labels[part], scales[part])
        if wanted[0]:
            torch.mm(logits, weight, out=grad_x[part])
        if wanted[1] and part.start:
            weight_gradient_kernel(logits, x[part], grad_weight)
        elif wanted[1]:
            torch.mm(logits.T, x[part], out=grad_weight)
    return losses, grad_x, grad_weight if len(x) else grad_weight.zero_()


def _empty_gradients(x: torch.Tensor, weight: torch.Tensor, wanted: list[bool]) -> tuple[torch.Tensor, ...]:
    return tuple(t.new_empty(t.shape if each else (0, 0)) for t, each in zip((x, weight), wanted, strict=True))


# --- a loss per row ------------------------------------------------------------------------------------------------------


def _run_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int,
    wanted: list[bool],
) -> tuple[torch.Tensor, ...]:
    scales = grad.masked_fill(labels == ignore_index, 0.0)
    return _losses_and_gradients(x, weight, labels, scales, wanted)[1:]


_FOR_GRADIENTS = logits_kernel, probability_kernel, label_gradient_kernel, weight_gradient_kernel
_backward = Operator(
    "linear_cross_entropy_backward(Tensor grad, Tensor x, Tensor weight, Tensor labels, int ignore_index, bool[] wanted)"
    " -> (Tensor, Tensor)",
    *_FOR_GRADIENTS,
    run=_run_backward,
    fake=lambda grad, x, weight, labels, ignore_index, wanted: _empty_gradients(x, weight, wanted),
)
_backward.differentiate_once()
_linear_cross_entropy = Operator(
    "linear_cross_entropy(Tensor x, Tensor weight, Tensor labels, int ignore_index) -> Tensor",
    linear_normalizer_kernel,
    combined_loss_kernel,
    run=_run,
    fake=lambda x, *others: x.new_empty(x.size(0), dtype=torch.float32),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    *tensors, ctx.ignore_index = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    wanted = list(ctx.needs_input_grad[:2])
    found = _backward(grad, *ctx.saved_tensors, ctx.ignore_index, wanted)
    return *_if_wanted(found, wanted), None, None


def _if_wanted(gradients: tuple[torch.Tensor, ...], wanted: list[bool]) -> list[torch.Tensor | None]:
    return [grad if each else None for grad, each in zip(gradients, wanted, strict=True)]


_linear_cross_entropy.differentiate(_save, _gradients)

# --- a loss of all rows --------------------------------------------------------------------------------------------------


def _run_reduced(
    x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, ignore_index: int, mean: bool, wanted: list[bool]
) -> tuple[torch.Tensor, ...]:
    counts = labels != ignore_index
    scales = counts.to(torch.float32)
    if mean:
        scales /= counts.sum().clamp(min=1)
    losses, *gradients = _losses_and_gradients(x, weight, labels, scales, wanted)
    total, _ = reduced_loss_kernel(losses, labels, ignore_index, mean)
    return total.view(()), *gradients


def _scale(gradients: Sequence[torch.Tensor], grad: torch.Tensor) -> None:
    for each in gradients:
        if each.numel():
            scale_kernel(each, grad.reshape(1))


def _run_scaled(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *gradients: torch.Tensor) -> Any:
    scaled = tuple(each.clone() for each in gradients)
    _scale(scaled, grad)
    return scaled


_reduced = Operator(
    "reduced_linear_cross_entropy(Tensor x, Tensor weight, Tensor labels, int ignore_index, bool mean, bool[] wanted)"
    " -> (Tensor, Tensor, Tensor)",
    *_FOR_GRADIENTS,
    reduced_loss_kernel,
    run=_run_reduced,
    fake=lambda x, weight, labels, ignore_index, mean, wanted: (
        x.new_empty((), dtype=torch.float32),
        *_empty_gradients(x, weight, wanted),
    ),
)
_scaled = Operator(
    "reduced_linear_cross_entropy_backward(Tensor grad, Tensor x, Tensor weight, Tensor grad_x, Tensor grad_weight)"
    " -> (Tensor, Tensor)",
    scale_kernel,
    run=_run_scaled,
    fake=lambda grad, x, weight, *gradients: tuple(torch.empty_like(each) for each in gradients),
)
_scaled.differentiate_once()


def _save_reduced(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    *tensors, ctx.ignore_index, ctx.mean, ctx.wanted = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # those of non-differentiable results would be zeros as large as the gradients
    ctx.save_for_backward(*tensors)
    ctx.gradients = output[1:]


def _scaled_gradients(ctx: Any, grad: torch.Tensor, *_: torch.Tensor) -> tuple[Any, ...]:
    """Return the gradients of the forward pass times `grad`, in the memory of these unless they are needed again."""
    x, weight, labels = ctx.saved_tensors
    gradients, needed = ctx.gradients, list(ctx.needs_input_grad[:2])
    # An earlier backward pass returned their memory, or a transformation such as vmap hides that they are needed.
    if gradients is None or any(need > given for need, given in zip(needed, ctx.wanted, strict=True)):
        gradients = _reduced(x, weight, labels, ctx.ignore_index, ctx.mean, needed)[1:]
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or type(grad) is not torch.Tensor:
        gradients = _scaled(grad, x, weight, *gradients)
    else:
        ctx.gradients = None
        _scale(gradients, grad)
    return *_if_wanted(gradients, needed), None, None, None, None


_reduced.differentiate(_save_reduced, _scaled_gradients)


def linear_cross_entropy(
    x: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> torch.Tensor:
    """Compute the cross-entropy loss of the logits `x @ weight.T`, without a tensor of all logits.

    Without gradients, the loss is computed from fp32 accumulators. With gradients, logits have the dtype of `x`. An
    eighth of them is held at a time, or 2^27 elements if that is more. fp32 tensors are multiplied in TF32 on a GPU, or
    more precisely. The gradient of `weight` is accumulated in its dtype. A mean or a sum computes its gradients in the
    forward pass, and holds them until its backward pass; float16 and `"none"` in the backward pass.

    Args:
        x: `[..., K]`; float32, bfloat16 or float16.
        weight: `[N, K]` of the same dtype, a row per class.
        labels: `[...]`, classes from 0 to N - 1, or `ignore_index`; int64 or int32. Any other label gives NaN.
        ignore_index: label of rows that do not count.
        reduction: `"mean"` over the rows that count, `"sum"`, or `"none"`.

    Returns:
        An fp32 number, or with `"none"` fp32 losses of the shape of `labels`. The mean of no rows is NaN.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    op = "linear_cross_entropy"
    check_tensor(op, "x", x, least_dims=1)
    check_tensor(op, "weight", weight, dtypes=(x.dtype,), dims=2, like=x)
    check_tensor(op, "weight", weight, dtypes=(x.dtype,), shape=(weight.size(0), x.size(-1)))
    check(op, "weight", weight.size(0) > 0, "of at least one row", f"shape {list(weight.shape)}")
    check_tensor(op, "labels", labels, dtypes=INDICES, shape=x.shape[:-1], like=x)
    check(op, "reduction", reduction in ("mean", "sum", "none"), "'mean', 'sum' or 'none'", repr(reduction))
    flat = labels.reshape(-1)
    wanted = [x.requires_grad, weight.requires_grad] if torch.is_grad_enabled() else [False, False]
    if any(wanted) and reduction != "none" and x.dtype != torch.float16:
        reduced: torch.Tensor
        reduced, *_ = _reduced(rows(x), weight, flat, ignore_index, reduction == "mean", wanted)
        return reduced
    losses: torch.Tensor = _linear_cross_entropy(rows(x), weight, flat, ignore_index)
    return losses.view(labels.shape) if reduction == "none" else reduced_loss(losses, flat, ignore_index, reduction)
