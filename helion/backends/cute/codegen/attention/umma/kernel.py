"""The kernel of attention on tcgen05 in its generated module."""

from __future__ import annotations

from ....plan.attention.build import counter_bytes, workspace_bytes
from ....plan.attention.umma import UmmaPlan, umma_bytes, umma_memory
from ....plan.dtypes import DTYPES
from ....roles.attention.umma import UmmaProgram
from ....toolchain.kernel import GemmKernel
from ...setups import dsl
from .. import spans
from ..bounds import bounds_function, place_function
from ..formula import uniform_functions
from ..host import matrices, tensors
from ..kernel import matrix_dtypes, score_kernel
from ..module import Pieces
from ..queries import queries_functions
from . import splits
from . import steps as steps
from .finish import correction_functions
from .softmax import softmax_functions
from .views import allocator, fences

IMPORTS = (
    "import cutlass",
    "import cutlass.cute as cute",
    "import cutlass.pipeline as pipeline",
    "import cutlass.utils.blackwell_helpers as blackwell",
    "import cutlass.utils.hopper_helpers as hopper",
    "from cuda.bindings.driver import CUstream",
    "from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05",
    "from cutlass.tensor_utils import LayoutEnum",
)


def umma_kernel(name: str, program: UmmaProgram) -> GemmKernel:
    """Return the kernel named ``name`` of a program."""
    plan = program.plan
    return score_kernel(name, program, umma_pieces(program), matrix_dtypes(plan), counter_bytes(plan))


def umma_pieces(program: UmmaProgram) -> Pieces:
    """Return the pieces of the module of a program."""
    plan = program.plan
    problem = plan.problem
    return Pieces(
        functions=(
            *fences(),
            *_matmul_functions(plan),
            place_function(plan),
            *spans.functions(plan),
            bounds_function(plan),
            *uniform_functions(plan.problem),
            *queries_functions(plan),
            *softmax_functions(plan),
            *correction_functions(plan),
            *splits.functions(plan),
        ),
        matrices=("q", "k", "v", "o", *problem.rests),
        objects=matrices(plan),
        tensors=tensors(plan),
        pointers=("q", "k", "v", *problem.rests, *(output.label for output in problem.outputs)),
        sources=problem.sources,
        memory=umma_memory(plan),
        dtypes={"o": problem.matrix.dtype, **dict.fromkeys("qkv", problem.q.dtype)},
        shared_bytes=umma_bytes(plan),
        workspace_bytes=workspace_bytes(plan),
        ctas_per_sm=1,
        imports=IMPORTS,
        objects_of_kernel=allocator(program),
    )


def _matmul_functions(plan: UmmaPlan) -> list[list[str]]:
    """Print the MMAs of a block. Weights are a left operand in tensor memory."""
    problem, dtype = plan.problem, dsl(plan.problem.q.dtype)
    made, k = "return blackwell.make_trivial_tiled_mma", DTYPES[problem.q.dtype].mma_k
    major = "K" if problem.v.turned else "MN"
    of_group = "[None, None, None, group]"
    return [
        [
            "def score_mma():",
            f"    {made}(",
            f"        {dtype}, {dtype}, OperandMajorMode.K, OperandMajorMode.K, cutlass.Float32, tcgen05.CtaGroup.ONE,"
            f" (128, {plan.keys})",
            "    )",
        ],
        [
            "def output_mma():",
            f"    {made}(",
            f"        {dtype}, {dtype}, OperandMajorMode.K, OperandMajorMode.{major}, cutlass.Float32,"
            f" tcgen05.CtaGroup.ONE, (128, {problem.v.columns}), tcgen05.OperandSource.TMEM",
            "    )",
        ],
        [
            "def multiply_scores(scores, q, k, group, stage):",
            "    mma = score_mma()",
            f"    for step in range({problem.q.columns // k}):",
            "        mma.set(tcgen05.Field.ACCUMULATE, step > 0)",
            f"        cute.gemm(mma, scores{of_group}, q[None, None, step, group], k[None, None, step, stage], scores{of_group})",
        ],
        [
            "def multiply_output(outputs, weights, v, group, stage, adds):",
            "    mma = output_mma()",
            f"    for step in range({plan.keys // k}):",
            "        mma.set(tcgen05.Field.ACCUMULATE, True if step > 0 else adds)",
            f"        cute.gemm(mma, outputs{of_group}, weights[None, None, step, group], v[None, None, step, stage], outputs{of_group})",
        ],
    ]
