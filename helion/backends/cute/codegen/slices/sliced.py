"""Code of a warp that multiplies K tiles of its own with mma.sync: 64 rows of A by few columns of B.

MMAs add up K in any order that is the same for A and B. A thread therefore reads 16 contiguous bytes of each of its lines
of A, and the elements of B that they multiply. The pairs of a word are its even and its odd bytes. Issuing the instructions
takes less time than memory (measurements ``nibbles_issued`` and ``few_rows_read``).
"""

from __future__ import annotations

from ...plan.counts import counts, slice_columns, slice_values, slices, stage_readers
from ...plan.records import SWIZZLE_BYTES, WGMMA_ROWS, GemmPlan
from ...roles.sliced import (
    AddSlices,
    ClearSlice,
    MultiplySlice,
    PassSlices,
    ReadColumns,
    SliceCursors,
    SliceScales,
    StoreSlice,
)
from ...roles.sliced import SliceStep as Step
from ..numbers import of_k_tile
from ..raw import source_of_a
from .pairs import Conversion, conversion, masks
from .pairs import definitions as pair_definitions

LINES = 8
"""Lines of an atom of a swizzle, and columns or half of the rows of an MMA."""
BLOCK_ROWS = 16
"""Rows of A of an MMA."""
SCALES = BLOCK_ROWS // LINES
"""Scales of a thread: those of its rows in the block of the number of the thread among four with the same rows."""
WORDS = 4
"""Words of a load of 16 bytes."""
MMA_TYPES = {"bfloat16": "bf16", "float16": "f16"}
OUT, LEFT, RIGHT = "{$w0}, {$w1}, {$w2}, {$w3}", "{$r4}, {$r5}, {$r6}, {$r7}", "{$r8}, {$r9}"
ADDED = "{$r0}, {$r1}, {$r2}, {$r3}"
"""Operands of an MMA: its results, its rows, its columns, and its accumulators."""


def _converts(plan: GemmPlan) -> Conversion:
    return conversion(source_of_a(plan), plan.problem.operand_dtype)


def _line_bytes(plan: GemmPlan) -> int:
    """Return the bytes of a line of a raw tile."""
    return plan.tile[2] // len(_converts(plan).pairs)


def definitions(plan: GemmPlan) -> tuple[str, ...]:
    """Return the functions that the mainloop calls."""
    dtype = MMA_TYPES[plan.problem.operand_dtype]
    return (
        "",
        "",
        "def load_words(address):",
        "    return cute.arch.inline_ptx(",
        f'        "ld.shared.v4.b32 {{{OUT}}}, [{{$r0}}];",',
        "        write_only_types=[cutlass.Uint32] * 4,",
        "        read_only_args=[address],",
        "    )",
        "",
        "",
        "def permuted(first, second, order):",
        "    return cute.arch.inline_ptx(",
        '        f"prmt.b32 {{$w0}}, {{$r0}}, {{$r1}}, {order};",',
        "        write_only_types=[cutlass.Uint32],",
        "        read_only_args=[first, second],",
        "    )",
        "",
        "",
        "def multiply(c0, c1, c2, c3, a0, a1, a2, a3, b0, b1):",
        "    return cute.arch.inline_ptx(",
        f'        "mma.sync.aligned.m16n8k16.row.col.f32.{dtype}.{dtype}.f32 {{{OUT}}}, {{{LEFT}}}, {{{RIGHT}}}, {{{ADDED}}};",',
        "        write_only_types=[cutlass.Float32] * 4,",
        "        read_only_args=[c0, c1, c2, c3, a0, a1, a2, a3, b0, b1],",
        "    )",
        *pair_definitions(_converts(plan)),
    )


def set_up(plan: GemmPlan) -> list[str]:
    """Define the registers of a warp: sums of all rows, B of a K tile, and the words of A of 16 rows."""
    values, words, readers = slice_values(plan), slice_columns(plan) * plan.tile[2] // 64, stage_readers(plan)
    sums = slice_columns(plan) // 2 if plan.promote else values
    return [
        *masks(_converts(plan)),
        f"slice_sums = cute.make_rmem_tensor({sums}, cutlass.Float32)",
        *(_totals(values) if plan.promote else []),
        f"slice_read = cute.make_rmem_tensor({words}, cutlass.Uint32)",
        f"slice_columns = cute.make_rmem_tensor({words}, cutlass.Uint32)",
        f"slice_words = cute.make_rmem_tensor({_line_bytes(plan) // 8}, cutlass.Uint32)",
        f"slice_pairs = cute.make_rmem_tensor({4 * len(_converts(plan).pairs)}, cutlass.Uint32)",
        f"own_slice, own_rows = store_warp // {readers}, store_warp % {readers}",
        "slice_row = lane // 4",
        "slice_quad = lane % 4",
        "raw_base = shared_raw_a.iterator.toint()",
        "columns_base = shared_b.iterator.toint()",
        f"slices = cute.make_tensor(shared_slices, cute.make_layout({plan.consumer_warps * values * 32}))",
        "k_tiles_passed = cutlass.Int32(0)",
    ]


def _totals(values: int) -> list[str]:
    return [
        f"slice_total = cute.make_rmem_tensor({values}, cutlass.Float32)",
        f"slice_factors = cute.make_rmem_tensor({SCALES}, cutlass.Float32)",
    ]


def lines(plan: GemmPlan, step: Step, bounds: tuple[str, str]) -> list[str]:
    """Return the code of a step; ``bounds`` are the first K tile of the CTA, and the one after its last."""
    if isinstance(step, ClearSlice):
        return [f"{_result(plan)}.fill(0.0)"]
    if isinstance(step, SliceCursors):
        return _cursors(plan, bounds[0])
    if isinstance(step, PassSlices):
        return [f"k_tiles_passed += {bounds[1]}" + (f" - {bounds[0]}" if bounds[0] != "0" else "")]
    if isinstance(step, ReadColumns):
        return _read_columns(plan, step.cursor)
    if isinstance(step, MultiplySlice):
        return _multiply(plan, step.cursor)
    if isinstance(step, StoreSlice):
        return _store(plan)
    assert isinstance(step, AddSlices)
    return _add(plan)


def _result(plan: GemmPlan) -> str:
    return "slice_total" if plan.promote else "slice_sums"


def _cursors(plan: GemmPlan, first: str) -> list[str]:
    raw = counts(plan).raw
    assert raw is not None
    found = ["slice_at = k_tiles_passed + k_tile" + (f" - {first}" if first != "0" else "")]
    for name, stages in (("ab", plan.ab_stages), ("raw", raw.stages)):
        place = f"slice_at % {stages}, slice_at // {stages} % 2"
        found.append(f"{name}_read = pipeline.PipelineState({stages}, slice_at, {place})")
    return found


def _read_columns(plan: GemmPlan, cursor: str) -> list[str]:
    """Return the loads of B of a K tile, in the order of the words of A. Pairs are of even and of odd elements.

    Its stage has atoms of 8 columns by 64 elements along K, of which a column has eight swizzled chunks of 16 bytes. A
    thread's 16 elements are two of them. Those of 4-bit integers are the same chunks of both halves of K. Those of bytes,
    for two loads of A, are adjacent chunks in one half.
    """
    loads, stage = slice_columns(plan) * plan.tile[2] // 256, plan.tile[1] * plan.tile[2] * 2
    atoms = plan.tile[1] // LINES
    half, chunk = "i // 2 % 2", "slice_quad * 2 + i % 2"
    if len(_converts(plan).pairs) == 1:
        half, chunk = "slice_quad // 2", "slice_quad % 2 * 4 + i % 4"
    return [
        f"columns_at = columns_base + {cursor}.index * {stage} + slice_row * {SWIZZLE_BYTES}",
        f"for i in cutlass.range_constexpr({loads}):",
        f"    slice_atom = i // 4 + ({half}) * {atoms}",
        f"    slice_chunk = ({chunk}) ^ slice_row",
        "    x0, x1, x2, x3 = load_words(columns_at + slice_atom * 1024 + slice_chunk * 16)",
        *(f"    slice_read[i * {WORDS} + {word}] = x{word}" for word in range(WORDS)),
        f"for i in cutlass.range_constexpr(0, {loads * WORDS}, 2):",
        '    slice_columns[i] = permuted(slice_read[i], slice_read[i + 1], "0x5410")',
        '    slice_columns[i + 1] = permuted(slice_read[i], slice_read[i + 1], "0x7632")',
    ]


def _multiply(plan: GemmPlan, cursor: str) -> list[str]:
    """Return the MMAs of all blocks of 16 rows. Reads have no bank conflicts: eight threads read two lines, whose chunks the
    swizzle deals to all banks."""
    line, half_line, words = _line_bytes(plan), LINES * _line_bytes(plan), _line_bytes(plan) // 16
    swizzle = "slice_row" if line == SWIZZLE_BYTES else "slice_row // 2"
    chunks, values = line // 64, slice_columns(plan) // 2
    cleared = [
        f"    for i in cutlass.range_constexpr({values}):",
        "        slice_sums[i] = cutlass.Float32(0.0)",
    ]
    return [
        f"raw_at = raw_base + {cursor}.index * {plan.tile[0] * line} + (own_rows * {WGMMA_ROWS} + slice_row) * {line}",
        f"for block in cutlass.range_constexpr({WGMMA_ROWS // BLOCK_ROWS}):",
        f"    for i in cutlass.range_constexpr({2 * chunks}):",
        f"        slice_chunk = (slice_quad * {chunks} + i % {chunks}) ^ ({swizzle})",
        f"        x0, x1, x2, x3 = load_words(raw_at + (block * 2 + i // {chunks}) * {half_line} + slice_chunk * 16)",
        *(f"        slice_words[i * {WORDS} + {word}] = x{word}" for word in range(WORDS)),
        *(cleared if plan.promote else []),
        f"    for j in cutlass.range_constexpr({words}):",
        *(f"        {each}" for each in _of_word(plan, words)),
        *(f"    {each}" for each in (_promote(plan, values) if plan.promote else [])),
    ]


def _promote(plan: GemmPlan, values: int) -> list[str]:
    """Add the sums of 16 rows times the scales of their rows, from the thread that has them."""
    row = plan.factor("row")
    assert row is not None
    held = "row_factors[i]" if row.dtype == "float32" else "row_held[i].to(cutlass.Float32)"
    return [
        f"for i in cutlass.range_constexpr({SCALES}):",
        f"    slice_factors[i] = cute.arch.shuffle_sync({held}, offset=lane // 4 * 4 + block)",
        f"for i in cutlass.range_constexpr({values}):",
        f"    c = block * {values} + i",
        "    slice_total[c] = cute.math.fma(slice_sums[i], slice_factors[i // 2 % 2], slice_total[c])",
    ]


def _of_word(plan: GemmPlan, words: int) -> list[str]:
    """Return the conversion of word ``j`` of both rows of a thread, and its MMAs: one of each pair of conversions."""
    pairs, columns = _converts(plan).pairs, slice_columns(plan)
    found = [
        "for i in cutlass.range_constexpr(4):",
        f"    slice_word = slice_words[i % 2 * {words} + j] >> cutlass.Uint32(i // 2 * 8)",
        *(
            f"    slice_pairs[{4 * at} + i] = {pair.name}(slice_word, {pair.name}_mask)"
            for at, pair in enumerate(pairs)
        ),
    ]
    a, c = (", ".join(f"{name} + {i}]" for i in range(4)) for name in ("slice_pairs[pair * 4", "slice_sums[c"))
    return [
        *found,
        f"for pair in cutlass.range_constexpr({len(pairs)}):",
        f"    for n in cutlass.range_constexpr({columns // LINES}):",
        f"        c = {'n * 4' if plan.promote else f'block * {columns // 2} + n * 4'}",
        "        b = n * 16 + pair * 8 + j * 2",
        f"        x0, x1, x2, x3 = multiply({c}, {a}, slice_columns[b], slice_columns[b + 1])",
        *(f"        slice_sums[c + {i}] = x{i}" for i in range(4)),
    ]


def block(plan: GemmPlan, step: SliceScales, bounds: tuple[str, str]) -> str:
    """Return the block of K of the scales that a warp loads; past its last one, those of the CTA's last one again."""
    first = "own_slice" if bounds[0] == "0" else f"{bounds[0]} + own_slice"
    own = f"cutlass.min({first if step.first else f'k_tile + {slices(plan)}'}, {bounds[1]} - 1)"
    return of_k_tile(plan, own)


def _store(plan: GemmPlan) -> list[str]:
    values, divisor = slice_values(plan), _converts(plan).divisor
    scaled = f" * cutlass.Float32({float(divisor)})" if divisor > 1 else ""
    return [
        f"for i in cutlass.range_constexpr({values}):",
        f"    slices[(store_warp * {values} + i) * 32 + lane] = {_result(plan)}[i]{scaled}",
    ]


def _add(plan: GemmPlan) -> list[str]:
    """Return the sums of blocks of 16 rows of this warp, where the accumulator of wgmma has them."""
    sums, values, own = "total" if plan.promote else "sums", slice_values(plan), slice_columns(plan) // 2
    readers, blocks, every = stage_readers(plan), WGMMA_ROWS // BLOCK_ROWS, plan.tile[1] // 2
    source = f"(number * {readers} + rows_block // {blocks}) * {values} + rows_block % {blocks} * {own}"
    return [
        f"{sums}.fill(0.0)",
        f"for atom in cutlass.range_constexpr({plan.row_atoms}):",
        f"    rows_block = store_warp + atom * {plan.consumer_warps}",
        f"    for number in cutlass.range_constexpr({slices(plan)}):",
        f"        for i in cutlass.range_constexpr({own}):",
        f"            {sums}[atom * {every} + i] = {sums}[atom * {every} + i] + slices[({source} + i) * 32 + lane]",
    ]
