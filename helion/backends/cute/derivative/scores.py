"""The text of scores and of their derivatives, from the formula of an attention's problem."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...._compiler.ir.grammar import HostTensor
from ...._shapes import Expr
from ..plan.attention.records import MAXIMUM, AttentionProblem, Formula
from ..plan.epilogue import COLUMN_NUMBER, ROW_NUMBER, Constant, Instruction
from .indexed import Indexed, indexed_source

BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
ROUNDED = {"round_bfloat16": "torch.bfloat16", "round_float16": "torch.float16"}
POSITIONS = {ROW_NUMBER: "tile_m.index[:, None]", COLUMN_NUMBER: "tile_n.index[None, :]"}
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

    def text(self, axes: tuple[str, ...], vector: bool = False) -> str:
        """Return its elements for a tile of queries by a tile of keys; or with ``vector`` as they are loaded."""
        if self.indexed is None:
            return self.number
        loaded = f"{self.indexed.text(self.name, axes, 'tile_m', 'tile_n')}.to(torch.float32)"
        return loaded if vector else f"{loaded}{BROADCAST.get(self.kind, '')}"


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
        if (
            indexed is None
            or source.kind not in ("exact", "query", "key", "head")
            or not argument.dtype.is_floating_point
        ):
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

    def reads(self, axes: tuple[str, ...]) -> list[str]:
        """Return the lines that read the inputs of a head."""
        return [f"{each.name}_value = {each.text(axes)}" for each in self.inputs]


def score_of(problem: AttentionProblem, inputs: tuple[Input, ...]) -> Score | None:
    """Return the text of the scores and of their derivatives, or None for other operations."""
    formula = problem.score
    names = ["x", *(f"{each.name}_value" for each in inputs)]
    slopes: list[list[str | None]] = [
        ["1.0" if at == of else "0.0" for at in range(len(names))] for of in range(len(names))
    ]
    lines = []
    for at, made in enumerate(formula.instructions):
        given = [repr(float(each.text)) if isinstance(each, Constant) else names[each] for each in made.arguments]
        text = _value(made.op, given)
        if text is None:
            return None
        for of in slopes:
            steps = ["0.0" if isinstance(each, Constant) else of[each] for each in made.arguments]
            of.append(_slope(made.op, given, steps, f"y{at}"))
        names.append(f"y{at}")
        lines.append(f"y{at} = {text}")
    found = tuple(of[formula.value] for of in slopes)
    if found[0] is None:
        return None
    return Score(
        inputs=inputs,
        lines=tuple(lines),
        value=names[formula.value],
        slopes=found,
        unit=problem.unit * problem.scale,
    )


def _value(op: str, given: Sequence[str]) -> str | None:
    """Return the text of an operation."""
    if op in POSITIONS:
        return f"{POSITIONS[op]}.to(torch.float32)"
    if op in ROUNDED:
        return f"{given[0]}.to({ROUNDED[op]}).to(torch.float32)"
    if op in ("tanh", "neg"):
        return f"torch.tanh({given[0]})" if op == "tanh" else f"-{given[0]}"
    return f"{given[0]} {BINARY[op]} {given[1]}" if op in BINARY else None


def _slope(op: str, given: Sequence[str], steps: Sequence[str | None], name: str) -> str | None:
    """Return the text of the derivative of an operation called ``name``, from those of its operands."""
    if not steps or all(each == "0.0" for each in steps):
        return "0.0"
    if any(each is None for each in steps):
        return None
    known = [each or "" for each in steps]
    if op in ROUNDED:
        return known[0]
    if op == "tanh":
        return _product(f"(1 - {name} * {name})", known[0])
    if op in ("neg", "sub"):
        return _product("-1.0", known[0]) if op == "neg" else _sum(known[0], _product("-1.0", known[1]))
    if op == "add":
        return _sum(*known)
    if op == "mul":
        return _sum(_product(known[0], given[1]), _product(given[0], known[1]))
    return _product(known[0], f"(1.0 / {given[1]})") if known[1] == "0.0" else None


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
    added = found.pop(None, 0.0) * base
    first = problem.finish.starts
    if len(found) != 1 or not math.isclose(less, -problem.unit, rel_tol=1e-6):
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
