"""Weights without a softmax: any function of the scores, as of sigmoids, gates and decays.

The loop carries the accumulator acc and possibly the row sum l. For scores x computed from q @ k.T it has to compute::

    p = f(x);  acc' = acc + p @ v;  l' = l + rowsum(p)
"""

from __future__ import annotations

import torch

from ....._compiler.ir.grammar import ForAttrs, Op, Operand, ReduceAttrs, Value
from ....._support.records import dataclass
from ...plan.refusal import Refusal
from ..chain import ROUNDED
from .loops import Loops
from .softmax import is_sum, rounding_of
from .values import name_of_op, same_value, terms_of


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The values of a loop without a softmax: weights in fp32, and the positions of what it carries."""

    value: Value
    accumulator: int
    total: int | None
    """Position of the sum of the weights, if the loop carries one."""
    rounded: str
    """The type that p @ v is rounded to before it is added, if any."""


def weights_of(loops: Loops) -> Weights:
    """Return the weights of a loop and what it carries, each relation checked. Raises ``Refusal``."""
    value = _unrounded(loops)
    loop, body = loops.loop, loops.loop.regions[0]
    carried = range(loop.attributes(ForAttrs).carried)
    accumulators = [at for at in carried if is_sum(loops, body.results[at], body.params[at])]
    totals = [at for at in carried if _is_total(loops, at, value)]
    if len(accumulators) != 1 or len(totals) > 1 or len(accumulators) + len(totals) != len(carried):
        raise Refusal(
            "a loop over keys that carries the accumulator acc + p @ v, and nothing else or the row sum of p, is"
            " implemented; or one with an online softmax"
        )
    (accumulator,) = accumulators
    return Weights(
        value=value,
        accumulator=accumulator,
        total=totals[0] if totals else None,
        rounded=rounding_of(loops, accumulator),
    )


def _unrounded(loops: Loops) -> Value:
    """Return the left operand of the second dot before it is rounded to the type of v, which may be the type it has."""
    left, right = loops.second.operands[:2]
    made = loops.stripped(left)
    if not isinstance(left, Value) or not isinstance(right, Value) or left.dtype != right.dtype:
        raise Refusal("weights that are not rounded to the type of v are not implemented")
    value = made.operands[0] if made is not None and name_of_op(made) == "cast" else left
    if not isinstance(value, Value) or (value.dtype != torch.float32 and value.dtype not in ROUNDED):
        raise Refusal("weights in other types than float32, bfloat16 and float16 are not implemented")
    return value


def _is_total(loops: Loops, at: int, weights: Operand) -> bool:
    """Return whether carried value ``at`` becomes itself plus the row sum of the weights."""
    body = loops.loop.regions[0]
    terms = terms_of(loops, body.results[at], "add")
    for one, other in (terms, terms[::-1]) if terms else ():
        made: Op | None = loops.stripped(other)
        if not same_value(loops, one, body.params[at]) or made is None or made.kind != "reduce":
            continue
        named = made.attributes(ReduceAttrs).name == "sum" and loops.blocks(made.result) == (loops.queries,)
        return named and same_value(loops, made.operands[0], weights)
    return False
