"""Rows with sums that begin anywhere, of which each thread takes words: the same columns of all rows.

Bulk copies load the granules of 16 bytes that a row's part is in. Some rows of 16-bit elements begin in the middle of a
word. There a thread joins its columns from the halves of two words, and stores halves of two threads as one word.
"""

from __future__ import annotations

from ...plan.dtypes import itemsize
from ...plan.epilogue import EpilogueOperand, EpilogueOutput
from ...plan.rowwise.demand import GRANULE_BYTES, WORD_BYTES
from ...plan.rowwise.records import RowPlan
from ..writer import Writer
from .elements import columns_of, first_sum, pitch_of, slice_of, storage

HALF_BYTES = 2
JOINED, FIRST_JOINED, SAME_LOW, SAME_HIGH = "Int32(0x5432)", "Int32(0x1076)", "Int32(0x3210)", "Int32(0x7654)"
"""Selectors of bytes: the high half of the first word and the low one of the second, those of the second and the first, the
first word, and the second."""


def _within(plan: RowPlan, index: str) -> str:
    """Return the elements between 16 bytes of memory and the row's first element in the CTA."""
    elements = GRANULE_BYTES // itemsize(plan.problem.inputs[0].dtype)
    known = str(plan.layout.demand.pitches[0] % elements)
    pitch = f"({columns_of(plan.problem)} & {elements - 1})" if plan.problem.columns_at_launch else known
    return f"({index} * {pitch}) & {elements - 1}"


def print_word_sources(out: Writer, plan: RowPlan) -> None:
    """Print the place of a row's part in the memory of each input, and the columns of that part."""
    layout, n = plan.layout, columns_of(plan.problem)
    out.line(f"within = {_within(plan, 'tile')}")
    mine = f"cutlass.min({n} - cta.base * {layout.lanes}, Int32({slice_of(layout)} * {layout.lanes}))"
    out.line(f"columns = {mine if layout.choice.cluster > 1 else f'Int32({n})'}")
    for operand in plan.problem.inputs:
        granule = f"(first_granule(cta, tile, {pitch_of(plan.problem, operand)}) & Int64({-layout.words}))"
        out.line(f"{operand.label}_source = {operand.label} + {granule} * {WORD_BYTES}")


def loaded_words(plan: RowPlan) -> list[str]:
    """Return the bytes of a chunk of each input: the granules of 16 bytes that its columns are in."""
    layout = plan.layout
    most = layout.chunk_size * layout.lanes
    lines = [
        f"loaded = cutlass.min(columns - chunk * {most}, Int32({most}))" if layout.chunks > 1 else "loaded = columns"
    ]
    for operand in plan.problem.inputs:
        size = f"((within + loaded) * {itemsize(operand.dtype)} + {GRANULE_BYTES - 1}) // {GRANULE_BYTES} * {GRANULE_BYTES}"
        lines.append(f"{operand.label}_bytes = cutlass.select_(loaded > 0, {size}, Int32(0))")
    return lines


def place_of_words(plan: RowPlan) -> list[str]:
    """Return the code that finds the words between 16 bytes of memory and a row, and if the row begins within a word."""
    layout = plan.layout
    lines = [f"within = {_within(plan, 'row.index')}", f"row.skip = within // {layout.lanes}"]
    if layout.lanes > 1:
        lines.append("row.odd = (within & 1) != 0")
        lines.append(f"row.select = cutlass.select_(row.odd, {JOINED}, {SAME_LOW})")
        first = f"cutlass.select_(cta.lane == 0, {FIRST_JOINED}, {JOINED})"
        lines.append(f"row.join = cutlass.select_(row.odd, {first}, {SAME_HIGH})")
    return lines


def places_of_halves(plan: RowPlan, output: EpilogueOutput) -> list[str]:
    """Return the code that finds the place of a lane's word, and of the half of one that the first or last lane stores.

    A lane of another warp has the other half. The first lane stores the word of the second one again.
    """
    if plan.layout.lanes == 1:
        return []
    address = f"row.{output.label}_address"
    after = f"cutlass.select_(cta.lane == 31, Int64({WORD_BYTES}), Int64({HALF_BYTES}))"
    again = f"cutlass.select_(row.odd & (cta.lane == 0), Int64({WORD_BYTES}), Int64(0))"
    return [f"row.{output.label}_half = {address} + {after}", f"{address} = {address} + {again}"]


def print_word_load(out: Writer, plan: RowPlan, operand: EpilogueOperand, place: int) -> None:
    """Print the function that reads the word of two columns from a stage."""
    layout = plan.layout
    out.lines(("", ""))
    with out.block(f"def load_{operand.label}(cta, row, stage, at):"):
        out.line(f"address = cta.ring + stage * {layout.stage_bytes} + (row.thread + row.skip) * {WORD_BYTES}")
        out.line(f"offset = {place} + at * {layout.threads * WORD_BYTES}")
        out.line(f"(low,) = load_shared(address, offset, {WORD_BYTES})")
        out.line(f"(high,) = load_shared(address, offset + {WORD_BYTES}, {WORD_BYTES})")
        out.line("return [permuted(low, high, row.select)]")


def print_word_stores(out: Writer, plan: RowPlan) -> None:
    """Print the functions that store the word of two columns of each matrix, or the two halves of words."""
    for output in plan.problem.matrices:
        out.lines(("", ""))
        with out.block(f"def store_{output.label}(cta, row, granule, kind, inside, values):"):
            out.lines(_store(plan, output))


def _store(plan: RowPlan, output: EpilogueOutput) -> list[str]:
    """Return the code of a store. In a row that begins within a word, each lane stores the half of the lane before.

    A store without a condition is one instruction. So the first lane stores the same word as the second.
    """
    step, label = plan.layout.threads * WORD_BYTES, output.label
    return [
        f"(word,) = pack_{storage(output.dtype)}(values)",
        "given = cute.arch.shuffle_sync(word, cutlass.select_(cta.lane == 0, Int32(1), cta.lane - 1))",
        "joined = permuted(given, word, row.join)",
        f"address, offset = moved(row.{label}_address, granule, {step})",
        f"half, _ = moved(row.{label}_half, granule, {step})",
        "first, last = cta.lane == 0, cta.lane == 31",
        'if kind == "all":',
        "    store_words(address, offset, [joined], None)",
        "    at_end = word >> cutlass.select_(last, Int32(16), Int32(0))",
        f"    store_element(half, offset, at_end, 0, {HALF_BYTES}, row.odd & (first | last))",
        "    return",
        "even, later = row.odd == cutlass.Boolean(False), first == cutlass.Boolean(False)",
        "store_words(address, offset, [joined], inside[0] & ((row.odd & later) | (even & inside[1])))",
        "alone = even & (inside[1] == cutlass.Boolean(False))",
        "lone = cutlass.select_(row.odd, half, address)",
        f"store_element(lone, offset, word, 0, {HALF_BYTES}, inside[0] & ((row.odd & first) | alone))",
        f"ends = last | (row.thread + granule * {plan.layout.threads} + 1 == row.granules)",
        f"end = half + cutlass.select_(last, Int64(0), Int64({HALF_BYTES}))",
        f"store_element(end, offset, word, 16, {HALF_BYTES}, inside[1] & row.odd & ends)",
    ]


def print_word_sums(out: Writer, plan: RowPlan) -> None:
    """Print the function that stores a thread's sums over the rows of a block, one by one."""
    problem, layout = plan.problem, plan.layout
    out.lines(("", ""))
    with out.block("def store_sums(cta, block):"):
        out.line("row = types.SimpleNamespace(thread=renewed(cta.row_thread, cta.lane), base=cta.base)")
        out.line("row.shift, row.granules = span(cta, block, Int32(1))")
        with out.block(f"for granule in range({layout.thread_granules}):"):
            out.line('inside = elements_inside(cta, row, granule, "edge")')
            out.line("first = Int64(column_of(cta, row, granule))")
            for output in problem.sums:
                out.line(
                    f"address = cta.{output.label} + (Int64(block) * {pitch_of(problem, output)} + first) * {WORD_BYTES}"
                )
                with out.block(f"for i in range({layout.lanes}):"):
                    value = f"cta.sums[{first_sum(plan, output)} + granule * {layout.lanes} + i].bitcast(Int32)"
                    out.line(f"store_element(address, i * {WORD_BYTES}, {value}, 0, {WORD_BYTES}, inside[i])")
