"""Float reads of wgmma accumulators before integer instructions.

ptxas 12.8 drops a wgmma whose accumulator registers only integer instructions read after the wait: the kernel then
multiplies nothing. LLVM compiles ``abs`` and ``neg`` of floats, and bit views, to integer instructions. Adding -0.0 in
inline assembly keeps every number and is a float read. Before::

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
from ...._compiler.passes.schedule import Scheduled

FLOAT_READ_PTX = "add.f32 $0, $1, 0f80000000; // a float read of an accumulator"
_READ = AsmAttrs(
    asm=FLOAT_READ_PTX, constraints="=f,f", dtypes=(torch.float32,), is_pure=True, pack=1, places="{0}"
)  # fmt: skip
#: Elementwise operations that LLVM compiles to instructions with float operands.
_FLOAT_READS = frozenset(
    "add sub mul div maximum minimum relu exp exp2 sqrt rsqrt sigmoid cast where lt le gt ge eq ne".split()
)
_CONTROL = ("for", "while", "if")


def read_as_floats(program: Program, scheduled: Scheduled) -> Program:
    """Return the program with a float read before each integer read of a wgmma accumulator, if ``scheduled``."""
    if not scheduled.float_reads or not any(op.kind == "dot" for op in program.walk()):
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
    """Return whether an op may be compiled to integer instructions on its operands."""
    if not isinstance(op.attrs, PointwiseAttrs):
        return op.kind == "asm"
    return op.attrs.name not in _FLOAT_READS or (op.attrs.name == "mul" and -1 in op.operands)


def _accumulators(program: Program) -> set[int]:
    """Return the numbers of fp32 values that a matmul leaves in registers, through views, loops and branches."""
    found = {op.result.number for op in program.walk() if op.kind == "dot" and op.result.dtype == torch.float32}
    before = -1
    while before != len(found):
        before = len(found)
        for op in program.walk():
            if op.kind == "view" and any(value.number in found for value in op.values()):
                found.add(op.result.number)
            elif op.kind in _CONTROL:
                for region in op.regions:
                    found |= _carried(op, region, found)
    return found


def _carried(op: Op, region: Region, found: set[int]) -> set[int]:
    """Return the results and parameters of a loop or branch that an accumulator in ``found`` reaches."""
    if len(region.results) != len(op.results):  # the condition of a while loop
        return set()
    at = [i for i, value in enumerate(region.results) if isinstance(value, Value) and value.number in found]
    params = {region.params[i].number for i in at if i < len(region.params)}
    return params | {op.results[i].number for i in at}
