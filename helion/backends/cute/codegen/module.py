"""``build``: print the module of one plan."""

from __future__ import annotations

from ..plan.dtypes import NUMBER, PITCH, SEED, SIZE
from ..plan.epilogue import EpilogueOperand, EpilogueOutput
from ..plan.finish import is_turned
from ..plan.operands import gathered
from ..plan.records import WARP_THREADS, GemmPlan, GemmProblem
from ..plan.runtime import is_size, multiple_of
from ..plan.shared import Allocation, shared_bytes, shared_memory
from ..plan.workspace import workspace_bytes
from ..roles.grammar import KernelProgram, NamedBarrier, Pipeline, Role
from ..roles.programs import kernel_program
from ..verify.verify import verify
from . import copied, exchange, finish, groups, numbers, prepare, raw, rows, scales, workspace
from .blackwell import micro
from .host import HOST, HostObjects
from .outputs.strided import numbers_name
from .peers import messages
from .setups import definitions, dsl, operand_dsl
from .steps import print_steps
from .writer import Writer, in_one

_TEAMS = ("store_0", "store_1")
ENTRY = "gemm"
"""The host function. It takes pointers of A, B, the outputs, the epilogue's operands (or scalars) and the scales. Then
follow sizes and strides that only the launch knows, the workspace, if any, the maximum of co-resident clusters, and a
stream."""

IMPORTS = {
    "wgmma": (
        "import cutlass",
        "import cutlass.cute as cute",
        "import cutlass.pipeline as pipeline",
        "import cutlass.utils.hopper_helpers as hopper",
        "from cuda.bindings.driver import CUstream",
        "from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup",
        "from cutlass.tensor_utils import LayoutEnum",
    ),
    "tcgen05": (
        "import cutlass",
        "import cutlass.cute as cute",
        "import cutlass.pipeline as pipeline",
        "import cutlass.utils.blackwell_helpers as blackwell",
        "from cuda.bindings.driver import CUstream",
        "from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05",
        "from cutlass.tensor_utils import LayoutEnum",
    ),
}


def pointer_dtypes(plan: GemmPlan) -> tuple[str, ...]:
    """Return the pointer types of A, B, the outputs, the epilogue's operands, the scales, the offsets of groups and the
    workspace, if any, for ``ENTRY``.

    ``NUMBER`` means a scalar. Before the workspace, ``SIZE`` and ``PITCH`` are for the numbers of ``plan.runtime``.
    """
    problem = plan.whole
    outputs = (output.dtype for output in problem.outputs)
    sums = {each.operand: each.sources[0].dtype for each in problem.summed}
    extra = (
        {"number": NUMBER, "uniform": SEED, "product": problem.loaded_dtype(operand.label)}.get(
            operand.kind, sums.get(operand.label, operand.dtype)
        )
        for operand in problem.epilogue.operands
    )
    factors = (scale.dtype for scale in problem.scales.factors) if problem.scales is not None else ()
    sources = (source.dtype for source in problem.more_sources)
    terms = (problem.loaded_dtype(each.label) for each in problem.multiplicands if each.term)
    groups = () if problem.offsets is None else (problem.offsets.dtype,)
    shared = ("float32",) if workspace_bytes(plan) else ()
    given = (SIZE if is_size(name) else PITCH for name in problem.runtime)
    multiplied = (problem.loaded_dtype(operand) for operand in "ab")
    words = ("int32" for _ in problem.epilogue.words)
    return *multiplied, *outputs, *extra, *factors, *sources, *terms, *groups, *words, *given, *shared


def build(plan: GemmPlan) -> str:
    """Print the module of `plan`, with the host function ``ENTRY``; it is importable if the DSL is installed.

    Raises ``verify.Fault`` for a plan whose roles could deadlock, overrun a buffer or read stale data.
    """
    program = kernel_program(plan)
    verify(program)
    return render(program)


def render(program: KernelProgram, part: str = "") -> str:
    """Print the module of `program` without verification. The names of its kernel and host function end with ``part``."""
    objects = [HOST[name](program.plan) for name in program.host]
    out = Writer()
    out.lines(IMPORTS[program.plan.unit])
    out.lines(micro.imports(program.plan))
    out.lines([] if gathered(program.plan) is None else ["import cutlass.utils.hopper_helpers as hopper"])
    out.lines(definitions(program.plan))
    _kernel(out, program, objects, part)
    prepare.print_kernels(out, program.plan, part)
    if program.plan.finish is not None:
        finish.print_kernel(out, program.plan.finish)
    _host(out, program, objects, part)
    return out.text()


def _vectors(plan: GemmPlan) -> dict[str, tuple[str, str]]:
    """Return (elements, pitch) of one-dimensional operands and outputs, by label."""
    problem = plan.problem
    found = {
        operand.label: ("n" if operand.kind == "row" else "m", operand.pitch)
        for operand in problem.epilogue.operands
        if operand.kind in ("row", "column")
    }
    found |= {output.label: ("m", output.pitch) for output in problem.outputs_of("column")}
    return {
        label: (numbers.extent(plan, side), numbers.number(plan, f"pitch_{label}", pitch))
        for label, (side, pitch) in found.items()
    }


def _strided(plan: GemmPlan) -> dict[str, str]:
    """Return the host's tensors of matrices that threads access, by label."""
    found = {}
    outputs: tuple[EpilogueOutput | EpilogueOperand, ...] = plan.problem.outputs_of("strided")
    epilogue = plan.problem.epilogue
    for each in outputs + epilogue.of_kind("strided") + epilogue.of_kind("integers"):
        rows = numbers.extent(plan, "m")
        if isinstance(each, EpilogueOutput) and each.lines is not None:
            vector = f"cute.make_layout({rows}, stride={each.lines.pitch})"
            found[numbers_name(each)] = f"cute.make_tensor({numbers_name(each)}, {vector})"
            rows = str(each.picked)
        repeated = each.repeated if isinstance(each, EpilogueOperand) else 0
        shape = f"({rows}, {each.pairs or repeated or numbers.extent(plan, 'n')}"
        stride = f"({numbers.number(plan, f'pitch_{each.label}', each.pitch)}, {each.column_pitch}"
        for size, step, _ in numbers.batch_modes(plan, each.label):
            shape += f", {size}"
            stride += f", {step}"
        found[each.label] = f"cute.make_tensor({each.label}, cute.make_layout({shape}), stride={stride})))"
    return found


def _parted(plan: GemmPlan) -> list[str]:
    """Return the labels of outputs of numbers per tile."""
    return [output.label for output in plan.problem.outputs_of("tile")]


def _numbers(problem: GemmProblem) -> dict[str, str]:
    """Return the types of the scalars of a launch that the epilogue reads, by label."""
    floats, seeds = (problem.epilogue.of_kind(kind) for kind in ("number", "uniform"))
    return {each.label: "cutlass.Float32" for each in floats} | {each.label: "cutlass.Int64" for each in seeds}


def _kernel(out: Writer, program: KernelProgram, objects: list[HostObjects], part: str) -> None:
    plan = program.plan
    out.lines(("", "", "@cute.kernel"))
    parameters = [
        *(p for made in objects for p in made.parameters),
        *((name, "cute.Tensor") for name in (*_vectors(plan), *_strided(plan), *_parted(plan))),
        *_numbers(plan.problem).items(),
        *((name, "cutlass.Int32") for name in numbers.sizes(plan)),
        *((name, annotation) for name, annotation, _ in scales.parameters(plan)),
        *((name, "cute.Tensor") for name in (*groups.parameters(plan), *messages.parameters(plan))),
        *(workspace.PARAMETERS if plan.grid_splits > 1 else ()),
    ]
    out.line(f"def kernel{part}(")
    out.lines(f"    {name}: {annotation}," for name, annotation in parameters)
    with out.block(") -> None:"):
        teams = _teams(program)
        _prologue(out, program, [name for name, annotation in parameters if annotation == "cute.CopyAtom"], teams)
        _roles(out, program, teams)
        for step in program.exit:
            print_steps(out, program, Role(name="exit", first_warp=0, warps=program.warps, program=(step,)))


def _prologue(out: Writer, program: KernelProgram, descriptors: list[str], teams: list[str]) -> None:
    """Print the thread indices, shared memory, and barriers that all CTAs of the cluster see initialized."""
    plan = program.plan
    out.lines(
        (
            "thread, _, _ = cute.arch.thread_idx()",
            "warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())",
            "lane = cute.arch.lane_idx()",
            "_, first_work, _ = cute.arch.block_idx()",
            "_, work_step, _ = cute.arch.grid_dim()",
            "rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())",
            f"cluster_layout = cute.make_layout(({plan.ctas_per_mma}, {plan.cluster_tiles[0]}, {plan.cluster_tiles[1]}, {plan.splits}))",
            "place = cluster_layout.get_flat_coord(rank)",
        )
    )
    if plan.splits > 1 and plan.grid_splits == 1:
        out.line(f"k_begin = {plan.k_tiles} * place[3] // {plan.splits}")
        out.line(f"k_end = {plan.k_tiles} * (place[3] + 1) // {plan.splits}")
    out.lines(numbers.definitions(plan))
    if descriptors:
        with out.block("if warp == 0:"):
            out.lines(f"cpasync.prefetch_descriptor({name})" for name in descriptors)
    out.line("memory = cutlass.memory.SmemAllocator()")
    for allocation in shared_memory(plan):
        out.line(_allocation(plan, allocation))
    for pipeline in program.pipelines:
        _pipeline(out, program, pipeline)
    out.line("pipeline.pipeline_init_arrive(cluster_shape_mn=cluster_layout, is_relaxed=True)")
    for barrier in () if teams else program.barriers:
        out.line(_barrier(barrier.name, str(barrier.number), barrier))
    if plan.unit == "tcgen05":
        two = ", is_two_cta=True, two_cta_tmem_dealloc_mbar_ptr=free_barrier" if plan.ctas_per_mma == 2 else ""
        out.line(
            "tensor_memory = cutlass.memory.TmemAllocator("
            f"tensor_memory_address, barrier_for_retrieve=tensor_memory_barrier, allocator_warp_id=0{two})"
        )
    out.line("pipeline.pipeline_init_wait(cluster_shape_mn=cluster_layout)")
    if plan.prepare is not None and plan.prepare.operands:
        out.line(prepare.AWAIT)


def _allocation(plan: GemmPlan, allocation: Allocation) -> str:
    name, alignment = allocation.name, allocation.alignment_bytes
    if name.endswith("_barriers") or name == "free_barrier":
        return (
            f"{name} = memory.allocate_array(cutlass.Int64, {allocation.size_bytes // 8}, byte_alignment={alignment})"
        )
    if name == "tensor_memory_address":
        return f"{name} = memory.allocate_array(cutlass.Int32, 1, byte_alignment={alignment})"
    if name == "shared_lines":
        return f"{name} = memory.allocate_array(cutlass.Uint8, {allocation.size_bytes}, byte_alignment={alignment})"
    if name == "shared_count":
        return f"{name} = memory.allocate_tensor(cutlass.Int32, cute.make_layout(1), {alignment})"
    if name in ("shared_parts", "shared_slices", "shared_blocks"):
        return (
            f"{name} = memory.allocate_array(cutlass.Float32, {allocation.size_bytes // 4}, byte_alignment={alignment})"
        )
    if name == "shared_rows":
        word = "Int64" if plan.paired else "Int32"
        size = allocation.size_bytes // (8 if plan.paired else 4)
        return f"{name} = memory.allocate_array(cutlass.{word}, {size}, byte_alignment={alignment})"
    held = name.removeprefix("shared_")  # a kernel's own names also begin with "raw_" or "scales_"
    if (copied_operand := {f"raw_{each.operand}": each for each in plan.problem.copied}.get(held)) is not None:
        layout = (
            f"layout_{held}.outer, {alignment}, layout_{held}.inner" if plan.converts else f"layout_{held}, {alignment}"
        )
        return f"{name} = memory.allocate_tensor({raw.dtype(copied_operand)}, {layout})"
    if held in ("scales_a", "scales_b"):
        return f"{name} = memory.allocate_tensor(cutlass.Uint8, cute.make_layout({allocation.size_bytes}), {alignment})"
    operands = {operand.label: operand for operand in plan.problem.epilogue.operands}
    if held in operands and operands[held].kind == "row":
        return f"{name} = memory.allocate_tensor(cutlass.Float32, cute.make_layout({plan.teams * plan.tile[1]}), {alignment})"
    if held in ("a", "b"):
        dtype = operand_dsl(plan)
    else:
        outputs = {plan.problem.label_of(output): output for output in plan.problem.outputs_of("exact")}
        dtype = dsl((operands[held] if held in operands else outputs[held]).dtype)
    return f"{name} = memory.allocate_tensor({dtype}, layout_{held}.outer, {alignment}, layout_{held}.inner)"


CLASSES = {
    "tma_wgmma": "PipelineTmaAsync",
    "tma_umma": "PipelineTmaUmma",
    "umma_epilogue": "PipelineUmmaAsync",
    "tma_epilogue": "PipelineTmaAsync",
}


def _pipeline(out: Writer, program: KernelProgram, pipeline: Pipeline) -> None:
    """Print a pipeline with the arrivals and bytes of the plan.

    Residuals stay within their CTA, and so do A and B without multicast: their pipelines need no cluster layout.
    """
    numbers = pipeline.counts
    if pipeline.kind == "exchange":
        out.lines(exchange.make(pipeline))
        return
    if pipeline.kind == "rows":
        out.lines(rows.make(pipeline))
        return
    with out.block(f"{pipeline.name} = pipeline.{CLASSES[pipeline.kind]}.create("):
        out.line(f"num_stages={numbers.stages},")
        out.line(f"producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, {numbers.full_arrivals}),")
        out.line(f"consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, {numbers.empty_arrivals}),")
        if numbers.transaction_bytes or pipeline.name == "ab":
            out.line(f"tx_count={numbers.transaction_bytes},")
        out.line(f"barrier_storage={pipeline.barriers},")
        if pipeline.kind != "tma_epilogue" and (program.plan.shares_a or pipeline.name != "ab"):
            out.line("cta_layout_vmnk=cluster_layout,")
        out.line("defer_sync=True,")
    out.line(")")


def _roles(out: Writer, program: KernelProgram, teams: list[str]) -> None:
    # warps of both teams run the code at the place of the first one
    left = [role for role in program.roles if not (teams and role.team)]
    for limit in program.registers:
        members = [role for role in left if limit.first_warp <= role.first_warp < limit.first_warp + limit.warps]
        with out.block(f"if {warps_text(limit.first_warp, limit.warps, program.warps)}:"):
            out.line(f"cute.arch.setmaxregister_{limit.change}({limit.registers})")
            for role in members:
                _role(out, program, role, teams)
                left.remove(role)
    for role in left:
        _role(out, program, role, teams)


def _role(out: Writer, program: KernelProgram, role: Role, teams: list[str]) -> None:
    both = teams if role.name == _TEAMS[0] else []
    out.line(f"# {role.name}" if not both else f"# {' and '.join(_TEAMS)}")
    with out.block(f"if {warps_text(role.first_warp, role.warps * (2 if both else 1), program.warps)}:"):
        if both:
            out.lines(both)
        else:
            print_steps(out, program, role)


def _teams(program: KernelProgram) -> list[str]:
    """Return the code of both teams, which is compiled once: half as many instructions (measurement ``teams_in_one``).

    Empty for one team, and for two whose code differs in more than numbers and barriers.
    """
    if program.plan.teams == 1:
        return []
    roles = [program.role(name) for name in _TEAMS]
    first, second = [_printed(program, role) for role in roles]
    lines = [f"team = (warp - {roles[0].first_warp}) // {roles[0].warps}"]
    names = {}
    barriers = {barrier.name: barrier for barrier in program.barriers}
    for own in program.barriers:
        stem = own.name.removesuffix("_0")
        if stem != own.name:
            step = barriers[f"{stem}_1"].number - own.number
            lines.append(_barrier(f"{stem}_own", f"{own.number} + team * {step}", own))
            lines.append(_barrier(f"{stem}_other", f"{own.number} + (1 - team) * {step}", own))
            for at, side in enumerate(("own", "other")):
                names[f"{stem}_{at}_barrier", f"{stem}_{1 - at}_barrier"] = f"{stem}_{side}_barrier"
    found = in_one(first, second, "team", names)
    return [] if found is None else [*lines, *found]


def _printed(program: KernelProgram, role: Role) -> tuple[str, ...]:
    out = Writer()
    print_steps(out, program, role)
    return out.written()


def _barrier(name: str, number: str, barrier: NamedBarrier) -> str:
    return f"{name}_barrier = pipeline.NamedBarrier(barrier_id={number}, num_threads={barrier.threads})"


def warps_text(first: int, number: int, total: int) -> str:
    """Return the predicate of a role's warps."""
    if number == 1:
        return f"warp == {first}"
    if first + number == total:
        return f"warp >= {first}"
    return f"warp < {number}" if first == 0 else f"warp >= {first} and warp < {first + number}"


def _multiplied(plan: GemmPlan) -> str:
    """Return the labels that A and B of the whole problem have in the matmul."""
    return "ba" if is_turned(plan) else "ab"


def _host(out: Writer, program: KernelProgram, objects: list[HostObjects], part: str) -> None:
    plan = program.plan
    outputs = [output.label for output in plan.whole.outputs]
    if plan.finish is None:
        outputs = [plan.problem.label_of(output) for output in plan.problem.outputs]
    pointers = [*_multiplied(plan), *outputs, *(operand.label for operand in plan.whole.epilogue.operands)]
    out.lines(("", "", "@cute.jit"))
    out.line(f"def {ENTRY}{part}(")
    given = _numbers(plan.whole)
    pointers += [*(name for name, _, _ in scales.parameters(plan)), *copied.pointer_names(plan)]
    pointers += [*plan.problem.term_labels, *groups.parameters(plan), *messages.parameters(plan)]
    out.lines(f"    {name}: {given.get(name, 'cute.Pointer')}," for name in pointers)
    out.lines(f"    {name}: cutlass.{'Int32' if is_size(name) else 'Int64'}," for name in plan.problem.runtime)
    out.lines(["    workspace: cute.Pointer,"] if workspace_bytes(plan) else [])
    out.lines(("    clusters: cutlass.Int32,", "    stream: CUstream,"))
    with out.block(") -> None:"):
        begun = zip(pointers, plan.whole.starts, strict=False)
        out.lines(f"{name} = {name} + {elements}" for name, elements in begun if elements)
        out.lines([*prepare.launches(plan, part), *finish.stored(plan)])
        for name in plan.problem.runtime:
            if (multiple := multiple_of(plan.problem, name)) > 1:
                out.line(f"{name} = cute.assume({name}, divby={multiple})")
        for made in objects:
            out.lines(made.lines)
        for name, (extent, pitch) in _vectors(plan).items():
            shape, step = extent, f", stride={pitch}" if pitch != "1" else ""
            if modes := numbers.batch_modes(plan, name):
                step = f", stride=({', '.join([pitch, *(stride for _, stride, _ in modes)])})"
                shape = f"({', '.join([extent, *(size for size, _, _ in modes)])})"
            out.line(f"vector_{name} = cute.make_tensor({name}, cute.make_layout({shape}{step}))")
        for output in plan.problem.outputs_of("tile"):
            layout = f"({numbers.extent(plan, 'm')}, {plan.work[1]}), stride=({output.pitch}, 1)"
            out.line(f"vector_{output.label} = cute.make_tensor({output.label}, cute.make_layout({layout}))")
        arguments = [name for made in objects for name, _ in made.parameters]
        out.lines(f"factors_{name} = {tensor}" for name, _, tensor in scales.parameters(plan))
        out.lines(f"vector_{name} = {tensor}" for name, tensor in _strided(plan).items())
        arguments += [f"vector_{name}" for name in (*_vectors(plan), *_strided(plan), *_parted(plan))]
        arguments += [*_numbers(plan.problem), *numbers.sizes(plan)]
        arguments += [f"factors_{name}" for name, _, _ in scales.parameters(plan)]
        for name, tensor in (*groups.tensors(plan), *messages.tensors(plan)):
            out.line(f"vector_{name} = {tensor}")
            arguments.append(f"vector_{name}")
        if plan.grid_splits > 1:
            out.lines(workspace.tensors(plan))
            arguments += [name for name, _ in workspace.PARAMETERS]
        out.lines(numbers.definitions(plan) if numbers.pieces(plan) == "pieces" else [])
        out.line(f"kernel{part}(")
        out.lines(f"    {name}," for name in arguments)
        with out.block(").launch("):
            out.line(f"grid=({plan.ctas}, cutlass.min(clusters, {numbers.pieces(plan)}), 1),")
            out.line(f"block=({program.warps * WARP_THREADS}, 1, 1),")
            out.line(f"cluster=({plan.ctas}, 1, 1),")
            out.line(f"smem={shared_bytes(plan)},")
            if plan.ctas_per_sm > 1:
                out.lines((f"min_blocks_per_mp={plan.ctas_per_sm},", "preferred_smem_carveout=100,"))
            out.lines(["use_pdl=True,"] if plan.prepare is not None and plan.prepare.operands else [])
            out.line("stream=stream,")
        out.line(")")
        if plan.finish is not None:
            out.lines(finish.launch(plan))
