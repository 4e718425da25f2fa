"""Whether what loops over tiles of columns store depends on their widths: programs, and programs that differ in one operation."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from backends.cute import tiled_kernels

from helion._compiler.ir.grammar import Op, PointwiseAttrs, Program, Region, Root
from helion.backends.cute.lower import product, widths
from helion.backends.cute.lower.frame import Frame
from helion.backends.cute.plan.refusal import Refusal

PROVE = os.environ.get("HELION_PROVE") == "1"
OTHERS = {"add": "sub", "sub": "add", "mul": "add", "div": "mul", "maximum": "minimum", "exp": "exp2", "where": "where"}
COLUMNS = 296


def frame_of(program: Program) -> tuple[Frame, Root]:
    """As the lowering makes it."""
    (root,) = program.roots
    outer = tuple(op for op in root.body.ops if op.kind == "for")
    inner = next(op for op in outer[0].regions[0].ops if op.kind == "for")
    return product.tiled_frame(program, root, outer, inner), root


def judged(program: Program) -> bool | None:
    """Whether widths make no difference; None where the program cannot be run so."""
    frame, root = frame_of(program)
    try:
        return widths.any_width_is_the_same(frame, root, COLUMNS, rounded=False)
    except Refusal:
        return None


def changed(region: Region, number: int) -> Region:
    """With another operation in the place of op number `number`."""

    def of(op: Op) -> Op:
        regions = tuple(changed(each, number) for each in op.regions)
        if op.number != number:
            return dataclasses.replace(op, regions=regions) if regions else op
        name = op.attributes(PointwiseAttrs).name
        operands = (op.operands[0], *op.operands[:0:-1]) if name == "where" else op.operands
        return dataclasses.replace(op, attrs=PointwiseAttrs(OTHERS[name]), operands=operands)

    return dataclasses.replace(region, ops=tuple(map(of, region.ops)))


def operations(program: Program) -> Iterator[int]:
    """Of the loops over columns."""
    for loop in program.roots[0].body.ops:
        for region in loop.regions:
            for op in region.ops:
                if (
                    isinstance(op.attrs, PointwiseAttrs)
                    and op.attrs.name in OTHERS
                    and op.result.dtype == torch.float32
                ):
                    yield op.number


def program_of(name: str) -> Program:
    kernel, taken, _ = tiled_kernels.KERNELS[name]
    shapes = {"w": (COLUMNS,), "b": (COLUMNS,), "g": (77, COLUMNS)}
    given: list[Any] = [torch.empty(77, 136, dtype=torch.bfloat16), torch.empty(136, COLUMNS, dtype=torch.bfloat16)]
    given += [torch.empty(shapes[each], dtype=torch.bfloat16) for each in taken]
    program: Program = kernel.bind(tuple(given))._analysis.program
    return program


@pytest.mark.parametrize("name", tiled_kernels.KERNELS if PROVE else ["welford", "chosen_maximum", "softmax_backward"])
def test_one_other_operation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is judged the same is the same of other numbers and in other tiles; operations on what tiles hand on are not."""
    program = program_of(name)
    assert judged(program)
    root, found = program.roots[0], []
    for number in list(operations(program)):
        other = dataclasses.replace(root, body=changed(root.body, number))
        found.append((dataclasses.replace(program, roots=(other,)), number))
    verdicts = [judged(each) for each, _ in found]
    assert False in verdicts or name == "running_mean"  # signs alone differ there
    monkeypatch.setattr(widths, "PARTS", (2, 7))
    monkeypatch.setattr(widths, "SLOPES", (-1.0, 2.0, 0.25, -5.0))
    for verdict, (each, number) in zip(verdicts, found, strict=True):
        assert not verdict or judged(each), number
