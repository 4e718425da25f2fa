"""``plan_gemm``: turn a problem and a choice into a plan, or refuse with a reason."""

from __future__ import annotations

import functools

from ...._support.records import replace
from ....hardware import RESERVED_SHARED_BYTES, Target
from . import workspace
from .copied import MAX_COPIED_SUMS
from .counts import check_slices, counts, least_stages, loads_while_copying, micro_columns, through_registers
from .dtypes import COLUMN_DTYPES, EPILOGUE_DTYPES, IMPRECISE_DTYPES, OPERAND_DTYPES, itemsize
from .epilogue import COLUMN_NUMBER, MAX_NUMBERED, ROW_NUMBER, EpilogueOperand
from .finish import split, with_turned
from .joint import own_parts
from .operands import (
    can_convert,
    check_copies,
    check_known,
    check_sums,
    extents_of,
    loaded_by_tma,
    residents_of,
    takes_majors,
    with_gathering,
)
from .operands import split as split_operands
from .passes import check_passes
from .records import SWIZZLE_BYTES, TMA_ALIGNMENT_BYTES, WGMMA_ROWS, Choice, GemmPlan, GemmProblem, Major, Unit
from .refusal import Refusal
from .runtime import (
    MAX_EXTENT,
    MAX_PROMOTE_K_TILES,
    SIZES,
    accumulators_in_turn,
    check_batch,
    check_blocks,
    check_ends,
    check_groups,
    check_integers,
    check_micro,
    check_numbers,
    check_outputs,
    check_pitch,
    check_random,
    check_scales,
    check_strided,
    check_terms,
    of_ends,
)
from .scales import BlockScales, promoted
from .shared import MAX_STAGES, most_stages, shared_bytes

MAX_CLUSTER = 8
"""CTAs of a cluster that every device can schedule (CUDA programming guide)."""
MAX_ROW_CLUSTER = 16
"""Non-portable cluster size of Hopper and Blackwell, for kernels that allow it (CUDA programming guide)."""
MAX_SHARING_A = 8
"""CTAs along N that share loads of A through multicast."""
FEW_K_TILES = 16
"""K tiles up to which the epilogue of a tile takes as long as its mainloop."""
MAX_SPLITS = 16
"""Non-portable cluster size of Hopper, for kernels that allow it (CUDA programming guide)."""
MAX_GRID_SPLITS = 64
MAX_ACCUMULATOR_STAGES = 4
MAX_RESIDUAL_STAGES = 8
PART_COLUMNS = 16
"""Columns of the MMAs of one of several accumulators are a multiple of this."""
MAX_EXACT_INT8_K = 2**10
"""The same for fp32."""
IMPRECISE_K = 256
"""Elements along K that are accumulated within the matrix unit (measurement ``cute_fp8_partials``)."""
MAX_SUM_REGISTERS = 128
"""Accumulator registers per thread that leave room for the rest of the epilogue: a 64×256 tile per warpgroup
(measurement ``fp8_tiles``)."""
MAX_PLAIN_SUM_REGISTERS = 192
"""The same where the epilogue stores what it has: a 128×192 tile per warpgroup."""
MAX_RESIDENT_SUM_REGISTERS = 64
"""The same where two CTAs share the registers of an SM."""
MAX_SPLIT_SUM_REGISTERS = 64
"""The same where the partials of other CTAs need registers as well. Half of it where two warpgroups leave registers to
warps that copy."""
MAX_SCALED_SUMS = 64
"""Accumulator registers per thread for a tile with scales on tcgen05, besides those that hold reads of tensor memory;
128 spill."""


def plan_gemm(problem: GemmProblem, choice: Choice, target: Target) -> GemmPlan:
    """Build the plan of `problem`. Stages that `choice` leaves open are as many as fit `target`.

    Raises ``Refusal`` for what is not implemented and for what does not fit.
    """
    unit = unit_of(target)
    check_problem(problem)
    if problem.epilogue.words:
        problem = _of_messages(problem, choice)
    if problem.ends is not None:
        problem = of_ends(problem, choice)
    if choice.copies_in in ("memory", "tma") or problem.summed:
        return _plan_with_copies(problem, choice, target)
    if choice.rows_in == "memory" and problem.strided:
        raise Refusal("rows in memory are implemented where TMA stores and loads all matrices of the epilogue")
    if choice.rows_in == "memory":
        return _plan_with_finish(problem, choice, target)
    plan = GemmPlan(
        problem=problem,
        unit=unit,
        tile=choice.tile,
        cluster=choice.cluster,
        ctas_per_mma=choice.ctas_per_mma,
        ab_stages=choice.ab_stages or 2,
        accumulator_stages=1,
        epilogue_n=choice.epilogue_n,
        store_stages=choice.store_stages,
        group=choice.group,
        promote=_promotes(problem, choice, target),
        promote_k_tiles=choice.promote_k_tiles or _promote_k_tiles(problem, choice),
        teams=2 if choice.pingpong else 1,
        splits=choice.splits,
        grid_splits=choice.grid_splits,
        residual_stages=choice.residual_stages,
        ctas_per_sm=choice.ctas_per_sm,
        warp_stores=False,
        shares_a=True,
        joins=False,
        converts=choice.copies_in in ("registers", "slices"),
        sliced=choice.copies_in == "slices",
        shared_limit_bytes=_shared_limit(target, choice.ctas_per_sm),
        tensor_memory_limit_columns=target.tensor_memory_columns,
        registers_per_sm=target.registers_per_sm,
        registers_per_thread=target.max_registers_per_thread,
    )
    plan = workspace.with_whole_tiles(plan, target.num_sms) if choice.split_last else plan
    _check_tile(plan)
    if problem.epilogue.words:
        _check_messages(plan)
    (_check_wgmma if unit == "wgmma" else _check_tcgen05)(plan)
    plan = replace(plan, accumulator_stages=_accumulator_stages(plan, choice), warp_stores=_stores_by_warps(plan))
    if choice.ab_stages is None:
        plan = replace(plan, ab_stages=most_stages(plan))
    joins = _joins(plan)
    shares = _shares_a(plan, joins)
    plan = replace(plan, shares_a=shares, joins=joins and shares)
    _check_fits(plan)
    return plan


def _plan_with_copies(problem: GemmProblem, choice: Choice, target: Target) -> GemmPlan:
    """Return the plan of the matmul that loads all operands by TMA, with the kernels before it."""
    rest = replace(choice, copies_in="shared") if choice.copies_in in ("memory", "tma") else choice
    if choice.copies_in == "tma" and choice.rows_in == "memory" and unit_of(target) == "wgmma":
        return _plan_with_finish(problem, choice, target)
    if choice.copies_in == "tma":
        loaded, gathering = loaded_by_tma(problem, unit_of(target))
        plan = plan_gemm(loaded, rest, target)
        return plan if gathering is None else with_gathering(plan, gathering)
    stored, prepare = split_operands(problem, copies=choice.copies_in == "memory")
    return replace(plan_gemm(stored, rest, target), prepare=prepare)


def _of_messages(problem: GemmProblem, choice: Choice) -> GemmProblem:
    """Return a problem with messages and the tile that they are about. Raises ``Refusal`` for parts without messages."""
    if problem.batch is not None or problem.terms or problem.copied or problem.epilogue.reduces_rows:
        raise Refusal(
            "messages are implemented without batches, groups of rows, sums of several matmuls, row reductions and copied"
            " operands"
        )
    rows, columns, _ = choice.tile
    return replace(problem, epilogue=replace(problem.epilogue, tile=(rows, columns)))


def _check_messages(plan: GemmPlan) -> None:
    """Check that a tile of D is one of the program's tiles, which one CTA waits for, computes and stores."""
    problem = plan.problem
    if plan.unit != "wgmma":
        raise Refusal("messages to and from peers are implemented for wgmma")
    if plan.parts > 1:
        raise Refusal("messages are implemented where one CTA has all of K; k_splits and grid_splits are 1")
    for wait in problem.epilogue.waits:
        if wait.before == "matrices" and not plan.has_residual:
            raise Refusal("a wait that no load of a matrix by TMA follows is not implemented")
        if wait.before == "operands" and plan.ctas > 1 and not wait.keep:
            raise Refusal("CTAs of a cluster, which share operands, wait for the same messages; they pass keep=True")


def _shares_a(plan: GemmPlan, joins: bool) -> bool:
    """Return whether A is multicast to the CTAs along N.

    Slices for 16 CTAs are slow (measurement ``cute_shared_loads``). One joint exchange is worth more where K tiles are
    few.
    """
    if plan.problem.copied:
        return False
    return plan.unit != "wgmma" or plan.cluster[1] <= MAX_SHARING_A or (joins and plan.k_tiles <= FEW_K_TILES)


def _joins(plan: GemmPlan) -> bool:
    """Return whether both exchanges of a tile run as one, in a stage no larger than those of two exchanges.

    One stage is enough where a tile has more K tiles than the pipeline of A and B has stages. A CTA past the mainloop
    of the next tile has received slices of A from all CTAs of the row. Those went to stages that their warps released
    after the exchange (measurement ``cute_joint_exchange``).
    """
    known = "size_k" not in plan.problem.runtime and plan.k_tiles > plan.ab_stages
    return plan.unit == "wgmma" and plan.cluster[1] > 1 and known and bool(own_parts(plan.problem))


def _plan_with_finish(problem: GemmProblem, choice: Choice, target: Target) -> GemmPlan:
    """Plan a matmul that stores rows, or their partial reductions, for a second kernel."""
    stored, finish = split(problem, choice.tile[1], target.smem_per_block_bytes)
    stored, choice = with_turned(stored, choice)
    promote_k_tiles = choice.promote_k_tiles or _promote_k_tiles(problem, choice)
    first = replace(choice, rows_in="cluster", promote_k_tiles=promote_k_tiles)
    return replace(plan_gemm(stored, first, target), finish=finish)


def _shared_limit(target: Target, ctas: int) -> int:
    """Return the shared-memory limit of one CTA where `ctas` of them run on an SM."""
    if ctas == 1:
        return target.smem_per_block_bytes
    return target.smem_per_sm_bytes // max(1, ctas) - RESERVED_SHARED_BYTES


def unit_of(target: Target) -> Unit:
    """Return the asynchronous matrix unit of `target`. Raises ``Refusal`` if there is none."""
    for unit in ("tcgen05", "wgmma"):
        if target.has(unit):
            return unit
    raise Refusal(f"{target} has neither wgmma nor tcgen05; the cute backend needs one of them")


@functools.lru_cache(maxsize=256)
def check_problem(problem: GemmProblem) -> None:
    """Check that kernels of a problem are implemented. Raises ``Refusal``."""
    if problem.operand_dtype not in OPERAND_DTYPES:
        raise Refusal(f"matmuls of {problem.operand_dtype} are not implemented; {', '.join(OPERAND_DTYPES)} are")
    if not all(0 < extent <= MAX_EXTENT for extent in (problem.m, problem.n, problem.k)):
        extents = ", ".join(f"{side} = {getattr(problem, side.lower())}" for side in "MNK")
        raise Refusal(f"extents of 1 to {MAX_EXTENT} are implemented, not {extents}")
    check_numbers(problem)
    if not takes_majors(problem):
        raise Refusal("operands of int8 and of 32 bits have to be contiguous along K")
    if problem.loads("a"):
        check_pitch(problem, problem.names[0], problem.operand_dtype, problem.a_pitch, _line(problem.a_major, "m"))
    if problem.loads("b"):
        check_pitch(problem, problem.names[1], problem.operand_dtype, problem.b_pitch, _line(problem.b_major, "n"))
    problem.epilogue.check()
    for what, op, extent in (("rows", ROW_NUMBER, problem.m), ("columns", COLUMN_NUMBER, problem.n)):
        if extent > MAX_NUMBERED and problem.epilogue.numbers(op):
            raise Refusal(f"indices of {extent} {what}; up to {MAX_NUMBERED} are exact in float32")
    check_batch(problem)
    if not can_convert(problem):
        check_known(problem)
    for copied in problem.copied:
        copied.check(*extents_of(problem, copied))
    check_sums(problem)
    check_terms(problem)
    if problem.scales is not None:
        check_scales(problem, problem.scales)
    if problem.groups is not None:
        check_groups(problem, problem.groups)
    check_outputs(problem)
    for operand in problem.epilogue.operands:
        if operand.kind == "product":
            _check_second(problem, operand)
            continue
        if operand.kind == "uniform":
            check_random(problem, operand)
            continue
        if operand.kind == "integers":
            check_integers(problem, operand)
            continue
        known = COLUMN_DTYPES if operand.kind == "column" else EPILOGUE_DTYPES
        if operand.dtype not in known:
            raise Refusal(f"epilogue operand {operand.name} is of {operand.dtype}; {', '.join(known)} are implemented")
        if operand.kind == "strided":
            check_strided(problem, operand.name, operand)
        elif operand.kind == "exact":
            side, pitch = ("m", operand.column_pitch) if operand.turned else ("n", operand.pitch)
            check_pitch(problem, operand.name, operand.dtype, pitch, side)
        elif operand.pitch < (0 if operand.kind == "column" else 1):
            raise Refusal(
                f"epilogue operand {operand.name} has a stride of {operand.pitch}; 1 and more are implemented, and 0 of a"
                " column with one number for all rows"
            )


def _check_second(problem: GemmProblem, operand: EpilogueOperand) -> None:
    if operand.dtype != problem.operand_dtype:
        raise Refusal(f"{operand.name} is of {operand.dtype}, the first matmul's B of {problem.operand_dtype}")
    if problem.loads(operand.label):
        check_pitch(problem, operand.name, operand.dtype, operand.pitch, _line(problem.b_major, "n"))


def _line(major: Major, other: str) -> str:
    """Return the dimension along which elements are contiguous."""
    return "k" if major == "k" else other


def _promotes(problem: GemmProblem, choice: Choice, target: Target) -> bool:
    """Return whether accumulators are promoted: of imprecise sums of 8-bit operands, and of blocks with scales or rounding."""
    if choice.promote is not None and not problem.rounded:
        return choice.promote
    if promoted(problem.scales) is not None or problem.rounded:
        return target.has("wgmma")
    return problem.operand_dtype in IMPRECISE_DTYPES and target.fp8_partial_sum > 0


def _promote_k_tiles(problem: GemmProblem, choice: Choice) -> int:
    """Return the K tiles between promotions: those of a block with one scale, else by precision.

    With each instruction the unit truncates below 14 bits of the largest product or sum. With equal signs that is
    2**-10 of the accumulator after two K tiles of 128 elements. This is a quarter of the rounding error of bfloat16.
    After four K tiles it is 2**-8 (test_precision.py).
    """
    if problem.scales is not None and not problem.scales.micro:
        return max(1, problem.scales.k // max(1, choice.tile[2]))
    coarse = problem.output_dtype in ("bfloat16", "float8_e4m3fn") and not problem.rounded
    return max(1, IMPRECISE_K // max(1, choice.tile[2])) if coarse else 1


def _check_tile(plan: GemmPlan) -> None:
    problem, (m, n, k) = plan.problem, plan.tile
    if min(m, n, k, *plan.cluster) < 1:
        raise Refusal(f"a tile of {plan.tile} in a cluster of {plan.cluster}")
    check_blocks(plan)
    if plan.ctas_per_mma not in (1, 2) or plan.cluster[0] % plan.ctas_per_mma or m % plan.ctas_per_mma:
        raise Refusal(f"a cluster of {plan.cluster} CTAs does not consist of groups of {plan.ctas_per_mma} along M")
    if k * plan.operand_bytes not in (SWIZZLE_BYTES, 2 * SWIZZLE_BYTES):
        widths = [width // plan.operand_bytes for width in (SWIZZLE_BYTES, 2 * SWIZZLE_BYTES)]
        raise Refusal(f"a K tile of {k} {problem.operand_dtype}; {widths[0]} and {widths[1]} are implemented")
    largest = MAX_ROW_CLUSTER if problem.epilogue.reduces_rows else MAX_CLUSTER
    if plan.cluster[0] * plan.cluster[1] > largest:
        raise Refusal(f"a cluster of {plan.cluster} CTAs; up to {largest} are implemented")
    if n % plan.epilogue_n or plan.epilogue_n not in (8, 16, 32, 64):
        raise Refusal(
            f"sub-tiles of {plan.epilogue_n} columns of a tile of {n}; 8, 16, 32 and 64 that divide it are implemented"
        )
    matrices = [*(each.dtype for each in problem.outputs_of("exact"))]
    matrices += [each.dtype for each in problem.epilogue.of_kind("exact")]
    for dtype in matrices:
        if plan.epilogue_n * itemsize(dtype) % TMA_ALIGNMENT_BYTES:
            raise Refusal(f"sub-tiles of {plan.epilogue_n} columns of {dtype} are no multiple of 16 bytes")
    if not 2 <= plan.store_stages <= max(2, plan.subtiles):
        raise Refusal(f"{plan.store_stages} buffers for {plan.subtiles} sub-tiles; 2 to as many are implemented")
    parts = [each.columns.size for each in plan.problem.outputs if each.columns is not None]
    if parts and plan.store_box[1] > min(parts):
        raise Refusal(f"sub-tiles of {plan.store_box[1]} columns with parts of {min(parts)}")
    if plan.group < 1:
        raise Refusal(f"groups of {plan.group} tiles")
    most = 1 if problem.rounded else MAX_PROMOTE_K_TILES
    if not 1 <= plan.promote_k_tiles <= most:
        raise Refusal(f"accumulators promoted every {plan.promote_k_tiles} K tiles; 1 to {most} are implemented")
    if not 2 <= plan.residual_stages <= MAX_RESIDUAL_STAGES:
        raise Refusal(f"{plan.residual_stages} stages of residuals; 2 to {MAX_RESIDUAL_STAGES} are implemented")
    if plan.pieces > MAX_EXTENT:
        raise Refusal(f"{plan.pieces} work items; up to {MAX_EXTENT} are implemented")
    _check_splits(plan)
    check_slices(plan)
    _check_residents(plan)
    check_copies(plan)
    if plan.problem.ends is not None:
        check_ends(plan, plan.problem.ends)
    if plan.by_rows:
        _check_rows(plan)
    if plan.products > 1:
        _check_products(plan)
    if plan.problem.scales is not None and plan.problem.scales.micro:
        check_micro(plan)
    elif plan.problem.scales is not None:
        _check_scaled(plan, plan.problem.scales)


def _check_scaled(plan: GemmPlan, scales: BlockScales) -> None:
    """Check that blocks of K with one scale are whole K tiles, and that tiles match the blocks of the program."""
    if scales.k != plan.tile[2] * plan.promote_k_tiles:
        raise Refusal(
            f"scales of blocks of {scales.k} along K with {plan.promote_k_tiles} K tiles of {plan.tile[2]} per block"
        )
    if plan.unit == "wgmma" and not plan.promote:
        raise Refusal("accumulators with scales are promoted after each block of K")
    if plan.parts > 1 and plan.promote_k_tiles > 1:
        raise Refusal("K is split in blocks with scales of their own, of one K tile each")
    if plan.ctas_per_sm > 1 and not plan.converts:
        raise Refusal("matmuls with scales leave no registers for a second CTA on an SM")
    for scale, extent in ((plan.factor("row"), plan.tile[0]), (plan.factor("column"), plan.tile[1])):
        if scale is not None and scale.whole and scale.lines % extent:
            raise Refusal(f"a tile of {extent} lines where {scale.name} has a factor for {scale.lines}")


def _check_products(plan: GemmPlan) -> None:
    """Check matmuls of one A: their B tiles are adjacent in a stage, as the columns of one instruction."""
    n, width = plan.tile[1], plan.tile[2] * plan.operand_bytes
    if plan.ctas_per_mma > 1 or plan.splits > 1:
        raise Refusal(
            "several matmuls that share an epilogue are implemented without pairs of CTAs and without splitting K"
        )
    if plan.problem.absent and plan.promote:
        raise Refusal(
            "terms that add to a part of the accumulators are implemented where the matrix unit adds in fp32, not for 8-bit"
            " floats on wgmma"
        )
    if plan.problem.absent and n % PART_COLUMNS:
        raise Refusal(
            f"tiles of {n} columns of terms that add to a part of the accumulators; multiples of {PART_COLUMNS} are implemented"
        )
    atom = 8 if plan.problem.b_major == "k" else SWIZZLE_BYTES // plan.operand_bytes
    if width != SWIZZLE_BYTES or n % atom:
        raise Refusal(
            f"several matmuls need K tiles of {SWIZZLE_BYTES} bytes and columns that are a multiple of {atom}"
        )


def _check_splits(plan: GemmPlan) -> None:
    """Check split K in a cluster: CTAs exchange partials through distributed shared memory."""
    if not 1 <= plan.splits <= MAX_SPLITS:
        raise Refusal(f"K split in {plan.splits} parts; 1 to {MAX_SPLITS} are implemented")
    if plan.parts > 1 and plan.problem.epilogue.of_kind("integers"):
        raise Refusal("integers are added to an accumulator in int32 where K is not split")
    if plan.parts > 1 and plan.problem.operand_dtype == "int8" and plan.problem.k > MAX_EXACT_INT8_K:
        raise Refusal(
            f"K = {plan.problem.k} of int8 operands in {plan.parts} parts, whose sums fp32 may not hold; up to"
            f" {MAX_EXACT_INT8_K} are implemented"
        )
    _check_grid_splits(plan)
    if plan.splits == 1:
        return
    if "size_k" in plan.problem.runtime:
        raise Refusal("K can be split only if it is known when the kernel is compiled; use hl.specialize")
    if plan.unit != "wgmma" or plan.teams > 1:
        raise Refusal("K is split on wgmma, without ping-pong")
    if plan.ctas > MAX_SPLITS:
        raise Refusal(
            f"a cluster of {plan.cluster} CTAs times {plan.splits} parts of K; up to {MAX_SPLITS} are implemented"
        )
    if plan.splits > plan.subtiles:
        raise Refusal(f"K split in {plan.splits} parts with {plan.subtiles} sub-tiles: some have none to store")
    if plan.parts > plan.k_tiles:
        raise Refusal(f"K in {plan.parts} parts of {plan.k_tiles} K tiles: some have none")


def _check_grid_splits(plan: GemmPlan) -> None:
    """Check split K across clusters, which exchange partials through a workspace."""
    if not 1 <= plan.grid_splits <= MAX_GRID_SPLITS:
        raise Refusal(f"K of a tile split across {plan.grid_splits} clusters; 1 to {MAX_GRID_SPLITS} are implemented")
    if plan.grid_splits == 1:
        return
    if plan.problem.groups is not None:
        raise Refusal("K is split across clusters only where all tiles are known at launch, not of groups of rows")
    if {*SIZES} & {*plan.problem.runtime}:
        raise Refusal("K can be split across clusters only if all sizes are known when the kernel is compiled")
    if plan.teams > 1 or plan.products > 1 or plan.by_rows:
        raise Refusal("K is split across clusters without ping-pong, of one matmul, and without numbers per row")
    if not plan.parts <= plan.k_tiles <= MAX_EXTENT // plan.parts:
        raise Refusal(
            f"K in {plan.parts} parts of {plan.k_tiles} K tiles: some have none, or their indices exceed 32 bits"
        )
    if workspace.counters(plan) > workspace.MAX_COUNTERS or workspace.sums_bytes(plan) > workspace.MAX_SUMS_BYTES:
        raise Refusal(
            f"K of {plan.tiles} tiles by {plan.grid_splits} clusters each, with"
            f" {workspace.counters(plan)} counters and {workspace.sums_bytes(plan)} bytes of partials in global memory; up to"
            f" {workspace.MAX_COUNTERS} and {workspace.MAX_SUMS_BYTES} are implemented"
        )


def _check_rows(plan: GemmPlan) -> None:
    """Check per-row values: a row is in the registers of the CTAs of a cluster along N."""
    if plan.teams > 1 or plan.splits > 1 or plan.grid_splits > 1:
        raise Refusal("numbers per row are implemented without ping-pong and without splitting K")
    if plan.problem.epilogue.reduces_rows and "size_n" in plan.problem.runtime:
        raise Refusal(
            "row reductions need a number of columns that is known when the kernel is compiled; use hl.specialize"
        )
    parted = plan.problem.outputs_of("tile")
    if parted and (plan.cluster[1] > 1 or parted != plan.problem.outputs):
        raise Refusal("tiles that reduce their own columns have one CTA each, and store nothing else")
    if plan.problem.epilogue.reduces_rows and plan.work[1] > 1 and not parted:
        held = plan.cluster[1] * plan.tile[1]
        raise Refusal(
            f"rows of {plan.problem.n} columns are reduced, of which {plan.cluster[1]} tiles of {plan.tile[1]} hold {held}"
        )
    check_passes(plan)


def _stores_by_warps(plan: GemmPlan) -> bool:
    """Return whether each warp stores its own rows of a sub-tile.

    It does where warps have no other barrier between tiles: rows are reduced, and row operands stay. A warp's rows of a
    sub-tile are adjacent in shared memory if no longer than a swizzle atom (measurement ``cute_warp_stores``).
    """
    shared_by_tile = plan.problem.epilogue.of_kind("row") and not plan.columns_stay
    return (
        plan.unit == "wgmma"
        and (plan.problem.groups, plan.row_atoms) == (None, 1)
        and plan.problem.epilogue.reduces_rows
        and not shared_by_tile
        and all(plan.epilogue_n * itemsize(each.dtype) <= SWIZZLE_BYTES for each in plan.problem.outputs_of("exact"))
    )


def _check_residents(plan: GemmPlan) -> None:
    most = residents_of(plan.problem) if plan.converts and plan.tile[0] == WGMMA_ROWS else 2
    if not 1 <= plan.ctas_per_sm <= most:
        raise Refusal(f"{plan.ctas_per_sm} CTAs on an SM; up to {most} are implemented with a tile of {plan.tile}")
    if plan.ctas_per_sm == 1:
        return
    if plan.unit != "wgmma" or plan.teams > 1 or (plan.splits > 1 and not plan.converts):
        raise Refusal("CTAs share an SM on wgmma, without ping-pong, and without splitting K unless A is in registers")
    sums = plan.sum_columns // 2 * plan.row_atoms * (2 if plan.promote else 1)
    if sums > MAX_RESIDENT_SUM_REGISTERS // (plan.ctas_per_sm - 1):
        raise Refusal(
            f"{plan.ctas_per_sm} CTAs on an SM with {sums} accumulator registers per thread; up to"
            f" {MAX_RESIDENT_SUM_REGISTERS // (plan.ctas_per_sm - 1)} leave room for all"
        )


def _is_plain(plan: GemmPlan) -> bool:
    """Return whether a matmul in 16 bits is stored as it is, by warpgroups that have a tile together."""
    problem = plan.problem
    of_parts = plan.parts > 1 or plan.teams > 1 or problem.terms or problem.groups or problem.ends or problem.scales
    computed = problem.epilogue.instructions or problem.epilogue.operands or problem.copied or problem.strided
    return plan.operand_bytes == 2 and not of_parts and not computed and not plan.promote


def _check_wgmma(plan: GemmPlan) -> None:
    m, n = plan.tile[0], plan.sum_columns
    if plan.ctas_per_mma != 1:
        raise Refusal("wgmma runs within one CTA; pairs need tcgen05")
    rows = (WGMMA_ROWS, 2 * WGMMA_ROWS) if plan.teams > 1 else (WGMMA_ROWS, 2 * WGMMA_ROWS, 4 * WGMMA_ROWS)
    if m not in rows:
        raise Refusal(f"a tile of {m} rows; {', '.join(map(str, rows))} are implemented on wgmma")
    if plan.operand_bytes == 1 and (plan.problem.a_major, plan.problem.b_major) != ("k", "k"):
        raise Refusal("operands of 8 bits have to be contiguous along K on wgmma")
    if n % 16 or not 16 <= n <= 256:
        raise Refusal(f"a tile of {n} columns; multiples of 16 up to 256 are implemented on wgmma")
    sums = n // 2 * plan.row_atoms * (2 if plan.promote else 1)
    most = MAX_SUM_REGISTERS if not plan.problem.copied or loads_while_copying(plan) else MAX_COPIED_SUMS
    most = MAX_PLAIN_SUM_REGISTERS if _is_plain(plan) else most
    if sums > most:
        raise Refusal(f"a tile of {m}×{n} keeps {sums} accumulator registers per thread; up to {most} leave room")
    few = plan.consumer_warps > 4 and through_registers(plan)
    if plan.splits > 1 and n // 2 * plan.row_atoms > MAX_SPLIT_SUM_REGISTERS // (2 if few else 1):
        raise Refusal(
            f"a tile of {m}×{n}, whose accumulator leaves no room for the partials of other CTAs that split K"
        )


def _check_tcgen05(plan: GemmPlan) -> None:
    m, n = plan.tile[0], plan.sum_columns
    if plan.cta_tile[0] != 128 and m != 64:
        raise Refusal(
            f"a tile of {m} rows for {plan.ctas_per_mma} CTAs; 64, and 128 per CTA, are implemented on tcgen05"
        )
    step = 16 * plan.ctas_per_mma
    if n % step or not step <= n <= 256:
        raise Refusal(f"a tile of {n} columns; multiples of {step} up to 256 are implemented on tcgen05")
    if plan.promote or plan.problem.rounded:
        raise Refusal("tcgen05 accumulates in fp32; matmuls of K tiles are neither promoted nor rounded before")
    kept = n // 2 if plan.paired else n
    if promoted(plan.problem.scales) is not None and kept > MAX_SCALED_SUMS:
        raise Refusal(
            f"a tile of {m}×{n} with scales keeps {kept} accumulator registers per thread; up to {MAX_SCALED_SUMS} leave room"
        )
    if plan.teams > 1:
        raise Refusal("ping-pong is for wgmma; tcgen05 overlaps its epilogue with the next tile anyway")


def _accumulator_stages(plan: GemmPlan, choice: Choice) -> int:
    """Return the accumulator stages. Two let the mainloop of the next tile overlap the epilogue; each block of K with
    scales takes one."""
    if plan.unit == "wgmma":
        return accumulators_in_turn(plan, choice.accumulator_stages or 1)
    if choice.accumulator_stages is not None:
        if not 1 <= choice.accumulator_stages <= MAX_ACCUMULATOR_STAGES:
            raise Refusal(
                f"{choice.accumulator_stages} accumulator stages; 1 to {MAX_ACCUMULATOR_STAGES} are implemented"
            )
        return choice.accumulator_stages
    most = MAX_ACCUMULATOR_STAGES if promoted(plan.problem.scales) is not None else 2
    columns = plan.tensor_memory_limit_columns - MAX_STAGES * micro_columns(plan)
    return max(1, min(most, columns // plan.sum_columns))


def _check_fits(plan: GemmPlan) -> None:
    if plan.ab_stages < (least := least_stages(plan)):
        raise Refusal(
            f"{plan.ab_stages} stages of A and B; at least {least} are needed to load one while another is read"
        )
    if shared_bytes(plan) > plan.shared_limit_bytes:
        raise Refusal(
            f"{plan.ab_stages} stages need {shared_bytes(plan)} bytes of shared memory; a CTA has {plan.shared_limit_bytes}"
        )
    columns = counts(plan).tensor_memory_columns
    if columns > plan.tensor_memory_limit_columns:
        raise Refusal(
            f"{plan.accumulator_stages} accumulator stages need {columns} columns of tensor memory; there are"
            f" {plan.tensor_memory_limit_columns}"
        )
