"""``verify_rows``: checks of a row kernel without running it."""

from __future__ import annotations

import dataclasses
import functools

from ...plan.rowwise.choice import WARP_LANES
from ...plan.rowwise.demand import WORD_BYTES
from ...plan.rowwise.kernel import RowsPlan
from ...plan.rowwise.records import BARRIER_BYTES, RowPlan
from ...roles.rowwise.program import RowProgram, row_program
from ..state import Fault
from ..structure import MAX_BOX_BYTES, MAX_NAMED_BARRIERS
from .lengths import check_lengths
from .simulate import BLOCK_ROWS, RowCluster

FEW = 2
"""CTAs of a cluster, warps of a row and rows of a tile that are simulated: any two interact in the same way."""
FEW_CHUNKS = 3
"""Chunks of a slice: the first, the last, and one between."""
FEW_STAGES = 3
TILES = (0, 1, 5)
"""Rows of a cluster: none, one, and more than the stages of an exchange."""


def verify_rows(plan: RowsPlan) -> None:
    """Check that the roles of a plan fit, and agree on counts of arrivals and bytes. Raises ``Fault``."""
    check_structure(plan.roles, plan.rows.shared_limit_bytes)
    check_lengths(plan.rows.layout)
    simulate(smaller(plan.rows))


@functools.lru_cache(maxsize=256)
def simulate(plan: RowPlan) -> None:
    """Run the roles of a small plan under several schedules. Raises ``Fault``."""
    program = row_program(plan)
    each = BLOCK_ROWS if plan.problem.sums else 1
    for seed, tiles in enumerate(TILES):
        RowCluster(program, tiles=-(-tiles // each), seed=seed).run()


def smaller(plan: RowPlan) -> RowPlan:
    """Reduce the CTAs, warps, rows, chunks and stages of a plan, which keeps its steps."""
    layout = plan.layout
    choice = dataclasses.replace(
        layout.choice,
        cluster=min(layout.choice.cluster, FEW),
        warps=min(layout.choice.warps, FEW),
        rows=min(layout.choice.rows, FEW),
    )
    chunks = min(layout.chunks, FEW_CHUNKS)
    n = chunks * choice.cluster * choice.warps * 32 * layout.lanes
    n -= 2 * choice.cluster * layout.lanes + 1 if layout.by_columns else int(layout.by_words)
    held = chunks * layout.held_rows if layout.held_stages else 0
    stages = held + min(layout.stages - layout.held_stages, FEW_STAGES)
    group = min(layout.demand.group, WARP_LANES * layout.lanes)
    demand = dataclasses.replace(layout.demand, n=n, least=0, group=group, pitches=(n,) * len(layout.demand.pitches))
    few = dataclasses.replace(layout, demand=demand, choice=choice, chunk_granules=1, stages=stages)
    problem = dataclasses.replace(plan.problem, m=1, n=n, least=0, runtime=())
    return dataclasses.replace(plan, problem=problem, layout=few)


def check_structure(program: RowProgram, limit_bytes: int) -> None:
    """Check memory, warps, barriers and counts. Raises ``Fault`` for the first error."""
    layout, choice = program.plan.layout, program.plan.layout.choice
    if layout.shared_bytes > limit_bytes:
        raise Fault(f"{layout.shared_bytes} bytes of shared memory; a CTA has {limit_bytes}")
    end = 0
    for name, offset, size in layout.allocations:
        if offset < end or offset % 128:
            raise Fault(f"{name} overlaps the allocation before it, or is not aligned")
        end = offset + size
    barriers = next(size for name, _, size in layout.allocations if name == "barriers")
    if barriers < (2 * program.ring.stages + layout.exchange_stages + 1) * BARRIER_BYTES:
        raise Fault(f"{barriers} bytes of barriers for {program.ring.stages} stages")
    warps = sum(role.warps for role in program.roles if role.name == "rows")
    if program.ring.empty_arrivals != warps or program.ring.full_arrivals != 1:
        raise Fault(f"a stage is released by {warps} warps, and counts {program.ring.empty_arrivals}")
    if program.ring.transaction_bytes > MAX_BOX_BYTES:
        raise Fault(f"the ring awaits {program.ring.transaction_bytes} bytes; a barrier counts {MAX_BOX_BYTES}")
    if program.ring.stages <= layout.held_stages:
        raise Fault(
            f"rows hold {layout.held_stages} of {program.ring.stages} stages, so that the next chunk never loads"
        )
    if program.exchange is not None and choice.cluster == 1:
        if (program.exchange.full_arrivals, program.exchange.transaction_bytes) != (choice.warps, 0):
            raise Fault(f"{choice.warps} warps store messages, of which {program.exchange.full_arrivals} are awaited")
    elif program.exchange is not None:
        sent = choice.cluster * choice.warps * layout.slot_words * WORD_BYTES
        if program.exchange.transaction_bytes != sent:
            raise Fault(f"{sent} bytes are sent to each CTA, which awaits {program.exchange.transaction_bytes}")
        if choice.rows != 1:
            raise Fault(f"messages of {choice.rows} rows share a barrier between CTAs")
    numbers = [barrier.number for barrier in program.barriers]
    if len(set(numbers)) != len(numbers) or not all(1 <= number <= MAX_NAMED_BARRIERS for number in numbers):
        raise Fault(f"named barriers {numbers}: distinct numbers from 1 to {MAX_NAMED_BARRIERS} are needed")
