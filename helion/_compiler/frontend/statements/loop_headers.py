"""Bounds, steps and block sizes in the header of a loop."""

from __future__ import annotations

import ast
from typing import Any

import torch

from .... import exc
from ...ir.host_module import Keep
from .. import memory, ops
from ..host import tensors as host_tensors
from ..runtime_values import refuse_opaque
from ..values import DeviceValue, HostTensorValue, LoopSpec, describe
from ..walk.scope import Scope, evaluate


def bounds_of(spec: LoopSpec) -> tuple[Any, Any, Any]:
    """Return begin, end and step of a loop over one dimension."""
    return spec.begins[0], spec.ends[0], spec.sizes[0] or 1


def constant_bound(value: Any) -> int:
    """Return a bound that must be constant for unrolling."""
    if isinstance(value, float):
        raise exc.TypeInferenceError(f"hl.static_range needs integer bounds, got {value!r}; pass int({value!r}).")
    if not isinstance(value, int):
        raise exc.TypeInferenceError(f"hl.static_range needs constant bounds, got {describe(value)}.")
    return value


def loop_spec(s: Scope, name: str, node: ast.For) -> LoopSpec:
    """Return a loop over the bounds and sizes in its header."""
    call = node.iter
    assert isinstance(call, ast.Call)
    args = [_read_bound(s, a) for a in call.args]
    kwargs = {k.arg: evaluate(s, k.value) for k in call.keywords}
    s.at(call)
    refuse_opaque((args, kwargs))
    if not 1 <= len(args) <= 3 or (len(args) == 3 and name == "hl.tile" and "block_size" in kwargs):
        raise exc.TypeInferenceError(f"{name} takes one or two bounds, got {len(args)} arguments.")
    extra_name = "block_size" if name == "hl.tile" else "step"
    extra = kwargs.pop(extra_name, args[2] if len(args) == 3 else None)
    if kwargs:
        raise exc.TypeInferenceError(f"{name} has no argument {next(iter(kwargs))!r}.")
    if len(args) == 1 or args[1] is None:
        begins, ends = None, args[0]
    else:
        begins, ends = args[0], args[1]
    sequence = isinstance(ends, (tuple, list))
    ends = tuple(ends) if sequence else (ends,)
    if not ends:
        raise exc.TypeInferenceError(
            f"{name} got no dimension to loop over; give a tensor without dimensions one, as x.reshape(1) does."
        )
    if begins is None:
        begins = (0,) * len(ends)
    elif isinstance(begins, (tuple, list)) != sequence:
        raise exc.IncorrectTileUsage(how="with a list as one bound and a scalar as the other")
    else:
        begins = tuple(begins) if sequence else (begins,)
    sizes = tuple(extra) if isinstance(extra, (tuple, list)) else (extra,) * len(ends)
    if not len(begins) == len(ends) == len(sizes):
        raise exc.TypeInferenceError(
            f"{name} got {len(begins)} begins, {len(ends)} ends and {len(sizes)} {extra_name}s."
        )
    for size in sizes if name in ("hl.grid", "range") else ():
        if isinstance(size, int) and size < 1:
            raise exc.InvalidAPIUsage(
                f"The step of {name} in a loop of programs or of device code must be at least 1, got {size}."
            )
    return LoopSpec(name, name != "hl.tile", begins, ends, sizes, sequence)


def _read_bound(s: Scope, node: ast.expr) -> Any:
    """Return a bound of a loop.

    Integers in tensors of one element are read: by the host if they size a grid, by the program if they bound a loop of
    device code.
    """
    if isinstance(node, (ast.List, ast.Tuple)) and not s.t.on_device:
        return [_read_bound(s, element) for element in node.elts]
    value = evaluate(s, node)
    if s.t.on_device:
        return _loaded(s, value)
    if isinstance(value, HostTensorValue) and not value.ndim:
        return _read_number(s, value, node)
    return value


def _loaded(s: Scope, bound: Any) -> Any:
    """Return a bound of device code; host tensors without dimensions are loaded, also in a sequence."""
    if isinstance(bound, HostTensorValue) and not bound.ndim and not bound.dtype.is_floating_point:
        return memory.load(s.t, bound, ())
    return type(bound)(_loaded(s, each) for each in bound) if type(bound) in (tuple, list) else bound


def _read_number(s: Scope, tensor: HostTensorValue, node: ast.expr) -> Any:
    """Return the integer in a host tensor, read as if ``node`` had ``.item()`` after it."""
    if tensor.dtype.is_floating_point:
        return tensor
    number = host_tensors.item(s.t, tensor.dtype)
    s.t.numbers.drawn[number.args[0]] = ""
    call = ast.Call(ast.Attribute(node, "item", ast.Load()), [], [])
    s.walk.header_reads.append(Keep(number.args[0], ast.copy_location(call, node)))
    return number


def jagged_spec(s: Scope, node: ast.For) -> LoopSpec:
    """Return a loop up to the largest row length."""
    call = node.iter
    assert isinstance(call, ast.Call)
    parents = [evaluate(s, a) for a in call.args]
    s.at(call)
    if not s.t.on_device:
        raise exc.InvalidJaggedTileUsage("it must be inside an hl.tile loop over the rows.")
    if len(parents) != 1 or not isinstance(parents[0], DeviceValue) or not parents[0].dims:
        raise exc.InvalidJaggedTileUsage(
            f"it takes one device tile of row lengths, got {', '.join(map(describe, parents)) or 'nothing'}."
        )
    lengths = parents[0]
    if lengths.dtype.is_floating_point or lengths.dtype == torch.bool:
        raise exc.InvalidJaggedTileUsage(f"row lengths must be integers, got {lengths!r}.")
    if any(d.block is None for d in lengths.dims):
        raise exc.InvalidJaggedTileUsage(f"row lengths must have the dimensions of tiles, got {lengths!r}.")
    lengths = ops.cast(s.t, lengths, s.t.context.index_dtype)
    longest = ops.reduce(s.t, "max", lengths, range(lengths.ndim), lengths.dtype)
    longest = ops.pointwise(s.t, "maximum", longest, 0)
    return LoopSpec("hl.jagged_tile", False, (0,), (longest,), (None,), False, jagged=lengths)
