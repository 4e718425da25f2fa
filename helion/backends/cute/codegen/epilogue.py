"""The epilogue in fp32 scalars, and the layout of a thread's registers in a sub-tile."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence

from ...._support.records import dataclass
from ..plan.dtypes import itemsize
from ..plan.epilogue import (
    COLUMN_NUMBER,
    INTEGER_SUM,
    JOINED,
    PARTNER,
    ROW_NUMBER,
    Constant,
    EpilogueOperand,
    EpilogueOutput,
    Instruction,
)
from ..plan.joint import OwnPart, joint, moved
from ..plan.passes import WORD_BITS, Pass, divisor_of, draw_words, drawn, draws, passes
from ..plan.records import WGMMA_ROWS, GemmPlan, GemmProblem
from ..plan.reductions import Evaluated
from ..plan.shared import staged_as
from .elements.quotients import INFINITY, near_quotient, quotient
from .numbers import batched, in_group, last


@dataclass(frozen=True, kw_only=True)
class Fragment:
    """The layout of one thread's values in a sub-tile.

    Value ``i`` is in its row number ``row_of(i)`` of ``rows`` and in its column number ``column_of(i)`` of ``columns``.
    """

    values: int
    rows: int
    first_row: str
    row_offset: str
    """Offset of the thread's row number ``i`` from its first."""
    row_of: str
    columns: str
    """Shape and strides of the columns of the thread."""
    first_column: str
    column_of: str
    column_offset: str
    """Offset of value ``i`` from the first column."""


def fragment(plan: GemmPlan) -> Fragment:
    """Return the layout of a thread's values.

    wgmma gives each of 8 × 4 threads pairs of columns in two rows, 8 rows distant. So do 64 rows of tensor memory,
    which fill half of its lanes. Of 128 rows, each thread has one.
    """
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
        column_offset="i",
    )


def _paired_fragment(plan: GemmPlan) -> Fragment:
    """Return the layout of pairs: one atom of 64 rows after the other, interleaved over all warpgroups."""
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
        column_offset="i // 4 * 8 + i % 2" if single else f"i % {atom} // 4 * 8 + i % 2",
    )


def dealt(plan: GemmPlan, column: str) -> str:
    """Return the place of ``column`` among row operands in shared memory.

    If they stay from tile to tile, the columns of a thread are contiguous, so that it reads four at a time.
    """
    if not (plan.columns_stay and plan.paired):
        return column
    width = plan.epilogue_n
    pairs = f"{column} % 8 // 2 * {width // 4} + {column} % {width} // 8 * 2 + {column} % 2"
    return f"{column} // {width} * {width} + {pairs}"


def dealt_columns(plan: GemmPlan) -> tuple[str, str, str]:
    """Return the layout of a thread's columns of a sub-tile there: the first, shape and strides."""
    places = fragment(plan)
    if plan.columns_stay and plan.paired:
        return f"lane % 4 * {plan.epilogue_n // 4}", f"(2, {plan.epilogue_n // 8})", "(1, 2)"
    shape, strides = places.columns.split(", stride=")
    return places.first_column, shape, strides


def sum_of(plan: GemmPlan) -> str:
    """Return the index of value ``i`` of ``subtile`` among the accumulator registers of a thread."""
    if plan.unit == "tcgen05":
        return f"subtile * {fragment(plan).values} + i"
    atom = plan.epilogue_n // 2
    place = "i" if plan.row_atoms == 1 else f"i // {atom} * {plan.sum_columns // 2} + i % {atom}"
    return f"subtile * {atom} + {place}"


def sum_dsl(plan: GemmPlan) -> str:
    """Return the DSL's name of the accumulator's type."""
    return "cutlass.Int32" if plan.problem.operand_dtype == "int8" else "cutlass.Float32"


def converted(plan: GemmPlan, registers: Sequence[str]) -> list[str]:
    """Return the conversion of the bits of accumulators that registers of tcgen05 have."""
    if sum_dsl(plan) == "cutlass.Float32":
        return []
    numbers = f"{sum_dsl(plan)}).load().to(cutlass.Float32)"
    kept = [f"integers.store(cute.recast_tensor(values, {sum_dsl(plan)}).load())"] if keeps_integers(plan) else []
    return [*kept, *(f"{name}.store(cute.recast_tensor({name}, {numbers})" for name in registers)]


def keeps_integers(plan: GemmPlan) -> bool:
    """Return whether the epilogue adds to the accumulator in int32."""
    return bool(plan.problem.epilogue.of_kind("integers"))


def kept_integers(plan: GemmPlan) -> list[str]:
    """Return the copy of value ``i`` of the accumulator of wgmma, if the epilogue adds to it in int32."""
    return [f"integers[i] = sums[{sum_of(plan)}]"] if keeps_integers(plan) else []


def accumulated(plan: GemmPlan, first: str) -> str:
    """Return value ``i`` of a sub-tile in fp32, from the accumulator registers of wgmma after ``first``."""
    if plan.totals:
        return f"total[{first}{sum_of(plan)}]"
    return f"sums[{first}{sum_of(plan)}]" + (".to(cutlass.Float32)" if sum_dsl(plan) == "cutlass.Int32" else "")


BEFORE = "values_before"  # the values of a sub-tile that outputs do not overwrite
LARGEST_FLOAT = "3.4028234663852886e+38"
"""The largest finite fp32 number."""

EXPRESSIONS: Mapping[str, Callable[..., str]] = {
    "add": lambda x, y: f"{x} + {y}",
    "sub": lambda x, y: f"{x} - {y}",
    "mul": lambda x, y: f"{x} * {y}",
    "div": lambda x, y: f"{x} / {y}",
    # As in torch, these three give NaN where an argument is NaN.
    "maximum": lambda x, y: f"cute.arch.fmax({x}, {y}, nan=True)",
    "minimum": lambda x, y: f"cute.arch.fmin({x}, {y}, nan=True)",
    "neg": lambda x: f"-{x}",
    "abs": lambda x: f"cute.math.abs({x})",
    "relu": lambda x: f"cute.arch.fmax({x}, cutlass.Float32(0.0), nan=True)",
    "exp": lambda x: f"cute.math.exp({x})",
    "log": lambda x: f"cute.math.log({x})",
    # One instruction with an error of 2**-23 (PTX ISA, ``sqrt.approx``); the exact root takes 15.
    "sqrt": lambda x: f"cute.math.sqrt({x}, fastmath=True)",
    "rsqrt": lambda x: f"cute.math.rsqrt({x})",
    "tanh": lambda x: f"cute.math.tanh({x})",
    "one_plus_tanh": lambda x: f"2.0 * {_sigmoid(f'({x} * 2.0)')}",
    "erf": lambda x: f"cute.math.erf({x})",
    "sigmoid": lambda x: _sigmoid(x),
    "silu": lambda x: f"{x} * {_sigmoid(x)}",
    "gelu": lambda x: f"0.5 * {x} * (1.0 + cute.math.erf({x} * 0.7071067811865476))",
    # 0.5 * (1 + tanh(u)) is the logistic function of 2u, which stays precise where tanh is near -1.
    "gelu_tanh": lambda x: f"{x} * {_sigmoid(f'({x} * (1.5957691216057308 + 0.07135481282623503 * {x} * {x}))')}",
    "exp2": lambda x: f"cute.math.exp2({x})",
    "expm1": lambda x: f"cute.math.expm1({x})",
    "log2": lambda x: f"cute.math.log2({x})",
    "log10": lambda x: f"cute.math.log10({x})",
    "log1p": lambda x: f"cute.math.log1p({x})",
    "floor": lambda x: f"cute.math.floor({x})",
    "ceil": lambda x: f"cute.math.ceil({x})",
    "trunc": lambda x: f"cute.math.trunc({x})",
    "eq": lambda x, y: _select(f"{x} == {y}", "1.0", "0.0"),
    "ne": lambda x, y: _select(f"{x} != {y}", "1.0", "0.0"),
    "lt": lambda x, y: _select(f"{x} < {y}", "1.0", "0.0"),
    "le": lambda x, y: _select(f"{x} <= {y}", "1.0", "0.0"),
    "gt": lambda x, y: _select(f"{x} > {y}", "1.0", "0.0"),
    "ge": lambda x, y: _select(f"{x} >= {y}", "1.0", "0.0"),
    "isnan": lambda x: _select(f"{x} != {x}", "1.0", "0.0"),
    "isinf": lambda x: _select(f"cute.math.abs({x}) > {LARGEST_FLOAT}", "1.0", "0.0"),
    "isfinite": lambda x: _select(f"cute.math.abs({x}) <= {LARGEST_FLOAT}", "1.0", "0.0"),
    "where": lambda condition, x, y: _select(f"{condition} != 0.0", x, y),
    "round": lambda x: f"cute.math.roundeven({x})",
    "round_float16": lambda x: _rounded(
        x, "cvt.rn.f16x2.f32 p, 0f00000000, {$r0}; mov.b32 {low, high}, p; cvt.f32.f16 {$w0}, low;"
    ),
    "round_bfloat16": lambda x: _rounded(x, "cvt.rn.bf16x2.f32 p, {$r0}, 0f00000000; mov.b32 {$w0}, p;"),
}


def _select(condition: str, x: str, y: str) -> str:
    return f"cutlass.Float32(cutlass.select_({condition}, {x}, {y}))"


def _rounded(x: str, code: str) -> str:
    """Return a number rounded to 16 bits and widened again.

    The conversion of a pair is one instruction at full rate; that of one number takes the unit of exp2. A bfloat16 in the
    high half is its float32.
    """
    text = f'"{{ .reg .b32 p; .reg .b16 low, high; {code} }}"'
    return f"cute.arch.inline_ptx({text}, write_only_types=[cutlass.Float32], read_only_args=[cutlass.Float32({x})])"


def _tanh(x: str) -> str:
    """Return 1 - 2 / (1 + e^2x), and a series near 0, where it cancels: within 2e-6 of the value everywhere."""
    large = f"1.0 - 2.0 * cute.arch.rcp_approx(1.0 + cute.math.exp2({x} * 2.8853900817779268, fastmath=True))"
    small = f"{x} * (1.0 - {x} * {x} * (0.3333333333333333 - 0.13333333333333333 * {x} * {x}))"
    return _select(f"cute.math.abs({x}) < 0.1", small, large)


def _exp(x: str) -> str:
    """Return one exp2 instruction. Its error and that of its argument, at most 128 times 2**-24, are within 2**-16 of
    the value."""
    return f"cute.math.exp2({x} * 1.4426950408889634, fastmath=True)"


SHORT: Mapping[str, Callable[..., str]] = {"tanh": _tanh, "exp": _exp}
"""Shorter sequences for outputs of 16 bits, whose rounding error is 1000 times larger."""


def _sigmoid(x: str) -> str:
    return f"cute.arch.rcp_approx(1.0 + cute.math.exp2({x} * -1.4426950408889634, fastmath=True))"


def value_name(plan: GemmPlan, value: int) -> str:
    """Return the name of a value in the code of one element."""
    epilogue, places = plan.problem.epilogue, fragment(plan)
    if plan.by_rows and epilogue.per_row[value]:
        return f"{column_registers(plan, value)}[{places.row_of}]"
    if 0 < value <= len(epilogue.operands):
        return f"{epilogue.operands[value - 1].label}_value"
    return f"x{max(0, value - len(epilogue.operands))}"


def row_registers(plan: GemmPlan, value: int) -> str:
    """Return the registers of a per-row instruction: one for each row of the thread."""
    return f"x{value - len(plan.problem.epilogue.operands)}_rows"


def column_registers(plan: GemmPlan, value: int) -> str:
    """Return the registers of per-row numbers: of an instruction, a column operand or a scalar."""
    operands = plan.problem.epilogue.operands
    return row_registers(plan, value) if value > len(operands) else f"{operands[value - 1].label}_rows"


def expression(problem: Evaluated, value: int, names: Callable[[int], str], position: Callable[[str], str]) -> str:
    """Return the expression of instruction number `value` over the values named by `names`.

    ``position`` gives the index of the row, or of the column, by the name of the operation.
    """
    made = problem.epilogue.instruction(value)
    if made.op in (ROW_NUMBER, COLUMN_NUMBER):
        return f"cutlass.Float32({position(made.op)})"
    arguments = [
        literal(argument) if isinstance(argument, Constant) else names(argument) for argument in made.arguments
    ]
    short = all(itemsize(output.dtype) <= 2 for output in problem.outputs)
    expressions = {**EXPRESSIONS, **SHORT} if short else EXPRESSIONS
    if made.op == "div" and _divides_by_operand(problem, made):
        return near_quotient(*arguments)
    return expressions[made.op](*arguments)


def assigned(
    problem: Evaluated,
    value: int,
    names: Callable[[int], str],
    position: Callable[[str], str],
    targets: Callable[[int], str],
) -> list[str]:
    """Return code that sets the name of instruction number `value`, as ``expression`` computes it."""
    made, name = problem.epilogue.instruction(value), targets(value)
    texts = tuple(literal(each) if isinstance(each, Constant) else names(each) for each in made.arguments)
    if made.op == "div" and (lines := quotient(problem, value, name, texts)):
        return lines
    return [f"{name} = {expression(problem, value, names, position)}"]


def _divides_by_operand(problem: Evaluated, made: Instruction) -> bool:
    """Return whether a quotient by a number that is loaded or passed goes to outputs of 16 bits, and to no integers."""
    divisor = made.arguments[1]
    operand = not isinstance(divisor, Constant) and 0 < divisor <= len(problem.epilogue.operands)
    return operand and all(output.dtype in ("float16", "bfloat16") for output in problem.outputs)


def literal(constant: Constant) -> str:
    """Return the literal of a number, finite or not."""
    finite = math.isfinite(float(constant.text))
    return f"cutlass.Float32({constant.text})" if finite else f'cutlass.Float32(float("{constant.text}"))'


def column_number(plan: GemmPlan) -> str:
    """Return the column index of value ``i``, after ``first_column``."""
    return f"first_column + {fragment(plan).column_offset}"


def first_column(plan: GemmPlan) -> str:
    """Return the definition of the thread's first column in the sub-tile."""
    return f"first_column = tile_n * {plan.tile[1]} + subtile * {plan.epilogue_n} + {fragment(plan).first_column}"


def row_number(plan: GemmPlan, row: str = "i") -> str:
    """Return the index of the thread's row number `row`, after ``first_row``."""
    offset = re.sub(r"\bi\b", f"({row})", fragment(plan).row_offset)
    return f"first_row + {offset}"


def _position(plan: GemmPlan, op: str) -> str:
    """Return the row or column index of value ``i``."""
    return row_number(plan, fragment(plan).row_of) if op == ROW_NUMBER else column_number(plan)


def first_row(plan: GemmPlan, rows: str) -> str:
    """Return the definition of the thread's first row; `rows` is the CTA's index among tiles along M."""
    return f"first_row = {in_group(plan, f'{rows} * {plan.cta_tile[0]}')} + {fragment(plan).first_row}"


def numbers_columns(problem: GemmProblem, walk: Pass) -> bool:
    """Return whether `walk` computes with column indices."""
    return any(problem.epilogue.instruction(value).op == COLUMN_NUMBER for value in walk.computes)


def compute(plan: GemmPlan, walk: Pass) -> list[str]:
    """Return the code of `walk` for element ``i``, starting from ``values[i]``."""
    operands = plan.problem.epilogue.operands
    names = functools.partial(value_name, plan)
    lines = [f"{names(walk.held)} = values[i]{_to_the_row(plan, walk.held)}"]
    for value in walk.reads:
        if operands[value - 1].kind == "integers" or (drawn(plan) and operands[value - 1].kind == "uniform"):
            continue
        lines.append(f"{names(value)} = {_operand_value(plan, operands[value - 1])}")
    if plan.problem.epilogue.in_pairs:
        return _with_partners(plan, walk, lines)
    for value in walk.computes:
        if value in drawn(plan):
            lines.append(f"{names(value)} = {drawn_bit(plan, value)}")
            continue
        known = _own_names(plan, value) if walk.number == 1 else names
        if plan.problem.epilogue.instruction(value).op == INTEGER_SUM:
            lines.append(f"{names(value)} = {_integer_sum(plan)}")
            continue
        lines += _quotient(plan, value) or assigned(
            plan.problem, value, known, functools.partial(_position, plan), names
        )
    return lines


def _with_partners(plan: GemmPlan, walk: Pass, read: Sequence[str]) -> list[str]:
    """Return the code of a pass that begins with ``read``, for element ``i`` and its neighbor ``i ^ 1``, of the same row and
    pair. The compiler drops what no output needs."""
    epilogue, names = plan.problem.epilogue, functools.partial(value_name, plan)
    lines = [line.replace("values[i]", f"{BEFORE}[i]", 1) for line in read[:1]] + [*read[1:]]
    lines += [_of_partner(line) for line in lines]
    for value in walk.computes:
        made, name = epilogue.instruction(value), names(value)
        if made.op == PARTNER:
            of = names(*(x for x in made.arguments if not isinstance(x, Constant)))
            lines += [f"{name} = {_of_partner(of)}", f"{_of_partner(name)} = {of}"]
            continue
        if made.op == JOINED:
            text = f"({', '.join(literal(x) if isinstance(x, Constant) else names(x) for x in made.arguments)})[i % 2]"
        else:
            made_here = assigned(plan.problem, value, names, functools.partial(_position, plan), names)
            lines += [*made_here, *map(_of_partner, made_here)]
            continue
        lines += [f"{name} = {text}", _of_partner(f"{name} = {text}")]
    return lines


def _of_partner(text: str) -> str:
    """Return the code of element ``i`` as that of its neighbor."""
    return re.sub(r"\bi\b", "(i ^ 1)", re.sub(r"\b(x\d+|\w+_operand_value)\b", r"\1_partner", text))


def kept_values(plan: GemmPlan) -> list[str]:
    """Return the copy of the values of a sub-tile, which neighbors read after they are overwritten."""
    if not plan.problem.epilogue.in_pairs:
        return []
    count = fragment(plan).values
    return [
        f"{BEFORE} = cute.make_rmem_tensor({count}, cutlass.Float32)",
        f"for i in cutlass.range_constexpr({count}):",
        f"    {BEFORE}[i] = values[i]",
    ]


def _to_the_row(plan: GemmPlan, held: int) -> str:
    """Return the factor that corrects registers from a CTA-local maximum to that of the row."""
    part = moved(plan, held)
    return f" * {moved_registers(plan, part)}[{fragment(plan).row_of}]" if part else ""


def _own_names(plan: GemmPlan, value: int) -> Callable[[int], str]:
    """Return the names of the arguments of `value` in the second pass, where CTA-local statistics may replace those of
    the row."""
    parts = [part for part in joint(plan) if part.kind != "first" and part.difference == value]
    row = fragment(plan).row_of
    own = {part.about: f"{own_registers(plan, part)}[{row}]" for part in parts}
    return lambda x: own.get(x) or value_name(plan, x)


def own_registers(plan: GemmPlan, part: OwnPart) -> str:
    """Return the registers of the CTA-local statistic of a reduction: one number per row."""
    return f"{row_registers(plan, part.value).removesuffix('_rows')}_own"


def moved_registers(plan: GemmPlan, part: OwnPart) -> str:
    """Return the registers of factors that correct its terms to the statistic of the row."""
    return f"{row_registers(plan, part.value).removesuffix('_rows')}_moved"


def _quotient(plan: GemmPlan, value: int) -> list[str]:
    """Return a quotient by a per-row number from its reciprocal.

    One Newton step leaves the error of one rounding; non-finite results are those of the multiplication. It takes an
    eighth of the instructions of a division. A quotient that is rounded to 16 bits next needs no such step. That
    rounding is 1000 times as coarse as a product of numbers that are rounded once each.
    """
    over = divisor_of(plan, value)
    if over is None:
        return []
    x, place = plan.problem.epilogue.instruction(value).arguments[0], fragment(plan).row_of
    name, (scale, scaled, inverse) = value_name(plan, value), divisor_registers(plan, over)
    numerator = literal(x) if isinstance(x, Constant) else value_name(plan, x)
    if _is_rounded(plan, value):
        return [f"{name} = {numerator} * {scale}[{place}] * {inverse}[{place}]"]
    return [
        f"scaled_up = {numerator} * {scale}[{place}]",
        f"{name} = scaled_up * {inverse}[{place}]",
        f"left_over = cute.math.fma(-{name}, {scaled}[{place}], scaled_up)",
        f"nearer = cute.math.fma(left_over, {inverse}[{place}], {name})",
        f"{name} = cutlass.Float32(cutlass.select_(cute.math.abs({name}) < {INFINITY}, nearer, {name}))",
    ]


def _is_rounded(plan: GemmPlan, value: int) -> bool:
    """Return whether `value` is only used by 16-bit floating-point outputs."""
    epilogue = plan.problem.epilogue
    read = any(value in made.arguments for made in epilogue.instructions)
    stored = [each.dtype for each in plan.problem.outputs if each.value == value]
    return not read and all(dtype in ("bfloat16", "float16") for dtype in stored)


def divisor_registers(plan: GemmPlan, value: int) -> tuple[str, str, str]:
    """Return the registers of a per-row divisor: a power of two that scales it near 1, the scaled divisor, and its
    reciprocal."""
    name = column_registers(plan, value)
    return f"{name}_scale", f"{name}_scaled", f"{name}_inverse"


def evaluate(plan: GemmPlan) -> list[str]:
    """Return the epilogue of value ``i``, from ``values[i]`` to the values of each output matrix."""
    walk = passes(plan)[-1]
    if not walk.computes and [(o.value, values_of(plan, o)) for o in walk.outputs] == [(walk.held, "values")]:
        return []
    outputs = {values_of(plan, o): _stored(plan, o) for o in reversed(walk.outputs)}
    return [*compute(plan, walk), *(f"{values}[i] = {value}" for values, value in outputs.items())]


def _stored(plan: GemmPlan, output: EpilogueOutput) -> str:
    """Return what is stored of element ``i``. Both columns of a pair have the value of the first, which is computed once."""
    name = value_name(plan, output.value)
    return f"({name}, {_of_partner(name)})[i % 2]" if output.pairs else name


def strided_place(plan: GemmPlan, label: str, *, clamped: bool, pairs: int = 0, repeated: int = 0) -> str:
    """Return the coordinate of value ``i`` in a strided matrix, after ``first_row`` and ``first_column``. One of ``pairs``
    columns has one number for each pair."""
    row, column = row_number(plan, fragment(plan).row_of), column_number(plan)
    if clamped:
        row, column = f"cutlass.min({row}, {last(plan, 'm')})", f"cutlass.min({column}, {last(plan, 'n')})"
    if pairs:
        column = f"({column}) // 2" + (f" % {pairs}" if 2 * pairs < plan.problem.n else "")
    if repeated:
        column = f"({column}) % {repeated}"
    return f"{row}, {column}{batched(plan, label)}"


def positions(plan: GemmPlan, rows: str) -> list[str]:
    """Return the definitions of the thread's first row and column in the sub-tile."""
    return [first_row(plan, rows), first_column(plan)]


def reads_strided(plan: GemmPlan, walk: Pass) -> bool:
    """Return whether `walk` reads a strided matrix, or draws one."""
    return any(plan.problem.epilogue.operands[value - 1].by_threads for value in walk.reads)


def values_of(plan: GemmPlan, output: EpilogueOutput) -> str:
    """Return the registers of an output's values: the accumulator's for D."""
    return suffixed(plan, "values", output)


def suffixed(plan: GemmPlan, name: str, output: EpilogueOutput) -> str:
    """Return a name that each output matrix has separately, unless it is stored from the buffers of another one."""
    label = plan.problem.label_of(staged_as(plan.problem, output))
    return name if label == "d" else f"{label}_{name}"


def _integer_sum(plan: GemmPlan) -> str:
    """Return the sum of value ``i`` of the accumulator and an integer, in fp32."""
    (operand,) = plan.problem.epilogue.of_kind("integers")
    place = strided_place(plan, operand.label, clamped=True)
    return f"(integers[i] + {operand.label}[{place}]).to(cutlass.Float32)"


def uniform(plan: GemmPlan, operand: EpilogueOperand) -> str:
    """Return the random number of value ``i``, after ``first_row`` and ``first_column``."""
    row, column = row_number(plan, fragment(plan).row_of), column_number(plan)
    offset = f"cutlass.Int64({row}) * {operand.pitch} + cutlass.Int64({column}) * {operand.column_pitch}"
    return f"uniform({operand.label}, {offset}, {operand.dtype == 'int64'})"


def drawn_words(plan: GemmPlan, value: int) -> str:
    """Return the name of the words of the bits that a comparison has."""
    return f"drawn_{value - len(plan.problem.epilogue.operands)}"


def drawn_bit(plan: GemmPlan, value: int) -> str:
    """Return the value of a comparison from its bit for value ``i`` of the sub-tile."""
    spare = WORD_BITS * draw_words(plan) - draws(plan)
    place = f"(subtile * {fragment(plan).values} + i" + (f" + {spare})" if spare else ")")
    word = f"{drawn_words(plan, value)}[{place} // {WORD_BITS}]"
    return _select(f"(({word} >> ({place} % {WORD_BITS})) & 1) != 0", "1.0", "0.0")


def _operand_value(plan: GemmPlan, operand: EpilogueOperand) -> str:
    places = fragment(plan)
    if operand.kind == "exact":
        return f"{operand.label}_values[i].to(cutlass.Float32)"
    if operand.kind == "strided":
        of_table = {"pairs": operand.pairs, "repeated": operand.repeated}
        place = strided_place(plan, operand.label, clamped=True, **of_table)
        return f"{operand.label}[{place}].to(cutlass.Float32)"
    if operand.kind == "product":
        return f"{operand.label}_values[i]"
    if operand.kind == "number":
        return operand.label
    if operand.kind == "uniform":
        return uniform(plan, operand)
    if operand.kind == "row":
        return f"{operand.label}_columns[{places.column_of}]"
    return f"{operand.label}_rows[{places.row_of}]"
