"""Entry of the front end: trace a kernel and its arguments to a program."""

from __future__ import annotations

import ast
import contextlib
import copy
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ... import exc
from ..._shapes import WIDE, hint_of
from ..._support.nested import tensors_in
from ..context import CompileContext
from ..host.analysis import written
from ..ir.grammar import ForAttrs, OperandRef, Program
from ..ir.host_module import HostModule
from ..source import FunctionSource, parse_kernel
from . import lost_results
from .arguments import Arguments
from .frames import Frame, assigned_names, names_in
from .guards import Traced
from .host import turned_results
from .statements.kernel import walk_kernel
from .syntax import SYNTAX
from .torch.functions import RULES
from .tracer import Tracer
from .walk.scope import Walk


def index_dtype(name: str, arguments: Mapping[str, Any]) -> torch.dtype:
    """Return the dtype of offsets: the setting's, or int64 if an input has so many elements that a tile may exceed
    2**31.
    """
    large = next(((n, t) for n, v in arguments.items() for t in _tensors(v) if t.numel() > WIDE), None)
    if name == "auto":
        return torch.int32 if large is None else torch.int64
    if name == "int32" and large is not None:
        raise exc.InputTensorNumelExceedsIndexType(name=large[0], numel=large[1].numel(), dtype="int32")
    return torch.int64 if name == "int64" else torch.int32


def check_bounds(program: Program) -> None:
    """Refuse loops whose counters, or the lanes of their last tiles, do not fit the program's index dtype.

    Raises:
        LoopBoundOutOfRangeForInt32: a loop ends at ``WIDE`` or later, or a step goes beyond 2**31 - 1.
    """
    if program.index_dtype != torch.int32:
        return
    axes = [(axis, root.location) for root in program.roots for axis in root.axes]
    loops = (op for op in program.walk() if isinstance(op.attrs, ForAttrs))
    axes += [(axis, op.location) for op in loops for axis in op.attrs.axes]
    for axis, location in axes:
        if isinstance(axis.end, OperandRef):
            continue
        end, step = hint_of(axis.end), hint_of(axis.step)
        if end >= WIDE or end - 1 + step >= 2**31:
            raise exc.LoopBoundOutOfRangeForInt32(
                end=end, step=f" in steps of {step}" if step != 1 else "", location=location
            )
    for block in program.blocks:
        if block.extent is not None and hint_of(block.extent) >= WIDE:
            raise exc.LoopBoundOutOfRangeForInt32(
                end=hint_of(block.extent), step="", location=program.roots[0].location
            )


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [t for item in value for t in _tensors(item)]
    return []


def trace(
    fn: Callable[..., Any], arguments: Mapping[str, Any], context: CompileContext, constants: frozenset[str]
) -> Traced:
    """Walk ``fn`` on its arguments. ``constants`` are the parameters annotated as compile-time constants.

    Where the host copies a result in another order, the kernel stores it in that order, if the walk shows that it may.
    """
    source = parse_kernel(fn)
    for each in turned_results.turned(source, fn.__globals__):
        with contextlib.suppress(Exception):  # what the kernel itself raises is raised below
            names, traced = _trace(fn, each.source, arguments, context, constants)
            if each.holds(names):
                return traced
    return _trace(fn, source, arguments, context, constants)[1]


def _trace(
    fn: Callable[..., Any],
    source: FunctionSource,
    arguments: Mapping[str, Any],
    context: CompileContext,
    constants: frozenset[str],
    settled: frozenset[str] = frozenset(),
    counted: frozenset[int] = frozenset(),
) -> tuple[Mapping[str, Any], Traced]:
    """Walk a source of ``fn``, and return the values of its variables at the end next to what was traced.

    A number may become part of the key after a tile has a dimension of that size, and the two do not match then. So a
    walk that fails is done again with its ``settled`` numbers known from the beginning. So are the ``counted`` sizes of
    dimensions whose lanes a reshape depends on after a matmul has widened them; the matmul pads its operand then.
    """
    t = Tracer(context, RULES)
    t.blocks.known_counted = counted
    t.numbers.taken = names_in(source.node) | frozenset(arguments)
    frame = Frame(source, fn.__globals__, {}, is_kernel=True)
    assert isinstance(source.node, ast.FunctionDef)
    lift = Arguments(t, frozenset(assigned_names(source.node.body)), context.settings.static_shapes)
    t.tensors.meeting(_tensors(tuple(arguments.values())))
    for at, (name, value) in enumerate(arguments.items()):
        frame.names[name] = lift.lift(value, name, at, name in constants)
    lift.settle(settled)
    walk = Walk(t, frame, SYNTAX)
    found = settled
    try:
        walk_kernel(walk)
    except exc.Base:
        found = settled.union(t.numbers.specialized).intersection(t.numbers.symbols)
        if found == settled and counted.issuperset(t.blocks.widened):
            raise
    if found != settled or not counted.issuperset(t.blocks.widened):
        return _trace(fn, source, arguments, context, constants, found, counted | t.blocks.widened)
    if not walk.roots and not walk.skipped:
        raise exc.NoDeviceLoopsInKernel(kernel=fn.__name__)
    program = Program(
        tensors=tuple(t.tensors.program),
        blocks=tuple(t.blocks.all),
        roots=tuple(walk.roots),
        host=_host_module(fn, source, walk),
        index_dtype=context.index_dtype,
        tunables=tuple(t.registered.tunables.items()),
    )
    check_bounds(program)
    for warning in lost_results.warnings(source, fn.__globals__, frozenset(n.name for n in program.tensors)):
        t.world.warn(warning)
    traced = Traced(
        program,
        dict(t.numbers.specialized),
        tuple(t.world.warnings),
        tuple(t.world.guards.values()),
        tuple(count for _, count in t.tensors.seeds.values()),
        {s.name: s.origin for s in t.numbers.symbols.values() if s.name not in t.numbers.specialized},
        misplaced=t.world.misplaced,
        acts=t.world.acts or _changes_others(t, arguments, program),
    )
    return frame.names, traced


def _changes_others(t: Tracer, arguments: Mapping[str, Any], program: Program) -> bool:
    """Return whether the kernel may change a tensor that is not among the arguments, such as a global one."""
    given = {id(tensor) for tensor in tensors_in(arguments.values())}
    others = {value.storage for (at, _), value in t.tensors.lifted.items() if at not in given}
    names = written(program) if others else frozenset()
    stored = {each.storage for each in program.tensors if names is None or each.source in names}
    return not others.isdisjoint(stored | t.tensors.changed)


def _seeds(t: Tracer) -> dict[str, str]:
    """Return host expressions of the seeds that launches draw, on the device of another tensor that they use."""
    found = {}
    for first, (at, count) in t.tensors.seeds.items():
        other = next(tensor for tensor in t.tensors.program[first:] if tensor.id != at)
        found[t.tensors.program[at].name] = f"_helion_runtime.random_seeds({count}, {other.source})"
    return found


def _with_body(function: ast.FunctionDef, body: list[ast.stmt]) -> ast.FunctionDef:
    changed = copy.copy(function)
    changed.body = body
    return changed


def _source_globals(fn: Callable[..., Any], names: frozenset[str]) -> dict[str, str]:
    """Return the globals of the module of ``fn`` among ``names``, with the module name of those that are modules."""
    found = ((name, fn.__globals__[name]) for name in sorted(names) if name in fn.__globals__)
    return {name: value.__name__ if isinstance(value, types.ModuleType) else "" for name, value in found}


def _host_module(fn: Callable[..., Any], source: FunctionSource, walk: Walk) -> HostModule:
    function = source.node
    assert isinstance(function, ast.FunctionDef)
    assigned = frozenset(assigned_names(function.body))
    tensors = (v.source for v in walk.t.tensors.lifted.values() if len(v.origin) == 2)
    reference = next((name for name in tensors if name.isidentifier() and name not in assigned), "")
    return HostModule(
        name=fn.__code__.co_name,
        function=_with_body(function, walk.body),
        source_module=fn.__module__,
        device_source=source.file,
        registered=dict(walk.t.registered.block_sizes),
        tunable_calls=dict(walk.t.registered.tunable_calls),
        specialized_calls=frozenset(walk.t.registered.specialized_calls),
        symbols={s.name: s.source for s in walk.t.numbers.symbols.values()},
        deferred_symbols={
            **{
                name: f"{tensor.source or tensor.made}.{what}"
                for name, (tensor, what) in walk.t.numbers.deferred.items()
            },
            **{name: text for name, text in walk.t.numbers.drawn.items() if text},
            **_seeds(walk.t),
        },
        captures=dict(walk.t.numbers.captures),
        source_globals=_source_globals(fn, walk.t.numbers.taken),
        checks=tuple(walk.t.tensors.checks),
        reaches=tuple(walk.t.tensors.reaches),
        narrow=tuple(walk.t.tensors.narrow),
        reference=reference,
        argument_checks=walk.t.numbers.conditions(walk.t.context.limits.least_size),
        placed_calls=frozenset(walk.t.registered.placed_calls),
        placed_by=walk.t.registered.placed_by,
        specialized=frozenset(walk.t.numbers.specialized).intersection(walk.t.numbers.symbols),
        changing=frozenset(walk.t.numbers.loop_numbers),
    )
