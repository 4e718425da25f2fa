"""Rules for functions of ``hl`` that only Triton has: source and functions of the user's in its own language."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
import types
from dataclasses import dataclass
from typing import Any

from ... import exc
from ... import language as hl
from ..._compiler.frontend import memory, ops
from ..._compiler.frontend.rules import Rules
from ..._compiler.frontend.tracer import Tracer
from ..._compiler.frontend.values import DeviceValue, HostTensorValue, describe
from ..._compiler.ir.grammar import InlineAttrs, Value

RULES = Rules()
rule = RULES.register


def _outputs(t: Tracer, output_like: Any) -> tuple[Value, ...]:
    likes = () if output_like is None else output_like if isinstance(output_like, (tuple, list)) else (output_like,)
    for like in likes:
        if not isinstance(like, DeviceValue):
            raise exc.InvalidAPIUsage(f"output_like must be a tile, a tuple of tiles or None, got {describe(like)}.")
    return tuple(t.builder.value(like.dtype, like.dims) for like in likes)


def _inline(
    t: Tracer,
    lines: tuple[str, ...],
    operands: list[Any],
    output_like: Any,
    helpers: tuple[str, ...] = (),
    tensors: tuple[int, ...] = (),
) -> Any:
    """Lines of Triton; see ``InlineAttrs``."""
    results = _outputs(t, output_like)
    attrs = InlineAttrs(lines, helpers, tensors)
    t.builder.append("inline", operands, results, attrs)
    wrapped = tuple(ops.wrap(t, result) for result in results)
    return None if output_like is None else wrapped if isinstance(output_like, (tuple, list)) else wrapped[0]


@dataclass(frozen=True, kw_only=True)
class _InlineArguments:
    """Arguments of Triton source: a placeholder for each, what the op reads, and tensors that are passed as pointers."""

    places: dict[str, str]
    operands: list[Any]
    tensors: tuple[int, ...]


def _inline_arguments(t: Tracer, args: Any) -> _InlineArguments:
    if not isinstance(args, (tuple, list, dict)):
        raise exc.InvalidAPIUsage(f"args must be a list or a dict of values, got {describe(args)}.")
    given = args if isinstance(args, dict) else {str(i): a for i, a in enumerate(args)}
    operands = [ops.operand(t, a) for a in given.values() if not isinstance(a, HostTensorValue)]
    tensors = tuple(memory.tensor_id(t, a) for a in given.values() if isinstance(a, HostTensorValue))
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
    except ValueError as error:
        raise exc.InvalidAPIUsage(
            f"The source of hl.inline_triton has a brace that begins or ends no placeholder ({error}); write it twice."
        ) from error
    _check_syntax(re.sub(r"\{\d+\}", "_", text), "hl.inline_triton")
    return _inline(t, tuple(text.split("\n")), given.operands, output_like, (), given.tensors)


def _check_syntax(source: str, function: str) -> None:
    try:
        ast.parse(source)
    except SyntaxError as error:
        raise exc.InvalidAPIUsage(
            f"The source of {function} is no Python: {error.msg}, in line {error.lineno} of it."
        ) from error


@rule(hl.triton_kernel)
def _triton_kernel(t: Tracer, function: Any, args: Any, output_like: Any) -> Any:
    if isinstance(function, str):
        source, helpers = textwrap.dedent(function), []
    else:
        plain = getattr(function, "fn", function)
        if not isinstance(plain, types.FunctionType):
            raise exc.InvalidAPIUsage(f"hl.triton_kernel takes a @triton.jit function, got {describe(function)}.")
        source, helpers = textwrap.dedent(inspect.getsource(plain)), _named_helpers(plain, set())
    match = re.search(r"def\s+(\w+)\s*\(", source)
    if match is None:
        raise exc.InvalidAPIUsage("hl.triton_kernel takes a @triton.jit function, or the source of one.")
    _check_syntax(source, "hl.triton_kernel")
    if "@triton.jit" not in source:
        source = f"@triton.jit\n{source}"
    given = _inline_arguments(t, args)
    places = [f"{name}={place}" if isinstance(args, dict) else place for name, place in given.places.items()]
    call = f"{match[1]}({', '.join(places)})"
    return _inline(t, (call,), given.operands, output_like, (*helpers, source.strip()), given.tensors)


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
