"""torch's losses on device values. A reduced loss needs whole dimensions; ``reduction="none"`` works on tiles."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from .... import exc
from ...._shapes import ONE, Dims
from .. import ops
from ..rules import Rules
from ..tracer import Tracer
from ..values import DeviceValue, describe
from .pointwise import in_float32
from .reductions import mean_of, root_of, sum_of, torch_log_softmax, whole
from .shapes import position

RULES = Rules()
rule = RULES.register


def _reduced(
    t: Tracer, loss: DeviceValue, reduction: str, name: str, weights: DeviceValue | None = None
) -> DeviceValue:
    """Reduce ``loss`` by ``reduction``; a mean divides by the sum of ``weights``, if given."""
    if reduction == "none":
        return loss
    if reduction not in ("mean", "sum"):
        raise exc.TorchOpTracingError(name=f"torch.nn.functional.{name}", reason=f"{reduction!r} is not a reduction")
    _check_whole(t, loss, name, reduction)
    if reduction == "sum":
        return sum_of(t, loss)
    return mean_of(t, loss) if weights is None else sum_of(t, loss) / sum_of(t, weights)


def _check_whole(t: Tracer, loss: DeviceValue, name: str, reduction: str) -> None:
    remedy = "; use reduction='none' and reduce the result over the whole tensor"
    whole(t, loss, range(loss.ndim), f"nn.functional.{name} with reduction={reduction!r}", remedy)


@rule(F.mse_loss)
@in_float32
def _mse_loss(t: Tracer, input: DeviceValue, target: DeviceValue, *, reduction: str = "mean") -> DeviceValue:
    return _reduced(t, (input - target) * (input - target), reduction, "mse_loss")


@rule(F.l1_loss)
@in_float32
def _l1_loss(t: Tracer, input: DeviceValue, target: DeviceValue, *, reduction: str = "mean") -> DeviceValue:
    return _reduced(t, ops.pointwise(t, "abs", input - target), reduction, "l1_loss")


@rule(F.smooth_l1_loss)
@in_float32
def _smooth_l1_loss(
    t: Tracer, input: DeviceValue, target: DeviceValue, *, reduction: str = "mean", beta: float = 1.0
) -> DeviceValue:
    difference = input - target
    loss = gap = ops.pointwise(t, "abs", difference)
    if beta:
        loss = ops.pointwise(t, "where", gap < beta, gap * gap * (0.5 / beta), gap - 0.5 * beta)
        loss = ops.with_vjp(t, "smooth_l1", loss, difference, beta)
    return _reduced(t, loss, reduction, "smooth_l1_loss")


@rule(F.huber_loss)
@in_float32
def _huber_loss(
    t: Tracer, input: DeviceValue, target: DeviceValue, *, reduction: str = "mean", delta: float = 1.0
) -> DeviceValue:
    difference = input - target
    gap = ops.pointwise(t, "abs", difference)
    loss = ops.pointwise(t, "where", gap <= delta, gap * gap * 0.5, (gap - 0.5 * delta) * delta)
    loss = ops.with_vjp(t, "huber", loss, difference, delta)
    return _reduced(t, loss, reduction, "huber_loss")


@rule(F.kl_div)
@in_float32
def _kl_div(
    t: Tracer, input: DeviceValue, target: DeviceValue, *, reduction: str = "mean", log_target: bool = False
) -> DeviceValue:
    if log_target:
        loss = ops.pointwise(t, "exp", target) * (target - input)
    else:
        entropy = target * ops.pointwise(t, "log", target)
        loss = ops.pointwise(t, "where", ops.pointwise(t, "eq", target, 0), 0.0, entropy) - target * input
    if reduction == "batchmean":
        _check_whole(t, loss, "kl_div", reduction)
        return sum_of(t, loss) / loss.shape[0]
    return _reduced(t, loss, reduction, "kl_div")


@rule(F.binary_cross_entropy_with_logits)
@in_float32
def _bce_with_logits(
    t: Tracer,
    input: DeviceValue,
    target: DeviceValue,
    weight: Any = None,
    *,
    reduction: str = "mean",
    pos_weight: Any = None,
) -> DeviceValue:
    tail = ops.pointwise(t, "log1p_unit", ops.pointwise(t, "exp", -ops.pointwise(t, "abs", input)))
    if pos_weight is None:
        loss = ops.pointwise(t, "maximum", input, 0.0) - input * target + tail
        loss = ops.with_vjp(t, "binary_cross_entropy_with_logits", loss, input, target)
    else:
        scale = 1.0 + (pos_weight - 1.0) * target
        loss = (1.0 - target) * input + scale * (tail + ops.pointwise(t, "maximum", -input, 0.0))
        loss = ops.with_vjp(t, "binary_cross_entropy_with_weights", loss, input, target, pos_weight)
    return _reduced(t, loss if weight is None else loss * weight, reduction, "binary_cross_entropy_with_logits")


@rule(F.binary_cross_entropy)
@in_float32
def _bce(
    t: Tracer, input: DeviceValue, target: DeviceValue, weight: Any = None, *, reduction: str = "mean"
) -> DeviceValue:
    # logarithms are at least -100, so that a loss is finite
    yes = ops.pointwise(t, "maximum", ops.pointwise(t, "log", input), -100.0)
    no = ops.pointwise(t, "maximum", ops.pointwise(t, "log1p", -input), -100.0)
    loss = ops.with_vjp(t, "binary_cross_entropy", (target - 1.0) * no - target * yes, input, target)
    return _reduced(t, loss if weight is None else loss * weight, reduction, "binary_cross_entropy")


@rule(F.soft_margin_loss)
@in_float32
def _soft_margin_loss(t: Tracer, input: DeviceValue, target: DeviceValue, *, reduction: str = "mean") -> DeviceValue:
    loss = ops.pointwise(t, "log1p", ops.pointwise(t, "exp", -target * input))
    return _reduced(t, loss, reduction, "soft_margin_loss")


@rule(F.hinge_embedding_loss)
@in_float32
def _hinge_embedding_loss(
    t: Tracer, input: DeviceValue, target: DeviceValue, margin: float = 1.0, *, reduction: str = "mean"
) -> DeviceValue:
    far = ops.pointwise(
        t, "where", ops.pointwise(t, "ne", target, 1), ops.pointwise(t, "maximum", margin - input, 0.0), 0.0
    )
    near = ops.pointwise(t, "where", ops.pointwise(t, "ne", target, -1), input, 0.0)
    return _reduced(t, far + near, reduction, "hinge_embedding_loss")


@rule(F.margin_ranking_loss)
@in_float32
def _margin_ranking_loss(
    t: Tracer,
    input1: DeviceValue,
    input2: DeviceValue,
    target: DeviceValue,
    margin: float = 0.0,
    *,
    reduction: str = "mean",
) -> DeviceValue:
    loss = ops.pointwise(t, "maximum", (input2 - input1) * target + margin, 0.0)
    return _reduced(t, loss, reduction, "margin_ranking_loss")


@rule(F.poisson_nll_loss)
@in_float32
def _poisson_nll_loss(
    t: Tracer,
    input: DeviceValue,
    target: DeviceValue,
    log_input: bool = True,
    full: bool = False,
    *,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> DeviceValue:
    if full:
        raise exc.UnsupportedTorchFunction(name="torch.nn.functional.poisson_nll_loss with full=True", remedy="")
    if log_input:
        loss = ops.pointwise(t, "exp", input) - target * input
    else:
        loss = input - target * ops.pointwise(t, "log", input + eps)
    return _reduced(t, loss, reduction, "poisson_nll_loss")


@rule(F.gaussian_nll_loss)
@in_float32
def _gaussian_nll_loss(
    t: Tracer,
    input: DeviceValue,
    target: DeviceValue,
    var: DeviceValue,
    full: bool = False,
    *,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> DeviceValue:
    spread = ops.with_vjp(t, "identity", ops.pointwise(t, "maximum", var, eps), var)
    loss = (ops.pointwise(t, "log", spread) + (input - target) * (input - target) / spread) * 0.5
    return _reduced(t, loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction, "gaussian_nll_loss")


# --- classes ----------------------------------------------------------------------------------------------------------


def _class_dim(input: DeviceValue) -> int:
    return 1 if input.ndim > 1 else 0


def _chosen(t: Tracer, values: DeviceValue, target: DeviceValue, at: int, name: str) -> DeviceValue:
    """Return the mask of the class of ``target``, in the shape of ``values``."""
    whole(t, values, [at], f"nn.functional.{name}")
    if target.dtype not in (torch.int64, torch.int32, torch.uint8):
        raise exc.TorchOpTracingError(
            name=f"torch.nn.functional.{name}", reason=f"classes must be integers, got {target!r}"
        )
    classes = ops.lanes(t, t.blocks.size_of(values.dims[at]), values.ndim, at)
    return ops.pointwise(t, "eq", classes, ops.reshape(t, target, (*target.dims[:at], ONE, *target.dims[at:])))


def _of_class(t: Tracer, chosen: DeviceValue, values: DeviceValue, at: int) -> DeviceValue:
    """Return the elements of ``values`` of the chosen class."""
    return sum_of(t, ops.pointwise(t, "where", chosen, values, ops.full(t, (), 0, values.dtype)), at)


def _in_places(t: Tracer, weight: DeviceValue, rank: int, at: int) -> DeviceValue:
    dims: Dims = tuple(weight.dims[0] if i == at else ONE for i in range(rank))
    return ops.reshape(t, weight, dims)


def _negative_log_likelihood(
    t: Tracer, logs: DeviceValue, target: DeviceValue, weight: Any, ignore_index: int, reduction: str, smoothing: float
) -> DeviceValue:
    at = _class_dim(logs)
    chosen = _chosen(t, logs, target, at, "nll_loss")
    counted = ops.pointwise(t, "ne", target, ignore_index)
    weights = ops.cast(t, counted, logs.dtype)
    loss = -_of_class(t, chosen, logs, at)
    if weight is not None:
        scales = _in_places(t, weight, logs.ndim, at)
        weights = weights * _of_class(t, chosen, ops.broadcast(t, scales, logs.dims), at)
        logs = logs * scales
    loss = loss * weights
    if smoothing:
        spread = ops.pointwise(t, "where", counted, -sum_of(t, logs, at), 0.0)
        loss = loss * (1.0 - smoothing) + spread * (smoothing / logs.shape[at])
    return _reduced(t, loss, reduction, "nll_loss", weights)


@rule(F.nll_loss)
@in_float32
def _nll_loss(
    t: Tracer,
    input: DeviceValue,
    target: DeviceValue,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> DeviceValue:
    return _negative_log_likelihood(t, input, target, weight, ignore_index, reduction, 0.0)


@rule(F.cross_entropy)
@in_float32
def _cross_entropy(
    t: Tracer,
    input: DeviceValue,
    target: DeviceValue,
    weight: Any = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> DeviceValue:
    ops.refuse_operand(target, "in torch.nn.functional.cross_entropy")
    at = _class_dim(input)
    logs = torch_log_softmax(t, input, at)
    if not target.dtype.is_floating_point:
        return _negative_log_likelihood(t, logs, target, weight, ignore_index, reduction, label_smoothing)
    if label_smoothing:
        target = target * (1.0 - label_smoothing) + label_smoothing / logs.shape[at]
    if weight is not None:
        logs = logs * _in_places(t, weight, logs.ndim, at)
    return _reduced(t, -sum_of(t, logs * target, at), reduction, "cross_entropy")


@rule(F.one_hot)
def _one_hot(t: Tracer, tensor: DeviceValue, num_classes: Any = -1) -> DeviceValue:
    if type(num_classes) is int and num_classes < 1:
        raise exc.UnsupportedTorchFunction(name="torch.nn.functional.one_hot without num_classes", remedy="; give it")
    if tensor.dtype.is_floating_point:
        raise exc.TorchOpTracingError(
            name="torch.nn.functional.one_hot", reason=f"classes must be integers, got {describe(tensor)}"
        )
    classes = ops.lanes(t, num_classes, tensor.ndim + 1, tensor.ndim)
    return ops.cast(t, ops.pointwise(t, "eq", ops.reshape(t, tensor, (*tensor.dims, ONE)), classes), torch.int64)


# --- distances --------------------------------------------------------------------------------------------------------


@rule(F.cosine_similarity)
@in_float32
def _cosine_similarity(t: Tracer, x1: DeviceValue, x2: DeviceValue, dim: int = 1, eps: float = 1e-8) -> DeviceValue:
    x1, x2 = ops.together(t, (x1, x2), " in torch.nn.functional.cosine_similarity")
    whole(t, x1, [position(x1, dim)], "nn.functional.cosine_similarity")
    first, second = (ops.pointwise(t, "maximum", root_of(t, sum_of(t, v * v, dim)), eps) for v in (x1, x2))
    return sum_of(t, x1 * x2, dim) / (first * second)


@rule(F.pairwise_distance)
@in_float32
def _pairwise_distance(
    t: Tracer, x1: DeviceValue, x2: DeviceValue, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> DeviceValue:
    return t.rules[torch.linalg.vector_norm](t, x1 - x2 + eps, p, -1, keepdim)
