"""Split arguments of a call: tensors and numbers, which are passed to an operator, and constants, which are fixed."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ... import exc
from ..._support.nested import map_nested, tensors_in
from ...language.constants import ConstExpr
from ..call.signature import Keys, Same
from .kernels import Kernel

#: Names that parts of torch change: inductor renames ``self`` to ``input``, which may be taken.
_RENAMED = frozenset(("self",))
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


@dataclass(frozen=True)
class Leaf:
    """Placeholder for the leaf number ``at`` in a tree."""

    at: int


@dataclass(frozen=True)
class Flattened:
    """All arguments of a call, split.

    ``tree`` has a ``Leaf`` for each of ``leaves``, which are tensors, integers and floats; ``names`` are the names of
    the leaves.
    """

    tree: tuple[Any, ...]
    leaves: tuple[Any, ...]
    names: tuple[str, ...]

    @property
    def tensors(self) -> dict[int, torch.Tensor]:
        """The tensors by leaf."""
        return {at: leaf for at, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)}


def flatten(kernel: Kernel, values: Sequence[Any]) -> Flattened:
    """Split arguments.

    Raises ``exc.NoPlaceInGraph`` for constants that contain tensors, such as functions that close over them.
    """
    leaves: list[Any] = []
    names: list[str] = []
    tree = []
    for name, constant, value in zip(kernel.signature.parameters, kernel.constant_at, values, strict=True):

        def place(leaf: Any, name: str = name, constant: bool = constant) -> Any:
            fixed = constant or isinstance(leaf, (bool, torch.SymBool, ConstExpr))
            if fixed and not isinstance(leaf, torch.Tensor):
                return _plain(leaf)
            leaves.append(leaf)
            names.append(name)
            return Leaf(len(leaves) - 1)

        part = map_nested(value, (torch.Tensor, *_NUMBERS, torch.SymBool, ConstExpr), place)
        if next(tensors_in((part,), closures=True), None) is not None:
            raise exc.NoPlaceInGraph(
                kernel=kernel.name,
                why=f"a function in {name!r} closes over a tensor, which the graph would not track",
                remedy="pass the tensor to the kernel as an argument",
            )
        tree.append(part)
    return Flattened(tuple(tree), tuple(leaves), tuple(_numbered(names)))


def _plain(value: Any) -> Any:
    """Return a constant with numbers in place of symbols, whose values become guards of the graph."""
    if isinstance(value, ConstExpr):
        return ConstExpr(map_nested(value.value, (torch.SymInt, torch.SymFloat, torch.SymBool), _plain))
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymFloat):
        return float(value)
    return bool(value) if isinstance(value, torch.SymBool) else value


def _numbered(names: Sequence[str]) -> Iterator[str]:
    """Yield distinct names for the leaves; parameters that are leaves keep their names."""
    taken = {name for name in names if names.count(name) == 1 and name not in _RENAMED}
    count = 0
    for name in names:
        if name in taken and names.count(name) == 1:
            yield name
            continue
        while f"{name}_{count}" in taken:
            count += 1
        taken.add(f"{name}_{count}")
        yield f"{name}_{count}"


def key_of(tree: tuple[Any, ...]) -> Hashable:
    """Return a key that is equal for trees that one operator can serve."""
    return tuple(_key(part) for part in tree)


def _key(part: Any) -> Hashable:
    if isinstance(part, torch.fx.GraphModule):
        return Same(part)
    keys = Keys(static=True, baked=True)
    try:
        return keys.of(part)
    except TypeError:  # what a parameter annotated hl.constexpr may be
        return keys.of(part, True)


def unflatten(tree: Any, leaves: Sequence[Any]) -> Any:
    """Put the leaves back into a tree."""
    return map_nested(tree, Leaf, lambda leaf: leaves[leaf.at])


__all__ = ["Flattened", "Leaf", "flatten", "key_of", "unflatten"]
