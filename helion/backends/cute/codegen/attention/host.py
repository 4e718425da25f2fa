"""Objects that the host function passes to the kernel: TMA descriptors, shared-memory layouts, and plain tensors."""

from __future__ import annotations

from collections.abc import Sequence

from ...plan.attention.backward import BackwardPlan
from ...plan.attention.numbers import text_of
from ...plan.attention.operands import Matrix, Mode, Source, Table
from ...plan.attention.records import AttentionOutput, AttentionPlan, ScorePlan, ScoreProblem, without_rest
from ...plan.dtypes import NUMBER, SEED
from ..setups import dsl
from . import quads, spans, splits
from .atomic import box, exchange_layout, sum_layout

SCALARS = {NUMBER: "cutlass.Float32", SEED: "cutlass.Int64"}
"""Types of scalars in the kernel, by kind."""


def matrices(plan: AttentionPlan) -> list[str]:
    """Return the lines that make tensors, layouts and descriptors of Q, K, V and the output.

    V is transposed: its columns are N of the MMA, its rows K. Extents are run-time numbers, because the DSL simplifies
    constant dimensions of one tile or one element.
    """
    problem = plan.problem
    output, dtype = problem.matrix, dsl(problem.q.dtype)
    rows, keys, qk, columns = plan.group_rows, plan.keys, problem.q.columns, plan.output_columns
    major = "ROW" if problem.v.turned else "COL"
    matrix_of_v, layout_of_v, descriptor_of_v = [], [], []
    if not problem.latent:
        shape = f"({rows}, {columns}, {keys})"
        matrix_of_v = _matrix("v", "v", problem.v, problem.keys, transposed=True, spanned=problem.spans_keys)
        layout_of_v = [
            f"layout_v = hopper.make_smem_layout_b(LayoutEnum.{major}_MAJOR, {shape}, {dtype}, {plan.stages})"
        ]
        descriptor_of_v = _descriptor("v", "G2S", (columns, keys))
    q, k = without_rest(problem.q, problem.q_rest), problem.blocks["k"]
    of_keys = _descriptor("k", "G2S", (keys, k.columns), own_name("k", problem.k_rest))
    return [
        *_matrix("q", "q", q, problem.queries, spanned=problem.spans_queries),
        *([] if plan.takes_quads else _matrix("k", "k", k, problem.keys, spanned=problem.spans_keys)),
        *matrix_of_v,
        *_matrix("o", output.label, output.matrix, problem.queries, spanned=problem.spans_queries),
        f"layout_q = hopper.make_smem_layout_a(LayoutEnum.ROW_MAJOR, ({rows}, {keys}, {qk}), {dtype}, {plan.groups * plan.row_buffers})",
        f"layout_k = hopper.make_smem_layout_b(LayoutEnum.ROW_MAJOR, ({rows}, {keys}, {qk}), {dtype}, {plan.stages})",
        *layout_of_v,
        f"layout_o = hopper.make_smem_layout_a(LayoutEnum.ROW_MAJOR, ({rows}, {keys}, {columns}), {dsl(output.dtype)}, {plan.consumer_groups})",
        *_rests(plan),
        *_descriptor("q", "G2S", (rows, q.columns), own_name("q", problem.q_rest)),
        *(quads.descriptor(plan) if plan.takes_quads else of_keys),
        *descriptor_of_v,
        *_bias(plan),
        *_descriptor("o", "S2G", (rows, columns)),
    ]


def _bias(plan: AttentionPlan) -> list[str]:
    """Return the same objects of a bias that TMA loads: a stage has a part for each group of queries."""
    bias = plan.bias
    if bias is None:
        return []
    extents = [f"cutlass.Int32({text_of(number)})" for number in (plan.problem.queries, plan.problem.keys)]
    layout = _layout(extents, [*map(text_of, bias.pitches)], bias.modes)
    shape, stages = f"({plan.group_rows}, {plan.keys}, {plan.keys})", plan.groups * plan.bias_stages
    return [
        f"matrix_bias = cute.make_tensor({_moved(bias.label, bias.offset)}, {layout})",
        f"layout_bias = hopper.make_smem_layout_a(LayoutEnum.ROW_MAJOR, {shape}, {dsl(bias.dtype)}, {stages})",
        *_descriptor("bias", "G2S", (plan.group_rows, plan.keys)),
    ]


def own_name(name: str, rest: Matrix | None) -> str:
    """Return the name of the part of shared memory that is loaded from the first tensor of a matrix."""
    return name if rest is None else f"{name}_own"


def _rests(plan: AttentionPlan) -> list[str]:
    """Return the same objects of matrices with the last columns of Q and K, and the layouts of both parts of a stage."""
    problem, dtype = plan.problem, dsl(plan.problem.q.dtype)
    wholes = {
        "q_rest": (
            problem.q,
            "a",
            plan.group_rows,
            plan.groups * plan.row_buffers,
            problem.queries,
            problem.spans_queries,
        ),
        "k_rest": (problem.k, "b", plan.keys, plan.stages, problem.keys, problem.spans_keys),
    }
    lines = []
    for name, rest in problem.rests.items():
        whole, side, rows, stages, extent, spanned = wholes[name]
        own = own_name(name.removesuffix("_rest"), rest)
        for part, columns in ((own, whole.columns - rest.columns), (name, rest.columns)):
            shape = f"({plan.group_rows}, {plan.keys}, {columns}), {dtype}, {stages}"
            lines.append(f"layout_{part} = hopper.make_smem_layout_{side}(LayoutEnum.ROW_MAJOR, {shape})")
        lines += [*_matrix(name, name, rest, extent, spanned=spanned), *_descriptor(name, "G2S", (rows, rest.columns))]
    return lines


def backward_matrices(plan: BackwardPlan) -> list[str]:
    """Return the same of owned and streamed matrices and of gradients, which take the shared memory of owned ones."""
    problem, dtype = plan.problem, dsl(plan.problem.owned[0].dtype)
    layout = "hopper.make_smem_layout_{side}(LayoutEnum.ROW_MAJOR, ({rows}, {keys}, {columns}), {dtype}, {stages})"
    lines = []
    for at, matrix in enumerate(problem.owned):
        name, columns = f"own_{at}", matrix.columns
        text = layout.format(
            side="a", rows=plan.group_rows, keys=plan.keys, columns=columns, dtype=dtype, stages=plan.groups
        )
        lines += [*_matrix(name, name, matrix, problem.queries), f"layout_{name} = {text}"]
        lines += _descriptor(name, "G2S", (plan.group_rows, columns))
    for name, matrix in problem.blocks.items():
        text = layout.format(
            side="b", rows=plan.group_rows, keys=plan.keys, columns=matrix.columns, dtype=dtype, stages=plan.stages
        )
        lines += _matrix(name, name, matrix, problem.keys, spanned=problem.spans_keys)
        lines += [f"layout_{name} = {text}", *_descriptor(name, "G2S", (plan.keys, matrix.columns))]
    for source in (source for sources in plan.staged.values() for source in sources):
        name, keys, rows = source.label, f"cutlass.Int32({text_of(problem.keys)})", plan.vector_rows
        vector = _layout([keys], ["1"], source.modes)
        lines += [
            f"matrix_{name} = cute.make_tensor({_moved(name, source.offset)}, {vector})",
            f"layout_{name} = cute.make_layout(({rows}, {plan.stages}), stride=(1, {plan.vector_pitch}))",
            f"tma_{name}, tensor_{name} = cpasync.make_tiled_tma_atom(",
            f"    cpasync.CopyBulkTensorTileG2SOp(), matrix_{name}, cute.select(layout_{name}, mode=[0]), ({rows},)",
            ")",
        ]
    for at, gradient in enumerate(problem.gradients):
        if gradient.wide is not None:
            continue
        name, output = f"gradient_{at}", gradient.output
        lines += [
            *_matrix(name, output.label, output.matrix, problem.queries),
            f"layout_{name} = layout_own_{problem.output_memory(at)}",
        ]
        lines += _descriptor(name, "S2G", (plan.group_rows, output.matrix.columns))
    if problem.atomic is not None:
        lines += [
            *_matrix("sum", problem.atomic.label, problem.atomic.matrix, problem.keys, spanned=problem.spans_keys),
            f"layout_sum = {sum_layout(plan)}",
            "tma_sum, tensor_sum = cpasync.make_tiled_tma_atom(",
            f"    cpasync.CopyReduceBulkTensorTileS2GOp(), matrix_sum, cute.select(layout_sum, mode=[0, 1]), {box(plan)}",
            ")",
            f"layout_exchange = {exchange_layout(plan)}",
        ]
    return lines


def _matrix(
    name: str, pointer: str, matrix: Matrix, rows: int, transposed: bool = False, spanned: bool = False
) -> list[str]:
    """Return the tensor of a matrix, or with ``spanned`` one that TMA takes any span of rows of."""
    extents = [f"cutlass.Int32({text_of(rows)})", str(matrix.columns)]
    strides = [*map(text_of, matrix.strides)]
    if spanned:
        extents[0] = f"cutlass.Int32({spans.ROWS})"
    if transposed:
        extents, strides = extents[::-1], strides[::-1]
    if spanned:
        for extent, stride in spans.dimensions(matrix):
            extents, strides = [*extents, extent], [*strides, stride]
    layout = _layout(extents, strides, matrix.modes)
    return [f"matrix_{name} = cute.make_tensor({_moved(pointer, matrix.offset)}, {layout})"]


def _layout(extents: Sequence[str], strides: Sequence[str], modes: Sequence[Mode]) -> str:
    shape = [*extents, *(f"cutlass.Int32({text_of(mode.size)})" for mode in modes)]
    stride = [*strides, *(text_of(mode.stride) for mode in modes)]
    return f"cute.make_layout({_tuple(shape)}, stride={_tuple(stride)})"


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _moved(pointer: str, offset: int) -> str:
    return f"{pointer} + {text_of(offset)}" if offset != 0 else pointer


def _descriptor(name: str, direction: str, box: tuple[int, int], layout: str = "") -> list[str]:
    of_box = f"cute.select(layout_{layout or name}, mode=[0, 1])"
    return [
        f"tma_{name}, tensor_{name} = cpasync.make_tiled_tma_atom(",
        f"    cpasync.CopyBulkTensorTile{direction}Op(), matrix_{name}, {of_box}, {box}",
        ")",
    ]


def tensors(plan: AttentionPlan) -> list[tuple[str, str, str]]:
    """Return (name in the kernel, annotation, expression of the host) of the plain tensors and scalars."""
    problem = plan.problem
    found = [
        (f"vector_{output.label}", "cute.Tensor", _vector(output, problem.queries))
        for output in problem.outputs
        if output.kind == "query"
    ]
    for source in problem.sources:
        columns = problem.keys if source in problem.score.sources else problem.v.columns
        if problem.k.pages is not None and source is problem.k.pages.table:
            columns = problem.k.pages.most
        found.append(_source(problem, source, columns))
    if plan.splits > 1:
        found += splits.tensors(plan)
    return found + _ticket(plan)


def backward_tensors(plan: BackwardPlan) -> list[tuple[str, str, str]]:
    """Return the same of gradients of attention."""
    problem = plan.problem
    of_keys = (*(each.target for each in problem.loop_outputs), *problem.formula.sources)
    found = [_source(problem, source, problem.keys) for source in of_keys]
    for gradient in problem.gradients:
        found += [_source(problem, source, gradient.output.matrix.columns) for source in gradient.finish.sources]
        if gradient.wide is not None:
            name, _, tensor = _source(problem, *gradient.wide)
            found.append((name, "cute.Tensor", tensor.replace(gradient.wide[0].label, gradient.output.label, 1)))
    if problem.atomic is not None:
        found += [_source(problem, source, problem.atomic.matrix.columns) for source in problem.atomic.finish.sources]
        found.append(("layout_exchange", "cute.ComposedLayout", "layout_exchange"))
    found += [_source(problem, source, 1) for source, _ in spans.bounds_of(plan).values()]
    return found + _ticket(plan)


def _ticket(plan: ScorePlan) -> list[tuple[str, str, str]]:
    counter = "cute.make_tensor(cute.recast_ptr(workspace, dtype=cutlass.Int32), cute.make_layout(1))"
    return [("ticket_counter", "cute.Tensor", counter)] if plan.scheduler == "dynamic" else []


def _vector(output: AttentionOutput, queries: int) -> str:
    layout = _layout([text_of(queries)], [text_of(output.matrix.pitch)], output.matrix.modes)
    return f"cute.make_tensor({_moved(output.label, output.matrix.offset)}, {layout})"


def _source(problem: ScoreProblem, source: Source, columns: int) -> tuple[str, str, str]:
    """Return a source: a number, or a tensor of queries, keys (or ``columns`` of the output), then its own dimensions."""
    source = source.passed
    if source.kind == "number":
        return source.label, SCALARS[source.argument], source.label
    extents, strides = ["1"], ["0"]
    if source.kind in ("exact", "query"):
        extents, strides = [text_of(problem.queries)], [text_of(source.pitches[0])]
    if isinstance(source, Table):
        extents, strides = ["1", text_of(source.size)], ["0", text_of(source.pitches[1])]
    elif source.kind in ("exact", "key"):
        extents, strides = [*extents, text_of(columns)], [*strides, text_of(source.pitches[1])]
    else:
        extents, strides = [*extents, "1"], [*strides, "0"]
    tensor = f"cute.make_tensor({_moved(source.label, source.offset)}, {_layout(extents, strides, source.modes)})"
    return f"vector_{source.label}", "cute.Tensor", tensor
