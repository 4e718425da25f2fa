"""The grammar of role programs. Each step is printed by one rule of ``codegen`` and executed by one of ``verify``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..plan.counts import PipelineCounts
from ..plan.records import GemmPlan

PipelineKind = Literal["tma_wgmma", "tma_umma", "umma_epilogue", "tma_epilogue", "exchange", "rows"]
Side = Literal["producer", "consumer"]
Who = Literal["leader", "first_warp", "last_subtile", "owner", "others", "last_part", "earlier_part"]
Slots = Literal["k_tiles", "subtiles"]
Vector = Literal["column", "row"]
VECTORS: tuple[Vector, ...] = ("column", "row")


class Step:
    """One step of a role program."""


# Control --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TileLoop(Step):
    """The tiles of this cluster, one after the other: from number ``first`` on, each ``every``-th."""

    body: tuple[Step, ...]
    first: int = 0
    every: int = 1


@dataclass(frozen=True)
class KLoop(Step):
    """The K tiles of this CTA from its ``first`` on, not unrolled."""

    body: tuple[Step, ...]
    first: int = 0


@dataclass(frozen=True)
class KGroups(Step):
    """The K tiles of this CTA in groups of ``size``; a loop over K tiles inside has those of the group."""

    body: tuple[Step, ...]
    size: int


@dataclass(frozen=True)
class SubtileLoop(Step):
    """The sub-tiles of a tile, unrolled unless ``rolled``."""

    body: tuple[Step, ...]
    rolled: bool = False


@dataclass(frozen=True)
class Gate(Step):
    """Only the CTA of a pair that issues for both (``leader``), the first warp of the role, or the last sub-tile.

    Where CTAs split K: the one that stores the sub-tile (``owner``) or the ``others``. Where clusters do: the CTA that has
    found the sums of all others of the tile in the workspace (``last_part``), or one that has not.
    """

    who: Who
    body: tuple[Step, ...]


# Pipelines: a cursor is one side's place in a ring -----------------------------------------------------------------


@dataclass(frozen=True)
class Cursor(Step):
    name: str
    pipeline: str
    side: Side


@dataclass(frozen=True)
class Acquire(Step):
    """Producer: wait until the slot is empty; behind TMA, also say how many bytes will come."""

    cursor: str


@dataclass(frozen=True)
class Commit(Step):
    """Producer: the slot is full as soon as what was issued is done. TMA says so itself."""

    cursor: str


@dataclass(frozen=True)
class Wait(Step):
    """Consumer: wait until the slot is full."""

    cursor: str


@dataclass(frozen=True)
class Release(Step):
    """Consumer: the slot may be filled again."""

    cursor: str


@dataclass(frozen=True)
class Advance(Step):
    cursor: str


@dataclass(frozen=True)
class Skip(Step):
    """Past the slots of a tile that another team takes."""

    cursor: str
    slots: Slots


@dataclass(frozen=True)
class Tail(Step):
    """Producer: stay until every slot has been released, so that no arrival meets a CTA that has left."""

    cursor: str


# Data ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TmaLoad(Step):
    """The K tile (A, B) or sub-tile (an exact operand) that the loops stand at, into the slot of ``cursor``."""

    operand: str
    cursor: str


@dataclass(frozen=True)
class WgmmaFence(Step):
    """Registers of the sums may be read by the matrix unit from here on."""


@dataclass(frozen=True)
class Mma(Step):
    """All instructions of the K tile in the slot of ``cursor``; ``first`` overwrites the sums at the first of them."""

    cursor: str
    first: bool = False


@dataclass(frozen=True)
class WgmmaCommit(Step):
    """Ends a group of instructions."""


@dataclass(frozen=True)
class WgmmaWait(Step):
    """Until no more than ``pending`` groups are in flight."""

    pending: int


@dataclass(frozen=True)
class ClearSums(Step):
    """Zero the fp32 registers that ``Promote`` adds to."""


@dataclass(frozen=True)
class LoadScales(Step):
    """The factors of the block of K that the loops stand at from global memory into registers."""


@dataclass(frozen=True)
class Promote(Step):
    """Add the sums of a K tile, or of a block of K times its factors, to those in fp32 registers outside of the matrix
    unit; from tensor memory those of the stage of ``cursor``, of all sub-tiles."""

    cursor: str | None = None


@dataclass(frozen=True)
class SelectSums(Step):
    """The stage of tensor memory that ``cursor`` points to; the next instruction overwrites it."""

    cursor: str


@dataclass(frozen=True)
class ReadSums(Step):
    """The sums of a sub-tile into the registers of the epilogue; from tensor memory, of the stage of ``cursor``, until
    they are there."""

    cursor: str | None = None


@dataclass(frozen=True)
class SendPartials(Step):
    """The registers of the epilogue, before it, to the slot of ``cursor`` in the CTA that owns the sub-tile."""

    cursor: str


@dataclass(frozen=True)
class AddPartials(Step):
    """What the other CTAs sent of the sub-tile, in a fixed order, to the registers of the epilogue."""

    cursor: str


@dataclass(frozen=True)
class StorePartials(Step):
    """The registers of the epilogue, before it, to the place of this part of K in the workspace."""


@dataclass(frozen=True)
class WorkspaceRelease(Step):
    """Who learns of what comes behind this sees in the workspace what the warps have put there before the last barrier."""


@dataclass(frozen=True)
class IncrementTileCounter(Step):
    """One more part of the tile is in the workspace: how many there were goes to shared memory."""


@dataclass(frozen=True)
class WorkspaceAcquire(Step):
    """Behind the next barrier, warps see what all parts that were counted have put into the workspace."""


@dataclass(frozen=True)
class ReducePartials(Step):
    """The sums of all parts, from the workspace, in the order of K, into the registers of the epilogue."""


@dataclass(frozen=True)
class ResetTileCounter(Step):
    """The tile's counter back to zero, for the next launch."""


@dataclass(frozen=True)
class LoadVectors(Step):
    """Operands of ``kinds`` of this tile from global memory into registers; ``once`` in front of all tiles, which share them."""

    kinds: tuple[Vector, ...]
    once: bool = False


@dataclass(frozen=True)
class ShareVectors(Step):
    """Row operands from registers into shared memory, where every thread finds them behind the next barrier."""


@dataclass(frozen=True)
class ReadResiduals(Step):
    """The sub-tile of each exact operand from the slot of ``cursor`` into registers. ``FenceShared`` lies between this and
    the release of the slot."""

    cursor: str


@dataclass(frozen=True)
class ClearRows(Step):
    """What nothing reduces to, for the reductions of pass number ``number``."""

    number: int


@dataclass(frozen=True)
class AddTerms(Step):
    """Pass number ``number`` on the registers of a sub-tile: the terms of its reductions are added up."""

    number: int


@dataclass(frozen=True)
class JoinLanes(Step):
    """The reductions of pass ``number`` over all columns of the CTA's tile, in every lane that has a part of the row."""

    number: int


@dataclass(frozen=True)
class OwnRows(Step):
    """What the second pass takes the place of numbers of the row for: numbers of the CTA's own columns."""


@dataclass(frozen=True)
class ArmRows(Step):
    """The first warp says how many bytes the exchange behind pass ``number`` brings to the slot of ``cursor``."""

    cursor: str
    number: int


@dataclass(frozen=True)
class SendRows(Step):
    """The reductions of the CTA's tile, of pass ``number`` and those exchanged with them, to the slot of ``cursor`` in every CTA that holds a part of the rows."""

    cursor: str
    number: int


@dataclass(frozen=True)
class GatherRows(Step):
    """The reductions of pass ``number`` over whole rows, of all CTAs that hold a part of them, in a fixed order."""

    cursor: str
    number: int


@dataclass(frozen=True)
class EvaluateRows(Step):
    """What is made of the reductions of so many exchanges, ``level``, of column operands and of numbers per row."""

    level: int


@dataclass(frozen=True)
class StoreRows(Step):
    """Outputs of one number per row to global memory, by the CTA of the first columns."""


@dataclass(frozen=True)
class Evaluate(Step):
    """The last pass on the registers of a sub-tile, rounded to the types of the outputs."""


@dataclass(frozen=True)
class WriteStage(Step):
    """The sub-tile of a matrix among the outputs into its buffer in shared memory."""

    output: int = 0


@dataclass(frozen=True)
class FenceShared(Step):
    """What the threads have read and written in shared memory comes before what TMA does there after them.

    A barrier alone orders neither: TMA is another proxy, and loads may still wait behind operands of the matrix unit.
    """


@dataclass(frozen=True)
class TmaStore(Step):
    """That buffer to global memory, as one group."""

    output: int = 0


@dataclass(frozen=True)
class LaunchFinish(Step):
    """The kernel behind this one may be launched as soon as a warp of every CTA is here, or has left; it waits for the end of
    this one itself."""


@dataclass(frozen=True)
class StoreWait(Step):
    """Until no more than ``pending`` stores still read shared memory."""

    pending: int


@dataclass(frozen=True)
class BarrierSync(Step):
    """A named barrier: until all of its threads are here."""

    barrier: str


@dataclass(frozen=True)
class WarpSync(Step):
    """Until all lanes of the warp are here."""


@dataclass(frozen=True)
class BarrierArrive(Step):
    """Come to a named barrier without waiting there."""

    barrier: str


# Set-up: no part in the protocol -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SetUp(Step):
    """Views and fragments that later steps of the role use, by the name of the text that makes them."""

    name: str


@dataclass(frozen=True)
class AllocateSums(Step):
    """The first warp asks for tensor memory."""


@dataclass(frozen=True)
class FindSums(Step):
    """Meet at the barrier of tensor memory, then read where it lies."""


@dataclass(frozen=True)
class FreeSums(Step):
    """The first warp gives tensor memory back, once nobody in the CTA, or in the pair, uses it."""


@dataclass(frozen=True)
class ClusterExit(Step):
    """Until all threads of the cluster are here."""


# The whole ---------------------------------------------------------------------------------------------------------------


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
    """Which buffers of the epilogue are its own."""


@dataclass(frozen=True, kw_only=True)
class RegisterLimit:
    """Registers per thread that a warpgroup gives back (``decrease``) or asks for (``increase``)."""

    first_warp: int
    warps: int
    registers: int
    change: Literal["decrease", "increase"]


@dataclass(frozen=True, kw_only=True)
class KernelProgram:
    """``warps`` counts those that are launched; those of no role only take part in the exit."""

    plan: GemmPlan
    warps: int
    spare_warp: int
    """The first warp that has no role, launched or not."""
    pipelines: tuple[Pipeline, ...]
    barriers: tuple[NamedBarrier, ...]
    roles: tuple[Role, ...]
    host: tuple[str, ...]
    """The objects that the host makes and hands to the kernel, by the name of the text that makes them."""
    exit: tuple[Step, ...] = ()
    registers: tuple[RegisterLimit, ...] = ()

    def pipeline(self, name: str) -> Pipeline:
        return next(pipeline for pipeline in self.pipelines if pipeline.name == name)

    def role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)
