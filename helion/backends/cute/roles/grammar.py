"""The grammar of role programs. Each step is printed by one rule of ``codegen`` and executed by one of ``verify``."""

from __future__ import annotations

from typing import Literal

from ...._support.records import dataclass
from ..plan.counts import PipelineCounts
from ..plan.records import GemmPlan

PipelineKind = Literal[
    "tma_wgmma", "tma_umma", "umma_epilogue", "tma_epilogue", "exchange", "rows", "tma_rows", "mailbox", "of_groups"
]
"""``tma_rows``: each consumer group has a stage of its own. ``mailbox``: tile numbers from a dynamic scheduler."""
Side = Literal["producer", "consumer"]
PartOfK = Literal["last_part", "earlier_part", "split_tile", "whole_tile"]
Who = Literal["own_turn", "leader", "first_warp", "last_subtile", "owner", "others"] | PartOfK
Slots = Literal["k_tiles", "subtiles"]
Vector = Literal["column", "row"]
VECTORS: tuple[Vector, ...] = ("column", "row")


class Step:
    """One step of a role program."""


# Control --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TileLoop(Step):
    """Loop over the tiles of this cluster: every ``every``-th from number ``first`` on."""

    body: tuple[Step, ...]
    first: int = 0
    every: int = 1


@dataclass(frozen=True)
class KLoop(Step):
    """Loop over the K tiles of this CTA from its ``first`` on, not unrolled."""

    body: tuple[Step, ...]
    first: int = 0


@dataclass(frozen=True)
class KGroups(Step):
    """Loop over groups of ``size`` K tiles of this CTA; a nested loop over K tiles has those of the group."""

    body: tuple[Step, ...]
    size: int


@dataclass(frozen=True)
class SubtileLoop(Step):
    """Loop over the sub-tiles of a tile, unrolled unless ``rolled``."""

    body: tuple[Step, ...]
    rolled: bool = False


@dataclass(frozen=True)
class Gate(Step):
    """Run the body under a predicate.

    It holds for the CTA of a pair that issues for both (``leader``), the first warp of the role, or the last sub-tile.
    With split K in a cluster, it holds for the CTA that stores the sub-tile (``owner``) or for the ``others``. With
    split K across clusters, it holds for the CTA that found all other partials in the workspace (``last_part``), or for
    any other. Of warps that copy by turns, it holds for those of the current K tile (``own_turn``).
    """

    who: Who
    body: tuple[Step, ...]


@dataclass(frozen=True)
class OfTerm(Step):
    """Run the body for K tiles of term ``number`` of a sum of matmuls."""

    number: int
    body: tuple[Step, ...]


# Pipelines: a cursor is the pipeline state (stage and phase) of one side ---------------------------------------------


@dataclass(frozen=True)
class Cursor(Step):
    name: str
    pipeline: str
    side: Side


@dataclass(frozen=True)
class Acquire(Step):
    """Producer: wait until the stage is empty; with TMA, also set the expected transaction bytes."""

    cursor: str


@dataclass(frozen=True)
class Commit(Step):
    """Producer: mark the stage as full after the issued operations complete. TMA does so itself."""

    cursor: str


@dataclass(frozen=True)
class Wait(Step):
    """Consumer: wait until the stage is full."""

    cursor: str


@dataclass(frozen=True)
class Release(Step):
    """Consumer: mark the stage as empty."""

    cursor: str


@dataclass(frozen=True)
class Advance(Step):
    cursor: str


@dataclass(frozen=True)
class Skip(Step):
    """Advance past the stages of a tile that another consumer group takes."""

    cursor: str
    slots: Slots


@dataclass(frozen=True)
class Tail(Step):
    """Producer: wait until every stage has been released, so that no arrival targets an exited CTA."""

    cursor: str


# Data ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TmaLoad(Step):
    """Load the current K tile (A, B) or sub-tile (residual) through TMA into the stage of ``cursor``."""

    operand: str
    cursor: str


class CopyStep(Step):
    """A step of warps that copy operands."""


@dataclass(frozen=True)
class LoadRaw(CopyStep):
    """Load the current K tile of the first source of a copied operand through TMA into the stage of ``cursor``."""

    operand: str
    cursor: str


@dataclass(frozen=True)
class ReadRaw(CopyStep):
    """Read the elements of a raw tile from the stage of ``cursor`` into registers."""

    operand: str
    cursor: str


@dataclass(frozen=True)
class LoadElements(CopyStep):
    """Load the sources of a copied operand from global memory into registers, for the K tile ``ahead`` of the current
    one. Raw tiles are left out. Indices past the ends of tensors are those of the last elements.

    Without a current K tile it is the first one of the tile, unless ``now``."""

    operand: str
    ahead: int = 0
    now: bool = False


@dataclass(frozen=True)
class CopyAcquire(CopyStep):
    """Copying warp: wait until the stage is empty. The expected bytes of its phase are those of TMA alone."""

    cursor: str


@dataclass(frozen=True)
class WriteElements(CopyStep):
    """Compute the elements of a copied operand from its loaded sources, and store them to the stage of ``cursor``."""

    operand: str
    cursor: str


@dataclass(frozen=True)
class CopyCommit(CopyStep):
    """Copying warp: one lane arrives at the full barrier of the stage, after all lanes have written and fenced."""

    cursor: str


@dataclass(frozen=True)
class StartCopies(CopyStep):
    """Start cp.async copies of an operand, for the current K tile, to the stage of ``cursor``: zeros past the end of K."""

    operand: str
    cursor: str


@dataclass(frozen=True)
class ArriveAfterCopies(CopyStep):
    """Copying warp: let each thread arrive at the full barrier of the stage when all its copies are complete."""

    cursor: str


@dataclass(frozen=True)
class OrderCopies(CopyStep):
    """Consumer: order completed copies of the full stage of ``cursor`` before the reads of the matrix unit."""

    cursor: str


@dataclass(frozen=True)
class CopyTail(CopyStep):
    """Copying warp: wait until every stage has been released."""

    cursor: str


@dataclass(frozen=True)
class WgmmaFence(Step):
    """Order accesses to accumulator registers before the following wgmma."""


@dataclass(frozen=True)
class Mma(Step):
    """Issue all MMAs of the K tile in the stage of ``cursor``; with ``first`` the first one overwrites the accumulator."""

    cursor: str
    first: bool = False


@dataclass(frozen=True)
class WgmmaCommit(Step):
    """Close a wgmma group."""


@dataclass(frozen=True)
class WgmmaWait(Step):
    """Wait until at most ``pending`` groups are in flight."""

    pending: int


@dataclass(frozen=True)
class ClearSums(Step):
    """Clear the fp32 registers that ``Promote`` adds to."""


@dataclass(frozen=True)
class LoadScales(Step):
    """Load the scales of the current block of K from global memory into registers."""


@dataclass(frozen=True)
class Promote(Step):
    """Add the accumulator of a K tile, or of a block of K times its scales, to fp32 registers outside of the matrix
    unit.

    From tensor memory it reads all sub-tiles of the stage of ``cursor``.
    """

    cursor: str | None = None


@dataclass(frozen=True)
class SelectSums(Step):
    """Select the tensor-memory stage of ``cursor``; the next MMA overwrites it."""

    cursor: str


@dataclass(frozen=True)
class ReadSums(Step):
    """Read the accumulator of a sub-tile into the registers of the epilogue.

    From tensor memory it reads the stage of ``cursor`` and waits for the data.
    """

    cursor: str | None = None


@dataclass(frozen=True)
class SendPartials(Step):
    """Send the partials of a sub-tile through DSMEM to the stage of ``cursor`` in the CTA that owns it, before the
    epilogue."""

    cursor: str


@dataclass(frozen=True)
class AddPartials(Step):
    """Add the other CTAs' partials of the sub-tile, in a fixed order, to the registers of the epilogue."""

    cursor: str


@dataclass(frozen=True)
class StorePartials(Step):
    """Store the split-K partials to the slot of this part of K in the workspace, before the epilogue."""


@dataclass(frozen=True)
class WorkspaceRelease(Step):
    """Release fence at GPU scope. Partials stored before the last barrier are visible to any CTA that sees the tile
    counter incremented after it."""


@dataclass(frozen=True)
class IncrementTileCounter(Step):
    """Increment the tile counter in the workspace; its former value goes to shared memory."""


@dataclass(frozen=True)
class WorkspaceAcquire(Step):
    """Acquire fence that pairs with ``WorkspaceRelease``: after the next barrier, warps see all counted partials."""


@dataclass(frozen=True)
class ReducePartials(Step):
    """Add the partials of all parts from the workspace, in the order of K, into the registers of the epilogue."""


@dataclass(frozen=True)
class ResetTileCounter(Step):
    """Reset the tile counter to zero for the next launch."""


@dataclass(frozen=True)
class LoadVectors(Step):
    """Load operands of ``kinds`` for this tile from global memory into registers; ``once`` before the tile loop, for
    all tiles."""

    kinds: tuple[Vector, ...]
    once: bool = False


@dataclass(frozen=True)
class ShareVectors(Step):
    """Store row operands from registers to shared memory, for all threads after the next barrier."""


@dataclass(frozen=True)
class ReadResiduals(Step):
    """Load the sub-tile of each residual from the stage of ``cursor`` into registers.

    ``FenceShared`` has to run between this step and the release of the stage.
    """

    cursor: str


@dataclass(frozen=True)
class ClearRows(Step):
    """Set the reductions of pass ``number`` to their identities."""

    number: int


@dataclass(frozen=True)
class AddTerms(Step):
    """Accumulate the terms of the reductions of pass ``number`` over the registers of a sub-tile."""

    number: int


@dataclass(frozen=True)
class JoinLanes(Step):
    """Reduce pass ``number`` over all columns of the CTA's tile, in every lane that has a part of the row."""

    number: int


@dataclass(frozen=True)
class OwnRows(Step):
    """Compute the CTA-local values that the second pass uses in place of values of the whole row."""


@dataclass(frozen=True)
class ArmRows(Step):
    """Set the expected bytes of the exchange after pass ``number`` at the stage of ``cursor``, in the first warp."""

    cursor: str
    number: int


@dataclass(frozen=True)
class SendRows(Step):
    """Send the CTA's results of pass ``number``, and those exchanged with them, to the stage of ``cursor`` in every CTA
    of the row."""

    cursor: str
    number: int


@dataclass(frozen=True)
class GatherRows(Step):
    """Combine the results of pass ``number`` from all CTAs of the row, in a fixed order."""

    cursor: str
    number: int


@dataclass(frozen=True)
class EvaluateRows(Step):
    """Evaluate per-row instructions after exchange ``level``, from reductions, column operands and other per-row
    values."""

    level: int


@dataclass(frozen=True)
class StoreRows(Step):
    """Store outputs of one number per row to global memory, from the CTA of the first columns."""


@dataclass(frozen=True)
class Evaluate(Step):
    """Run the last pass over the registers of a sub-tile, rounded to the output types."""


@dataclass(frozen=True)
class StoreStrided(Step):
    """Store the elements of a sub-tile of a ``strided`` output that are inside its bounds from registers."""

    output: int = 0


@dataclass(frozen=True)
class WriteStage(Step):
    """Store the sub-tile of an output matrix into its buffer in shared memory."""

    output: int = 0


@dataclass(frozen=True)
class FenceShared(Step):
    """Order the threads' reads and writes of shared memory before later accesses of TMA.

    A barrier alone is not enough: TMA uses the async proxy, and loads may still be in flight.
    """


@dataclass(frozen=True)
class TmaStore(Step):
    """Store that buffer to global memory through TMA, as one bulk group."""

    output: int = 0


@dataclass(frozen=True)
class LaunchFinish(Step):
    """Trigger the dependent launch after a warp of every CTA is here or has exited.

    The dependent kernel itself waits for the end of this one.
    """


@dataclass(frozen=True)
class StoreWait(Step):
    """Wait until at most ``pending`` stores still read shared memory."""

    pending: int


@dataclass(frozen=True)
class BarrierSync(Step):
    """Synchronize at a named barrier (bar.sync)."""

    barrier: str


@dataclass(frozen=True)
class WarpSync(Step):
    """Synchronize the lanes of the warp."""


@dataclass(frozen=True)
class BarrierArrive(Step):
    """Arrive at a named barrier without waiting (bar.arrive)."""

    barrier: str


# Set-up: no part of the protocol --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupViews(Step):
    """Address the rows of the tile's group: of A (``loads``), of residuals, or of outputs (``stores``)."""

    of: Literal["loads", "residuals", "stores"]


@dataclass(frozen=True)
class SetUp(Step):
    """Make views and fragments for later steps of the role, by the name of the text that makes them."""

    name: str


@dataclass(frozen=True)
class AllocateSums(Step):
    """Allocate tensor memory, in the first warp."""


@dataclass(frozen=True)
class FindSums(Step):
    """Synchronize at the barrier of tensor memory, then read its address."""


@dataclass(frozen=True)
class FreeSums(Step):
    """Free tensor memory, in the first warp, after the last use in the CTA or in the pair."""


@dataclass(frozen=True)
class ClusterExit(Step):
    """Synchronize all threads of the cluster."""


# The whole ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    name: str
    kind: PipelineKind
    counts: PipelineCounts
    barriers: str
    """Allocation in shared memory."""


@dataclass(frozen=True, kw_only=True)
class NamedBarrier:
    name: str
    number: int
    """1 to 15; number 0 is that of the whole CTA."""
    threads: int


@dataclass(frozen=True, kw_only=True)
class Role:
    name: str
    first_warp: int
    warps: int
    program: tuple[Step, ...]
    team: int = 0
    """Index of the consumer group, which selects its epilogue buffers."""


@dataclass(frozen=True, kw_only=True)
class RegisterLimit:
    """Register count per thread that a warpgroup drops to (``decrease``) or raises to (``increase``)."""

    first_warp: int
    warps: int
    registers: int
    change: Literal["decrease", "increase"]


@dataclass(frozen=True, kw_only=True)
class KernelProgram:
    """A kernel. ``warps`` counts the launched warps; those without a role only take part in the exit."""

    plan: GemmPlan
    warps: int
    spare_warp: int
    """The first warp without a role, launched or not."""
    pipelines: tuple[Pipeline, ...]
    barriers: tuple[NamedBarrier, ...]
    roles: tuple[Role, ...]
    host: tuple[str, ...]
    """The objects that the host makes and passes to the kernel, by the name of the text that makes them."""
    exit: tuple[Step, ...] = ()
    registers: tuple[RegisterLimit, ...] = ()

    def pipeline(self, name: str) -> Pipeline:
        return next(pipeline for pipeline in self.pipelines if pipeline.name == name)

    def role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)
