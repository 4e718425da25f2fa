"""Rules for the ways out of the language: printing, breakpoints, inline assembly."""

from __future__ import annotations

from typing import Any

from ... import exc
from ... import language as hl
from ..._shapes import broadcast_dims
from ..ir.grammar import AsmAttrs, PrintAttrs
from . import ops
from .rules import Rules
from .tracer import Tracer
from .values import describe

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
