"""Messages to and from peers: steps of a tile before its matrices are loaded, and after it is stored.

Signals follow all stores of the tile. Those of TMA have to be complete in memory, not only read from shared memory.
A warp knows that of its own stores, and of those of others after a barrier.
"""

from __future__ import annotations

import dataclasses

from ...._support.records import dataclass
from .edits import edit_role
from .grammar import BarrierSync, Gate, KernelProgram, Step, TileLoop


class MessageStep(Step):
    """A step of the messages of a tile."""


@dataclass(frozen=True)
class AwaitMessages(MessageStep):
    """Wait for the messages of peers that the tile needs, and order later loads of TMA after what the peers did."""


@dataclass(frozen=True)
class StoresComplete(MessageStep):
    """Wait until all stores that the warp has issued are complete in memory."""


@dataclass(frozen=True)
class SignalPeers(MessageStep):
    """Release at system scope: signal to peers that the tile is complete."""


def with_messages(program: KernelProgram) -> KernelProgram:
    """Let the loads of operands, or of residuals, wait for messages, and signal after the last store of a tile."""
    epilogue = program.plan.problem.epilogue
    if epilogue.waits:
        program = edit_role(program, "load" if epilogue.waits[0].before == "operands" else "load_residual", _begin)
    return edit_role(program, "store", _end) if epilogue.signals else program


def _begin(step: Step) -> tuple[Step, ...]:
    return (dataclasses.replace(step, body=(AwaitMessages(), *step.body)),) if isinstance(step, TileLoop) else (step,)


def _end(step: Step) -> tuple[Step, ...]:
    if not isinstance(step, TileLoop):
        return (step,)
    signal = (StoresComplete(), BarrierSync("epilogue"), Gate("first_warp", (SignalPeers(),)))
    return (dataclasses.replace(step, body=(*step.body, *signal)),)
