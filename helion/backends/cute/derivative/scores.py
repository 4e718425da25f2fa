"""The text of scores and of their derivatives, from the formula of an attention's problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ...._compiler.ir.grammar import HostTensor
from ...._shapes import Expr
from ..plan.attention.records import ACCUMULATOR, KEY_INDEX, MAXIMUM, QUERY_INDEX, TOTAL, AttentionProblem, Formula
from ..plan.epilogue import COLUMN_NUMBER, ROW_NUMBER, Constant, Instruction
from .indexed import Indexed, indexed_source

BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
LOGICAL = {"minimum": "&", "maximum": "|"}
"""Operations that combine results of comparisons, which are 1 or 0 in a formula."""
ROUNDED = {"round_bfloat16": "torch.bfloat16", "round_float16": "torch.float16"}
INDICES = {QUERY_INDEX: "tile_m.index[:, None]", KEY_INDEX: "tile_n.index[None, :]"}
POSITIONS = {ROW_NUMBER: INDICES[QUERY_INDEX], COLUMN_NUMBER: INDICES[KEY_INDEX]}
Of = Literal["float", "integer", "truth"]
BROADCAST = {"query": "[:, None]", "key": "[None, :]"}


@dataclass(frozen=True, kw_only=True)
class Input:
    """An input of a formula other than products: a number of each launch, or elements of a tensor.

    ``name`` is its parameter in derived kernels; ``kind`` is that of its source. ``number`` is the text of a number, and
    ``symbols`` are the names of host code that it reads.
    """

    name: str
    kind: str
    indexed: Indexed | None = None
    number: str = ""
    symbols: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(map(name_of_number, self.symbols)) if self.indexed is None else (self.name,)

    def text(self, axes: tuple[str, ...]) -> str:
        """Return its elements for a tile of queries by a tile of keys."""
        if self.indexed is None:
            return self.number
        loaded = self.indexed.text(self.name, axes, "tile_m", "tile_n")
        widened = f"{loaded}.to(torch.float32)" if self.of == "float" else loaded
        return f"{widened}{BROADCAST.get(self.kind, '')}"

    @property
    def of(self) -> Of:
        """The type of its elements."""
        dtype = torch.float32 if self.indexed is None else self.indexed.tensor.dtype
        return "float" if dtype.is_floating_point else "truth" if dtype == torch.bool else "integer"


def name_of_number(symbol: str) -> str:
    """Return the parameter of derived kernels for a number of host code, distinct from their own names."""
    return f"number_{symbol}"


def inputs_of(
    formula: Formula, arguments: Sequence[HostTensor | Expr], problem: AttentionProblem, prefix: str
) -> tuple[Input, ...] | None:
    """Return the inputs of a formula, or None for integers, tables and tensors with other dimensions."""
    found = list[Input]()
    for at, (source, argument) in enumerate(zip(formula.sources, arguments, strict=True)):
        name = f"{prefix}_{at}"
        if isinstance(argument, Expr):
            if source.kind != "number" or not argument.leaves_are("host"):
                return None
            symbols = tuple(dict.fromkeys(str(leaf.args[0]) for leaf in argument.leaves()))
            number = argument.render(lambda leaf: name_of_number(leaf.args[0]), parent=True)
            found.append(Input(name=name, kind="number", number=number, symbols=symbols))
            continue
        indexed = indexed_source(argument, source, problem)
        if indexed is None or source.kind not in ("exact", "query", "key", "head"):
            return None
        found.append(Input(name=name, kind=source.kind, indexed=indexed))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Score:
    """The text of scores in powers of two, from products ``x``: ``lines`` after those of the ``inputs``, and ``value`` times
    ``unit``. ``slopes`` are the derivatives of the value by ``x``, then by each input; None is one without a rule."""

    inputs: tuple[Input, ...]
    lines: tuple[str, ...]
    value: str
    slopes: tuple[str | None, ...]
    unit: float
    selects: bool = False
    """True if a query may see no key, by a condition that the kernel computes."""

    def reads(self, axes: tuple[str, ...]) -> list[str]:
        """Return the lines that read the inputs of a head."""
        return [f"{each.name}_value = {each.text(axes)}" for each in self.inputs]


@dataclass(frozen=True)
class Term:
    """The text of a value of a formula, and its type."""

    text: str
    of: Of = "float"

    @property
    def condition(self) -> str:
        return self.text if self.of == "truth" else f"({self.text} != 0)"


def factor_of(formula: Formula, inputs: tuple[Input, ...]) -> str | None:
    """Return the text of the number that queries are multiplied by, or None for other formulas. Roundings are left out."""
    if not formula.instructions:
        return "1.0"
    value, factors = formula.value, list[str]()
    while value >= formula.computed:
        made = formula.instructions[value - formula.computed]
        rest = made.arguments if made.op in ROUNDED else [each for each in made.arguments if _starts(formula, each)]
        if len(rest) != 1 or not isinstance(rest[0], int) or made.op not in (*ROUNDED, "mul"):
            return None
        value = rest[0]
        for each in made.arguments:
            if isinstance(each, Constant):
                factors.append(repr(float(each.text)))
            elif each != value:
                factors.append(inputs[each - formula.starts].number)
    return f"({' * '.join(factors)})" if value == 0 and factors else None


def _starts(formula: Formula, value: int | Constant) -> bool:
    """Return whether a value is computed, or one that a formula starts from."""
    return not isinstance(value, Constant) and not formula.starts <= value < formula.computed


def score_of(
    problem: AttentionProblem, inputs: tuple[Input, ...], factor: str, more: tuple[Input, ...]
) -> Score | None:
    """Return the text of the scores and of their derivatives, or None for other operations. Products are multiplied by
    ``factor``, which reads the inputs ``more``."""
    formula = problem.score
    terms = [Term("x"), *(Term(f"{each.name}_value", each.of) for each in inputs)]
    count = len(terms)
    slopes: list[list[str | None]] = [["1.0" if at == of else "0.0" for at in range(count)] for of in range(count)]
    slopes[0][0] = factor
    lines = [] if factor == "1.0" else [f"x = x * {factor}"]
    for at, made in enumerate(formula.instructions):
        integral = any(not isinstance(each, Constant) and terms[each].of == "integer" for each in made.arguments)
        given = [_literal(each, integral) if isinstance(each, Constant) else terms[each] for each in made.arguments]
        found = _value(made.op, given)
        if found is None:
            return None
        for of in slopes:
            steps = ["0.0" if isinstance(each, Constant) else of[each] for each in made.arguments]
            of.append(_slope(made.op, given, steps, f"y{at}"))
        terms.append(Term(f"y{at}", found.of))
        lines.append(f"y{at} = {found.text}")
    known = tuple(of[formula.value] for of in slopes)
    if known[0] is None:
        return None
    return Score(
        inputs=(*inputs, *more),
        lines=tuple(lines),
        value=terms[formula.value].text,
        slopes=(*known, *(None for _ in more)),
        unit=problem.unit * problem.scale,
        selects=any(made.op == "where" for made in formula.instructions),
    )


LOWEST = 'float("-inf")'


def _literal(number: Constant, integral: bool) -> Term:
    """Return the text of a constant: of an integer, if it meets one."""
    value = float(number.text)
    if math.isinf(value):
        return Term(LOWEST if value < 0 else 'float("inf")')
    return Term(repr(int(value)), "integer") if integral and value.is_integer() else Term(repr(value))


def _value(op: str, given: Sequence[Term]) -> Term | None:
    """Return the text of an operation."""
    texts, types = [each.text for each in given], [each.of for each in given]
    if op in INDICES:
        return Term(INDICES[op], "integer")
    if op in POSITIONS:
        return Term(f"{POSITIONS[op]}.to(torch.float32)")
    if op in ROUNDED:
        return Term(f"{texts[0]}.to({ROUNDED[op]}).to(torch.float32)")
    if op in ("tanh", "abs"):
        return Term(f"torch.{op}({texts[0]})", types[0])
    if op == "neg":
        return Term(f"-{texts[0]}", types[0])
    if op in COMPARISONS:
        if op == "eq" and types[0] == "truth" and texts[1] == "0.0":
            return Term(f"~{texts[0]}", "truth")
        return None if "truth" in types else Term(f"{texts[0]} {COMPARISONS[op]} {texts[1]}", "truth")
    if op in LOGICAL:
        both = types == ["truth", "truth"]
        return Term(f"{texts[0]} {LOGICAL[op]} {texts[1]}", "truth") if both else None
    if op == "where":
        same = types[1] if types[1] == types[2] else "float"
        return Term(f"torch.where({given[0].condition}, {texts[1]}, {texts[2]})", same)
    if op not in BINARY or "truth" in types:
        return None
    return Term(
        f"{texts[0]} {BINARY[op]} {texts[1]}", "integer" if types == ["integer"] * 2 and op != "div" else "float"
    )


def _slope(op: str, given: Sequence[Term], steps: Sequence[str | None], name: str) -> str | None:
    """Return the text of the derivative of an operation called ``name``, from those of its operands."""
    if not steps or all(each == "0.0" for each in steps):
        return "0.0"
    if any(each is None for each in steps):
        return None
    known = [each or "" for each in steps]
    texts = [each.text for each in given]
    if op in ROUNDED:
        return known[0]
    if op == "tanh":
        return _product(f"(1 - {name} * {name})", known[0])
    if op in ("neg", "sub"):
        return _product("-1.0", known[0]) if op == "neg" else _sum(known[0], _product("-1.0", known[1]))
    if op == "add":
        return _sum(*known)
    if op == "mul":
        return _sum(_product(known[0], texts[1]), _product(texts[0], known[1]))
    if op == "where":
        return _selected(given, known)
    return _product(known[0], f"(1.0 / {texts[1]})") if op == "div" and known[1] == "0.0" else None


def _selected(given: Sequence[Term], steps: Sequence[str]) -> str:
    """Return the derivative of a selection. Weights of minus infinity are 0, whatever they are multiplied by."""
    condition, one, other = given
    if other.text == LOWEST or steps[1] == steps[2]:
        return steps[1]
    if one.text == LOWEST:
        return steps[2]
    return f"torch.where({condition.condition}, {steps[1]}, {steps[2]})"


def _product(one: str, other: str) -> str:
    if "0.0" in (one, other):
        return "0.0"
    return other if one == "1.0" else one if other == "1.0" else f"({one} * {other})"


def _sum(one: str, other: str) -> str:
    return other if one == "0.0" else one if other == "0.0" else f"({one} + {other})"


# A score without a value ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sink:
    """A score of each head without a value, which takes part in the sum: its ``input`` times ``factor`` plus ``added``, in
    powers of two."""

    input: Input
    factor: float
    added: float

    def text(self, axes: tuple[str, ...]) -> str:
        return f"({self.input.text(axes)} * {self.factor!r} + {self.added!r})"


def sink_of(problem: AttentionProblem, value: int, inputs: tuple[Input, ...]) -> Sink | None:
    """Return the score whose exponential, less the maximum, is a value of the formula of outputs; None for other values."""
    made = made_by(problem.finish, value)
    if made is None or made.op not in ("exp", "exp2") or isinstance(made.arguments[0], Constant):
        return None
    base = math.log2(math.e) if made.op == "exp" else 1.0
    found = _linear(problem.finish, made.arguments[0])
    if found is None:
        return None
    less = found.pop(MAXIMUM, 0.0) * base
    if not math.isclose(less, -problem.unit, rel_tol=1e-6):
        return None
    return _sink(found, base, 0.0, inputs, problem.finish.starts)


def held_sink_of(problem: AttentionProblem, inputs: tuple[Input, ...]) -> Sink | None:
    """Return the score without a value that the program begins its maximum and sum with, or None.

    The outputs of such a program are acc * c / (total * c + d * t), with the initial sum t. The factors c and d make both sums
    relative to the larger one of the maximum and the initial score.
    """
    finish = problem.finish
    quotient = _arguments(finish, problem.matrix.value, "div")
    above, below = (_arguments(finish, each, op) for each, op in zip(quotient or (0, 0), ("mul", "add"), strict=True))
    if above is None or below is None or above[0] != ACCUMULATOR:
        return None
    shrunk, share = above[1], below[1]
    if _arguments(finish, below[0], "mul") != (TOTAL, shrunk):
        return None
    weight, count = share, 1.0
    product = _arguments(finish, share, "mul")
    if product is not None:
        number, weight = product if isinstance(product[0], Constant) else product[::-1]
        if not isinstance(number, Constant) or float(number.text) <= 0:
            return None
        count = float(number.text)
    initial, highest = _exponent_of(finish, weight, problem.unit), _exponent_of(finish, shrunk, problem.unit)
    if initial is None or highest is None or highest[0] != MAXIMUM or initial[1] != highest[1]:
        return None
    larger = _arguments(finish, highest[1], "where")
    if larger is None or larger[1] != initial[0] or _arguments(finish, larger[2], "maximum") != (MAXIMUM, initial[0]):
        return None
    found = _linear(finish, initial[0])
    return None if found is None else _sink(found, problem.unit, math.log2(count), inputs, finish.starts)


def _arguments(formula: Formula, value: int | Constant, op: str) -> tuple[int | Constant, ...] | None:
    """Return the arguments of an operation, if it makes a value."""
    made = made_by(formula, value)
    return made.arguments if made is not None and made.op == op else None


def _exponent_of(formula: Formula, value: int | Constant, unit: float) -> tuple[int | Constant, int | Constant] | None:
    """Return a and b of a selection with exp2((a - b) * unit) as its other value."""
    chosen = _arguments(formula, value, "where")
    power = None if chosen is None else _arguments(formula, chosen[2], "exp2")
    scaled = None if power is None else _arguments(formula, power[0], "mul")
    if scaled is None or not isinstance(scaled[1], Constant) or float(scaled[1].text) != unit:
        return None
    less = _arguments(formula, scaled[0], "sub")
    return None if less is None else (less[0], less[1])


def _sink(
    found: dict[int | None, float], base: float, more: float, inputs: tuple[Input, ...], first: int
) -> Sink | None:
    """Return a score from the factors of a sum, in powers of two if it is multiplied by ``base``; None if it reads no input of a
    head, or several."""
    added = found.pop(None, 0.0) * base + more
    if len(found) != 1:
        return None
    ((at, factor),) = found.items()
    if at is None or not 0 <= at - first < len(inputs) or inputs[at - first].kind != "head":
        return None
    return Sink(input=inputs[at - first], factor=factor * base, added=added)


def made_by(formula: Formula, value: int | Constant) -> Instruction | None:
    """Return the instruction that makes a value."""
    if isinstance(value, Constant) or value < formula.computed:
        return None
    return formula.instructions[value - formula.computed]


def _linear(formula: Formula, value: int | Constant) -> dict[int | None, float] | None:
    """Return the factors of the values that a sum is computed from, and a number for None; or None for other values."""
    if isinstance(value, Constant):
        return {None: float(value.text)}
    made = made_by(formula, value)
    if made is None:
        return {value: 1.0}
    parts = [_linear(formula, each) for each in made.arguments]
    if any(each is None for each in parts):
        return None
    known = [each or {} for each in parts]
    if made.op in ("add", "sub"):
        return _scaled_sum(known[0], known[1], 1.0 if made.op == "add" else -1.0)
    if made.op == "neg":
        return _scaled_sum({}, known[0], -1.0)
    if made.op in ("mul", "div") and {*known[1]} == {None}:
        return _scaled_sum({}, known[0], known[1][None] if made.op == "mul" else 1 / known[1][None])
    if made.op == "mul" and {*known[0]} == {None}:
        return _scaled_sum({}, known[1], known[0][None])
    return None


def _scaled_sum(one: dict[int | None, float], other: dict[int | None, float], scale: float) -> dict[int | None, float]:
    return {each: one.get(each, 0.0) + scale * other.get(each, 0.0) for each in (*one, *other)}
