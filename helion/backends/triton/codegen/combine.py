"""Printing of the functions of scans and folds: ``@triton.jit`` helpers of scalars."""

from __future__ import annotations

from ...._compiler.ir.grammar import Op, PointwiseAttrs, Region, Value
from ...._names import NameSpace
from ...._support.records import dataclass
from .expressions import Expression, call
from .ops import pointwise as ops_pointwise
from .ops.literals import TRITON_DTYPES, literal
from .printer import Names


@dataclass(frozen=True, slots=True)
class Function:
    """A function without a name; equal functions compute the same. ``needs`` as of an expression."""

    parameters: tuple[str, ...]
    body: tuple[str, ...]
    needs: frozenset[str]

    def lines(self, name: str) -> list[str]:
        body = (f"    {line}" for line in self.body)
        return ["@triton.jit", f"def {name}({', '.join(self.parameters)}):", *body]


def render_combine(region: Region) -> Function:
    """Return the function for the region of a scan or a fold."""
    names = Names(NameSpace())
    parameters = tuple(names.define(p, "value") for p in region.params)
    lines: list[str] = []
    needs: set[str] = set()
    for op in region.ops:
        value = _value(op, names)
        needs |= value.needs
        lines.append(f"{names.define(op.result, 'value')} = {value.text}")
    results = (names.of(r) if isinstance(r, Value) else literal(r) for r in region.results)
    lines.append(f"return {', '.join(results)}")
    return Function(parameters, tuple(lines), frozenset(needs))


def _value(op: Op, names: Names) -> Expression:
    operands = [names.of(o) if isinstance(o, Value) else o for o in op.operands]
    if isinstance(op.attrs, PointwiseAttrs):
        dtypes = [o.dtype if isinstance(o, Value) else None for o in op.operands]
        return ops_pointwise.render(op.attrs.name, operands, dtypes, op.result.dtype)
    # a constant
    (fill,) = operands
    text = fill if isinstance(fill, str) else literal(fill)
    return call("tl.full", Expression("[]"), Expression(text), Expression(TRITON_DTYPES[op.result.dtype]))
