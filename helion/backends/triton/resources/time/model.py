"""The time of a launch: units that work in parallel, and the dependent chain of one program.

Configs of nearly equal time are ranked badly, others well (measurement ``ranked_spreads``). Some terms rank no better
on kernels and GPUs that the parameters were not fitted to (measurement ``tried_terms``). Counts of the binary explain few
of the errors within a kernel's configs (measurement ``assembled_terms``). With lines counted for matmuls, defaults
that depend on margins between kinds of launches get worse (measurement ``matmul_counts``). Prefetched loads of a matmul's
loop are in flight during the steps before, over one port of each SM (measurement ``staged_loops``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .....hardware import REGISTER_BYTES, WARP_THREADS, Target
from .parameters import Parameters
from .record import Demand

#: A number, or an array with one element per demand.
Value = Any

#: Schedulers of an SM; a warp belongs to one scheduler.
_SCHEDULERS = 4
#: Bytes per cycle of an SM's shared memory.
_SHARED_BYTES_PER_CYCLE = 128
#: Bytes per cycle from the L2 cache to one SM.
_PORT_BYTES_PER_CYCLE = 64
#: Part of the exchanges between warps that loads wait for (measurement ``exchanged_first``).
_EXCHANGED_FIRST = 0.5
#: Least registers per thread of a launch.
_LEAST_REGISTERS = 16
#: Warps that reach the matrix units of all schedulers.
_WARPS_FOR_ALL_UNITS = 4
#: Errors of predicted registers: results are the mean over these factors, the middle one counted twice.
_REGISTER_SCALES = 0.85, 1.0, 1.15
#: Fraction of the L2 cache in which spilled registers in flight stay.
_SPILLS_KEPT = 0.25
#: One SM in this many can saturate memory.
_SMS_TO_SATURATE = 2.0
#: Fraction of a warp's own instructions in an iteration that others do not hide while it waits for loads.
_DRIFTED = 0.5
#: Bytes of an instruction, and of the code that an SM's cache holds; more by the second number, and it holds none. Then
#: bytes of a cycle beyond it (measurement ``scanned_rows``).
_INSTRUCTION_BYTES, _CODE_CACHED, _CODE_LOST, _CODE_BYTES_PER_CYCLE = 16, 57344, 2.0, 4.5
#: Excess of registers at which ptxas begins to leave most values in memory, and the range until it leaves all.
_ABANDONED = 1.1, 0.9
#: Above the limit by one over this, an accumulator is stored and loaded as a whole.
_ALL_SPILLED = 10.0
#: Exponent of the norm that joins the units of one SM.
_UNITS = 4.0
#: Exponent of the norm for demands that hide each other almost completely.
_ABRUPT = 12.0


class Parts(NamedTuple):
    """Microseconds of one root's launch by unit; they overlap, so their sum is more than ``total``."""

    memory: Value
    cache: Value
    instructions: Value
    matrix: Value
    shared: Value
    programs: Value
    latency: Value
    atomics: Value
    """Atomics that meet in one line of the cache."""
    spills: Value
    """Part of ``cache``."""
    total: Value


class Maths(NamedTuple):
    """The functions of the formula, for numbers or from numpy, which uses the same names."""

    maximum: Callable[[Value, Value], Value]
    minimum: Callable[[Value, Value], Value]
    ceil: Callable[[Value], Value]
    floor: Callable[[Value], Value]
    log2: Callable[[Value], Value]
    where: Callable[[Value, Value, Value], Value]


#: Ten times as fast as numpy for one demand.
NUMBERS = Maths(
    maximum=max,
    minimum=min,
    ceil=math.ceil,
    floor=math.floor,
    log2=math.log2,
    where=lambda condition, yes, no: yes if condition else no,
)


def parts(demand: Demand, parameters: Parameters, target: Target, maths: Any = NUMBERS) -> Parts:
    """Return the times of one root; with arrays in ``demand`` and numpy as ``maths``, of many."""
    return _Formula(demand, parameters, target, maths).parts()


def issue_rate(target: Target) -> float:
    """Return the warp instructions per microsecond of an SM, by its rate of fused multiply-adds."""
    return target.fp32_tflops * 1e6 / 2 / WARP_THREADS / target.num_sms


class _Formula:
    def __init__(self, d: Demand, p: Parameters, target: Target, maths: Any) -> None:
        self.d, self.p, self.target, self.m = d, p, target, maths
        self.issue = issue_rate(target)
        self.clock = self.issue / _SCHEDULERS
        self.bandwidth = target.bandwidth_gb_per_s * 1e3 * p.memory_share
        self.per_sm = d.programs / target.num_sms
        self.resident = self._resident()
        self.at_once = self.m.minimum(self.resident, self.m.maximum(1.0, self.m.ceil(self.per_sm)))
        self.issued, self.matrix_us, self.begun = self._issued(), self._matrix_us(), self._begun()
        self.asked = d.lines * p.line_cycles / self.clock

    def parts(self) -> Parts:
        d, p = self.d, self.p
        spilled = self._spilled()
        memory = self._memory_bytes(spilled) * d.programs / self._reachable() * self._crowding()
        cache = self._cache_bytes(spilled) * d.programs / (self.bandwidth * p.cache_speedup)
        cache = cache / self.m.minimum(1.0, self.per_sm)  # an SM reads it over a port of its own
        instructions = self.issued / self.issue * self.per_sm
        matrix = self.matrix_us * self.per_sm
        moved = d.operand_bytes * p.operand_share + d.conflicting_bytes + d.exchanged_bytes + d.computed_bytes
        shared = moved / (_SHARED_BYTES_PER_CYCLE * self.clock) * self.per_sm
        atomics = (d.line_atomics * p.line_atomic_us + d.lane_atomics * p.lane_atomic_us) * d.programs
        programs = (p.program_us + p.warp_us * d.warps) * self.per_sm * self.begun
        chain = self._chain() + spilled * p.spill_us
        rounds = self.per_sm / self.at_once
        fetched = self._fetched() * self.per_sm
        units = self._norm((instructions, matrix, shared, self.asked * self.per_sm, fetched), _UNITS)
        waits = self.m.maximum(0.0, chain * self.per_sm - units) / self.at_once
        # no SM has a part of a program
        units = units * (1 + p.uneven * (self.m.ceil(self.per_sm) / self.per_sm - 1))
        programs_overlap = self.m.minimum(_ABRUPT, 1 + p.chained * (self.at_once - 1))
        on_sm = self._norm((units, waits), programs_overlap)
        devices_overlap = self.m.minimum(p.sharp, p.lone + p.joined * (self.at_once - 1))
        # loads wait for exchanges between warps, since shared memory and the L1 cache have one port
        exchanged = d.exchanged_bytes / (_SHARED_BYTES_PER_CYCLE * self.clock) * self.per_sm * _EXCHANGED_FIRST
        total = self._norm((memory + exchanged, cache + exchanged, on_sm, atomics), devices_overlap)
        total = self.m.maximum(total * self._tail(rounds), chain * self.m.maximum(d.longest, self._tail(rounds)))
        total = total * (1 + d.skewed * p.skew)
        total = self._norm((total, programs), _ABRUPT) + p.launch_us
        return Parts(
            memory=memory,
            cache=cache,
            instructions=instructions,
            matrix=matrix,
            shared=shared,
            programs=programs,
            latency=chain * self.m.maximum(rounds, 1.0),
            atomics=atomics,
            spills=spilled * d.programs / (self.bandwidth * p.cache_speedup),
            total=total,
        )

    def _fetched(self) -> Value:
        """Return the time in which an SM fetches the code of a program that its instruction cache does not hold."""
        code = self.d.code * self.p.simple_ops * _INSTRUCTION_BYTES
        missed = self._ramp(code, _CODE_CACHED, _CODE_CACHED * _CODE_LOST)
        return missed * code * self.d.code_runs / (_CODE_BYTES_PER_CYCLE * self.clock)

    def _resident(self) -> Value:
        """Return the programs of an SM, smoothed over the error of the predicted registers where these decide."""
        fewer, held, more = [self._by_registers(scale) for scale in _REGISTER_SCALES]
        mean = (fewer + 2 * held + more) / 4
        decide = self.d.resident >= held
        return self.m.where(decide, mean, self.m.minimum(self.d.resident, mean))

    def _by_registers(self, scale: float) -> Value:
        d, target = self.d, self.target
        granule = target.register_granularity
        each = self.m.ceil(self._within(d.registers * scale, _LEAST_REGISTERS, d.limit) / granule) * granule
        held = self.m.floor(target.registers_per_sm / (each * d.warps * target.warp_size))
        most = self.m.minimum(self.m.floor(target.max_warps_per_sm / d.warps), target.max_blocks_per_sm)
        return self.m.maximum(1.0, self.m.minimum(held, most))

    def _spilled(self) -> Value:
        """Return the bytes that a program stores and loads because registers run out."""
        d, p = self.d, self.p
        if self.m is NUMBERS and _REGISTER_SCALES[-1] * d.needed <= min(p.spill_free, _ABANDONED[0]) * d.limit:
            return 0.0  # as the terms below give
        few, over, many = [self.m.maximum(0.0, d.needed * scale - d.limit * p.spill_free) for scale in _REGISTER_SCALES]
        over = (few + 2 * over + many) / 4
        abandoned = self._ramp(d.needed / d.limit, *_ABANDONED)
        over = over + d.needed * p.abandoned * abandoned
        spilled = over * REGISTER_BYTES * self.target.warp_size * d.warps * d.largest_times * p.spill_cost
        shuttled = (d.straight_issue + d.looped_issue) * p.shuttled * abandoned
        spilled = spilled + shuttled * self.target.warp_size * REGISTER_BYTES
        return (
            spilled + self._within(over / d.limit * _ALL_SPILLED, 0.0, 1.0) * d.accumulated_bytes * p.accumulator_spill
        )

    def _memory_bytes(self, spilled: Value) -> Value:
        """Return the memory bytes of a program, with cache misses of rows read again and of spilled registers."""
        d, p, l2 = self.d, self.p, self.target.l2_bytes
        in_flight = self.m.minimum(d.programs, self.target.num_sms * self.resident)
        lost = self._ramp(d.row_bytes * in_flight, p.kept_share * l2, p.lost_share * l2)
        missed = self._ramp(spilled / self.m.maximum(1.0, d.largest_times) * in_flight, _SPILLS_KEPT * l2, l2)
        kept = p.first_share * d.first_bytes - p.last_share * d.last_bytes
        apart = self._ramp(d.sectors_in_flight * in_flight, p.kept_share * l2, p.lost_share * l2)
        kept = kept + p.first_others * d.first_others_bytes + p.others_share * d.others_bytes * apart
        reads = d.new_bytes + d.again_bytes * lost + p.run_share * d.scattered_bytes
        return self.m.maximum(0.0, reads + kept) + spilled * p.spill_misses * missed

    def _crowding(self) -> Value:
        """Return the slowdown by DRAM page conflicts, which grows with the streams that memory serves at once."""
        d, p = self.d, self.p
        each = d.straight_bytes + (d.looped_bytes + d.prefetched_bytes) / self.m.maximum(1.0, d.iterations)
        in_flight = each * self.m.minimum(d.programs, self.target.num_sms * self.resident)
        return 1 + p.crowded * self.m.log2(self.m.maximum(1.0, in_flight / (p.crowd_share * self.target.l2_bytes)))

    def _reachable(self) -> Value:
        """Return the bytes per microsecond that the active SMs can request from memory: about half of all SMs saturate
        it.
        """
        return self.bandwidth * self.m.minimum(1.0, _SMS_TO_SATURATE * self.m.minimum(1.0, self.per_sm))

    def _cache_bytes(self, spilled: Value) -> Value:
        d = self.d
        wasted = self.m.maximum(0.0, d.sector_bytes - d.asked_bytes)
        wasted = self.p.sector_share * wasted + self.p.written_share * d.written_bytes
        return (
            self.m.maximum(
                0.0, d.asked_bytes + wasted - self.p.near_share * d.near_bytes - self.p.shifted_share * d.shifted_bytes
            )
            + spilled
        )

    def _issued(self) -> Value:
        d, p = self.d, self.p
        simple = (d.straight_issue + d.looped_issue + d.walked_issue * p.walked_ops) * p.simple_ops
        special = (d.special + d.walked_special * p.walked_special) * p.special_ops
        issued = simple + (d.special + d.walked_special * p.walked_special) * p.special_issue
        issued = issued + d.accesses * p.access_ops + p.program_ops * d.warps + d.steps * p.step_ops
        return self._norm((issued, special), _UNITS)

    def _matrix_us(self) -> Value:
        d, p = self.d, self.p
        extra = d.synchronous_us * (p.synchronous - p.matrix) + d.converted_us * (p.converted - p.matrix)
        return d.matrix_us * p.matrix + extra

    def _chain(self) -> Value:
        """Return the dependent chain of a program; in a loop, warps that have drifted overlap its parts."""
        d, p = self.d, self.p
        own = (self.issued + d.steps * p.step_waits) / d.warps * p.dependency / self.clock
        instructions = self.m.maximum(self.m.maximum(own, self.issued / self.issue), self.asked)
        alone = self.m.maximum(1.0, _WARPS_FOR_ALL_UNITS / d.warps)
        matrix = self.matrix_us * alone + p.product_us * d.products
        waits = d.straight_rounds + d.stored_rounds * p.stored_wait + d.looped_rounds * p.looped_wait
        waits = (waits + d.boxed_rounds * p.boxed_wait + d.fenced_rounds * p.fenced_wait) * p.wait_us
        arrived = d.staged_bytes * p.port_share / (_PORT_BYTES_PER_CYCLE * self.clock)
        pipelined = d.pipelined_rounds * p.pipelined_us + arrived
        looped_bytes, straight_bytes = d.looped_bytes / d.warps * p.byte_us, d.straight_bytes / d.warps * p.byte_us
        exchanged = d.exchanges * p.exchange_us + d.barriers * p.barrier_us + d.shuffles * p.shuffle_us
        exchanged = (
            exchanged
            + d.turned_bytes * p.turned_us
            + (d.exchanged_bytes + d.computed_bytes) / (_SHARED_BYTES_PER_CYCLE * self.clock)
        )
        fixed = (
            p.start_us * self.begun
            + exchanged
            + d.stores * p.store_us
            + d.chained_cycles / self.clock
            + straight_bytes
            + d.descriptors * p.descriptor_us
            + d.boxes * p.boxed_wait * p.wait_us
        )
        apart = d.looped_rounds + d.stored_rounds + d.boxed_rounds + d.fenced_rounds
        repeats = apart + d.pipelined_rounds > 0
        # warps of a matmul's loop meet in each step
        drifts = (apart > 0) * (d.products == 0)
        waits_and_own = waits + self.m.where(drifts, own * _DRIFTED, 0.0)
        loop = self._norm((waits_and_own, instructions, looped_bytes, matrix), p.together)
        loop = self._norm((loop, pipelined), p.staged)  # prefetched loads are in flight during the steps before
        fixed = (fixed + d.fills * p.fill_us) * (1 - d.fused * p.hidden)
        return fixed + self.m.where(repeats, loop, waits + instructions + matrix)

    def _begun(self) -> Value:
        """Return the fraction of a program's startup cost that one tile pays."""
        return 1 - self.d.persistent * (1 - self.p.repeated)

    def _tail(self, rounds: Value) -> Value:
        """Return the ratio of started rounds to full ones."""
        last = self.m.where(rounds <= 1, 1.0, 1 - self.p.tail + self.p.tail * self.m.ceil(rounds) / rounds)
        return last + self.p.drain / self.m.maximum(1.0, rounds)

    def _within(self, value: Value, low: Value, high: Value) -> Value:
        if self.m is NUMBERS:
            return low if value <= low else min(value, high)
        return self.m.minimum(self.m.maximum(value, low), high)

    def _ramp(self, value: Value, begin: float, width: float) -> Value:
        """Return 0 up to ``begin``, 1 from ``begin + width``, linear in between."""
        return self._within((value - begin) / width, 0.0, 1.0)

    def _norm(self, values: Sequence[Value], power: float) -> Value:
        """Return a value between the largest and the sum, closer to the largest for greater ``power``."""
        if self.m is NUMBERS:
            return _joined(values, power)
        most, total = values[0], 0.0
        for value in values[1:]:
            most = self.m.maximum(most, value)
        most = self.m.maximum(most, 1e-9)
        for value in values:
            total = total + (value / most) ** power
        return most * total ** (1 / power)


def _joined(values: Sequence[float], power: float) -> float:
    """Return the norm of numbers, of which many are zero or the largest."""
    most = max(1e-9, *values)
    total = 0.0
    for value in values:
        if value:
            total += 1.0 if value == most else (value / most) ** power
    return float(most * total ** (1 / power))
