"""Products less what their maxima make, which are rounded first.

A product that is subtracted at once takes an FMA, and is not rounded. Its maximum is. Then the largest element is not the
maximum: they differ by up to half a unit of the last place. Its exponential is not 1. Where a sum counts it
as 1, a softmax of logits near 6e4 divided by 0.7 has 0.9985 in its place. Before::

    %2 = div cast %1, 0.7
    %3 = reduce max %2
    %4 = exp (%2 - %3)

After::

    %2 = div cast %1, 0.7
    %3 = reduce max %2
    %4 = exp inline _difference({%2}, {%3})

Elements whose exponential is not taken, as of log_softmax, are rounded too, and numbers of rows whose exponential is.
Kernels with matmuls keep the FMA: they make numerators and denominators of the same exponentials.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from ...._compiler.ir.grammar import InlineAttrs, Op, Operand, PointwiseAttrs, Program, ReduceAttrs, Value
from ...._compiler.ir.rewrite import Makers, map_ops
from ...._compiler.rewrites.steps import StepInputs

DIFFERENCE = "_difference"
_EXTREMES = ("max", "min")
_PRODUCTS = ("mul", "div", "reciprocal")
#: Ops whose results are extremes, scaled or shifted, where an operand is one.
_KEEP = frozenset(("add", "sub", "mul", "div", "neg", "where", "maximum", "minimum", "cast"))
#: Ops between a difference and its exponential.
_PASS = frozenset((*_KEEP, "abs", "fmin", "fmax"))
_POWERS = ("exp", "exp2")
_REGIONS = ("for", "while", "if")


def round_products(program: Program, inputs: StepInputs) -> Program:
    """Return the program with products that are rounded before their extremes are subtracted, if ``inputs``."""
    ops = [*program.walk()]
    if not inputs.rounded_products or any(op.kind == "dot" for op in ops):
        return program
    extremes = _extremes(ops)
    if not extremes:
        return program
    makers, exponents = Makers.among(ops), _exponents(ops)
    ranks = {len(op.operands[0].dims) for op in ops if _is_reduced(op) and isinstance(op.operands[0], Value)}
    attrs = InlineAttrs((f"{DIFFERENCE}({{0}}, {{1}})",), effect="none")

    def is_rounded(op: Op) -> bool:
        if op.attrs != PointwiseAttrs("sub"):
            return False
        if op.result.number not in exponents and len(op.result.dims) not in ranks:
            return False
        both = [o for o in op.operands if isinstance(o, Value) and o.dtype == torch.float32]
        return len(both) == 2 and any(o.number in extremes for o in both) and any(_is_product(o, makers) for o in both)

    return map_ops(program, lambda op: replace(op, kind="inline", attrs=attrs) if is_rounded(op) else op)


def _is_product(operand: Operand, makers: Makers) -> bool:
    """Return whether an operand is a product or quotient, seen through views, masks and signs."""
    made = makers.of(operand)
    while made is not None and (made.kind in ("view", "mask") or made.attrs == PointwiseAttrs("neg")):
        made = makers.of(made.operands[0])
    return made is not None and isinstance(made.attrs, PointwiseAttrs) and made.attrs.name in _PRODUCTS


def _exponents(ops: list[Op]) -> set[int]:
    """Return the numbers of values whose exponential is taken, and of those that elementwise ops make these of."""
    found = set[int]()
    for op in reversed(ops):
        name = op.attrs.name if isinstance(op.attrs, PointwiseAttrs) else ""
        kept = op.kind in ("view", "mask") or name in _PASS
        if name in _POWERS or (kept and op.result.number in found):
            found.update(value.number for value in op.values())
    return found


def _is_reduced(op: Op) -> bool:
    return isinstance(op.attrs, ReduceAttrs) and op.attrs.name in _EXTREMES


def _is_extreme(op: Op, carried: set[int]) -> bool:
    """Return whether an op reduces to an extreme, or updates one that a loop carries."""
    if _is_reduced(op):
        return True
    updates = isinstance(op.attrs, PointwiseAttrs) and op.attrs.name in ("maximum", "minimum")
    return updates and any(value.number in carried for value in op.values())


def _extremes(ops: list[Op]) -> set[int]:
    """Return the numbers of values that maxima and minima give, that these make, and that loops carry."""
    carried = {value.number for op in ops for region in op.regions for value in region.params}
    found = {op.result.number for op in ops if _is_extreme(op, carried)}
    before = -1
    while before != len(found):
        before = len(found)
        for op in ops:
            kept = op.kind == "view" or (isinstance(op.attrs, PointwiseAttrs) and op.attrs.name in _KEEP)
            if kept and any(value.number in found for value in op.values()):
                found.add(op.result.number)
            for region in op.regions if op.kind in _REGIONS else ():
                for at, value in enumerate(region.results):
                    if isinstance(value, Value) and value.number in found:
                        found.update(each[at].number for each in (region.params, op.results) if at < len(each))
    return found
