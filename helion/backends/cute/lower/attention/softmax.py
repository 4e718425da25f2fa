"""The online softmax of a loop over keys, each of its relations checked."""

from __future__ import annotations

import math

import torch

from ....._compiler.ir.grammar import ForAttrs, Op, Operand, ReduceAttrs, Value
from ....._shapes import dtype_name
from ....._support.records import dataclass
from ...plan.refusal import Refusal
from ..chain import ROUNDED
from .loops import Loops
from .values import LOWEST, UNSEEN, by_number, is_widening, name_of_op, number_of, same_value, terms_of

LOG2E = math.log2(math.e)
EXPONENTIALS = ("exp", "exp2")


@dataclass(frozen=True, kw_only=True)
class Softmax:
    """The values of the online softmax: scores, the weights and factors of a step, and the unit of the exponents in
    powers of two."""

    scores: Value
    power: Op
    """The exponential that gives the weights which are summed."""
    dropped: Operand | None
    """The value that is multiplied instead of the weights, computed from them, if that is another value."""
    raised: Value
    unit: float
    lift: float
    """Powers of two by which all weights are larger than relative to the maximum."""
    replaced: bool
    """True if exponents subtract another number than a maximum of minus infinity."""
    maximum: int
    """Position of the carried maximum; then of the sum and the accumulator."""
    total: int
    accumulator: int
    rounded: str
    """The type that p @ v is rounded to before it is added, if any."""


def has_softmax(loops: Loops) -> bool:
    """Return whether the loop is one with a softmax: it reduces rows to other numbers than sums, or carries three values."""
    reduced = [op.attrs.name for op in loops.loop.regions[0].ops if isinstance(op.attrs, ReduceAttrs)]
    return loops.loop.attributes(ForAttrs).carried == 3 or any(name != "sum" for name in reduced)


def softmax_of(loops: Loops) -> Softmax:
    """Return the values of the online softmax, each relation checked. Raises ``Refusal``."""
    loop, body = loops.loop, loops.loop.regions[0]
    if loop.attributes(ForAttrs).carried != 3 or len(body.results) != 3:
        raise Refusal("a loop over keys that carries maximum, sum and accumulator, and nothing else, is implemented")
    power, dropped = _weights(loops)
    exponent, unit, lift = _exponent(loops, power)
    scores, raised = exponent
    maximum = _carried(loops, raised)
    total = _position(loops, lambda at: _is_total(loops, at, power, maximum, unit))
    accumulator = _position(loops, lambda at: _is_accumulated(loops, at, maximum, unit))
    if {maximum, total, accumulator} != {0, 1, 2}:
        raise Refusal(
            "a loop over keys that carries its maximum, the sum l * c + sum(p) and the accumulator acc * c + p @ v is"
            " implemented"
        )
    _check_maximum(loops, maximum, raised, scores)
    return Softmax(
        scores=scores,
        power=power,
        dropped=dropped,
        raised=raised,
        unit=unit,
        lift=lift,
        replaced=_replaces(loops, power),
        maximum=maximum,
        total=total,
        accumulator=accumulator,
        rounded=rounding_of(loops, accumulator),
    )


def _weights(loops: Loops) -> tuple[Op, Operand | None]:
    """Return the exponential whose result, rounded to the type of v, is the left operand of the second dot; or one that this
    is computed from, and what it is."""
    value = loops.second.operands[0]
    made = loops.stripped(loops.second.operands[0])
    right = loops.second.operands[1]
    if name_of_op(made) == "cast" and made is not None:
        if isinstance(right, Value) and made.result.dtype not in (right.dtype, torch.float32):
            raise Refusal("weights that are rounded to another type than that of v are not implemented")
        value = made.operands[0]
        made = loops.stripped(value)
    powers = [made] if made is not None and name_of_op(made) in EXPONENTIALS else _powers(loops, value)
    if len(powers) != 1:
        raise Refusal("weights other than exponentials of scores, rounded to the type of v, are not implemented")
    (power,) = powers
    if power.result.dtype != torch.float32:
        raise Refusal(f"exponentials in {dtype_name(power.result.dtype)} are not implemented; in float32 they are")
    if power is made:
        return power, None
    if not _keeps_zero(loops, value, power):
        raise Refusal(
            "weights that are computed from exponentials, and may not be 0 where these are, are not implemented"
        )
    return power, value


def _powers(loops: Loops, value: Operand) -> list[Op]:
    """Return the exponentials of scores that a value is computed from by other operations."""
    waiting, found = [value], dict[int, Op]()
    while waiting:
        made = loops.stripped(waiting.pop())
        if made is None or made.kind != "pointwise" or made.number in found:
            continue
        if name_of_op(made) in EXPONENTIALS and set(loops.blocks(made.result)) == {loops.queries, loops.keys}:
            found[made.number] = made
            continue
        waiting += made.operands
    return [*found.values()]


def _keeps_zero(loops: Loops, value: Operand, power: Op) -> bool:
    """Return whether a value is 0 wherever the exponential is, if all else is finite."""
    made = loops.stripped(value)
    if made is power or (not isinstance(value, Value) and value == 0):
        return True
    name = name_of_op(made)
    if made is None:
        return False
    if name in ("cast", "neg", "div"):
        return _keeps_zero(loops, made.operands[0], power)
    if name == "mul":
        return any(_keeps_zero(loops, each, power) for each in made.operands)
    if name in ("where", "add", "sub"):
        return all(_keeps_zero(loops, each, power) for each in made.operands[name == "where" :])
    return made.kind == "full" and made.operands[0] == 0


def _exponent(loops: Loops, power: Op) -> tuple[tuple[Value, Value], float, float]:
    """Return the minuend and subtrahend of an exponent, its unit in powers of two, and the powers of two added to it."""
    unit, lift = LOG2E if name_of_op(power) == "exp" else 1.0, 0.0
    made = loops.stripped(power.operands[0])
    while name_of_op(made) in ("mul", "div", "add", "sub") and made is not None:
        name, (value, number) = name_of_op(made), made.operands
        if isinstance(value, (int, float)):
            value, number = number, value
        if (
            not isinstance(value, Value)
            or isinstance(number, Value)
            or (made.operands[0] is not value and name in ("div", "sub"))
        ):
            break
        if name in ("add", "sub"):
            lift += unit * (number if name == "add" else -number)
        else:
            unit = unit * number if name == "mul" else unit / number
        made = loops.stripped(value)
    if (
        name_of_op(made) != "sub"
        or made is None
        or not loops.is_aligned(made)
        or not all(isinstance(each, Value) for each in made.operands)
    ):
        raise Refusal("exponents other than a score less the maximum, times a number, are not implemented")
    if not unit > 0:
        raise Refusal(f"exponents in units of {unit} are not implemented; units are positive")
    one, other = made.operands
    assert isinstance(one, Value) and isinstance(other, Value)
    return (one, _unguarded(loops, other)), unit, lift


def _replaces(loops: Loops, power: Op) -> bool:
    """Return whether the weights and all factors are exponentials less a maximum that is another number where it is minus
    infinity."""
    body = loops.loop.regions[0]
    factors = [op for op in body.ops if name_of_op(op) in EXPONENTIALS and loops.blocks(op.result) == (loops.queries,)]
    subtracted = [_subtracted(loops, op) for op in (power, *factors)]
    return all(each is not None and _unguarded(loops, each) is not each for each in subtracted)


def _subtracted(loops: Loops, power: Op) -> Value | None:
    """Return what the exponent of an exponential subtracts, if that is a value."""
    made = loops.stripped(power.operands[0])
    while made is not None and name_of_op(made) in ("mul", "div", "add", "sub"):
        one, other = made.operands
        if name_of_op(made) == "sub" and isinstance(one, Value) and isinstance(other, Value):
            return other
        made = loops.stripped(one if isinstance(one, Value) else other)
    return None


def _unguarded(loops: Loops, value: Value) -> Value:
    """Return the maximum of a selection of another number where it is minus infinity, or the value itself.

    Exponents less that number are minus infinity there, and the kernel does not subtract such a maximum.
    """
    made = loops.stripped(value)
    if made is None or name_of_op(made) != "where":
        return value
    condition, *chosen = made.operands
    tested = loops.stripped(condition)
    name = name_of_op(tested)
    if tested is None or name not in ("eq", "isinf", "ne", "gt", "isfinite"):
        return value
    maximum, other = chosen[::-1] if name in ("eq", "isinf") else chosen
    number = as_number(loops, other)
    same = isinstance(maximum, Value) and same_value(loops, tested.operands[0], maximum)
    infinite = len(tested.operands) == 1 or as_number(loops, tested.operands[1]) == -math.inf
    finite = isinstance(number, float) and math.isfinite(number)
    return maximum if same and infinite and finite and isinstance(maximum, Value) else value


def _carried(loops: Loops, raised: Value) -> int:
    """Return the position of the carried value that becomes ``raised``."""
    body = loops.loop.regions[0]
    for at, result in enumerate(body.results):
        if same_value(loops, result, raised):
            return at
    raise Refusal("exponents less another value than the maximum that the loop carries are not implemented")


def _position(loops: Loops, holds: object) -> int:
    found = [at for at in range(3) if holds(at)]  # type: ignore[operator]
    return found[0] if len(found) == 1 else -1


def _is_shrunk(loops: Loops, value: Operand, at: int, maximum: int, unit: float) -> bool:
    """Return whether a value is carried value ``at`` times the factor exp(unit * (m - m'))."""
    body = loops.loop.regions[0]
    terms = terms_of(loops, value, "mul")
    for one, other in (terms, terms[::-1]) if terms else ():
        if same_value(loops, one, body.params[at]) and _is_factor(loops, other, maximum, unit):
            return True
    return False


def _is_factor(loops: Loops, value: Operand, maximum: int, unit: float) -> bool:
    body, made = loops.loop.regions[0], loops.stripped(value)
    if made is None or name_of_op(made) not in ("exp", "exp2"):
        return False
    (former, raised), found, lift = _exponent(loops, made)
    same = same_value(loops, former, body.params[maximum]) and same_value(loops, raised, body.results[maximum])
    return same and math.isclose(found, unit, rel_tol=1e-12) and not lift


def _is_total(loops: Loops, at: int, power: Op, maximum: int, unit: float) -> bool:
    """Return whether carried value ``at`` becomes itself times the factor, plus the row sum of the weights."""
    terms = terms_of(loops, loops.loop.regions[0].results[at], "add")
    for one, other in (terms, terms[::-1]) if terms else ():
        made = loops.stripped(other)
        if not _is_shrunk(loops, one, at, maximum, unit) or made is None or made.kind != "reduce":
            continue
        if made.attributes(ReduceAttrs).name == "sum" and same_value(loops, made.operands[0], power.result):
            return loops.blocks(made.result) == (loops.queries,)
    return False


def is_sum(loops: Loops, value: Operand, carried: Value) -> bool:
    """Return whether a value is ``carried`` plus the second dot, which may be rounded before."""
    dot, made = loops.second, loops.stripped(value)
    if made is dot and len(dot.operands) == 3:
        return same_value(loops, dot.operands[2], carried)
    terms = terms_of(loops, value, "add")
    for one, other in (terms, terms[::-1]) if terms else ():
        if same_value(loops, one, carried) and _rounding(loops, other) is not None:
            return len(dot.operands) == 2
    return False


def rounding_of(loops: Loops, at: int) -> str:
    """Return the type that the second dot is rounded to before it is added to carried value ``at``, if any."""
    terms = terms_of(loops, loops.loop.regions[0].results[at], "add")
    return next((found for term in terms if (found := _rounding(loops, term))), "")


def _rounding(loops: Loops, value: Operand) -> str | None:
    """Return the type that the second dot is rounded to, "" if a value is that dot as it is, and None for another value.

    Raises ``Refusal`` for a type that is not implemented.
    """
    types, made = {loops.second.result.dtype}, loops.stripped(value)
    while made is not None and name_of_op(made) == "cast":
        types.add(made.result.dtype)
        value = made.operands[0]
        made = loops.stripped(value)
    if not same_value(loops, value, loops.second.result):
        return None
    narrow = types - {torch.float32}
    if len(narrow) > 1 or not narrow <= {*ROUNDED}:
        raise Refusal(
            f"p @ v that is rounded to {' and '.join(sorted(map(dtype_name, narrow)))} before it is added is not implemented;"
            " hl.dot(p, v, acc=acc) and torch.baddbmm(acc, p, v) add it as it is"
        )
    return dtype_name(narrow.pop()) if narrow else ""


def _is_accumulated(loops: Loops, at: int, maximum: int, unit: float) -> bool:
    """Return whether carried value ``at`` becomes itself times the factor, plus the second dot."""
    dot, made = loops.second, loops.stripped(loops.loop.regions[0].results[at])
    if made is dot and len(dot.operands) == 3:
        return _is_shrunk(loops, dot.operands[2], at, maximum, unit)
    terms = terms_of(loops, loops.loop.regions[0].results[at], "add")
    for one, other in (terms, terms[::-1]) if terms else ():
        if _is_shrunk(loops, one, at, maximum, unit) and _rounding(loops, other) is not None:
            return len(dot.operands) == 2
    return False


def _check_maximum(loops: Loops, at: int, raised: Value, scores: Value) -> None:
    """Check that carried value ``at`` becomes its maximum with the row maximum of the scores.

    The row maximum may be taken before multiplications by positive numbers and roundings: these keep the order.
    """
    body = loops.loop.regions[0]
    terms = terms_of(loops, raised, "maximum")
    for one, other in (terms, terms[::-1]) if terms else ():
        if same_value(loops, one, body.params[at]) and _is_row_maximum(loops, other, scores):
            return
    raise Refusal("a maximum other than that of the carried one and the row maximum of the scores is not implemented")


def _is_row_maximum(loops: Loops, value: Operand, scores: Operand) -> bool:
    made, scored = loops.stripped(value), loops.stripped(scores)
    if made is None:
        return False
    if made.kind == "reduce":
        named = made.attributes(ReduceAttrs).name in ("max", "amax")
        return named and loops.blocks(made.result) == (loops.queries,) and same_value(loops, made.operands[0], scores)
    if name_of_op(made) == "cast" and is_widening(made):
        return _is_row_maximum(loops, made.operands[0], scores)
    if scored is not None and name_of_op(scored) == "cast" and is_widening(scored):
        return _is_row_maximum(loops, value, scored.operands[0])
    if scored is None or name_of_op(made) != name_of_op(scored) or made.result.dtype != scored.result.dtype:
        return False
    if name_of_op(made) == "cast":
        return _is_row_maximum(loops, made.operands[0], scored.operands[0])
    if name_of_op(made) not in ("mul", "div"):
        return False
    (one, number), (other, again) = by_number(made), by_number(scored)
    same = isinstance(number, (int, float)) and number == again and number > 0
    return same and _is_row_maximum(loops, one, other)


@dataclass(frozen=True, kw_only=True)
class Start:
    """The initial maximum of the kernel. ``held`` are the maximum, the sum and the accumulator that the program begins with
    instead, where these count as a key: outputs include them after the loop."""

    maximum: float
    held: tuple[Operand, Operand, Operand] | None = None


def start_of(loops: Loops, softmax: Softmax, sees: bool) -> Start:
    """Return the initial values. ``sees`` tells that every query sees a key. Raises ``Refusal``."""
    places = (softmax.maximum, softmax.total, softmax.accumulator)
    maximum, total, accumulator = (initial(loops, at) for at in places)
    lowest = isinstance(maximum, float) and (maximum == -math.inf or maximum <= LOWEST)
    if isinstance(maximum, float) and lowest and accumulator == 0 and (total == 0 or (sees and _is_finite(total))):
        return Start(maximum=maximum)
    if maximum == -math.inf:
        raise Refusal(
            f"an initial maximum of {maximum} with another sum or accumulator than 0 is not implemented; begin with minus"
            " infinity and 0"
        )
    highest, totals, accumulated = (loops.loop.operands[at] for at in places)
    return Start(maximum=UNSEEN, held=(highest, totals, accumulated))


def initial(loops: Loops, at: int) -> Operand:
    """Return what carried value ``at`` begins with, as a float if it is a number in all of its elements."""
    return as_number(loops, loops.loop.operands[at])


def as_number(loops: Loops, value: Operand) -> Operand:
    """Return a value as a float, if it is a number in all of its elements."""
    number = number_of(loops, value)
    return number if isinstance(number, Value) else float(number)


def _is_finite(value: Operand) -> bool:
    return isinstance(value, float) and math.isfinite(value)
