"""Removal of marks of functions with their own derivatives, which only ``autodiff`` reads."""

from __future__ import annotations

from dataclasses import replace

from ...ir.grammar import Op, Operand, Program, Region, Value


def erase_vjps(program: Program) -> Program:
    """Replace ``%3 = vjp[relu6] %2, %0`` by ``%2``, which takes the name of ``%3``. Return the same program if it has
    no marks."""
    marks = [op for op in program.walk() if op.kind == "vjp"]
    if not marks:
        return program
    renamed: dict[int, Value] = {}
    for op in marks:
        (value, *_), result = op.operands, op.result
        assert isinstance(value, Value)
        known = renamed.get(value.number, value)
        renamed[value.number] = renamed[result.number] = known if known.name else replace(known, name=result.name)
    return program.map_regions(lambda body: _without(body, _last(renamed)))


def _last(renamed: dict[int, Value]) -> dict[int, Value]:
    """Return the final value of every number, for a value with several marks."""
    return {number: renamed.get(value.number, value) for number, value in renamed.items()}


def _without(region: Region, renamed: dict[int, Value]) -> Region:
    def value(old: Value) -> Value:
        return renamed.get(old.number, old)

    def operand(old: Operand) -> Operand:
        return value(old) if isinstance(old, Value) else old

    def changed(op: Op) -> Op:
        regions = tuple(_without(inner, renamed) for inner in op.regions)
        results = tuple(map(value, op.results))
        return replace(op, operands=tuple(map(operand, op.operands)), results=results, regions=regions)

    ops = tuple(changed(op) for op in region.ops if op.kind != "vjp")
    return Region(tuple(map(value, region.params)), ops, tuple(map(operand, region.results)))
