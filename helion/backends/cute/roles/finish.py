"""The steps of the second kernel, which all its warps run in order."""

from __future__ import annotations

from ...._support.records import dataclass
from ..plan.finish import loaded_early, row_walks
from ..plan.records import Finish, RowFinish
from ..plan.reductions import reductions_of


class FinishStep:
    """One step, printed by one rule of ``codegen.finish`` and executed by one of ``verify.finish``."""


@dataclass(frozen=True)
class LoadOperands(FinishStep):
    """Load a thread's columns of epilogue operands into registers; they do not depend on the matmul."""


@dataclass(frozen=True)
class AwaitProduct(FinishStep):
    """Wait until all CTAs of the matmul have exited and their stores are visible: the kernel is launched earlier."""


@dataclass(frozen=True)
class LoadRow(FinishStep):
    """Load a thread's columns of the row into registers that keep them."""


@dataclass(frozen=True)
class ReduceColumns(FinishStep):
    """Reduce a thread's columns in pass ``number``, then reduce across the lanes of each warp."""

    number: int


@dataclass(frozen=True)
class PutParts(FinishStep):
    """Store each warp's result of pass ``number`` into its own slots in shared memory."""

    number: int


@dataclass(frozen=True)
class CtaSync(FinishStep):
    """Synchronize the CTA: all threads see what was stored before the barrier."""


@dataclass(frozen=True)
class JoinParts(FinishStep):
    """Combine the warps' results of pass ``number`` in every thread."""

    number: int


@dataclass(frozen=True)
class JoinTiles(FinishStep):
    """Combine the tiles' results of the reductions that depend on ``number`` others, with one warp per row."""

    number: int


@dataclass(frozen=True)
class EvaluateNumbers(FinishStep):
    """Evaluate the per-row instructions after ``level`` reductions."""

    level: int


@dataclass(frozen=True)
class StoreColumns(FinishStep):
    """Run the last pass, which stores matrices."""


@dataclass(frozen=True)
class StoreNumbers(FinishStep):
    """Store the outputs of one number per row."""


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
