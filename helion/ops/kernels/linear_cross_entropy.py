"""Cross-entropy of the logits of a linear layer, which are never stored as a whole.

In the forward pass a program multiplies a tile of tokens by a tile of classes. It keeps the maximum and the sum of
exponentials of each row. The host combines these per row. The backward pass computes logits again for some tokens at a
time, and turns them into their gradient.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .._operators import INDICES, Operator, check, check_tensor, rows
from .cross_entropy import cross_entropy_backward_kernel

#: Elements of the logits that the backward pass holds at once.
LOGITS_AT_ONCE = 1 << 28


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


def _run(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, ignore_index: int) -> tuple[torch.Tensor, ...]:
    highest, total, picked = linear_normalizer_kernel(x, weight, labels)
    normalizers = torch.logsumexp(highest + total.log(), dim=0)
    return (normalizers - picked).masked_fill(labels == ignore_index, 0.0), normalizers


def _run_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    normalizers: torch.Tensor,
    ignore_index: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=x.device)
    step = max(LOGITS_AT_ONCE // weight.size(0), 1)
    for begin in range(0, x.size(0), step):
        part = slice(begin, begin + step)
        logits = x[part] @ weight.T
        total = normalizers[part]
        if logits.dtype == torch.float32:  # torch may multiply in another precision than the kernel, TF32 or not
            total = torch.logsumexp(logits, dim=-1)
        given = cross_entropy_backward_kernel(grad[part], logits, labels[part], total, ignore_index, 0.0)
        torch.mm(given, weight, out=grad_x[part])
        grad_weight += given.T @ x[part]
    return grad_x, grad_weight.to(weight.dtype)


_backward = Operator(
    "linear_cross_entropy_backward(Tensor grad, Tensor x, Tensor weight, Tensor labels, Tensor normalizers, "
    "int ignore_index) -> (Tensor, Tensor)",
    cross_entropy_backward_kernel,
    run=_run_backward,
    fake=lambda grad, x, weight, *others: (x.new_empty(x.shape), weight.new_empty(weight.shape)),
)
_backward.differentiate_once()
_linear_cross_entropy = Operator(
    "linear_cross_entropy(Tensor x, Tensor weight, Tensor labels, int ignore_index) -> (Tensor, Tensor)",
    linear_normalizer_kernel,
    run=_run,
    fake=lambda x, *others: tuple(x.new_empty(x.size(0), dtype=torch.float32) for _ in range(2)),
)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    *tensors, ctx.ignore_index = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, output[1])


def _gradients(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[Any, ...]:
    return (*_backward(grad, *ctx.saved_tensors, ctx.ignore_index), None, None)


_linear_cross_entropy.differentiate(_save, _gradients)


def linear_cross_entropy(
    x: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> torch.Tensor:
    """Compute the cross-entropy loss of the logits `x @ weight.T`, without a tensor of all logits.

    The loss is computed from fp32 accumulators. fp32 tensors are multiplied in TF32 on a GPU. The backward pass holds
    some hundred megabytes of logits at a time, in the dtype of `x`.

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
    losses: torch.Tensor
    losses, _ = _linear_cross_entropy(rows(x), weight, flat, ignore_index)
    if reduction == "none":
        return losses.view(labels.shape)
    return losses.sum() if reduction == "sum" else losses.sum() / (flat != ignore_index).sum()
