"""Code of raw tiles: sources of copied operands that TMA loads as they are, and warps read from shared memory.

Copying warps write what they compute to shared memory. Warps that multiply convert 8-bit elements of A to their MMA
fragments.
"""

from __future__ import annotations

import torch

from ..plan.copied import Copied, raw_major
from ..plan.counts import copied_lines, counts, is_read_once, raw_operands
from ..plan.dtypes import DTYPES, itemsize, per_byte
from ..plan.epilogue import COLUMN_NUMBER, ROW_NUMBER, Constant, Instruction
from ..plan.records import SWIZZLE_BYTES, WARP_ROWS, GemmPlan
from ..roles import grammar as g
from ..roles.halves import ConvertHalf, HalfStep, MmaHalf, OrderReads, ReadHalf
from .epilogue import EXPRESSIONS, literal
from .numbers import batch_modes, batched, of_k_tile, steps_of_tile

WORDS = {1: "cutlass.Uint8", 2: "cutlass.Uint16", 4: "cutlass.Uint32"}
"""The types that TMA moves elements as, by their bytes."""


def dtype(copied: Copied) -> str:
    """Return the type of the elements of raw tiles in shared memory."""
    return WORDS[itemsize(copied.sources[0].dtype)]


def _strides(plan: GemmPlan, copied: Copied) -> tuple[int, int]:
    """Return the steps from line to line and along K in a raw tile, which is as contiguous as its source."""
    along_k = raw_major(copied.sources[0], ()) == "k"
    return (plan.tile[2], 1) if along_k else (1, copied_lines(plan, copied))


def place(plan: GemmPlan, copied: Copied, line: str, k: str, cursor: str) -> str:
    """Return the index of an element of the raw tile in the stage of ``cursor``."""
    steps = _strides(plan, copied)
    tile = copied_lines(plan, copied) * plan.tile[2]
    return f"{cursor}.index * {tile} + ({line}) * {steps[0]} + ({k}) * {steps[1]}"


def host(plan: GemmPlan, extent: dict[str, str]) -> list[str]:
    """Return the TMA objects of raw tiles; ``extent`` are those of M, N and K in descriptors."""
    found = []
    for copied in raw_operands(plan):
        label, source, lines = copied.operand, copied.sources[0], copied_lines(plan, copied)
        packed = per_byte(source.dtype)
        modes = batch_modes(plan, label)
        sizes, steps = ("".join(f", {mode[at]}" for mode in modes) for at in (0, 1))
        depth = f"cutlass.Int32({plan.problem.k // packed})" if packed > 1 else extent["k"]
        shape = f"({extent['m' if label == 'a' else 'n']}, {depth}{sizes})"
        tile = f"({lines}, {plan.tile[2] // packed})"
        found += [
            f"matrix_raw_{label} = cute.make_tensor(",
            f"    cute.recast_ptr({label}, dtype={dtype(copied)}),",
            f"    cute.make_layout({shape}, stride=({source.pitch // packed}, {source.k_pitch}{steps})),",
            ")",
            *_layout(plan, copied),
            f"tma_raw_{label}, tensor_raw_{label} = cpasync.make_tiled_tma_atom(",
            f"    cpasync.CopyBulkTensorTileG2SOp(), matrix_raw_{label}, cute.select(layout_raw_{label}, mode=[0, 1]), {tile}",
            ")",
        ]
    return found


def _layout(plan: GemmPlan, copied: Copied) -> list[str]:
    """Define the layout of the stages of raw tiles."""
    label, ring, lines = copied.operand, counts(plan).raw, copied_lines(plan, copied)
    assert ring is not None
    if plan.converts:
        return [f"layout_raw_{label} = {_swizzled(plan)}"]
    first, second = _strides(plan, copied)
    return [
        f"layout_raw_{label} = cute.make_layout(",
        f"    ({lines}, {plan.tile[2]}, {ring.stages}), stride=({first}, {second}, {lines * plan.tile[2]})",
        ")",
    ]


def views(plan: GemmPlan) -> list[str]:
    """Define the TMA views of raw tiles: all tiles of a source, and the stages."""
    found = [*READ_ONCE] if any(is_read_once(plan, copied.operand) for copied in raw_operands(plan)) else []
    for copied in raw_operands(plan):
        label = copied.operand
        modes = f"(None, None{', None' * len(batch_modes(plan, label))})"
        tile = f"({copied_lines(plan, copied)}, {plan.tile[2] // per_byte(copied.sources[0].dtype)})"
        found += [
            f"tiles_raw_{label} = cute.local_tile(tensor_raw_{label}, {tile}, {modes})",
            f"to_raw_{label}, from_raw_{label} = cpasync.tma_partition(",
            f"    tma_raw_{label}, 0, cute.make_layout(1),"
            f" cute.group_modes(shared_raw_{label}, 0, 2), cute.group_modes(tiles_raw_{label}, 0, 2)",
            ")",
        ]
    return found


def load(plan: GemmPlan, step: g.LoadRaw) -> list[str]:
    """Return the code that loads a raw tile."""
    label, cursor = step.operand, step.cursor
    tile = f"[None, {'tile_m' if label == 'a' else 'tile_n'}, {of_k_tile(plan, 'k_tile')}{batched(plan, label)}]"
    policy = ", cache_policy=read_once" if is_read_once(plan, step.operand) else ""
    return [
        f"cute.copy(tma_raw_{label}, from_raw_{label}{tile}, to_raw_{label}[None, {cursor}.index],"
        f" tma_bar_ptr=raw.producer_get_barrier({cursor}){policy})"
    ]


READ_ONCE = (
    "read_once = cute.arch.inline_ptx(",
    '    "createpolicy.fractional.L2::evict_first.b64 {$w0}, 1.0;", write_only_types=[cutlass.Int64], read_only_args=[]',
    ")",
)
"""The policy of lines that L2 drops first. What other kernels have written stays there, and is not written back to make
room."""


# Fragments of A ----------------------------------------------------------------------------------------------------

ATOM_K = 16
"""Elements along K of one MMA, which are those of a 16-byte chunk of a swizzled line."""
PAIRS = 4
"""Pairs of a thread of one MMA: of two rows, 8 rows distant, in each half of the elements along K."""


def source_of_a(plan: GemmPlan) -> Copied:
    """Return the copy of A."""
    (copied,) = plan.problem.copied
    return copied


def _line_bytes(plan: GemmPlan) -> int:
    return plan.tile[2] // per_byte(source_of_a(plan).sources[0].dtype)


def _pairs(plan: GemmPlan) -> int:
    """Return the pairs of bytes of a thread."""
    return _line_bytes(plan) // ATOM_K * PAIRS


def _swizzled(plan: GemmPlan) -> str:
    """Return the layout of the stages of the raw tile, whose lines are swizzled."""
    ring = counts(plan).raw
    assert ring is not None
    tile = (*plan.tile[:2], _line_bytes(plan))
    return f"hopper.make_smem_layout_a(LayoutEnum.ROW_MAJOR, {tile}, cutlass.Uint8, {ring.stages})"


def set_up(plan: GemmPlan) -> list[str]:
    """Define the registers of a K tile: bytes in pairs, spread where pairs are converted together, numbers in fp32, and the
    fragments of all MMAs."""
    elements = plan.tile[2] // 2
    return [
        f"fragment_a = cute.make_rmem_tensor(tiled_mma.partition_shape_A(({plan.tile[0]}, {plan.tile[2]})),"
        f" cutlass.{DTYPES[plan.problem.operand_dtype].dsl})",
        f"raw_pairs = cute.make_rmem_tensor({_pairs(plan)}, cutlass.{'Uint32' if is_packed(plan) else 'Uint16'})",
        f"raw_computed = cute.make_tensor(fragment_a.iterator, cute.make_layout({elements}))",
        *(
            ["raw_packed = cute.recast_tensor(raw_computed, cutlass.Uint32)", *_mask(plan)]
            if is_packed(plan)
            else [
                f"raw_numbers = cute.recast_tensor(raw_pairs, cutlass.{DTYPES[source_of_a(plan).sources[0].dtype].dsl})",
                f"raw_wide = cute.make_rmem_tensor({elements // 2}, cutlass.Float32)",
            ]
        ),
        f"raw_row = store_warp * {WARP_ROWS} + lane // 4",
    ]


def _mask(plan: GemmPlan) -> tuple[str, ...]:
    """Define the mask of the low bits of each half of a word, from a number that only the launch knows to be one:
    constants would be moved to a register for each use."""
    if not source_of_a(plan).is_packed:
        return ()
    return "_, _, one = cute.arch.grid_dim()", "nibbles = cutlass.Uint32(one) * cutlass.Uint32(0x000F000F)"


def read(plan: GemmPlan, step: g.ReadRaw) -> list[str]:
    """Return the code that reads a raw tile, without bank conflicts.

    A line has 128 bytes, or 64. The swizzle exchanges its 16-byte chunks by the last three bits of the line's number, or
    by the two before the last.
    """
    line = _line_bytes(plan) // 2
    swizzle = "lane // 4" if _line_bytes(plan) == SWIZZLE_BYTES else "lane // 8"
    tile = copied_lines(plan, source_of_a(plan)) * line
    ring, pair = counts(plan).raw, f"raw_words[raw_at + i % 2 * {8 * line} + raw_chunk]"
    assert ring is not None
    if is_packed(plan):
        pair = f"spread_bytes({pair}.to(cutlass.Uint32))"
    return [
        f"raw_words = cute.make_tensor(cute.recast_ptr(shared_raw_{step.operand}.iterator, dtype=cutlass.Uint16),"
        f" cute.make_layout({ring.stages * tile}))",
        f"raw_at = {step.cursor}.index * {tile} + raw_row * {line} + lane % 4",
        f"for i in cutlass.range_constexpr({_pairs(plan)}):",
        f"    raw_chunk = (({swizzle}) ^ (i // {PAIRS})) * {ATOM_K // 2} + i // 2 % 2 * {ATOM_K // 4}",
        f"    raw_pairs[i] = {pair}",
    ]


def of_half(plan: GemmPlan, step: HalfStep, k_tile: str) -> list[str]:
    """Return the code of a step about half of K tile ``k_tile``."""
    if isinstance(step, MmaHalf):
        return _multiply(plan, step)
    if isinstance(step, ReadHalf):
        return _read_words(plan, step)
    if isinstance(step, OrderReads):
        return ['cute.arch.fence_proxy("async.shared", space="cta")', "cute.arch.sync_warp()"]
    assert isinstance(step, ConvertHalf)
    return _convert(plan, step, k_tile)


def _convert(plan: GemmPlan, step: ConvertHalf, k_tile: str) -> list[str]:
    """Return the conversion of a thread's elements of half of K tile ``k_tile``. Of 4-bit integers it has the low or the
    high ones of all bytes."""
    copied, half, words = source_of_a(plan), step.half, plan.tile[2] // 8
    if copied.is_packed:
        shifted = " >> cutlass.Uint32(4)" if half else ""
        given = f"raw_pairs[i]{shifted}, nibbles"
        return [
            f"for i in cutlass.range_constexpr({words}):",
            f"    raw_packed[i + {half * words}] = pack_nibbles({given})",
        ]
    if is_packed(plan):
        return [
            f"for i in cutlass.range_constexpr({half * words}, {(half + 1) * words}):",
            "    raw_packed[i] = pack_bytes(raw_pairs[i])",
        ]
    return _computed(plan, copied, half, k_tile)


def _computed(plan: GemmPlan, copied: Copied, half: int, k_tile: str) -> list[str]:
    """Return the conversion through fp32; computed elements are zero past the end of K."""
    elements, from_bytes = plan.tile[2] // 4, least_of(copied)
    column = _column(plan, half, k_tile)
    halves = f"cute.make_tensor({{}}.iterator + {half * elements}, cute.make_layout({elements}))"
    found = [f"raw_numbers_half = {halves.format('raw_numbers')}"]
    wide = "raw_wide.store(raw_numbers_half.load().to(cutlass.Float32))"
    found.append(wide if from_bytes is None else f"widen_bytes(raw_numbers_half, {from_bytes}, raw_wide)")
    if copied.instructions:
        found += [f"for j in cutlass.range_constexpr({elements}):", "    v0 = raw_wide[j]"]
        for number, made in enumerate(copied.instructions, start=1):
            found.append(f"    v{number} = {_expression(plan, made, column)}")
        value = f"v{copied.last}"
        if plan.problem.k % plan.tile[2]:
            inside = f"{column} < {plan.problem.k}"
            value = f"cutlass.Float32(cutlass.select_({inside}, {value}, cutlass.Float32(0.0)))"
        found.append(f"    raw_wide[j] = {value}")
    dtype = DTYPES[plan.problem.operand_dtype].dsl
    return [
        *found,
        f"raw_computed_half = {halves.format('raw_computed')}",
        f"raw_computed_half.store(raw_wide.load().to(cutlass.{dtype}))",
    ]


def _expression(plan: GemmPlan, made: Instruction, column: str) -> str:
    if made.op in (ROW_NUMBER, COLUMN_NUMBER):
        row = f"tile_m * {plan.tile[0]} + raw_row + j // 2 % 2 * 8"
        return f"cutlass.Float32({row if made.op == ROW_NUMBER else column})"
    return EXPRESSIONS[made.op](*(literal(x) if isinstance(x, Constant) else f"v{x}" for x in made.arguments))


def _column(plan: GemmPlan, half: int, k_tile: str) -> str:
    """Return the index along K of element ``j`` of a half."""
    first = f"{k_tile} * {plan.tile[2]} + {half * plan.tile[2] // 2}"
    return f"{first} + lane % 4 * 2 + j % 2 + j // 4 % 2 * {ATOM_K // 2} + j // 8 * {ATOM_K}"


def _multiply(plan: GemmPlan, step: MmaHalf) -> list[str]:
    """Return the MMAs of half of a K tile."""
    accumulate, steps = "tiled_mma.set(warpgroup.Field.ACCUMULATE, {})", plan.mma_steps // 2
    place = f"fragment_b[None, None, step, {step.cursor}.index]"
    return [
        *([accumulate.format(False)] if step.first else []),
        f"for step in {steps_of_tile(plan, step.half * steps, (step.half + 1) * steps, fresh=step.first)}:",
        f"    cute.gemm(tiled_mma, sums, fragment_a[None, None, step], {place}, sums)",
        *([f"    {accumulate.format(True)}"] if step.first else []),
    ]


WORD_LINE = SWIZZLE_BYTES // 4
"""Elements of 32 bits of a swizzled line, which are 32 along M of one element along K."""
ATOM_WORDS, ATOM_LINES = 8, 8
"""Elements along K of an MMA in TF32, and lines after which the exchange of a swizzle repeats."""


def set_up_words(plan: GemmPlan) -> list[str]:
    """Define the fragments of a K tile of A that is contiguous along M, and the places of a thread's words in a stage.

    A block of 32 rows has a line for each element along K, whose number exchanges its 16-byte chunks. A thread has two rows,
    8 rows distant, and elements q and q + 4 of each 8 along K. Threads with odd q read them in the other order, so that
    32 threads read all banks.
    """
    rows, k = plan.tile[0], plan.tile[2]
    found = [
        f"fragment_a = cute.make_rmem_tensor(tiled_mma.partition_shape_A(({rows}, {k})), cutlass.{DTYPES['float32'].operand})",
        f"fragment_words = cute.make_tensor(cute.recast_ptr(fragment_a.iterator, dtype=cutlass.Uint32), cute.make_layout({k // 2}))",
        f"stage_words = cute.make_tensor(cute.recast_ptr(shared_a.iterator, dtype=cutlass.Uint32),"
        f" cute.make_layout({plan.ab_stages * rows * k}))",
        "odd_quad = lane % 2 == 1",
        f"word_block = store_warp // 2 * {WORD_LINE * k} + lane // 4 % 4",
        "word_chunk = store_warp % 2 * 4 + lane // 16",
    ]
    for name, line in (("near", "lane % 4 + lane % 2 * 4"), ("far", "near_line ^ 4")):
        found.append(f"{name}_line = {line}")
        for at, chunk in enumerate(("word_chunk", "(word_chunk + 2)")):
            found.append(f"{name}_{at} = word_block + {name}_line * {WORD_LINE} + ({chunk} ^ {name}_line) * 4")
    return found


def _read_words(plan: GemmPlan, step: ReadHalf) -> list[str]:
    """Return the reads of half of A from its stage, without bank conflicts."""
    steps, stage = plan.mma_steps // 2, plan.tile[0] * plan.tile[2]
    names = [(f"near_word_{at}", f"far_word_{at}", f"near_{at}", f"far_{at}") for at in (0, 1)]
    place = f"stage_words[{step.cursor}.index * {stage} + step * {ATOM_WORDS * WORD_LINE} + {{}}]"
    return [
        f"for step in cutlass.range_constexpr({step.half * steps}, {(step.half + 1) * steps}):",
        *(f"    {x} = {place.format(near)}" for x, _, near, _ in names),
        *(f"    {y} = {place.format(far)}" for _, y, _, far in names),
        *(
            f"    fragment_words[step * 4 + {2 * turned + at}] = cutlass.Uint32(cutlass.select_(odd_quad, {others}))"
            for turned, order in enumerate(("{1}, {0}", "{0}, {1}"))
            for at, (x, y, _, _) in enumerate(names)
            for others in (order.format(x, y),)
        ),
    ]


def is_packed(plan: GemmPlan) -> bool:
    """Return whether pairs of integers are converted together, to the 16-bit type."""
    if not plan.converts:
        return False
    copied = source_of_a(plan)
    return copied.is_packed or (copied.sources[0].dtype == "int8" and not copied.instructions)


def definitions(plan: GemmPlan) -> tuple[str, ...]:
    """Return the functions that conversions of pairs call."""
    if not is_packed(plan):
        return ()
    copied, dtype = source_of_a(plan), plan.problem.operand_dtype
    if not copied.is_packed:
        return (*_spread_bytes(EXACT[dtype][0] >> 8), *PACK_BYTES[dtype])
    assert copied.offset is not None
    flipped = 8 if copied.sources[0].dtype == "int4" else 0
    return (*_spread_bytes(0), *_pack_nibbles(dtype, flipped, copied.offset - flipped))


def _spread_bytes(high: int) -> tuple[str, ...]:
    """Return the function that makes the bytes of a pair the low halves of 16 bits, whose high ones are ``high``."""
    return (
        "",
        "",
        "def spread_bytes(pair):",
        "    return cute.arch.inline_ptx(",
        '        "prmt.b32 {$w0}, {$r0}, {$r1}, 0x4140;",',
        "        write_only_types=[cutlass.Uint32],",
        f"        read_only_args=[pair, cutlass.Uint32({high * 0x01010101:#x})],",
        "    )",
    )


EXACT = {"bfloat16": (0x4300, 128, "sub.rn.bf16x2"), "float16": (0x6400, 1024, "sub.rn.f16x2")}
"""By type: the bits and the value of a number whose last bits count integers, and the subtraction of a pair."""


def _difference(dtype: str, first: str, second: str | int) -> tuple[str, ...]:
    """Return the end of a function that subtracts two pairs of 16-bit floats; a constant needs a register."""
    given, code = first, f"{EXACT[dtype][2]} {{$w0}}, {{$r0}}, {{$r1}};"
    if isinstance(second, int):
        code = f"{{ .reg .b32 less; mov.b32 less, {second:#x}; {EXACT[dtype][2]} {{$w0}}, {{$r0}}, less; }}"
    else:
        given = f"{first}, {second}"
    return (
        "    return cute.arch.inline_ptx(",
        f'        "{code}",',
        "        write_only_types=[cutlass.Uint32],",
        f"        read_only_args=[{given}],",
        "    )",
    )


PACK_BYTES = {
    "bfloat16": (
        "",
        "",
        "def pack_bytes(word):",
        *_difference("bfloat16", "word & cutlass.Uint32(0xFF7FFF7F)", "word & cutlass.Uint32(0xFF80FF80)"),
    ),
    "float16": (
        "",
        "",
        "def pack_bytes(word):",
        *_difference("float16", "word ^ cutlass.Uint32(0x00800080)", 0x64806480),
    ),
}
"""The conversion of signed bytes by the type that they become. In bfloat16 it is 128 plus the low seven bits, less 128 or
256 by the sign. In float16 it is 1024 plus the byte plus 128, less 1152. All of these are exact."""


def _pack_nibbles(dtype: str, flipped: int, offset: int) -> tuple[str, ...]:
    """Return the conversion of the low four bits of each half of a word: with ``flipped`` bits, plus an offset. The mask
    of these bits is in a register, because an instruction has one constant."""
    bits, exact, _ = EXACT[dtype]
    half = {"bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    less = int(torch.tensor([exact - offset], dtype=half).view(torch.int16).item())
    return (
        "",
        "",
        "def pack_nibbles(word, nibbles):",
        *_difference(
            dtype,
            f"(word & nibbles) ^ cutlass.Uint32({(bits | flipped) * 0x00010001:#x})",
            less * 0x00010001,
        ),
    )


LEAST_BYTES = {"int8": -128, "uint8": 0, "bool": 0}
"""The least number of each type of 8-bit integers."""


def least_of(copied: Copied) -> int | None:
    """Return the least number of a source of 8-bit integers; None for other types."""
    return LEAST_BYTES.get(copied.sources[0].dtype)
