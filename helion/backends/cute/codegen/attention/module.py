"""``render``: print the module of a plan of attention, or of its gradients."""

from __future__ import annotations

from collections.abc import Mapping

from ....._support.records import dataclass
from ...plan.attention.build import shared_bytes, shared_memory, workspace_bytes
from ...plan.attention.operands import Source
from ...plan.attention.records import AttentionPlan, ScorePlan
from ...plan.dtypes import DTYPES
from ...plan.records import WARP_THREADS
from ...plan.shared import Allocation
from ...roles.attention.grammar import ScoreProgram
from ...roles.grammar import Pipeline, Role
from ..module import CLASSES, warps_text
from ..setups import dsl
from ..writer import Writer
from . import numbers, spans
from .bounds import bounds_function, place_function
from .finish import finish_functions
from .formula import uniform_functions
from .host import SCALARS, matrices, tensors
from .queries import queries_functions
from .softmax import softmax_functions
from .steps import FIRST_WORK, OWN_WORK, WORK_STEP, print_steps

OF_BLOCKS = ("tma_wgmma", "tma_umma")
"""Kinds of pipelines that are objects of the DSL."""
ENTRY = "attention"
"""The host function. It takes pointers of Q, K, V, the outputs and the sources of both formulas (or scalars). Then
follow the workspace, if any, the maximum of co-resident CTAs, and a stream."""
IMPORTS = (
    "import cutlass",
    "import cutlass.cute as cute",
    "import cutlass.pipeline as pipeline",
    "import cutlass.utils.hopper_helpers as hopper",
    "from cuda.bindings.driver import CUstream",
    "from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warp as warp_level, warpgroup",
    "from cutlass.tensor_utils import LayoutEnum",
)


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """The parts of a module that depend on the kind of its program.

    - ``functions``: those that the kernel calls.
    - ``matrices``: names of the matrices with a TMA descriptor; ``objects``: lines of the host that make them.
    - ``tensors``: other tensors and scalars of the kernel, as ``host.tensors`` returns them.
    - ``pointers`` and ``sources``: arguments of the host function.
    - ``memory``: shared memory, with the dtype of each matrix in ``dtypes``; ``shared_bytes`` are its bytes.
    """

    functions: tuple[list[str], ...]
    matrices: tuple[str, ...]
    objects: list[str]
    tensors: list[tuple[str, str, str]]
    pointers: tuple[str, ...]
    sources: tuple[Source, ...]
    memory: tuple[Allocation, ...]
    dtypes: Mapping[str, str]
    shared_bytes: int
    workspace_bytes: int
    vectors: tuple[str, ...] = ()
    """Names of vectors of fp32 with a TMA descriptor."""
    ctas_per_sm: int = 0
    """CTAs that the assembler is told to fit on an SM; 0 leaves that to it."""
    imports: tuple[str, ...] = IMPORTS
    objects_of_kernel: tuple[str, ...] = ()
    """Lines of the kernel, before its roles, that make objects of all of them."""
    reads: tuple[str, ...] = ()
    """Arguments of the host function after its sources: what kernels before read."""
    launches: tuple[str, ...] = ()
    """Lines of the host that launch kernels before."""
    at_once: bool = False
    """True if CTAs wait for each other: the launch of more than the GPU holds at once is an error then."""


def render(program: ScoreProgram, pieces: Pieces) -> str:
    """Print the module of ``program`` without verification."""
    out = Writer()
    out.lines(pieces.imports)
    for function in pieces.functions:
        out.lines(("", "", *function))
    _kernel(out, program, pieces)
    _host(out, program, pieces)
    return out.text()


def attention_pieces(plan: AttentionPlan) -> Pieces:
    """Return the pieces of a plan of attention."""
    problem = plan.problem
    return Pieces(
        functions=(
            *_matmul_functions(plan),
            place_function(plan),
            *spans.functions(plan),
            bounds_function(plan),
            *uniform_functions(problem),
            *queries_functions(plan),
            *softmax_functions(plan),
            *finish_functions(plan),
        ),
        matrices=(
            "q",
            *(["q_rest"] if problem.q_rest is not None else []),
            *problem.blocks,
            *(["bias"] if plan.bias is not None else []),
            "o",
        ),
        objects=matrices(plan),
        tensors=tensors(plan),
        pointers=("q", "k", "v", *problem.rests, *(output.label for output in problem.outputs)),
        sources=problem.sources,
        memory=shared_memory(plan),
        dtypes={
            "o": problem.matrix.dtype,
            **dict.fromkeys("qkv", problem.q.dtype),
            **({} if plan.bias is None else {"bias": plan.bias.dtype}),
        },
        shared_bytes=shared_bytes(plan),
        workspace_bytes=workspace_bytes(plan),
        at_once=plan.combining > 1,
    )


def _matmul_functions(plan: AttentionPlan) -> list[list[str]]:
    """Print the MMAs of a block. Atoms are made where they are used, so that loops carry no flag of theirs.

    Operands of a stage are taken once: descriptors of its steps then differ by constants.
    """
    problem, dtype = plan.problem, dsl(plan.problem.q.dtype)
    mma, k = "return hopper.make_trivial_tiled_mma", DTYPES[problem.q.dtype].mma_k
    major = "K" if problem.v.turned else "MN"
    functions = [
        [
            "def score_mma():",
            f"    {mma}({dtype}, {dtype}, OperandMajorMode.K, OperandMajorMode.K, cutlass.Float32, (1, 1, 1), (64, {plan.keys}))",
        ],
        [
            "def output_mma():",
            f"    {mma}(",
            f"        {dtype}, {dtype}, OperandMajorMode.K, OperandMajorMode.{major}, cutlass.Float32, (1, 1, 1),"
            f" (64, {plan.output_columns}), warpgroup.OperandSource.RMEM",
            "    )",
        ],
        [
            "def multiply_scores(scores, q, k, group, stage):",
            "    mma, q, k = score_mma(), q[None, None, None, group], k[None, None, None, stage]",
            *_steps("scores, q, k", problem.q.columns // k),
        ],
        [
            f"def multiply_output(output, weights, v, {'group, ' * problem.latent}stage):",
            f"    mma, v = output_mma(), v[None, None, None, {'group, ' * problem.latent}stage]",
            *(_steps("output, weights, v", plan.keys // k) if plan.adds_products else _ADDED),
        ],
    ]
    return functions


_ADDED = ["    mma.set(warpgroup.Field.ACCUMULATE, True)", "    cute.gemm(mma, output, weights, v, output)"]


def _steps(operands: str, steps: int) -> list[str]:
    """Return the MMAs of an accumulator and two operands, the first of which sets the accumulator."""
    accumulator, left, right = operands.split(", ")
    return [
        f"    for step in range({steps}):",
        "        if step < 2:",
        "            mma.set(warpgroup.Field.ACCUMULATE, step > 0)",
        f"        cute.gemm(mma, {accumulator}, {left}[None, None, step], {right}[None, None, step], {accumulator})",
    ]


def _kernel(out: Writer, program: ScoreProgram, pieces: Pieces) -> None:
    parameters = [(f"{kind}_{name}", annotation) for name in pieces.matrices for kind, annotation in _OF_MATRIX]
    parameters += [(f"{kind}_{name}", annotation) for name in pieces.vectors for kind, annotation in _OF_VECTOR]
    parameters += [(name, annotation) for name, annotation, _ in pieces.tensors]
    wide = numbers.wide(program.plan.problem)
    parameters += [(name, f"cutlass.Int{64 if name in wide else 32}") for name in numbers.parameters(program.plan)]
    out.lines(("", "", "@cute.kernel", "def kernel("))
    out.lines(f"    {name}: {annotation}," for name, annotation in parameters)
    with out.block(") -> None:"):
        _prologue(out, program, pieces)
        _roles(out, program)


_OF_VECTOR = (("tma", "cute.CopyAtom"), ("tensor", "cute.Tensor"), ("layout", "cute.Layout"))
_OF_MATRIX = (("tma", "cute.CopyAtom"), ("tensor", "cute.Tensor"), ("layout", "cute.ComposedLayout"))


def _prologue(out: Writer, program: ScoreProgram, pieces: Pieces) -> None:
    """Print the thread indices, shared memory and barriers."""
    out.lines(
        (
            "thread, _, _ = cute.arch.thread_idx()",
            "warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())",
            "lane = cute.arch.lane_idx()",
            *(() if type(program) in OWN_WORK else (FIRST_WORK, WORK_STEP)),
        )
    )
    with out.block("if warp == 0:"):
        out.lines(f"cpasync.prefetch_descriptor(tma_{name})" for name in (*pieces.matrices, *pieces.vectors))
    out.line("memory = cutlass.memory.SmemAllocator()")
    held = {allocation.name for allocation in pieces.memory}
    for allocation in pieces.memory:
        out.line(_allocation(pieces.dtypes, allocation))
    if "o" in pieces.dtypes and "shared_o" not in held:
        out.line(f"shared_o = {_output_in_queries(program.plan)}")
    for pipeline in program.pipelines:
        _pipeline(out, pipeline)
    with out.block("if warp == 0:"), out.block("with cute.arch.elect_one():"):
        for pipeline in program.pipelines:
            out.lines(_barriers(pipeline))
    out.lines((*pieces.objects_of_kernel, "cute.arch.mbarrier_init_fence()", "cute.arch.sync_threads()"))


def _output_in_queries(plan: ScorePlan) -> str:
    """Return the view of the output in the shared memory of Q, which has another layout if groups share queries."""
    if plan.column_groups == 1:
        return "shared_q"
    return "cute.make_tensor(cute.recast_ptr(shared_q.iterator, layout_o.inner), layout_o.outer)"


def _allocation(dtypes: Mapping[str, str], allocation: Allocation) -> str:
    name, alignment = allocation.name, allocation.alignment_bytes
    if name.endswith("_barriers"):
        return (
            f"{name} = memory.allocate_array(cutlass.Int64, {allocation.size_bytes // 8}, byte_alignment={alignment})"
        )
    if name == "tensor_memory_address":
        return f"{name} = memory.allocate_array(cutlass.Int32, 1, byte_alignment={alignment})"
    if name == "shared_message":
        return f"{name} = memory.allocate_tensor(cutlass.Float32, cute.make_layout({allocation.size_bytes // 4}), {alignment})"
    if name in ("tile_slots", "shared_counts"):
        return f"{name} = memory.allocate_tensor(cutlass.Int32, cute.make_layout({allocation.size_bytes // 4}), {alignment})"
    held = name.removeprefix("shared_")
    if held not in dtypes:  # numbers per row
        return f"{name} = memory.allocate_tensor(cutlass.Float32, layout_{held}, {alignment})"
    return (
        f"{name} = memory.allocate_tensor({dsl(dtypes[held])}, layout_{held}.outer, {alignment}, layout_{held}.inner)"
    )


def _pipeline(out: Writer, pipeline: Pipeline) -> None:
    if pipeline.kind not in OF_BLOCKS:
        return
    numbers = pipeline.counts
    with out.block(f"{pipeline.name} = pipeline.{CLASSES[pipeline.kind]}.create("):
        out.line(f"num_stages={numbers.stages},")
        out.line(f"producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, {numbers.full_arrivals}),")
        out.line(f"consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, {numbers.empty_arrivals}),")
        out.line(f"tx_count={numbers.transaction_bytes},")
        out.line(f"barrier_storage={pipeline.barriers},")
        out.line("defer_sync=True,")
    out.line(")")


def _barriers(pipeline: Pipeline) -> list[str]:
    """Print the barriers that no pipeline object of the DSL initializes."""
    if pipeline.kind in OF_BLOCKS:
        return []
    numbers, name = pipeline.counts, pipeline.barriers
    counts = [numbers.full_arrivals] * numbers.stages
    counts += [numbers.empty_arrivals] * numbers.stages if numbers.empty_arrivals else []
    return [f"cute.arch.mbarrier_init({name} + {at}, {count})" for at, count in enumerate(counts)]


def _roles(out: Writer, program: ScoreProgram) -> None:
    left = list(program.roles)
    for limit in program.registers:
        with out.block(f"if {warps_text(limit.first_warp, limit.warps, program.warps)}:"):
            out.line(f"cute.arch.setmaxregister_{limit.change}({limit.registers})")
            for role in program.roles:
                if limit.first_warp <= role.first_warp < limit.first_warp + limit.warps:
                    _role(out, program, role)
                    left.remove(role)
    for role in left:
        _role(out, program, role)


def _role(out: Writer, program: ScoreProgram, role: Role) -> None:
    out.line(f"# {role.name}")
    with out.block(f"if {warps_text(role.first_warp, role.warps, program.warps)}:"):
        print_steps(out, program, role.program)


def _host(out: Writer, program: ScoreProgram, pieces: Pieces) -> None:
    out.lines(("", "", "@cute.jit", f"def {ENTRY}("))
    out.lines(f"    {name}: cute.Pointer," for name in pieces.pointers)
    for source in pieces.sources:
        out.line(f"    {source.label}: {SCALARS.get(source.argument, 'cute.Pointer')},")
    out.lines(f"    {name}: cute.Pointer," for name in pieces.reads)
    out.lines(f"    {name}: cutlass.{kind}," for name, kind in numbers.given(program.plan).items())
    out.lines(["    workspace: cute.Pointer,"] if pieces.workspace_bytes else [])
    out.lines(("    ctas: cutlass.Int32,", "    stream: CUstream,"))
    with out.block(") -> None:"):
        out.lines(numbers.assumed(program.plan))
        out.lines(f"{name} = {text}" for name, text in numbers.definitions(program.plan).items())
        out.lines(pieces.launches)
        out.lines(pieces.objects)
        arguments = [f"{kind}_{name}" for name in (*pieces.matrices, *pieces.vectors) for kind, _ in _OF_MATRIX]
        for name, _, tensor in pieces.tensors:
            if tensor != name:
                out.line(f"{name} = {tensor}")
            arguments.append(name)
        arguments += numbers.parameters(program.plan)
        out.line("kernel(")
        out.lines(f"    {name}," for name in arguments)
        with out.block(").launch("):
            ctas = numbers.pieces(program.plan)
            out.line(f"grid=(1, {ctas if pieces.at_once else f'cutlass.min(ctas, {ctas})'}, 1),")
            out.lines(["cooperative=True,"] * pieces.at_once)
            out.line(f"block=({program.warps * WARP_THREADS}, 1, 1),")
            out.line(f"smem={pieces.shared_bytes},")
            out.line("stream=stream,")
            out.lines([f"min_blocks_per_mp={pieces.ctas_per_sm},"] if pieces.ctas_per_sm else [])
        out.line(")")
