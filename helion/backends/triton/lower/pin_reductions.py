"""Reductions that Triton must not move out of the loop that accumulates them.

Triton may keep a partial per thread of a sum that a loop carries, and reduce the partials after the loop. The pass is
OptimizeThreadLocality (Triton 3.6 to 3.7, seen on sm_90 and gfx942). It assumes that nothing else reads the sum. If the
body does, it reads the initial value instead. If not exactly one op after the loop does, compilation ends with
``Assertion `loopResult.hasOneUse()' failed``. If an unroll factor repeats the body, it ends with ``Assertion
`isa<BlockArgument>(accumOperand)' failed``. An op between the reduction and the sum prevents the move.
"""

from __future__ import annotations

from dataclasses import replace

from ...._compiler.ir.grammar import Op, PointwiseAttrs, Program, ReduceAttrs, Region, Value
from ...._compiler.ir.ops import OPS
from ...._compiler.ir.reductions import REDUCTIONS
from ...._compiler.ir.rewrite import Makers, map_ops
from ...._compiler.rewrites.steps import StepInputs

_MOVED = frozenset(row.name for row in REDUCTIONS.values() if row.combine is not None)
#: Kinds of ops, and names of elementwise ones, that read each operand once in the generated code.
_SINGLE_KINDS = frozenset(("store", "view"))
_SINGLE_NAMES = frozenset(("cast", "add", "sub", "mul", "div"))


def pin_reductions(program: Program, inputs: StepInputs) -> Program:
    """Return the program with ``kept`` set on the reductions that must stay in their loop."""
    pinned = _all_pinned(program, inputs.repeated)
    if not pinned:
        return program

    def keep(op: Op) -> Op:
        return replace(op, attrs=replace(op.attrs, kept=True)) if op.number in pinned else op

    return map_ops(program, keep)


def _all_pinned(program: Program, repeated: bool) -> frozenset[int]:
    readers: dict[int, list[Op]] = {}
    loops = []
    for op in program.walk():
        for value in op.reads():
            readers.setdefault(value.number, []).append(op)
        if op.kind == "for":
            loops.append(op)
    return frozenset(found for op in loops for found in _pinned(op, op.regions[-1], readers, repeated))


def _pinned(op: Op, region: Region, readers: dict[int, list[Op]], repeated: bool) -> list[int]:
    makers = Makers.among(region.ops)
    found: list[int] = []
    for param, after, result in zip(region.params, region.results, op.results, strict=True):
        combined = makers.of(after)
        if (
            not isinstance(after, Value)
            or combined is None
            or combined.kind != "pointwise"
            or not any(v is param for v in combined.values())
        ):
            continue
        if len(readers[after.number]) > 1:  # Triton does not move it
            continue
        behind = readers.get(result.number, [])
        alone = len(readers[param.number]) == 1 and len(behind) == 1 and _reads_once(behind[0])
        if repeated or not alone:
            parts = (makers.of(value) for value in combined.values())
            found += [part.number for part in parts if part is not None and is_moved(part, makers)]
    return found


def is_moved(op: Op, makers: Makers) -> bool:
    """Return whether an op reduces a tile directly after its load, so that Triton may move it after the loop.

    Masks and views may turn out to be no ops.
    """
    if not isinstance(op.attrs, ReduceAttrs) or op.attrs.name not in _MOVED or not op.result.dtype.is_floating_point:
        return False
    maker = makers.of(op.operands[0])
    while maker is not None and OPS[maker.kind].is_view:
        maker = makers.of(maker.operands[0])
    return maker is not None and maker.kind == "load"


def _reads_once(op: Op) -> bool:
    return op.kind in _SINGLE_KINDS or (isinstance(op.attrs, PointwiseAttrs) and op.attrs.name in _SINGLE_NAMES)
