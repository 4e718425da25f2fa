"""Results that the host copies in another order of dimensions, as tensors that kernels store in that order.

::

    out = torch.empty([i * c, j * e])                              out = torch.empty([i * c, j * e])
                                                                   turned = out.view(i, j, c, e)
    out[m, n] = value                                         →    turned[m // c, n // e, m % c, n % e] = value
    return out.view(i, c, j, e).permute(0, 2, 1, 3).flatten(2)     return turned.flatten(2)

    out = torch.empty([b, h, s, d])                                out = torch.empty([b, h, s, d])
                                                              →    out = out.view(b, s, h, d).permute(0, 2, 1, 3)
    return out.permute(0, 2, 1, 3).reshape(b, s, h * d)            return out.permute(0, 2, 1, 3).reshape(b, s, h * d)

The copy of the host is then a view. Torch copies runs of few elements at half of the rate of the memory (measurement
``permuted_copies``). Sizes are known, and runs of memory stay as long as sectors.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...._support.records import dataclass
from ...source import FunctionSource
from ..frames import assigned_names, names_in
from ..lost_results import is_new
from ..values import HostTensorValue

_MADE = frozenset(("empty", "new_empty", "zeros", "new_zeros"))
_COPIES = frozenset(("contiguous", "flatten", "reshape"))
_TURNS = frozenset(("permute", "transpose"))
_METADATA = frozenset(("device", "dim", "dtype", "ndim", "numel", "shape", "size"))
_LEAST_RUN = 64
"""Bytes of a run that is stored: two sectors."""
_FAR = 10_000
"""Columns of code that no source has, so that no two expressions have one position."""


@dataclass(frozen=True, kw_only=True)
class Turned:
    """A ``source`` that stores variable ``name`` in another order. The memory is variable ``as_stored`` where dimensions are
    divided into ``groups``: those of each dimension, as positions in ``order``."""

    source: FunctionSource
    name: str
    as_stored: str
    order: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...] = ()

    def holds(self, names: Mapping[str, Any]) -> bool:
        """Return whether dimensions are divided as the host's view divides them, and runs are long enough."""
        made, stored = names.get(self.name), names.get(self.as_stored)
        if not isinstance(made, HostTensorValue) or not isinstance(stored, HostTensorValue):
            return False
        sizes = [*made.shape, *stored.shape]
        if not all(isinstance(size, int) and size > 1 for size in sizes):
            return False
        run = made.shape[-1] if not self.groups else stored.shape[-1]
        if run * made.dtype.itemsize < _LEAST_RUN:
            return False
        for size, group in zip(made.shape, self.groups, strict=False):
            for at in group:
                if size % stored.shape[self.order.index(at)]:
                    return False
                size //= stored.shape[self.order.index(at)]
            if size != 1:
                return False
        return True


def turned(source: FunctionSource, names: Mapping[str, Any]) -> Iterator[Turned]:
    """Yield sources of a kernel that store a result in the order of the host's copy; ``names`` are the globals of its module."""
    function = source.node
    assert isinstance(function, ast.FunctionDef)
    nodes = source.nodes
    nested = (ast.FunctionDef, ast.Lambda, ast.Global, ast.Nonlocal, ast.NamedExpr, ast.AsyncFunctionDef)
    if any(isinstance(node, nested) for node in nodes if node is not function):
        return
    if not any(isinstance(node, ast.Attribute) and node.attr in _TURNS for node in nodes):
        return
    for at, statement in enumerate(function.body):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as made) if _is_empty(made, names):
                yield from _Result(source, function, at, name).turned()


def _is_empty(made: ast.Call, names: Mapping[str, Any]) -> bool:
    """Return whether a call makes a contiguous tensor with memory of its own."""
    plain = all(each.arg in ("device", "dtype") for each in made.keywords)
    return plain and isinstance(made.func, ast.Attribute) and made.func.attr in _MADE and is_new(made, names)


class _Result:
    """A tensor that statement number ``at`` of a kernel makes, as variable ``name``."""

    def __init__(self, source: FunctionSource, function: ast.FunctionDef, at: int, name: str) -> None:
        self.source, self.function, self.at, self.name = source, function, at, name

    @functools.cached_property
    def parents(self) -> Mapping[int, ast.AST]:
        """The parent of each node, by identity."""
        return {id(child): node for node in self.source.nodes for child in ast.iter_child_nodes(node)}

    def turned(self) -> Iterator[Turned]:
        """Yield the sources in which the memory of the tensor has the order of its copy."""
        uses = [node for node in self.source.nodes if isinstance(node, ast.Name) and node.id == self.name]
        loads = [node for node in uses if isinstance(node.ctx, ast.Load)]
        whole = [node for node in loads if not self._is_metadata(node)]
        chains = [node for node in whole if self._is_of_host(node)]
        of_elements = all(self._is_of_elements(node) for node in whole if node not in chains)
        if len(uses) - len(loads) != 1 or len(chains) != 1 or not of_elements:
            return
        calls = self._chain(chains[0])
        names, copied = [call.func.attr for call in calls if isinstance(call.func, ast.Attribute)], _COPIES.intersection
        if names[:1] and names[0] in _TURNS and copied(names[1:2]):
            yield from self._permuted(calls[0])
        elif names[:1] in (["view"], ["reshape"]) and names[1:2] and names[1] in _TURNS and copied(names[2:3]):
            yield from self._divided(calls[0], calls[1], loads)

    def _is_of_host(self, name: ast.Name) -> bool:
        """Return whether a use is in a statement of the function itself, outside of its loops and branches."""
        node: ast.AST = name
        while self.parents[id(node)] is not self.function:
            node = self.parents[id(node)]
        return not isinstance(node, (ast.For, ast.While, ast.If, ast.With, ast.Try, ast.Match))

    def _is_of_elements(self, name: ast.Name) -> bool:
        """Return whether a use in a loop is of elements alone."""
        parent = self.parents[id(name)]
        if isinstance(parent, ast.Subscript):
            return parent.value is name
        if not isinstance(parent, ast.Call) or not isinstance(parent.func, ast.Attribute) or parent.args[:1] != [name]:
            return False
        return parent.func.attr in ("load", "store") or parent.func.attr.startswith("atomic_")

    def _is_metadata(self, name: ast.Name) -> bool:
        parent = self.parents[id(name)]
        return isinstance(parent, ast.Attribute) and parent.attr in _METADATA

    def _chain(self, name: ast.Name) -> list[ast.Call]:
        """Return the calls of methods of a tensor, each of the result of the one before."""
        found, node = list[ast.Call](), self.parents[id(name)]
        while isinstance(node, ast.Attribute):
            call = self.parents[id(node)]
            if not isinstance(call, ast.Call) or call.func is not node or call.keywords:
                break
            found.append(call)
            node = self.parents[id(call)]
        return found

    # Sources --------------------------------------------------------------------------------------------------------------

    def _permuted(self, permute: ast.Call) -> Iterator[Turned]:
        """Yield the source whose tensor is a permuted view of memory in the order of the copy."""
        made = self.function.body[self.at]
        assert isinstance(made, ast.Assign) and isinstance(made.value, ast.Call)
        rank = _rank(made.value)
        order = None if rank is None else _order(permute, rank)
        if order is None or order[-1] != len(order) - 1:
            return
        back = ", ".join(str(order.index(each)) for each in range(len(order)))
        sizes = ", ".join(f"{self.name}.size({each})" for each in order)
        added = _code(f"{self.name} = {self.name}.view({sizes}).permute({back})", made)
        yield Turned(source=self._with([added], {}), name=self.name, as_stored=self.name, order=order)

    def _divided(self, view: ast.Call, permute: ast.Call, loads: Sequence[ast.Name]) -> Iterator[Turned]:
        """Yield the sources whose stores divide rows and columns, in each way in which the view may divide them."""
        stores = [node for node in loads if self._stored(node) is not None]
        sizes = _listed(view)
        order = _order(permute, len(sizes))
        others = [node for node in loads if node not in stores and not self._is_metadata(node)]
        if len(stores) != 1 or len(others) != 1 or order is None or order[-1] != len(order) - 1:
            return
        store, known = self._stored(stores[0]), self._known()
        if store is None or not all(_is_number(size) and names_in(size) <= known for size in sizes):
            return
        (subscript,) = (each for each in store.targets if isinstance(each, ast.Subscript))
        tiles = subscript.slice.elts if isinstance(subscript.slice, ast.Tuple) else []
        if len(tiles) != 2 or not all(isinstance(tile, ast.Name) for tile in tiles):
            return
        texts, as_stored = [f"({ast.unparse(size)})" for size in sizes], f"_helion_turned_{self.name}"
        made = self.function.body[self.at]
        added = _code(f"{as_stored} = {self.name}.view({', '.join(texts[each] for each in order)})", made)
        for first in range(1, len(sizes)):
            groups = tuple(range(first)), tuple(range(first, len(sizes)))
            if max(map(len, groups)) > 2:
                continue
            indices = [
                *_indices(tiles[0], "[:, None]", texts, groups[0]),
                *_indices(tiles[1], "[None, :]", texts, groups[1]),
            ]
            place = _code(f"{as_stored}[{', '.join(indices[each] for each in order)}] = None", store)
            assert isinstance(place, ast.Assign)
            place.value = store.value
            yield Turned(
                source=self._with([added], {id(store): place, id(permute): _name(as_stored, made)}),
                name=self.name,
                as_stored=as_stored,
                order=order,
                groups=groups,
            )

    def _stored(self, name: ast.Name) -> ast.Assign | None:
        """Return the statement that stores to elements of the tensor, and nothing else."""
        subscript = self.parents[id(name)]
        statement = self.parents.get(id(subscript))
        plain = (
            isinstance(subscript, ast.Subscript) and subscript.value is name and isinstance(subscript.ctx, ast.Store)
        )
        return statement if plain and isinstance(statement, ast.Assign) and statement.targets == [subscript] else None

    def _known(self) -> frozenset[str]:
        """Return the variables that have one value from before the tensor is made."""
        counts = [name for each in self.function.body for name in assigned_names([each])]
        before = {name for each in self.function.body[: self.at] for name in assigned_names([each])}
        given = {each.arg for each in ast.walk(self.function.args) if isinstance(each, ast.arg)}
        return frozenset(name for name in before | given if counts.count(name) == (name not in given))

    def _with(self, added: Sequence[ast.stmt], replaced: Mapping[int, ast.AST]) -> FunctionSource:
        """Return the source with statements after that which makes the tensor, and other nodes in place of some."""
        function = copy.copy(self.function)
        body = [_with_replaced(each, replaced) for each in self.function.body]
        function.body = [*body[: self.at + 1], *added, *body[self.at + 1 :]]
        return dataclasses.replace(self.source, node=function)


# Syntax ---------------------------------------------------------------------------------------------------------------------


def _with_replaced(node: Any, replaced: Mapping[int, ast.AST]) -> Any:
    """Return a node with others in place of some; parts that do not change stay the same objects."""
    if isinstance(node, list):
        made = [_with_replaced(each, replaced) for each in node]
        return node if all(one is other for one, other in zip(made, node, strict=True)) else made
    if not isinstance(node, ast.AST) or id(node) in replaced:
        return replaced.get(id(node), node) if isinstance(node, ast.AST) else node
    changes = {
        name: made for name, each in ast.iter_fields(node) if (made := _with_replaced(each, replaced)) is not each
    }
    if not changes:
        return node
    changed = copy.copy(node)
    for name, made in changes.items():
        setattr(changed, name, made)
    return changed


def _code(text: str, like: ast.stmt) -> ast.stmt:
    """Return a statement as if on the lines of another one, after all columns."""
    (statement,) = ast.parse(text).body
    for number, node in enumerate(ast.walk(statement)):
        if isinstance(node, (ast.expr, ast.stmt)):
            node.lineno, node.end_lineno = like.lineno, like.end_lineno
            node.col_offset = node.end_col_offset = _FAR + number
    return statement


def _name(name: str, like: ast.stmt) -> ast.expr:
    statement = _code(name, like)
    assert isinstance(statement, ast.Expr)
    return statement.value


def _listed(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call, or those in its only one."""
    only = call.args[0] if len(call.args) == 1 else None
    return only.elts if isinstance(only, (ast.List, ast.Tuple)) else call.args


def _rank(made: ast.Call) -> int | None:
    """Return the dimensions of a new tensor; None if they are not written one by one."""
    sizes = _listed(made)
    listed = isinstance(made.args[0], (ast.List, ast.Tuple)) if made.args else False
    return len(sizes) if (listed or len(sizes) > 1) and not any(isinstance(x, ast.Starred) for x in sizes) else None


def _order(call: ast.Call, rank: int) -> tuple[int, ...] | None:
    """Return the order of dimensions that ``permute`` or ``transpose`` gives; None if it is not written as numbers."""
    assert isinstance(call.func, ast.Attribute)
    try:
        given = [ast.literal_eval(each) for each in _listed(call)]
    except ValueError:
        return None
    if not all(isinstance(each, int) and -rank <= each < rank for each in given):
        return None
    order = [each % rank for each in given]
    if call.func.attr == "transpose":
        if len(order) != 2:
            return None
        swapped = {order[0]: order[1], order[1]: order[0]}
        order = [swapped.get(each, each) for each in range(rank)]
    return tuple(order) if sorted(order) == [*range(rank)] else None


def _is_number(size: ast.expr) -> bool:
    """Return whether an expression is made of variables, numbers and their products."""
    return all(
        isinstance(node, (ast.Name, ast.Constant, ast.BinOp, ast.operator, ast.expr_context)) for node in ast.walk(size)
    )


def _indices(tile: ast.expr, lanes: str, sizes: Sequence[str], group: Sequence[int]) -> list[str]:
    """Return the index of each part of a dimension, of which ``group`` are the positions in ``sizes``."""
    index = f"{ast.unparse(tile)}.index{lanes}"
    return [index] if len(group) == 1 else [f"{index} // {sizes[group[1]]}", f"{index} % {sizes[group[1]]}"]
