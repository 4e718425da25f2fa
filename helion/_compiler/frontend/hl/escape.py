"""Rules for escapes from the language: printing, breakpoints, inline assembly."""

from __future__ import annotations

from typing import Any

import torch

from .... import exc
from .... import language as hl
from ...._shapes import broadcast_dims
from ...ir.grammar import AsmAttrs, PrintAttrs
from .. import ops
from ..rules import Rules
from ..tracer import Tracer
from ..values import describe

RULES = Rules()
rule = RULES.register


@rule(hl.breakpoint)
def _breakpoint(t: Tracer) -> None:
    """Record a breakpoint, which only an interpreter supports; it shows the variables of the generated kernel."""
    if not t.context.limits.stops:
        raise exc.BreakpointInDeviceLoopRequiresInterpret()
    t.builder.append("print", (), (), PrintAttrs("", stops=True))


@rule(hl.device_print)
def _device_print(t: Tracer, prefix: Any, *values: Any) -> None:
    if not isinstance(prefix, str):
        raise exc.InvalidAPIUsage(
            f"The first argument of hl.device_print must be a string literal, got {describe(prefix)}."
        )
    operands = [ops.as_device(t, v, "in hl.device_print").value for v in values]
    t.builder.append("print", operands, (), PrintAttrs(prefix))


def _check_asm(asm: Any, constraints: Any, args: Any, dtype: Any, pack: Any) -> tuple[torch.dtype, ...]:
    """Return the dtypes of the results. Raises InvalidAPIUsage for arguments of wrong types."""
    dtypes = tuple(dtype) if isinstance(dtype, (tuple, list)) else (dtype,)
    wrong = (
        (f"asm must be a string, got {describe(asm)}", not isinstance(asm, str)),
        (f"constraints must be a string, got {describe(constraints)}", not isinstance(constraints, str)),
        (f"args must be a list of values, got {describe(args)}", not isinstance(args, (tuple, list))),
        (f"pack must be a positive int, got {describe(pack)}", type(pack) is not int or pack < 1),
        (
            f"dtype must be a torch.dtype or a sequence of them, got {describe(dtype)}",
            not dtypes or not all(isinstance(d, torch.dtype) for d in dtypes),
        ),
    )
    for text, holds in wrong:
        if holds:
            raise exc.InvalidAPIUsage(f"hl.inline_asm_elementwise: {text}.")
    for each in dtypes:
        ops.check_dtype(each)
    return dtypes


@rule(hl.inline_asm_elementwise)
def _inline_asm(t: Tracer, asm: str, constraints: str, args: Any, dtype: Any, is_pure: bool, pack: int) -> Any:
    dtypes = _check_asm(asm, constraints, args, dtype, pack)
    values = [ops.as_device(t, a, "in hl.inline_asm_elementwise") for a in args]
    dims = broadcast_dims([v.dims for v in values])
    if dims is None:
        raise exc.ShapeMismatch(lhs=repr(values[0]), rhs=repr(values[1]), detail=" in hl.inline_asm_elementwise")
    operands = [ops.broadcast(t, v, dims).value for v in values]
    results = tuple(t.builder.value(d, dims) for d in dtypes)
    places = ", ".join(f"{{{i}}}" for i in range(len(operands)))
    attrs = AsmAttrs(asm, constraints, dtypes, bool(is_pure), int(pack), places)
    t.builder.append("asm", operands, results, attrs)
    wrapped = tuple(ops.wrap(t, result) for result in results)
    return wrapped if isinstance(dtype, (tuple, list)) else wrapped[0]
