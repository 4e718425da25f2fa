"""The roles of a row kernel: one warp loads chunks of rows, the others reduce and map them.

The ring makes the prefetch distance independent of the row that is held: the next rows load during the exchange and
the stores of a row. Each warp sends its results to all CTAs of the row at once, and combines those of all warps itself.
So a row needs one exchange for warps and CTAs.
"""

from __future__ import annotations

from ....._support.records import dataclass, replace
from ...plan.counts import PipelineCounts
from ...plan.rowwise.choice import WARP_LANES
from ...plan.rowwise.demand import WORD_BYTES
from ...plan.rowwise.passes import Schedule, schedule_of
from ...plan.rowwise.records import RowPlan
from ..grammar import Advance, BarrierSync, ClusterExit, Cursor, NamedBarrier, Release, Step, Tail, Wait

RING, EXCHANGE, VECTORS, SUMS = "ring", "exchange", "vectors", "sums"
READ, HELD = "ring_read", "ring_held"
PLACE, SENT = "exchange_place", "exchange_sent"
"""Cursors of rows ahead are ``READ`` and ``SENT``; ``HELD`` and ``PLACE`` follow them by one row."""
FIRST_ROW_BARRIER, VECTORS_BARRIER = 1, 15
CTA_BARRIERS = (VECTORS, SUMS)
"""Names of the barrier of all warps of rows of a CTA."""


@dataclass(frozen=True)
class RowLoop(Step):
    """Loop over the tiles of rows of this cluster."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class Ahead(Step):
    """The steps that reduce the row of a ``RowLoop``, which has one more round than rows."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class Former(Step):
    """The steps that combine the results of the former row of a ``RowLoop``, and map it."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class Lead(Step):
    """The steps that reduce the first rows of a block before its ``RowLoop``, which has the rows after them."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class Follow(Step):
    """Begin the row that is reduced while another is mapped, if the block has one, and wait for its chunks."""

    cursor: str


@dataclass(frozen=True)
class Overlap(Step):
    """Reduce the row that follows over its chunks, and run pass ``number`` over the row that is mapped.

    The next steps are of the former. The stages of the latter are released by ``cursor``.
    """

    number: int
    cursor: str


@dataclass(frozen=True)
class Following(Step):
    """Steps of the row that follows, if there is one."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class Restart(Step):
    """Set ``cursor`` to ``place``: the rows that were not there to be reduced ahead did not move it."""

    cursor: str
    place: str


@dataclass(frozen=True)
class BlockLoop(Step):
    """Loop over the blocks of rows of this cluster; a ``RowLoop`` within has the rows of one block."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class ClearSums(Step):
    """Clear the thread's sums over the rows of a block."""


@dataclass(frozen=True)
class StoreSums(Step):
    """Store the thread's sums over the rows of a block. Its passes over each row have added to them."""


@dataclass(frozen=True)
class ResidueLoop(Step):
    """Loop over the places at which rows of a block may begin within a granule; a ``RowLoop`` within has the rows of one."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class AddSums(Step):
    """Add a thread's sums over the rows that begin at one place to those of their columns, in shared memory."""


@dataclass(frozen=True)
class ChunkLoop(Step):
    """Loop over the chunks of a CTA's slice of a row; unrolled where a row is held."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class AcquireChunk(Step):
    """Wait until the stage is empty, and set its expected bytes: those of the chunk, or none after the end of a row."""

    cursor: str


@dataclass(frozen=True)
class LoadChunk(Step):
    """Load the chunk of every input by bulk copies into the stage of ``cursor``."""

    cursor: str


@dataclass(frozen=True)
class FillRing(Step):
    """Load the first rows of a warp that loads its own, one into each stage."""


@dataclass(frozen=True)
class Refill(Step):
    """Load the next row of the warp into the stage of ``cursor``, or the one that is held, after its last read."""

    cursor: str


@dataclass(frozen=True)
class LoadVectors(Step):
    """Load the CTA's slice of vectors by bulk copies, once."""


@dataclass(frozen=True)
class AwaitVectors(Step):
    """Wait for the bulk copies of vectors."""


@dataclass(frozen=True)
class ShareVectors(Step):
    """Copy the CTA's slice of vectors to shared memory, element by element."""


@dataclass(frozen=True)
class BeginRow(Step):
    """Find the thread's part of the row, load the row's numbers, and clear the partial results.

    With ``again``, the row is the one before, whose results were sent.
    """

    again: bool = False


@dataclass(frozen=True)
class HoldChunk(Step):
    """Note the stage of ``cursor``, which holds a chunk of the row."""

    cursor: str


@dataclass(frozen=True)
class TakeChunk(Step):
    """Run the first pass over the chunk in the stage of ``cursor``, and keep what later passes read."""

    cursor: str


@dataclass(frozen=True)
class WalkRow(Step):
    """Run pass ``number`` over the row that is held. With a cursor, release each of its stages after its last read.

    With ``follows``, the row is the one that is reduced while another is mapped.
    """

    number: int
    releases: str = ""
    follows: bool = False


@dataclass(frozen=True)
class ReduceWarp(Step):
    """Reduce the results of pass ``number`` over the lanes of a warp."""

    number: int


@dataclass(frozen=True)
class ArmExchange(Step):
    """Set the expected bytes of the messages of all warps, in the first warp of the row."""

    cursor: str


@dataclass(frozen=True)
class SendMessage(Step):
    """Send the warp's results of exchange ``number`` to every CTA of the row, or to the CTA's shared memory."""

    cursor: str
    number: int


@dataclass(frozen=True)
class Combine(Step):
    """Combine the messages of exchange ``number`` in a fixed order, and evaluate per-row values."""

    cursor: str
    number: int


@dataclass(frozen=True)
class StoreGroups(Step):
    """Add up the parts of wide groups of the row, which all its warps in the CTA have stored, and store the results."""


@dataclass(frozen=True)
class StoreNumbers(Step):
    """Store outputs of one number per row, from the first thread of the row."""


@dataclass(frozen=True, kw_only=True)
class RowRole:
    """A role. A ``row`` role has the warps of each row of a tile."""

    name: str
    first_warp: int
    warps: int
    program: tuple[Step, ...]


@dataclass(frozen=True, kw_only=True)
class RowProgram:
    """The programs of a row kernel's warps, their pipelines and their barriers."""

    plan: RowPlan
    ring: PipelineCounts
    exchange: PipelineCounts | None
    """Barriers of the messages. Within one CTA it is None, as a named barrier is enough, or counts the warps that have
    stored theirs, which others read later."""
    barriers: tuple[NamedBarrier, ...]
    roles: tuple[RowRole, ...]
    exit: tuple[Step, ...] = ()

    @property
    def warps(self) -> int:
        return sum(role.warps for role in self.roles)


def row_program(plan: RowPlan) -> RowProgram:
    """Build the roles, pipelines and barriers of `plan`."""
    layout, choice = plan.layout, plan.layout.choice
    row_warps = choice.rows * choice.warps
    ring = PipelineCounts(
        stages=layout.stages, full_arrivals=1, empty_arrivals=row_warps, transaction_bytes=layout.stage_bytes
    )
    exchange = None
    if layout.exchanges and (choice.cluster > 1 or choice.overlap):
        apart = choice.cluster > 1
        exchange = PipelineCounts(
            stages=layout.exchange_stages,
            full_arrivals=1 if apart else choice.warps,
            empty_arrivals=0,
            transaction_bytes=layout.partials * layout.slot_words * WORD_BYTES if apart else 0,
        )
    barriers = []
    if (layout.exchanges and exchange is None) or plan.problem.wide:
        barriers += [
            NamedBarrier(name=f"row_{group}", number=FIRST_ROW_BARRIER + group, threads=layout.threads)
            for group in range(choice.rows)
        ]
    if (layout.demand.vectors and not layout.bulk_vectors) or layout.by_columns:
        barriers.append(NamedBarrier(name=VECTORS, number=VECTORS_BARRIER, threads=32 * row_warps))
    return RowProgram(
        plan=plan,
        ring=ring,
        exchange=exchange,
        barriers=tuple(barriers),
        roles=_roles(plan, row_warps),
        exit=(ClusterExit(),) if choice.cluster > 1 else (),
    )


def _roles(plan: RowPlan, row_warps: int) -> tuple[RowRole, ...]:
    rows = _rows(plan, schedule_of(plan.problem))
    if plan.layout.choice.loads_itself:
        return (RowRole(name="rows", first_warp=0, warps=row_warps, program=rows),)
    load = RowRole(name="load", first_warp=0, warps=1, program=_load(plan))
    return load, RowRole(name="rows", first_warp=plan.layout.first_thread // WARP_LANES, warps=row_warps, program=rows)


def _load(plan: RowPlan) -> tuple[Step, ...]:
    chunk = (AcquireChunk("ring_fill"), LoadChunk("ring_fill"), Advance("ring_fill"))
    return (
        *((LoadVectors(),) if plan.layout.bulk_vectors else ()),
        Cursor("ring_fill", RING, "producer"),
        _rows_of_blocks(plan, RowLoop((ChunkLoop(chunk),))),
        Tail("ring_fill"),
    )


def _rows_of_blocks(plan: RowPlan, rows: RowLoop, before: tuple[Step, ...] = (), after: tuple[Step, ...] = ()) -> Step:
    """Return the loop over rows, within one over blocks if these have sums."""
    if not plan.layout.by_columns:
        return BlockLoop((*before, rows, *after)) if plan.problem.sums else rows
    added = (BarrierSync(SUMS), AddSums()) if after else ()
    stored = (BarrierSync(SUMS), *after) if after else ()
    return BlockLoop((ResidueLoop((*before, rows, *added)), *stored))


def _rows(plan: RowPlan, schedule: Schedule) -> tuple[Step, ...]:
    layout = plan.layout
    vectors: tuple[Step, ...] = ()
    if layout.demand.vectors:
        vectors = (AwaitVectors(),) if layout.bulk_vectors else (ShareVectors(), BarrierSync(VECTORS))
    cursors: list[Step] = [Cursor(READ, RING, "consumer")]
    if layout.choice.loads_itself:
        cursors.append(FillRing())
    if layout.exchanges:
        cursors.append(Cursor(PLACE, EXCHANGE, "consumer"))
    if layout.choice.rows_ahead:
        cursors.append(Cursor(SENT, EXCHANGE, "consumer"))
        cursors += [Cursor(HELD, RING, "consumer")] if layout.held_stages else []
    if layout.choice.overlap:
        lead, steps = _overlapped(plan, schedule)
        if not plan.problem.sums:
            return (*vectors, *cursors, *lead, RowLoop(steps))
        return (*vectors, *cursors, _rows_of_blocks(plan, RowLoop(steps), (ClearSums(), *lead), (StoreSums(),)))
    steps = _ahead(plan, schedule) if layout.choice.ahead else _one_row(plan, schedule)
    loop = _rows_of_blocks(plan, RowLoop(steps), (ClearSums(),), (StoreSums(),))
    return (*vectors, *cursors, loop)


def _one_row(plan: RowPlan, schedule: Schedule) -> tuple[Step, ...]:
    """Return the steps of a row, one exchange after the other."""
    steps, done = _taken(plan), 0
    for at, meeting in enumerate(schedule.meetings):
        steps += _reduced(schedule, meeting)
        done = meeting[-1]
        steps += _exchange(plan, at)
    steps += [WalkRow(each.number) for each in schedule.passes if each.number > done]
    return (*_released(plan, steps, READ), *_wide(plan, schedule), *_numbers(plan))


def _ahead(plan: RowPlan, schedule: Schedule) -> tuple[Step, ...]:
    """Return the steps of a row up to its messages, and those of the row before from there on."""
    ((*first, last),) = schedule.meetings
    later = [WalkRow(each.number) for each in schedule.passes if each.number > last]
    reduced = [*_taken(plan), *_reduced(schedule, (*first, last))]
    reduced = reduced if later else _released(plan, reduced, READ)
    sent = (ArmExchange(SENT), SendMessage(SENT, 0), Advance(SENT))
    held: list[Step] = [BeginRow(again=True)]
    if later and plan.layout.held_stages:
        held.append(ChunkLoop((HoldChunk(HELD), Advance(HELD))))
    held += [Wait(PLACE), Combine(PLACE, 0), Advance(PLACE)]
    mapped = _released(plan, [*held, *later], HELD) if later else held
    return (Ahead((*reduced, *sent)), Former((*mapped, *_numbers(plan))))


def _overlapped(plan: RowPlan, schedule: Schedule) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """Return the steps before the loop over rows, and those of a row.

    A warp combines and maps a row, and reduces a later one, in one run of instructions without a wait. So the latency of
    one chain of steps passes with the instructions of others.
    """
    (meeting,) = schedule.meetings
    (last,) = (each.number for each in schedule.passes if each.number > meeting[-1])
    reduced = _reduced(schedule, meeting)
    reduced_next = [replace(step, follows=True) if isinstance(step, WalkRow) else step for step in reduced]
    armed = (ArmExchange(SENT),) if plan.layout.choice.cluster > 1 else ()
    sent = (*armed, SendMessage(SENT, 0))
    lead = Lead((*_taken(plan), *reduced, *sent, Advance(SENT)))
    row = (
        Follow(READ),
        BeginRow(again=True),
        ChunkLoop((HoldChunk(HELD), Advance(HELD))),
        *(Wait(PLACE), Combine(PLACE, 0), Advance(PLACE), *_numbers(plan)),
        *(Overlap(last, HELD), *reduced_next, Following(sent), Advance(SENT)),
    )
    return (Restart(READ, HELD), Restart(SENT, PLACE), lead), row


def _taken(plan: RowPlan) -> list[Step]:
    """Return the first pass, over the chunks as they arrive."""
    freed = Refill(READ) if plan.layout.choice.loads_itself else Release(READ)
    release = () if plan.layout.held_stages else (freed,)
    return [BeginRow(), ChunkLoop((Wait(READ), TakeChunk(READ), *release, Advance(READ)))]


def _reduced(schedule: Schedule, meeting: tuple[int, ...]) -> list[Step]:
    """Return the passes whose reductions share an exchange, without the walk of the first pass."""
    walks = {each.number for each in schedule.passes if each.number}
    return [
        step for number in meeting for step in (*([WalkRow(number)] if number in walks else []), ReduceWarp(number))
    ]


def _released(plan: RowPlan, steps: list[Step], cursor: str) -> list[Step]:
    """Let the last pass over a row in shared memory release its stages."""
    last = max((i for i, step in enumerate(steps) if isinstance(step, WalkRow)), default=None)
    if not plan.layout.held_stages:
        return steps
    assert last is not None, "a row stays in shared memory for a later pass"
    walk = steps[last]
    assert isinstance(walk, WalkRow)
    if plan.layout.choice.loads_itself:
        return [*steps[: last + 1], Refill(""), *steps[last + 1 :]]
    return [*steps[:last], WalkRow(walk.number, releases=cursor), *steps[last + 1 :]]


def _wide(plan: RowPlan, schedule: Schedule) -> tuple[Step, ...]:
    """Return the steps that add up parts of wide groups. An exchange before the next parts are stored orders the reads of
    these before that; another barrier does without one."""
    if not plan.problem.wide:
        return ()
    (number,) = (each.number for each in schedule.passes if each.wide)
    ordered = plan.layout.exchanges and number > schedule.meetings[0][-1]
    return (BarrierSync("row"), StoreGroups(), *(() if ordered else (BarrierSync("row"),)))


def _numbers(plan: RowPlan) -> tuple[Step, ...]:
    return (StoreNumbers(),) if plan.problem.numbers else ()


def _exchange(plan: RowPlan, number: int) -> tuple[Step, ...]:
    """Return the steps of one exchange, which a row of one warp does not need."""
    layout = plan.layout
    if not layout.exchanges:
        return (Combine("", number),)
    if layout.choice.cluster == 1:
        return (SendMessage(PLACE, number), BarrierSync("row"), Combine(PLACE, number), Advance(PLACE))
    return (ArmExchange(PLACE), SendMessage(PLACE, number), Wait(PLACE), Combine(PLACE, number), Advance(PLACE))
