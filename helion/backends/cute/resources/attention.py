"""An attention as its facts describe it, and the predicted time of a launch.

An SM needs the time of the softmax, or that of the MMAs, for one score of one query, whichever is longer; both overlap.
The rates are fitted to timings of outputs and of decoding (measurement ``attention_rates``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from ...._compiler.decisions import Decisions
from ...._compiler.facts.access import MemoryOpFact
from ...._compiler.facts.records import AttentionFact, AxisFact, KernelFacts, MatmulFact
from ...._support.records import dataclass, field, replace
from ....autotuner.proposal import Predicted
from ....hardware import Target
from ..plan.attention.build import MOST_COLUMNS, MOST_STAGES, REGISTERS, consumer_registers, registers_of
from ..plan.attention.operands import PAIR
from ..plan.attention.records import LATENT_GROUPS, AttentionChoice
from ..plan.records import TMA_ALIGNMENT_BYTES, WGMMA_ROWS

PLAIN_OPS = 4
"""Elementwise operations on a score of a softmax without a formula: scale, difference, exponential, rounding."""
MASKED_KEYS = 256
"""Keys of a tile in blocks that both ends of a window mask, of 128 keys."""
NARROW, LONG_KEYS = 64, 128
"""The most dimensions of narrow heads, and the keys of blocks that are not short."""
SHARING, THREADS = 2, 128
"""CTAs that share an SM, and threads of a group of consumers or of the loading one."""
MASKED_REGISTERS = 18
"""Registers that masks of the diagonal add."""
MASK_OPS = {"bounds": 2, "window": 5, "loaded": 4}
"""Those of a mask that most blocks do not have, by its kind. One by positions compares and selects. A window subtracts, compares
twice, joins and selects, and so do loaded bounds, which need no difference."""

CHUNK_OPS = 2
"""Those that a mask by chunks adds to one by positions: a comparison of quotients, and a junction."""

ROUNDING_OPS = 2.5
"""Instructions for an element of a product that is rounded and added: half a conversion, a shift or a mask, an addition, half a copy."""


@dataclass(frozen=True, kw_only=True)
class AttentionRates:
    """Rates of one SM at its usual clock. Those of other SMs are scaled by their matrix rate (``relative_rate``)."""

    matrix_tflops: float = 7.492424
    """Matrix rate of the SM that they belong to, for 16-bit operands."""
    softmax_ns: float = 0.059
    """Time of the softmax of a score without a formula."""
    column_ns: float = 0.000315
    """Time of the MMAs of a score, for each dimension of q and of v."""
    overlap: float = 4.0
    """Exponent of the norm that combines both."""
    operation_ns: float = 0.0097
    special_ns: float = 0.032
    """Time that an operation of the formula adds, and one of the special function unit."""
    gather_ns: float = 0.062
    """Time that a read of a table adds, by a computed index, and one of an integer for each query and key. Both are fitted to
    six kernels on an H200 (tables in benchmarks/results/cute/nvidia-h200-attention.jsonl)."""
    pair_ns: float = 0.33
    load_ns: float = 0.113
    """Time that a load of one element for each query and key adds, which is that of eight rows in a warp. It is fitted to a
    bias (measurement ``attention_rates``)."""
    bias_ns: float = 0.025
    """Time that an element of a bias adds which TMA loads: a conversion, an eighth of a matrix load, and exponents that
    subtract before they multiply. It is fitted to four biases (measurement ``attention_rates``)."""
    draw_ns: float = 0.49
    key_draw_ns: float = 0.64
    """Time of Philox for a random number, next to which neither MMAs nor exponentials are seen: of outputs and gradients of
    queries, and of gradients of keys. They are fitted to five kernels on an H200 (``dropout_times`` in
    benchmarks/results/cute/nvidia-h200-attention.jsonl)."""
    tile_us: float = 1.6
    """Prologue and epilogue of a tile: the first scores and the last output overlap with nothing of the group."""
    dynamic_us: float = 1.0
    """The part of it that remains where the tiles of a persistent CTA overlap."""
    single: float = 1.45
    """Factor of one consumer group, whose softmax overlaps with its own MMAs alone."""
    shared: float = 0.8
    """The same where two CTAs share an SM, of which one computes exponentials while the other multiplies. It is fitted to four
    kernels with heads of 64 on an H200 (measurement ``attention_shared``)."""
    triple: float = 0.89
    """Factor of three groups, of which two compute exponentials while one multiplies."""
    wide: float = 0.15
    """Loss where blocks of keys are short: the fraction for 64 keys, halved for 128."""
    short: float = 0.2
    """The further loss of the softmax of narrow heads in blocks of 64 keys, less in longer ones up to 128. It is fitted to causal
    masks and windows of heads of 64 on an H200 (``sweep`` in benchmarks/results/cute/nvidia-h200-attention.jsonl)."""
    masked: float = 0.6
    """Loss by masks of windows: the fraction for ``MASKED_KEYS`` keys of a tile, less for more keys."""
    launch_us: float = 5.0
    memory: float = 0.82
    """Fraction of the memory bandwidth for the first reads of K and V."""
    sm_gb_per_s: float = 36.0
    """Most that one SM reads."""
    combine_us: float = 2.0
    """Store, count and combination of the partials of split keys."""
    latent_part_us: tuple[float, float] = (1.4, 0.15)
    """Time that each part adds to the combination of latent attention, whose partials have up to 512 columns: by the last CTA to
    arrive, and by all at once. They are fitted to nine times of decoding on an H200 (latent decode in
    benchmarks/results/cute/nvidia-h200-attention.jsonl), and to ten (measurement ``latent_at_once``)."""


RATES = AttentionRates()


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """An attention from facts. ``bounded``: each query sees about half of the keys."""

    heads: int
    queries: int
    keys: int
    qk_columns: int
    v_columns: int
    operand_bytes: int = 2
    rounded: bool = False
    """True if the product of a block is rounded before it is added."""
    blocks: tuple[int, int]
    """Blocks of queries and of keys."""
    head_blocks: tuple[int, ...]
    bounded: bool
    splittable: bool = True
    """True if heads and queries are known before a launch."""
    loaded: bool = False
    """True if the number of keys is loaded."""
    masked: bool
    """True if positions mask whole blocks of keys."""
    window: int | None
    """The keys that a query sees at most, where masks bound them on both sides."""
    operations: int
    special: int
    softmax: bool
    """True if weights are relative to a running maximum."""
    whole: bool = False
    """True if the queries are a dimension that has no tiles."""
    gathers: int = 0
    """Tables that a score reads by computed indices."""
    pairs: int = 0
    """Integers that are loaded for each query and key."""
    loads: float = 0.0
    """Loads of elements for each query and key, fewer where a load is of several elements."""
    bias: bool = False
    """True if TMA takes the one tensor with an element per query and key."""
    draws: int = 0
    """Random numbers that are drawn for a score."""
    latent: bool = False
    """True if V is the first columns of K, in heads too wide for copies of both."""
    output_bytes: int = 2
    """Bytes of an element of the output."""
    loaded_bytes: int
    """Bytes of K and V in memory."""
    fixed: Mapping[int, int] = field(default_factory=dict)

    @property
    def ranged(self) -> bool:
        """True if loaded integers alone bound the keys of a query."""
        return self.loaded and not self.masked

    @property
    def columns_in_memory(self) -> int:
        """Columns of a key in shared memory, those of its value included."""
        return self.qk_columns if self.latent else self.qk_columns + self.v_columns

    @property
    def flops(self) -> int:
        seen = self.keys // (2 if self.bounded else 1)
        pairs = self.heads * self.queries * min(seen, self.window or seen)
        return 2 * pairs * (self.qk_columns + self.v_columns)

    @property
    def bytes_moved(self) -> int:
        of_query = self.operand_bytes * self.qk_columns + self.output_bytes * self.v_columns
        return self.loaded_bytes + self.heads * of_query * self.queries


def describes(facts: KernelFacts) -> bool:
    """Return whether facts describe an attention."""
    fact = fact_of(facts)
    return fact is not None and fact.query_axis is not None and bool(_scores(facts))


def fact_of(facts: KernelFacts) -> AttentionFact | None:
    """Return the two chained dots, with or without a reduction between them."""
    return facts.attention or facts.weighted


def _scores(facts: KernelFacts) -> tuple[MatmulFact, ...]:
    """Return the one or two matmuls whose result, or sum, the last one consumes; nothing for other kernels."""
    *scores, output = facts.matmuls or (None,)
    consumed = output is not None and {each.number for each in scores if each is not None} == {*output.consumes}
    return tuple(each for each in scores if each is not None) if consumed and len(scores) in (1, 2) else ()


def shape_of(facts: KernelFacts) -> AttentionShape | str:
    """Return the shape, or the reason why facts do not show one."""
    fact = fact_of(facts)
    terms = _scores(facts)
    if fact is None or fact.query_axis is None or not terms:
        return "the kernel is no attention of one loop over keys"
    scores, output = terms[0], facts.matmuls[-1]
    queries = facts.axes[fact.query_axis].extent
    axis = facts.axes[fact.key_axis]
    keys = axis.extent or loaded_keys(facts, scores, axis, fact.window is not None)
    dims = [_extent(facts, each.k_axis, each.static_k) for each in terms]
    v = _extent(facts, output.n_axis, output.static_n)
    if queries is None or keys is None or None in dims or v is None:
        return "an extent of the attention depends on data"
    qk = sum(each for each in dims if each is not None)
    latent = _is_latent(facts, qk, v)
    loaded_bytes = _loaded_bytes(facts, terms) + (0 if latent else _loaded_bytes(facts, (output,)))
    others = [axis for axis in facts.axes if axis.on_grid and axis.block_id != fact.query_axis]
    pair = {fact.query_axis, fact.key_axis}
    work = [each for each in facts.work if each.region == fact.region and pair <= {*each.axes}]
    of_pairs = [op for op in facts.memory_ops if op.kind == "load" and pair <= {*op.tile_axes}]
    bounded = (fact.diagonal or fact.hidden) and 2 * queries > keys
    key_bytes = keys * (qk if latent else qk + v) * scores.rhs_dtype.itemsize
    heads, queries = _packed(facts, fact.query_axis, queries, others, loaded_bytes // max(1, key_bytes))
    if fact.chunk is not None and fact.chunk < min(queries, keys):  # chunks take as long as heads
        heads, queries, keys = heads * -(-queries // fact.chunk), fact.chunk, fact.chunk
    return AttentionShape(
        heads=heads,
        queries=queries,
        keys=keys,
        qk_columns=qk,
        v_columns=v,
        operand_bytes=scores.rhs_dtype.itemsize,
        rounded=not output.added,
        blocks=(fact.query_axis, fact.key_axis),
        head_blocks=tuple(axis.block_id for axis in others if axis.kind == "tile"),
        bounded=bounded,
        splittable=all(each.static or each.extent is None for each in (*others, facts.axes[fact.query_axis])),
        loaded=axis.extent is None,
        masked=fact.diagonal or fact.hidden,
        window=fact.window,
        loaded_bytes=loaded_bytes,
        operations=max(0, sum(each.ops for each in work) - PLAIN_OPS - _mask_operations(fact, axis)),
        special=max(0, sum(each.sfu_ops for each in work) - 1),
        softmax=any(
            each.region == fact.region and not {"max", "amax"}.isdisjoint(each.names) for each in facts.reductions
        ),
        output_bytes=_output_bytes(facts, fact.query_axis),
        whole=facts.axes[fact.query_axis].kind == "full",
        gathers=sum(op.gathered for op in of_pairs),
        pairs=sum(not op.gathered and not op.dtype.is_floating_point for op in of_pairs),
        loads=sum(_loads(op) for op in of_pairs if op.dtype.is_floating_point and not op.gathered),
        bias=len(of_pairs) == 1 and _takes_tiles(of_pairs[0]) and axis.extent is not None,
        draws=len(facts.random_tiles),
        latent=latent,
        fixed={axis.block_id: axis.size for axis in facts.axes if axis.kind == "fixed" and axis.size is not None},
    )


def _mask_operations(fact: AttentionFact, keys: AxisFact) -> int:
    if fact.diagonal or fact.hidden:
        return MASK_OPS["window" if fact.window else "bounds"] + CHUNK_OPS * (fact.chunk is not None)
    return MASK_OPS["loaded"] if keys.extent is None else 0


def _takes_tiles(op: MemoryOpFact) -> bool:
    """Return whether TMA takes tiles of a load of 16 bits per query and key."""
    aligned = op.static and op.aligned * op.itemsize % TMA_ALIGNMENT_BYTES == 0
    return aligned and op.dtype in (torch.bfloat16, torch.float16) and not op.gathered


def _loads(op: MemoryOpFact) -> float:
    """Return the loads for an element: half of one where two are loaded, or eight and exchanged between lanes, which takes as
    long (``hooks:64:bias`` and ``hooks:128:bias`` in benchmarks/results/nvidia-h200-attention.jsonl)."""
    return 1 / PAIR if op.aligned % PAIR == 0 else 1.0


def _packed(facts: KernelFacts, axis: int, queries: int, others: Sequence[AxisFact], groups: int) -> tuple[int, int]:
    """Return heads and queries, where heads that share the keys of one of ``groups`` are rows of a tile if they have few queries."""
    heads = math.prod(axis.extent or 1 for axis in others)
    few = queries == 1 or (queries < WGMMA_ROWS and _are_rows(facts, axis, queries))
    return (groups, heads // groups * queries) if few and groups and heads % groups == 0 else (heads, queries)


def _are_rows(facts: KernelFacts, axis: int, queries: int) -> bool:
    """Return whether the queries of a head follow those of the one before, in the tensors that have both."""
    found = []
    for op in facts.memory_ops:
        if axis in op.subscript_axes and len(op.tile_axes) > 1:
            step = op.strides[op.subscript_axes.index(axis)]
            found.append(op.static and queries * step in op.strides)
    return bool(found) and all(found)


def _output_bytes(facts: KernelFacts, queries: int) -> int:
    """Return the bytes of an element of the output matrix, the store of queries with the most elements."""
    stores = [op for op in facts.memory_ops if op.kind == "store" and queries in op.tile_axes]
    return max(((op.accessed_numel, op.itemsize) for op in stores), default=(0, 2))[1]


def _is_latent(facts: KernelFacts, qk: int, v: int) -> bool:
    """Return whether the last matmul reads columns of what another one reads, of more than two copies have room for."""
    storages = {op.slot: op.storage for op in facts.memory_ops if op.kind == "load"}
    *scores, values = (None if fact.rhs_slot is None else storages.get(fact.rhs_slot) for fact in facts.matmuls)
    return values is not None and values in scores and qk > MOST_COLUMNS and v <= qk


def _loaded_bytes(facts: KernelFacts, matmuls: Sequence[MatmulFact]) -> int:
    """Return the bytes in memory of the right operands of ``matmuls``."""
    slots = [fact.rhs_slot for fact in matmuls]
    loads = [op for op in facts.memory_ops if op.kind == "load" and op.slot in slots]
    return sum(op.accessed_numel * op.itemsize for op in loads)


def _extent(facts: KernelFacts, axis: int | None, static: int | None) -> int | None:
    found: AxisFact | None = None if axis is None else facts.axes[axis]
    return static if static is not None else None if found is None else found.extent


def loaded_keys(facts: KernelFacts, scores: MatmulFact, axis: AxisFact, windowed: bool = False) -> int | None:
    """Return an estimate of a loaded number of keys: those that each head has, or the mean if heads share them.

    Of a loop that ends with the tile of queries, it is the number for the last tile.
    """
    loads = [op for op in facts.memory_ops if op.kind == "load" and op.slot == scores.rhs_slot]
    of_heads = {each.block_id for each in facts.axes if each.on_grid and not each.tunable}
    own = any(of_heads <= {*op.subscript_axes} for op in loads)
    rows = rows_of(facts, scores, axis.block_id)
    if own or axis.mean is None or (windowed and axis.longest is not None):
        return rows
    return axis.longest or axis.mean


def rows_of(facts: KernelFacts, matmul: MatmulFact, axis: int) -> int | None:
    """Return the keys that the loaded tensor has."""
    loads = [op for op in facts.memory_ops if op.kind == "load" and op.slot == matmul.rhs_slot]
    found = (n for op in loads for at, n in zip(op.subscript_axes, op.extents, strict=True) if at == axis)
    return next(found, None)


def predicted_us(
    shape: AttentionShape, choice: AttentionChoice, target: Target, rates: AttentionRates = RATES
) -> float:
    """Return the predicted time of a launch in microseconds."""
    rows = WGMMA_ROWS * choice.groups
    tiles = -(-shape.queries // rows) * shape.heads
    several = shape.ranged and shape.queries > rows  # the queries of a tile see different keys
    blocks = -(-(shape.keys + (rows if several else 0)) // choice.keys)
    if shape.bounded:
        blocks = min(blocks, (blocks + -(-rows // choice.keys)) / 2 + 0.5)  # type: ignore[assignment]
    if shape.window:
        blocks = min(blocks, -(-rows // choice.keys) - (1 - shape.window) // choice.keys)
    per_sm = relative_rate(target)
    softmax = rates.softmax_ns + rates.operation_ns * shape.operations + rates.special_ns * shape.special
    softmax += rates.gather_ns * shape.gathers + rates.pair_ns * shape.pairs
    softmax += rates.bias_ns if choice.bias_stages else rates.load_ns * shape.loads
    softmax += rates.operation_ns * ROUNDING_OPS * shape.rounded * shape.v_columns / choice.keys
    if shape.v_columns <= NARROW:
        softmax *= 1 + rates.short * max(0.0, LONG_KEYS / choice.keys - 1)
    computed = LATENT_GROUPS if shape.latent else 1  # times that scores are computed, by groups that overlap
    matmuls = rates.column_ns * (computed * shape.qk_columns + shape.v_columns) * shape.operand_bytes / 2
    element = (softmax**rates.overlap + matmuls**rates.overlap) ** (1 / rates.overlap)
    variants = {1: rates.shared if shares_sm(shape, choice, target) else rates.single, 3: rates.triple}
    variant = 1.0 if shape.latent else variants.get(choice.groups, 1.0)
    element *= (1 + rates.wide * WGMMA_ROWS / choice.keys) * variant
    element += rates.draw_ns * shape.draws
    masked = rates.masked * min(1.0, MASKED_KEYS / (blocks * choice.keys)) if shape.window else 0.0
    tile_us = rows * choice.keys * blocks * element * (1 + masked) / 1e3 / per_sm
    overhead = rates.dynamic_us if choice.scheduler == "dynamic" else rates.tile_us
    if choice.splits > 1:
        tile_us *= -(-blocks // choice.splits) / blocks
        tiles *= choice.splits
        of_part = rates.latent_part_us[tiles <= target.num_sms]
        overhead += rates.combine_us + (of_part * choice.splits if shape.latent else 0.0)
    least_us, varies = 0.0, shape.bounded and not shape.window
    if varies:  # the longest tile visits all blocks
        least_us = tile_us / blocks * -(-shape.keys // choice.keys)
    if choice.scheduler == "dynamic" and tiles > target.num_sms:
        rounds = tiles / target.num_sms + 0.3
    else:
        rounds = float(-(-tiles // target.num_sms))
        tile_us *= 1.2 if varies else 1.0
    read_gb_per_s = min(rates.memory * target.bandwidth_gb_per_s, rates.sm_gb_per_s * tiles)
    memory_us = shape.bytes_moved / (read_gb_per_s * 1e3)
    return rates.launch_us + max(rounds * (tile_us + overhead), least_us + overhead, memory_us)


def shares_sm(shape: AttentionShape, choice: AttentionChoice, target: Target) -> bool:
    """Return whether two CTAs of one consumer group share an SM, which formulas that read elements have no registers for."""
    reads = shape.gathers or shape.pairs or shape.loads or shape.draws or shape.latent
    tiles = -(-shape.queries // WGMMA_ROWS) * shape.heads
    many = shape.queries > WGMMA_ROWS and tiles >= SHARING * target.num_sms
    if choice.groups != 1 or reads or choice.splits > 1 or not many:
        return False
    needed = registers_of(shape.v_columns, choice.keys, shape.operand_bytes, shape.rounded)
    needed += MASKED_REGISTERS if shape.bounded or shape.loaded else 0
    columns = (choice.stages or MOST_STAGES) * choice.keys * shape.columns_in_memory
    shared = shape.operand_bytes * (WGMMA_ROWS * (shape.qk_columns + shape.v_columns) + columns)
    threads = SHARING * THREADS * (1 + choice.groups)
    return threads * needed <= target.registers_per_sm and SHARING * shared <= target.smem_per_sm_bytes


def relative_rate(target: Target) -> float:
    """Return the matrix rate of an SM relative to that of the SM whose rates are known."""
    return target.matrix_tflops_for("bfloat16") / target.num_sms / RATES.matrix_tflops


def predict_attention(facts: KernelFacts, decisions: Decisions, target: Target) -> Predicted:
    """Return the predicted resources and time of one launch."""
    shape = shape_of(facts)
    if isinstance(shape, str):
        return predicted(target, math.inf, reason=shape)
    choice = choice_of(decisions, shape.blocks)
    groups = LATENT_GROUPS if shape.latent else 1
    rows, known = WGMMA_ROWS * choice.groups, choice.groups in REGISTERS
    most = consumer_registers(choice.groups, shape.latent) if known else 0
    columns = (choice.stages or 2) * choice.keys * shape.columns_in_memory
    shared = shape.operand_bytes * (rows * shape.qk_columns + columns)
    registers = registers_of(shape.v_columns // groups, choice.keys, shape.operand_bytes, shape.rounded)
    fits = shared <= target.smem_per_block_bytes and registers <= most and target.has("wgmma")
    made = predicted(
        target,
        predicted_us(shape, choice, target),
        registers=registers,
        shared=shared,
        waves=-(-shape.queries // rows) * shape.heads / target.num_sms,
        fits=fits,
        reason="" if fits else f"{registers} registers and {shared} bytes of shared memory do not fit",
        bytes_moved=shape.bytes_moved,
        flops=shape.flops,
    )
    return replace(made, never_spills=True)  # no measurement supports one that spills


def choice_of(decisions: Decisions, blocks: tuple[int, int]) -> AttentionChoice:
    """Return the decisions of a config as the planner's choice; ``blocks`` are those of queries and keys."""
    values = decisions.values
    rows, keys = (decisions.sizes[block] for block in blocks)
    return AttentionChoice(
        groups=max(1, rows // WGMMA_ROWS),
        keys=keys,
        stages=values.get("wgmma_kv_stages"),
        pingpong=values.get("wgmma_pingpong", False),
        lazy=values.get("wgmma_lazy_rescale", False),
        scheduler=values.get("wgmma_tile_scheduler", "static"),
        splits=values.get("wgmma_key_splits", 1),
        bias_stages=values.get("wgmma_bias_stages", 0),
    )


def predicted(
    target: Target,
    time_us: float,
    *,
    registers: int = 0,
    shared: int = 0,
    waves: float = 0.0,
    fits: bool = True,
    reason: str = "",
    bytes_moved: int = 0,
    flops: int = 0,
) -> Predicted:
    return Predicted(
        registers_per_thread=registers,
        spill_risk=0.0,
        shared_bytes=shared,
        tensor_memory_columns=0,
        waves=waves,
        occupancy_blocks=1,
        fits=fits,
        bytes_moved=bytes_moved,
        flops=flops,
        time_us=time_us,
        register_limit=target.max_registers_per_thread,
        least_shared_bytes=shared,
        reason=reason,
    )
