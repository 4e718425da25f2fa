"""Kernels that compute values of rows before that of attention's gradients, and their launches by the host function.

A thread reads 16 bytes of a row of each matrix. Threads of a warp share a row, and add up its sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....._shapes import next_power_of_2
from ...plan.attention.gradients import BackwardProblem
from ...plan.attention.operands import Matrix, Mode
from ...plan.attention.row_values import CHUNK, RowValues, offsets
from ..attention.formula import computed
from ..setups import dsl

THREADS = 128


def reads_of(values: Sequence[RowValues]) -> tuple[str, ...]:
    """Return the arguments of the host function that values of rows are computed from."""
    return tuple(_read(at, number) for at, each in enumerate(values) for number in range(len(each.reads)))


def _read(at: int, number: int) -> str:
    return f"rows_{at}_read_{number}"


def _lanes(values: RowValues) -> int:
    """Return the threads that share a row."""
    return next_power_of_2(values.columns // CHUNK)


def row_functions(values: Sequence[RowValues]) -> list[list[str]]:
    """Return the kernels."""
    return [_kernel(at, each) for at, each in enumerate(values)]


def _kernel(at: int, values: RowValues) -> list[str]:
    lanes, reads = _lanes(values), range(len(values.reads))
    formula = values.formula

    def name(value: int) -> str:
        return f"x{value}[e].to(cutlass.Float32)" if value < formula.starts else f"y{value}"

    numbers = range(formula.computed, formula.computed + len(formula.instructions))
    element = [f"y{each} = {computed(formula, each, name, ('0', '0'))}" for each in numbers]
    element.append(
        f"total = total + {name(formula.value)}"
        if values.sums
        else f"made[e] = ({name(formula.value)}).to({dsl(values.dtype)})"
    )
    lines = [
        "@cute.kernel",
        f"def compute_rows_{at}({', '.join(f'read_{each}: cute.Tensor' for each in reads)}, target: cute.Tensor):",
        "    thread, _, _ = cute.arch.thread_idx()",
        "    block, _, _ = cute.arch.block_idx()",
        f"    part, number = thread % {lanes}, block * {THREADS // lanes} + thread // {lanes}",
        f"    chunk, at = cutlass.min(part, {values.columns // CHUNK - 1}), cutlass.min(number, {values.total - 1})",
        f"    row, head = at % {values.rows}, at // {values.rows}",
    ]
    for axis, size in reversed([*zip(values.axes, values.heads, strict=True)]):
        lines += [f"    head_{axis}, head = head % {size}, head // {size}"]
    for each, matrix in enumerate(values.reads):
        place = _place(values, "None, chunk, row", matrix.modes)
        lines += [
            f"    x{each} = cute.make_rmem_tensor({CHUNK}, {dsl(matrix.dtype)})",
            f"    cute.autovec_copy(read_{each}[{place}], x{each})",
        ]
    lines += ["    total = cutlass.Float32(0.0)"] if values.sums else []
    lines += [] if values.sums else [f"    made = cute.make_rmem_tensor({CHUNK}, {dsl(values.dtype)})"]
    lines += [f"    for e in cutlass.range_constexpr({CHUNK}):", *(f"        {line}" for line in element)]
    stored = f"(number < {values.total}) & (part < {values.columns // CHUNK})"
    if not values.sums:
        target = f"target[{_place(values, 'None, chunk, row', values.modes)}]"
        return [*lines, f"    if {stored}:", f"        cute.autovec_copy(made, {target})"]
    lines.append(f"    total = cutlass.select_(part < {values.columns // CHUNK}, total, cutlass.Float32(0.0))")
    offset = lanes // 2
    while offset:
        lines.append(f"    total = total + cute.arch.shuffle_sync_bfly(total, offset={offset})")
        offset //= 2
    target = f"target[{_place(values, 'row', values.modes)}]"
    return [*lines, f"    if (number < {values.total}) & (part == 0):", f"        {target} = total"]


def _place(values: RowValues, first: str, modes: Sequence[Mode]) -> str:
    axes = tuple(f"head_{axis}" for axis in range(max(values.axes, default=-1) + 1))
    return ", ".join([first, *(mode.at.text(axes) for mode in modes)])


def launches(problem: BackwardProblem, pointers: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of the host function that launch the kernels. ``pointers`` are its first arguments, before sources; those
    of values become places in the workspace."""
    names, lines = [*pointers, *(each.label for each in problem.sources)], list[str]()
    found = zip(problem.values, problem.values_at, offsets(problem.values), strict=True)
    for at, (values, position, offset) in enumerate(found):
        name = names[position]
        lines.append(f"{name} = cute.recast_ptr(workspace + {offset}, dtype={dsl(values.dtype)})")
        reads = [_tensor(_read(at, number), matrix) for number, matrix in enumerate(values.reads)]
        made = values.matrix
        target = _layout([values.rows], [1], made.modes) if values.sums else _chunks(made, values.rows)
        rows = THREADS // _lanes(values)
        lines += [
            f"compute_rows_{at}(",
            *(f"    cute.make_tensor({pointer}, {_chunks(matrix, values.rows)})," for pointer, matrix in reads),
            f"    cute.make_tensor({name}, {target}),",
            f").launch(grid=({-(-values.total // rows)}, 1, 1), block=({THREADS}, 1, 1), stream=stream)",
        ]
    return tuple(lines)


def _tensor(pointer: str, matrix: Matrix) -> tuple[str, Matrix]:
    return f"{pointer} + {matrix.offset}" if matrix.offset else pointer, matrix


def _chunks(matrix: Matrix, rows: int) -> str:
    """Return the layout of the chunks of a row, rows and heads."""
    return _layout([CHUNK, matrix.columns // CHUNK, rows], [1, CHUNK, matrix.pitch], matrix.modes)


def _layout(shape: Sequence[int], strides: Sequence[int], modes: Sequence[Mode]) -> str:
    extents, steps = [*shape, *(mode.size for mode in modes)], [*strides, *(mode.stride for mode in modes)]
    return f"cute.make_layout(({', '.join(map(str, extents))},), stride=({', '.join(map(str, steps))},))"
