"""The steps of attention that a GEMM does not have, and the program of its roles. Pipelines, cursors, barriers and
waits are those of ``roles.grammar``."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

from ....._support.records import dataclass
from ...plan.attention.backward import BackwardPlan
from ...plan.attention.records import AttentionPlan, Part, ScorePlan
from ..grammar import NamedBarrier, Pipeline, RegisterLimit, Role, Step

Rule = TypeVar("Rule", bound=Callable[..., object])


def rule_of(rules: dict[type[Step], Rule], kind: type[Step]) -> Callable[[Rule], Rule]:
    """Return the decorator that makes a function the rule of a kind of steps."""

    def register(function: Rule) -> Rule:
        rules[kind] = function
        return function

    return register


@dataclass(frozen=True)
class WorkLoop(Step):
    """Loop over the tiles that the scheduler gives to this CTA."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class BlockLoop(Step):
    """Loop over the blocks of keys of a part of the tile, or of ``any``, from the right to the left, without its first block."""

    part: Part
    body: tuple[Step, ...]


@dataclass(frozen=True)
class SideLoop(Step):
    """Loop over the two sides of a tile with masks on both: blocks of the diagonal and the free ones after them, then those of
    the edge. Loops of its body over ``side`` and ``middle`` blocks are so printed once."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class LoadLoop(Step):
    """Loop over all blocks of keys of a tile but the first, from the right to the left."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class GroupLoop(Step):
    """Loop over the consumer groups, unrolled."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class LoadRows(Step):
    """Load 64 queries of the current group through TMA into its stage of Q."""

    cursor: str


@dataclass(frozen=True)
class LoadBlock(Step):
    """Load a block of K or V through TMA: the current one, or with ``behind`` the one that was current before."""

    operand: str
    cursor: str
    behind: bool = False


@dataclass(frozen=True)
class LoadBias(Step):
    """Load the bias of all queries of a tile and the current block's keys through TMA, 64 queries at a time."""

    cursor: str


@dataclass(frozen=True)
class ReadBias(Step):
    """Read the bias of the group's queries from the stage of ``cursor`` to registers, in the layout of the scores."""

    cursor: str


@dataclass(frozen=True)
class TransformQueries(Step):
    """Replace the queries of the group in shared memory by their formula, rounded."""


@dataclass(frozen=True)
class ScoreMma(Step):
    """Issue the MMAs of q @ k.T with the stage of ``cursor``; they overwrite the scores."""

    cursor: str


@dataclass(frozen=True)
class OutputMma(Step):
    """Issue the MMAs of weights @ v with the stage of ``cursor``; they add to the accumulator, or overwrite the product."""

    cursor: str


@dataclass(frozen=True)
class TakeTurn(Step):
    """Wait for the turn of this consumer group: one group at a time issues the MMAs of a block. The ``last`` turn, which
    no group uses, is taken by the first group."""

    last: bool = False


@dataclass(frozen=True)
class PassTurn(Step):
    """Give the turn to the next consumer group. The ``first`` turn comes from the last group."""

    first: bool = False


@dataclass(frozen=True)
class Softmax(Step):
    """Apply the formula of scores, and with ``masked`` the masks of the block, raise the maxima, and compute the weights
    and row sums in fp32. The ``first`` block of a tile sets maxima and sums. A loop over ``any`` blocks applies masks to those
    that have them."""

    masked: bool
    first: bool = False
    any: bool = False


@dataclass(frozen=True)
class Rescale(Step):
    """Multiply the accumulator by the factors that the last softmax has given."""


@dataclass(frozen=True)
class AddProduct(Step):
    """Add the product of the block before to the accumulator, in fp32."""


@dataclass(frozen=True)
class RoundWeights(Step):
    """Round the weights to the operand type, in the registers that the next ``OutputMma`` reads."""


@dataclass(frozen=True)
class ClearOutput(Step):
    """Set the accumulator to zero."""


@dataclass(frozen=True)
class JoinTotals(Step):
    """Add the row sums of the lanes that share a row."""


@dataclass(frozen=True)
class RestoreMaxima(Step):
    """Make accumulator and sums relative to the row maxima, where lazy rescaling has left them relative to others."""


@dataclass(frozen=True)
class Finish(Step):
    """Compute the formula of outputs, store numbers per query, and round output matrix number ``output`` in registers."""

    output: int = 0


@dataclass(frozen=True)
class WriteOutput(Step):
    """Store a rounded output to the group's shared memory."""

    output: int = 0


@dataclass(frozen=True)
class StoreOutput(Step):
    """Store that shared memory to global memory through TMA, as one bulk group."""

    output: int = 0


@dataclass(frozen=True)
class FirstWarp(Step):
    """Run the body in the first warp of each consumer group."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class LastSplit(Step):
    """Run the body in the group that has found the partials of all other parts of the keys in the workspace."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class AwaitPartials(Step):
    """Wait in the first warp until all parts of the tile are counted, if the CTA combines columns. The last of these CTAs resets
    the counter."""


@dataclass(frozen=True)
class CombiningSplit(Step):
    """Run the body in the CTAs that combine columns."""

    body: tuple[Step, ...]


@dataclass(frozen=True)
class StoreColumns(Step):
    """Store the combined columns from registers."""


@dataclass(frozen=True)
class CombinePartials(Step):
    """Combine the partials of all parts, in the order of the keys: maxima, sums and accumulators."""


@dataclass(frozen=True)
class GroupSync(Step):
    """Synchronize the 128 threads of a consumer group."""


@dataclass(frozen=True)
class RowsSync(Step):
    """Synchronize the consumer groups that share queries: after these were computed, and before the output takes their
    shared memory."""


@dataclass(frozen=True)
class TakeTicket(Step):
    """Draw the next tile from the counter in global memory; the answer is awaited in ``HandOut``."""


@dataclass(frozen=True)
class HandOut(Step):
    """Make the drawn tile the next one, and tell the other roles through the mailbox. Without one, advance."""


@dataclass(frozen=True)
class NextTile(Step):
    """Read the next tile from the mailbox. Without one, advance."""


# Gradients -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RepeatLoop(Step):
    """Loop over the repetitions of a block from number ``begin`` on: of the tile's ``first`` one, or of the current one.

    Tiles that run at the same time so read the same blocks of all heads, though some have more blocks than others.
    """

    body: tuple[Step, ...]
    first: bool = False
    begin: int = 0


@dataclass(frozen=True)
class NextPass(Step):
    """Begin another pass over the blocks of a tile; ``loads`` in the role that loads them."""

    loads: bool = False


@dataclass(frozen=True)
class ProductMma(Step):
    """Issue the MMAs of product number ``product`` of the tile's rows with the stage of ``cursor``; they overwrite it. The ``first``
    block is that of a tile."""

    product: int
    cursor: str
    first: bool = False


@dataclass(frozen=True)
class Weights(Step):
    """Compute what the first product suffices for: held values, and left operands, rounded. With ``masked``, left operands
    are 0 out of the band. The ``first`` block is that of a tile. The stage of ``cursor`` has sources per streamed row."""

    masked: bool
    cursor: str
    first: bool = False
    only: int | None = None
    """The one gradient of the pass; None for all."""


@dataclass(frozen=True)
class Differences(Step):
    """Compute the left operands that both products are needed for, as ``Weights`` does."""

    masked: bool
    cursor: str
    first: bool = False
    only: int | None = None


@dataclass(frozen=True)
class GradientMma(Step):
    """Issue the MMAs of gradient number ``gradient`` with the stage of ``cursor``; with ``first``, they begin its sum."""

    gradient: int
    cursor: str
    first: bool = False


@dataclass(frozen=True)
class AllRows(Step):
    """Wait for the tile's rows of all consumer groups, which each of them multiplies."""


@dataclass(frozen=True)
class ClearRows(Step):
    """Overwrite with zeros those of the warp's rows that have no streamed rows, in what the gradient of these multiplies."""


@dataclass(frozen=True)
class WriteLeft(Step):
    """Store the left operand of the current block to the group's part of a stage of the exchange.

    All groups read it no more: they have multiplied what it holds before they publish the former block, which is awaited.
    """


@dataclass(frozen=True)
class PublishLeft(Step):
    """Tell all groups that the warp's part of the stage is written. The block, the ``first`` one of a tile or another,
    becomes the former one."""

    first: bool = False


@dataclass(frozen=True)
class WaitExchange(Step):
    """Wait until all groups have written their left operands of the former block."""


@dataclass(frozen=True)
class SumMma(Step):
    """Issue the MMAs of the group's columns of the former block's gradient; they overwrite the second product."""


@dataclass(frozen=True)
class WriteSum(Step):
    """Compute the formula of the former block's gradient, and store it to the warp's part of shared memory."""


@dataclass(frozen=True)
class AddSum(Step):
    """Add that shared memory to global memory through TMA, as one bulk group."""


@dataclass(frozen=True)
class AllGroupsSync(Step):
    """Synchronize all consumer groups."""


# Programs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ScoreProgram:
    """A kernel for a matrix unit. ``warps`` counts the launched warps."""

    unit: ClassVar[str] = "wgmma"
    plan: ScorePlan
    warps: int
    pipelines: tuple[Pipeline, ...]
    barriers: tuple[NamedBarrier, ...]
    roles: tuple[Role, ...]
    registers: tuple[RegisterLimit, ...]

    def role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)


@dataclass(frozen=True, kw_only=True)
class AttentionProgram(ScoreProgram):
    """A kernel of attention."""

    plan: AttentionPlan


@dataclass(frozen=True, kw_only=True)
class BackwardProgram(ScoreProgram):
    """A kernel of gradients of attention."""

    plan: BackwardPlan
