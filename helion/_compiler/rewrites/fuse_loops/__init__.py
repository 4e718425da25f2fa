"""Fuses consecutive loops that differ only in constants, such as those over the taps of a convolution.

Each new loop starts with an empty software pipeline, and a loop of few iterations never fills it. Before::

    %2 = for b2 in 0..256 carrying %1: load x[%10, b2]; load w[0, b2, b1]; dot ..
    %11 = add %10, 1
    %3 = for b3 in 0..256 carrying %2: load x[%11, b3]; load w[1, b3, b1]; dot ..

After, with tiles of 64, of which 4 make one pass::

    %3 = for b9 in 0..8 carrying %1: %20 = b9 // 4; %21 = b9 % 4 * 64
        load x[%10, %20 * stride + %21 + 0..64]; load w[%20, ..]; dot ..

Constants that differ become linear in the digits of the pass: ``first + a * (pass // 3) + b * (pass % 3)``.

A loop over taps around such a loop is unrolled first (``nests.py``): the generated code is that of unrolled taps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import torch

from ...._shapes import Dims, fixed_at, number_key
from ...._support.records import replace
from ....hardware import Target
from ...decisions import Decisions
from ...ir.effects import written_by
from ...ir.grammar import ForAttrs, LoopAxis, NumberAttrs, Op, Operand, Program, Value
from ...ir.loops import loops_of
from ...ir.rewrite import Declined, remembered
from ...passes.always.simplify import drop_dead
from ..legality import reset_loops
from ..record import FactContext, Rewrite, RuleContext
from ..steps import StepInputs
from .digits import digits_of
from .fuser import REPEATED, Fuser, Run
from .nests import INSIDE, without_nests

#: Ops without operands that give a place in another loop, or a number of the host.
_PLACES = frozenset(("tile", "iota", "number"))


@remembered
def fusible_loops(program: Program) -> Run | None:
    """Return the loops with matmuls of the kernel's only grid loop, if they can be fused into one."""
    if len(program.roots) != 1:
        return None
    program = without_nests(program)
    if sum(isinstance(op.attrs, ForAttrs) for op in program.roots[0].body.ops) < 2:
        return None
    program = _with_constants_outside(program)
    loops = tuple(op for op in program.roots[0].body.ops if isinstance(op.attrs, ForAttrs))
    if any(op.regions and op.kind != "for" for op in program.roots[0].body.ops):
        return None
    axes = [op.attributes(ForAttrs).axes for op in loops]
    if not all(len(each) == 1 and _is_plain(op, each[0]) for op, each in zip(loops, axes, strict=True)):
        return None
    extents = {axis.end for (axis,) in axes}
    run = Run(loops=loops, blocks=tuple(axis.block for (axis,) in axes), extent=extents.pop())  # type: ignore[arg-type]
    if extents or not _is_chain(program, loops):
        return None
    try:
        Fuser(program, run, dict.fromkeys((b.id for b in program.blocks), 1)).fused()
    except Declined:
        return None
    return run


def may_fuse(run: Run, sizes: Mapping[int, int]) -> bool:
    """Return whether tiles of all loops have one size that divides the extent."""
    (size, *others) = {sizes[block] for block in run.blocks}
    return not others and run.extent % size == 0


def fuse_loops(program: Program, sizes: Mapping[int, int]) -> Program:
    """Return the program with such loops fused; itself if there are none, or tiles of ``sizes`` do not match."""
    run = fusible_loops(program)
    if run is None or not may_fuse(run, sizes):
        return program
    return drop_dead(Fuser(_with_constants_outside(without_nests(program)), run, sizes).program_of())


def with_longer_loop(program: Program) -> Program:
    """Return the program with the first of such loops over the elements of all, in place of all.

    Predictions use it as the fused program: its loop has as many iterations and the same loads, whatever the
    tile size. Its results are wrong.
    """
    run = fusible_loops(program)
    if run is None:
        return program
    program = without_nests(program)
    (root,), first, last = program.roots, run.loops[0].number, run.loops[-1].number
    loops = {op.number: op for op in root.body.ops if isinstance(op.attrs, ForAttrs)}
    (axis,) = loops[first].attributes(ForAttrs).axes
    extent = len(run.loops) * run.extent
    attrs = replace(loops[first].attributes(ForAttrs), axes=(replace(axis, end=extent),))
    longer = replace(loops[first], results=loops[last].results, attrs=attrs)
    kept = (op for op in root.body.ops if op.number not in loops or op.number == last)
    ops = tuple(longer if op.number == last else op for op in kept)
    blocks = (replace(block, extent=extent) if block.id == run.blocks[0] else block for block in program.blocks)
    made = replace(program, blocks=tuple(blocks), roots=(replace(root, body=replace(root.body, ops=ops)),))
    return drop_dead(made)


def _with_constants_outside(program: Program) -> Program:
    """Return the program with loop-invariant ops of its loops moved before them. Equal ones without operands are one."""
    (root,) = program.roots
    ops: list[Op] = []
    known: dict[tuple[str, object, Dims, torch.dtype], Value] = {}
    same: dict[int, Value] = {}

    def named(operands: Iterable[Operand]) -> tuple[Operand, ...]:
        return tuple(same.get(each.number, each) if isinstance(each, Value) else each for each in operands)

    def place(op: Op) -> None:
        attrs = number_key(op.attrs.expr) if isinstance(op.attrs, NumberAttrs) else op.attrs
        key = (op.kind, attrs, op.result.dims, op.result.dtype)
        if known.setdefault(key, op.result) is op.result:
            ops.append(op)
        else:
            same[op.result.number] = known[key]

    for op in root.body.ops:
        if op.kind != "for":
            place(op) if op.kind in _PLACES else ops.append(replace(op, operands=named(op.operands)))
            continue
        (body,) = op.regions
        changing, own = {value.number for value in body.params}, {axis.block for axis in op.attrs.axes}
        kept: list[Op] = []
        for each in body.ops:
            inner = replace(each, operands=named(each.operands))
            along = {block for value in inner.results for dim in value.dims for block in dim.blocks} & own
            if inner.kind in _PLACES and not along and getattr(inner.attrs, "block", None) not in own:
                place(inner)
                continue
            fixed = inner.kind in REPEATED and not along and not any(v.number in changing for v in inner.values())
            (ops if fixed else kept).append(inner)
            changing.update(() if fixed else (value.number for value in inner.results))
        region = replace(body, ops=tuple(kept), results=named(body.results))
        ops.append(replace(op, operands=named(op.operands), regions=(region,)))
    return replace(program, roots=(replace(root, body=replace(root.body, ops=tuple(ops))),))


def _is_plain(loop: Op, axis: LoopAxis) -> bool:
    """Return whether a loop is over tiles from 0 to a constant, and has a matmul."""
    attrs = loop.attributes(ForAttrs)
    whole = isinstance(axis.end, int) and axis.end > 0 and fixed_at(axis.begin, 0)
    plain = not axis.scalar and axis.jagged is None and not axis.merged and axis.split is None
    (body,) = loop.regions
    kinds = {op.kind for op in body.ops}
    return whole and plain and len(loop.operands) == attrs.carried and "dot" in kinds and kinds <= INSIDE


def _is_chain(program: Program, loops: Sequence[Op]) -> bool:
    """Return whether each loop continues with the results of the one before, which have no other use, and reads no
    memory that the kernel writes."""
    (root,) = program.roots
    reads = [value.number for op in root.body.walk() for value in op.reads()]
    for before, behind in itertools.pairwise(loops):
        carried = [o.number if isinstance(o, Value) else None for o in behind.operands]
        results = [value.number for value in before.results]
        if carried != results or any(reads.count(number) != 1 for number in results):
            return False
    loaded = {program.tensors[op.attrs.tensor].storage for loop in loops for op in loop.walk() if op.kind == "load"}
    written = written_by(program, root.body.walk())
    return None not in written and not loaded & written


# --- the record ------------------------------------------------------------------------------------------------------


def _axes(context: FactContext) -> tuple[int, ...]:
    run = fusible_loops(context.program) if context.dots else None
    return () if run is None else tuple(dict.fromkeys(run.blocks))


def _applies(program: Program, target: Target) -> str:
    if fusible_loops(program) is None:
        return "the kernel has no consecutive loops with matmuls that differ only in constants"
    return ""


def _fit(context: RuleContext, value: bool, decisions: Decisions) -> bool:
    run = fusible_loops(context.program)
    return run is not None and may_fuse(run, decisions.sizes)


def _adjust(context: RuleContext, decisions: Decisions) -> Decisions:
    """Return decisions without the options of loops that are gone: the first loop's options apply to all."""
    run = fusible_loops(context.program)
    assert run is not None
    loops = {at: loop for at, loop in enumerate(loops_of(context.program)) if isinstance(loop, Op)}
    gone = {at for at, loop in loops.items() if loop.number != run.loops[0].number}
    flat = decisions.entries.get("flatten_loops", {})
    decisions = decisions.with_entries("flatten_loops", {at: False for at in loops if at in flat})
    return reset_loops(decisions, lambda key, loop: key == "static_ranges" or loop in gone)


def _apply(program: Program, value: bool, inputs: StepInputs) -> Program:
    return fuse_loops(program, inputs.sizes_in(program))


FUSE_LOOPS = Rewrite(
    key="fuse_loops",
    doc="Fuse consecutive loops with matmuls that differ only in constants, such as those over the taps of a convolution.",
    applies=_applies,
    fit=_fit,
    needs="fused loops need equal tile sizes that divide the extent, use the first loop's options, and exclude precomputed or copied operands",
    yields_to=frozenset(("precompute_operands", "pack_operands", "transpose_operands")),
    removes=frozenset(("accesses",)),
    adjust=_adjust,
    fact=_axes,
    model=with_longer_loop,
    apply=_apply,
)

__all__ = ["FUSE_LOOPS", "digits_of", "fusible_loops", "may_fuse"]
