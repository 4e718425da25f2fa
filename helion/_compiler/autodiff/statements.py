"""Statements of a kernel under construction: lines of source with the names that they define and read."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from ..._shapes import Dims
from ..._support.syntax import parse


@dataclass(frozen=True, kw_only=True)
class Var:
    """A device value of the kernel under construction, by its name."""

    name: str
    dtype: torch.dtype
    dims: Dims


#: Cost of recomputing a value: a few instructions, a read of memory, or a pass over data.
Cost = Literal["cheap", "load", "costly"]


@functools.lru_cache(maxsize=4096)
def names_of(text: str) -> frozenset[str]:
    """Return the variables that a line of source names."""
    return frozenset(node.id for node in ast.walk(parse(text)) if isinstance(node, ast.Name))


@dataclass(frozen=True, kw_only=True)
class Assign:
    """``targets = text``. ``carried``: the assignment updates a variable that a loop carries."""

    targets: tuple[Var, ...]
    text: str
    cost: Cost = "cheap"
    carried: bool = False

    @property
    def line(self) -> str:
        return f"{', '.join(v.name for v in self.targets)} = {self.text}"

    @property
    def reads(self) -> frozenset[str]:
        return names_of(self.text)


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A store or an atomic operation. If ``wanted`` is given, it is kept only where live statements read that name."""

    text: str
    wanted: str | None = None

    @property
    def reads(self) -> frozenset[str]:
        return names_of(self.text)


@dataclass(frozen=True, kw_only=True)
class Sink:
    """A share of the gradient of load number ``load`` that still needs a store or an atomic operation.

    ``value`` has one lane for each element that is read, at ``indices`` where ``mask`` is true.
    """

    load: int
    value: Var
    indices: tuple[str, ...]
    mask: str | None = None

    @property
    def reads(self) -> frozenset[str]:
        parts = [*(f"_[{index}]" for index in self.indices), *([self.mask] if self.mask else [])]
        return frozenset((self.value.name,)).union(*map(names_of, parts))


@dataclass(frozen=True, kw_only=True)
class Nest:
    """A loop or a branch: ``header`` and its ``body``, and for a branch the statements of ``else``.

    ``op`` is the number of the forward loop that it differentiates, ``tiles`` are the names that the header binds.
    """

    header: str
    body: tuple[Statement, ...]
    orelse: tuple[Statement, ...] = ()
    op: int | None = None
    tiles: tuple[str, ...] = ()
    #: Its iterations depend on each other.
    ordered: bool = False

    @property
    def reads(self) -> frozenset[str]:
        """Names that the header reads."""
        text = self.header.removesuffix(":")
        condition = text.removeprefix("if ") if text.startswith("if ") else text.partition(" in ")[2]
        return names_of(condition)


Statement = Assign | Effect | Sink | Nest


@dataclass
class Block:
    """Statements under construction."""

    statements: list[Statement] = field(default_factory=list)


def walk(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Yield every statement, outer ones first."""
    for statement in statements:
        yield statement
        if isinstance(statement, Nest):
            yield from walk(statement.body)
            yield from walk(statement.orelse)


def prune(statements: Sequence[Statement], wanted: Iterable[str] = ()) -> tuple[Statement, ...]:
    """Remove statements without effect: names are live if a live statement reads them or if they are ``wanted``."""
    live = set(wanted)
    while True:
        kept = _kept(statements, live)
        found = live | {name for statement in walk(kept) for name in _needed(statement)}
        if found == live:
            return kept
        live = found


def _needed(statement: Statement) -> frozenset[str]:
    """Return the names that a statement makes live, without the buffer that a store fills."""
    own = frozenset((statement.wanted,)) if isinstance(statement, Effect) else frozenset()
    return statement.reads - own


def _kept(statements: Sequence[Statement], live: set[str]) -> tuple[Statement, ...]:
    kept: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Assign) and not any(v.name in live for v in statement.targets):
            continue
        if isinstance(statement, Effect) and statement.wanted is not None and statement.wanted not in live:
            continue
        if isinstance(statement, Nest):
            statement = replace(statement, body=_kept(statement.body, live), orelse=_kept(statement.orelse, live))
            if not statement.body and not statement.orelse:
                continue
        kept.append(statement)
    return tuple(kept)


def defined(statements: Iterable[Statement]) -> dict[str, Var]:
    """Return the variables that statements define, those in nests included."""
    return {v.name: v for statement in walk(statements) if isinstance(statement, Assign) for v in statement.targets}


def merge(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Remove assignments of expressions that another variable already has; loop-carried variables are left alone."""
    changing = {v.name for s in walk(statements) if isinstance(s, Assign) and s.carried for v in s.targets}
    return _merged(statements, {}, {}, changing)


def _merged(
    statements: Sequence[Statement], known: Mapping[str, tuple[Var, ...]], names: Mapping[str, str], changing: set[str]
) -> tuple[Statement, ...]:
    """Merge equal assignments; ``known`` are variables by expression, ``names`` the substitutions of variables."""
    known, names = dict(known), dict(names)
    made: list[Statement] = []
    for statement in statements:
        statement = _renamed(statement, names)
        if isinstance(statement, Nest):
            body = _merged(statement.body, known, names, changing)
            orelse = _merged(statement.orelse, known, names, changing)
            statement = replace(statement, body=body, orelse=orelse)
        elif isinstance(statement, Assign) and not (statement.carried or _targets(statement) & changing):
            fixed = not statement.reads & changing
            held = known.get(statement.text) if fixed else None
            if held is not None and [v.dtype for v in held] == [v.dtype for v in statement.targets]:
                names.update((v.name, other.name) for v, other in zip(statement.targets, held, strict=True))
                continue
            if fixed:
                known[statement.text] = statement.targets
        made.append(statement)
    return tuple(made)


def _targets(statement: Assign) -> set[str]:
    return {v.name for v in statement.targets}


def _renamed(statement: Statement, names: Mapping[str, str]) -> Statement:
    """Rename the variables that a statement reads; nested statements stay as they are."""
    match statement:
        case Assign(text=text):
            return replace(statement, text=_substituted(text, names))
        case Effect(text=text):
            return replace(statement, text=_substituted(text, names))
        case Nest(header=header):
            return replace(statement, header=_substituted(header, names))
        case Sink(value=value, indices=indices, mask=mask):
            return replace(
                statement,
                value=replace(value, name=names.get(value.name, value.name)),
                indices=tuple(_substituted(index, names) for index in indices),
                mask=None if mask is None else _substituted(mask, names),
            )


#: A variable, and neither an attribute nor the name of an argument.
_VARIABLE = re.compile(r"(?<![\w.\"'])[A-Za-z_]\w*(?!=[^=])")


def _substituted(text: str, names: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: names.get(found.group(), found.group()), text) if names else text


def hoist(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Hoist loop-invariant assignments out of loops.

    Initializations of values that an inner loop carries stay, because they run in every iteration. Loads at computed
    indices stay in loops that may be empty, because the indices may be out of range there.
    """
    return _hoisted(statements, frozenset(defined(statements)))


def _hoisted(statements: Sequence[Statement], computed: frozenset[str]) -> tuple[Statement, ...]:
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Nest):
            body, orelse = _hoisted(statement.body, computed), _hoisted(statement.orelse, computed)
            statement = replace(statement, body=body, orelse=orelse)
            if not statement.header.startswith("if "):
                moved, rest = _invariant(statement, computed)
                made += moved
                statement = replace(statement, body=rest)
        made.append(statement)
    return tuple(made)


def _invariant(loop: Nest, computed: frozenset[str]) -> tuple[list[Statement], tuple[Statement, ...]]:
    """Return the assignments that can be hoisted out of a loop, and the rest of its body."""
    inside = {*defined(loop.body), *loop.tiles}
    changing = defined(s for s in walk(loop.body) if isinstance(s, Assign) and s.carried)
    may_be_empty = bool(loop.reads - {"hl"})
    moved: list[Statement] = []
    rest: list[Statement] = []
    for inner in loop.body:
        if (
            not isinstance(inner, Assign)
            or _targets(inner) & changing.keys()
            or inner.reads & inside
            or (may_be_empty and inner.cost == "load" and inner.reads & computed)
        ):
            rest.append(inner)
        else:
            inside -= _targets(inner)
            moved.append(inner)
    return moved, tuple(rest)


def closure(statements: Sequence[Statement], wanted: Iterable[str]) -> tuple[tuple[Statement, ...], frozenset[str]]:
    """Return the statements that names depend on, and the names that they read from elsewhere."""
    kept = prune(_without_effects(statements), wanted)
    read = {name for s in walk(kept) for name in s.reads} | set(wanted)
    return kept, frozenset(read - set(defined(kept)))


def _without_effects(statements: Sequence[Statement]) -> tuple[Statement, ...]:
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, (Effect, Sink)):
            continue
        if isinstance(statement, Nest):
            statement = replace(
                statement, body=_without_effects(statement.body), orelse=_without_effects(statement.orelse)
            )
        made.append(statement)
    return tuple(made)


def replace_sinks(
    statements: Iterable[Statement], made: Callable[[Sink], Sequence[Statement]]
) -> tuple[Statement, ...]:
    """Replace each sink by statements."""
    changed: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Sink):
            changed += made(statement)
        elif isinstance(statement, Nest):
            body, orelse = replace_sinks(statement.body, made), replace_sinks(statement.orelse, made)
            changed.append(replace(statement, body=body, orelse=orelse))
        else:
            changed.append(statement)
    return tuple(changed)


def render(statements: Iterable[Statement], indent: str) -> list[str]:
    """Return statements as lines of source."""
    lines: list[str] = []
    for statement in statements:
        match statement:
            case Assign():
                lines.append(indent + statement.line)
            case Effect():
                lines.append(indent + statement.text)
            case Nest():
                lines.append(indent + statement.header)
                lines += render(statement.body, indent + "    ") or [f"{indent}    pass"]
                if statement.orelse:
                    lines += [f"{indent}else:", *render(statement.orelse, indent + "    ")]
            case Sink():
                raise AssertionError("a sink without a store")
    return lines
