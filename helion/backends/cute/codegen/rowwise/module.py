"""``render``: print the module of one row kernel."""

from __future__ import annotations

from ...plan.counts import PipelineCounts
from ...plan.dtypes import NUMBER, PITCH, SIZE, itemsize
from ...plan.epilogue import EpilogueOperand
from ...plan.rowwise.demand import WORD_BYTES
from ...plan.rowwise.kernel import RowsPlan
from ...plan.rowwise.loops import in_loops
from ...plan.rowwise.passes import schedule_of
from ...plan.rowwise.records import SIZE_N, RowLayout, RowPlan, RowProblem, is_pitch
from ...roles.rowwise.program import RowProgram
from ...toolchain.kernel import GemmKernel
from ..writer import Writer
from . import prelude
from .elements import (
    chains,
    columns_of,
    first_sum,
    pitch_of,
    print_pass,
    print_places,
    print_vectors,
    slice_of,
)
from .groups import print_groups
from .planes import print_planes
from .statistics import print_statistics
from .steps import print_fill, print_functions, print_role
from .stores import print_stores
from .totals import print_launch, print_totals
from .wide import print_numbers_of_groups, print_wide
from .words import place_of_words, places_of_halves, print_word_stores, print_word_sums

ENTRY = "gemm"
"""The host function. It takes pointers of the outputs and the operands (or scalars), the numbers that only the launch
knows, the maximum of co-resident clusters, and a stream."""
MEMORY = ("ring", "vectors", "partials", "planes", "parts")
"""The allocations of shared memory, besides barriers, whose addresses threads have."""
IMPORTS = (
    "import types",
    "",
    "import cutlass",
    "import cutlass.cute as cute",
    "from cuda.bindings.driver import CUstream",
    "from cutlass import Float32, Int32, Int64",
)


def pointer_dtypes(problem: RowProblem) -> tuple[str, ...]:
    """Return the types of the arguments of ``ENTRY``: outputs, operands or scalars, and launch-time numbers."""
    outputs = (output.dtype for output in problem.outputs)
    operands = (NUMBER if operand.kind == "number" else operand.dtype for operand in problem.epilogue.operands)
    return (*outputs, *operands, *(PITCH if is_pitch(name) else SIZE for name in problem.runtime))


def row_kernel_of(plan: RowsPlan) -> GemmKernel:
    """Return the kernel in the module of a plan."""
    layout = plan.rows.layout
    return GemmKernel(
        name=plan.kernel_names[0],
        unit=plan.rows.unit,
        pointers=pointer_dtypes(plan.rows.problem),
        ctas=layout.choice.cluster,
        threads=layout.cta_threads,
        shared_bytes=layout.shared_bytes,
        problem=repr(plan.rows.problem),
        source=render(plan.roles),
        ctas_per_sm=layout.choice.ctas_per_sm,
    )


def render(program: RowProgram) -> str:
    """Print the module of `program` without verification."""
    plan = program.plan
    body = Writer()
    _constants(body, plan)
    print_places(body, plan)
    print_vectors(body, plan)
    halves = plan.layout.by_words and plan.layout.lanes > 1
    (print_word_stores if halves else print_stores)(body, plan)
    print_groups(body, plan)
    print_numbers_of_groups(body, plan)
    for each in schedule_of(plan.problem).passes:
        print_pass(body, plan, each)
    print_statistics(body, plan)
    print_wide(body, plan)
    _rows(body, plan)
    _sums(body, plan)
    print_functions(body, plan)
    if plan.layout.choice.loads_itself:
        print_fill(body, plan)
    _kernel(body, program)
    if plan.problem.totals:
        print_totals(body, plan)
    _host(body, plan)
    out = Writer()
    out.lines(IMPORTS)
    out.lines(("", *prelude.needed_by(body.text())))
    return out.text() + body.text()


def _constants(out: Writer, plan: RowPlan) -> None:
    kinds = tuple(plan.layout.kind(granule) for granule in range(plan.layout.thread_granules))
    if not in_loops(plan):
        out.lines(("", "", f"KINDS = {kinds!r}"))


def _rows(out: Writer, plan: RowPlan) -> None:
    """Print the function that finds a thread's part of a row."""
    problem, layout, lanes, unit = plan.problem, plan.layout, plan.layout.lanes, plan.layout.unit
    _span(out, plan)
    out.lines(("", ""))
    with out.block("def first_granule(cta, index, pitch):"):
        if layout.aligned and not layout.by_words:
            out.line(f"return Int64(index) * (pitch // {lanes}) + cta.base")
        else:
            line = "" if layout.line_granules == 1 else f" * {layout.line_granules}"
            out.line(f"return ((Int64(index) * pitch) >> {unit.bit_length() - 1}){line} + cta.base")
    out.lines(("", ""))
    with out.block("def row_of(cta, tile):"):
        rows = layout.choice.rows
        out.line("row = types.SimpleNamespace()")
        out.line(f"row.index = tile * {rows} + cta.group" if rows > 1 else f"row.index = {plan.row_of('tile')}")
        out.line(f"row.live = row.index < {_size(problem)}")
        out.line("row.thread, row.base = cta.row_thread, cta.base")
        live = "cutlass.select_(row.live, Int32(1), Int32(0))" if rows > 1 else "Int32(1)"
        out.line(f"row.shift, row.granules = span(cta, row.index, {live})")
        out.lines(["row.skip = Int32(0)"] if not layout.by_words else place_of_words(plan))
        if layout.packed and rows > 1:
            pitch = columns_of(problem)
            out.line(f"tile_first = first_granule(cta, tile * {rows}, {pitch})")
            out.line(f"row.skip = (first_granule(cta, row.index, {pitch}) - tile_first).to(Int32)")
        for output in problem.matrices:
            step = layout.granule_bytes(itemsize(output.dtype))
            out.line(f"granule = first_granule(cta, row.index, {pitch_of(problem, output)}) + row.thread")
            out.line(f"row.{output.label}_address = cta.{output.label} + granule * {step}")
            out.lines(places_of_halves(plan, output) if layout.by_words else [])
        for output in problem.pairs:
            step = layout.granule_bytes(itemsize(output.dtype)) // 2
            out.line(f"granule = first_granule(cta, row.index, {2 * output.pitch}) + row.thread")
            out.line(f"row.{output.label}_address = cta.{output.label} + granule * {step}")
        for output in problem.groups:
            step = output.pitch * itemsize(output.dtype)
            out.line(f"row.{output.label}_address = cta.{output.label} + Int64(row.index) * {step}")
        if problem.vectors and not layout.aligned:
            out.line("row.places = []")
            with out.block(f"for i in range({lanes}):"):
                out.line("place = i - row.shift")
                plane = f"(place & {lanes - 1}) * {layout.vector_granules}"
                ahead = f"row.thread + {layout.line_granules}"
                out.line(f"row.places.append({plane} + {ahead} + (place >> {lanes.bit_length() - 1}))")
        schedule = schedule_of(problem)
        count = chains(schedule) * sum(map(len, schedule.reductions))
        out.line("row.terms = cta.terms" if in_loops(plan) else f"row.terms = [None] * {count}")
        out.line("row.held = []")
        out.line("row.stages = []")
        out.line("return row")


def _span(out: Writer, plan: RowPlan) -> None:
    """Print the function that finds the place of a row, or of some, in its first granule, and its granules in a CTA."""
    problem, layout = plan.problem, plan.layout
    out.lines(("", ""))
    with out.block("def span(cta, index, rows):"):
        lanes, unit, n = layout.lanes, layout.unit, columns_of(problem)
        if layout.aligned:
            out.line("shift = Int32(0)")
            granules = f"(rows * {n} + {lanes - 1}) // {lanes}"
        else:
            step = f"({n} & {unit - 1})" if problem.columns_at_launch else str(layout.demand.pitches[0] % unit)
            out.line(f"shift = (index * {step}) & {unit - 1}")
            granules = f"cutlass.select_(rows > 0, (shift + rows * {n} + {lanes - 1}) // {lanes}, Int32(0))"
        out.line(f"granules = {granules}")
        if layout.choice.cluster > 1:
            most = str(layout.slice_granules + layout.by_columns)
            if layout.slices_at_launch:
                most = f"{slice_of(layout)}{' + 1' if layout.by_columns else ''}"
            out.line(f"granules = cutlass.max(cutlass.min(granules - cta.base, Int32({most})), Int32(0))")
        out.line("return shift, granules")


def _sums(out: Writer, plan: RowPlan) -> None:
    """Print the functions that clear and store a thread's sums over the rows of a block."""
    problem, layout = plan.problem, plan.layout
    if not problem.sums:
        return
    count = len(problem.sums) * layout.thread_granules * layout.lanes
    out.lines(("", "", "def clear_sums(cta):", f"    for i in range({count}):", "        cta.sums[i] = Float32(0.0)"))
    if layout.by_columns:
        print_planes(out, plan)
        return
    if layout.by_words:
        print_word_sums(out, plan)
        return
    out.lines(("", ""))
    with out.block("def store_sums(cta, block):"):
        out.line("row = types.SimpleNamespace(thread=cta.row_thread, base=cta.base)")
        out.line("row.shift, row.granules = span(cta, block, Int32(1))")
        for output in problem.sums:
            step = layout.granule_bytes(itemsize(output.dtype))
            out.line(f"granule = first_granule(cta, block, {pitch_of(problem, output)}) + row.thread")
            out.line(f"row.{output.label}_address = cta.{output.label} + granule * {step}")
        with out.block(f"for granule in range({layout.thread_granules}):"):
            out.line("kind = KINDS[granule]")
            out.line("inside = elements_inside(cta, row, granule, kind)")
            for output in problem.sums:
                first = f"{first_sum(plan, output)} + granule * {layout.lanes}"
                out.line(f"values = [cta.sums[{first} + i] for i in range({layout.lanes})]")
                out.line(f"store_{output.label}(cta, row, granule, kind, inside, values)")


def _size(problem: RowProblem) -> str:
    return "cta.size_m" if problem.counted_at_launch else str(problem.m)


def parameters(problem: RowProblem) -> list[tuple[str, str]]:
    """Return the parameters of the kernel: (name, annotation)."""
    found = [(output.label, "Int64") for output in problem.outputs]
    found += [(operand.label, _annotation(operand)) for operand in problem.epilogue.operands]
    return found + [(name, "cutlass.Int64" if is_pitch(name) else "Int32") for name in problem.runtime]


def _annotation(operand: EpilogueOperand) -> str:
    return "Float32" if operand.kind == "number" else "Int64"


def _kernel(out: Writer, program: RowProgram) -> None:
    plan, problem, layout = program.plan, program.plan.problem, program.plan.layout
    names = parameters(problem)
    out.lines(("", "", "@cute.kernel", "def kernel("))
    out.lines(f"    {name}: {annotation}," for name, annotation in names)
    with out.block(") -> None:"):
        out.lines(_prologue(plan, program.exchange))
        out.lines(["cute.arch.griddepcontrol_launch_dependents()"] if problem.totals else [])
        out.line("cta = types.SimpleNamespace(")
        out.lines(f"    {name}={name}," for name, _ in names)
        for name in MEMORY:
            if any(name == each for each, _, _ in layout.allocations):
                out.line(f"    {name}={name}.toint().to(Int32),")
        out.line("    barriers=barriers,")
        out.line("    barrier=barriers.toint().to(Int32),")
        out.line("    lane=lane,")
        out.line("    rank=rank,")
        out.line(f"    base=rank * {'slice' if layout.slices_at_launch else layout.slice_granules},")
        out.lines(["    slice=slice,"] if layout.slices_at_launch else [])
        out.line("    row_thread=row_thread,")
        out.line("    group=group,")
        out.line("    row_warp=row_warp,")
        out.lines(["    terms=terms,"] if in_loops(plan) else [])
        out.lines(["    sums=sums,"] if problem.sums else [])
        out.line(")")
        for role in program.roles:
            print_role(out, program, role)
        if layout.choice.cluster > 1:
            out.lines(("cute.arch.cluster_arrive_relaxed()", "cute.arch.cluster_wait()"))


def _prologue(plan: RowPlan, exchange: PipelineCounts | None) -> list[str]:
    """Return the thread indices, shared memory, and barriers that all CTAs of the cluster see initialized."""
    layout = plan.layout
    choice, words = (
        layout.choice,
        {**dict.fromkeys(MEMORY, "Int32"), "barriers": "Int64"},
    )
    cluster = choice.cluster > 1
    lines = [
        "thread, _, _ = cute.arch.thread_idx()",
        "warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())",
        "lane = cute.arch.lane_idx()",
        "_, first_tile, _ = cute.arch.block_idx()",
        "_, tile_step, _ = cute.arch.grid_dim()",
        f"rank = {'cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())' if cluster else 'Int32(0)'}",
        f"group = cute.arch.make_warp_uniform((thread - {layout.first_thread}) // {layout.threads})",
        f"row_thread = (thread - {layout.first_thread}) % {layout.threads}",
        "row_warp = cute.arch.make_warp_uniform(row_thread // 32)",
        "memory = cutlass.memory.SmemAllocator()",
    ]
    for name, _, size in layout.allocations:
        if name not in words:
            continue
        count = size // (8 if name == "barriers" else WORD_BYTES)
        lines.append(f"{name} = memory.allocate_array({words[name]}, {count}, byte_alignment=128)")
    stages = layout.stages
    lines += [
        "if warp == 0:",
        "    with cute.arch.elect_one():",
        f"        for stage in cutlass.range_constexpr({stages}):",
        "            cute.arch.mbarrier_init(barriers + stage, 1)",
        f"            cute.arch.mbarrier_init(barriers + {stages} + stage, {choice.rows * choice.warps})",
        f"        for word in cutlass.range_constexpr({layout.exchange_stages}):",
        f"            cute.arch.mbarrier_init(barriers + {2 * stages} + word, {exchange.full_arrivals if exchange else 1})",
        f"        cute.arch.mbarrier_init(barriers + {layout.vectors_barrier}, 1)",
        "cute.arch.mbarrier_init_fence()",
    ]
    lines += (
        ["cute.arch.cluster_arrive_relaxed()", "cute.arch.cluster_wait()"] if cluster else ["cute.arch.sync_threads()"]
    )
    lines += _slices(layout)
    rows = "size_m" if plan.problem.counted_at_launch else str(plan.problem.m)
    lines.append(f"tiles = ({rows} + {choice.rows - 1}) // {choice.rows}" if choice.rows > 1 else f"tiles = {rows}")
    if plan.problem.sums:
        count = len(plan.problem.sums) * layout.thread_granules * layout.lanes
        lines.append(f"blocks = (tiles + {plan.problem.span - 1}) // {plan.problem.span}")
        lines.append(f"sums = cute.make_rmem_tensor({count}, Float32)")
    if in_loops(plan):
        schedule = schedule_of(plan.problem)
        count = max(1, chains(schedule) * sum(map(len, schedule.reductions)))
        lines.append(f"terms = cute.make_rmem_tensor({count}, Float32)")
    return lines


def _slices(layout: RowLayout) -> list[str]:
    """Return the division of a row among the CTAs of a cluster, if only the launch knows its columns."""
    if not layout.slices_at_launch:
        return []
    more = layout.lanes - 1 + (0 if layout.aligned or layout.by_columns else layout.lanes - 1)
    granules = f"(({SIZE_N} + {more}) // {layout.lanes})"
    each = layout.choice.cluster * layout.words
    words = f" * {layout.words}" if layout.words > 1 else ""
    return [f"slice = ({granules} + {each - 1}) // {each}{words}"]


def _host(out: Writer, plan: RowPlan) -> None:
    problem, layout = plan.problem, plan.layout
    choice = layout.choice
    out.lines(("", "", "@cute.jit", f"def {ENTRY}("))
    for name, annotation in parameters(problem):
        out.line(f"    {name}: {'cute.Pointer' if annotation == 'Int64' else annotation},")
    out.lines(("    clusters: Int32,", "    stream: CUstream,"))
    with out.block(") -> None:"):
        rows = "size_m" if problem.counted_at_launch else f"Int32({problem.m})"
        each = choice.rows * max(1, problem.span)
        out.line(f"tiles = ({rows} + {each - 1}) // {each}")
        out.line("kernel(")
        for name, annotation in parameters(problem):
            out.line(f"    {name}{'.toint()' if annotation == 'Int64' else ''},")
        with out.block(").launch("):
            out.line(f"grid=({choice.cluster}, cutlass.min(clusters, tiles), 1),")
            out.line(f"block=({layout.cta_threads}, 1, 1),")
            out.lines([f"cluster=({choice.cluster}, 1, 1),"] if choice.cluster > 1 else [])
            out.line(f"smem={layout.shared_bytes},")
            out.line(f"min_blocks_per_mp={choice.ctas_per_sm},")
            out.line("preferred_smem_carveout=100,")
            out.line("stream=stream,")
        out.line(")")
        if problem.totals:
            print_launch(out, plan)
