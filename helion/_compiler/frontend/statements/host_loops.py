"""Host loops around grid loops: their bodies are walked once, and launch the same kernels in every iteration.

::

    for step in range(steps):                    for step in range(steps):
        for tile in hl.tile(x.size(0)):              _launcher(_helion_smooth, .., x, out, step, ..)
            out[tile] = x[tile] * step               x, out = (out, x)
        x, out = out, x

A number that changes is an argument of the kernel; a tensor that changes must have the same type in every iteration.
Which tensors share memory may differ from one iteration to the next: those that do in any are taken to in all.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass, field, replace
from typing import Any

from .... import exc
from ...._shapes import Expr, hint_of, number_key
from ...._syntax import parse
from ...ir.grammar import Keep
from ..captures import UNNAMED
from ..expressions.operators import Expressions
from ..frames import assigned_names, path_to
from ..host_data import one_of
from ..state import TraceSnapshot
from ..values import HostTensorValue, Missing, describe
from ..walk.scope import Break, Continue, Return
from .loops import Loops

#: Iterations after which a pattern of shared memory that has not come back is taken for one that never does.
_MAX_ROUNDS = 64

_NUMBER = (int, float, Expr)


@dataclass
class _Changing:
    """What changes from one iteration to the next, as far as it is known: numbers, tensors, those of them that may
    begin anywhere, and their sizes and strides ``(name, "size" or "stride", dim)``."""

    numbers: set[str] = field(default_factory=set)
    tensors: set[str] = field(default_factory=set)
    unaligned: set[str] = field(default_factory=set)
    extents: set[tuple[str, str, int]] = field(default_factory=set)


@dataclass(frozen=True)
class _Saved:
    """What a walk of a body that has to be repeated leaves behind."""

    trace: TraceSnapshot
    roots: int
    launch: list[ast.stmt] | None
    launches: int
    shared: dict[int, int]


class HostLoops(Loops):
    """Walks ``for`` and ``while`` statements of host code that have grid loops in them."""

    def _walk_host(self, e: Expressions, statements: list[ast.stmt]) -> None:
        raise NotImplementedError

    def _walk_host_loop(self, e: Expressions, node: ast.For | ast.While) -> None:
        e.at(node)
        if node.orelse:
            raise exc.DeviceLoopElseBlock()
        item = self._host_item(e, node) if isinstance(node, ast.For) else None
        if isinstance(item, _Nothing):
            self.skipped = True
            self.body.append(node)
            return
        outer, before, changing = self.body, dict(e.frame.names), _Changing()
        first_new = self.t.new_storage()
        self.host_loops += 1
        self.t.host_loops = self.host_loops
        while True:
            saved = self._save()
            e.frame.names = dict(before)
            made, start = self._begin(e, node, item, changing)
            self.body = []
            try:
                self._walk_host(e, node.body)
            except Return:
                e.at(node)
                raise exc.StatementNotSupported(
                    statement="A return statement in a host loop around a grid loop", where="host", remedy=""
                ) from None
            except (Break, Continue):
                raise exc.StatementNotSupported(
                    statement="`break` or `continue` in a host loop around a grid loop", where="host", remedy=""
                ) from None
            e.at(node)
            if not self._changes(start, e.frame.names, changing):
                break
            self._restore(saved)
        self.open_barrier = None  # the next iteration waits for this one
        self.host_loops -= 1
        self.t.host_loops = self.host_loops
        loop = copy.copy(node)
        loop.body = [*made, *self.body]
        self.body = outer
        self.body.append(loop)
        self._share(before, start, e.frame.names, changing, first_new)
        self._leave(e, changing)

    def _save(self) -> _Saved:
        return _Saved(self.t.snapshot(), len(self.roots), self.launch, self.launches, dict(self.shared))

    def _restore(self, saved: _Saved) -> None:
        self.t.restore(saved.trace)
        del self.roots[saved.roots :]
        self.launch, self.launches, self.shared = saved.launch, saved.launches, dict(saved.shared)

    # --- the values of an iteration --------------------------------------------------------------------------------------

    def _host_item(self, e: Expressions, node: ast.For) -> Any:
        """What the loop variable is in every iteration: a value with the first one's hint, or ``_Nothing``."""
        if isinstance(node.iter, ast.Call) and e.eval(node.iter.func) is range:
            bounds = [e.eval(a) for a in node.iter.args]
            e.at(node.iter)
            if not 1 <= len(bounds) <= 3 or any(isinstance(b, bool) or not isinstance(b, (int, Expr)) for b in bounds):
                raise exc.TypeInferenceError(f"range takes integers, got {', '.join(map(describe, bounds))}.")
            return _Number(hint_of(bounds[0]) if len(bounds) > 1 else 0)
        items = e.iterate(e.eval(node.iter), node.iter)
        return self._merged(items, ast.unparse(node.target)) if items else _Nothing()

    def _merged(self, items: list[Any], name: str) -> Any:
        """One value for all items of a sequence."""
        first = items[0]
        if all(type(item) is tuple and len(item) == len(first) for item in items):
            return tuple(self._merged(list(column), name) for column in zip(*items, strict=True))
        for other in items[1:]:
            _check_same_type(name, first, other)
        if isinstance(first, _NUMBER):
            return _Number(hint_of(first))
        if isinstance(first, HostTensorValue):
            storage = self.t.new_storage()
            for tensor in items:
                self._unite(storage, tensor.storage)
            return replace(first, storage=storage, source="", made="", aligned=all(tensor.aligned for tensor in items))
        return first

    def item_of(self, e: Expressions, items: Any, index: Expr, node: ast.expr) -> Any:
        """The item of a sequence whose index changes from one iteration to the next."""
        item = self._merged(list(items), ast.unparse(node))
        if not isinstance(item, (HostTensorValue, _Number)):
            return item
        source = ""
        if self.t.on_device:
            source = f"{path_to(items, self.kernel_frame)}[{index.render(lambda leaf: str(leaf.args[0]))}]"
            if source.startswith("["):
                raise exc.InvalidSequenceSubscription(got=describe(index))
        if isinstance(item, HostTensorValue):
            return replace(item, source=source)
        name = self.t.fresh_name("host_item", len(self.t.drawn))
        self.t.drawn[name] = source or UNNAMED
        return Expr("host", (name,), item.hint)

    def _begin(
        self, e: Expressions, node: ast.For | ast.While, item: Any, changing: _Changing
    ) -> tuple[list[ast.stmt], dict[str, Any]]:
        """Binds what an iteration begins with; gives the statements that keep its numbers, and the names that the last
        one left."""
        made: list[ast.stmt] = []
        names = e.frame.names
        assigned = frozenset(assigned_names(node.body))
        for name in sorted(changing.numbers):
            names[name] = self._kept(e, name, name, hint_of(names[name]), made)
        for name in sorted(changing.tensors):
            tensor = self._changed(e, name, names[name], changing, made)
            aligned = tensor.aligned and name not in changing.unaligned
            names[name] = replace(tensor, storage=self.t.new_storage(), aligned=aligned)
        if isinstance(node, ast.For):
            self.bind(e, node.target, self._loop_item(e, node.target, item, assigned, made))
        targets = assigned_names([node.target]) if isinstance(node, ast.For) else ()
        return made, {name: value for name, value in names.items() if name not in targets}

    def _changed(
        self, e: Expressions, name: str, tensor: HostTensorValue, changing: _Changing, made: list[ast.stmt]
    ) -> HostTensorValue:
        """A tensor that changes from one iteration to the next, as what its variable holds now."""
        extents = {"size": list(tensor.shape), "stride": list(tensor.strides)}
        for _, what, dim in sorted(key for key in changing.extents if key[0] == name):
            source, hint = f"{name}.{what}({dim})", hint_of(extents[what][dim])
            extents[what][dim] = self._kept(e, f"{name}_{what}_{dim}", source, hint, made)
        return replace(tensor, shape=tuple(extents["size"]), strides=tuple(extents["stride"]), source=name, made="")

    def _loop_item(
        self, e: Expressions, target: ast.expr, item: Any, assigned: frozenset[str], made: list[ast.stmt]
    ) -> Any:
        """The loop variable's value, in terms of the names that it is bound to."""
        if isinstance(target, (ast.Tuple, ast.List)):
            if not isinstance(item, tuple) or len(item) != len(target.elts):
                raise exc.FailedToUnpackTupleAssign(value=_item_text(item), count=len(target.elts))
            pairs = zip(target.elts, item, strict=True)
            return tuple(self._loop_item(e, part, value, assigned, made) for part, value in pairs)
        if not isinstance(target, ast.Name):
            raise exc.StatementNotSupported(
                statement=f"`for {ast.unparse(target)} in ...` around a grid loop", where="host", remedy="; use a name"
            )
        if isinstance(item, HostTensorValue):
            return replace(item, source=target.id)
        if not isinstance(item, _Number):
            return item
        if target.id in assigned or self._is_bound_elsewhere(e, target):
            return self._kept(e, target.id, target.id, item.hint, made)
        self.t.loop_numbers[target.id] = target.id
        return Expr("host", (target.id,), item.hint)

    def _is_bound_elsewhere(self, e: Expressions, target: ast.Name) -> bool:
        """Whether another statement of the kernel binds the name, so that it may hold something else later on."""
        return any(
            isinstance(n, ast.Name) and n.id == target.id and isinstance(n.ctx, ast.Store) and n is not target
            for n in ast.walk(e.frame.source.node)
        )

    def _kept(self, e: Expressions, name: str, source: str, hint: Any, made: list[ast.stmt]) -> Expr:
        """A number as it is when an iteration begins, whatever the iteration makes of the variable it comes from."""
        kept = f"{name}_now"
        while kept in self.t.taken or kept in self.t.symbols or kept in self.t.loop_numbers:
            kept += "_"
        made.append(Keep(kept, parse(source).body[0].value))  # type: ignore[attr-defined]
        self.t.loop_numbers[kept] = source
        return Expr("host", (kept,), hint)

    # --- what changes ----------------------------------------------------------------------------------------------------

    def _changes(self, start: dict[str, Any], after: dict[str, Any], changing: _Changing) -> bool:
        """Adds to ``changing``; whether there was anything to add. Raises for what cannot change."""
        grown = False
        for name, first in start.items():
            last = after.get(name)
            if last is first or isinstance(first, Missing) or isinstance(last, Missing):
                continue
            if isinstance(first, HostTensorValue) and isinstance(last, HostTensorValue):
                shifted = first.aligned and not last.aligned
                extents = {(name, *key) for key in _open_extents(first, last)} - changing.extents
                _check_same_type(name, first, last, dynamic=True)
                grown |= bool(extents) or shifted or name not in changing.tensors
                changing.extents |= extents
                changing.tensors.add(name)
                changing.unaligned.update([name] if shifted else [])
            elif isinstance(first, _NUMBER) and isinstance(last, _NUMBER):
                if type(first) is type(last) and number_key(first) == number_key(last):
                    continue
                _check_same_type(name, first, last)
                grown |= name not in changing.numbers
                changing.numbers.add(name)
            elif not _same(first, last):
                raise _differs(name, first, last)
        return grown

    def _leave(self, e: Expressions, changing: _Changing) -> None:
        """Names behind the loop hold what the last iteration left in them."""
        for name in sorted(changing.numbers):
            e.frame.names[name] = self._kept(e, name, name, hint_of(e.frame.names[name]), self.body)
        for name in sorted(changing.tensors):
            e.frame.names[name] = self._changed(e, name, e.frame.names[name], changing, self.body)

    # --- shared memory ---------------------------------------------------------------------------------------------------

    def _unite(self, first: int, second: int) -> None:
        first, second = self._representative(first), self._representative(second)
        if first != second:
            self.shared[max(first, second)] = min(first, second)

    def one_of(self, values: list[HostTensorValue]) -> HostTensorValue | None:
        """A tensor that is one of several at run time."""
        made = one_of(self.t, values)
        for value in values if made is not None else ():
            self._unite(values[0].storage, value.storage)
        return made

    def may_share(self, one: HostTensorValue, other: HostTensorValue) -> bool:
        """Whether two tensors may have the same memory."""
        return self._representative(one.storage) == self._representative(other.storage)

    def _representative(self, storage: int) -> int:
        while storage in self.shared:
            storage = self.shared[storage]
        return storage

    def _share(
        self, before: dict[str, Any], start: dict[str, Any], after: dict[str, Any], changing: _Changing, first_new: int
    ) -> None:
        """Goes through iterations until they repeat, and notes which tensors of the kernels share memory in one."""
        names = sorted(changing.tensors)
        slots = {start[name].storage: at for at, name in enumerate(names)}
        ends = [after[name].storage for name in names]
        used = {tensor.storage for tensor in self.t.tensors} | set(slots)
        known = set(self.t._storage_ids.values())
        # an actual memory is that of a number from before, or what iteration ``at`` made
        state: list[tuple[int, int]] = [(-1, before[name].storage) for name in names]
        seen: set[tuple[Any, ...]] = set()
        for at in range(_MAX_ROUNDS):
            key = tuple((number, at - made if made >= 0 else -1) for made, number in state)
            if key in seen:
                return

            def actual(storage: int, at: int = at, state: list[tuple[int, int]] = state) -> tuple[int, int]:
                if storage in slots:
                    return state[slots[storage]]
                return (at, storage) if storage > first_new and storage not in known else (-1, storage)

            seen.add(key)
            places: dict[tuple[int, int], int] = {}
            for storage in sorted(used):
                self._unite(places.setdefault(actual(storage), storage), storage)
            if self.host_loops:  # for the loop around this one, which knows the memory by its first number only
                for storage, slot in slots.items():
                    if state[slot][0] < 0:
                        self._unite(storage, state[slot][1])
            state = [actual(storage) for storage in ends]
        for storage in used:
            self._unite(storage, min(used))

    def settle_storages(self) -> None:
        """Gives the tensors of the program the memory that they were found to share."""
        self.t.tensors[:] = [replace(x, storage=self._representative(x.storage)) for x in self.t.tensors]


def _item_text(item: Any) -> str:
    return "a number" if isinstance(item, _Number) else describe(item)


class _Nothing:
    """The item of a sequence without items."""


@dataclass(frozen=True)
class _Number:
    """A number that may differ in every iteration."""

    hint: Any


def _differs(name: str, first: Any, last: Any) -> exc.Base:
    return exc.CantCombineTypesInControlFlow(
        name=name, before=describe(first), after=describe(last), construct="host loop"
    )


def _open_extents(first: HostTensorValue, last: HostTensorValue) -> set[tuple[str, int]]:
    """Sizes and strides known at run time only that may differ."""
    pairs = (("size", first.shape, last.shape), ("stride", first.strides, last.strides))
    return {
        (what, dim)
        for what, before, after in pairs
        for dim, (a, b) in enumerate(zip(before, after, strict=False))
        if (isinstance(a, Expr) or isinstance(b, Expr)) and number_key(a) != number_key(b)
    }


def _check_same_type(name: str, first: Any, last: Any, dynamic: bool = False) -> None:
    """Refuses values that one compiled kernel could not take in turn. ``dynamic``: sizes and strides known at run time
    only may differ."""
    free = _open_extents(first, last) if dynamic else set()

    def kind(value: Any) -> Any:
        if isinstance(value, HostTensorValue):
            extents = [("size", i, n) for i, n in enumerate(value.shape)]
            extents += [("stride", i, n) for i, n in enumerate(value.strides)]
            fixed = tuple((what, i, number_key(n)) for what, i, n in extents if (what, i) not in free)
            return (value.dtype, value.device, value.ndim, fixed)
        if isinstance(value, _NUMBER):
            return value.kind if isinstance(value, Expr) else type(value)
        return None

    if kind(first) != kind(last) or (kind(first) is None and not _same(first, last)):
        raise _differs(name, first, last)


def _same(first: Any, last: Any) -> bool:
    """Whether two values that are neither numbers nor tensors are as good as one."""
    if first is last:
        return True
    if type(first) is not type(last):
        return False
    if isinstance(first, (list, tuple)):
        return len(first) == len(last) and all(map(_same, first, last))
    if isinstance(first, dict):
        return first.keys() == last.keys() and all(_same(value, last[key]) for key, value in first.items())
    if isinstance(first, Expr):
        return number_key(first) == number_key(last)
    return not isinstance(first, HostTensorValue) and bool(first == last)
