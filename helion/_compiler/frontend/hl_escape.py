"""Rules for the ways out of the language: printing, breakpoints, Triton source and functions, inline assembly."""

from __future__ import annotations

import inspect
import itertools
import re
import textwrap
import types
from dataclasses import dataclass
from typing import Any

from ... import exc
from ... import language as hl
from ..._shapes import broadcast_dims
from ..ir.grammar import AsmAttrs, InlineAttrs, Op, PrintAttrs, Value
from .rules import Rules
from .tracer import Tracer
from .values import DeviceValue, HostTensorValue, describe

RULES = Rules()
rule = RULES.register


@rule(hl.breakpoint)
def _breakpoint(t: Tracer) -> None:
    raise exc.BreakpointInDeviceLoopRequiresInterpret()


@rule(hl.device_print)
def _device_print(t: Tracer, prefix: Any, *values: Any) -> None:
    if not isinstance(prefix, str):
        raise exc.InvalidAPIUsage(
            f"The first argument of hl.device_print must be a string literal, got {describe(prefix)}."
        )
    operands = [t.as_device(v, "in hl.device_print").value for v in values]
    t.builder.append(Op("print", tuple(operands), (), PrintAttrs(prefix), (), t.builder.location))


def _outputs(t: Tracer, output_like: Any) -> tuple[Value, ...]:
    likes = () if output_like is None else output_like if isinstance(output_like, (tuple, list)) else (output_like,)
    for like in likes:
        if not isinstance(like, DeviceValue):
            raise exc.TypeInferenceError(f"output_like must be a tile, a tuple of tiles or None, got {describe(like)}.")
    return tuple(t.builder.value(like.dtype, like.dims) for like in likes)


def inline(
    t: Tracer,
    lines: tuple[str, ...],
    operands: list[Any],
    output_like: Any,
    helpers: tuple[str, ...] = (),
    tensors: tuple[int, ...] = (),
) -> Any:
    results = _outputs(t, output_like)
    attrs = InlineAttrs(lines, helpers, tensors)
    t.builder.append(Op("inline", tuple(operands), results, attrs, (), t.builder.location))
    wrapped = tuple(map(t.wrap, results))
    return None if output_like is None else wrapped if isinstance(output_like, (tuple, list)) else wrapped[0]


@dataclass(frozen=True, kw_only=True)
class _InlineArguments:
    """Arguments of Triton source: a placeholder for each, what the op reads, and tensors that are passed as pointers."""

    places: dict[str, str]
    operands: list[Any]
    tensors: tuple[int, ...]


def _inline_arguments(t: Tracer, args: Any) -> _InlineArguments:
    given = args if isinstance(args, dict) else {str(i): a for i, a in enumerate(args)}
    operands = [t.operand(a) for a in given.values() if not isinstance(a, HostTensorValue)]
    tensors = tuple(t.tensor_id(a) for a in given.values() if isinstance(a, HostTensorValue))
    values, pointers = iter(range(len(operands))), itertools.count(len(operands))
    places = {k: f"{{{next(pointers if isinstance(a, HostTensorValue) else values)}}}" for k, a in given.items()}
    return _InlineArguments(places=places, operands=operands, tensors=tensors)


@rule(hl.inline_triton)
def _inline_triton(t: Tracer, triton_source: Any, args: Any, output_like: Any) -> Any:
    if not isinstance(triton_source, str) or not triton_source.strip():
        raise exc.InvalidAPIUsage("The source of hl.inline_triton must be a string that is not empty.")
    given = _inline_arguments(t, args)
    text = textwrap.dedent(triton_source).strip("\n")
    places = given.places
    try:
        text = text.format(**places) if isinstance(args, dict) else text.format(*places.values())
    except (KeyError, IndexError) as error:
        raise exc.InvalidAPIUsage(
            f"The source of hl.inline_triton has a placeholder without an argument: {error}."
        ) from error
    return inline(t, tuple(text.split("\n")), given.operands, output_like, (), given.tensors)


@rule(hl.triton_kernel)
def _triton_kernel(t: Tracer, function: Any, args: Any, output_like: Any) -> Any:
    if isinstance(function, str):
        source, helpers = textwrap.dedent(function), []
    else:
        plain = getattr(function, "fn", function)
        source, helpers = textwrap.dedent(inspect.getsource(plain)), _named_helpers(plain, set())
    match = re.search(r"def\s+(\w+)\s*\(", source)
    if match is None:
        raise exc.InvalidAPIUsage("hl.triton_kernel takes a @triton.jit function, or the source of one.")
    if "@triton.jit" not in source:
        source = f"@triton.jit\n{source}"
    given = _inline_arguments(t, args)
    places = [f"{name}={place}" if isinstance(args, dict) else place for name, place in given.places.items()]
    call = f"{match[1]}({', '.join(places)})"
    return inline(t, (call,), given.operands, output_like, (*helpers, source.strip()), given.tensors)


def _named_helpers(function: Any, seen: set[str]) -> list[str]:
    """The sources of the Triton functions, and the constants, that a function finds in its module, those named by
    others first."""
    found = []
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if name in seen or value is None:
            continue
        inner = getattr(value, "fn", None)
        if isinstance(value, (int, float)) or type(value).__name__ == "constexpr":
            found.append(f"{name} = tl.constexpr({getattr(value, 'value', value)!r})")
        elif (
            isinstance(inner, types.FunctionType) and hasattr(value, "run") and inner.__module__ == function.__module__
        ):
            seen.add(name)
            found += [*_named_helpers(inner, seen), textwrap.dedent(inspect.getsource(inner)).strip()]
        seen.add(name)
    return found


@rule(hl.inline_asm_elementwise)
def _inline_asm(t: Tracer, asm: str, constraints: str, args: Any, dtype: Any, is_pure: bool, pack: int) -> Any:
    values = [t.as_device(a, "in hl.inline_asm_elementwise") for a in args]
    dims = broadcast_dims([v.dims for v in values])
    if dims is None:
        raise exc.ShapeMismatch(lhs=repr(values[0]), rhs=repr(values[1]), detail=" in hl.inline_asm_elementwise")
    operands = [t.broadcast(v, dims).value for v in values]
    dtypes = tuple(dtype) if isinstance(dtype, (tuple, list)) else (dtype,)
    results = tuple(t.builder.value(d, dims) for d in dtypes)
    places = ", ".join(f"{{{i}}}" for i in range(len(operands)))
    attrs = AsmAttrs(asm, constraints, dtypes, bool(is_pure), int(pack), places)
    t.builder.append(Op("asm", tuple(operands), results, attrs, (), t.builder.location))
    wrapped = tuple(map(t.wrap, results))
    return wrapped if isinstance(dtype, (tuple, list)) else wrapped[0]
