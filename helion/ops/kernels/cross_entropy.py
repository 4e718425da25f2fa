"""Cross-entropy of logits with labels, with label smoothing and ignored labels.

The forward pass reads the logits once and keeps one number per row, the logarithm of the sum of exponentials. The
backward pass computes the probabilities again from it, so that no tensor of probabilities is stored.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .._operators import INDICES, Operator, check, check_tensor, rows


@helion.kernel(static_shapes=False)
def cross_entropy_kernel(
    logits: torch.Tensor,
    flat: torch.Tensor | None,
    labels: torch.Tensor,
    ignore_index: int,
    smoothing: float,
    smooths: hl.constexpr,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute fp32 losses of the rows of `logits[M, N]`, and their log-sum-exp.

    Rows whose label is `ignore_index` have the loss 0. A label that is neither that nor a class gives NaN. Only a kernel
    that `smooths` adds up all logits. `flat` are those of contiguous rows, from which that of the label is loaded.
    """
    m = logits.size(0)
    n = hl.specialize(logits.size(1))
    losses = torch.empty([m], dtype=torch.float32, device=logits.device)
    normalizers = torch.empty([m], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(m):
        row = logits[tile, :].to(torch.float32)
        highest = torch.amax(row, dim=-1)
        normalizer = highest + torch.log(torch.sum(torch.exp(row - highest[:, None]), dim=-1))
        mean = torch.sum(row, dim=-1) / n if smooths else 0.0
        label = labels[tile]
        is_class = (label >= 0) & (label < n)
        if flat is None:
            picked = torch.sum(torch.where(hl.arange(n)[None, :] == label[:, None], row, 0.0), dim=-1)
        else:
            picked = flat[tile.index * n + torch.where(is_class, label, 0)].to(torch.float32)
        loss = normalizer - (1 - smoothing) * picked - smoothing * mean
        loss = torch.where(is_class, loss, float("nan"))
        losses[tile] = torch.where(label == ignore_index, 0.0, loss)
        normalizers[tile] = normalizer
    return losses, normalizers


@helion.kernel(static_shapes=False)
def cross_entropy_backward_kernel(
    grad: torch.Tensor,
    logits: torch.Tensor,
    labels: torch.Tensor,
    normalizers: torch.Tensor,
    ignore_index: int,
    smoothing: float,
) -> torch.Tensor:
    """Compute the gradient of `logits[M, N]` from that of the losses, `grad[M]`."""
    m, n = logits.size()
    out = torch.empty([m, n], dtype=logits.dtype, device=logits.device)
    for tile_m, tile_n in hl.tile([m, n]):
        label = labels[tile_m]
        given = torch.where(label == ignore_index, 0.0, grad[tile_m])
        p = torch.exp(logits[tile_m, tile_n].to(torch.float32) - normalizers[tile_m][:, None])
        target = torch.where(tile_n.index[None, :] == label[:, None], 1 - smoothing, 0.0) + smoothing / n
        out[tile_m, tile_n] = given[:, None] * (p - target)
    return out


@helion.kernel(static_shapes=False)
def reduced_loss_kernel(
    losses: torch.Tensor, labels: torch.Tensor, ignore_index: int, divides: hl.constexpr
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add up `losses[M]` of rows whose label is not `ignore_index`; return the sum, or the mean, and the rows' number."""
    total = torch.empty([1], dtype=torch.float32, device=losses.device)
    number = torch.empty([1], dtype=torch.float32, device=losses.device)
    for only in hl.grid(1):
        added = hl.zeros([], dtype=torch.float32)
        counted = hl.zeros([], dtype=torch.int32)
        for tile in hl.tile(losses.size(0)):
            counts = labels[tile] != ignore_index
            added += torch.sum(torch.where(counts, losses[tile], 0.0))
            counted += torch.sum(counts.to(torch.int32), dtype=torch.int32)
        rows_that_count = counted.to(torch.float32)
        total[only] = added / rows_that_count if divides else added
        number[only] = rows_that_count
    return total, number


def _run(
    logits: torch.Tensor, labels: torch.Tensor, ignore_index: int, smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    flat = logits.view(-1) if logits.is_contiguous() else None
    found: tuple[torch.Tensor, torch.Tensor] = cross_entropy_kernel(
        logits, flat, labels, ignore_index, smoothing, smoothing != 0
    )
    return found


_backward = Operator(
    "cross_entropy_backward(Tensor grad, Tensor logits, Tensor labels, Tensor normalizers, int ignore_index, "
    "float smoothing) -> Tensor",
    cross_entropy_backward_kernel,
    fake=lambda grad, logits, *others: logits.new_empty(logits.shape),
)
_backward.differentiate_once()
_cross_entropy = Operator(
    "cross_entropy(Tensor logits, Tensor labels, int ignore_index, float smoothing) -> (Tensor, Tensor)",
    cross_entropy_kernel,
    run=_run,
    fake=lambda logits, *others: (
        logits.new_empty(logits.size(0), dtype=torch.float32),
        logits.new_empty(logits.size(0), dtype=torch.float32),
    ),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    logits, labels, *ctx.numbers = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(logits, labels, output[1])


def _gradients(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
    return _backward(grad, *ctx.saved_tensors, *ctx.numbers), None, None, None


_cross_entropy.differentiate(_save, _gradients)


def _run_reduced(
    losses: torch.Tensor, labels: torch.Tensor, ignore_index: int, divides: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    total, number = reduced_loss_kernel(losses, labels, ignore_index, divides)
    return total.view(()), number.view(())


_reduced = Operator(
    "reduced_loss(Tensor losses, Tensor labels, int ignore_index, bool divides) -> (Tensor, Tensor)",
    reduced_loss_kernel,
    run=_run_reduced,
    fake=lambda losses, *others: (losses.new_empty(()), losses.new_empty(())),
)


def _save_reduced(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    _, labels, ctx.ignore_index, ctx.divides = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(labels, output[1])


def _gradients_of_reduced(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
    labels, number = ctx.saved_tensors
    each = grad / number if ctx.divides else grad
    return torch.where(labels == ctx.ignore_index, 0.0, each), None, None, None


_reduced.differentiate(_save_reduced, _gradients_of_reduced)


def reduced_loss(losses: torch.Tensor, labels: torch.Tensor, ignore_index: int, reduction: str) -> torch.Tensor:
    """Return the `"sum"` or the `"mean"` of fp32 `losses[M]` whose label is not `ignore_index`."""
    total: torch.Tensor
    total, _ = _reduced(losses, labels, ignore_index, reduction == "mean")
    return total


def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> torch.Tensor:
    """Compute the cross-entropy loss of logits, as ``torch.nn.functional.cross_entropy`` does, in fp32.

    Args:
        logits: `[..., N]`; float32, bfloat16 or float16.
        labels: `[...]`, classes from 0 to N - 1, or `ignore_index`; int64 or int32. Any other label gives NaN.
        ignore_index: label of rows that do not count.
        label_smoothing: part of the target that all classes share, from 0 to 1.
        reduction: `"mean"` over the rows that count, `"sum"`, or `"none"`.

    Returns:
        An fp32 number, or with `"none"` fp32 losses of the shape of `labels`. The mean of no rows is NaN.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    op = "cross_entropy"
    check_tensor(op, "logits", logits, least_dims=1)
    check_tensor(op, "labels", labels, dtypes=INDICES, shape=logits.shape[:-1], like=logits)
    check(op, "label_smoothing", 0 <= label_smoothing <= 1, "from 0 to 1", label_smoothing)
    check(op, "reduction", reduction in ("mean", "sum", "none"), "'mean', 'sum' or 'none'", repr(reduction))
    flat = labels.reshape(-1)
    losses: torch.Tensor
    losses, _ = _cross_entropy(rows(logits), flat, ignore_index, float(label_smoothing))
    if reduction == "none":
        return losses.view(labels.shape)
    return reduced_loss(losses, flat, ignore_index, reduction)
