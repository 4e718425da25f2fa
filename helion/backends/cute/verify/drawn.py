"""Rules of bits that are drawn before the epilogue: in order, each once, and all before the sub-tiles."""

from __future__ import annotations

from ..plan.passes import drawn, draws
from ..roles.elements.drawn import Draw, StartDraws
from ..roles.grammar import Evaluate, KernelProgram, KLoop
from ..roles.partial import TermLoop
from .cluster import Cluster, rule
from .state import Fault, Warp
from .structure import steps


@rule(StartDraws)
def _(cluster: Cluster, step: StartDraws, warp: Warp) -> None:
    warp.drawn = warp.tile, step.count


@rule(Draw)
def _(cluster: Cluster, step: Draw, warp: Warp) -> None:
    number = step.after + (warp.k_tile - 1) * step.count
    if warp.drawn != (warp.tile, number):
        raise Fault(f"bits of tile {warp.tile} from number {number} on are drawn after those of {warp.drawn}")
    warp.drawn = warp.tile, number + step.count


def check_drawn(cluster: Cluster, warp: Warp) -> None:
    """Check that the bits are those of the tile. Raises ``Fault``."""
    if drawn(cluster.plan) and (warp.drawn is None or warp.drawn[0] != warp.tile):
        raise Fault(f"the epilogue of tile {warp.tile} has the bits of {warp.drawn}")


def check_draws(program: KernelProgram) -> None:
    """Check that each storing role draws all bits of a tile, in K tiles that it has. Raises ``Fault``.

    Simulations have other numbers of K tiles.
    """
    plan = program.plan
    wanted = draws(plan) if drawn(plan) else 0
    for role in program.roles:
        found = list(steps(role.program))
        if not any(isinstance(step, Evaluate) for step in found):
            continue
        count = sum(step.count for step in found if isinstance(step, StartDraws))
        for loop in (step for step in found if isinstance(step, KLoop)):
            inner = [step for step in loop.body if isinstance(step, Draw)]
            stop = loop.stop if isinstance(loop, TermLoop) else None
            if inner and (stop is None or stop > plan.k_tiles):
                raise Fault(f"{role.name} draws bits in K tiles up to {stop}, past that of {plan.k_tiles}")
            count += sum(step.count * ((stop or 0) - loop.first) for step in inner)
        if count != wanted:
            raise Fault(f"{role.name} draws {count} bits of a tile; a thread has {wanted} elements")
