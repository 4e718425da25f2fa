"""What the warps of a second kernel do, one step after the other, all of them the same."""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.finish import loaded_early, row_walks
from ..plan.records import Finish, RowFinish
from ..plan.reductions import reductions_of


class FinishStep:
    """One step, printed by one rule of ``codegen.finish`` and executed by one of ``verify.finish``."""


@dataclass(frozen=True)
class LoadOperands(FinishStep):
    """The columns of a thread of operands of the epilogue into registers, which nothing of the product's is needed for."""


@dataclass(frozen=True)
class AwaitProduct(FinishStep):
    """Until all CTAs of the product have left and what they stored is there: the kernel is launched before that."""


@dataclass(frozen=True)
class LoadRow(FinishStep):
    """The columns of a thread into registers that keep them."""


@dataclass(frozen=True)
class ReduceColumns(FinishStep):
    """Walk number ``number`` over the columns of a thread, whose reductions are joined in each warp."""

    number: int


@dataclass(frozen=True)
class PutParts(FinishStep):
    """What each warp found in walk ``number``, into places of its own in shared memory."""

    number: int


@dataclass(frozen=True)
class CtaSync(FinishStep):
    """A barrier of the CTA: behind it everybody sees what was put before it."""


@dataclass(frozen=True)
class JoinParts(FinishStep):
    """The reductions of walk ``number``, from what all warps have put there, in every thread."""

    number: int


@dataclass(frozen=True)
class JoinTiles(FinishStep):
    """The reductions that wait for ``number`` others, from what tiles have stored, by a warp for each row."""

    number: int


@dataclass(frozen=True)
class EvaluateNumbers(FinishStep):
    """Instructions of one number per row behind ``level`` reductions."""

    level: int


@dataclass(frozen=True)
class StoreColumns(FinishStep):
    """The last walk, which stores matrices."""


@dataclass(frozen=True)
class StoreNumbers(FinishStep):
    """The outputs of one number per row."""


def finish_steps(finish: Finish) -> tuple[FinishStep, ...]:
    early = isinstance(finish, RowFinish) and loaded_early(finish)
    steps: list[FinishStep] = [*([LoadOperands()] if early else []), EvaluateNumbers(0), AwaitProduct()]
    if isinstance(finish, RowFinish) and finish.kept:
        steps.append(LoadRow())
    for number in range(len(reductions_of(finish.problem))):
        if isinstance(finish, RowFinish):
            steps += [ReduceColumns(number), PutParts(number), CtaSync(), JoinParts(number)]
        else:
            steps.append(JoinTiles(number))
        steps.append(EvaluateNumbers(number + 1))
    if isinstance(finish, RowFinish) and row_walks(finish)[-1].outputs:
        steps.append(StoreColumns())
    if finish.problem.outputs_of("column"):
        steps.append(StoreNumbers())
    return tuple(steps)
