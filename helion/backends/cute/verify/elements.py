"""Elements of copied operands in a copying warp: from global memory to a stage in shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from ...._support.records import dataclass, field
from ..roles.grammar import Gate, KernelProgram, Step


@dataclass
class Elements:
    """The copies of one warp, by K tile (tile, K tile).

    ``unfenced`` and ``fenced`` are its writes since it filled a stage last: stage, operand and K tile.
    """

    loaded: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By operand: the K tile whose sources are loaded into registers."""
    read: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By operand: the K tile of the raw tile in registers."""
    converted: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    """By half: the K tile whose fragments of A are in registers."""
    multiplied: list[int] = field(default_factory=list)
    """Halves whose MMAs it has issued, a group of each."""
    unfenced: list[tuple[int, str, tuple[int, int]]] = field(default_factory=list)
    fenced: list[tuple[int, str, tuple[int, int]]] = field(default_factory=list)
    started: list[tuple[int, str, tuple[int, int]]] = field(default_factory=list)
    """Copies by cp.async since it last arrived after them."""
    unordered: set[int] = field(default_factory=set)
    """Stages that a consumer has waited for, and whose copies no fence orders yet."""
    moved: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By stage: the K tile whose scales are in tensor memory."""
    synced: bool = True
    """False if the lanes have not synchronized since the last writes and the fence after them."""

    def fence(self) -> None:
        """Order all writes before later reads of the matrix unit."""
        self.fenced += self.unfenced
        self.unfenced = []

    def sync(self) -> None:
        """Synchronize the lanes, whose fences have to be before."""
        self.synced = not self.unfenced


@dataclass
class Slices:
    """The K tiles of a warp that multiplies K tiles of its own."""

    passed: int = 0
    """K tiles of the tiles so far, of all warps."""
    columns: tuple[int, int] | None = None
    """The K tile whose columns of B are in registers."""
    stored: list[tuple[int, int]] | None = None
    """The K tiles of the sums that it has stored since its last barrier."""


SCALES = "scales"
"""The name of the scales of a stage that the matrix unit multiplies by, which one warp copies."""


def copied_by(operand: str, warp: int) -> str:
    """Return the name of the part of an operand that a warp copies."""
    return f"{operand} of warp {warp}"


def parts_of(program: KernelProgram, operand: str) -> list[str]:
    """Return the parts of an operand in a stage: that of TMA, or one of each warp that copies it; none in registers."""
    if program.plan.problem.copy_of(operand) is None:
        return [operand]
    if program.plan.converts:
        return []
    return [copied_by(operand, warp) for warp in range(program.role("copy").warps // turns_of(program))]


def turns_of(program: KernelProgram) -> int:
    """Return the groups of copying warps that take turns, or the warps that multiply K tiles of their own; a smaller kernel
    has as many."""
    if program.plan.sliced:
        return program.role("store").warps
    copies = (role.program for role in program.roles if role.name == "copy")
    return 2 if any(_takes_turns(steps) for steps in copies) else 1


def _takes_turns(steps: Sequence[Step]) -> bool:
    return any(
        (isinstance(step, Gate) and step.who == "own_turn") or _takes_turns(getattr(step, "body", ())) for step in steps
    )
