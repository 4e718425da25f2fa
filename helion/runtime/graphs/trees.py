"""Arguments of a call apart: tensors and numbers, which an operator is given, and the rest, which is fixed."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ... import exc
from ...language.constants import ConstExpr
from ..remembered import mapped
from ..signature import Keys, Same, tensors_in
from .kernels import Kernel

#: Names that parts of torch change: inductor calls ``self`` ``input``, which may be there as well.
_RENAMED = frozenset(("self",))
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


@dataclass(frozen=True)
class Leaf:
    """Stands for the leaf number ``at`` in a tree."""

    at: int


@dataclass(frozen=True)
class Apart:
    """All arguments of a call: ``tree`` has a ``Leaf`` for each of ``leaves``, which are tensors, integers and floats;
    ``names`` are theirs."""

    tree: tuple[Any, ...]
    leaves: tuple[Any, ...]
    names: tuple[str, ...]

    @property
    def tensors(self) -> dict[int, torch.Tensor]:
        """The tensors by leaf."""
        return {at: leaf for at, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)}


def apart(kernel: Kernel, values: Sequence[Any]) -> Apart:
    """Raises ``exc.NoPlaceInGraph`` for constants that hold tensors, as functions do that close over them."""
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

        part = mapped(value, (torch.Tensor, *_NUMBERS, torch.SymBool, ConstExpr), place)
        if next(tensors_in((part,), closures=True), None) is not None:
            raise exc.NoPlaceInGraph(
                kernel=kernel.name,
                why=f"a function in {name!r} closes over a tensor, of which the graph would not know",
                remedy="pass the tensor to the kernel as an argument",
            )
        tree.append(part)
    return Apart(tuple(tree), tuple(leaves), tuple(_numbered(names)))


def _plain(value: Any) -> Any:
    """A constant with numbers in place of symbols, which puts their values among the assumptions of the graph."""
    if isinstance(value, ConstExpr):
        return ConstExpr(mapped(value.value, (torch.SymInt, torch.SymFloat, torch.SymBool), _plain))
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymFloat):
        return float(value)
    return bool(value) if isinstance(value, torch.SymBool) else value


def _numbered(names: Sequence[str]) -> Iterator[str]:
    """Different names for the leaves; those of parameters that are leaves stay."""
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
    """Equal for trees that an operator may take for each other."""
    return tuple(_key(part) for part in tree)


def _key(part: Any) -> Hashable:
    if isinstance(part, torch.fx.GraphModule):
        return Same(part)
    keys = Keys(static=True, baked=True)
    try:
        return keys.of(part)
    except TypeError:  # what a parameter annotated hl.constexpr may be
        return keys.of(part, True)


def whole(tree: Any, leaves: Sequence[Any]) -> Any:
    """A tree with its leaves in place."""
    return mapped(tree, Leaf, lambda leaf: leaves[leaf.at])


__all__ = ["Apart", "Leaf", "apart", "key_of", "whole"]
