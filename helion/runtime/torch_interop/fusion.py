"""Fusion of elementwise operations into kernels under ``torch.compile`` (setting ``torch_compile_fusion``).

A pass over Inductor's graphs takes a kernel's call, and the elementwise operations that alone use its result. One kernel
replaces them, which computes the operations at its store. Those that compute an argument move to its loads, if each
element is loaded once. The operations compute in fp32, as in Inductor, which keeps all others.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._inductor import config as inductor
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.virtualized import V
from torch.fx import Graph, Node

from ... import exc
from ...config import Config
from .fused_source import Access, Rewritten
from .kernels import Kernel
from .operators import Operator, operator_for, operator_of
from .outcome import outcome_of
from .trees import Leaf, flatten, unflatten

_aten = torch.ops.aten
#: Elementwise operations, as functions of their operands' text.
_OPS: Mapping[Any, str] = {
    _aten.add.Tensor: "({} + {})",
    _aten.sub.Tensor: "({} - {})",
    _aten.mul.Tensor: "({} * {})",
    _aten.div.Tensor: "({} / {})",
    _aten.maximum.default: "torch.maximum({}, {})",
    _aten.minimum.default: "torch.minimum({}, {})",
    _aten.neg.default: "(-{})",
    _aten.relu.default: "torch.relu({})",
    _aten.sigmoid.default: "torch.sigmoid({})",
    _aten.tanh.default: "torch.tanh({})",
    _aten.exp.default: "torch.exp({})",
    _aten.log.default: "torch.log({})",
    _aten.erf.default: "torch.erf({})",
    _aten.abs.default: "torch.abs({})",
    _aten.sqrt.default: "torch.sqrt({})",
    _aten.rsqrt.default: "torch.rsqrt({})",
    _aten.reciprocal.default: "(1.0 / {})",
}
_CONVERSIONS = (torch.ops.prims.convert_element_type.default,)
#: Config keys with an entry for each access.
_PER_ACCESS = frozenset(
    ("indexing", "atomic_indexing", "load_eviction_policies", "load_cache_modifiers", "store_cache_modifiers")
)
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
#: Most operations that one kernel takes on a side: more would need its registers.
_MOST = 16


class Fusion(CustomGraphPass):
    """The pass, after the one that was installed ``before``."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, graph: Graph) -> None:
        if self.before is not None:
            self.before(graph)
        if not V.aot_compilation:  # another process, without the fused kernels, runs what is compiled
            fuse(graph)

    def uuid(self) -> None:
        """Return None: Inductor's cache would keep calls of operators that another process has not registered."""


def install() -> None:
    """Let Inductor run the pass after the user's own."""
    before = inductor.post_grad_custom_post_pass
    if not isinstance(before, Fusion):
        inductor.post_grad_custom_post_pass = Fusion(before)


def fuse(graph: Graph) -> int:
    """Fuse the neighbors of all calls of kernels with the setting; return the number of fused calls."""
    fused = 0
    for node in list(graph.nodes):
        operator = operator_of(node.target) if node.op == "call_function" else None
        if operator is None or not operator.kernel.settings.torch_compile_fusion:
            continue
        if operator.effects.written or operator.effects.random or len(operator.effects.made) != 1:
            continue
        fused += _fused(graph, node, operator)
    return fused


def _fused(graph: Graph, node: Node, operator: Operator) -> bool:
    """Replace a call and its neighbors by the call of one kernel; return False if none can be fused."""
    for count in range(2):  # a prologue that the kernel cannot take must not prevent the epilogue
        call = _Call(graph, node, operator)
        if not call.source.is_plain:
            return False
        changed = call.take_users()
        changed = (call.take_arguments() if not count else False) or changed
        if changed and call.replace():
            return True
    return False


class _Call:
    """A call while neighbors are fused: ``last`` is the node whose value the kernel returns, ``given`` its arguments."""

    def __init__(self, graph: Graph, node: Node, operator: Operator) -> None:
        self.graph, self.node, self.operator = graph, node, operator
        self.source = Rewritten(operator.kernel.fn, operator.kernel.kernel_source())
        self.last = node
        self.given: list[Any] = list(node.args)
        self.extras: dict[Node, str] = {}
        self.replaced = {node}
        self.taken = self.source.names()

    # --- what follows -----------------------------------------------------------------------------------------------------

    def take_users(self) -> bool:
        """Take the elementwise operations of which all but the last have users only among them."""
        region, best = [self.node], 1
        for node in _between(self.node):
            if len(region) > _MOST or _has_effects(node):
                break
            if _is_elementwise(node, self.node) and any(argument in region for argument in node.all_input_nodes):
                region.append(node)
                inner = set(region)
                if all(set(each.users) <= inner for each in region[:-1]):
                    best = len(region)
        region = region[:best]
        if best == 1 or region[-1].meta["val"].stride() != self.node.meta["val"].stride():
            return False
        operands = _outside(region)
        value = self.node.meta["val"]
        names = [self._named(operand) for operand in operands]
        accesses = [Access(name=n, dims=o.meta["val"].dim()) for n, o in zip(names, operands, strict=True)]
        text = functools.partial(_text, region, operands)
        made = region[-1].meta["val"].dtype
        if not self.source.store(accesses, value.dim(), value.dtype, made, text):
            return False
        self.extras |= dict(zip(operands, names, strict=True))
        self.last = region[-1]
        self.replaced.update(region)
        return True

    # --- arguments --------------------------------------------------------------------------------------------------------

    def take_arguments(self) -> bool:
        """Take the elementwise operations that compute arguments, and that only this call uses."""
        taken = False
        for at, argument in enumerate(self.given):
            name = self.operator.names[at]
            is_parameter = Leaf(at) in self.operator.tree and name in self.operator.kernel.signature.parameters
            if isinstance(argument, Node) and is_parameter and self._take_argument(at, name, argument):
                taken = True
        return taken

    def _take_argument(self, at: int, name: str, argument: Node) -> bool:
        region = _computed(argument, self.node)
        if not region:
            return False
        value, operands = argument.meta["val"], _outside(region)
        first = next((each for each in operands if _is_like(each.meta["val"], value)), None)
        if first is None:
            return False
        operands = [first, *(each for each in operands if each is not first)]
        names = [name, *(self._named(operand) for operand in operands[1:])]
        accesses = [Access(name=n, dims=o.meta["val"].dim()) for n, o in zip(names, operands, strict=True)]

        def text(_: str, places: Sequence[str]) -> str:
            return _text(region, operands, "", places)

        if not self.source.load(name, accesses, value.dim(), value.dtype, text):
            return False
        self.given[at] = first
        self.replaced.update(region)
        self.extras |= dict(zip(operands[1:], names[1:], strict=True))
        return True

    def _named(self, operand: Node) -> str:
        """Return the name of a new parameter for an operand."""
        if operand in self.extras:
            return self.extras[operand]
        number = 0
        while f"fused_{number}" in self.taken:
            number += 1
        self.taken.add(f"fused_{number}")
        return f"fused_{number}"

    # --- the kernel -------------------------------------------------------------------------------------------------------

    def replace(self) -> bool:
        """Insert the call of the fused kernel; return False if it is refused, or has another result."""
        kernel = _kernel(self.operator.kernel, self.source)
        extras = [each for each, name in self.extras.items() if name in kernel.signature.parameters]
        values = [*unflatten(self.operator.tree, [_value(each) for each in self.given]), *map(_value, extras)]
        given = flatten(kernel, values)
        try:
            outcome = outcome_of(kernel, given)
        except exc.BaseError:  # the language lacks what Inductor computes
            return False
        made, wanted = outcome.made, self.last.meta["val"]
        if len(made) != 1 or outcome.effects.written or len(outcome.places) != 1 or outcome.places[0].steps:
            return False
        if not _is_like(made[0], wanted):
            return False
        operator = operator_for(kernel, given, outcome.effects)
        with self.graph.inserting_before(self.last):
            call = self.graph.call_function(operator.overload, (*self.given, *extras))
        shown = tuple(map(_value, call.args))  # Inductor keeps the layouts of these arguments
        call.meta |= {**self.last.meta, "val": wanted, "eager_input_vals": (shown, {})}
        self.last.replace_all_uses_with(call)
        for node in reversed(list(self.graph.nodes)):
            if node in self.replaced and not node.users:
                self.graph.erase_node(node)
        return True


#: Fused kernels by the original kernel and the source.
_KERNELS: dict[tuple[Kernel, str], Kernel] = {}


def _kernel(kernel: Kernel, source: Rewritten) -> Kernel:
    """Return the kernel of a rewritten source, with the settings of the original one.

    It has its configs, too, without the options of each access.
    """
    function = source.finished()
    key = (kernel, function.__code__.co_filename)
    if key not in _KERNELS:
        make: Callable[..., Kernel] = type(kernel)
        configs = [Config(**{k: v for k, v in config.items() if k not in _PER_ACCESS}) for config in kernel.configs]
        made = make(function, configs=configs, settings=kernel.settings)
        made.default_printed = True  # type: ignore[attr-defined]
        _KERNELS[key] = made
    return _KERNELS[key]


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, Node) else argument


def _between(node: Node) -> Iterator[Node]:
    """Yield the nodes after one, in their order."""
    while (node := node.next).op != "output":
        yield node


def _has_effects(node: Node) -> bool:
    """Return whether a node may write what a call that moves past it reads."""
    schema = getattr(node.target, "_schema", None)
    if schema is not None:
        return bool(schema.is_mutable)
    module = getattr(node.target, "__module__", "")
    return node.op == "call_function" and module not in ("_operator", "math")  # these take parts, and compute sizes


def _is_elementwise(node: Node, like: Node) -> bool:
    """Return whether a node computes floats of the shape of another, from tensors of it or of its last dimensions."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype not in _FLOATS:
        return False
    if node.target in _CONVERSIONS:
        operands = node.args[:1]
    elif node.target in _OPS and not node.kwargs:
        operands = node.args
    else:
        return False
    shape = list(map(str, like.meta["val"].shape))
    return list(map(str, value.shape)) == shape and all(_is_operand(each, shape) for each in operands)


def _is_operand(operand: Any, shape: list[str]) -> bool:
    if not isinstance(operand, Node):
        return isinstance(operand, (int, float)) and math.isfinite(operand)
    value = operand.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype not in _FLOATS or not 0 < value.dim() <= len(shape):
        return False
    return list(map(str, value.shape)) == shape[len(shape) - value.dim() :]


def _is_like(value: Any, other: Any) -> bool:
    """Return whether two fake tensors have the same dtype, sizes and strides."""

    def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
        return tensor.dtype, list(map(str, tensor.shape)), list(map(str, tensor.stride()))

    return layout(value) == layout(other)


def _outside(region: Sequence[Node]) -> list[Node]:
    """List the operands that a region does not compute, without the call that it begins with."""
    found = (
        operand
        for node in region
        if node.target in _OPS or node.target in _CONVERSIONS
        for operand in node.all_input_nodes
    )
    return [operand for operand in dict.fromkeys(found) if operand not in region]


def _computed(argument: Node, call: Node) -> list[Node]:
    """Return the elementwise operations that compute an argument and have no other users, in their order."""
    region: list[Node] = []
    waiting = [argument]
    while waiting and len(region) < _MOST:
        node = waiting.pop()
        users = set(node.users) <= ({call} if node is argument else set(region))
        if node not in region and users and _is_elementwise(node, argument):
            region.append(node)
            waiting += node.all_input_nodes
    order = {node: at for at, node in enumerate(call.graph.nodes)}
    region.sort(key=order.__getitem__)
    between = itertools.takewhile(lambda node: node is not call, _between(region[0])) if region else ()
    return [] if any(map(_has_effects, between)) else region


def _text(region: Sequence[Node], operands: Sequence[Node], own: str, places: Sequence[str]) -> str:
    """Return the last value of a region as text, with ``own`` for the call, and ``places`` for operands outside."""
    known = dict(zip(operands, places, strict=True))
    for node in region:
        if node.target in _CONVERSIONS:
            known[node] = known[node.args[0]]  # type: ignore[index]
        elif node.target in _OPS:
            texts = [known[each] if isinstance(each, Node) else repr(float(each)) for each in node.args]  # type: ignore[arg-type]
            known[node] = _OPS[node.target].format(*texts)
        else:
            known[node] = own
    return known[region[-1]]
