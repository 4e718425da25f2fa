"""The kernel's arguments as abstract values.

With static shapes, sizes and strides are integers. With dynamic shapes they are symbols that the generated host code
reads from the tensors; 0 and 1 stay integers, and equal numbers share one symbol. Both are part of the specialization
key (``runtime/call/signature.py`` makes the same distinctions).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from ..._names import identifier
from ..._shapes import Expr, Number, SizeClasses, static_dims
from ..._support.symmetric import are_peers
from ...language.constants import ConstExpr
from ..ir.host_module import Member
from .frames import lift_object
from .host.factories import contiguous_strides
from .state import Origin, TraceState
from .values import HostTensorValue


class Arguments:
    """Lifts the arguments in order; equal dynamic sizes get one symbol."""

    def __init__(self, t: TraceState, reassigned: frozenset[str], static: bool) -> None:
        self.t = t
        self.reassigned = reassigned
        self.static = static
        self.classes = SizeClasses()
        self.dynamic: list[Expr] = []  # by class

    def lift(self, value: Any, name: str, at: int, constant: bool) -> Any:
        if constant:
            return value.value if isinstance(value, ConstExpr) else value
        return self.value(value, name, ("arg", at))

    def settle(self, names: frozenset[str]) -> None:
        """Make sizes and strides of arguments part of the specialization key, by the names of their symbols."""
        for each in self.dynamic:
            if each.args[0] in names:
                self.t.numbers.specialize(each)

    def value(self, value: Any, source: str, origin: Origin) -> Any:
        if isinstance(value, ConstExpr):
            return value.value
        if isinstance(value, (bool, int, float)):
            return self.number(value, source, origin)
        if isinstance(value, torch.Tensor):
            return self.tensor(value, source, origin)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            items = zip(value._fields, value, strict=True)
            return type(value)(*(self.value(v, f"{source}.{n}", (*origin, n)) for n, v in items))
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            found = [self.value(v, f"{source}[{i}]", (*origin, i)) for i, v in enumerate(value)]
            if isinstance(value, tuple) and are_peers(value):
                for number, each in enumerate(found):
                    each.member = Member(of=source, number=number, count=len(found))
            return type(value)(found)
        if type(value) is dict:
            return {k: self.value(v, f"{source}[{k!r}]", (*origin, k)) for k, v in value.items()}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            lifted = copy.copy(value)
            for field in dataclasses.fields(value):
                item = self.value(getattr(value, field.name), f"{source}.{field.name}", (*origin, field.name))
                object.__setattr__(lifted, field.name, item)
            return lifted
        return lift_object(self.t, value, source)

    def number(self, value: Any, source: str, origin: Origin) -> Expr:
        name = source
        if not source.isidentifier() or source in self.reassigned:
            name = f"{identifier(source)}_arg"
        return self.t.numbers.symbol(name, source, origin, value)

    def tensor(self, value: torch.Tensor, source: str, origin: Origin) -> Any:
        known = lift_object(self.t, value, source)
        known.origin = origin
        if not self.t.registered.placed_by and known.device.type == self.t.device.type:
            self.t.registered.placed_by = source
        if self.static:
            return known
        fixed = static_dims(value)
        shape = tuple(
            self.extent(size, f"{source}.size({i})", (*origin, ("size", i)), i in fixed)
            for i, size in enumerate(known.shape)
        )
        strides = self.strides(known.strides, shape, source, origin)
        lifted = HostTensorValue(self.t, shape, strides, value.dtype, value.device, known.storage, source)
        lifted.origin = origin
        lifted.offset, lifted.begin = known.offset, known.begin
        lifted.python_type = type(value)
        self.t.tensors.lifted[(id(value), source)] = lifted
        return lifted

    def strides(self, seen: Sequence[int], shape: Sequence[Number], source: str, origin: Origin) -> tuple[Number, ...]:
        """Return the strides of a tensor: products of its sizes where the context says so, else symbols."""
        if source not in self.t.context.row_major:
            each = enumerate(seen)
            return tuple(self.extent(n, f"{source}.stride({i})", (*origin, ("stride", i)), False) for i, n in each)
        sizes = [str(max(n, 1)) if isinstance(n, int) else f"{source}.size({i})" for i, n in enumerate(shape)]
        for at in range(len(shape)):
            product = " * ".join(sizes[at + 1 :]) or "1"
            self.t.numbers.argument_checks.append(f"{source}.stride({at}) == {product}")
        return contiguous_strides(tuple(shape))

    def extent(self, value: Any, source: str, origin: Origin, fixed: bool) -> Number:
        (found,) = self.classes.of((value,), (0,) if fixed else ())
        if isinstance(found, tuple):
            self.t.numbers.argument_checks.append(f"{source} == {int(value)}")
            return int(value)
        if found < len(self.dynamic):
            name = self.dynamic[found].args[0]
            self.t.numbers.argument_checks.append(f"{source} == {self.t.numbers.symbols[name].source}")
            self.t.numbers.equal[name] = (*self.t.numbers.equal.get(name, ()), (source, origin))
        else:
            symbol = self.t.numbers.symbol(identifier(source), source, origin, int(value))
            self.t.numbers.argument_checks.append(symbol.args[0])
            self.dynamic.append(symbol)
        if origin[-1][0] == "size":
            self.t.numbers.sizes.add(self.dynamic[found].args[0])
        return self.dynamic[found]
