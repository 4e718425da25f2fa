"""``verify_attention`` and ``verify_backward``: all checks of a kernel of attention, or of its gradients, without running it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from ...plan.attention.backward import backward_memory
from ...plan.attention.build import shared_memory
from ...plan.attention.umma import umma_memory
from ...plan.attention.umma_backward import umma_backward_memory
from ...plan.records import TMA_ALIGNMENT_BYTES, WARP_THREADS
from ...plan.shared import WORD_BYTES, Allocation
from ...roles.attention.grammar import AttentionProgram, BackwardProgram, ScoreProgram
from ...roles.attention.umma import UmmaProgram
from ...roles.attention.umma_backward import UmmaBackwardProgram
from ..state import Fault
from ..structure import MAX_BOX_BYTES, MAX_NAMED_BARRIERS, check_register_pool
from . import backward, split_keys, umma_backward
from .machine import Machine
from .rules import RULES, execute
from .umma import check_tensor_memory, simulate

RULES.update(backward.RULES)
RULES.update(split_keys.RULES)

SCHEDULES = ((0, 0), (3, 2))
"""Simulated (tiles, seed). They expose each of the faults that tests plant (test_attention_verify.py)."""
OF_EXCHANGES = ((3, 5),)
"""Those of programs whose groups exchange operands besides (test_backward_verify.py)."""
MOST_SPLITS = 3
"""Simulated parts of the keys of a tile, of which more are alike."""
OF_SHARED_ROWS = ((3, 0),)
"""Those of programs whose groups share queries besides (test_latent.py)."""
OF_BUFFERS = ((2, 5),)
"""Those of programs that load the queries of two tiles besides (test_attention_verify.py)."""
OF_BIASES = ((3, 0),)
"""Those of programs that load tiles of a bias besides (test_attention_verify.py)."""


def verify_attention(program: AttentionProgram | UmmaProgram) -> None:
    """Check that the roles of ``program`` cannot deadlock, overrun or read stale data, and that they fit. Raises
    ``Fault``.

    The result is cached by everything that the protocol depends on, which excludes the tensors.
    """
    small = dataclasses.replace(program.plan.problem, heads=(1,), queries=1, keys=1, names=("q", "k", "v"))
    plan = dataclasses.replace(program.plan, problem=small, splits=min(program.plan.splits, MOST_SPLITS))
    any_program: ScoreProgram = program
    if isinstance(program, UmmaProgram):
        _check_structure(program, umma_memory(program.plan))
        check_tensor_memory(program.plan)
    else:
        _check_structure(program, shared_memory(program.plan))
    simulate_schedules(dataclasses.replace(any_program, plan=plan))


def verify_backward(program: BackwardProgram | UmmaBackwardProgram) -> None:
    """Check the same of gradients of attention. Raises ``Fault``."""
    plan = dataclasses.replace(
        program.plan, problem=dataclasses.replace(program.plan.problem, heads=(1,), queries=1, keys=1, names=())
    )
    any_program: ScoreProgram = program
    if isinstance(program, UmmaBackwardProgram):
        _check_structure(program, umma_backward_memory(program.plan))
        check_tensor_memory(program.plan)
    else:
        _check_structure(program, backward_memory(program.plan))
    simulate_schedules(dataclasses.replace(any_program, plan=plan))


def _check_structure(program: ScoreProgram, memory: Sequence[Allocation]) -> None:
    _check_memory(program, memory)
    _check_warps(program)
    _check_barriers(program, memory)


@functools.lru_cache(maxsize=256)
def simulate_schedules(program: ScoreProgram) -> None:
    if isinstance(program, UmmaProgram):
        simulate(program)
        return
    if isinstance(program, UmmaBackwardProgram):
        umma_backward.simulate(program)
        return
    exchanges = any(pipeline.kind == "exchange" for pipeline in program.pipelines)
    more = (*(OF_EXCHANGES if exchanges else ()), *(OF_SHARED_ROWS if program.plan.column_groups > 1 else ()))
    more += OF_BUFFERS if program.plan.row_buffers > 1 else ()
    more += OF_BIASES if any(pipeline.name == "bias" for pipeline in program.pipelines) else ()
    for tiles, seed in (*SCHEDULES, *more):
        Machine(program, tiles=tiles, seed=seed).run(execute)


def _check_memory(program: ScoreProgram, memory: Sequence[Allocation]) -> None:
    end, limit = 0, program.plan.shared_limit_bytes
    for allocation in memory:
        if allocation.offset_bytes < end or allocation.offset_bytes % allocation.alignment_bytes:
            raise Fault(f"{allocation.name} overlaps the allocation before it, or is not aligned")
        end = allocation.offset_bytes + allocation.size_bytes
    if end > limit:
        raise Fault(f"{end} bytes of shared memory; a CTA has {limit}")
    for pipeline in program.pipelines:
        if pipeline.counts.transaction_bytes > MAX_BOX_BYTES or pipeline.counts.transaction_bytes % TMA_ALIGNMENT_BYTES:
            raise Fault(f"a stage of {pipeline.counts.transaction_bytes} bytes")


def _check_warps(program: ScoreProgram) -> None:
    taken: set[int] = set()
    for role in program.roles:
        warps = set(range(role.first_warp, role.first_warp + role.warps))
        if taken & warps or max(warps) >= program.warps:
            raise Fault(f"role {role.name} takes warps that others have or that are not launched")
        taken |= warps
    launched = program.plan.registers_per_sm // (program.warps * WARP_THREADS) // 8 * 8
    check_register_pool(program.registers, program.warps, launched)
    for limit in program.registers:
        if (limit.registers > launched) != (limit.change == "increase"):
            raise Fault(f"{limit.change} to {limit.registers} registers of warps that start with {launched}")


def _check_barriers(program: ScoreProgram, memory: Sequence[Allocation]) -> None:
    numbers = [barrier.number for barrier in program.barriers]
    if numbers != [*range(1, 1 + len(numbers))] or len(numbers) > MAX_NAMED_BARRIERS:
        raise Fault(f"named barriers {numbers}: the printed code has numbers from 1, groups first, then turns")
    words = {each.name: each.size_bytes // WORD_BYTES for each in memory}
    for pipeline in program.pipelines:
        if words.get(pipeline.barriers) != pipeline.counts.barrier_words:
            raise Fault(
                f"{pipeline.name} has {pipeline.counts.stages} stages and {words.get(pipeline.barriers)} barriers"
            )
