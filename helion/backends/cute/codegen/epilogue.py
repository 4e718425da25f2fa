"""The epilogue in scalars of fp32, and which row and columns of a sub-tile the registers of one thread hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..plan.epilogue import Constant, EpilogueOperand
from ..plan.records import WGMMA_ROWS, GemmPlan


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """Where the values of one thread lie in a sub-tile: value ``i`` in its row number ``row_of(i)`` of ``rows`` and in
    its column number ``column_of(i)`` of ``columns``."""

    values: int
    rows: int
    first_row: str
    row_offset: str
    """Of the thread's row number ``i`` from its first."""
    row_of: str
    columns: str
    """Shape and strides of the columns of the thread."""
    first_column: str
    column_of: str


def fragment(plan: GemmPlan) -> Fragment:
    """wgmma deals out 8 × 4 pairs of columns and two rows, 8 apart, to a thread, and so do 64 rows of tensor memory, which
    fill half of its lanes; of 128 rows each thread has one."""
    if plan.paired:
        return _paired_fragment(plan)
    return Fragment(
        values=plan.epilogue_n,
        rows=1,
        first_row="store_thread",
        row_offset="0",
        row_of="0",
        columns=f"({plan.epilogue_n},), stride=(1,)",
        first_column="0",
        column_of="i",
    )


def _paired_fragment(plan: GemmPlan) -> Fragment:
    """One atom of 64 rows after the other, those of all warpgroups between two of the same."""
    atom = plan.epilogue_n // 2
    single = plan.row_atoms == 1
    return Fragment(
        values=atom * plan.row_atoms,
        rows=2 * plan.row_atoms,
        first_row="store_warp * 16 + lane // 4",
        row_offset="i * 8" if single else f"(i % 2 * 8 + i // 2 * {WGMMA_ROWS * plan.warpgroups})",
        row_of="i // 2 % 2" if single else f"i // 2 % 2 + i // {atom} * 2",
        columns=f"(2, {plan.epilogue_n // 8}), stride=(1, 8)",
        first_column="lane % 4 * 2",
        column_of="i // 4 * 2 + i % 2" if single else f"i % {atom} // 4 * 2 + i % 2",
    )


def sum_of(plan: GemmPlan) -> str:
    """Of all sums of a thread of wgmma, the place of value ``i`` of ``subtile``."""
    atom = plan.epilogue_n // 2
    place = "i" if plan.row_atoms == 1 else f"i // {atom} * {plan.sum_columns // 2} + i % {atom}"
    return f"subtile * {atom} + {place}"


EXPRESSIONS: Mapping[str, Callable[..., str]] = {
    "add": lambda x, y: f"{x} + {y}",
    "sub": lambda x, y: f"{x} - {y}",
    "mul": lambda x, y: f"{x} * {y}",
    "div": lambda x, y: f"{x} / {y}",
    # As torch does, these three answer NaN where an argument is one.
    "maximum": lambda x, y: f"cute.arch.fmax({x}, {y}, nan=True)",
    "minimum": lambda x, y: f"cute.arch.fmin({x}, {y}, nan=True)",
    "neg": lambda x: f"-{x}",
    "abs": lambda x: f"cute.math.abs({x})",
    "relu": lambda x: f"cute.arch.fmax({x}, cutlass.Float32(0.0), nan=True)",
    "exp": lambda x: f"cute.math.exp({x})",
    "log": lambda x: f"cute.math.log({x})",
    "sqrt": lambda x: f"cute.math.sqrt({x})",
    "rsqrt": lambda x: f"cute.math.rsqrt({x})",
    "tanh": lambda x: f"cute.math.tanh({x})",
    "one_plus_tanh": lambda x: f"2.0 * {_sigmoid(f'({x} * 2.0)')}",
    "erf": lambda x: f"cute.math.erf({x})",
    "sigmoid": lambda x: _sigmoid(x),
    "silu": lambda x: f"{x} * {_sigmoid(x)}",
    "gelu": lambda x: f"0.5 * {x} * (1.0 + cute.math.erf({x} * 0.7071067811865476))",
    # 0.5 * (1 + tanh(u)) is the logistic function of 2u, which keeps its precision where tanh comes close to -1.
    "gelu_tanh": lambda x: f"{x} * {_sigmoid(f'({x} * (1.5957691216057308 + 0.07135481282623503 * {x} * {x}))')}",
    "round": lambda x: f"cute.math.roundeven({x})",
    "round_float16": lambda x: f"({x}).to(cutlass.Float16).to(cutlass.Float32)",
    "round_bfloat16": lambda x: f"({x}).to(cutlass.BFloat16).to(cutlass.Float32)",
}


def _tanh(x: str) -> str:
    """1 - 2 / (1 + e^2x), which cancels near 0, where the series stands in: within 2e-6 of the value everywhere."""
    large = f"1.0 - 2.0 * cute.arch.rcp_approx(1.0 + cute.math.exp2({x} * 2.8853900817779268, fastmath=True))"
    small = f"{x} * (1.0 - {x} * {x} * (0.3333333333333333 - 0.13333333333333333 * {x} * {x}))"
    return f"cutlass.Float32(cutlass.select_(cute.math.abs({x}) < 0.1, {small}, {large}))"


SHORT: Mapping[str, Callable[..., str]] = {"tanh": _tanh}
"""Shorter sequences for outputs of 16 bits, whose rounding is 1000 times coarser than their error."""


def _sigmoid(x: str) -> str:
    return f"cute.arch.rcp_approx(1.0 + cute.math.exp2({x} * -1.4426950408889634, fastmath=True))"


def evaluate(plan: GemmPlan) -> list[str]:
    """The epilogue of value ``i``, from ``values[i]`` to ``values[i]``."""
    epilogue = plan.problem.epilogue
    if not epilogue.instructions:
        return []
    expressions = EXPRESSIONS if plan.output_bytes > 2 else {**EXPRESSIONS, **SHORT}
    names = ["x0"]
    lines = ["x0 = values[i]"]
    for operand in epilogue.operands:
        names.append(f"{operand.label}_value")
        lines.append(f"{operand.label}_value = {_operand_value(plan, operand)}")
    for number, instruction in enumerate(epilogue.instructions, start=1):
        arguments = [
            f"cutlass.Float32({argument.text})" if isinstance(argument, Constant) else names[argument]
            for argument in instruction.arguments
        ]
        names.append(f"x{number}")
        lines.append(f"x{number} = {expressions[instruction.op](*arguments)}")
    return [*lines, f"values[i] = {names[-1]}"]


def _operand_value(plan: GemmPlan, operand: EpilogueOperand) -> str:
    places = fragment(plan)
    if operand.kind == "exact":
        return f"{operand.label}_values[i].to(cutlass.Float32)"
    if operand.kind == "product":
        return f"{operand.label}_values[i]"
    if operand.kind == "row":
        return f"{operand.label}_columns[{places.column_of}]"
    return f"{operand.label}_rows[{places.row_of}]"
