"""The text of each step of a row kernel's roles, one rule per kind of step."""

from __future__ import annotations

import functools

from ...plan.dtypes import itemsize
from ...plan.epilogue import EpilogueOperand
from ...plan.rowwise.choice import LOAD_REGISTERS, OVERLAPPED_ROWS, WARPGROUP
from ...plan.rowwise.demand import GRANULE_BYTES, WORD_BYTES
from ...plan.rowwise.loops import in_loops, walks_in_loops
from ...plan.rowwise.passes import gathers_late, schedule_of
from ...plan.rowwise.records import RowLayout, RowPlan, RowProblem
from ...roles import grammar as g
from ...roles.rowwise import program as r
from ..writer import Writer
from .elements import columns_of, pitch_of, place_of_repeat, slice_of, widened
from .overlap import print_overlap
from .planes import print_stored_planes
from .walks import begin_walks, loops_over_chunks, print_take, print_walk, print_walk_in_loops
from .words import loaded_words, print_word_load, print_word_sources


def print_role(out: Writer, program: r.RowProgram, role: r.RowRole) -> None:
    """Print the program of a role; one lane of the load warp issues all copies."""
    out.line(f"# {role.name}")
    moved, registers = program.plan.layout.moved, program.plan.layout.register_limit
    if moved and role.name == "load":
        out.lines((f"if warp < {WARPGROUP}:", f"    cute.arch.setmaxregister_decrease({LOAD_REGISTERS})"))
    with out.block("if warp == 0:" if role.first_warp == 0 else f"if warp >= {role.first_warp}:"):
        if role.name == "load":
            with out.block("if lane == 0:"):
                print_steps(out, program, role.program)
        else:
            out.lines([f"cute.arch.setmaxregister_increase({registers})"] if moved else [])
            print_steps(out, program, role.program)


def print_steps(out: Writer, program: r.RowProgram, steps: tuple[g.Step, ...]) -> None:
    for step in steps:
        _print(step, out, program)


def print_functions(out: Writer, plan: RowPlan) -> None:
    """Print the functions that read granules from the ring, and walk over the row that is held."""
    layout, schedule = plan.layout, schedule_of(plan.problem)
    for operand, place in zip(plan.problem.inputs, layout.input_offsets, strict=False):
        size = layout.granule_bytes(itemsize(operand.dtype))
        if layout.by_words and layout.lanes > 1:
            print_word_load(out, plan, operand, place)
            continue
        out.lines(("", ""))
        with out.block(f"def load_{operand.label}(cta, row, stage, at):"):
            out.line(f"address = cta.ring + stage * {layout.stage_bytes} + (row.thread + row.skip) * {size}")
            out.line(f"return load_shared(address, {place} + at * {layout.threads * size}, {size})")
    print_take(out, plan, schedule.passes[0])
    for each in schedule.passes[1:]:
        print_walk(out, plan, each)
    if layout.choice.overlap:
        print_overlap(out, plan)


@functools.singledispatch
def _print(step: g.Step, out: Writer, program: r.RowProgram) -> None:
    raise NotImplementedError(f"no rule prints {type(step).__name__}")


# Control -----------------------------------------------------------------------------------------------------------------


@_print.register
def _(step: r.BlockLoop, out: Writer, program: r.RowProgram) -> None:
    out.line("block = Int32(first_tile)")
    with out.block("while block < blocks:"):
        print_steps(out, program, step.body)
        out.line("block = block + tile_step")


@_print.register
def _(loop: r.RowLoop, out: Writer, program: r.RowProgram) -> None:
    problem, step = program.plan.problem, _step(program.plan)
    out.line(f"tile = {_first(program.plan)}")
    out.lines([f"end = {_last(program.plan)}"] if problem.sums else [])
    more = f" + {step}" if any(isinstance(each, r.Former) for each in loop.body) else ""
    with out.block(f"while tile < {_end(problem)}{more}:"):
        print_steps(out, program, loop.body)
        out.line(f"tile = tile + {step}")


@_print.register
def _(step: r.Lead, out: Writer, program: r.RowProgram) -> None:
    each = _step(program.plan)
    out.line(f"tile = {_first(program.plan)}")
    out.line(f"end = {_last(program.plan)}")
    out.line(f"first_end = cutlass.min(tile + {OVERLAPPED_ROWS} * {each}, end)")
    with out.block("while tile < first_end:"):
        print_steps(out, program, step.body)
        out.line(f"tile = tile + {each}")


@_print.register
def _(step: r.Follow, out: Writer, program: r.RowProgram) -> None:
    out.line("former = tile")
    out.line(f"following = tile + {OVERLAPPED_ROWS} * {_step(program.plan)}")
    out.lines(("next_row = row_of(cta, following)", "begin(cta, next_row)"))
    with out.block(f"for chunk in cutlass.range_constexpr({program.plan.layout.chunks}):"):
        with out.block("if following < end:"):
            out.line(f"cute.arch.mbarrier_wait(barriers + {step.cursor}_index, {step.cursor}_phase)")
        out.line(f"next_row.stages.append({step.cursor}_index)")
        _print(g.Advance(step.cursor), out, program)


@_print.register
def _(step: r.Overlap, out: Writer, program: r.RowProgram) -> None:
    out.line(f"walk_{step.number}_and_reduce(cta, row, next_row)")
    out.line("row = next_row")


@_print.register
def _(step: r.Following, out: Writer, program: r.RowProgram) -> None:
    with out.block("if following < end:"):
        print_steps(out, program, step.body)


@_print.register
def _(step: r.Restart, out: Writer, program: r.RowProgram) -> None:
    out.line(f"{step.cursor}_index, {step.cursor}_phase = {step.place}_index, {step.place}_phase")


def _first(plan: RowPlan) -> str:
    """Return the first row of the cluster, or of its block with sums, or of those that begin at one place."""
    if plan.interleaved:
        return "block"
    first = f"block * {plan.problem.span}" if plan.problem.sums else "Int32(first_tile)"
    return f"{first} + residue" if plan.layout.by_columns else first


def _last(plan: RowPlan) -> str:
    """Return the row after the last one of a block with sums, or of all."""
    if plan.interleaved or not plan.problem.sums:
        return "tiles"
    return f"cutlass.min(block * {plan.problem.span} + {plan.problem.span}, tiles)"


def _end(problem: RowProblem) -> str:
    return "end" if problem.sums else "tiles"


def _step(plan: RowPlan) -> str:
    """Return the rows from one row of a loop to the next."""
    if plan.layout.by_columns:
        return str(plan.layout.period)
    return "blocks" if plan.interleaved else "1" if plan.problem.sums else "tile_step"


@_print.register
def _(step: r.Ahead, out: Writer, program: r.RowProgram) -> None:
    with out.block(f"if tile < {_end(program.plan.problem)}:"):
        print_steps(out, program, step.body)


@_print.register
def _(step: r.Former, out: Writer, program: r.RowProgram) -> None:
    with out.block(f"if tile > {_first(program.plan)}:"):
        out.line(f"former = tile - {_step(program.plan)}")
        print_steps(out, program, step.body)


@_print.register
def _(step: r.ResidueLoop, out: Writer, program: r.RowProgram) -> None:
    out.line("residue = Int32(0)")
    with out.block(f"while residue < {program.plan.layout.period}:"):
        print_steps(out, program, step.body)
        out.line("residue = residue + 1")


@_print.register
def _(step: r.AddSums, out: Writer, program: r.RowProgram) -> None:
    out.line("add_sums(cta, block, residue)")


@_print.register
def _(step: r.ClearSums, out: Writer, program: r.RowProgram) -> None:
    out.line("clear_sums(cta)")


@_print.register
def _(step: r.StoreSums, out: Writer, program: r.RowProgram) -> None:
    if program.plan.layout.by_columns:
        print_stored_planes(out, program.plan)
    else:
        out.line("store_sums(cta, block)")


@_print.register
def _(step: r.ChunkLoop, out: Writer, program: r.RowProgram) -> None:
    layout = program.plan.layout
    loading = any(isinstance(each, r.AcquireChunk) for each in step.body)
    if loading:
        _begin_load(out, program.plan)
        with out.block(f"for chunk in cutlass.range({layout.chunks}, unroll=1):"):
            print_steps(out, program, step.body)
    elif in_loops(program.plan):
        begin_walks(out, program.plan, step)
        for kind in loops_over_chunks(out, program.plan):
            for each in step.body:
                if isinstance(each, r.TakeChunk):
                    out.line(f'take_chunk(cta, row, {each.cursor}_index, chunk, "{kind}")')
                else:
                    _print(each, out, program)
    else:
        with out.block(f"for chunk in cutlass.range_constexpr({layout.chunks}):"):
            print_steps(out, program, step.body)


def _begin_load(out: Writer, plan: RowPlan) -> None:
    """Print the granules of a tile of rows, and the first of each input."""
    layout = plan.layout
    if layout.by_words:
        print_word_sources(out, plan)
        return
    rows = layout.choice.rows
    first = f"tile * {rows}" if rows > 1 else "place" if plan.turned else "tile"
    out.lines([f"place = {plan.row_of('tile')}"] if plan.turned else [])
    size = "size_m" if plan.problem.counted_at_launch else str(plan.problem.m)
    count = f"cutlass.min(Int32({rows}), {size} - {first})" if rows > 1 else "Int32(1)"
    out.line(f"shift, granules = span(cta, {first}, {count})")
    if _counts_elements(layout):
        out.line(f"ends = shift + {count} * {columns_of(plan.problem)} - cta.base * {layout.lanes}")
    repeats = {repeat.operand: repeat for repeat in plan.problem.repeats}
    for operand in plan.problem.inputs:
        step = layout.granule_bytes(itemsize(operand.dtype))
        repeat = repeats.get(operand.label)
        row = first if repeat is None else place_of_repeat(first, repeat)
        granule = f"first_granule(cta, {row}, {pitch_of(plan.problem, operand)})"
        out.line(f"{operand.label}_source = {operand.label} + {granule} * {step}")


# Pipelines ---------------------------------------------------------------------------------------------------------------


@_print.register
def _(step: g.Cursor, out: Writer, program: r.RowProgram) -> None:
    phase = 1 if step.side == "producer" else 0
    out.line(f"{step.name}_index, {step.name}_phase = Int32(0), Int32({phase})")


@_print.register
def _(step: g.Advance, out: Writer, program: r.RowProgram) -> None:
    exchange = step.cursor.startswith(r.EXCHANGE)
    stages = program.plan.layout.exchange_stages if exchange else program.ring.stages
    index, phase = f"{step.cursor}_index", f"{step.cursor}_phase"
    out.line(f"{index} = {index} + 1")
    out.line(f"{phase} = cutlass.select_({index} == {stages}, {phase} ^ 1, {phase})")
    out.line(f"{index} = cutlass.select_({index} == {stages}, Int32(0), {index})")


@_print.register
def _(step: r.AcquireChunk, out: Writer, program: r.RowProgram) -> None:
    layout = program.plan.layout
    out.line(f"cute.arch.mbarrier_wait(barriers + {layout.stages} + {step.cursor}_index, {step.cursor}_phase)")
    out.lines(_loaded(program.plan))
    total = " + ".join(f"{operand.label}_bytes" for operand in program.plan.problem.inputs)
    out.line(f"cute.arch.mbarrier_arrive_and_expect_tx(barriers + {step.cursor}_index, {total})")


def _loaded(plan: RowPlan) -> list[str]:
    """Return the bytes of a chunk of each input, which are a multiple of 16.

    A granule of several times 16 bytes that is the last of a row may end later than the tensor: there the elements
    count.
    """
    if plan.layout.by_words:
        return loaded_words(plan)
    layout, most, each = plan.layout, plan.layout.chunk_size, 1
    sizes = [itemsize(operand.dtype) for operand in plan.problem.inputs]
    if _counts_elements(layout):
        most, each = most * layout.lanes, layout.lanes
    left = f"ends - chunk * {most}" if _counts_elements(layout) else f"granules - chunk * {most}"
    lines = [f"loaded = cutlass.max(cutlass.min({left}, Int32({most})), Int32(0))"]
    if layout.packed:
        lines = ["loaded = ends" if _counts_elements(layout) else "loaded = granules"]
    for operand, size in zip(plan.problem.inputs, sizes, strict=True):
        whole = f"loaded * {layout.granule_bytes(size)}"
        lines.append(f"{operand.label}_bytes = {whole if each == 1 else f'(loaded * {size} + 15) // 16 * 16'}")
    return lines


def _counts_elements(layout: RowLayout) -> bool:
    """Return whether the last granule of a row may reach 16 bytes beyond the row's last element."""
    return not layout.whole and len({*layout.demand.inputs}) > 1


@_print.register
def _(step: r.LoadChunk, out: Writer, program: r.RowProgram) -> None:
    layout = program.plan.layout
    with out.block("if loaded > 0:"):
        out.line(f"stage = cta.ring + {step.cursor}_index * {layout.stage_bytes}")
        out.line(f"full = cta.barrier + {step.cursor}_index * 8")
        for operand, place in zip(program.plan.problem.inputs, layout.input_offsets, strict=False):
            size = layout.granule_bytes(itemsize(operand.dtype))
            source = f"{operand.label}_source + Int64(chunk) * {layout.chunk_size * size}"
            out.line(f"bulk_load(stage + {place}, {source}, {operand.label}_bytes, full)")


@_print.register
def _(step: g.Wait, out: Writer, program: r.RowProgram) -> None:
    if step.cursor.startswith(r.EXCHANGE) and program.plan.layout.choice.cluster == 1:
        at = f"barriers + {2 * program.ring.stages} + {step.cursor}_index"
        out.line(f"cute.arch.mbarrier_wait({at}, {step.cursor}_phase)")
    elif step.cursor.startswith(r.EXCHANGE):
        out.line(f"await_cluster({_messages(program, step.cursor)}, {step.cursor}_phase)")
    else:
        out.line(f"cute.arch.mbarrier_wait(barriers + {step.cursor}_index, {step.cursor}_phase)")


@_print.register
def _(step: g.Release, out: Writer, program: r.RowProgram) -> None:
    out.line(f"arrive(cta.barrier + ({program.ring.stages} + {step.cursor}_index) * 8, lane == 0)")


@_print.register
def _(step: g.Tail, out: Writer, program: r.RowProgram) -> None:
    """Print nothing: only threads of the CTA itself arrive at its barriers."""


@_print.register
def _(step: g.BarrierSync, out: Writer, program: r.RowProgram) -> None:
    layout = program.plan.layout
    if step.barrier in r.CTA_BARRIERS:
        threads = layout.choice.rows * layout.threads
        out.line(f"cute.arch.barrier(barrier_id={r.VECTORS_BARRIER}, number_of_threads={threads})")
    else:
        out.line(f"cute.arch.barrier(barrier_id={r.FIRST_ROW_BARRIER} + group, number_of_threads={layout.threads})")


def print_fill(out: Writer, plan: RowPlan) -> None:
    """Print the function by which the first lane of a warp loads a row of its own into a stage."""
    layout, inputs = plan.layout, plan.problem.inputs
    out.lines(("", ""))
    with out.block("def fill(cta, tile, stage, inside):"):
        out.lines(f"{operand.label} = cta.{operand.label}" for operand in inputs)
        _begin_load(out, plan)
        out.lines(_loaded(plan))
        total = " + ".join(f"{operand.label}_bytes" for operand in inputs)
        out.line(f"expect(cta.barrier + stage * 8, {total}, inside)")
        for operand, place in zip(inputs, layout.input_offsets, strict=False):
            to = f"cta.ring + stage * {layout.stage_bytes} + {place}"
            given = f"{to}, {operand.label}_source, {operand.label}_bytes, cta.barrier + stage * 8, inside"
            out.line(f"bulk_load_where({given})")


@_print.register
def _(step: r.FillRing, out: Writer, program: r.RowProgram) -> None:
    out.line("fill_block = Int32(first_tile)")
    out.line(f"fill_tile = fill_block * {program.plan.problem.span}")
    with out.block(f"for stage in cutlass.range_constexpr({program.ring.stages}):"):
        _fill(out, program, "Int32(stage)")


@_print.register
def _(step: r.Refill, out: Writer, program: r.RowProgram) -> None:
    # Bulk copies write the stage through another proxy. The fence completes the warp's reads before that.
    out.lines(("cute.arch.fence_view_async_shared()", "cute.arch.sync_warp()"))
    _fill(out, program, "row.stages[0]" if program.plan.layout.held_stages else f"{step.cursor}_index")


def _fill(out: Writer, program: r.RowProgram, stage: str) -> None:
    """Print the load of the next row, and the step to the row after it: the next of its block, or the first of another."""
    span = program.plan.problem.span
    out.line(f"fill(cta, fill_tile, {stage}, (lane == 0) & (fill_block < blocks))")
    out.line("fill_tile = fill_tile + 1")
    out.line(f"passed = (fill_tile == fill_block * {span} + {span}) | (fill_tile == tiles)")
    out.line("fill_block = cutlass.select_(passed, fill_block + tile_step, fill_block)")
    out.line(f"fill_tile = cutlass.select_(passed, fill_block * {span}, fill_tile)")


# Vectors -----------------------------------------------------------------------------------------------------------------


@_print.register
def _(step: r.LoadVectors, out: Writer, program: r.RowProgram) -> None:
    plan, layout = program.plan, program.plan.layout
    n, most = columns_of(plan.problem), str(layout.slice_granules * layout.lanes)
    if layout.slices_at_launch:
        most = f"{slice_of(layout)} * {layout.lanes}"
    count = f"Int32({n})"
    if layout.choice.cluster > 1:
        count = f"cutlass.max(cutlass.min({n} - cta.base * {layout.lanes}, Int32({most})), Int32(0))"
    out.line(f"columns = {count}")
    sizes = [itemsize(operand.dtype) for operand in plan.problem.vectors]
    for at, size in enumerate(sizes):
        out.line(f"vector_bytes_{at} = (columns * {size} + 15) // 16 * 16")
    word, total = layout.vectors_barrier, " + ".join(f"vector_bytes_{at}" for at in range(len(sizes)))
    out.line(f"cute.arch.mbarrier_arrive_and_expect_tx(barriers + {word}, {total})")
    with out.block("if columns > 0:"):
        for at, (operand, place) in enumerate(zip(plan.problem.vectors, layout.vector_offsets, strict=False)):
            source = f"{operand.label} + Int64(cta.base) * {layout.granule_bytes(sizes[at])}"
            out.line(f"bulk_load(cta.vectors + {place}, {source}, vector_bytes_{at}, cta.barrier + {word * 8})")


@_print.register
def _(step: r.AwaitVectors, out: Writer, program: r.RowProgram) -> None:
    out.line(f"cute.arch.mbarrier_wait(barriers + {program.plan.layout.vectors_barrier}, 0)")


@_print.register
def _(step: r.ShareVectors, out: Writer, program: r.RowProgram) -> None:
    """Print the loops that place elements: in order, or in one plane for each column modulo the lanes of a granule."""
    plan, layout = program.plan, program.plan.layout
    lanes, length = layout.lanes, layout.vector_granules
    threads = layout.choice.rows * layout.threads
    for number, (operand, place) in enumerate(zip(plan.problem.vectors, layout.vector_offsets, strict=False)):
        size, width = itemsize(operand.dtype), layout.vector_sizes[number]
        if layout.aligned and width != size:
            _print_wide_vector(out, plan, operand, place)
            continue
        with out.block(
            f"for element in cutlass.range(thread - {layout.first_thread}, {length * lanes}, {threads}, unroll=8):"
        ):
            first = "cta.base" if layout.aligned else f"(cta.base - {layout.line_granules})"
            out.line(f"column = {first} * {lanes} + element")
            out.line(f"inside = (column >= 0) & (column < {columns_of(plan.problem)})")
            source = f"{operand.label} + Int64(column) * {operand.pitch * size}"
            out.line(f"word = load_global({source}, {size}, inside)")
            out.lines([f"word = ({widened(operand.dtype)}).bitcast(Int32)"] if width != size else [])
            at = "element" if layout.aligned else f"(element % {lanes} * {length} + element // {lanes})"
            out.line(f"store_shared(cta.vectors + {place} + {at} * {width}, word, {width})")


def _print_wide_vector(out: Writer, plan: RowPlan, operand: EpilogueOperand, place: int) -> None:
    """Print the loop that places elements of 16 bits as fp32, by pairs that one load has where it cannot end too late.

    Parts of 16 bytes of a granule lie in planes.
    """
    layout, problem = plan.layout, plan.problem
    length, threads = layout.vector_granules, layout.choice.rows * layout.threads
    part = min(layout.lanes, GRANULE_BYTES // WORD_BYTES)
    each = 2 if operand.pitch == 1 and problem.n % 2 == 0 and not problem.columns_at_launch else 1
    count, size = length * layout.lanes // each, itemsize(operand.dtype)
    with out.block(f"for place in cutlass.range(thread - {layout.first_thread}, {count}, {threads}, unroll=8):"):
        out.line(f"element = place * {each}")
        out.line(f"column = cta.base * {layout.lanes} + element")
        source = f"{operand.label} + Int64(column) * {operand.pitch * size}"
        out.line(f"word = load_global({source}, {each * size}, column < {columns_of(problem)})")
        values = f"unpack_{operand.dtype}([word])" if each == 2 else f"[{widened(operand.dtype)}]"
        out.line(f"plane = element % {layout.lanes} // {part} * {length * part}")
        out.line(f"address = (plane + element // {layout.lanes} * {part} + element % {part}) * {WORD_BYTES}")
        with out.block(f"for i, value in enumerate({values}):"):
            out.line(
                f"store_shared(cta.vectors + {place} + address + i * {WORD_BYTES}, value.bitcast(Int32), {WORD_BYTES})"
            )


# Rows --------------------------------------------------------------------------------------------------------------------


@_print.register
def _(step: r.BeginRow, out: Writer, program: r.RowProgram) -> None:
    out.lines((f"row = row_of(cta, {'former' if step.again else 'tile'})", "begin(cta, row)"))
    if step.again and gathers_late(program.plan.problem):
        out.line("gather(cta, row)")


@_print.register
def _(step: r.HoldChunk, out: Writer, program: r.RowProgram) -> None:
    out.line(f"row.stages.append({step.cursor}_index)")


@_print.register
def _(step: r.TakeChunk, out: Writer, program: r.RowProgram) -> None:
    out.line(f"take_chunk(cta, row, {step.cursor}_index, chunk)")


@_print.register
def _(step: r.WalkRow, out: Writer, program: r.RowProgram) -> None:
    if walks_in_loops(program.plan):
        print_walk_in_loops(out, program.plan, step)
    else:
        out.line(f"walk_{step.number}{'_and_release' if step.releases else ''}(cta, row)")


@_print.register
def _(step: r.ReduceWarp, out: Writer, program: r.RowProgram) -> None:
    out.line(f"reduce_{step.number}(cta, row)")


def _messages(program: r.RowProgram, cursor: str) -> str:
    """Return the address of the barrier that counts the bytes of messages."""
    return f"cta.barrier + ({2 * program.ring.stages} + {cursor}_index) * 8"


def _slots(program: r.RowProgram, cursor: str) -> str:
    layout = program.plan.layout
    size = layout.partials * layout.slot_words * WORD_BYTES
    rows = layout.choice.rows
    index = f"({cursor}_index * {rows} + group)" if rows > 1 else f"{cursor}_index"
    return f"cta.partials + {index} * {size}"


@_print.register
def _(step: r.ArmExchange, out: Writer, program: r.RowProgram) -> None:
    assert program.exchange is not None
    barrier = _messages(program, step.cursor)
    out.line(f"expect({barrier}, {program.exchange.transaction_bytes}, row_thread == 0)")


@_print.register
def _(step: r.SendMessage, out: Writer, program: r.RowProgram) -> None:
    layout = program.plan.layout
    size = layout.slot_words * WORD_BYTES
    if program.exchange is None:
        out.line(f"put({_slots(program, step.cursor)} + row_warp * {size}, message_{step.number}(row), lane == 0)")
        return
    barrier = _messages(program, step.cursor)
    if layout.choice.cluster == 1:
        place = f"{_slots(program, step.cursor)} + row_warp * {size}"
        out.line(f"put({place}, message_{step.number}(row), lane == 0)")
        out.line(f"count_in({barrier}, lane == 0)")
        return
    place = f"{_slots(program, step.cursor)} + (rank * {layout.choice.warps} + row_warp) * {size}"
    out.line(f"send({place}, message_{step.number}(row), {barrier}, lane, lane < {layout.choice.cluster})")


@_print.register
def _(step: r.Combine, out: Writer, program: r.RowProgram) -> None:
    out.line(f"combine_{step.number}(cta, row, {_slots(program, step.cursor) if step.cursor else 'None'})")


@_print.register(r.StoreNumbers)
@_print.register(r.StoreGroups)
def _(step: g.Step, out: Writer, program: r.RowProgram) -> None:
    out.line("store_numbers(cta, row)" if isinstance(step, r.StoreNumbers) else "store_groups(cta, row)")
