"""The values of numbers of a launch that a kernel is for: of columns, and of integers that are compared in fp32."""

from __future__ import annotations

from ....._compiler.ir.grammar import MemoryAttrs, Program
from ....._shapes import Expr, Number
from ...plan.refusal import Refusal
from ...plan.rowwise.buckets import bucket_of
from ...plan.rowwise.records import GRANULE_BYTES
from ..chain import EXACT_INTEGERS


def bucket_of_rows(program: Program, extent: Number) -> range | None:
    """Return the columns that a kernel is for, if only the launch knows their number. Raises ``Refusal`` for a number that
    the arguments do not have."""
    if not isinstance(extent, Expr):
        return None
    if extent.op != "host" or extent.args[0] not in program.host.symbols:
        raise Refusal(f"rows of {extent!r} columns, a number that the host computes; use hl.specialize")
    return bucket_of(int(extent.hint), int(extent.hint) % _lanes(program) == 0)


def exact_in_fp32(program: Program, number: int | Expr) -> dict[str, range]:
    """Return the integers that are exact in fp32, by the name of a number that is one of them now. Raises ``Refusal`` for
    others, and for numbers that the arguments do not have."""
    if not isinstance(number, Expr) or number.op != "host" or number.args[0] not in program.host.symbols:
        raise Refusal("comparisons of two integers, which fp32 may not hold, are not implemented")
    values = range(1 - EXACT_INTEGERS, EXACT_INTEGERS)
    if number.hint not in values:
        raise Refusal(
            f"integers are compared with {number!r}, which is {number.hint}; less than {EXACT_INTEGERS} is exact in fp32"
        )
    return {number.args[0]: values}


def _lanes(program: Program) -> int:
    """Return the elements of a granule of the matrices that a program loads."""
    loads = [op for op in program.walk() if op.kind == "load"]
    matrices = [op for op in loads if sum(each.kind == "block" for each in op.attributes(MemoryAttrs).indices) > 1]
    return GRANULE_BYTES // min((program.tensors[op.attrs.tensor].dtype.itemsize for op in matrices), default=1)
