"""The second kernel of a launch, which adds up the sums over rows of all blocks.

Each thread adds some lines of a column, several loads at a time. The parts of a column are added in a fixed order. CTAs
start next to those of the rows, and wait for the end of these (programmatic dependent launch).
"""

from __future__ import annotations

from ...plan.dtypes import itemsize
from ...plan.epilogue import EpilogueOutput
from ...plan.rowwise.demand import WORD_BYTES
from ...plan.rowwise.records import SIZE_N, RowPlan, RowProblem, pitch_name
from ..writer import Writer
from .elements import stored_word

NAME = "totals"
LOADS = 16
"""Lines that a thread loads at a time."""
MOST_PARTS, LEAST_COLUMNS, THREADS = 32, 32, 256
"""The most threads of a column, the fewest columns of a CTA, whose words are a line of memory, and the fewest threads."""


def lines_of(problem: RowProblem, m: int) -> int:
    """Return the lines that a total adds up, of ``m`` rows: blocks of rows with sums, or some rows with numbers of groups."""
    return -(-m // (problem.line_rows or problem.span))


def total_columns(problem: RowProblem) -> int:
    """Return the most columns of a line."""
    if not problem.line_rows:
        return problem.n
    return problem.line_rows * (problem.n // problem.epilogue.grouped[problem.totals[0].value])


def parts_of(problem: RowProblem) -> int:
    """Return the threads that add up a column: with fewer lines than all of them load at once, fewer."""
    blocks, parts = lines_of(problem, problem.m), 1
    while parts < MOST_PARTS and parts * LOADS < blocks:
        parts *= 2
    return parts


def width_of(problem: RowProblem) -> int:
    """Return the columns of a CTA."""
    return max(THREADS // parts_of(problem), LEAST_COLUMNS)


def _sums(problem: RowProblem) -> list[EpilogueOutput]:
    """Return the sums of the blocks that each total adds up."""
    found = [each for each in problem.outputs if each.kind == ("group" if problem.line_rows else "sum")]
    return [next(each for each in found if each.value == total.value) for total in problem.totals]


def shared_parameters(problem: RowProblem) -> list[str]:
    """Return the names of what both kernels take."""
    tensors = dict.fromkeys(each.label for each in (*problem.totals, *_sums(problem)))
    numbers = {pitch_name(each.label) for each in _sums(problem)} | {SIZE_N}
    return [*tensors, *(name for name in problem.runtime if name in numbers)]


def print_totals(out: Writer, plan: RowPlan) -> None:
    """Print the kernel of all totals: the second coordinate of a CTA is the number of its total."""
    problem = plan.problem
    parts, columns = parts_of(problem), width_of(problem)
    out.lines(("", "", "def add_lines(total, source, pitch, line, end, inside):", "    words = []"))
    with out.block(f"    for i in range({LOADS}):"):
        out.line(f"    at = line + i * {parts}")
        out.line(f"    words.append(load_global(source + Int64(at) * pitch, {WORD_BYTES}, inside & (at < end)))")
    out.lines(("    for word in words:", "        total = total + word.bitcast(Float32)", "    return total"))
    out.lines(("", "", "def add_parts(total, first):"))
    with out.block(f"    for part in range(1, {parts}):"):
        out.line(f"    word = load_plane(first, part * {columns * WORD_BYTES}, {WORD_BYTES})")
        out.line("    total = total + word.bitcast(Float32)")
    out.lines(("    return total", "", "", "@cute.kernel", f"def {NAME}("))
    out.lines(f"    {name}: {_annotation(name)}," for name in shared_parameters(problem))
    with out.block("    blocks: Int32,\n) -> None:"):
        out.lines(body(problem, parts, columns))


def _annotation(name: str) -> str:
    return "Int32" if name == SIZE_N else "Int64"


def body(problem: RowProblem, parts: int, columns: int) -> list[str]:
    """Return the code of the kernel, of ``parts`` threads for each of the ``columns`` of a CTA."""
    n = SIZE_N if problem.columns_at_launch else str(total_columns(problem))
    sums = _sums(problem)
    lines = [
        "thread, _, _ = cute.arch.thread_idx()",
        "place, number, _ = cute.arch.block_idx()",
        f"column = place * {columns} + thread % {columns}",
        f"line = thread // {columns}",
        f"inside = column < {n}",
        f"source, pitch = {sums[0].label}, Int64({_pitch(problem, sums[0])})",
    ]
    for number, each in enumerate(sums[1:], 1):
        lines.append(f"source = cutlass.select_(number == {number}, {each.label}, source)")
        lines.append(f"pitch = cutlass.select_(number == {number}, Int64({_pitch(problem, each)}), pitch)")
    lines += [
        f"source = source + Int64(column) * {WORD_BYTES}",
        "total, first = Float32(0.0), Int32(0)",
        "cute.arch.griddepcontrol_wait()",
        "while first < blocks:",
        f"    total = add_lines(total, source, pitch * {WORD_BYTES}, first + line, blocks, inside)",
        f"    first = first + {LOADS * parts}",
    ]
    if parts > 1:
        lines += [
            "memory = cutlass.memory.SmemAllocator()",
            f"shared = memory.allocate_array(Int32, {parts * columns}, byte_alignment=128).toint().to(Int32)",
            f"store_shared(shared + thread * {WORD_BYTES}, total.bitcast(Int32), {WORD_BYTES})",
            "cute.arch.sync_threads()",
            f"total = add_parts(total, shared + thread % {columns} * {WORD_BYTES})",
        ]
    lines.append(f"stores = inside & (thread < {columns})")
    for number, output in enumerate(problem.totals):
        size = itemsize(output.dtype)
        address = f"{output.label} + Int64(column) * {size}"
        word = stored_word(output.dtype, "total")
        lines.append(f"store_element({address}, 0, {word}, 0, {size}, stores & (number == {number}))")
    return lines


def _pitch(problem: RowProblem, each: EpilogueOutput) -> str:
    if problem.line_rows:
        return str(total_columns(problem))
    if pitch_name(each.label) in problem.runtime:
        return pitch_name(each.label)
    return SIZE_N if problem.columns_at_launch and each.pitch == problem.n else str(each.pitch)


def print_launch(out: Writer, plan: RowPlan) -> None:
    """Print the launch of the kernel, after that of the rows: ``tiles`` is the number of blocks."""
    problem = plan.problem
    parts, columns = parts_of(problem), width_of(problem)
    n = SIZE_N if problem.columns_at_launch else f"Int32({total_columns(problem)})"
    if problem.line_rows:
        rows = "size_m" if problem.counted_at_launch else f"Int32({problem.m})"
        out.line(f"tiles = {rows} // {problem.line_rows}")
    out.line(f"{NAME}(")
    tensors = {each.label for each in problem.outputs}
    out.lines(f"    {name}{'.toint()' if name in tensors else ''}," for name in shared_parameters(problem))
    with out.block("    tiles,\n).launch("):
        out.line(f"grid=(({n} + {columns - 1}) // {columns}, {len(problem.totals)}, 1),")
        out.line(f"block=({parts * columns}, 1, 1),")
        out.line(f"smem={parts * columns * WORD_BYTES if parts > 1 else 0},")
        out.line("use_pdl=True,")
        out.line("stream=stream,")
    out.line(")")
