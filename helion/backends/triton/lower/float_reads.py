"""Float reads of wgmma accumulators before integer instructions.

ptxas 12.8 drops a wgmma of a loop if only integer instructions and selects read its accumulator registers after the
loop: the kernel then multiplies nothing. LLVM compiles ``abs`` and ``neg`` of floats, bit views and ``where`` to such
instructions. Adding -0.0 in inline assembly keeps every number and is a float read. Before::

    %3: [b0, b1] = for b2: ... dot ...
    %4: [b0, b1] = abs %3

After::

    %3: [b0, b1] = for b2: ... dot ...
    %5: [b0, b1] = asm "add.f32 $0, $1, 0f80000000;" %3
    %4: [b0, b1] = abs %5
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...._compiler.ir.build import Builder, Numbers
from ...._compiler.ir.grammar import AsmAttrs, Op, Operand, PointwiseAttrs, Program, Region, Value
from ...._compiler.ir.rewrite import expand_ops
from ...._compiler.rewrites.steps import StepInputs

FLOAT_READ_PTX = "add.f32 $0, $1, 0f80000000; // a float read of an accumulator"
_READ = AsmAttrs(
    asm=FLOAT_READ_PTX, constraints="=f,f", dtypes=(torch.float32,), is_pure=True, pack=1, places="{0}"
)  # fmt: skip
#: Elementwise operations that LLVM compiles to instructions with float operands.
_FLOAT_READS = frozenset(
    (
        "add", "sub", "mul", "div", "maximum", "minimum", "relu", "exp", "exp2", "sqrt", "rsqrt", "sigmoid", "cast",
        "lt", "le", "gt", "ge", "eq", "ne",
    )
)  # fmt: skip
#: Other ops that read bits: selects, and exchanges of elements.
_BIT_READS = frozenset(("mask", "asm", "inline", "sort", "gather"))
_LOOPS = ("for", "while")


def read_as_floats(program: Program, inputs: StepInputs) -> Program:
    """Return the program with a float read before each integer read of a wgmma accumulator, if ``inputs``."""
    if not inputs.float_reads or not any(op.kind == "dot" for op in program.walk()):
        return program
    accumulators, numbers = _accumulators(program), Numbers.after(program)

    def read(op: Op) -> Iterable[Op]:
        if not _reads_bits(op):
            return (op,)
        made = Builder(numbers, op.location, [])
        operands: list[Operand] = []
        for value in op.operands:
            wrapped = isinstance(value, Value) and value.number in accumulators
            operands.append(made.emit("asm", (value,), value.dtype, value.dims, _READ) if wrapped else value)  # type: ignore[union-attr]
        if not made.ops:
            return (op,)
        made.repeat(op, operands=tuple(operands))
        return made.ops

    return expand_ops(program, read)


def _reads_bits(op: Op) -> bool:
    """Return whether an op may be compiled to integer instructions or selects on its operands."""
    if not isinstance(op.attrs, PointwiseAttrs):
        return op.kind in _BIT_READS
    return op.attrs.name not in _FLOAT_READS or (op.attrs.name == "mul" and -1 in op.operands)


def _accumulators(program: Program) -> set[int]:
    """Return the numbers of fp32 values that loops of matmuls, or matmuls outside of loops, leave in registers."""
    inside = {op.number for loop in program.walk() if loop.kind in _LOOPS for op in loop.walk() if op is not loop}
    dots = [op for op in program.walk() if op.kind == "dot" and op.result.dtype == torch.float32]
    reached, before = {op.result.number for op in dots}, -1
    while before != len(reached):
        before = len(reached)
        for op in program.walk():
            if op.kind == "view" and any(value.number in reached for value in op.values()):
                reached.add(op.result.number)
            for region in op.regions if op.kind in (*_LOOPS, "if") else ():
                reached |= _carried(op, region, reached)
    # ptxas keeps a wgmma whose accumulator its own iteration reads
    return reached - {op.result.number for op in dots if op.number in inside}


def _carried(op: Op, region: Region, reached: set[int]) -> set[int]:
    """Return the results and parameters of a loop or branch that an accumulator in ``reached`` gets to."""
    if len(region.results) != len(op.results):  # the condition of a while loop
        return set()
    at = [i for i, value in enumerate(region.results) if isinstance(value, Value) and value.number in reached]
    params = {region.params[i].number for i in at if i < len(region.params)}
    return params | {op.results[i].number for i in at}
