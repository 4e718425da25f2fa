"""``plan_attention``: the plan of one choice, its pipelines and shared memory."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from ....._support.records import dataclass
from .....hardware import Target
from ..counts import PipelineCounts
from ..dtypes import DTYPES, FLOAT_DTYPES, itemsize
from ..epilogue import COLUMN_NUMBER, ROW_NUMBER
from ..records import SUM_BYTES, TMA_ALIGNMENT_BYTES, WARPGROUP_THREADS, WGMMA_ROWS
from ..refusal import Refusal
from ..shared import RING_ALIGNMENT_BYTES, WORD_BYTES, Allocation, placed
from ..workspace import COUNTER_BYTES, MAX_COUNTERS
from .numbers import is_known
from .operands import SPAN_DIMENSIONS, Matrix
from .records import (
    COLUMNS_AT_ONCE,
    LATENT_GROUPS,
    LAZY,
    ROWS_OF_WARP,
    AttentionChoice,
    AttentionPlan,
    AttentionProblem,
    Formula,
    ScorePlan,
    ScoreProblem,
    biases,
)

MOST_GROUPS, MOST_KEYS, KEY_STEP = 3, 256, 16
HALF_DTYPES = ("bfloat16", "float16")
"""Types of operands of 16 bits."""
NARROW_DTYPES = ("float8_e4m3fn",)
"""Types of operands of 8 bits, whose MMAs take both operands with contiguous K."""
LARGEST = {"float16": 65504.0, "float8_e4m3fn": 448.0}
"""The largest finite numbers of types with a smaller range than fp32."""
QUAD = 4
"""Consecutive keys that a thread has in a register of weights of 8 bits."""
LEAST_STAGES, MOST_STAGES = 2, 4
"""The wait for a block of V comes one block before its use, which needs two stages."""
MOST_BUFFERS = 2
"""Tiles of queries in shared memory. There is one where the output takes their place, where queries are in two tensors, and in
tiles of one group, which spill with two (measurement ``attention_registers``)."""
MOST_COLUMNS, COLUMN_STEP = 256, 16
LATENT_COLUMNS, LATENT_STEP = (576, 512), 64
"""The most columns of K and of V of latent attention, and what those of K are a multiple of: the columns of a swizzle."""
REGISTERS = {1: (248, 248), 2: (24, 240), 3: (32, 160)}
"""Registers of a loading and of a consumer thread by number of consumer groups, in steps of 8. With one group all threads
keep those that they are launched with."""
LATENT_REGISTERS = (40, 232)
"""The same of latent attention: each load of a block is one of 64 columns at a time."""
OTHER_REGISTERS = 27
"""Registers besides accumulators, scores and weights, without those of masks (measurement ``attention_registers``)."""
MOST_POSITIONS = 2**23
"""Most rows of formulas that read positions: fp32 holds these, and half of one more."""
MOST_MODES = 5
"""Dimensions of a TMA descriptor (CUDA driver API, ``cuTensorMapEncodeTiled``)."""
L2_FOR_KEYS = 0.5
"""Fraction of the L2 cache for K and V of the heads of a band."""
TILE_SLOTS = 2
"""Stages of the mailbox of a dynamic tile scheduler."""


@dataclass(frozen=True, kw_only=True)
class AttentionCounts:
    """Counts of the pipelines: blocks of K and of V, tiles of Q (a stage per 64 queries), and tile numbers."""

    q: PipelineCounts
    k: PipelineCounts
    v: PipelineCounts | None
    bias: PipelineCounts | None
    tile: PipelineCounts | None


def plan_attention(problem: AttentionProblem, choice: AttentionChoice, target: Target) -> AttentionPlan:
    """Return the plan. Raises ``Refusal`` for a choice that is not implemented or does not fit."""
    check_problem(problem)
    if not target.has("wgmma"):
        raise Refusal(f"attention is implemented for wgmma, which {target} does not have")
    _check_choice(problem, choice)
    found: AttentionPlan | None = None
    cached = cached_rows(problem, target)
    stages = range(MOST_STAGES, LEAST_STAGES - 1, -1) if choice.stages is None else (choice.stages,)
    for number, own, buffers in itertools.product(stages, (True, False), range(MOST_BUFFERS, 0, -1)):
        if problem.latent if own else (choice.splits > 1 and not problem.latent) or not may_share(problem):
            continue
        if buffers > 1 and (not own or choice.splits > 1 or choice.groups == 1 or problem.rests):
            continue
        found = AttentionPlan(
            problem=problem,
            groups=choice.groups,
            keys=choice.keys,
            stages=number,
            pingpong=choice.pingpong and choice.groups > 1,
            lazy=choice.lazy,
            scheduler=choice.scheduler,
            splits=choice.splits,
            bias_stages=choice.bias_stages,
            combining=combining_ctas(problem, choice, target),
            own_output=own,
            row_buffers=buffers,
            heads_per_band=heads_per_band(problem, cached),
            cached_rows=cached,
            shared_limit_bytes=target.smem_per_block_bytes,
            registers_per_sm=target.registers_per_sm,
            registers_per_thread=target.max_registers_per_thread,
        )
        if shared_bytes(found) <= found.shared_limit_bytes:
            return found
    assert found is not None
    raise Refusal(
        f"tiles of {found.rows} queries and {found.keys} keys with {found.stages} stages need {shared_bytes(found)} bytes"
        f" of shared memory; a CTA has {found.shared_limit_bytes}"
    )


def _check_choice(problem: AttentionProblem, choice: AttentionChoice) -> None:
    if not 1 <= choice.groups <= MOST_GROUPS:
        raise Refusal(f"tiles of {WGMMA_ROWS * choice.groups} queries; 64, 128 and 192 are implemented")
    step = key_step(problem)
    if choice.keys % step or not step <= choice.keys <= MOST_KEYS:
        raise Refusal(f"blocks of {choice.keys} keys; multiples of {step} up to {MOST_KEYS} are implemented")
    if choice.stages is not None and not LEAST_STAGES <= choice.stages <= MOST_STAGES:
        raise Refusal(f"{choice.stages} stages of K and V; {LEAST_STAGES} to {MOST_STAGES} are implemented")
    pages = problem.k.pages
    if pages is not None and pages.size % choice.keys:
        raise Refusal(f"blocks of {choice.keys} keys in pages of {pages.size}; a block is implemented within a page")
    if problem.latent and choice.groups > 1:
        raise Refusal(f"tiles of {WGMMA_ROWS * choice.groups} queries; latent attention has tiles of {WGMMA_ROWS}")
    if not problem.softmax and (choice.lazy or choice.splits > 1):
        raise Refusal("wgmma_lazy_rescale and wgmma_key_splits are implemented for weights of a softmax")
    if choice.lazy and not takes_lazy(problem):
        raise Refusal(
            f"wgmma_lazy_rescale with weights in {problem.q.dtype} of up to 2**{problem.lift:g} is not implemented: they may be"
            f" 2**{LAZY:g} times larger, which is out of range"
        )
    if choice.splits > 1:
        groups = choice.groups * (LATENT_GROUPS if problem.latent else 1)
        check_splits(problem, choice, WGMMA_ROWS * choice.groups, groups)
    if choice.bias_stages:
        check_bias(problem)
    size, shared = itemsize(problem.q.dtype), LATENT_GROUPS if problem.latent else 1
    groups, most = choice.groups * shared, consumer_registers(choice.groups, problem.latent)
    needed = registers_of(problem.v.columns // shared, choice.keys, size, bool(problem.rounded))
    needed += bias_registers(choice)
    if needed > most:
        raise Refusal(
            f"{groups} consumer groups with blocks of {choice.keys} keys need {needed} registers per thread; they"
            f" have {most}"
        )


def check_bias(problem: AttentionProblem) -> None:
    """Check that TMA takes the one bias of scores in tiles, and that threads have pairs of its keys. Raises ``Refusal``."""
    key, (bias, *others) = "wgmma_bias_stages", biases(problem) or (None,)
    if bias is None or others:
        raise Refusal(
            f"{key} with {len(biases(problem))} tensors per query and key that scores read; one is implemented"
        )
    if bias.dtype not in HALF_DTYPES or problem.q.dtype in NARROW_DTYPES:
        raise Refusal(
            f"{key} with {bias.name} in {bias.dtype} and {problem.q.name} in {problem.q.dtype} is not implemented"
        )
    if problem.spans_keys or problem.spans_queries or problem.latent or problem.k.pages is not None:
        raise Refusal(
            f"{key} is not implemented where keys or queries are bounded by loaded integers, in pages, or where values are the"
            " first dimensions of keys"
        )
    steps = (bias.pitches[0], bias.offset, *(mode.stride for mode in bias.modes))
    if bias.pitches[1] != 1 or not all(
        map(is_known, (problem.queries, problem.keys, *problem.heads, *bias.pitches, *steps))
    ):
        raise Refusal(f"{key} with {bias.name} is implemented for contiguous keys, and sizes known before a launch")
    for step in steps:
        if step * itemsize(bias.dtype) % TMA_ALIGNMENT_BYTES:
            raise Refusal(
                f"{bias.name} has a stride or offset of {step} elements; {key} needs a multiple of {TMA_ALIGNMENT_BYTES} bytes"
            )
    if bias.pitches[0] <= 0 or any(mode.stride <= 0 for mode in bias.modes) or 2 + len(bias.modes) > MOST_MODES:
        raise Refusal(
            f"{key} with {bias.name}, which is expanded or has {2 + len(bias.modes)} dimensions, is not implemented"
        )


def takes_bias(problem: AttentionProblem) -> bool:
    """Return whether TMA takes the bias of scores in tiles."""
    try:
        check_bias(problem)
    except Refusal:
        return False
    return True


def bias_registers(choice: AttentionChoice) -> int:
    """Return the registers of a block's bias, in pairs of 16 bits."""
    return choice.keys // 4 if choice.bias_stages else 0


def check_splits(problem: AttentionProblem, choice: AttentionChoice, rows: int, groups: int) -> None:
    """Check that each part of the keys has a block, in every tile of ``rows``, whose ``groups`` combine partials by themselves.
    Raises ``Refusal``."""
    if not all(map(is_known, (*problem.heads, problem.queries))):
        raise Refusal("keys are split among CTAs for numbers of heads and queries that are known before a launch")
    if problem.key_range is not None or problem.query_span is not None:
        raise Refusal("keys are split among CTAs where bounds of queries, and of the keys of a query, are not loaded")
    tiles = -(-problem.queries // rows)
    if choice.scheduler != "static":
        raise Refusal("keys are split among CTAs with a static tile scheduler")
    if tiles > 1 and not problem.band.is_whole:
        raise Refusal("keys are split among CTAs where all queries of a head are one tile, or see all keys")
    blocks = visited_blocks(problem, rows, choice.keys)
    if choice.splits > blocks and is_known(problem.keys) and problem.key_span is None:
        raise Refusal(f"{blocks} blocks of keys are split among {choice.splits} CTAs")
    counters = tiles * problem.batches * groups
    if counters > MAX_COUNTERS:
        raise Refusal(f"{counters} tiles with split keys; up to {MAX_COUNTERS} are implemented")


def combining_ctas(problem: AttentionProblem, choice: AttentionChoice, target: Target) -> int:
    """Return the CTAs that each combine some columns of a tile's partials, 1 if the last to arrive combines all columns.

    CTAs that combine at once wait for each other, so that the GPU has to hold all of them. They are faster, unless all queries
    are those of one warp (measurement ``combined_at_once``).
    """
    if choice.splits == 1 or choice.groups > 1 or (problem.queries <= ROWS_OF_WARP and not problem.latent):
        return 1
    pieces = -(-problem.queries // WGMMA_ROWS) * problem.batches * choice.splits
    chunks, rest = divmod(problem.v.columns // (LATENT_GROUPS if problem.latent else 1), COLUMNS_AT_ONCE)
    few = pieces <= target.num_sms and not rest and itemsize(problem.matrix.dtype) == 2
    return math.gcd(choice.splits, chunks) if few else 1


def visited_blocks(problem: AttentionProblem, rows: int, keys: int) -> int:
    """Return the blocks of keys that the first tile of queries visits, at least one."""
    band, blocks = problem.band, -(-problem.keys // keys)
    _, rows = band.queries_of("", rows)
    end = blocks if band.last is None else max(1, min(blocks, -(-max(band.last + rows, 0) // keys)))
    begin = 0 if band.first is None else min(max(band.first, 0) // keys, end - 1)
    return end - begin


def takes_lazy(problem: AttentionProblem) -> bool:
    """Return whether weights that are relative to a smaller maximum are in the range of their type, and so are products that
    are rounded: in float16 a block of larger weights would overflow where the program does not."""
    return problem.rounded != "float16" and 2.0 ** (LAZY + problem.lift) <= LARGEST.get(problem.q.dtype, math.inf)


def key_step(problem: AttentionProblem) -> int:
    """Return the number of keys of which blocks have a multiple: K of one MMA."""
    return DTYPES[problem.q.dtype].mma_k


def consumer_registers(groups: int, latent: bool = False) -> int:
    """Return the registers of a consumer thread with ``groups`` of 64 queries."""
    return (LATENT_REGISTERS if latent else REGISTERS[groups])[1]


def registers_of(columns: int, keys: int, operand_bytes: int = 2, rounded: bool = False) -> int:
    """Return the estimated registers of a consumer thread: the accumulator of ``columns``, fp32 scores, and weights in the
    operand type. Operands of 8 bits, and products that are ``rounded``, have a product of each block as well."""
    accumulators = columns // 2 * (2 if operand_bytes == 1 or rounded else 1)
    return accumulators + keys // 2 + keys * operand_bytes // 8 + OTHER_REGISTERS


def check_problem(problem: AttentionProblem) -> None:
    """Check that the tensors can be loaded and multiplied. Raises ``Refusal``."""
    if not problem.keys:
        raise Refusal("attention without keys is not implemented")
    if problem.q.columns != problem.k.columns:
        raise Refusal(f"heads of q and k have {problem.q.columns} and {problem.k.columns} dimensions")
    for matrix in (problem.q, problem.k, problem.v):
        if matrix.dtype != problem.q.dtype or matrix.dtype not in (*HALF_DTYPES, *NARROW_DTYPES):
            raise Refusal(
                "attention of three tensors in bfloat16, float16 or float8_e4m3fn is implemented, not"
                f" {matrix.name} in {matrix.dtype} and {problem.q.name} in {problem.q.dtype}"
            )
        check_matrix(matrix, problem.spans_queries if matrix is problem.q else problem.spans_keys)
        step = COLUMN_STEP if matrix is problem.v else DTYPES[matrix.dtype].mma_k
        if not problem.latent and (matrix.columns % step or not step <= matrix.columns <= MOST_COLUMNS):
            raise Refusal(
                f"heads of {matrix.columns} dimensions; multiples of {step} up to {MOST_COLUMNS} are implemented, or more"
                " where values are the first dimensions of keys, as k[..., :512]"
            )
    _check_rests(problem)
    if problem.v.turned and (problem.spans_keys or problem.v.pages is not None):
        raise Refusal(
            f"{problem.v.name} with contiguous keys is not implemented where these are bounded by loaded integers, or in pages"
        )
    if problem.latent:
        _check_latent(problem)
    elif problem.q.dtype in NARROW_DTYPES:
        _check_narrow(problem)
    matrices = [output for output in problem.outputs if output.kind == "exact"]
    if len(matrices) != 1:
        raise Refusal(f"attention with one output matrix is implemented, not with {len(matrices)}")
    (output,) = matrices
    if output.dtype not in FLOAT_DTYPES:
        raise Refusal(f"outputs in {', '.join(FLOAT_DTYPES)} are implemented, not {output.name} in {output.dtype}")
    check_matrix(output.matrix, problem.spans_queries)
    if problem.draws and (problem.loaded or problem.k.pages is not None):
        raise Refusal(
            "random numbers in attention whose keys or queries are bounded by loaded integers are not implemented"
        )
    dropped = () if problem.dropped is None else (problem.dropped,)
    check_positions(problem, (problem.score, *dropped, problem.finish))


def _check_rests(problem: AttentionProblem) -> None:
    """Check columns of Q and of K that are in other tensors: each part has the columns of some swizzles. Raises ``Refusal``."""
    for whole, rest in ((problem.q, problem.q_rest), (problem.k, problem.k_rest)):
        if rest is None:
            continue
        check_matrix(rest, problem.spans_queries if rest is problem.q_rest else problem.spans_keys)
        if rest.dtype != whole.dtype or whole.dtype not in HALF_DTYPES:
            raise Refusal(
                f"scores that are sums of matmuls of {whole.name} in {whole.dtype} and {rest.name} in {rest.dtype}; both in"
                f" one of {', '.join(HALF_DTYPES)} are implemented"
            )
        if rest.columns % LATENT_STEP or whole.columns % LATENT_STEP:
            raise Refusal(
                f"scores that are sums of matmuls of {whole.columns - rest.columns} dimensions of {whole.name} and"
                f" {rest.columns} of {rest.name}; multiples of {LATENT_STEP} are implemented"
            )


def _check_latent(problem: AttentionProblem) -> None:
    """Check the dimensions of keys whose first ones are values, and that Q has room for the output. Raises ``Refusal``."""
    pair, step = (problem.k.columns, problem.v.columns), LATENT_GROUPS * LATENT_STEP
    if problem.q.dtype not in HALF_DTYPES:
        raise Refusal(f"values that are the first dimensions of keys in {problem.q.dtype} are not implemented")
    if problem.rounded:
        raise Refusal(
            f"p @ v that is rounded to {problem.rounded} before it is added is not implemented where values are the first"
            " dimensions of keys; hl.dot(p, v, acc=acc) and torch.baddbmm(acc, p, v) add it as it is"
        )
    if pair[0] % LATENT_STEP or pair[1] % step or pair[0] > LATENT_COLUMNS[0] or pair[1] > LATENT_COLUMNS[1]:
        raise Refusal(
            f"keys of {pair[0]} dimensions whose first {pair[1]} are values; multiples of {LATENT_STEP} and {step} up to"
            f" {LATENT_COLUMNS[0]} and {LATENT_COLUMNS[1]} are implemented"
        )
    if not may_share(problem):
        raise Refusal(
            f"values of {pair[1]} dimensions whose output in {problem.matrix.dtype} is larger than the queries are not implemented"
        )


def _check_narrow(problem: AttentionProblem) -> None:
    """Check what operands of 8 bits need. Raises ``Refusal``."""
    dtype, k, v = problem.q.dtype, problem.k, problem.v
    if not v.turned:
        raise Refusal(
            f"{v.name} in {dtype} with contiguous dimensions of a head is not implemented: MMAs of 8 bits take contiguous keys;"
            f" pass {v.name}.mT.contiguous().mT, which is as large"
        )
    if problem.spans_keys or problem.spans_queries or k.pages is not None:
        raise Refusal(
            f"keys or queries in {dtype} that are bounded by loaded integers, or in pages, are not implemented"
        )
    if is_known(problem.keys):
        check_quads(problem)
    if problem.query.instructions:
        raise Refusal(f"queries in {dtype} that the kernel computes are not implemented; scale the scores instead")
    if len(k.modes) + 3 > MOST_MODES:
        raise Refusal(
            f"{k.name} in {dtype} has {len(k.modes)} dimensions of heads; up to {MOST_MODES - 3} are implemented"
        )


def check_quads(problem: AttentionProblem) -> None:
    """Check the number of keys of operands of 8 bits, of which hints of sizes need not be multiples. Raises ``Refusal``."""
    if problem.q.dtype in NARROW_DTYPES and problem.keys % QUAD:
        raise Refusal(
            f"attention in {problem.q.dtype} with {int(problem.keys)} keys is not implemented; with a multiple of {QUAD} it is"
        )


def check_positions(problem: ScoreProblem, formulas: Sequence[Formula]) -> None:
    """Check that fp32 holds the positions that formulas read. Raises ``Refusal``."""
    numbered = any(made.op in (ROW_NUMBER, COLUMN_NUMBER) for formula in formulas for made in formula.instructions)
    most = max(int(problem.queries), int(problem.keys))
    if numbered and most > MOST_POSITIONS:
        raise Refusal(f"formulas of positions of {most} rows are not implemented; up to {MOST_POSITIONS} are")


def check_matrix(matrix: Matrix, spanned: bool = False) -> None:
    """Check that TMA takes a matrix, or with ``spanned`` a span of its rows. Raises ``Refusal``."""
    width = itemsize(matrix.dtype)
    for pitch in (matrix.pitch, matrix.offset, *(mode.stride for mode in matrix.modes)):
        if is_known(pitch) and pitch * width % TMA_ALIGNMENT_BYTES:
            raise Refusal(
                f"{matrix.name} has a stride or offset of {pitch} elements, {pitch * width} bytes; TMA needs a multiple of"
                f" {TMA_ALIGNMENT_BYTES} bytes"
            )
    dimensions = 2 + len(matrix.modes) + (SPAN_DIMENSIONS if spanned else 0)
    if dimensions > MOST_MODES:
        more = f", {SPAN_DIMENSIONS} for the span of its rows" if spanned else ""
        raise Refusal(f"{matrix.name} has {dimensions} dimensions{more}; TMA takes {MOST_MODES}")


def may_share(problem: AttentionProblem) -> bool:
    """Return whether the output can take the shared memory of Q: it has the same shape and element size, or a layout of
    its own in latent attention."""
    output, q = problem.matrix, problem.q
    if problem.latent:
        return output.matrix.columns * itemsize(output.dtype) <= q.columns * itemsize(q.dtype)
    return output.matrix.columns == q.columns and itemsize(output.dtype) == itemsize(q.dtype)


def cached_rows(problem: AttentionProblem, target: Target) -> int:
    row = (problem.k.columns + problem.v.columns) * itemsize(problem.k.dtype)
    return int(L2_FOR_KEYS * target.l2_bytes) // row


def heads_per_band(problem: AttentionProblem, cached_rows: int) -> int:
    readers = max(1, problem.batches // max(1, math.prod(mode.size for mode in problem.k.modes)))
    return max(1, min(problem.batches, cached_rows // max(1, problem.keys) * readers))


@functools.lru_cache(maxsize=1024)
def counts(plan: AttentionPlan) -> AttentionCounts:
    """Return the counts of ``plan``."""
    return AttentionCounts(
        q=PipelineCounts(
            stages=plan.groups * plan.row_buffers,
            full_arrivals=1,
            empty_arrivals=4 if plan.own_output else plan.column_groups,
            transaction_bytes=WGMMA_ROWS * plan.problem.q.columns * plan.operand_bytes,
        ),
        k=blocks_counts(plan, plan.problem.k.columns),
        v=None if plan.problem.latent else blocks_counts(plan, plan.problem.v.columns),
        bias=PipelineCounts(
            stages=plan.bias_stages,
            full_arrivals=1,
            empty_arrivals=plan.consumer_warps,
            transaction_bytes=plan.rows * plan.keys * itemsize(plan.bias.dtype),
        )
        if plan.bias is not None
        else None,
        tile=PipelineCounts(stages=TILE_SLOTS, full_arrivals=1, empty_arrivals=1 + plan.consumer_warps)
        if plan.scheduler == "dynamic"
        else None,
    )


def blocks_counts(plan: ScorePlan, columns: int) -> PipelineCounts:
    """Return the counts of the pipeline of blocks of a matrix, each of which every consumer warp reads."""
    return PipelineCounts(
        stages=plan.stages,
        full_arrivals=1,
        empty_arrivals=plan.consumer_warps,
        transaction_bytes=plan.keys * columns * plan.operand_bytes,
    )


@functools.lru_cache(maxsize=1024)
def shared_memory(plan: AttentionPlan) -> tuple[Allocation, ...]:
    """Return every allocation of ``plan``, by offset."""
    numbers = counts(plan)
    wanted = [("shared_q", numbers.q.stages * numbers.q.transaction_bytes, RING_ALIGNMENT_BYTES)]
    if plan.own_output:
        output = plan.problem.matrix
        size = plan.rows * output.matrix.columns * itemsize(output.dtype)
        wanted.append(("shared_o", size, RING_ALIGNMENT_BYTES))
    rings = {name: ring for name in ("k", "v", "bias") if (ring := getattr(numbers, name)) is not None}
    wanted += [
        (f"shared_{name}", ring.stages * ring.transaction_bytes, RING_ALIGNMENT_BYTES) for name, ring in rings.items()
    ]
    wanted += [
        (f"{name}_barriers", ring.barrier_words * WORD_BYTES, WORD_BYTES)
        for name, ring in {"q": numbers.q, **rings}.items()
    ]
    if plan.splits > 1:
        wanted.append(("shared_counts", 4 * plan.consumer_groups, WORD_BYTES))
    if numbers.tile is not None:
        wanted.append(("tile_barriers", numbers.tile.barrier_words * WORD_BYTES, WORD_BYTES))
        wanted.append(("tile_slots", 4 * TILE_SLOTS, WORD_BYTES))
    return tuple(placed(wanted))


def shared_bytes(plan: AttentionPlan) -> int:
    """Return the total bytes, which the launch requests."""
    last = shared_memory(plan)[-1]
    return last.offset_bytes + last.size_bytes


def workspace_bytes(plan: AttentionPlan) -> int:
    """Return the bytes of the workspace: counters, and the partials of split keys; 0 without both."""
    if plan.scheduler != "dynamic" and plan.splits == 1:
        return 0
    partials = plan.pieces * plan.consumer_groups * WARPGROUP_THREADS * plan.partial_values if plan.splits > 1 else 0
    return MAX_COUNTERS * COUNTER_BYTES + SUM_BYTES * partials


def counter_bytes(plan: AttentionPlan) -> int:
    """Return the bytes of the counters that a launch uses, which are zero between launches."""
    split = plan.tiles * plan.consumer_groups if plan.splits > 1 else 0
    return COUNTER_BYTES * (1 if plan.scheduler == "dynamic" else split)
