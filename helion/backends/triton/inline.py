"""Rules for functions of ``hl`` that only Triton has: Triton source and functions written by the user."""

from __future__ import annotations

import ast
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
from ..._compiler.ir.grammar import Definition, InlineAttrs, Value
from .source import Copied, copied, effect_of_text, escaped

RULES = Rules()
rule = RULES.register


def _outputs(t: Tracer, output_like: Any) -> tuple[Value, ...]:
    likes = () if output_like is None else output_like if isinstance(output_like, (tuple, list)) else (output_like,)
    for like in likes:
        if not isinstance(like, DeviceValue):
            raise exc.InvalidAPIUsage(f"output_like must be a tile, a tuple of tiles or None, got {describe(like)}.")
    return tuple(t.builder.value(like.dtype, like.dims) for like in likes)


def _inline(t: Tracer, operands: list[Any], output_like: Any, attrs: InlineAttrs) -> Any:
    """Append an op with lines of Triton; see ``InlineAttrs``."""
    results = _outputs(t, output_like)
    t.builder.append("inline", operands, results, attrs)
    wrapped = tuple(ops.wrap(t, result) for result in results)
    return None if output_like is None else wrapped if isinstance(output_like, (tuple, list)) else wrapped[0]


@dataclass(frozen=True, kw_only=True)
class _InlineArguments:
    """Arguments of Triton source: the text of each, the operands of the op, and tensors passed as pointers."""

    places: dict[str, str]
    operands: list[Any]
    tensors: tuple[int, ...]

    def place(self, definition: int) -> str:
        """Return the placeholder of a definition."""
        return f"{{{len(self.operands) + len(self.tensors) + definition}}}"


def _inline_arguments(t: Tracer, args: Any) -> _InlineArguments:
    if not isinstance(args, (tuple, list, dict)):
        raise exc.InvalidAPIUsage(f"args must be a list or a dict of values, got {describe(args)}.")
    given = args if isinstance(args, dict) else {str(i): a for i, a in enumerate(args)}
    operands: list[Any] = []
    places: dict[str, str] = {}
    pointers = {k: memory.tensor_id(t, a) for k, a in given.items() if isinstance(a, HostTensorValue)}
    for key, value in given.items():
        if value is None or isinstance(value, str):
            places[key] = repr(value)
        elif key not in pointers:
            places[key] = f"{{{len(operands)}}}"
            operands.append(ops.operand(t, value))
    places |= {key: f"{{{len(operands) + at}}}" for at, key in enumerate(pointers)}
    return _InlineArguments(
        places={key: places[key] for key in given}, operands=operands, tensors=tuple(pointers.values())
    )


@rule(hl.inline_triton)
def _inline_triton(t: Tracer, triton_source: Any, args: Any, output_like: Any) -> Any:
    if not isinstance(triton_source, str) or not triton_source.strip():
        raise exc.InvalidAPIUsage("The source of hl.inline_triton must be a string that is not empty.")
    given = _inline_arguments(t, args)
    text = textwrap.dedent(triton_source).strip("\n")
    marks = {key: f"\0{place[1:-1]}\1" if place.startswith("{") else place for key, place in given.places.items()}
    try:
        text = text.format(**marks) if isinstance(args, dict) else text.format(*marks.values())
    except (KeyError, IndexError) as error:
        raise exc.InvalidAPIUsage(
            f"The source of hl.inline_triton has a placeholder without an argument: {error}."
        ) from error
    except ValueError as error:
        raise exc.InvalidAPIUsage(
            f"The source of hl.inline_triton has a brace that begins or ends no placeholder ({error}); write it twice."
        ) from error
    plain = re.sub("\0\\d+\1", "_", text)
    _check_syntax(plain, "hl.inline_triton")
    # braces in the user's text are not placeholders
    text = escaped(text).replace("\0", "{").replace("\1", "}")
    attrs = InlineAttrs(tuple(text.split("\n")), (), given.tensors, effect_of_text(plain))
    return _inline(t, given.operands, output_like, attrs)


def _check_syntax(source: str, function: str) -> None:
    try:
        ast.parse(source)
    except SyntaxError as error:
        raise exc.InvalidAPIUsage(
            f"The source of {function} is not valid Python: {error.msg}, in its line {error.lineno}."
        ) from error


@rule(hl.triton_kernel)
def _triton_kernel(t: Tracer, function: Any, args: Any, output_like: Any) -> Any:
    found = _given_as_text(function) if isinstance(function, str) else _given_as_function(function)
    for read in found.reads:
        t.world.assume(*read)
    given = _inline_arguments(t, args)
    shown = {name: place if place.startswith("{") else escaped(place) for name, place in given.places.items()}
    places = [f"{name}={place}" if isinstance(args, dict) else place for name, place in shown.items()]
    call = f"{given.place(0)}({', '.join(places)})"
    return _inline(
        t, given.operands, output_like, InlineAttrs((call,), (found.definition,), given.tensors, found.effect)
    )


def _given_as_function(function: Any) -> Copied:
    if not isinstance(getattr(function, "fn", function), types.FunctionType):
        raise exc.InvalidAPIUsage(f"hl.triton_kernel takes a @triton.jit function, got {describe(function)}.")
    return copied(function)


def _given_as_text(text: str) -> Copied:
    """Return the parsed function, whose source uses only Triton's usual names."""
    source = textwrap.dedent(text).strip()
    match = re.search(r"def\s+(\w+)\s*\(", source)
    if match is None:
        raise exc.InvalidAPIUsage("hl.triton_kernel takes a @triton.jit function, or the source of one.")
    _check_syntax(source, "hl.triton_kernel")
    if "@triton.jit" not in source:
        source = f"@triton.jit\n{source}"
    parts = re.split(rf"\b{match[1]}\b", source)
    return Copied(definition=Definition(match[1], "{0}".join(map(escaped, parts))), effect=effect_of_text(source))
