"""The steps from the program that facts describe to the one that is printed: shared ones, and Triton's own.

Triton's own steps record in the program the choices that the printer would otherwise make. They choose the variables
that values share, the reductions that stay in their loop, and the width of a gather's source. They mark matmuls of one
matrix, and atomics whose result is unused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...._compiler import rewrites
from ...._compiler.ir.grammar import DotAttrs, GatherAttrs, Op, Program
from ...._compiler.ir.rewrite import map_ops
from ...._compiler.rewrites.late_reductions import reduce_after_loops
from ...._compiler.rewrites.steps import (
    CHOOSE_BRANCHES,
    FLATTEN,
    INSERT_CHECKS,
    ORDER_MEMORY,
    ROLL,
    SUBTILE,
    Step,
    StepInputs,
)
from ...._support.lazy import lazy
from ..divisions import divide_naturals, multiply_by_reciprocals
from ..lane_order import order_lanes
from .accesses.loads_before_stores import load_before_stores
from .accesses.pairs import pair_accesses
from .accesses.peel_tails import peel_tails
from .accesses.repeated_loads import load_once
from .accesses.runs import join_runs
from .accesses.slice_lanes import slice_lanes
from .accesses.tables import look_up_tables
from .accesses.whole_records import access_records
from .align import align_rows
from .backwards import turn_loops
from .carries import share_variables
from .counts.reductions import count_reductions
from .counts.steps import count_steps
from .differences import round_products
from .early_loads import load_first
from .early_operands import load_early
from .float_reads import read_as_floats
from .near_lanes import near_lanes
from .pin_reductions import pin_reductions
from .summed_logs import shorten_logs
from .unroll_rows import unroll_rows
from .whole_tiles import part_whole_tiles
from .wide_counters import count_widely

if TYPE_CHECKING:
    from . import fold_merged_iota as counted
    from . import squeeze
else:
    counted = lazy("helion.backends.triton.lower.fold_merged_iota")
    squeeze = lazy("helion.backends.triton.lower.squeeze")


def widen_gathers(program: Program, inputs: StepInputs) -> Program:
    """Return the program with each gather's source doubled along its axis until it has as many lanes as the index.

    Triton has no layout for a gather with more index than source lanes (an assertion fails in its optimizer). For sources of
    one dimension it has one (offline, 3.6 and 3.7).
    """
    if not any(op.kind == "gather" for op in program.walk()):
        return program
    sizes = inputs.sizes_in(program)

    def widen(op: Op) -> Op:
        if not isinstance(op.attrs, GatherAttrs) or len(op.result.dims) == 1:
            return op
        value, index = (v.dims[op.attrs.dim].lanes(sizes) for v in op.values())
        doubled = 0
        while value << doubled < index:
            doubled += 1
        return replace(op, attrs=replace(op.attrs, doubled=doubled)) if doubled else op

    return map_ops(program, widen)


def unbatch_dots(program: Program, inputs: StepInputs) -> Program:
    """Return the program with batched matmuls of a single matrix marked: the matrix unit takes 2-D operands."""
    if not any(op.kind == "dot" for op in program.walk()):
        return program
    sizes = inputs.sizes_in(program)

    def mark(op: Op) -> Op:
        if not isinstance(op.attrs, DotAttrs) or op.attrs.scaled is not None:
            return op
        batch = op.result.dims[:-2]
        return replace(op, attrs=replace(op.attrs, single=True)) if batch and batch[0].lanes(sizes) == 1 else op

    return map_ops(program, mark)


def unread_atomics(program: Program, inputs: StepInputs) -> Program:
    """Return the program with the atomics marked whose old values nothing reads."""
    if not any(op.kind == "atomic" for op in program.walk()):
        return program
    read = {value.number for op in program.walk() for value in op.reads()}

    def mark(op: Op) -> Op:
        unread = op.kind == "atomic" and op.result.number not in read
        return replace(op, attrs=replace(op.attrs, unread=True)) if unread else op

    return map_ops(program, mark)


def _count_lanes(program: Program, inputs: StepInputs) -> Program:
    merging = any(op.kind == "view" and len(op.result.dims) == 1 for op in program.walk())
    return counted.count_lanes(program, inputs) if merging else program


def _squeeze(program: Program, inputs: StepInputs) -> Program:
    return squeeze.squeeze_batches(program, inputs)


#: The steps that change loops and accesses as a config asks, in order of execution.
REWRITING: tuple[Step, ...] = (
    CHOOSE_BRANCHES,
    *rewrites.schedule(None, "fuse_loops"),
    Step("triton.count_reduction_fp32", count_reductions),
    Step("triton.count_steps_fp32", count_steps),
    ROLL,
    FLATTEN,
    *rewrites.schedule("fuse_loops", "split_k"),
    Step("triton.squeeze", _squeeze),
    *rewrites.schedule("split_k", "peel_masks"),
    SUBTILE,
    *rewrites.schedule("peel_masks", "swap_ab"),
)
#: All in order of execution. The printer relies on all of Triton's own.
STEPS: tuple[Step, ...] = (
    *REWRITING,
    Step("triton.unroll_rows", unroll_rows),
    Step("triton.whole_records", access_records),
    Step("triton.loads_before_stores", load_before_stores),
    Step("triton.pairs", pair_accesses),
    Step("triton.repeated_loads", load_once),
    Step("triton.tables", look_up_tables),
    ORDER_MEMORY,
    INSERT_CHECKS,
    Step("triton.aligned_rows", align_rows),
    Step("triton.backwards", turn_loops),
    Step("triton.whole_tiles", part_whole_tiles),
    Step("triton.late_reductions", reduce_after_loops),
    Step("triton.peel_tails", peel_tails),
    Step("triton.pin_reductions", pin_reductions),
    Step("triton.fold_merged_iota", _count_lanes),
    Step("triton.gathers", widen_gathers),
    Step("triton.unbatch_dot", unbatch_dots),
    Step("triton.atomics", unread_atomics),
    Step("triton.runs", join_runs),
    *rewrites.schedule("swap_ab", None),
    Step("triton.wide_counters", count_widely),
    Step("triton.early_operands", load_early),
    Step("triton.early_loads", load_first),
    Step("triton.lane_order", order_lanes),
    Step("triton.near_lanes", near_lanes),
    Step("triton.slice_lanes", slice_lanes),
    Step("triton.float_reads", read_as_floats),
    Step("triton.summed_logs", shorten_logs),
    Step("triton.round_products", round_products),
    Step("triton.divisions", divide_naturals),
    Step("triton.long_divisions", multiply_by_reciprocals),
    Step("triton.carries", share_variables),
)
