"""Symbolic host numbers, dimensions of device values, and shape rules as pure functions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

import torch


def cdiv(a: int, b: int) -> int:
    """``ceil(a / b)`` for integers (symbolic ones included)."""
    return -(-a // b)


def next_power_of_2(n: Any) -> Any:
    """The smallest power of two that is at least ``n`` (1 for ``n <= 1``); of a symbolic integer a symbolic one."""
    if isinstance(n, Expr):
        return Expr("next_power_of_2", (n,), next_power_of_2(n.hint))
    return 1 << max(0, int(n) - 1).bit_length()


def previous_power_of_2(n: int) -> int:
    """The largest power of two that is at most ``n`` (1 for ``n < 1``)."""
    return 1 << (max(1, int(n)).bit_length() - 1)


def is_power_of_2(n: int) -> bool:
    return n > 0 and not n & (n - 1)


# --- numbers that are known when the kernel runs -----------------------------------------------------------------------

_BINARY = {
    "add": ("+", operator.add),
    "sub": ("-", operator.sub),
    "mul": ("*", operator.mul),
    "truediv": ("/", operator.truediv),
    "floordiv": ("//", operator.floordiv),
    "mod": ("%", operator.mod),
    "pow": ("**", operator.pow),
    "eq": ("==", operator.eq),
    "ne": ("!=", operator.ne),
    "lt": ("<", operator.lt),
    "le": ("<=", operator.le),
    "gt": (">", operator.gt),
    "ge": (">=", operator.ge),
}
_FUNCTIONS = {"min": min, "max": max}
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))

#: Expressions that are not made of others.
LEAVES = frozenset(("host", "block", "tunable"))
Number = Union[int, float, bool, "Expr"]


@dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """A number whose value is not known at compile time: a kernel argument, a size, a block size, or arithmetic on them.

    ``op`` is ``"host"`` (``args`` = the Python expression that gives it on the host), ``"block"`` (``args`` = a
    block id; its size comes from the config), ``"tunable"`` (``args`` = a config key), ``"neg"``, ``"next_power_of_2"``, ``"min"``,
    ``"max"`` or a binary operator. ``hint`` is the value seen when binding.
    """

    op: str
    args: tuple[Any, ...]
    hint: Any

    @property
    def key(self) -> tuple[Any, ...]:
        """Structural identity; ``==`` builds a comparison instead."""
        return (self.op, *(arg.key if isinstance(arg, Expr) else arg for arg in self.args))

    @property
    def kind(self) -> type:
        return type(self.hint)

    def leaves(self) -> Iterable[Expr]:
        if self.op in LEAVES:
            yield self
        else:
            for arg in self.args:
                if isinstance(arg, Expr):
                    yield from arg.leaves()

    def evaluate(self, leaf: Callable[[Expr], Any]) -> Any:
        """The number, when ``leaf`` gives those of the leaves."""
        if self.op in LEAVES:
            return leaf(self)
        values = [arg.evaluate(leaf) if isinstance(arg, Expr) else arg for arg in self.args]
        if self.op == "next_power_of_2":
            return next_power_of_2(values[0])
        if self.op in _FUNCTIONS:
            return _FUNCTIONS[self.op](*values)
        return -values[0] if self.op == "neg" else _BINARY[self.op][1](*values)

    def combine(self, text: Callable[[Any], str]) -> str:
        """The source text of an operator; ``text`` gives that of an argument."""
        parts = [text(arg) for arg in self.args]
        if self.op == "next_power_of_2":
            return f"triton.next_power_of_2({parts[0]})"
        if self.op in _FUNCTIONS:
            return f"{self.op}({', '.join(parts)})"
        return f"-{parts[0]}" if self.op == "neg" else f"{parts[0]} {_BINARY[self.op][0]} {parts[1]}"

    def render(self, leaf: Callable[[Expr], str], *, parent: bool = False) -> str:
        """As source text; ``leaf(expr)`` gives the text of host and block leaves."""
        if self.op in LEAVES:
            return leaf(self)
        text = self.combine(lambda arg: arg.render(leaf, parent=True) if isinstance(arg, Expr) else repr(arg))
        return f"({text})" if parent else text

    def __bool__(self) -> bool:
        raise TypeError(f"the value of {self!r} is not known when the kernel is compiled")

    def __index__(self) -> int:
        raise TypeError(f"the value of {self!r} is not known when the kernel is compiled")

    __int__ = __index__

    def __float__(self) -> float:
        raise TypeError(f"the value of {self!r} is not known when the kernel is compiled")

    def __repr__(self) -> str:
        return self.render(lambda e: str(e.args[0]) if e.op != "block" else f"block_size_{e.args[0]}")

    def __neg__(self) -> Expr:
        return Expr("neg", (self,), -self.hint)

    __hash__ = None  # type: ignore[assignment]

    if TYPE_CHECKING:  # made from the table below

        def __add__(self, other: Any) -> Any: ...
        def __radd__(self, other: Any) -> Any: ...
        def __sub__(self, other: Any) -> Any: ...
        def __rsub__(self, other: Any) -> Any: ...
        def __mul__(self, other: Any) -> Any: ...
        def __rmul__(self, other: Any) -> Any: ...
        def __truediv__(self, other: Any) -> Any: ...
        def __rtruediv__(self, other: Any) -> Any: ...
        def __floordiv__(self, other: Any) -> Any: ...
        def __rfloordiv__(self, other: Any) -> Any: ...
        def __mod__(self, other: Any) -> Any: ...
        def __rmod__(self, other: Any) -> Any: ...
        def __pow__(self, other: Any) -> Any: ...
        def __rpow__(self, other: Any) -> Any: ...
        def __lt__(self, other: Any) -> Any: ...
        def __le__(self, other: Any) -> Any: ...
        def __gt__(self, other: Any) -> Any: ...
        def __ge__(self, other: Any) -> Any: ...
        def __eq__(self, other: Any) -> Any: ...
        def __ne__(self, other: Any) -> Any: ...


def _binary(name: str, reflected: bool = False) -> Any:
    compute = _BINARY[name][1]

    def method(self: Expr, other: Any) -> Any:
        if not isinstance(other, (int, float, Expr)):
            return NotImplemented
        a, b = (other, self) if reflected else (self, other)
        if name == "mul" and (isinstance(a, int) or isinstance(b, int)):
            for one, rest in ((a, b), (b, a)):
                if isinstance(one, int) and one == 1:
                    return rest
        if name == "add" and isinstance(b, int) and b == 0:
            return a
        try:
            hint = compute(hint_of(a), hint_of(b))
        except ZeroDivisionError:
            hint = 0
        return Expr(name, (a, b), hint)

    return method


for _name in _BINARY:
    setattr(Expr, f"__{_name}__", _binary(_name))
    if _name not in _COMPARISONS:
        setattr(Expr, f"__r{_name}__", _binary(_name, reflected=True))


def hint_of(number: Number) -> Any:
    """The value seen when binding."""
    return number.hint if isinstance(number, Expr) else number


def number_key(number: Any) -> Any:
    return number.key if isinstance(number, Expr) else number


# --- dimensions of device values ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of a device value: a constant times block ids. ``Dim()`` is a broadcast dimension of size 1.

    A single block with constant 1 is a *block dimension*: lanes beyond the block's range may exist and are masked.
    Products come from reshapes that merge dimensions.
    """

    const: int = 1
    blocks: tuple[int, ...] = ()

    @property
    def block(self) -> int | None:
        """The block id, if this is one block and nothing else."""
        return self.blocks[0] if len(self.blocks) == 1 and self.const == 1 else None

    @property
    def is_one(self) -> bool:
        return self.const == 1 and not self.blocks

    def __mul__(self, other: Dim) -> Dim:
        return Dim(self.const * other.const, (*self.blocks, *other.blocks))


ONE = Dim()
Dims = tuple[Dim, ...]


def broadcast_dims(shapes: Sequence[Dims]) -> Dims | None:
    """The broadcast of device shapes, aligned at the right; None when two dimensions differ and neither is 1."""
    rank = max((len(s) for s in shapes), default=0)
    result = []
    for position in range(rank):
        found = ONE
        for shape in shapes:
            at = position - rank + len(shape)
            if at < 0 or shape[at].is_one:
                continue
            if found.is_one:
                found = shape[at]
            elif found != shape[at]:
                return None
        result.append(found)
    return tuple(result)


def static_dims(tensor: torch.Tensor) -> frozenset[int]:
    """Dimensions that ``torch._dynamo.mark_static`` fixed."""
    return frozenset(getattr(tensor, "_dynamo_static_indices", ()))


def dtype_name(dtype: torch.dtype) -> str:
    """``"bfloat16"`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")
