"""The functions of attention's gradients on tcgen05: MMAs, the left operands of a row, and its outputs."""

from __future__ import annotations

from ......hardware import VECTOR_BYTES
from ....plan.attention.gradients import PRODUCTS, STREAMED
from ....plan.attention.operands import Source
from ....plan.attention.umma import UMMA_ROWS
from ....plan.attention.umma_backward import UmmaBackwardPlan
from ....plan.dtypes import itemsize
from ...setups import dsl
from .. import numbers, spans
from ..backward import fast, finished, pack_function, seen_function, with_sizes
from ..formula import arguments_of, computed, head_axes, inverses, read
from ..softmax import exp2_function, has_masks
from .finish import chunk_of
from .views import accumulators, copy_of, tile


def backward_functions(plan: UmmaBackwardPlan) -> list[list[str]]:
    """Return the functions of a block and of a tile's end, as the DSL traces them: loops over elements are unrolled."""
    functions = [*_mmas(plan), exp2_function(), pack_function(plan)]
    if has_masks(plan):
        functions.append(seen_function(plan))
    gradients = range(len(plan.problem.gradients))
    return [*functions, _lefts(plan), *(_finish(plan, at) for at in gradients)]


def _mmas(plan: UmmaBackwardPlan) -> list[list[str]]:
    """Return the functions of MMAs. Left operands of gradients are in tensor memory."""
    problem, dtype = plan.problem, dsl(plan.problem.owned[0].dtype)
    made = f"    return blackwell.make_trivial_tiled_mma({dtype}, {dtype}, OperandMajorMode.K, "
    single = "cutlass.Float32, tcgen05.CtaGroup.ONE"
    found = [["def product_mma():", f"{made}OperandMajorMode.K, {single}, ({UMMA_ROWS}, {plan.keys}))"]]
    for at, gradient in enumerate(problem.gradients):
        shape = f"({UMMA_ROWS}, {problem.streamed[gradient.right].columns})"
        source = "tcgen05.OperandSource.TMEM"
        found.append([f"def gradient_mma_{at}():", f"{made}OperandMajorMode.MN, {single}, {shape}, {source})"])
    of_group = "[None, None, None, group]"
    found.append(
        [
            "def multiply(mma, accumulator, left, right, steps, group, stage, adds):",
            "    for step in range(steps):",
            "        mma.set(tcgen05.Field.ACCUMULATE, True if step > 0 else adds)",
            f"        cute.gemm(mma, accumulator{of_group}, left[None, None, step, group], right[None, None, step, stage],"
            f" accumulator{of_group})",
        ]
    )
    return found


def multiplying(plan: UmmaBackwardPlan) -> list[str]:
    """Return the views of the MMA warp. A streamed block is operand B of both kinds of products, with the same addresses."""
    problem, dtype, groups = plan.problem, dsl(plan.problem.owned[0].dtype), plan.groups
    lines = []
    for at, name in enumerate(STREAMED):
        shape = f"({UMMA_ROWS}, {plan.keys}, {problem.owned[at].columns})"
        mma = f"mma_of_product_{at}"
        lines += [
            f"{mma} = product_mma()",
            accumulators(f"product_{at}", mma, _place(plan, at), plan.keys, groups),
            _fragment(f"own_{at}", f"own_{at}", mma, "a", shape, dtype, groups),
            _fragment(name, name, mma, "b", shape, dtype, plan.stages),
        ]
    for at, gradient in enumerate(problem.gradients):
        name, columns, mma = STREAMED[gradient.right], problem.streamed[gradient.right].columns, f"mma_{at}"
        shape = f"({UMMA_ROWS}, {columns}, {plan.keys})"
        of_left = f"{mma}.make_fragment_A({mma}.partition_shape_A(({UMMA_ROWS}, {plan.keys}))).layout"
        lines += [
            f"{mma} = gradient_mma_{at}()",
            accumulators(f"gradient_{at}", mma, f" + {plan.first_column(at)}", columns, groups),
            f"left_{at} = cute.make_tensor(",
            f"    cute.recast_ptr(sums_pointer{_place(plan, at)}, dtype={dtype}),",
            f"    cute.append({of_left}, cute.make_layout({groups}, stride={4 // plan.operand_bytes * plan.keys})),",
            ")",
            _fragment(f"right_{at}", name, mma, "b", shape, dtype, plan.stages),
        ]
    return lines


def _place(plan: UmmaBackwardPlan, product: int) -> str:
    """Return the distance of a product in tensor memory from the first column."""
    return f" + {product * plan.product_columns}" if product else ""


def _fragment(name: str, shared: str, mma: str, side: str, shape: str, dtype: str, stages: int) -> str:
    layout = f"blackwell.make_smem_layout_{side}({mma}, {shape}, {dtype}, {stages}).outer"
    tensor = f"cute.make_tensor(shared_{shared}.iterator, {layout})"
    return f"fragment_{name} = {mma}.make_fragment_{side.upper()}({tensor})"


def computing(plan: UmmaBackwardPlan) -> list[str]:
    """Return the registers and views of a thread that computes: its row of products, left operands and sums, in chunks."""
    chunk = chunk_of(plan.keys)
    lines = [
        "group = cute.arch.make_warp_uniform(thread // 128)",
        "group_thread = thread % 128",
        "group_warp = cute.arch.make_warp_uniform(group_thread // 32)",
    ]
    for at in range(PRODUCTS):
        lines += [
            tile(f"products_{at}", f"{at * plan.product_columns} + group * {plan.keys}", plan.keys),
            *(copy_of("product_reads", "Ld32x32bOp", chunk, "products_0") if at == 0 else []),
            f"product_parts_{at} = product_reads.get_slice(group_thread).partition_S(products_{at})",
            f"product_{at} = cute.make_rmem_tensor((({chunk}, 1), 1), cutlass.Float32)",
        ]
    for at, gradient in enumerate(plan.problem.gradients):
        columns = plan.problem.streamed[gradient.right].columns
        lines += [
            tile(f"lefts_{at}", f"{at * plan.product_columns} + group * {plan.keys}", plan.keys // 2),
            *(copy_of("left_writes", "St32x32bOp", chunk // 2, "lefts_0") if at == 0 else []),
            f"left_parts_{at} = left_writes.get_slice(group_thread).partition_D(lefts_{at})",
            f"left_{at} = cute.make_rmem_tensor((({chunk // 2}, 1), 1), cutlass.Float32)",
            f"packed_{at} = cute.recast_tensor(left_{at}, cutlass.Int32)",
            tile(f"sums_{at}", f"{plan.first_column(at)} + group * {columns}", columns),
            *copy_of(f"sum_reads_{at}", "Ld32x32bOp", chunk_of(columns), f"sums_{at}"),
            f"sum_parts_{at} = sum_reads_{at}.get_slice(group_thread).partition_S(sums_{at})",
            f"values_{at} = cute.make_rmem_tensor((({chunk_of(columns)}, 1), 1), cutlass.Float32)",
        ]
    for source in (source for sources in plan.staged.values() for source in sources):
        layout = f"cute.make_layout(({plan.keys}, {plan.stages}), stride=(1, {plan.vector_pitch}))"
        lines.append(f"staged_{source.label} = cute.make_tensor(shared_{source.label}.iterator, {layout})")
    return lines


# Left operands ---------------------------------------------------------------------------------------------------------


def lefts_lines(plan: UmmaBackwardPlan, masked: bool, block: str) -> list[str]:
    """Return the lines of the kernel from both products of a block to its left operands. Their loop over chunks stays rolled."""
    chunk, gradients = chunk_of(plan.keys), range(len(plan.problem.gradients))
    given = ", ".join(_lefts_arguments(plan))
    stages = [f"{READ}.index" for name in STREAMED if plan.staged[name] for READ in (f"{name}_read",)]
    return [
        f"block_key = {spans.plus_origin(plan)}({block}) * {plan.keys}",
        f"for part in cutlass.range({plan.keys // chunk}, unroll=1):",
        f"    first_key = block_key + {chunk} * part",
        *(
            f"    cute.copy(product_reads, product_parts_{at}[None, None, part], product_{at})"
            for at in range(PRODUCTS)
        ),
        "    cute.arch.fence_view_async_tmem_load()",
        f"    lefts({', '.join([given, f'{chunk} * part', *stages, f'masked={masked and has_masks(plan)}'])})",
        *(f"    cute.copy(left_writes, left_{at}, left_parts_{at}[None, None, part])" for at in gradients),
        "cute.arch.fence_view_async_tmem_store()",
    ]


def _lefts_arguments(plan: UmmaBackwardPlan) -> list[str]:
    """Return the names that the function of left operands takes, in the kernel as in the function."""
    packed = [f"packed_{at}" for at in range(len(plan.problem.gradients))]
    staged = [f"staged_{source.label}" for sources in plan.staged.values() for source in sources]
    products = [f"product_{at}" for at in range(PRODUCTS)]
    positions = ["query", "first_key", *spans.row_names(plan), *head_axes(plan.problem)]
    given = [*products, *packed, *positions, *arguments_of(plan.problem.formula)]
    return [*given, *staged, *numbers.parameters(plan)]


def _lefts(plan: UmmaBackwardPlan) -> list[str]:
    """Return the function of the left operands of a chunk, in pairs that are rounded together. Those of elements that a row
    does not see, and of those past the end, are 0."""
    stages = [f"{name}_stage" for name in STREAMED if plan.staged[name]]
    given = [*_lefts_arguments(plan), "chunk_column", *stages, "masked"]
    gradients = range(len(plan.problem.gradients))
    lines = [f"def lefts({', '.join(given)}):"]
    if has_masks(plan):
        seen = f"seen({with_sizes(plan, 'query', 'first_key', *spans.row_names(plan))})"
        lines.append(f"    first, last = {seen} if masked else (0, 0)")
    for source in plan.problem.formula.sources:
        if source.kind in ("query", "head", "number"):
            lines.append(f"    {source.label}_value = {_read(plan, source)}")
    lines += [f"    {line}" for line in inverses(plan.problem.formula)]
    lines += [f"    for pair in range({chunk_of(plan.keys) // 2}):", *(f"        pair_{at} = []" for at in gradients)]
    lines += ["        for i in range(2):", *(f"            {line}" for line in _element(plan))]
    return [*lines, *(f"        packed_{at}[pair] = pack(*pair_{at})" for at in gradients)]


def _read(plan: UmmaBackwardPlan, source: Source) -> str:
    for name, sources in plan.staged.items():
        if source in sources:
            return f"staged_{source.label}[chunk_column + column, {name}_stage]"
    return read(plan, source, head_axes(plan.problem), "query", "key", plan.problem.keys)


def _element(plan: UmmaBackwardPlan) -> list[str]:
    """Return the lines of one element: all values that left operands are computed from."""
    formula = plan.problem.formula
    lines = ["column = 2 * pair + i", "key = first_key + column"]
    needed = sorted(formula.read_by(each.left for each in plan.problem.gradients))
    lines += [f"x{at} = product_{at}[column]" for at in range(PRODUCTS) if at in needed]

    def names(value: int) -> str:
        if value < formula.starts:
            return f"x{value}"
        return f"{formula.sources[value - formula.starts].label}_value" if value < formula.computed else f"y{value}"

    for value in needed:
        if formula.starts <= value < formula.computed:
            source = formula.sources[value - formula.starts]
            if source.kind in ("key", "exact"):
                lines.append(f"{names(value)} = {_read(plan, source)}")
        elif value >= formula.computed:
            lines.append(f"y{value} = {computed(formula, value, names, ('query', 'key'), fast(formula))}")
    if has_masks(plan):
        lines.append("inside = (first <= column) & (last >= column) if masked else True")
    for at, gradient in enumerate(plan.problem.gradients):
        left = names(gradient.left)
        hidden = f"cutlass.select_(inside, {left}, cutlass.Float32(0.0)) if masked else {left}"
        lines.append(f"pair_{at}.append({hidden if has_masks(plan) else left})")
    return lines


# Outputs ---------------------------------------------------------------------------------------------------------------


def finish_lines(plan: UmmaBackwardPlan, at: int) -> list[str]:
    """Return the lines of the kernel from the sum of a gradient to shared memory. Their loop over chunks stays rolled."""
    columns = plan.problem.gradients[at].output.matrix.columns
    shared = f"shared_own_{plan.problem.output_memory(at)}"
    return [
        f"stage = {shared}[None, None, group]",
        f"for part in cutlass.range({columns // chunk_of(columns)}, unroll=1):",
        f"    cute.copy(sum_reads_{at}, sum_parts_{at}[None, None, part], values_{at})",
        "    cute.arch.fence_view_async_tmem_load()",
        f"    finish_{at}({', '.join([f'values_{at}', *_finish_arguments(plan, at)])})",
    ]


def _finish_arguments(plan: UmmaBackwardPlan, at: int) -> list[str]:
    positions = ["stage", "part", "group_thread", "query", *head_axes(plan.problem)]
    return [*positions, *arguments_of(plan.problem.gradients[at].finish), *numbers.parameters(plan)]


def _finish(plan: UmmaBackwardPlan, at: int) -> list[str]:
    """Return the function of a chunk of an output, which goes to shared memory."""
    gradient = plan.problem.gradients[at]
    formula, columns, stored = gradient.finish, gradient.output.matrix.columns, dsl(gradient.output.dtype)
    chunk, width = chunk_of(columns), VECTOR_BYTES // itemsize(gradient.output.dtype)
    lines = [f"def finish_{at}({', '.join(['values', *_finish_arguments(plan, at)])}):"]
    if formula.instructions:
        lines += [
            f"    for e in range({chunk}):",
            f"        column = {chunk} * part + e",
            "        x0 = values[e]",
        ]
        lines += [f"        {line}" for line in finished(plan, formula, columns, "values[e]")]
    return [
        *lines,
        f"    rounded = cute.make_rmem_tensor({width}, {stored})",
        f"    for vector in range({chunk // width}):",
        f"        for e in range({width}):",
        f"            rounded[e] = values[{width} * vector + e].to({stored})",
        f"        place = (group_thread, {chunk // width} * part + vector)",
        f"        cute.autovec_copy(rounded, cute.local_tile(stage, (1, {width}), place))",
    ]
