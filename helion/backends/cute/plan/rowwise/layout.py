"""``layout_of``: divide rows among CTAs and threads, or refuse with a reason."""

from __future__ import annotations

from dataclasses import replace

from .....hardware import Target
from ..build import MAX_ROW_CLUSTER, RESERVED_SHARED_BYTES
from ..refusal import Refusal
from .choice import LOAD_REGISTERS, MOST_LOADED_CTAS, WARP_LANES, WARPGROUP, RowChoice
from .demand import RowDemand
from .records import MOST_PACKED, RowLayout

CLUSTERS = (1, 2, 4, 8, MAX_ROW_CLUSTER)
WARPS = (1, 2, 4, 8, 16)
MAX_STAGES = 12
MAX_ROWS = 14
"""Rows of a CTA at a time: each has a named barrier of its own."""
CHUNK_GRANULES = 4
"""Granules of a thread in a chunk, of all inputs, where a slice has several chunks."""
MOST_HELD = 16
"""The most granules of a thread."""
MAX_TRANSACTION_BYTES = 2**20 - 1
"""An mbarrier counts fewer than 2**20 bytes (PTX ISA, ``mbarrier`` objects)."""
SPARE_REGISTERS = 7
OVERLAPPED_PASSES = (2, 3)
"""Passes over rows that overlap: one reduces, and one maps. Without sums over rows, a second one may reduce as well."""
MOST_OVERLAPPED = 16
"""The most elements of a thread where rows that begin anywhere overlap: with 32 of them 84 bytes spill."""


def layout_of(demand: RowDemand, choice: RowChoice, target: Target) -> RowLayout:
    """Return the layout of a choice. Raises ``Refusal`` if rows do not fit."""
    _check_pitches(demand)
    limit = _register_limit(choice, choice.load_warps, target)
    trial = RowLayout(demand=demand, choice=choice, chunk_granules=1, stages=0, register_limit=limit)
    if trial.registers_needed > limit - SPARE_REGISTERS and _may_move(demand, choice):
        trial = replace(trial, moved=True, register_limit=_moved_limit(choice, target))
    granules = -(-trial.thread_granules // trial.words)
    most = MOST_HELD if choice.loads_itself else MOST_PACKED
    packed = (choice.cluster == 1 or choice.overlap) and granules * len(demand.inputs) <= most
    chunk = granules if packed else max(1, min(granules, CHUNK_GRANULES // len(demand.inputs)))
    chunk = min(trial.thread_granules, chunk * trial.words)
    trial = replace(trial, chunk_granules=chunk)
    room = target.smem_per_sm_bytes // choice.ctas_per_sm - RESERVED_SHARED_BYTES
    room = min(room, target.smem_per_block_bytes)
    spare = sum(-(-size // 128) * 128 for name, _, size in trial.allocations if name != "barriers") + 256
    stages = min(MAX_STAGES, (room - spare) // max(1, trial.stage_bytes))
    layout = replace(trial, stages=stages)
    _check(layout, room, target)
    return layout


def _may_move(demand: RowDemand, choice: RowChoice) -> bool:
    """Return whether warps of rows with sums may have registers of the warps that load: they fill warpgroups, of which one
    CTA has an SM."""
    whole = choice.row_threads % (WARP_LANES * WARPGROUP) == 0
    return bool(demand.sums) and whole and choice.ctas_per_sm == 1 and not choice.loads_itself


def _moved_limit(choice: RowChoice, target: Target) -> int:
    """Return the registers of a thread of rows, if those that load keep ``LOAD_REGISTERS``."""
    loads = WARP_LANES * WARPGROUP
    launched = _register_limit(choice, WARPGROUP, target) * (loads + choice.row_threads)
    found = (launched - LOAD_REGISTERS * loads) // choice.row_threads
    return min(target.max_registers_per_thread, found) // target.register_granularity * target.register_granularity


def _register_limit(choice: RowChoice, load_warps: int, target: Target) -> int:
    """Return the registers of a thread: warps are dealt to the four parts of an SM, and rounded up."""
    threads = -(-choice.ctas_per_sm * (WARP_LANES * load_warps + choice.row_threads) // 128) * 128
    granularity = target.register_granularity
    return min(target.max_registers_per_thread, target.registers_per_sm // threads // granularity * granularity)


def _check_pitches(demand: RowDemand) -> None:
    lanes = demand.copied_lanes if demand.by_words else demand.lanes
    offsets = {pitch % lanes for pitch in demand.pitches}
    if len(offsets) > 1:
        raise Refusal(
            f"strides of rows differ modulo {lanes} elements: {', '.join(map(str, demand.pitches))}; rows of all tensors"
            " have to begin at the same place within 16 bytes"
        )


def _check_groups(layout: RowLayout) -> None:
    """Check that threads have whole parts of each group of columns."""
    group, lanes, choice = layout.demand.group, layout.lanes, layout.choice
    if not group:
        return
    if group % lanes:
        raise Refusal(f"groups of {group} columns, which are no multiple of {lanes}")
    if layout.demand.wide and (choice.ahead or choice.overlap or layout.demand.sums):
        raise Refusal(
            f"groups of {group} columns are reduced in shared memory, where no row is reduced ahead, and none is summed"
        )
    if not layout.aligned:
        raise Refusal(f"groups of columns need strides of rows that are multiples of {lanes} elements")


def _check_ahead(layout: RowLayout) -> None:
    """Check that a row waits for one exchange, in shared memory."""
    demand, choice = layout.demand, layout.choice
    if len(demand.exchanges) != 1 or choice.cluster == 1:
        raise Refusal("rows are reduced ahead of one exchange between the CTAs of a cluster")
    if demand.later and choice.keep != "shared":
        raise Refusal("rows that stay in registers are not reduced ahead of an exchange; keep them in shared memory")


def _check_overlap(layout: RowLayout) -> None:
    """Check that warps exchange once, and read rows with sums again from shared memory."""
    demand, choice = layout.demand, layout.choice
    most = OVERLAPPED_PASSES[not demand.sums]
    if choice.ahead or not layout.exchanges or len(demand.exchanges) != 1 or not demand.walks <= most:
        raise Refusal(
            f"the maps of rows overlap with reductions of later ones where a row has one exchange and up to {most} passes,"
            " of which the last one follows it; such rows are not reduced ahead as well"
        )
    if choice.rows > 1:
        raise Refusal(
            f"maps of rows overlap with reductions of later ones, {choice.rows} rows at a time: one is implemented"
        )
    elements = layout.thread_granules * layout.lanes
    if layout.by_columns and elements > MOST_OVERLAPPED:
        raise Refusal(
            f"a thread has {elements} elements of rows that begin anywhere, and registers for {MOST_OVERLAPPED} of two rows"
        )
    if demand.stores_early:
        raise Refusal("a pass over elements before the last one stores some: it may run for rows that are not there")
    if choice.keep != "shared" or not demand.later:
        raise Refusal("only maps of rows in shared memory overlap with reductions of later rows")


def _check_own_loads(layout: RowLayout) -> None:
    """Check that one warp has the row of a CTA, and reads it in one chunk."""
    demand, choice = layout.demand, layout.choice
    if choice.warps * choice.cluster * choice.rows > 1 or layout.chunks > 1 or not layout.whole or not demand.sums:
        raise Refusal(
            f"{choice.ctas_per_sm} CTAs per SM: more than {MOST_LOADED_CTAS} load their own rows, which is implemented for"
            " sums over rows of one warp each, in one chunk of whole granules"
        )


def _check(layout: RowLayout, room: int, target: Target) -> None:
    choice = layout.choice
    if choice.loads_itself:
        _check_own_loads(layout)
    if layout.cta_threads > target.max_threads_per_block or choice.rows > MAX_ROWS:
        raise Refusal(f"{choice.rows} rows of {choice.warps} warps and a load warp exceed the threads of a CTA")
    if layout.demand.sums and choice.rows > 1:
        raise Refusal(f"sums over rows, {choice.rows} rows at a time: one row at a time is implemented")
    _check_groups(layout)
    if layout.demand.pairs and not layout.aligned:
        raise Refusal(f"pairs of columns need strides of rows that are multiples of {layout.lanes} elements")
    if layout.demand.repeated and (choice.rows > 1 or not layout.aligned):
        raise Refusal(
            f"rows of an input that repeat are implemented for one row at a time, of strides that are multiples of"
            f" {layout.lanes} elements"
        )
    if choice.rows > 1 and not layout.packed:
        raise Refusal(f"{choice.rows} rows at a time are implemented for contiguous rows that are one chunk of a CTA")
    if layout.thread_granules > MOST_HELD * layout.words and not layout.rolled:
        granules = -(-layout.thread_granules // layout.words)
        raise Refusal(
            f"a thread would hold {granules} granules of 16 bytes of a row, at most {MOST_HELD} are implemented; use more"
            " CTAs or warps"
        )
    if layout.stages < 2 or layout.stages <= layout.held_stages:
        raise Refusal(f"stages of {layout.stage_bytes} bytes leave no room for loads ahead in {room} bytes")
    if layout.stage_bytes > MAX_TRANSACTION_BYTES or layout.vector_offsets[-1] > MAX_TRANSACTION_BYTES:
        raise Refusal(f"a barrier counts at most {MAX_TRANSACTION_BYTES} bytes")
    if choice.keep == "shared" and (layout.demand.keeps_computed or not layout.demand.held_bytes):
        raise Refusal("nothing of the input is read again, so that a row does not stay in shared memory")
    if choice.ahead:
        _check_ahead(layout)
    if choice.overlap:
        _check_overlap(layout)
    limit = layout.register_limit - SPARE_REGISTERS
    if layout.registers_needed > limit:
        raise Refusal(f"a thread would hold {layout.registers_needed} registers of a row, of {limit}")
