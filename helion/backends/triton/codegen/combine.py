"""Prints the functions of scans and folds: ``@triton.jit`` helpers of scalars."""

from __future__ import annotations

from ...._compiler.ir.grammar import Operand, PointwiseAttrs, Region, Value
from ...._names import NameSpace
from . import ops_pointwise
from .ops_pointwise import TRITON_DTYPES, literal
from .printer import Names


def render_combine(name: str, region: Region) -> str:
    """The region of a scan or a fold as a function ``name``."""
    names = Names(NameSpace())
    parameters = [names.define(p, "value") for p in region.params]
    lines = ["@triton.jit", f"def {name}({', '.join(parameters)}):"]

    def text(operand: Operand) -> str:
        return names.of(operand) if isinstance(operand, Value) else literal(operand)

    for op in region.ops:
        if isinstance(op.attrs, PointwiseAttrs):
            operands = [text(o) for o in op.operands]
            dtypes = [o.dtype if isinstance(o, Value) else None for o in op.operands]
            value = ops_pointwise.render(op.attrs.name, operands, dtypes, op.result.dtype)
        else:  # a constant
            (fill,) = op.operands
            value = f"tl.full([], {text(fill)}, {TRITON_DTYPES[op.result.dtype]})"
        lines.append(f"    {names.define(op.result, 'value')} = {value}")
    lines.append(f"    return {', '.join(text(r) for r in region.results)}")
    return "\n".join(lines)
