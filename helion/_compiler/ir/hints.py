"""Programs with run-time size hints other than the sizes seen when binding."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from ..._shapes import Expr
from .grammar import Program

T = TypeVar("T")


def sizes_of_blocks(program: Program) -> tuple[str, ...]:
    """Return the names of run-time integers that block extents depend on, in the order of the blocks."""
    extents = (block.extent for block in program.blocks)
    leaves = (leaf for extent in extents if isinstance(extent, Expr) for leaf in extent.leaves())
    return tuple(dict.fromkeys(leaf.args[0] for leaf in leaves if leaf.op == "host" and leaf.kind is int))


def with_hints(program: Program, hints: Mapping[str, int]) -> Program:
    """Return ``program`` as if its run-time numbers had these values, by name, when it was bound.

    It computes the same for all values. Only quantities derived from hints change: facts, predictions, seeds.
    """
    return _Hinted(hints).of(program) if hints else program


class _Hinted:
    """Rewriter of records that contain numbers; all others stay the same objects."""

    def __init__(self, hints: Mapping[str, int]) -> None:
        self._hints = hints
        # By identity; the originals are kept alive with their replacements.
        self._known: dict[int, tuple[Any, Any]] = {}

    def of(self, thing: T) -> T:
        if isinstance(thing, (int, float, str, ast.AST)) or thing is None:
            return thing
        known = self._known.get(id(thing))
        if known is None:
            known = self._known[id(thing)] = (thing, self._made(thing))
        found: T = known[1]
        return found

    def _made(self, thing: Any) -> Any:
        if isinstance(thing, Expr):
            return self._number(thing)
        if isinstance(thing, (tuple, list)):
            items = [self.of(item) for item in thing]
            same = all(new is old for new, old in zip(items, thing, strict=True))
            return thing if same else type(thing)(*items) if hasattr(thing, "_fields") else type(thing)(items)
        if isinstance(thing, Mapping):
            values = {key: self.of(value) for key, value in thing.items()}
            return thing if all(values[key] is thing[key] for key in thing) else values
        if is_dataclass(thing) and not isinstance(thing, type):
            each = ((f.name, getattr(thing, f.name)) for f in fields(thing) if f.init)
            changed = {name: new for name, old in each if (new := self.of(old)) is not old}
            return replace(thing, **changed) if changed else thing
        return thing

    def _number(self, number: Expr) -> Expr:
        if number.op == "host":
            hint = self._hints.get(number.args[0], number.hint)
            return number if hint == number.hint else Expr(number.op, number.args, hint)
        args = tuple(self.of(arg) for arg in number.args)
        if all(new is old for new, old in zip(args, number.args, strict=True)):
            return number
        made = Expr(number.op, args, number.hint)
        try:
            return replace(made, hint=number.kind(made.evaluate(lambda leaf: leaf.hint)))
        except (ZeroDivisionError, ValueError, OverflowError):
            return made


__all__ = ["sizes_of_blocks", "with_hints"]
