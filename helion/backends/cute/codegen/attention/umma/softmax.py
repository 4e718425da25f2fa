"""The weights of a block of scores, of which a thread has those of one query: formula, masks, maximum, exponentials, sum."""

from __future__ import annotations

from collections.abc import Sequence

from ....plan.attention.operands import Table
from ....plan.attention.records import LAZY, AttentionProblem, Formula
from ....plan.attention.umma import EXPONENTIALS, UmmaPlan
from .. import numbers, spans
from ..formula import arguments_of, head_axes, inverses, read, score_lines
from ..softmax import (
    NEGATIVE_INFINITY,
    exp2_function,
    floored,
    has_formula,
    has_masks,
    packed_quad,
    seen_lines,
)
from .finish import chunk_of

MOST_WEIGHTS = {1: 16, 2: 32}
"""Pairs of weights that a thread has in registers next to its scores, by groups. With more of one group, or fewer of two, some
kernels spill (measurement ``umma_registers``)."""
LEAST_EXPONENT = -127.0
"""The exponent of fp32 below which the polynomial gives 0."""
ROUNDER = 12582912.0 + 127.0
"""Added to a number, it leaves floor(x) + 127 in the low bits of fp32: 1.5 * 2**23, and the bias of exponents."""
COEFFICIENTS = {
    "short": (1.0, 0.695116824527816, 0.2276448219148019, 0.07706719743373823),
    "long": (
        1.0,
        0.6931513118593031,
        0.2401644494864753,
        0.05579991554711194,
        0.009017026901374563,
        0.00186713168631942,
    ),
}
"""Coefficients of polynomials for 2**x on [0, 1], from the constant on: those with the least relative errors, 9e-5 and 8e-8
(test_umma_softmax.py)."""


def softmax_functions(plan: UmmaPlan) -> list[list[str]]:
    """Return the functions of a block, as the DSL traces them: loops over elements are unrolled."""
    functions = [exp2_function(), _maxima(plan), _exponentials(plan)] if plan.problem.softmax else [_rounded(plan)]
    if plan.problem.needs_total:
        functions.append(_add(plan))
    if plan.polynomial:
        functions.insert(1, _polynomial(plan))
    if plan.restores_maxima:
        functions.append(_restore(plan))
    if has_masks(plan):
        functions.insert(0, _mask(plan))
    if plan.problem.dropped is not None:
        functions = [_formula(plan, plan.problem.dropped, "drop_weights"), *functions]
    if plan.problem.softmax and (plan.problem.dropped is not None or plan.operand_bytes == 1):
        functions.append(_rounded(plan))
    if has_formula(plan):
        functions.insert(0, _formula(plan, plan.problem.score, "apply_formula"))
    return functions


def maxima_call(plan: UmmaPlan, masked: bool, first: bool, axes: Sequence[str]) -> list[str]:
    """Return the calls of the kernel from scores to the row maximum."""
    lines, masks = [], masked and has_masks(plan)
    if has_formula(plan) or masks:
        lines.append(_first_key(plan, first))
    if has_formula(plan):
        lines.append(f"apply_formula({', '.join(_formula_arguments(plan, plan.problem.score, axes))})")
    if masks:
        lines.append(f"mask({', '.join(_mask_arguments(plan))})")
    guarded = plan.problem.guarded or masks
    if plan.problem.softmax:
        lines.append(f"raise_maximum({', '.join(_registers(plan))}, first={first}, guarded={guarded})")
    return lines


def _first_key(plan: UmmaPlan, first: bool) -> str:
    return f"first_key = {spans.plus_origin(plan)}({'end - 1' if first else 'block'}) * {plan.keys}"


def dropped_lines(plan: UmmaPlan, first: bool, axes: Sequence[str]) -> list[str]:
    """Return the lines of the kernel that change the weights of a block."""
    formula = plan.problem.dropped
    assert formula is not None
    return [_first_key(plan, first), f"drop_weights({', '.join(_formula_arguments(plan, formula, axes))})"]


def weights_lines(plan: UmmaPlan, masked: bool) -> list[str]:
    """Return the lines from scores to weights, and to tensor memory, unless weights are changed before. Blocks with masks, which
    are few, take no polynomials."""
    polynomial = bool(plan.polynomial) and not (masked and has_masks(plan))
    call = f"weigh(scores, packed, shifts, {{span}}, polynomial={polynomial})"
    if plan.problem.dropped is None and (plan.operand_bytes > 1 or not plan.problem.softmax):
        return _stored(plan, call if plan.problem.softmax else _ROUND)
    if plan.problem.dropped is None:
        return _stored(plan, call, _ROUND)
    return [call.format(span=f"0, {plan.keys // 2}")] if plan.problem.softmax else []


def stored_lines(plan: UmmaPlan) -> list[str]:
    """Return the lines from changed weights to tensor memory; others are there."""
    return [] if plan.problem.dropped is None else _stored(plan, _ROUND)


_ROUND = "round_weights(scores, packed, {span})"


def _stored(plan: UmmaPlan, *calls: str) -> list[str]:
    """Return the lines that round weights and store them, a chunk after the other: registers do not hold all of both."""
    lines, pairs = [], chunk_of_weights(plan) * pairs_of_word(plan)
    for part in range(plan.keys // 2 // pairs):
        lines += [call.format(span=f"{part * pairs}, {(part + 1) * pairs}") for call in calls]
        lines.append(f"cute.copy(weight_writes, rounded_weights[None, None, {part}], weight_parts[None, None, {part}])")
    return lines


def chunk_of_weights(plan: UmmaPlan) -> int:
    """Return the words of weights of one store to tensor memory."""
    return min(MOST_WEIGHTS[plan.groups], chunk_of(plan.keys // 2 // pairs_of_word(plan)))


def pairs_of_word(plan: UmmaPlan) -> int:
    """Return the pairs of weights in a word of tensor memory."""
    return 2 // plan.operand_bytes


def _registers(plan: UmmaPlan) -> list[str]:
    return ["scores", "highest", "factors", "shifts", *(["peaks"] if plan.restores_maxima else [])]


def _formula_arguments(plan: UmmaPlan, formula: Formula, axes: Sequence[str]) -> list[str]:
    return ["scores", "query", "first_key", *axes, *arguments_of(formula), *numbers.parameters(plan)]


def _mask_arguments(plan: UmmaPlan) -> list[str]:
    limits = [*spans.span_names(plan), *spans.row_names(plan)]
    return ["scores", "query", "first_key", *limits, *numbers.parameters(plan)]


def _formula(plan: UmmaPlan, formula: Formula, name: str) -> list[str]:
    """Return the function that applies a formula to the scores, or weights, of a row."""
    problem = plan.problem
    axes = head_axes(problem)

    once: list[str] = []
    of_keys: list[str] = []
    for source in formula.sources:
        if isinstance(source, Table):  # read where an index of it is known
            continue
        text = f"{source.label}_value = {read(plan, source, axes, 'query', 'key', problem.keys)}"
        (of_keys if source.kind in ("key", "exact") else once).append(text)
    return [
        f"def {name}({', '.join(_formula_arguments(plan, formula, axes))}):",
        *(f"    {line}" for line in (*once, *inverses(formula))),
        f"    for column in range({plan.keys}):",
        "        key = first_key + column",
        *(f"        {line}" for line in of_keys),
        *(f"        {line}" for line in score_lines(plan, formula, "column")),
    ]


def _mask(plan: UmmaPlan) -> list[str]:
    """Return the function that hides the keys out of range, and those that the query does not see."""
    hidden = NEGATIVE_INFINITY if plan.problem.softmax else "cutlass.Float32(0.0)"
    lines = [
        f"def mask({', '.join(_mask_arguments(plan))}):",
        *(f"    {line}" for line in seen_lines(plan, "query")),
        f"    for column in range({plan.keys}):",
        f"        scores[column] = cutlass.select_(last >= column, scores[column], {hidden})",
    ]
    if plan.problem.has_first:
        lines.append(f"        scores[column] = cutlass.select_(first <= column, scores[column], {hidden})")
    return lines


def _maxima(plan: UmmaPlan) -> list[str]:
    """Return the function that raises the row maximum, in four chains, and gives the factor of what was summed before.

    A row that has seen no key has a maximum of minus infinity, for which exponents are not subtracted (``guarded``).
    """
    problem = plan.problem
    unit = problem.unit * problem.scale
    peaks = ["    peaks[0] = raised if first else cute.arch.fmax(peaks[0], raised)"] if plan.restores_maxima else []
    return [
        f"def raise_maximum({', '.join(_registers(plan))}, first, guarded):",
        "    chains = [scores[e] for e in range(4)]",
        f"    for e in range(4, {plan.keys}):",
        "        chains[e % 4] = cute.arch.fmax(chains[e % 4], scores[e])",
        "    raised = cute.arch.fmax(cute.arch.fmax(chains[0], chains[1]), cute.arch.fmax(chains[2], chains[3]))",
        *(f"    {line}" for line in floored(problem)),
        *peaks,
        "    if not first:",
        "        former = highest[0]",
        *_raised(plan, unit),
        "    base = raised",
        "    if guarded:",
        f"        base = cutlass.select_(raised == {NEGATIVE_INFINITY}, cutlass.Float32(0.0), raised)",
        "    if not first:",
        f"        factors[0] = exp2((former - base) * {unit!r})",
        "    highest[0] = raised",
        f"    shifts[0] = {_shift(problem, unit)}",
    ]


def _shift(problem: AttentionProblem, unit: float) -> str:
    """Return what exponents add: to the products of scores with the unit, or to large scores before they are multiplied."""
    if problem.has_large_scores:
        return "-base"
    return f"{f'{problem.lift!r} - ' if problem.lift else '-'}base * {unit!r}"


def _raised(plan: UmmaPlan, unit: float) -> list[str]:
    """Return the lines that raise the maximum: always, or where it grows by more than ``LAZY``."""
    if not plan.lazy:
        return ["        raised = cute.arch.fmax(raised, former)"]
    return [
        f"        far = (raised - former) * {unit!r} > {LAZY!r}",
        "        if guarded:",
        f"            far = far | (former == {NEGATIVE_INFINITY})",
        "        raised = cutlass.select_(far, cute.arch.fmax(raised, former), former)",
    ]


def _packed(plan: UmmaPlan, one: str, other: str) -> list[str]:
    """Return the lines that round a pair of weights. They name their instruction, as on wgmma."""
    name = "bf16x2" if plan.problem.q.dtype == "bfloat16" else "f16x2"
    return [
        "        packed[pair] = cute.arch.inline_ptx(",
        f'            "cvt.rn.{name}.f32 {{$w0}}, {{$r0}}, {{$r1}};",',
        "            write_only_types=[cutlass.Int32],",
        f"            read_only_args=[{other}, {one}],",
        "        )",
    ]


def _rounded(plan: UmmaPlan) -> list[str]:
    """Return the function of rounded weights that are not rounded with their exponentials."""
    if plan.operand_bytes == 1:
        return _rounded_quads(plan.problem)
    return [
        "def round_weights(scores, packed, first, end):",
        "    for pair in range(first, end):",
        *_packed(plan, "scores[2 * pair]", "scores[2 * pair + 1]"),
    ]


def _rounded_quads(problem: AttentionProblem) -> list[str]:
    """Return the same for weights of 8 bits, of which a word has four consecutive keys. The conversion saturates."""
    return [
        "def round_weights(scores, packed, first, end):",
        "    for quad in range(first // 2, end // 2):",
        f"        packed[quad] = {packed_quad([f'scores[4 * quad + {at}]' for at in range(4)])}",
    ]


def _exponents(problem: AttentionProblem, unit: float) -> str:
    """Return the exponents of a pair of scores."""
    units, shifts = f"({unit!r}, {unit!r})", "(shifts[0], shifts[0])"
    if not problem.has_large_scores:
        return f"cute.arch.fma_packed_f32x2(pair_of_scores, {units}, {shifts})"
    differences = f"cute.arch.add_packed_f32x2(pair_of_scores, {shifts})"
    return f"cute.arch.fma_packed_f32x2({differences}, {units}, ({problem.lift!r}, {problem.lift!r}))"


def _exponentials(plan: UmmaPlan) -> list[str]:
    """Return the function of rounded weights of a softmax."""
    problem = plan.problem
    unit = problem.unit * problem.scale
    pairs, chosen = EXPONENTIALS // 2, plan.polynomial // 2
    lines = [
        "def weigh(scores, packed, shifts, first, end, polynomial):",
        "    for pair in range(first, end):",
        "        pair_of_scores = (scores[2 * pair], scores[2 * pair + 1])",
        f"        one, other = {_exponents(problem, unit)}",
    ]
    if chosen:
        lines += [
            f"        if polynomial and pair % {pairs} * {chosen} % {pairs} < {chosen}:",
            "            one, other = exp2_of_pair(one, other)",
            "        else:",
            "            one, other = exp2(one), exp2(other)",
        ]
    else:
        lines.append("        one, other = exp2(one), exp2(other)")
    lines.append("        scores[2 * pair], scores[2 * pair + 1] = one, other")
    later = problem.dropped is not None or plan.operand_bytes == 1
    return lines if later else [*lines, *_packed(plan, "one", "other")]


def _polynomial(plan: UmmaPlan) -> list[str]:
    """Return the function of powers of two on the fp32 pipe, for numbers up to 127; NaN stays NaN.

    A power is that of the floor, whose bits are an exponent, times the polynomial of the rest.
    """
    constant, *coefficients = COEFFICIENTS["long" if _needs_digits(plan) else "short"]
    twice = "({0!r}, {0!r})"
    first = coefficients.pop()
    lines = [
        "def exp2_of_pair(one, other):",
        f"    x = tuple(cute.arch.fmax(each, {LEAST_EXPONENT!r}, nan=True) for each in (one, other))",
        f'    moved = cute.arch.add_packed_f32x2(x, {twice.format(ROUNDER)}, rnd="rm")',
        f"    floor = cute.arch.add_packed_f32x2(moved, {twice.format(-ROUNDER)})",
        "    rest = cute.arch.sub_packed_f32x2(x, floor)",
        f"    value = {twice.format(first)}",
    ]
    for each in (*reversed(coefficients), constant):
        lines.append(f"    value = cute.arch.fma_packed_f32x2(value, rest, {twice.format(each)})")
    return [
        *lines,
        "    powers = []",
        "    for each in moved:",
        "        power = cute.arch.inline_ptx(",
        '            "shl.b32 {$w0}, {$r0}, 23;",',
        "            write_only_types=[cutlass.Float32],",
        "            read_only_args=[each],",
        "        )",
        "        powers.append(power)",
        "    return cute.arch.mul_packed_f32x2(value, tuple(powers))",
    ]


def _needs_digits(plan: UmmaPlan) -> bool:
    """Return whether an output in fp32 shows errors of more than 1e-6."""
    return any(output.dtype == "float32" for output in plan.problem.outputs)


def _add(plan: UmmaPlan) -> list[str]:
    """Return the function that adds weights to the row sum, in two chains of pairs."""
    rescaled = (
        "cute.math.fma(total[0], factors[0], one + other)" if plan.problem.softmax else "total[0] + (one + other)"
    )
    return [
        f"def add_weights(scores, total{', factors' if plan.problem.softmax else ''}, first):",
        "    chains = [(scores[0], scores[1]), (scores[2], scores[3])]",
        f"    for pair in range(2, {plan.keys // 2}):",
        "        added = (scores[2 * pair], scores[2 * pair + 1])",
        "        chains[pair % 2] = cute.arch.add_packed_f32x2(chains[pair % 2], added)",
        "    one, other = cute.arch.add_packed_f32x2(*chains)",
        f"    total[0] = one + other if first else {rescaled}",
    ]


def _restore(plan: UmmaPlan) -> list[str]:
    unit = plan.problem.unit * plan.problem.scale
    return [
        "def restore_maximum(highest, total, peaks, factors):",
        f"    scale = exp2((highest[0] - peaks[0]) * {unit!r})",
        f"    scale = cutlass.select_(peaks[0] == {NEGATIVE_INFINITY}, cutlass.Float32(1.0), scale)",
        "    total[0] = total[0] * scale",
        "    highest[0] = peaks[0]",
        "    factors[0] = scale",
    ]
