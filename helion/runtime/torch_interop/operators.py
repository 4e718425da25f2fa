"""Kernels as operators of ``torch.library``: one per kernel and class of calls.

An operator takes the tensors and numbers of a call. Other arguments are fixed in it, and so are the effects: the
arguments that are written and the results that are new. Results that are arguments, or views of them, are made outside
of it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ... import exc
from ..._support.locks import new_lock
from ..._support.symmetric import is_shared
from ...language.several_gpus import Channel, Mailbox
from ..call.arg_snapshot import describe
from .backward import Differentiated, Formula, define_refusal, refusal
from .kernels import Kernel
from .outcome import Effects, base_of, outcome_of, tensors_of
from .trees import Flattened, Leaf, key_of, unflatten

NAMESPACE = "helion"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
define_refusal(_LIBRARY, NAMESPACE)
_LOCK = new_lock()
_OPERATORS: dict[Any, Operator] = {}
_BY_OVERLOAD: dict[torch._ops.OpOverload, Operator] = {}
_NAMES: set[str] = set()


@dataclass(frozen=True, eq=False)
class Operator:
    """The operator of calls of ``kernel`` with the arguments ``tree``, and with ``effects``.

    The leaves of ``tree`` have ``names`` and ``kinds`` (types of torch's schemas).
    """

    kernel: Kernel
    tree: tuple[Any, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    effects: Effects
    name: str
    #: Number of tensors that a call returns, if it is differentiated.
    results: int | None = None

    @property
    def overload(self) -> torch._ops.OpOverload:
        """The operator in graphs: takes the leaves, returns a tensor, a tuple of them, or None."""
        found: torch._ops.OpOverload = getattr(getattr(torch.ops, NAMESPACE), self.name).default
        return found

    @property
    def schema(self) -> str:
        """Its name, arguments and results as torch writes them."""
        arguments = []
        for at, (kind, name) in enumerate(zip(self.kinds, self.names, strict=True)):
            alias = f"(a{at}!)" if at in self.effects.written else ""
            arguments.append(f"{kind}{alias} {name}")
        results = ["Tensor"] * len(self.effects.made)
        returned = results[0] if len(results) == 1 else f"({', '.join(results)})"
        return f"{self.name}({', '.join(arguments)}) -> {returned}"

    @functools.cached_property
    def _tensors(self) -> tuple[int, ...]:
        return tuple(at for at, kind in enumerate(self.kinds) if kind == "Tensor")

    @functools.cached_property
    def _read(self) -> tuple[int, ...]:
        return tuple(at for at in self._tensors if at not in self.effects.written)

    @functools.cached_property
    def _is_flat(self) -> bool:
        """True if the arguments are the leaves."""
        return self.tree == tuple(map(Leaf, range(len(self.kinds))))

    @functools.cached_property
    def _has_channels(self) -> bool:
        return any(isinstance(part, (Channel, Mailbox)) for part in self.tree)

    def run(self, *leaves: Any) -> Any:
        """Run the call.

        Raises ``exc.WriteUnknownToGraph`` if it writes an argument that the schema does not declare as written.
        Raises ``exc.NoPlaceInGraph`` if the graph passes a copy of memory that ranks share.
        """
        arguments = leaves if self._is_flat else unflatten(self.tree, leaves)
        if self._has_channels:
            _check_shared(self.kernel, arguments)
        read = [(at, leaves[at], leaves[at]._version) for at in self._read if not leaves[at].is_inference()]
        results = self.kernel(*arguments)
        for at, leaf, version in read:
            if leaf._version != version:
                raise exc.WriteUnknownToGraph(kernel=self.kernel.name, name=self.names[at])
        found = [results] if type(results) is torch.Tensor else tensors_of(results)
        memory = [leaves[at].untyped_storage()._cdata for at in self._tensors]
        made = []
        for each in self.effects.made:
            tensor = base_of(found[each.at]) if each.base else found[each.at]
            made.append(tensor.clone() if tensor.untyped_storage()._cdata in memory else tensor)
        return _returned(made)

    def fake(self, *leaves: Any) -> Any:
        """Return the results of the call as fake tensors."""
        return _returned(outcome_of(self.kernel, Flattened(self.tree, leaves, self.names)).made)

    def of_batches(self, info: Any, in_dims: tuple[int | None, ...], *leaves: Any) -> tuple[Any, Any]:
        """Apply the rule of ``torch.vmap``: one call per sample, whose results are stacked."""
        if self.effects.written or (self.effects.random and info.randomness != "different"):
            what = "writes into its arguments" if self.effects.written else "draws random numbers"
            raise exc.NoPlaceInGraph(
                kernel=self.kernel.name, why=f"it {what}, inside torch.vmap", remedy="write a loop over the samples"
            )
        calls = []
        for sample in range(info.batch_size):
            one = [x if dim is None else x.select(dim, sample) for x, dim in zip(leaves, in_dims, strict=True)]
            results = self.overload(*one)
            calls.append(results if isinstance(results, (tuple, list)) else (results,))
        if not calls:
            raise exc.NoPlaceInGraph(
                kernel=self.kernel.name, why="torch.vmap has no samples", remedy="do not call it for none"
            )
        stacked = [torch.stack(each) for each in zip(*calls, strict=True)]
        return (stacked[0], 0) if len(stacked) == 1 else (tuple(stacked), (0,) * len(stacked))


def _check_shared(kernel: Kernel, arguments: Sequence[Any]) -> None:
    """Refuse copies of the counters of messages: other ranks would not see what is written there."""
    for name, value in zip(kernel.signature.parameters, arguments, strict=True):
        channel = value.channel if isinstance(value, Mailbox) else value
        if isinstance(channel, Channel) and not all(map(is_shared, channel.words)):
            raise exc.NoPlaceInGraph(
                kernel=kernel.name,
                why=f"the graph passes a copy of {name!r}, which other ranks do not see",
                remedy="compile with the backend 'inductor', which lets kernels write in place",
            )


def operator_for(kernel: Kernel, given: Flattened, effects: Effects, results: int | None = None) -> Operator:
    """Return the operator of such calls, registered on first use.

    ``results`` is the number of tensors that they return; given, the operator has the kernel's own backward.
    """
    kinds = tuple(map(_kind, given.leaves))
    key = (kernel, key_of(given.tree), kinds, effects, results)
    kernel.is_in_graphs = True
    with _LOCK:
        found = _OPERATORS.get(key)
        if found is None:
            name = _name(kernel, given.tree, kinds, effects, results)
            found = _OPERATORS[key] = Operator(kernel, given.tree, given.names, kinds, effects, name, results)
            _register(found)
            _BY_OVERLOAD[found.overload] = found
        return found


def operator_of(target: Any) -> Operator | None:
    """Return the operator that a node of a graph calls, or None."""
    return _BY_OVERLOAD.get(target) if isinstance(target, torch._ops.OpOverload) else None


def _kind(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return "Tensor"
    return "SymInt" if isinstance(leaf, (int, torch.SymInt)) else "float"


def _name(kernel: Kernel, tree: tuple[Any, ...], kinds: tuple[str, ...], effects: Effects, results: int | None) -> str:
    """Return a unique name. It is the same in every process unless functions among the arguments have equal names."""
    what = (
        kernel.fn.__module__,
        kernel.fn.__qualname__,
        kernel.kernel_source(),
        describe(tree),
        kinds,
        effects,
        results,
    )
    name = f"{kernel.name}_{hashlib.sha256(repr(what).encode()).hexdigest()[:10]}"
    taken = sum(other == name or other.startswith(f"{name}_") for other in _NAMES)
    name = f"{name}_{taken}" if taken else name
    _NAMES.add(name)
    return name


def _register(operator: Operator) -> None:
    tags = [torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides]
    if operator.effects.random:
        tags.append(torch.Tag.nondeterministic_seeded)
    _LIBRARY.define(operator.schema, tags=tuple(tags))
    _LIBRARY.impl(operator.name, operator.run, "CompositeExplicitAutograd")
    name = f"{NAMESPACE}::{operator.name}"
    torch.library.register_fake(name, operator.fake, lib=_LIBRARY)
    torch.library.register_vmap(name, operator.of_batches, lib=_LIBRARY)
    if operator.effects.made and not operator.effects.written:
        backward, keep = _backward(operator)
        torch.library.register_autograd(name, backward, setup_context=keep, lib=_LIBRARY)


def _backward(operator: Operator) -> Formula:
    if operator.results is None:
        return refusal(operator.kernel.name, operator.names)
    made = tuple(each.at for each in operator.effects.made)
    differentiated = Differentiated(
        operator.kernel,
        operator.tree,
        operator.names,
        operator.kinds,
        made,
        operator.results,
        f"{operator.name}_backward",
    )
    differentiated.define(_LIBRARY, NAMESPACE)
    return differentiated.formula(NAMESPACE)


def _returned(made: Sequence[torch.Tensor]) -> Any:
    if len(made) == 1:
        return made[0]
    return tuple(made) if made else None


__all__ = ["Operator", "operator_for", "operator_of"]
