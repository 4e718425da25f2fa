"""Rules for the ways out of the language: printing, breakpoints, source of the backend's language, inline assembly."""

from __future__ import annotations

from typing import Any

from ... import exc
from ... import language as hl
from ..._shapes import broadcast_dims
from ..ir.grammar import AsmAttrs, InlineAttrs, PrintAttrs, Value
from . import ops
from .rules import Rules
from .tracer import Tracer
from .values import DeviceValue, describe

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
    operands = [ops.as_device(t, v, "in hl.device_print").value for v in values]
    t.builder.append("print", operands, (), PrintAttrs(prefix))


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
    """Lines of the backend's own language; see ``InlineAttrs``."""
    results = _outputs(t, output_like)
    attrs = InlineAttrs(lines, helpers, tensors)
    t.builder.append("inline", operands, results, attrs)
    wrapped = tuple(ops.wrap(t, result) for result in results)
    return None if output_like is None else wrapped if isinstance(output_like, (tuple, list)) else wrapped[0]


@rule(hl.inline_asm_elementwise)
def _inline_asm(t: Tracer, asm: str, constraints: str, args: Any, dtype: Any, is_pure: bool, pack: int) -> Any:
    values = [ops.as_device(t, a, "in hl.inline_asm_elementwise") for a in args]
    dims = broadcast_dims([v.dims for v in values])
    if dims is None:
        raise exc.ShapeMismatch(lhs=repr(values[0]), rhs=repr(values[1]), detail=" in hl.inline_asm_elementwise")
    operands = [ops.broadcast(t, v, dims).value for v in values]
    dtypes = tuple(dtype) if isinstance(dtype, (tuple, list)) else (dtype,)
    results = tuple(t.builder.value(d, dims) for d in dtypes)
    places = ", ".join(f"{{{i}}}" for i in range(len(operands)))
    attrs = AsmAttrs(asm, constraints, dtypes, bool(is_pure), int(pack), places)
    t.builder.append("asm", operands, results, attrs)
    wrapped = tuple(ops.wrap(t, result) for result in results)
    return wrapped if isinstance(dtype, (tuple, list)) else wrapped[0]
