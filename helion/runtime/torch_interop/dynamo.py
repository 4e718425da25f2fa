"""Calls of a kernel in the front end of ``torch.compile``: each is one opaque node of the graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import SourcelessBuilder, VariableBuilder
from torch._dynamo.variables.misc import GetAttrVariable
from torch._dynamo.variables.torch import BaseTorchVariable, TorchInGraphFunctionVariable

from ..._support import logs as _logging
from ..._support.nested import map_nested
from .outcome import tensors_of
from .trees import Leaf, unflatten


class KernelVariable(BaseTorchVariable):
    """A kernel in traced code. Arguments that a graph cannot contain, such as functions, are fixed in the node.

    It is no function of torch: torch 2.11 evaluates attributes of these, and cannot wrap a bound method.
    """

    def call_function(self, tx: Any, args: Any, kwargs: Any) -> VariableTracker:
        fixed = {at: value for at, arg in enumerate(args) for value in _constant(arg)}
        named = {name: value for name, arg in kwargs.items() for value in _constant(arg)}
        node = Node(self.value, fixed, named)
        passed = [arg for at, arg in enumerate(args) if at not in fixed]
        others = {name: arg for name, arg in kwargs.items() if name not in named}
        results = TorchInGraphFunctionVariable(node).call_function(tx, passed, others)
        leaves = results.unpack_var_sequence(tx)
        return SourcelessBuilder.create(tx, unflatten(node.tree, leaves))

    def var_getattr(self, tx: Any, name: str) -> VariableTracker:
        return GetAttrVariable(self, name) if name == "differentiable" else super().var_getattr(tx, name)

    def call_method(self, tx: Any, name: str, args: Any, kwargs: Any) -> VariableTracker:
        if name == "differentiable" and not args and not kwargs:
            return KernelVariable(self.value.differentiable())
        return super().call_method(tx, name, args, kwargs)


class Node:
    """A call of a kernel as a node of a graph, with the arguments that are ``fixed``, by position and by ``named``.

    It returns the tensors among the results. ``tree`` has the results with a ``Leaf`` for each tensor, and is set by
    the first call.
    """

    def __init__(self, kernel: Callable[..., Any], fixed: Mapping[int, Any], named: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, kernel, updated=())
        self._kernel = kernel
        self._fixed = fixed
        self._named = named
        self.tree: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        given = iter(args)
        count = len(args) + len(self._fixed)
        values = [self._fixed[at] if at in self._fixed else next(given) for at in range(count)]
        results = self._kernel(*values, **kwargs, **self._named)
        numbers: Iterator[int] = iter(range(len(tensors_of(results))))
        self.tree = map_nested(results, torch.Tensor, lambda tensor: Leaf(next(numbers)))
        return tuple(tensors_of(results))

    def __repr__(self) -> str:
        return repr(self._kernel)


def _constant(arg: VariableTracker) -> tuple[Any, ...]:
    """Return the value of an argument that cannot be in a graph, in a tuple; an empty tuple for any other."""
    if arg.is_python_constant() and callable(arg.as_python_constant()):
        return (arg.as_python_constant(),)
    try:
        arg.as_proxy()
    except (NotImplementedError, Unsupported):
        return (arg.as_python_constant(),)
    return ()


def register(*kinds: type) -> None:
    """Let objects of these kinds be called in graphs."""
    dispatch: Callable[[], dict[Any, Any]] | None = getattr(VariableBuilder, "_type_dispatch", None)
    if dispatch is None:
        _logging.say_once(
            "helion: this version of torch.compile takes no kernels into its graphs, and breaks them instead"
        )
        return
    dispatch().update(dict.fromkeys(kinds, _wrapped))


def _wrapped(builder: VariableBuilder, kernel: Any) -> VariableTracker:
    builder.install_guards(GuardBuilder.ID_MATCH)
    return KernelVariable(kernel, source=builder.source)
