"""The second kernel of a launch, which finishes rows that the matmul stored, and its launch."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from ....hardware import VECTOR_BYTES
from ..plan.epilogue import EpilogueOutput
from ..plan.finish import (
    ROWS_PER_CTA,
    SIZE_M,
    counts_rows,
    joined,
    loaded_early,
    operands_read,
    part_slot,
    row_walks,
    row_words,
    rows_of_cta,
    shared_words,
    stored_last,
    threads_of,
)
from ..plan.passes import Pass, numbers_of
from ..plan.records import SUM_BYTES, WARP_THREADS, Finish, GemmPlan, GemmProblem, Part, RowFinish, TileFinish
from ..plan.reductions import reductions_of
from ..plan.workspace import rows_offset
from ..roles import finish as g
from ..roles.finish import finish_steps
from .epilogue import assigned, expression
from .rows import REDUCTIONS, Reduction, found_at
from .setups import dsl
from .writer import Writer

NAME = "finish"
LOADED_CHUNKS = 8
"""Vectors of a row that a thread loads before it stores them to shared memory."""
SHARED_UNROLLED = 2
"""Vectors in shared memory that a thread computes at a time."""
ROWS = "stored_rows"
"""The name of the stored rows."""


def parameters(finish: Finish) -> tuple[tuple[str, str], ...]:
    """Return the parameters of the kernel: (name, annotation)."""
    return (
        *((name, "cute.Tensor") for name in layouts(finish)),
        *((each.label, "cutlass.Float32") for each in finish.problem.epilogue.of_kind("number")),
        *(((SIZE_M, "cutlass.Int32"),) if counts_rows(finish.problem) else ()),
    )


def _rows(finish: Finish) -> str:
    """Return the number of rows."""
    return SIZE_M if counts_rows(finish.problem) else str(finish.problem.m)


def layouts(finish: Finish) -> dict[str, str]:
    """Return the layout of each tensor parameter, by name."""
    problem = finish.problem
    found: dict[str, str] = {}
    if isinstance(finish, RowFinish):
        found[ROWS] = _matrix(finish, finish.pitch)
        for operand in operands_read(finish):
            if operand.kind == "exact":
                found[operand.label] = _matrix(finish, operand.pitch)
            elif operand.pitch == 1:
                found[operand.label] = f"({finish.vector}, {_vectors(finish)}), stride=(1, {finish.vector})"
            else:
                found[operand.label] = f"{problem.n}, stride={operand.pitch}"
        for output in stored_last(finish):
            found[output.label] = _matrix(finish, output.pitch)
    else:
        for at in range(len(finish.parts)):
            found[_part(at)] = f"({finish.tiles}, {problem.m}), stride=(1, {len(finish.parts) * finish.tiles})"
    for column in problem.epilogue.of_kind("column"):
        found[column.label] = f"{problem.m}, stride={column.pitch}"
    for number in problem.outputs_of("column"):
        found[number.label] = f"{problem.m}, stride={number.pitch}"
    return found


def _matrix(finish: RowFinish, pitch: int) -> str:
    """Return the layout of a matrix: columns of a vector, vectors, rows."""
    return f"({finish.vector}, {_vectors(finish)}, {finish.problem.m}), stride=(1, {finish.vector}, {pitch})"


def _vectors(finish: RowFinish) -> int:
    return -(-finish.problem.n // finish.vector)


def _part(at: int) -> str:
    return f"stored_part_{at}"


# The host function -------------------------------------------------------------------------------------------------------


def stored(plan: GemmPlan) -> list[str]:
    """Return the lines of the host function before the matmul's launch: the pointers it stores to."""
    finish, lines = plan.finish, []
    place = f"workspace + {rows_offset(plan) // SUM_BYTES}"
    if isinstance(finish, RowFinish):
        home = next((each.label for each in finish.problem.outputs if each.name == finish.home), "")
        lines.append(f"d = {home or _recast(place, finish.dtype)}")
    elif finish is not None:
        for at, output in enumerate(plan.problem.outputs):
            lines.append(f"{output.label} = {place} + {at * finish.tiles}")
    return lines


def _recast(pointer: str, dtype: str) -> str:
    return pointer if dtype == "float32" else f"cute.recast_ptr({pointer}, dtype={dsl(dtype)})"


def launch(plan: GemmPlan) -> list[str]:
    """Return the lines of the host function after the matmul's launch."""
    finish, names = plan.finish, {ROWS: "d"}
    assert finish is not None
    if isinstance(finish, TileFinish):
        names = {_part(at): output.label for at, output in enumerate(plan.problem.outputs)}
    lines = [
        f"finish_{name} = cute.make_tensor({names.get(name, name)}, cute.make_layout({layout}))"
        for name, layout in layouts(finish).items()
    ]
    given = [f"finish_{name}" if kind == "cute.Tensor" else name for name, kind in parameters(finish)]
    return [
        *lines,
        f"{NAME}(",
        *(f"    {name}," for name in given),
        ").launch(",
        f"    grid=({_ctas(finish)}, 1, 1),",
        f"    block=({threads_of(finish)}, 1, 1),",
        *([f"    smem={SUM_BYTES * words},"] if (words := row_words(finish) + shared_words(finish)) else []),
        "    use_pdl=True,",
        "    min_blocks_per_mp=1,",  # else ptxas spills rather than use a few more registers
        "    stream=stream,",
        ")",
    ]


def _ctas(finish: Finish) -> str:
    """Return the CTAs of the kernel."""
    rows, each = _rows(finish), rows_of_cta(finish)
    return str(-(-int(rows) // each)) if rows.isdigit() else f"({rows} + {each - 1}) // {each}"


# The kernel --------------------------------------------------------------------------------------------------------------


def print_kernel(out: Writer, finish: Finish) -> None:
    """Print the kernel, with the parameters of ``parameters``."""
    out.lines(("", "", "@cute.kernel", f"def {NAME}("))
    out.lines(f"    {name}: {annotation}," for name, annotation in parameters(finish))
    with out.block(") -> None:"):
        out.lines(("thread, _, _ = cute.arch.thread_idx()", "cta, _, _ = cute.arch.block_idx()"))
        out.lines(("warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())", "lane = cute.arch.lane_idx()"))
        out.lines(_row(finish))
        out.lines(_registers(finish) if isinstance(finish, RowFinish) else _tile_registers(finish))
        out.lines(_columns(finish))
        for step in finish_steps(finish):
            _print(step, out, finish)


def _row(finish: Finish) -> list[str]:
    """Return the row of the CTA, or of the warp. Warps after the last row repeat the last one, and store nothing."""
    if isinstance(finish, RowFinish):
        return ["row = cutlass.Int64(cta)" if _is_far(finish) else "row = cta"]
    return [f"row = cta * {ROWS_PER_CTA} + warp", f"source = cutlass.min(row, {_last(finish)})"]


def _last(finish: Finish) -> str:
    """Return the last row."""
    rows = _rows(finish)
    return str(int(rows) - 1) if rows.isdigit() else f"{rows} - 1"


@functools.singledispatch
def _print(step: g.FinishStep, out: Writer, finish: Finish) -> None:
    raise NotImplementedError(f"no rule prints {type(step).__name__}")


@_print.register
def _(step: g.EvaluateNumbers, out: Writer, finish: Finish) -> None:
    out.lines(_numbers(finish.problem, step.level))


@_print.register
def _(step: g.AwaitProduct, out: Writer, finish: Finish) -> None:
    out.line("cute.arch.griddepcontrol_wait()")


@_print.register
def _(step: g.StoreNumbers, out: Writer, finish: Finish) -> None:
    one = "thread == 0" if isinstance(finish, RowFinish) else f"row < {_rows(finish)} and lane == 0"
    with out.block(f"if {one}:"):
        for each in finish.problem.outputs_of("column"):
            out.line(f"{each.label}[row] = {_name(finish.problem, each.value)}.to({dsl(each.dtype)})")


def _columns(finish: Finish) -> list[str]:
    """Return the loads of the row's column operands."""
    row = "row" if isinstance(finish, RowFinish) else "source"
    given = finish.problem.epilogue.of_kind("column")
    return [f"{each.label}_row = {each.label}[{row}].to(cutlass.Float32)" for each in given]


def _numbers(problem: GemmProblem, level: int) -> list[str]:
    """Return per-row instructions after `level` reductions."""
    return [
        f"{_name(problem, value)} = {expression(problem, value, lambda x: _name(problem, x), lambda op: 'row')}"
        for value in numbers_of(problem, level)
    ]


def _name(problem: GemmProblem, value: int) -> str:
    """Return the name of a value in the code."""
    epilogue = problem.epilogue
    if 0 < value <= len(epilogue.operands):
        operand = epilogue.operands[value - 1]
        suffix = {"number": "", "column": "_row"}.get(operand.kind, "_value")
        return f"{operand.label}{suffix}"
    return f"x{value}_row" if epilogue.per_row[value] else f"x{value}"


# Whole rows --------------------------------------------------------------------------------------------------------------


@_print.register
def _(step: g.LoadOperands, out: Writer, finish: RowFinish) -> None:
    with out.block(f"for chunk in cutlass.range_constexpr({finish.chunks}):"):
        out.line(_vector(finish))
        for operand in loaded_early(finish):
            out.lines(_load(finish, operand.label, operand.dtype))
            out.line(f"for i in cutlass.range_constexpr({finish.vector}):")
            out.line(f"    {operand.label}_early[chunk * {finish.vector} + i] = {operand.label}_loaded[i]")


@_print.register
def _(step: g.LoadRow, out: Writer, finish: RowFinish) -> None:
    if finish.shared:
        _load_shared(out, finish)
        return
    with out.block(f"for chunk in cutlass.range_constexpr({finish.chunks}):"):
        out.lines((_vector(finish), *_load(finish, ROWS, finish.dtype)))
        out.line(f"for i in cutlass.range_constexpr({finish.vector}):")
        out.line(f"    held[chunk * {finish.vector} + i] = {ROWS}_loaded[i].to(cutlass.Float32)")


def _load_shared(out: Writer, finish: RowFinish) -> None:
    """Print the loads of a row to shared memory, several vectors of a thread at a time."""
    for first in range(0, finish.chunks, LOADED_CHUNKS):
        chunks = range(first, min(first + LOADED_CHUNKS, finish.chunks))
        for at, chunk in enumerate(chunks):
            out.line(f"vector = thread + {chunk * finish.threads}")
            out.lines(_load(finish, ROWS, finish.dtype, f"loaded_{at}"))
        for at, chunk in enumerate(chunks):
            out.line(f"for i in cutlass.range_constexpr({finish.vector}):")
            out.line(f"    held_values[i] = loaded_{at}[i].to(cutlass.Float32)")
            out.line(f"cute.autovec_copy(held_values, {_held(finish, str(chunk))})")


@_print.register
def _(step: g.ReduceColumns, out: Writer, finish: RowFinish) -> None:
    problem, walk = finish.problem, row_walks(finish)[step.number]
    for value in walk.reduces:
        out.line(f"x{value}_term.fill({_reduction(problem, value).identity})")
    with out.block(_chunks(finish)):
        out.lines(_begin(finish, walk))
        with out.block(f"for i in cutlass.range_constexpr({finish.vector}):"):
            out.lines(_elements(finish, walk))
            out.lines(_terms(finish, walk))
            if walk.keeps != walk.held:
                kept = "held_values[i]" if finish.shared else f"held[chunk * {finish.vector} + i]"
                out.line(f"{kept} = {_name(problem, walk.keeps)}")
        if walk.keeps != walk.held and finish.shared:
            out.line(f"cute.autovec_copy(held_values, {_held(finish)})")


@_print.register
def _(step: g.PutParts, out: Writer, finish: RowFinish) -> None:
    for value in row_walks(finish)[step.number].reduces:
        out.lines(_in_warp(finish.problem, value))
        out.line("if lane == 0:")
        out.line(f"    shared_parts[{part_slot(finish, value)} + warp] = part")


@_print.register
def _(step: g.CtaSync, out: Writer, finish: RowFinish) -> None:
    out.line("cute.arch.sync_threads()")


@_print.register
def _(step: g.JoinParts, out: Writer, finish: RowFinish) -> None:
    warps = finish.threads // WARP_THREADS
    for value in row_walks(finish)[step.number].reduces:
        out.line(f"part = shared_parts[{part_slot(finish, value)} + lane % {warps}]")
        out.lines(_butterfly(finish.problem, value, warps))
        out.line(f"x{value}_row = part")


@_print.register
def _(step: g.StoreColumns, out: Writer, finish: RowFinish) -> None:
    walk = row_walks(finish)[-1]
    with out.block(_chunks(finish)):
        out.lines(_begin(finish, walk))
        with out.block(f"for i in cutlass.range_constexpr({finish.vector}):"):
            out.lines(_elements(finish, walk))
            for output in walk.outputs:
                out.line(f"{output.label}_values[i] = {_name(finish.problem, output.value)}")
        for output in walk.outputs:
            out.lines(_store(finish, output))


def _is_far(finish: RowFinish) -> bool:
    """Return whether element offsets need more than 32 bits."""
    pitches = [
        finish.pitch,
        *(read.pitch for read in operands_read(finish)),
        *(output.pitch for output in stored_last(finish)),
    ]
    return finish.problem.m * max(pitches) >= 2**31


def _registers(finish: RowFinish) -> Iterator[str]:
    """Yield the fragments. Those that are loaded start as zeros, because columns after the last are computed as well."""
    if finish.shared:
        yield f"held_values = cute.make_rmem_tensor({finish.vector}, cutlass.Float32)"
        for at in range(min(LOADED_CHUNKS, finish.chunks)):
            yield f"loaded_{at} = cute.make_rmem_tensor({finish.vector}, {dsl(finish.dtype)})"
            yield f"loaded_{at}.fill(0.0)"
    elif finish.kept:
        yield f"held = cute.make_rmem_tensor({finish.chunks * finish.vector}, cutlass.Float32)"
    rows = () if finish.shared else ((ROWS, finish.dtype),)
    for name, dtype in (*rows, *((each.label, each.dtype) for each in operands_read(finish))):
        yield f"{name}_loaded = cute.make_rmem_tensor({finish.vector}, {dsl(dtype)})"
        yield f"{name}_loaded.fill(0.0)"
    for each in loaded_early(finish):
        yield f"{each.label}_early = cute.make_rmem_tensor({finish.chunks * finish.vector}, {dsl(each.dtype)})"
    for output in stored_last(finish):
        yield f"{output.label}_values = cute.make_rmem_tensor({finish.vector}, cutlass.Float32)"
        yield f"{output.label}_rounded = cute.make_rmem_tensor({finish.vector}, {dsl(output.dtype)})"
    for value in (value for level in reductions_of(finish.problem) for value in level):
        yield f"x{value}_term = cute.make_rmem_tensor(1, cutlass.Float32)"
    if shared_words(finish) or finish.shared:
        yield "memory = cutlass.memory.SmemAllocator()"
    if finish.shared:
        layout = f"({finish.vector}, {finish.threads}, {finish.chunks})"
        yield f"shared_row = memory.allocate_tensor(cutlass.Float32, cute.make_layout({layout}), {VECTOR_BYTES})"
    if shared_words(finish):
        yield f"shared_parts = memory.allocate_tensor(cutlass.Float32, cute.make_layout({shared_words(finish)}), 16)"


def _chunks(finish: RowFinish) -> str:
    unrolled, turns = f"range_constexpr({finish.chunks})", SHARED_UNROLLED if finish.shared else 1
    in_registers = finish.kept and not finish.shared
    return f"for chunk in cutlass.{unrolled if in_registers else f'range({finish.chunks}, unroll={turns})'}:"


def _held(finish: RowFinish, chunk: str = "chunk") -> str:
    """Return the place of a thread's vector of the row in shared memory."""
    return f"shared_row[None, thread, {chunk}]"


def _vector(finish: RowFinish) -> str:
    return f"vector = thread + chunk * {finish.threads}"


def _load(finish: RowFinish, name: str, dtype: str, to: str = "") -> list[str]:
    """Return the loads of the thread's columns of a matrix, or of a row, within bounds, ``to`` a fragment."""
    flat = to or f"{name}_loaded"
    at = "vector, row" if name == ROWS or _kind(finish, name) == "exact" else "vector"
    if at == "vector" and _pitch(finish, name) > 1:
        return [
            f"for i in cutlass.range_constexpr({finish.vector}):",
            f"    if vector * {finish.vector} + i < {finish.problem.n}:",
            f"        {flat}[i] = {name}[vector * {finish.vector} + i]",
        ]
    return _moved(finish, f"cute.autovec_copy({name}[None, {at}], {flat})", f"{flat}[i] = {name}[i, {at}]")


def _moved(finish: RowFinish, whole: str, single: str) -> list[str]:
    """Return copies of whole vectors, and of the valid part of the last one."""
    vectors, rest = divmod(finish.problem.n, finish.vector)
    lines = [f"if vector < {vectors}:", f"    {whole}"] if vectors else []
    if rest:
        lines += [f"if vector == {vectors}:", f"    for i in cutlass.range_constexpr({rest}):", f"        {single}"]
    return lines


def _kind(finish: RowFinish, label: str) -> str:
    return next(each.kind for each in finish.problem.epilogue.operands if each.label == label)


def _pitch(finish: RowFinish, label: str) -> int:
    return next(each.pitch for each in finish.problem.epilogue.operands if each.label == label)


def _elements(finish: RowFinish, walk: Pass) -> list[str]:
    """Return the code of `walk` for column ``i`` of a vector."""
    problem = finish.problem
    first = f"held[chunk * {finish.vector} + i]" if finish.kept else f"{ROWS}_loaded[i].to(cutlass.Float32)"
    first = "held_values[i]" if finish.shared else first
    lines = [f"{_name(problem, walk.held)} = {first}"]
    for value in walk.reads:
        operand = problem.epilogue.operands[value - 1]
        early = operand in loaded_early(finish)
        place = f"{operand.label}_early[chunk * {finish.vector} + i]" if early else f"{operand.label}_loaded[i]"
        lines.append(f"{_name(problem, value)} = {place}.to(cutlass.Float32)")
    for value in walk.computes:
        names = functools.partial(_name, problem)
        lines += assigned(problem, value, names, lambda op: f"vector * {finish.vector} + i", names)
    return lines


def _begin(finish: RowFinish, walk: Pass) -> list[str]:
    """Return the start of a pass over the columns of a thread: the loads of one vector."""
    lines = [_vector(finish)]
    if finish.shared:
        lines.append(f"cute.autovec_copy({_held(finish)}, held_values)")
    elif not finish.kept:
        lines += _load(finish, ROWS, finish.dtype)
    for value in walk.reads:
        operand = finish.problem.epilogue.operands[value - 1]
        lines += [] if operand in loaded_early(finish) else _load(finish, operand.label, operand.dtype)
    return lines


def _reduction(problem: GemmProblem, value: int) -> Reduction:
    return REDUCTIONS[problem.epilogue.instruction(value).op]


def _terms(finish: RowFinish, walk: Pass) -> list[str]:
    problem, whole = finish.problem, finish.chunks * finish.threads * finish.vector == finish.problem.n
    lines = [] if whole else [f"inside = vector * {finish.vector} + i < {problem.n}"]
    for value in walk.reduces:
        reduction = _reduction(problem, value)
        term = _term(finish, value)
        if not whole:
            term = f"cutlass.Float32(cutlass.select_(inside, {term}, cutlass.Float32({reduction.identity})))"
        lines.append(f"x{value}_term[0] = {reduction.join(f'x{value}_term[0]', term)}")
    return lines


def _term(finish: RowFinish, value: int) -> str:
    problem = finish.problem
    made = problem.epilogue.instruction(value)
    x, *others = (_name(problem, argument) for argument in made.arguments if isinstance(argument, int))
    if made.op != "row_first":
        return x
    return found_at(x, others[0], f"cutlass.Float32(vector * {finish.vector} + i)")


def _in_warp(problem: GemmProblem, value: int) -> list[str]:
    return [f"part = x{value}_term[0]", *_butterfly(problem, value, WARP_THREADS)]


def _butterfly(problem: GemmProblem, value: int, lanes: int) -> list[str]:
    """Return the reduction of `part` over `lanes` neighboring lanes, bit-identical in all of them."""
    offsets = [1 << bit for bit in range(lanes.bit_length() - 1)]
    reduction = _reduction(problem, value)
    return [
        f"part = {reduction.join('part', f'cute.arch.shuffle_sync_bfly(part, offset={offset})')}" for offset in offsets
    ]


def _store(finish: RowFinish, output: EpilogueOutput) -> list[str]:
    name = output.label
    return [
        f"{name}_rounded.store({name}_values.load().to({dsl(output.dtype)}))",
        *_moved(
            finish,
            f"cute.autovec_copy({name}_rounded, {name}[None, vector, row])",
            f"{name}[i, vector, row] = {name}_rounded[i]",
        ),
    ]


# Parts of rows -----------------------------------------------------------------------------------------------------------


def _tile_registers(finish: TileFinish) -> list[str]:
    return [f"x{part.value}_term = cute.make_rmem_tensor(1, cutlass.Float32)" for part in finish.parts]


@_print.register
def _(step: g.JoinTiles, out: Writer, finish: TileFinish) -> None:
    problem, parts = finish.problem, joined(finish)[step.number]
    for part in parts:
        out.line(f"x{part.value}_term.fill({_reduction(problem, part.value).identity})")
    turns = -(-finish.tiles // WARP_THREADS)
    with out.block(f"for turn in cutlass.range({turns}, unroll={min(turns, UNROLLED)}):"):
        out.line(f"tile = lane + turn * {WARP_THREADS}")
        with out.block(f"if tile < {finish.tiles}:"):
            for part in parts:
                join = _reduction(problem, part.value).join
                out.line(f"x{part.value}_term[0] = {join(f'x{part.value}_term[0]', _joined(finish, part))}")
    for part in parts:
        out.lines((*_in_warp(problem, part.value), f"x{part.value}_row = part"))


UNROLLED = 4
"""Iterations whose loads a warp has in flight at once."""


def _joined(finish: TileFinish, part: Part) -> str:
    """Return a tile's result as a part of that of the whole row."""
    order = [each.value for each in finish.parts]

    def of_tile(value: int) -> str:
        return f"{_part(order.index(value))}[tile, source]"

    own = of_tile(part.value)
    if part.kind == "plain":
        return own
    if part.kind == "first":
        return found_at(of_tile(part.of), f"x{part.of}_row", own)
    shifted = f"({of_tile(part.of)} - x{part.about}_row)"
    scaled = shifted if part.scale == 1.0 else f"{shifted} * {part.scale!r}"
    return f"{own} * cute.math.{part.power}({scaled})"
