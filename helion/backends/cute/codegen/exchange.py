"""Exchange of split-K partials between CTAs of a cluster: barriers, stores to distributed shared memory, and the sum."""

from __future__ import annotations

from ..plan.counts import counts
from ..plan.records import WARP_THREADS, GemmPlan
from ..roles.grammar import Pipeline, Role
from .epilogue import fragment

WORDS = 4
"""fp32 values of one 16-byte store."""
WAIT = "{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [{$r0}], {$r1}; @!p bra again; }"
"""Wait with acquire semantics: stores of other CTAs before their arrival are visible afterwards."""
ARRIVE = (
    "{ .reg .b32 there; mapa.shared::cluster.u32 there, {$r0}, {$r1};"
    " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }"
)
"""Arrive at the same barrier of another CTA, with release semantics."""


def make(pipeline: Pipeline) -> list[str]:
    """Return the initialization of the barriers: word 0 is the full one, word 1 the empty one."""
    numbers = pipeline.counts
    return [
        "if warp == 0:",
        "    with cute.arch.elect_one():",
        f"        cute.arch.mbarrier_init({pipeline.barriers}, {numbers.full_arrivals})",
        f"        cute.arch.mbarrier_init({pipeline.barriers} + 1, {numbers.empty_arrivals})",
    ]


def acquire(plan: GemmPlan, role: Role, pipeline: Pipeline, cursor: str) -> list[str]:
    """Wait until the others have read the last tile, then expect the bytes of all sub-tiles of the CTA."""
    size = pipeline.counts.transaction_bytes
    return [
        *wait(pipeline, cursor, word=1),
        f"if warp == {role.first_warp}:",
        "    with cute.arch.elect_one():",
        f"        own_subtiles = ({plan.subtiles + plan.splits - 1} - place[3]) // {plan.splits}",
        f"        cute.arch.mbarrier_arrive_and_expect_tx({pipeline.barriers}, own_subtiles * {size})",
    ]


def wait(pipeline: Pipeline, cursor: str, *, word: int = 0) -> list[str]:
    return [
        "cute.arch.inline_ptx(",
        f'    "{WAIT}",',
        f"    read_only_args=[({pipeline.barriers} + {word}).toint().to(cutlass.Int32), {cursor}.phase],",
        ")",
    ]


def release(plan: GemmPlan, pipeline: Pipeline) -> list[str]:
    """Arrive at the empty barrier: lane i of every warp does so for the CTA of part i."""
    return [
        "cute.arch.sync_warp()",
        f"other_rank = {_rank(plan, 'lane')}",
        f"if lane < {plan.splits} and lane != place[3]:",
        "    cute.arch.inline_ptx(",
        f'        "{ARRIVE}", read_only_args=[({pipeline.barriers} + 1).toint().to(cutlass.Int32), other_rank]',
        "    )",
    ]


def _rank(plan: GemmPlan, part: str) -> str:
    """Return the rank of the CTA with the same tile and another part of K."""
    tiles = plan.cluster[0] * plan.cluster[1]
    return part if tiles == 1 else f"(rank + ({part} - place[3]) * {tiles})"


def view(plan: GemmPlan) -> list[str]:
    """Define the view of partials: a thread reads those of the same thread of the others, four at a time."""
    values, threads = fragment(plan).values, plan.consumer_warps * WARP_THREADS
    shape = (WORDS, threads, values // WORDS, plan.splits - 1, plan.rounds)
    strides = [1]
    for extent in shape[:-1]:
        strides.append(strides[-1] * extent)
    return [
        f"parts = cute.make_tensor(shared_parts, cute.make_layout({shape}, stride={tuple(strides)}))",
    ]


def send(plan: GemmPlan, pipeline: Pipeline) -> list[str]:
    """Send partials; the sender's slot in the owner's memory follows from its distance to the owner."""
    values, threads = fragment(plan).values, plan.consumer_warps * WARP_THREADS
    size = counts(plan).parts_stage_bytes // (4 * WORDS)
    words = ", ".join(f"values[i * {WORDS} + {word}].bitcast(cutlass.Int32)" for word in range(WORDS))
    return [
        f"owner = subtile % {plan.splits}",
        f"from_owner = (place[3] + ({plan.splits} - 1 - owner)) % {plan.splits}",
        f"first_part = subtile // {plan.splits} * {size} + from_owner * {values // WORDS * threads} + store_thread",
        f"for i in cutlass.range_constexpr({values // WORDS}):",
        "    cute.arch.store_async_dsmem(",
        f"        cute.recast_ptr(shared_parts, dtype=cutlass.Int128) + (first_part + i * {threads}),",
        f"        ({words}),",
        f"        {pipeline.barriers},",
        f"        {_rank(plan, 'owner')},",
        "    )",
    ]


def add(plan: GemmPlan) -> list[str]:
    """Add partials in the order of slots, which does not depend on arrival order."""
    values = fragment(plan).values
    return [
        f"for other in cutlass.range_constexpr({plan.splits - 1}):",
        f"    for i in cutlass.range_constexpr({values // WORDS}):",
        f"        part = parts[None, store_thread, i, other, subtile // {plan.splits}].load()",
        f"        for word in cutlass.range_constexpr({WORDS}):",
        f"            values[i * {WORDS} + word] = values[i * {WORDS} + word] + part[word]",
    ]
