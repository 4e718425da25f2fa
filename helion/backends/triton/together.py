"""One launch for the grid loops before and after a barrier (config key ``cooperative_launch``).

A kernel per phase becomes a function, and one cooperative kernel calls them in order. Its programs are persistent and
all resident, so that each can wait for all others between two phases.
"""

from __future__ import annotations

from ..._compiler.decisions import Decisions
from ..._compiler.ir.effects import meets_other_gpus
from ..._compiler.ir.grammar import Program
from ..._compiler.rewrites.unfuse_matmul import matmul_tile
from ...hardware import Target
from ...settings import Settings

TOGETHER = "cooperative_launch"


def why_apart(program: Program, target: Target, settings: Settings) -> str:
    """Return the reason why a program's grid loops cannot have one launch, or ""."""
    if target.kind != "cuda":
        return f"cooperative launches are CUDA's, and the target is {target}"
    if settings.checked:
        return "a checked kernel has a launch for each phase"
    phases = {(root.launch, root.phase) for root in program.roots}
    if len(phases) == len({launch for launch, _ in phases}):
        return "the kernel has no grid loops on both sides of a barrier"
    if meets_other_gpus(program):
        return "programs wait for other GPUs, which may not have begun"
    return ""


def are_together(decisions: Decisions) -> bool:
    """Return whether a config has one launch for the phases between two parts of the host code."""
    return bool(decisions.values.get(TOGETHER)) and matmul_tile(decisions) is None
