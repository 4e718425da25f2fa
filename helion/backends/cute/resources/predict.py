"""What a launch takes: shared and tensor memory to the byte, by the plan, and a time by how tiles fill the GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...._compiler.facts.records import KernelFacts
from ....autotuner.decisions import Decisions
from ....autotuner.proposal import Predicted
from ....hardware import Target
from ..plan.build import plan_gemm
from ..plan.counts import counts
from ..plan.dtypes import itemsize
from ..plan.records import SUM_BYTES, Choice, GemmPlan
from ..plan.refusal import Refusal
from ..plan.shared import shared_bytes
from ..settle import choice_of
from .shape import ProductShape, shape_of

# Fitted to what benchmarks/cute.py and test/backends/cute/run_on_gpu.py measured on an H200 (benchmarks/results/cute).
#: Part of the data sheet's rate that the main loop of the largest tile keeps up.
MATRIX_RATE = 0.86
#: Bytes of operands that reach an SM from the L2 cache for each byte of its share of the memory bandwidth: where all SMs
#: load, and where few do.
L2_PER_BANDWIDTH, L2_OF_FEW = 2.14, 4.5
#: Of operand bytes that a multicast saves, what shows in the time.
MULTICAST_GAIN = 0.75
#: A K tile takes so long however small it is: a load waits for a slot, the unit for the load.
LEAST_K_TILE_US = 0.15
#: What it takes CTAs that split K to wait for each other, in microseconds for each of them.
SPLIT_US = 0.75
#: Two fences and a counter in global memory, about four times the latency of memory.
GRID_SPLIT_US = 2.5
#: What an SM stores and reads in an epilogue for each byte of its share of the memory bandwidth.
EPILOGUE_PER_BANDWIDTH = 1.1
#: Clusters of this many CTAs and more reach only this part of the SMs: on an H200, 30 of 4 run at once, 15 of 8 and 7 of 16.
LARGE_CLUSTER, IN_WHOLE_GROUPS = 4, 10 / 11
#: What it takes the CTAs of a row to tell each other what they found, in microseconds for each of them and each time.
EXCHANGE_US = 0.04
#: Launch, first loads and last stores, in microseconds.
OVERHEAD_US = 4.5
#: Registers of a thread that holds sums in them; the kernels of tcgen05 hold a sub-tile of them.
WGMMA_REGISTERS, TCGEN05_REGISTERS = 168, 96


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Microseconds of one tile, and how many rounds of tiles the GPU needs."""

    k_tile_us: float
    epilogue_us: float
    waves: int
    tiles: int
    total_us: float


def timing(shape: ProductShape, plan: GemmPlan, target: Target) -> Timing:
    """A roofline of one tile, times the rounds of tiles that as many clusters as fit the GPU take."""
    clusters = plan.pieces
    waves = -(-clusters // resident(plan, target))
    busy = min(clusters * plan.ctas, target.num_sms)
    k_tile_us = _k_tile_us(plan, busy, target)
    epilogue_us = _epilogue_us(plan, target)
    overlapped = plan.accumulator_stages > 1 or plan.teams > 1
    tile_us = -(-plan.k_tiles // plan.parts) * k_tile_us
    body = waves * max(tile_us, epilogue_us) + epilogue_us if overlapped else waves * (tile_us + epilogue_us)
    memory_us = shape.bytes_moved / (busy * _share(target))
    return Timing(
        k_tile_us=k_tile_us,
        epilogue_us=epilogue_us,
        waves=waves,
        tiles=plan.tiles * math.prod(plan.cluster_tiles),
        total_us=OVERHEAD_US + max(body, memory_us),
    )


def resident(plan: GemmPlan, target: Target) -> int:
    """Clusters that run at once. CTAs of a large cluster share a group of SMs, and some groups have SMs left over."""
    sms = target.num_sms
    if plan.problem.epilogue.reduces_rows and plan.ctas >= LARGE_CLUSTER:
        sms = int(sms * IN_WHOLE_GROUPS)
    return max(1, sms * plan.ctas_per_sm // plan.ctas)


def _share(target: Target) -> float:
    """An SM's part of the memory bandwidth, in bytes per microsecond."""
    return target.bandwidth_gb_per_s * 1e3 / target.num_sms


def _k_tile_us(plan: GemmPlan, busy: int, target: Target) -> float:
    """Matrix instructions and loads of one K tile, whichever takes longer, while as many SMs are ``busy``."""
    rows, columns = plan.cta_tile
    flops = 2 * rows * columns * plan.tile[2] * plan.products
    unit = "tf32" if plan.problem.operand_dtype == "float32" else plan.problem.operand_dtype
    rate = target.matrix_tflops_for(unit) * 1e6 / target.num_sms * MATRIX_RATE
    numbers = counts(plan)
    shared = (1 - 1 / numbers.a_multicast) * numbers.a_stage_bytes + (
        1 - 1 / numbers.b_multicast
    ) * numbers.b_stage_bytes
    loaded = numbers.a_stage_bytes + numbers.b_stage_bytes - MULTICAST_GAIN * shared
    from_l2 = min(L2_OF_FEW, L2_PER_BANDWIDTH * target.num_sms / busy)
    # CTAs that share an SM share its unit and its loads, and wait at the same time
    return max(plan.ctas_per_sm * max(flops / rate, loaded / (from_l2 * _share(target))), LEAST_K_TILE_US)


def _epilogue_us(plan: GemmPlan, target: Target) -> float:
    """Storing a tile and reading what its epilogue needs; CTAs that split K share that, and hand each other sums."""
    rows, columns = plan.cta_tile
    exact = sum(itemsize(each.dtype) for each in plan.problem.epilogue.of_kind("exact"))
    written = sum(itemsize(each.dtype) for each in plan.problem.outputs_of("exact"))
    stored = plan.ctas_per_sm * rows * columns * (written + exact) / plan.splits
    exchanged = 2 * rows * columns * SUM_BYTES * (plan.splits - 1) / plan.splits
    waited = SPLIT_US * plan.splits if plan.splits > 1 else 0.0
    if plan.grid_splits > 1:  # every cluster writes its sums, and the last one reads those of all
        exchanged += rows * columns * SUM_BYTES * (1 + plan.grid_splits) / plan.splits
        waited += GRID_SPLIT_US
    if plan.cluster[1] > 1:
        waited += EXCHANGE_US * plan.cluster[1] * max(plan.problem.epilogue.levels)
    return waited + (stored / EPILOGUE_PER_BANDWIDTH + exchanged / L2_PER_BANDWIDTH) / _share(target)


def plan_of(shape: ProductShape, choice: Choice, target: Target) -> GemmPlan | str:
    """The plan of a choice, or why there is none."""
    try:
        return plan_gemm(shape.problem, choice, target)
    except Refusal as refusal:
        return str(refusal)


def predict(facts: KernelFacts, decisions: Decisions, target: Target) -> Predicted:
    """What one launch takes; ``fits`` is what the plan says."""
    shape = shape_of(facts)
    assert not isinstance(shape, str), shape
    plan = plan_of(shape, choice_of(decisions, shape, target), target)
    if isinstance(plan, str):
        return _refused(shape, target, plan)
    time = timing(shape, plan, target)
    registers = WGMMA_REGISTERS if plan.unit == "wgmma" else TCGEN05_REGISTERS
    return Predicted(
        registers_per_thread=registers,
        spill_risk=0.0,
        shared_bytes=shared_bytes(plan),
        tensor_memory_columns=counts(plan).tensor_memory_columns,
        waves=plan.pieces * plan.ctas / (target.num_sms * plan.ctas_per_sm),
        occupancy_blocks=plan.ctas_per_sm,
        fits=True,
        bytes_moved=shape.bytes_moved,
        flops=shape.flops,
        time_us=time.total_us,
        register_limit=target.max_registers_per_thread,
        least_shared_bytes=shared_bytes(plan),
    )


def _refused(shape: ProductShape, target: Target, reason: str) -> Predicted:
    return Predicted(
        registers_per_thread=0,
        spill_risk=0.0,
        shared_bytes=0,
        tensor_memory_columns=0,
        waves=0.0,
        occupancy_blocks=0,
        fits=False,
        bytes_moved=shape.bytes_moved,
        flops=shape.flops,
        time_us=0.0,
        register_limit=target.max_registers_per_thread,
        reason=reason,
    )
