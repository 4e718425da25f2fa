"""Activity analysis: the values of a grid loop that depend on the differentiated tensors through floats."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.grammar import ForAttrs, MemoryAttrs, Op, Operand, Region, Value, VjpAttrs


def active_values(body: Region, wanted: Iterable[int]) -> frozenset[int]:
    """Return the numbers of the values that depend on elements of the tensors ``wanted``."""
    tensors = frozenset(wanted)
    active: set[int] = set()
    while True:
        before = len(active)
        for op in body.walk():
            _visit(op, tensors, active)
        if len(active) == before:
            return frozenset(active)


def _visit(op: Op, tensors: frozenset[int], active: set[int]) -> None:
    def is_active(operands: Iterable[Operand]) -> bool:
        return any(isinstance(o, Value) and o.number in active for o in operands)

    def mark(values: Iterable[Value]) -> None:
        active.update(v.number for v in values if v.dtype.is_floating_point)

    if op.kind == "load":
        if op.attributes(MemoryAttrs).tensor in tensors:
            mark(op.results)
    elif op.kind in ("for", "while", "if"):
        carried = op.operands[: op.attrs.carried] if isinstance(op.attrs, ForAttrs) else op.operands
        for at, result in enumerate(op.results):
            sources: list[Operand] = [region.results[at] for region in op.regions if at < len(region.results)]
            if op.kind != "if":
                sources.append(carried[at])
            if is_active(sources):
                mark((result, *(region.params[at] for region in op.regions if at < len(region.params))))
    elif op.attrs != VjpAttrs("constant") and is_active(op.operands):
        mark(op.results)
