"""``bucket_of_rows``: the numbers of columns that a kernel is for, if only the launch knows the number."""

from __future__ import annotations

from ....._compiler.ir.grammar import MemoryAttrs, Program
from ....._shapes import Expr, Number
from ...plan.refusal import Refusal
from ...plan.rowwise.buckets import bucket_of
from ...plan.rowwise.demand import GRANULE_BYTES


def bucket_of_rows(program: Program, extent: Number) -> range | None:
    """Return the columns that a kernel is for, if only the launch knows their number. Raises ``Refusal`` for a number that
    the arguments do not have."""
    if not isinstance(extent, Expr):
        return None
    if extent.op != "host" or extent.args[0] not in program.host.symbols:
        raise Refusal(f"rows of {extent!r} columns, a number that the host computes; use hl.specialize")
    return bucket_of(int(extent.hint), int(extent.hint) % _lanes(program) == 0)


def _lanes(program: Program) -> int:
    """Return the elements of a granule of the matrices that a program loads."""
    loads = [op for op in program.walk() if op.kind == "load"]
    matrices = [op for op in loads if sum(each.kind == "block" for each in op.attributes(MemoryAttrs).indices) > 1]
    return GRANULE_BYTES // min((program.tensors[op.attrs.tensor].dtype.itemsize for op in matrices), default=1)
