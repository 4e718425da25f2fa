"""Matmuls."""

from __future__ import annotations

import torch

from ....._compiler.ir.grammar import DotAttrs, Op, Scaled, Value
from ....._compiler.ir.operands import accumulator_of
from ..emission import Emission
from ..expressions import Expression, helper
from .literals import RENEW, SETTLE, TRITON_DTYPES


def dot(e: Emission, op: Op) -> None:
    attrs = op.attributes(DotAttrs)
    if attrs.scaled is not None:
        _scaled(e, op, attrs.scaled)
        return
    lhs, rhs, *acc = op.values()
    texts = [e.names.of(v) for v in (lhs, rhs, *acc)]
    if attrs.single:
        texts = [f"tl.reshape({text}, {e.shape(v.dims[1:])})" for text, v in zip(texts, (lhs, rhs, *acc), strict=True)]
    if op.number in e.plan.renewed_operands:
        e.needs.add(RENEW)
        texts[0] = f"{RENEW}({texts[0]})"
    arguments = texts[:2]
    if acc:
        arguments.append(f"acc={texts[2]}")
    if lhs.dtype in (torch.float32, torch.float64):
        arguments.append(f"input_precision={attrs.precision!r}")
    if op.number in e.plan.partial_sums:
        arguments.append(f"max_num_imprecise_acc={e.plan.partial_sums[op.number]}")
    arguments.append(f"out_dtype={TRITON_DTYPES[op.result.dtype]}")
    text = f"tl.dot({', '.join(arguments)})"
    whole = Expression(f"tl.reshape({text}, {e.shape(op.result.dims)})" if attrs.single else text)
    e.assign(op, "dot", settled(e, op, whole))


def settled(e: Emission, op: Op, value: Expression) -> Expression:
    """Return the value, waited for if the plan requires it."""
    return helper(SETTLE, value) if op.number in e.plan.settled_sums else value


def _scaled(e: Emission, op: Op, scaled: Scaled) -> None:
    arguments = []
    sides = ((0, scaled.lhs_scale, scaled.lhs_format), (1, scaled.rhs_scale, scaled.rhs_format))
    for at, scale, name in sides:
        factor = "None" if scale is None else e.operand(op.operands[scale])
        arguments += [e.operand(op.operands[at]), factor, repr(name)]
    acc = accumulator_of(op)
    if isinstance(acc, Value):
        arguments.append(f"acc={e.names.of(acc)}")
    arguments.append(f"out_dtype={TRITON_DTYPES[op.result.dtype]}")
    e.assign(op, "dot", f"tl.dot_scaled({', '.join(arguments)})")


OPS = {"dot": dot}
