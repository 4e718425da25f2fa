"""``verify_attention``: all checks of a kernel of attention without running it."""

from __future__ import annotations

import dataclasses
import functools

from ...plan.attention.build import counts, shared_bytes, shared_memory
from ...plan.attention.records import AttentionPlan
from ...plan.records import WARP_THREADS
from ...plan.shared import WORD_BYTES
from ...roles.attention.grammar import AttentionProgram
from ..cluster import Fault
from ..structure import MAX_BOX_BYTES, MAX_NAMED_BARRIERS
from .machine import Machine
from .rules import execute

SCHEDULES = ((0, 0), (3, 2))
"""Simulated (tiles, seed). They expose each of the faults that tests plant (test_attention_verify.py)."""


def verify_attention(program: AttentionProgram) -> None:
    """Check that the roles of ``program`` cannot deadlock, overrun or read stale data, and that they fit. Raises
    ``Fault``.

    The result is cached by everything that the protocol depends on, which excludes the tensors.
    """
    _check_memory(program.plan)
    _check_warps(program)
    _check_barriers(program)
    _simulate(dataclasses.replace(program, plan=_without_tensors(program.plan)))


def _without_tensors(plan: AttentionPlan) -> AttentionPlan:
    """Return a plan with the sizes of one tile and no names."""
    problem = plan.problem
    small = dataclasses.replace(problem, heads=(1,), queries=1, keys=1, names=("q", "k", "v"))
    return dataclasses.replace(plan, problem=small)


@functools.lru_cache(maxsize=256)
def _simulate(program: AttentionProgram) -> None:
    for tiles, seed in SCHEDULES:
        Machine(program, tiles=tiles, seed=seed).run(execute)


def _check_memory(plan: AttentionPlan) -> None:
    if shared_bytes(plan) > plan.shared_limit_bytes:
        raise Fault(f"{shared_bytes(plan)} bytes of shared memory; a CTA has {plan.shared_limit_bytes}")
    end = 0
    for allocation in shared_memory(plan):
        if allocation.offset_bytes < end or allocation.offset_bytes % allocation.alignment_bytes:
            raise Fault(f"{allocation.name} overlaps the allocation before it, or is not aligned")
        end = allocation.offset_bytes + allocation.size_bytes
    for pipeline in (counts(plan).q, counts(plan).k, counts(plan).v):
        if pipeline.transaction_bytes > MAX_BOX_BYTES or pipeline.transaction_bytes % 128:
            raise Fault(f"a stage of {pipeline.transaction_bytes} bytes")


def _check_warps(program: AttentionProgram) -> None:
    taken: set[int] = set()
    for role in program.roles:
        warps = set(range(role.first_warp, role.first_warp + role.warps))
        if taken & warps or max(warps) >= program.warps:
            raise Fault(f"role {role.name} takes warps that others have or that are not launched")
        taken |= warps
    wanted = sum(limit.registers * limit.warps for limit in program.registers) * WARP_THREADS
    if wanted > program.plan.registers_per_sm or any(limit.registers % 8 for limit in program.registers):
        raise Fault(f"warps ask for {wanted} registers; an SM has {program.plan.registers_per_sm}")
    launched = program.plan.registers_per_sm // (program.warps * WARP_THREADS) // 8 * 8
    for limit in program.registers:
        if (limit.registers > launched) != (limit.change == "increase"):
            raise Fault(f"{limit.change} to {limit.registers} registers of warps that start with {launched}")


def _check_barriers(program: AttentionProgram) -> None:
    numbers = [barrier.number for barrier in program.barriers]
    if numbers != [*range(1, 1 + len(numbers))] or len(numbers) > MAX_NAMED_BARRIERS:
        raise Fault(f"named barriers {numbers}: the printed code has numbers from 1, groups first, then turns")
    words = {each.name: each.size_bytes // WORD_BYTES for each in shared_memory(program.plan)}
    for pipeline in program.pipelines:
        if words.get(pipeline.barriers) != pipeline.counts.barrier_words:
            raise Fault(
                f"{pipeline.name} has {pipeline.counts.stages} stages and {words.get(pipeline.barriers)} barriers"
            )
