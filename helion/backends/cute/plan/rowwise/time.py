"""A model of the time of a row kernel: bytes of a row against its instructions and waits, over the co-resident clusters.

The constants are fitted to timings of ten kernels in many layouts. With sums over rows, factors of waits are fitted to
``rms_norm_backward``, and instructions to both norms (measurement ``row_times``).
"""

from __future__ import annotations

import functools

from ....._shapes import next_power_of_2
from ....._support.records import dataclass
from .....hardware import Target
from .demand import WORD_BYTES
from .records import RowLayout


@dataclass(frozen=True, kw_only=True)
class RowRates:
    """Rates of the model. Times are in nanoseconds."""

    memory: float = 0.882
    """Fraction of the data sheet's bandwidth that a copy reaches."""
    issue: float = 119.0
    """Instructions of an SM in one clock, times the threads of a warp."""
    clock_ghz: float = 1.7
    issuing_warps: float = 7.9
    """Warps of an SM that issue at that rate."""
    wait_ns: float = 540.0
    """Barriers of a row in one warp."""
    cta_ns: float = 570.0
    """The same in several warps of a CTA, in addition."""
    cluster_ns: float = 178.0
    """The same in several CTAs, in addition, and for each CTA ``per_cta_ns``."""
    per_cta_ns: float = 32.0
    summed_wait: float = 0.5
    summed_cta: float = 0.2
    """Factors of ``wait_ns`` and ``cta_ns`` in kernels with sums over rows, which take the rows of a block in order."""
    summed_work: float = 0.33
    """Factor of the instructions of an element of such kernels."""
    row_work: float = 70.0
    sent_work: float = 36.0
    """Instructions of a thread for each row of such kernels, and for each number that its warp sends."""
    ahead_bytes: float = 35400.0
    """Bytes in flight of an SM that hide the latency of memory."""
    asking: float = 0.84
    """Fraction of the SMs that can use all of the bandwidth."""
    launch_us: float = 4.8
    spilled_ns: float = 0.2
    """A register that a thread lacks, which it stores and loads in each row, for each thread of an SM."""
    shared: float = 1.0135
    """Factor of the time where a row is read again from shared memory."""
    masked_work: float = 80.0
    """Instructions of a granule of a thread at an end of a row that begins anywhere, where positions are compared."""
    numbered: float = 0.95
    """Factor of the time of numbered rows in several CTAs of an SM."""
    cached_code: float = 2.0**17
    """Bytes of instructions that an SM caches: beyond, each row fetches the rest again."""
    overlap: float = 3.5
    """Exponent of the norm that combines the times of a row."""


RATES = RowRates()
INSTRUCTION_BYTES = 16
LIVE_REGISTERS = 24
"""Registers of a thread besides converted elements between passes: kernels of one and of two inputs that ptxas compiles
for sm_90 spill where both together exceed the limit (measurement ``rows_in_registers``)."""
MOST_ROUNDS = 4
"""The most blocks of a cluster, where these do not have a power of two of rows."""


def resident(layout: RowLayout, target: Target) -> int:
    """Return the clusters that run at once, approximately."""
    choice, gpcs = layout.choice, target.gpc_sms
    if choice.cluster == 1:
        return target.num_sms * choice.ctas_per_sm
    found = choice.ctas_per_sm * sum(sms // choice.cluster for sms in gpcs)
    return max(1, found * target.num_sms // sum(gpcs))


def code_bytes(layout: RowLayout) -> float:
    """Return the bytes of the instructions for all elements of a thread, whose passes are unrolled."""
    granules = layout.chunk_granules if layout.rolled else layout.thread_granules
    return float(INSTRUCTION_BYTES * granules * layout.lanes * layout.demand.work)


def spilled_registers(layout: RowLayout) -> int:
    """Return the registers that a thread lacks for elements that are converted once, between passes, approximately."""
    live = layout.demand.live if layout.choice.keep == "registers" and not layout.rolled else 0
    needed = live * layout.lanes * layout.thread_granules + LIVE_REGISTERS if live else 0
    return max(0, needed - layout.register_limit)


def predicted_us(layout: RowLayout, m: int, target: Target, rates: RowRates = RATES, span: int = 1) -> float:
    """Return the microseconds of one launch over ``m`` rows, of which a cluster takes ``span`` one after the other.

    The time includes that of the host, which reads the sums over the rows of each span.
    """
    choice, demand = layout.choice, layout.demand
    clusters = resident(layout, target)
    tiles = -(-m // (choice.rows * span))
    rounds = -(-tiles // clusters)
    elements = choice.rows * demand.n / choice.cluster
    bandwidth = target.bandwidth_gb_per_s * rates.memory
    slots = target.num_sms * choice.ctas_per_sm
    asked = min(tiles, clusters) if demand.sums else clusters  # few rows wait less, not more, than a full round
    asking = min(1.0, asked * choice.cluster / slots / rates.asking)
    memory = elements * demand.column_bytes / (bandwidth / slots)
    warps = choice.ctas_per_sm * choice.rows * choice.warps
    work: float = demand.work + (0 if layout.aligned else 1 + len(demand.vectors))
    work += rates.masked_work / layout.thread_granules if demand.temporaries and not layout.aligned else 0
    work += 5 * layout.lanes * len(demand.inputs) if layout.by_words else 0
    instructions = elements * work
    if demand.sums:
        each = rates.row_work + rates.sent_work * max(demand.exchanges, default=0)
        instructions = instructions * rates.summed_work + layout.threads * each
    issue = instructions * choice.ctas_per_sm / rates.issue / rates.clock_ghz
    issue *= max(1.0, rates.issuing_warps / warps) * max(1.0, code_bytes(layout) / rates.cached_code)
    waits = rates.wait_ns * (rates.summed_wait if demand.sums else 1.0)
    if layout.partials > 1:
        cluster = rates.cluster_ns + rates.per_cta_ns * choice.cluster
        within = rates.cta_ns * (rates.summed_cta if demand.sums else 1.0)
        exchange = (within if choice.cluster == 1 else cluster) * max(1, len(demand.exchanges))
        waits += 0.0 if choice.rows_ahead else exchange
    busy = 0.7 * issue + waits * (1.0 if choice.rows == 1 else 0.6)
    chain = (memory**rates.overlap + issue**rates.overlap + busy**rates.overlap) ** (1 / rates.overlap)
    chain += rates.spilled_ns * spilled_registers(layout) * layout.threads * choice.rows * choice.ctas_per_sm
    ahead = (layout.stages - layout.held_stages) * layout.stage_bytes * choice.ctas_per_sm
    flight = min(1.0, ahead / rates.ahead_bytes)
    used = 0.5 + 0.5 * layout.slice_granules / (layout.thread_granules * layout.threads)
    last = min(1.0, (tiles - (rounds - 1) * clusters) / clusters * 2) if span == 1 else 1.0
    whole = rounds - 1 + last
    chain *= (rates.shared if layout.held_stages else 1.0) * min(span, m)
    chain *= max(1.0, whole if rounds > 1 else 1.0) / (asking * flight * min(1.0, used))
    several = choice.ctas_per_sm > (1 if choice.rows == 1 else 2)
    chain *= rates.numbered if demand.numbered and several and choice.cluster == 1 else 1.0
    summed = 2 * WORD_BYTES * tiles * demand.n * demand.sums / bandwidth
    return rates.launch_us + (chain + summed) / 1e3


@functools.lru_cache(maxsize=1024)
def fastest_span(layout: RowLayout, m: int, target: Target) -> tuple[int, float]:
    """Return the rows of a block whose sums are stored, and the time with them; 1 without sums.

    Blocks are as many as clusters that run at once, a few times that, or have a power of two of rows.
    """
    if not layout.demand.sums:
        return 1, predicted_us(layout, m, target)
    clusters = resident(layout, target)
    spans = {2**power for power in range(next_power_of_2(m).bit_length())}
    spans |= {-(-m // (clusters * blocks)) for blocks in range(1, MOST_ROUNDS + 1)}
    times = {span: predicted_us(layout, m, target, span=span) for span in spans}
    return min(times.items(), key=lambda found: (found[1], -found[0]))


def described(layout: RowLayout) -> str:
    """Return a layout in words, for reasons."""
    choice = layout.choice
    where = "registers" if choice.keep == "registers" else "shared memory"
    held = f", held in {where}" if layout.demand.held_bytes else ""
    held += ", the next one reduced ahead" if choice.ahead else ""
    held += ", overlapped with the next but one" if choice.overlap else ""
    ctas = f"{choice.cluster} CTAs" if choice.cluster > 1 else "1 CTA"
    rows = f", {choice.rows} rows at a time" if choice.rows > 1 else ""
    return (
        f"rows of {layout.demand.n} columns in {ctas} of {choice.warps} warps per row{rows}{held}, {choice.ctas_per_sm}"
        f" CTAs per SM, {layout.stages} stages of {layout.stage_bytes} bytes"
    )
