"""Lines of a printed plan that all shapes of programs share."""

from __future__ import annotations

from collections.abc import Sequence

from ..roles.grammar import Pipeline, RegisterLimit, Role
from .shared import Allocation


def role_lines(warps: int, roles: Sequence[Role], registers: Sequence[RegisterLimit]) -> list[str]:
    """Describe the warps of roles and their registers."""
    lines = [f"roles, {warps} warps:"]
    for role in roles:
        last = role.first_warp + role.warps - 1
        named = f"warp {last}" if role.warps == 1 else f"warps {role.first_warp}-{last}"
        lines.append(f"  {role.name}: {named}")
    for limit in registers:
        last = limit.first_warp + limit.warps - 1
        lines.append(f"  registers of warps {limit.first_warp}-{last}: {limit.registers}")
    return lines


def pipeline_lines(pipelines: Sequence[Pipeline]) -> list[str]:
    """Describe the pipelines: their stages, arrivals and bytes."""
    lines = ["pipelines:"]
    for pipeline in pipelines:
        numbers = pipeline.counts
        moved = f", {numbers.transaction_bytes} bytes a stage" if numbers.transaction_bytes else ""
        lines.append(
            f"  {pipeline.name} ({pipeline.kind}): {numbers.stages} stages, {numbers.full_arrivals} arrivals to fill,"
            f" {numbers.empty_arrivals} to empty{moved}"
        )
    return lines


def memory_lines(allocations: Sequence[Allocation], limit_bytes: int) -> list[str]:
    """Describe the shared memory of one CTA."""
    last = allocations[-1]
    lines = [f"shared memory: {last.offset_bytes + last.size_bytes} of {limit_bytes} bytes"]
    return lines + [f"  {each.name}: {each.size_bytes} bytes at {each.offset_bytes}" for each in allocations]
