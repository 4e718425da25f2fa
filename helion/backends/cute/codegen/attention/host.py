"""Objects that the host function passes to the kernel: TMA descriptors, shared-memory layouts, and plain tensors."""

from __future__ import annotations

from collections.abc import Sequence

from ...plan.attention.records import AttentionOutput, AttentionPlan, Matrix, Mode, Source
from ...plan.records import WGMMA_ROWS
from ..setups import dsl
from . import splits


def matrices(plan: AttentionPlan) -> list[str]:
    """Return the lines that make tensors, layouts and descriptors of Q, K, V and the output.

    V is transposed: its columns are N of the MMA, its rows K. Extents are run-time numbers, because the DSL simplifies
    constant dimensions of one tile or one element.
    """
    problem = plan.problem
    output, dtype = problem.matrix, dsl(problem.q.dtype)
    rows, keys, qk, columns = WGMMA_ROWS, plan.keys, problem.q.columns, problem.v.columns
    return [
        *_matrix("q", "q", problem.q, problem.queries),
        *_matrix("k", "k", problem.k, problem.keys),
        *_matrix("v", "v", problem.v, problem.keys, transposed=True),
        *_matrix("o", output.label, output.matrix, problem.queries),
        f"layout_q = hopper.make_smem_layout_a(LayoutEnum.ROW_MAJOR, ({rows}, {keys}, {qk}), {dtype}, {plan.groups})",
        f"layout_k = hopper.make_smem_layout_b(LayoutEnum.ROW_MAJOR, ({rows}, {keys}, {qk}), {dtype}, {plan.stages})",
        f"layout_v = hopper.make_smem_layout_b(LayoutEnum.COL_MAJOR, ({rows}, {columns}, {keys}), {dtype}, {plan.stages})",
        f"layout_o = hopper.make_smem_layout_a(LayoutEnum.ROW_MAJOR, ({rows}, {keys}, {columns}), {dsl(output.dtype)}, {plan.groups})",
        *_descriptor("q", "G2S", (rows, qk)),
        *_descriptor("k", "G2S", (keys, qk)),
        *_descriptor("v", "G2S", (columns, keys)),
        *_descriptor("o", "S2G", (rows, columns)),
    ]


def _matrix(name: str, pointer: str, matrix: Matrix, rows: int, transposed: bool = False) -> list[str]:
    extents, strides = [f"cutlass.Int32({rows})", str(matrix.columns)], [str(matrix.pitch), "1"]
    if transposed:
        extents, strides = extents[::-1], strides[::-1]
    layout = _layout(extents, strides, matrix.modes)
    return [f"matrix_{name} = cute.make_tensor({_moved(pointer, matrix.offset)}, {layout})"]


def _layout(extents: Sequence[str], strides: Sequence[str], modes: Sequence[Mode]) -> str:
    shape = [*extents, *(f"cutlass.Int32({mode.size})" for mode in modes)]
    stride = [*strides, *(str(mode.stride) for mode in modes)]
    return f"cute.make_layout({_tuple(shape)}, stride={_tuple(stride)})"


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _moved(pointer: str, offset: int) -> str:
    return f"{pointer} + {offset}" if offset else pointer


def _descriptor(name: str, direction: str, box: tuple[int, int]) -> list[str]:
    return [
        f"tma_{name}, tensor_{name} = cpasync.make_tiled_tma_atom(",
        f"    cpasync.CopyBulkTensorTile{direction}Op(), matrix_{name}, cute.select(layout_{name}, mode=[0, 1]), {box}",
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
        if source.kind == "number":
            found.append((source.label, "cutlass.Float32", source.label))
        else:
            found.append((f"vector_{source.label}", "cute.Tensor", _source(plan, source)))
    if plan.splits > 1:
        found += splits.tensors(plan)
    if plan.scheduler == "dynamic":
        counter = "cute.make_tensor(cute.recast_ptr(workspace, dtype=cutlass.Int32), cute.make_layout(1))"
        found.append(("ticket_counter", "cute.Tensor", counter))
    return found


def _vector(output: AttentionOutput, queries: int) -> str:
    layout = _layout([str(queries)], [str(output.matrix.pitch)], output.matrix.modes)
    return f"cute.make_tensor({_moved(output.label, output.matrix.offset)}, {layout})"


def _source(plan: AttentionPlan, source: Source) -> str:
    """Return the tensor of a source: queries, keys (or columns of the output), then its own dimensions."""
    extents, strides = ["1"], ["0"]
    if source.kind in ("exact", "query"):
        extents, strides = [str(plan.problem.queries)], [str(source.pitches[0])]
    if source.kind in ("exact", "key"):
        columns = plan.problem.keys if source in plan.problem.score.sources else plan.problem.v.columns
        extents, strides = [*extents, str(columns)], [*strides, str(source.pitches[1])]
    else:
        extents, strides = [*extents, "1"], [*strides, "0"]
    return f"cute.make_tensor({_moved(source.label, source.offset)}, {_layout(extents, strides, source.modes)})"
