"""Prediction of the registers, bytes, blocks and microseconds of a kernel with given tile sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from ...._compiler.facts.records import KernelFacts
from ...._support.records import dataclass, replace
from ....autotuner.proposal import Predicted
from ....hardware import RESERVED_SHARED_BYTES, Target
from .known import of_a_run
from .matrix import tensor_memory_columns
from .registers import ahead_registers, pressure, register_limit
from .shared import combined_bytes, descriptor_bytes, prefetched_bytes, shared_bytes, stored_behind_loops
from .traffic import Work, time_us, work

#: Predicted shared memory is at most this times the real bytes, plus this many (checked by test_predict.py).
_SHARED_FACTOR, _SHARED_BYTES = 1.10, 2048
#: Estimated slowdown of a kernel that certainly spills.
_SPILL_SLOWDOWN = 2.0


def predict(
    facts: KernelFacts,
    sizes: Mapping[int, int],
    num_warps: int,
    num_stages: int,
    target: Target,
    *,
    descriptor_slots: frozenset[int] = frozenset(),
    once: bool = False,
    prefetch_stages: int = 1,
    unrolled: int = 1,
    ahead: int = 0,
    fused: frozenset[int] = frozenset(),
    persistent: bool = False,
    parts: int = 1,
    flattened: bool = False,
) -> Predicted:
    """Return the prediction for ``sizes``, the elements of every block: tiles, fixed ones, and whole dimensions
    (padded, or a chunk).

    ``prefetch_stages`` are those of a loop's own option, which Triton also gives loops without a dot. Each stage loads
    for ``unrolled`` steps, as do those of ``num_stages``. Loops over single indices prefetch ``ahead`` steps.
    ``descriptor_slots`` are the memory slots with tensor descriptors. ``once``: a program computes a single tile, so
    stores after its loops may reuse the operands' memory. ``fused`` are the grid loops whose tile loop is flattened
    with the loops inside. ``persistent`` programs compute several tiles. A split reduction has ``parts``. The only grid
    loop may be ``flattened``. A repeated call returns the same object, because heuristics
    and the legalizer look at one launch several times.
    """
    return _predict(
        facts,
        tuple(sorted(sizes.items())),
        num_warps,
        num_stages,
        target,
        descriptor_slots,
        once,
        prefetch_stages,
        unrolled,
        ahead,
        fused,
        persistent,
        parts,
        flattened,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Unstaged:
    """The part of a prediction that depends on no stages and no shared memory; fields as in ``Predicted``."""

    registers_per_thread: int
    spill_risk: float
    time_us: float


def unstaged(facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, target: Target) -> Unstaged:
    """Return the registers, risk of spills and time of ``predict`` for one stage, in half the time."""
    registers, _, risk, done = _unstaged(facts, tuple(sorted(sizes.items())), num_warps, target)
    return Unstaged(registers_per_thread=registers, spill_risk=risk, time_us=_slowed(done, risk, target))


def _slowed(done: Work, risk: float, target: Target) -> float:
    """Return the microseconds with the slowdown by spills."""
    return time_us(done, target) * (1 + _SPILL_SLOWDOWN * risk)


@functools.lru_cache(maxsize=256)
def _predict(
    facts: KernelFacts,
    sorted_sizes: tuple[tuple[int, int], ...],
    num_warps: int,
    num_stages: int,
    target: Target,
    descriptor_slots: frozenset[int],
    once: bool,
    prefetch_stages: int,
    unrolled: int,
    ahead: int,
    fused: frozenset[int],
    persistent: bool,
    parts: int,
    flattened: bool,
) -> Predicted:
    sizes = dict(sorted_sizes)
    registers, least, risk, done = _unstaged(facts, sorted_sizes, num_warps, target)
    registers += ahead * ahead_registers(facts, sizes, num_warps, target) if ahead else 0
    last = stored_behind_loops(facts) & descriptor_slots if once else frozenset()
    ran = of_a_run(facts, sizes) if flattened else (facts, sizes)
    shared = shared_bytes(*ran, num_warps, num_stages, target, unrolled, fused, descriptor_slots, persistent)
    if descriptor_slots:
        shared += unrolled * descriptor_bytes(facts, sizes, descriptor_slots - last, num_stages)
        shared = max(shared, descriptor_bytes(facts, sizes, last, num_stages))
    shared = max(shared, combined_bytes(facts, sizes, num_warps, prefetch_stages, target, parts))
    shared += unrolled * prefetched_bytes(facts, sizes, prefetch_stages, target, persistent)
    columns = tensor_memory_columns(facts, sizes, num_warps, target) if target.has("tcgen05") else 0
    limit = register_limit(num_warps, target)
    if ahead and registers > limit:
        risk = 1.0
    occupancy = occupancy_of(min(registers, limit), shared, columns, num_warps, target)
    waves = done.blocks / (target.num_sms * max(1, occupancy))
    reason = _why_not(facts, sizes, num_warps, shared, columns, target)
    return Predicted(
        registers_per_thread=registers,
        least_registers=least,
        register_limit=limit,
        spill_risk=risk,
        shared_bytes=shared,
        least_shared_bytes=max(0, math.ceil((shared - _SHARED_BYTES) / _SHARED_FACTOR)),
        tensor_memory_columns=columns,
        waves=waves,
        occupancy_blocks=occupancy,
        fits=not reason,
        bytes_moved=done.bytes_moved,
        flops=done.flops,
        time_us=_slowed(done, risk, target),
        reason=reason,
    )


def capped(predicted: Predicted, registers: int, num_warps: int, target: Target) -> Predicted:
    """Return the prediction of a launch whose threads have so many ``registers`` at most: more programs may run at once,
    and what needs more registers spills."""
    if registers >= predicted.register_limit:
        return predicted
    used = min(registers, predicted.registers_per_thread)
    shared, columns = predicted.shared_bytes, predicted.tensor_memory_columns
    occupancy = occupancy_of(used, shared, columns, num_warps, target)
    return replace(
        predicted,
        register_limit=registers,
        spill_risk=1.0 if predicted.least_registers > registers else predicted.spill_risk,
        occupancy_blocks=occupancy,
        waves=predicted.waves * max(1, predicted.occupancy_blocks) / max(1, occupancy),
    )


@functools.lru_cache(maxsize=256)
def _unstaged(
    facts: KernelFacts, sorted_sizes: tuple[tuple[int, int], ...], num_warps: int, target: Target
) -> tuple[int, int, float, Work]:
    """Return registers, spill risk and work, which do not depend on the number of stages."""
    sizes = dict(sorted_sizes)
    return *pressure(facts, sizes, num_warps, target), work(facts, sizes, num_warps, target)


def occupancy_of(registers: int, shared: int, columns: int, num_warps: int, target: Target) -> int:
    """Return the blocks that one SM runs at once; 0 when not even one fits."""
    rounded = -(-max(1, registers) // target.register_granularity) * target.register_granularity
    reserved = RESERVED_SHARED_BYTES if target.kind == "cuda" else 0
    limits = [
        target.registers_per_sm // (rounded * num_warps * target.warp_size),
        target.max_warps_per_sm // num_warps,
        target.max_blocks_per_sm,
    ]
    if shared + reserved:
        limits.append(target.smem_per_sm_bytes // (shared + reserved))
    if columns:
        limits.append(target.tensor_memory_columns // columns)
    return min(limits)


def _why_not(
    facts: KernelFacts, sizes: Mapping[int, int], num_warps: int, shared: int, columns: int, target: Target
) -> str:
    """Return the resource that the launch exceeds; empty if it fits."""
    if shared > target.smem_per_block_bytes:
        return f"{shared} bytes of shared memory are needed, {target} has {target.smem_per_block_bytes}"
    if columns > target.tensor_memory_columns:
        return f"{columns} columns of tensor memory are needed, {target} has {target.tensor_memory_columns}"
    threads = num_warps * target.warp_size
    if threads > target.max_threads_per_block:
        return f"{threads} threads per block are needed, {target} has {target.max_threads_per_block}"
    for axes in _live_axes(facts):
        numel = math.prod([sizes[axis] for axis in axes])
        if numel > target.max_tensor_numel:
            return f"a tile of {numel} elements exceeds the limit of {target.max_tensor_numel} elements"
    return ""


@functools.lru_cache(maxsize=64)
def _live_axes(facts: KernelFacts) -> tuple[tuple[int, ...], ...]:
    """Return the axes of all live tiles, each once."""
    return tuple(dict.fromkeys(axes for tiles in facts.live_tiles for axes, _ in tiles))
