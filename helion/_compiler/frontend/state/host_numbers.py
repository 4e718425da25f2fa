"""Numbers of the host code: those of the arguments, and those that are known at run time."""

from __future__ import annotations

import ast
from typing import Any

from .... import exc
from ...._shapes import Expr, fixed_at, positive_part
from ...._support.records import dataclass
from ...source import Place
from ..journal import Part
from ..polynomials import of_number
from ..values import HostTensorValue

Origin = tuple[Any, ...]


@dataclass(frozen=True)
class Symbol:
    """A run-time number of the arguments.

    ``source`` is the host expression. ``origin`` is the path ``("arg", position, step ...)`` to it. A step is an index,
    a key, an attribute name, or a method with its arguments, as in ``("size", dim)``.
    """

    name: str
    source: str
    origin: Origin

    @property
    def is_size(self) -> bool:
        """True for the size of a dimension."""
        step = self.origin[-1] if self.origin else None
        return isinstance(step, tuple) and step[0] == "size"


class HostNumbers(Part):
    """Numbers by their names in generated host code."""

    def __init__(self) -> None:
        self.symbols: dict[str, Symbol] = {}
        self.specialized: dict[str, Any] = {}
        #: Sizes and strides of the arguments that are equal to another symbol: host expression and path, by its name.
        self.equal: dict[str, tuple[tuple[str, Any], ...]] = {}
        #: Numbers that change from one iteration of a host loop to the next: the user's variable.
        self.loop_numbers: dict[str, str] = {}
        #: Sizes and strides of tensors that the host code makes: the tensor and the method call that reads them.
        self.deferred: dict[str, tuple[HostTensorValue, str]] = {}
        #: Numbers computed again for every launch: host expressions, empty where the name itself is one.
        self.drawn: dict[str, str] = {}
        #: Expressions of the host code whose results launches need: one name for each time that the trace evaluated it.
        self.captures: dict[Place, tuple[str, ...]] = {}
        #: The user's expressions of captured results, by name.
        self.written: dict[str, ast.expr] = {}
        self.captured = 0
        #: Names that occur in the kernel's source.
        self.taken: frozenset[str] = frozenset()
        #: With dynamic shapes: conditions on sizes and strides of the arguments that the trace assumes. A name is a
        #: symbol, of which the trace assumes its minimum in ``least``.
        self.argument_checks: list[str] = []
        #: Symbols that are the size of a dimension of an argument; the others may be strides, or numbers.
        self.sizes: set[str] = set()
        #: Minimum of a size that the trace has relied on, by the name of its symbol: 1 or 2; absent for any size.
        self.least: dict[str, int] = {}

    def equal_sizes(self, number: Expr) -> str:
        """Return the sizes of arguments that share the symbols of a number because they are equal in this call."""
        shared = (source for leaf in number.leaves() for source, _ in self.equal.get(str(leaf.args[0]), ()))
        return " and ".join(dict.fromkeys(source for source in shared if ".size(" in source))

    def text_of(self, number: Expr) -> str:
        """Return a number for a message, with the sizes that are equal in this call: the user may mean one of them."""
        other = self.equal_sizes(number)
        return f"{number!r}{other and f' (equal to {other} in this call)'}"

    def fresh_name(self, base: str, number: int) -> str:
        """Return a name of generated host code that the kernel's source does not use."""
        name = f"{base}_{number}"
        while name in self.taken:
            name += "_"
        return name

    def known(self, number: Any) -> Any:
        """Return the value seen at bind time for a number whose symbols are all specialized, else the number."""
        if isinstance(number, Expr) and all(leaf.args[0] in self.specialized for leaf in number.leaves()):
            return number.hint
        return number

    def symbol(self, name: str, source: str, origin: tuple[Any, ...], hint: Any) -> Expr:
        """Return a run-time number of the arguments: ``source`` is the host expression, ``origin`` the path to it."""
        while name in self.symbols and self.symbols[name].source != source:
            name = f"{name}_"
        self.symbols[name] = Symbol(name, source, origin)
        return Expr("host", (name,), hint)

    def specialize(self, value: Expr) -> Any:
        """Return the number seen at bind time; the arguments it depends on become part of the specialization key."""
        for leaf in value.leaves():
            if leaf.op == "host" and leaf.args[0] in self.loop_numbers:
                raise exc.ChangesInHostLoop(name=self.loop_numbers[leaf.args[0]])
            if leaf.op != "host" or leaf.args[0] not in self.symbols:
                raise exc.SpecializeArgType(got=repr(value))
            self.specialized[leaf.args[0]] = self.symbols[leaf.args[0]].origin
            self.specialized.update(self.equal.get(leaf.args[0], ()))
        return value.hint

    def is_never_negative(self, number: Any) -> bool:
        """Return whether a host number is known to be at least 0, as sizes are."""
        if not isinstance(number, Expr):
            return bool(number >= 0)
        if number.op == "host":
            name = number.args[0]
            measure = self.deferred[name][1] if name in self.deferred else ""
            return (name in self.symbols and self.symbols[name].is_size) or measure.startswith("size")
        if number.op == "neg":  # -(-a // b) rounds up
            inner = number.args[0]
            negated = inner.args[0] if isinstance(inner, Expr) and inner.op == "floordiv" else None
            if isinstance(negated, Expr) and negated.op == "neg":
                return self.is_never_negative(negated.args[0]) and self.is_never_negative(inner.args[1])
            return False
        if number.op == "max":
            return any(map(self.is_never_negative, number.args))
        if number.op in ("add", "mul", "floordiv", "mod", "min"):
            return all(map(self.is_never_negative, number.args))
        return number.op in ("block", "next_power_of_2")

    def is_known_at_launch(self, leaf: Expr) -> bool:
        """Return whether a launch can compare a leaf of a number, and code for its value in this call can be made."""
        return leaf.op == "block" or (
            leaf.op == "host" and (leaf.args[0] in self.symbols or leaf.args[0] in self.deferred)
        )

    def is_at_most(self, number: Any, most: Any) -> bool:
        """Return whether a host number is known to be at most another one, whatever the arguments are."""
        number, most = positive_part(number), positive_part(most) if self.is_never_negative(most) else most
        if isinstance(most, Expr) and most.op in ("min", "max"):
            decide = all if most.op == "min" else any
            if decide(self.is_at_most(number, each) for each in most.args):
                return True
        if isinstance(number, Expr) and number.op in ("min", "max"):
            decide = any if number.op == "min" else all
            return decide(self.is_at_most(each, most) for each in number.args)
        rest = of_number(most) - of_number(number)
        atoms = (rest.numbers.get(atom) for atom in rest.atoms)
        positive = all(atom is not None and self.is_never_negative(atom) for atom in atoms)
        return positive and all(coefficient > 0 for coefficient in rest.terms.values())

    def rely_on(self, number: Any, least: int = 2) -> None:
        """Record that the code is right only if the sizes of arguments in a number are at least ``least``."""
        for leaf in number.leaves() if isinstance(number, Expr) else ():
            if leaf.op == "host" and leaf.args[0] in self.sizes:
                self.least[leaf.args[0]] = max(least, self.least.get(leaf.args[0], 0))

    def conditions(self, least_size: int) -> tuple[str, ...]:
        """Return the conditions on sizes and strides of the arguments under which the traced code is right.

        All sizes must be at least ``least_size``.
        """
        found = []
        for check in self.argument_checks:
            least = max(self.least.get(check, 0), least_size if check in self.sizes else 0)
            if check not in self.symbols:
                found.append(check)
            elif least:
                found.append(f"{self.symbols[check].source} > {least - 1}")
        return tuple(found)

    def is_above_one(self, number: Any) -> bool:
        """Return whether a host number is at least 2. The code relies on that where it is so for sizes of arguments."""
        if not isinstance(number, Expr):
            return bool(number > 1)
        if number.op == "host":
            self.rely_on(number)
            return number.args[0] in self.symbols and self.symbols[number.args[0]].is_size
        if number.op == "sub" and fixed_at(number.args[1], 0):
            return self.is_above_one(number.args[0])
        if number.op == "add":
            return all(map(self.is_never_negative, number.args)) and any(map(self.is_above_one, number.args))
        if number.op == "mul":
            return all((isinstance(arg, int) and arg > 0) or self.is_above_one(arg) for arg in number.args)
        return number.op == "max" and any(map(self.is_above_one, number.args))

    def changes(self, value: Any) -> bool:
        """Return whether a number differs from one iteration of a host loop to the next."""
        return isinstance(value, Expr) and any(leaf.args[0] in self.loop_numbers for leaf in value.leaves())
