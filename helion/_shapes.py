"""Symbolic host numbers, dimensions of device values, and shape rules as pure functions."""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

import torch

from ._support.records import dataclass

#: Tensors whose sizes are certainly numbers; other subclasses may have symbolic sizes.
CONCRETE_TENSORS = (torch.Tensor, torch.nn.Parameter)
#: Dynamic sizes and strides from here on are symbols; integers and offsets from there on are wide. Below that, 32 bits
#: suffice beyond a loop's end too: for the counter and lanes of its last tile (2**20 elements at most), prefetched and
#: unrolled tiles.
SYMBOLIC, WIDE = 2, 2**31 - 2**24


def cdiv(a: int, b: int) -> int:
    """Compute ``ceil(a / b)`` for integers (symbolic ones included)."""
    return -(-a // b)


def next_power_of_2(n: Any) -> Any:
    """Return the smallest power of two that is at least ``n`` (1 for ``n <= 1``), symbolic for a symbolic ``n``."""
    if isinstance(n, Expr):
        return Expr("next_power_of_2", (n,), next_power_of_2(n.hint))
    return 1 << max(0, int(n) - 1).bit_length()


def previous_power_of_2(n: int) -> int:
    """Return the largest power of two that is at most ``n`` (1 for ``n < 1``)."""
    return 1 << (max(1, int(n)).bit_length() - 1)


def is_power_of_2(n: int) -> bool:
    return n > 0 and not n & (n - 1)


# --- numbers that are known when the kernel runs -----------------------------------------------------------------------


class NeedsValue(TypeError):
    """Error raised where Python needs the value of a symbolic number.

    Host code handles it by making the number part of the specialization key, or by deferring the decision to run time.
    """

    def __init__(self, number: Expr) -> None:
        super().__init__(f"the value of {number!r} is not known when the kernel is compiled")
        self.number = number


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
    "and": ("&", operator.and_),
    "or": ("|", operator.or_),
    "xor": ("^", operator.xor),
    "lshift": ("<<", operator.lshift),
    "rshift": (">>", operator.rshift),
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}
_UNARY: dict[str, tuple[str, Callable[[Any], Any]]] = {"neg": ("-", operator.neg), "invert": ("~", operator.invert)}
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))

#: Expressions without subexpressions.
LEAVES = frozenset(("host", "block", "tunable"))
Number = Union[int, float, bool, "Expr"]


@dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """A number whose value is not known at compile time: a kernel argument, a size, a block size, or arithmetic on them.

    ``op`` is ``"host"`` (``args`` = the Python expression that gives it on the host), ``"block"`` (``args`` = a
    block id; its size comes from the config), ``"tunable"`` (``args`` = a config key), ``"neg"``, ``"invert"``, ``"abs"``,
    ``"next_power_of_2"``, ``"min"``, ``"max"`` or a binary operator. ``hint`` is the value seen when binding; its type
    is that of the number. Whatever needs the number itself (a condition, an index, a hash, a text) raises ``NeedsValue``.
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

    def leaves_are(self, *kinds: str) -> bool:
        """Return whether all leaves of the expression are of these kinds."""
        return all(leaf.op in kinds for leaf in self.leaves())

    def evaluate(self, leaf: Callable[[Expr], Any]) -> Any:
        """Evaluate the expression; ``leaf`` gives the values of the leaves."""
        if self.op in LEAVES:
            return leaf(self)
        values = [arg.evaluate(leaf) if isinstance(arg, Expr) else arg for arg in self.args]
        if self.op == "next_power_of_2":
            return next_power_of_2(values[0])
        if self.op in _FUNCTIONS:
            return _FUNCTIONS[self.op](*values)
        return _UNARY[self.op][1](values[0]) if self.op in _UNARY else _BINARY[self.op][1](*values)

    def combine(self, text: Callable[[Any], str]) -> str:
        """Format the source text of an operator; ``text`` formats an argument."""
        parts = [text(arg) for arg in self.args]
        if self.op == "next_power_of_2":
            return f"triton.next_power_of_2({parts[0]})"
        if self.op in _FUNCTIONS:
            return f"{self.op}({', '.join(parts)})"
        return (
            f"{_UNARY[self.op][0]}{parts[0]}" if self.op in _UNARY else f"{parts[0]} {_BINARY[self.op][0]} {parts[1]}"
        )

    def render(self, leaf: Callable[[Expr], str], *, parent: bool = False) -> str:
        """Format the expression as source text; ``leaf(expr)`` gives the text of host and block leaves."""
        if self.op in LEAVES:
            return leaf(self)
        text = self.combine(lambda arg: arg.render(leaf, parent=True) if isinstance(arg, Expr) else repr(arg))
        return f"({text})" if parent else text

    def __repr__(self) -> str:
        return self.render(lambda e: str(e.args[0]) if e.op != "block" else f"block_size_{e.args[0]}")

    def __neg__(self) -> Expr:
        return Expr("neg", (self,), -self.hint)

    def __pos__(self) -> Expr:
        return Expr("neg", (-self,), +self.hint) if self.kind is bool else self

    def __invert__(self) -> Expr:
        return Expr("invert", (self,), ~self.hint)

    def __abs__(self) -> Expr:
        return Expr("abs", (self,), abs(self.hint))

    def _unknown(self, *_: Any) -> Any:
        raise NeedsValue(self)

    __bool__ = __index__ = __int__ = __float__ = __complex__ = __hash__ = __str__ = __format__ = _unknown
    __round__ = __trunc__ = __floor__ = __ceil__ = __divmod__ = __rdivmod__ = _unknown

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
        def __and__(self, other: Any) -> Any: ...
        def __rand__(self, other: Any) -> Any: ...
        def __or__(self, other: Any) -> Any: ...
        def __ror__(self, other: Any) -> Any: ...
        def __xor__(self, other: Any) -> Any: ...
        def __rxor__(self, other: Any) -> Any: ...
        def __lshift__(self, other: Any) -> Any: ...
        def __rlshift__(self, other: Any) -> Any: ...
        def __rshift__(self, other: Any) -> Any: ...
        def __rrshift__(self, other: Any) -> Any: ...


def _binary(name: str, reflected: bool = False) -> Any:
    compute = _BINARY[name][1]

    def method(self: Expr, other: Any, *modulus: Any) -> Any:
        if modulus:
            raise NeedsValue(self)
        if not isinstance(other, (int, float, Expr)):
            if isinstance(other, numbers.Number):
                raise NeedsValue(self)
            return NotImplemented
        a, b = (other, self) if reflected else (self, other)
        if name == "pow" and isinstance(b, Expr) and b.kind is not float and not isinstance(hint_of(a), float):
            raise NeedsValue(b)  # its sign decides between an integer and a float
        if name == "mul" and (isinstance(a, int) or isinstance(b, int)):
            for one, rest in ((a, b), (b, a)):
                if isinstance(one, int) and one == 1 and type(hint_of(rest)) is not bool:
                    return rest
        if name == "add" and isinstance(b, int) and b == 0 and type(hint_of(a)) is int:
            return a
        try:
            hint = compute(hint_of(a), hint_of(b))
        except (ZeroDivisionError, ValueError, OverflowError):
            hint = 0.0 if name == "truediv" or float in (type(hint_of(a)), type(hint_of(b))) else 0
        return Expr(name, (a, b), hint)

    return method


for _name in _BINARY:
    setattr(Expr, f"__{_name}__", _binary(_name))
    if _name not in _COMPARISONS:
        setattr(Expr, f"__r{_name}__", _binary(_name, reflected=True))


def hint_of(number: Number) -> Any:
    """Return the value seen when binding."""
    return number.hint if isinstance(number, Expr) else number


def fixed_at(number: object, value: int) -> bool:
    """Return whether a number is ``value`` in every call. Comparing an ``Expr`` would use its value in this call only."""
    return isinstance(number, int) and number == value


def positive_part(number: Any) -> Any:
    """Return ``n`` of ``n - 0`` and of ``max(0, n)``, as the numbers of indices of loops to ``n`` are written."""
    while isinstance(number, Expr):
        if number.op == "sub" and fixed_at(number.args[1], 0):
            number = number.args[0]
        elif number.op == "max" and fixed_at(number.args[0], 0):
            number = number.args[1]
        else:
            break
    return number


def number_key(number: Any) -> Any:
    """Return a key that is equal only for numbers that are certainly equal."""
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

    def lanes(self, sizes: Mapping[int, int]) -> int:
        """Return the number of lanes for blocks of ``sizes``."""
        return math.prod((sizes[block] for block in self.blocks), start=self.const)

    def __mul__(self, other: Dim) -> Dim:
        return Dim(self.const * other.const, (*self.blocks, *other.blocks))


ONE = Dim()
Dims = tuple[Dim, ...]


def broadcast_dims(shapes: Sequence[Dims]) -> Dims | None:
    """Broadcast device shapes, aligned at the right; None if two dimensions differ and neither is 1."""
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


class SizeClasses:
    """Classes of dynamic sizes and strides, which compiled code depends on.

    Sizes below ``SYMBOLIC`` and fixed ones are compile-time constants. Each other one is identified by the first
    earlier size that it equals.
    """

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def of(self, numbers: Iterable[int], fixed: Collection[int] = ()) -> tuple[tuple[int] | int, ...]:
        """Return for each number a tuple with the number itself, or its class; ``fixed`` are positions."""
        seen = self._seen
        return tuple(
            [(n,) if n < SYMBOLIC or i in fixed else seen.setdefault(n, len(seen)) for i, n in enumerate(numbers)]
        )


def has_wide_offsets(sizes: Iterable[int], strides: Iterable[int]) -> bool:
    """Return whether the offset of the last element, or that of a tile beyond it, takes more than 31 bits."""
    return sum([(size - 1) * stride for size, stride in zip(sizes, strides, strict=True)]) >= WIDE


def static_dims(tensor: torch.Tensor) -> frozenset[int]:
    """Return the dimensions whose sizes ``torch._dynamo.mark_static`` fixed. It keeps negative ones as given."""
    rank = max(tensor.dim(), 1)
    return frozenset(dim % rank for dim in getattr(tensor, "_dynamo_static_indices", ()))


ROW_MAJOR = "is_row_major"
"""A step of a path in the arguments: the question that ``is_row_major`` answers."""


def is_row_major(tensor: torch.Tensor) -> bool:
    """Return whether the strides of a tensor, those of dimensions of one element too, are the products of the sizes after
    them."""
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != step:
            return False
        step *= max(size, 1)
    return True


def shared_memory(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return for each tensor the position of the first one whose memory overlaps its own.

    Tensors overlap if they share a storage, or if their storages overlap, as tensors made from one array of another
    library do.
    """
    first: dict[int, int] = {}
    keys: list[int] = []
    foreign = False
    for at, tensor in enumerate(tensors):
        try:
            storage = tensor.untyped_storage()
            key = storage._cdata
            foreign = foreign or not storage.resizable()  # memory that torch has not allocated
        except (RuntimeError, NotImplementedError):  # wrapper subclasses may have no storage
            key = id(tensor)
        keys.append(first.setdefault(key, at))
    return _overlapping(tensors, keys) if foreign and len(first) > 1 else keys


def _overlapping(tensors: Sequence[torch.Tensor], first: Sequence[int]) -> list[int]:
    """Merge the groups of ``first`` whose storages overlap, and return ``shared_memory``'s result."""
    group = {at: at for at in first}
    reach, last = 0, 0
    for begin, end, at in sorted((*_span(tensors[at]), at) for at in group):
        if begin < reach:
            low, high = sorted((group[at], group[last]))
            group = {k: low if g == high else g for k, g in group.items()}
        if end > reach:
            reach, last = end, at
    return [group[at] for at in first]


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the address range of a tensor's storage, empty if there is no data."""
    try:
        storage = tensor.untyped_storage()
        begin = storage.data_ptr()
        return begin, begin + storage.nbytes() if begin else begin
    except (RuntimeError, NotImplementedError):
        return 0, 0


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype: ``"bfloat16"`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")
