"""The weights of a block of scores: formula, masks, maxima, exponentials and sums."""

from __future__ import annotations

from collections.abc import Sequence

from ...plan.attention.build import QUAD
from ...plan.attention.folded import folded, needed
from ...plan.attention.numbers import is_known, text_of
from ...plan.attention.operands import Table
from ...plan.attention.records import KEY_INDEX, LAZY, PRODUCT, AttentionPlan, AttentionProblem, Formula, ScorePlan
from ...plan.epilogue import COLUMN_NUMBER, Constant
from ..scales import add_rounded, rounded_pair
from ..writer import unrolled
from . import numbers, spans, vectors
from .formula import arguments_of, computed, definitions, head_axes, inverses, quotients, read, score_lines

ROUNDED = "round_float16"
"""The operation that takes as long for two numbers as for one. A number in bfloat16 is the upper half of one in fp32, and two
that are rounded together need a shift and a mask, which takes longer (measurement ``scores_in_groups``)."""
WORD = 16
"""Scores of a row in a word of a mask: shifts by so many bits are defined."""
NEGATIVE_INFINITY = 'cutlass.Float32(float("-inf"))'


def has_formula(plan: AttentionPlan) -> bool:
    """Return whether scores are computed from q @ k.T by more than the product with a number, which one FFMA does."""
    return bool(plan.problem.score.instructions)


def has_masks(plan: ScorePlan) -> bool:
    problem = plan.problem
    ragged = not is_known(problem.keys) or problem.keys % plan.keys != 0
    return ragged or plan.is_limited or problem.has_first or problem.has_last


def _neighbours(plan: AttentionPlan) -> int:
    """Return the consecutive keys of which a thread has scores."""
    return QUAD if plan.takes_quads else 2


def key_distance(plan: AttentionPlan) -> str:
    """Return the distance from a thread's first key of score ``i`` of a row in ``column``, 8 columns wide."""
    if not plan.takes_quads:
        return "8 * column + i"
    blocks = plan.keys // 16
    return f"column % {blocks} * 16 + column // {blocks} * 2 + i"


def softmax_call(plan: AttentionPlan, masked: bool, first: bool, axes: Sequence[str], condition: str = "") -> list[str]:
    """Return the calls for one block in the kernel, with masks under a condition, if any."""
    lines = []
    guarded = plan.problem.guarded or (masked and has_masks(plan))
    dropped = plan.problem.dropped
    if has_formula(plan) or (masked and has_masks(plan)) or dropped is not None:
        block = "end - 1" if first else "block"
        lines.append(f"first_key = {spans.plus_origin(plan)}({block}) * {plan.keys} + lane % 4 * {_neighbours(plan)}")
    if has_formula(plan):
        lines.append(f"apply_formula({', '.join(_formula_arguments(plan, plan.problem.score, axes))})")
    if masked and has_masks(plan):
        lines += [f"if {condition}:"] if condition else []
        lines.append(f"{'    ' if condition else ''}mask({', '.join(_mask_arguments(plan))})")
    if plan.problem.softmax:
        lines.append(f"softmax({', '.join(_REGISTERS + _peaks(plan))}, first={first}, guarded={guarded})")
    elif plan.problem.needs_total:
        lines.append(f"add_weights(scores, total, first={first})")
    if dropped is not None:
        lines.append(f"drop_weights({', '.join(_formula_arguments(plan, dropped, axes))})")
    return lines


def _formula_arguments(plan: AttentionPlan, formula: Formula, axes: Sequence[str]) -> list[str]:
    given = ["scores", "first_query", "first_key", *axes, *arguments_of(formula)]
    given += ["bias_values"] if plan.bias in formula.sources else []
    return given + numbers.parameters(plan)


def _mask_arguments(plan: AttentionPlan) -> list[str]:
    limits = [*spans.span_names(plan), *spans.row_names(plan)]
    return ["scores", "first_query", "first_key", *limits, *numbers.parameters(plan)]


_REGISTERS = ["scores", "highest", "total", "factors"]


def _peaks(plan: AttentionPlan) -> list[str]:
    """Return the registers of the row maxima, where those that sums are relative to may be smaller."""
    return ["peaks"] if plan.restores_maxima else []


def softmax_functions(plan: AttentionPlan) -> list[list[str]]:
    """Return the functions of a block, as the DSL traces them: loops over elements are unrolled."""
    functions = [exp2_function(), _round(plan), *([_join()] if plan.problem.needs_total else [])]
    if plan.problem.softmax:
        functions[1:1] = [*_softmax(plan), *_rescale(plan)]
    elif plan.problem.needs_total:
        functions.insert(1, _add_weights(plan))
    if plan.restores_maxima:
        functions.append(_restore(plan))
    if plan.adds_products:
        functions.append(_add_product(plan))
    if has_masks(plan):
        functions.insert(0, _mask(plan))
    if plan.problem.dropped is not None:
        functions.insert(0, _formula(plan, plan.problem.dropped, "drop_weights"))
    if has_formula(plan):
        functions.insert(0, _formula(plan, plan.problem.score, "apply_formula"))
    formulas = [each for each in (plan.problem.score, plan.problem.dropped) if each is not None]
    if any(map(_rounds_pairs, formulas)):
        functions.insert(0, _round_pair())
    for formula in formulas:
        functions[:0] = vectors.vector_functions(plan, formula)
    return functions


def _rounds_pairs(formula: Formula) -> bool:
    """Return whether scores of two keys are rounded together: to float16, by formulas that depend on no key."""
    rounds = any(made.op == ROUNDED for made in formula.instructions)
    of_rows = all(source.kind in ("query", "head", "number") for source in formula.sources)
    return rounds and of_rows and not any(made.op in (KEY_INDEX, COLUMN_NUMBER) for made in formula.instructions)


def _formula_of_pairs(plan: AttentionPlan, formula: Formula, name: str) -> list[str]:
    """Return the function that applies a formula to pairs of scores of a row, which it rounds together."""
    axes = head_axes(plan.problem)

    def names(value: int) -> str:
        if formula.starts <= value < formula.computed:
            source = formula.sources[value - formula.starts]
            return f"{source.label}_rows[row]" if source.kind == "query" else f"{source.label}_value"
        return f"x{0 if value == PRODUCT else value - formula.computed + 1}[i]"

    lines = [f"def {name}({', '.join(_formula_arguments(plan, formula, axes))}):"]
    formula = folded(formula)
    for source in formula.sources:
        text = read(plan, source, axes, "first_query + 8 * row", "0", 1)
        rows = source.kind == "query"
        found = f"_rows = [{text} for row in range(2)]" if rows else f"_value = {text}"
        lines.append(f"    {source.label}{found}")
    lines += [
        *(f"    {line}" for line in inverses(formula)),
        f"    for column in range({plan.keys // 8}):",
        "        for row in range(2):",
        "            query = first_query + 8 * row",
        "            x0 = [scores[4 * column + 2 * row + i] for i in range(2)]",
    ]
    for value in needed(formula):
        at, made = value - formula.computed, formula.instructions[value - formula.computed]
        text = f"[{computed(formula, value, names, ('query', '0'), quotients(formula))} for i in range(2)]"
        if made.op == ROUNDED and not isinstance(made.arguments[0], Constant):
            text = f"round_pair([{names(made.arguments[0])} for i in range(2)])"
        lines.append(f"            x{at + 1} = {text}")
    return [
        *lines,
        "            for i in range(2):",
        f"                scores[4 * column + 2 * row + i] = {names(formula.value)}",
    ]


def _round_pair() -> list[str]:
    """Return the function that rounds two numbers in one instruction, and widens each in another."""
    return [
        "def round_pair(pair):",
        *(f"    {line}" for line in rounded_pair("pair[0]", "pair[1]", "float16")),
        "    return low, high",
    ]


def _formula(plan: AttentionPlan, formula: Formula, name: str) -> list[str]:
    """Return the function that applies a formula to the scores, or weights, of a block."""
    if _rounds_pairs(formula):
        return _formula_of_pairs(plan, formula, name)
    problem = plan.problem
    axes = head_axes(problem)

    lines = [f"def {name}({', '.join(_formula_arguments(plan, formula, axes))}):"]
    by_kind: dict[str, list[str]] = {"once": [], "column": [], "key": [], "exact": []}
    for source in formula.sources:
        if isinstance(source, Table):  # read where an index of it is known
            continue
        if source is plan.bias:
            by_kind["exact"].append(f"{source.label}_value = {vectors.element_of_bias(source)}")
            continue
        if vectors.width_of(plan, source) > 1:
            by_kind["once"] += [] if by_kind["column"] else ["    lane = cute.arch.lane_idx()"]
            by_kind["column"] += vectors.loads(plan, source, axes)
            by_kind["exact"].append(f"{source.label}_value = {vectors.element(plan, source)}")
            continue
        text = read(plan, source, axes, "query", "key", problem.keys)
        if source.kind == "query":
            rows = read(plan, source, axes, "first_query + 8 * row", "key", problem.keys)
            by_kind["once"].append(f"    {source.label}_rows = [{rows} for row in range(2)]")
        elif source.kind in ("head", "number"):
            by_kind["once"].append(f"    {source.label}_value = {text}")
        else:
            by_kind[source.kind].append(f"{source.label}_value = {text}")
    inner = [*by_kind["exact"], *score_lines(plan, formula, "4 * column + 2 * row + i", "_rows[row]")]
    inner = [*definitions({"query": "first_query + 8 * row"}, inner), *inner]
    of_key = definitions({"key": f"first_key + {key_distance(plan)}"}, [*by_kind["key"], *inner])
    return [
        "@cute.jit",
        *lines,
        *by_kind["once"],
        *(f"    {line}" for line in inverses(formula)),
        f"    for column in {unrolled(plan.keys // 8)}:",
        *(f"        {line}" for line in by_kind["column"]),
        "        for i in cutlass.range_constexpr(2):",
        *(f"            {line}" for line in (*of_key, *by_kind["key"])),
        "            for row in cutlass.range_constexpr(2):",
        *(f"                {line}" for line in inner),
    ]


def _mask(plan: AttentionPlan) -> list[str]:
    """Return the function that hides the keys out of range, and those that a query does not see.

    A word has a bit for each of a row's next scores. So a score takes a selection, and a part of a move to predicates.
    """
    hidden = NEGATIVE_INFINITY if plan.problem.softmax else "cutlass.Float32(0.0)"
    lines = [
        f"def mask({', '.join(_mask_arguments(plan))}):",
        "    for row in range(2):",
        *(f"        {line}" for line in seen_lines(plan, "first_query + 8 * row", "[row]")),
    ]
    lines += _masked_pairs(plan, hidden) if plan.takes_quads else _masked_words(plan, hidden)
    return lines


def seen_lines(plan: AttentionPlan, query: str, row: str = "") -> list[str]:
    """Return the definitions of the last key, and of the first one, that a query sees, from the first key of the block. ``row`` is
    the index of its bounds."""
    band, loaded = plan.problem.band, spans.bounds_of(plan)
    query = band.query(query)
    keys = f"{spans.plus_origin(plan)}limit" if plan.is_limited else text_of(plan.problem.keys)
    lines = [f"last = {numbers.less(keys, 1)} - first_key"]
    if band.last is not None:
        lines.append(f"last = cutlass.min(last, {band.last_of(query)} - first_key)")
    if "ends" in loaded:
        lines.append(f"last = cutlass.min(last, row_ends{row} - 1 - first_key)")
    if band.has_first:
        lines.append(f"first = {band.first_of(query)} - first_key")
    if "begins" in loaded:
        first = f"row_begins{row} - first_key"
        lines.append(f"first = {f'cutlass.max(first, {first})' if band.has_first else first}")
    return lines


def _masked_words(plan: AttentionPlan, hidden: str) -> list[str]:
    """Return the selections of a row's scores by the bits of words; scores are of two in each eight keys."""
    counts = {"last": "last", "first": "(first - 1)"} if plan.problem.has_first else {"last": "last"}
    lines = [
        f"        below_{name} = ({bound} >> 3) * 2 + cutlass.min(({bound} & 7) + 1, 2)"
        for name, bound in counts.items()
    ]
    lines.append(f"        for word in range({-(-plan.keys // 4 // WORD)}):")
    for name in counts:
        lines.append(f"            {name}_bits = cutlass.min(cutlass.max(below_{name} - {WORD} * word, 0), {WORD})")
    lines.append("            bits = (cutlass.Int32(1) << last_bits) - 1")
    if plan.problem.has_first:
        lines.append("            bits = bits & (cutlass.Int32(-1) << first_bits)")
    return [
        *lines,
        f"            for e in range(min({WORD}, {plan.keys // 4} - {WORD} * word)):",
        f"                at = {2 * WORD} * word + e // 2 * 4 + 2 * row + e % 2",
        f"                scores[at] = cutlass.select_((bits & (1 << e)) != 0, scores[at], {hidden})",
    ]


def _masked_pairs(plan: AttentionPlan, hidden: str) -> list[str]:
    """Return the selections of a row's scores by the distances of their keys."""
    lines = [
        f"        for column in range({plan.keys // 8}):",
        "            for i in range(2):",
        "                at = 4 * column + 2 * row + i",
        f"                scores[at] = cutlass.select_(last >= {key_distance(plan)}, scores[at], {hidden})",
    ]
    if plan.problem.has_first:
        lines.append(
            f"                scores[at] = cutlass.select_(first <= {key_distance(plan)}, scores[at], {hidden})"
        )
    return lines


def exp2_function() -> list[str]:
    """Return the function of powers of two, in one instruction."""
    return ["def exp2(x):", "    return cute.math.exp2(x, approx=True, ftz=True)"]


def _weight(plan: AttentionPlan, score: str, of_row: str) -> str:
    """Return the weight of a score, given what exponents of its row subtract or add."""
    problem = plan.problem
    unit = problem.unit * problem.scale
    if problem.has_large_scores:
        return f"exp2(({score} - {of_row}) * {unit!r}{f' + {problem.lift!r}' if problem.lift else ''})"
    return f"exp2(cute.math.fma({score}, cutlass.Float32({unit!r}), {of_row}))"


def _chains(plan: AttentionPlan) -> list[list[str]]:
    """Return the functions of maxima and of sums over a thread's scores but the first four: loops that are traced once."""
    found = []
    weight = _weight(plan, "scores[4 * column + i]", "(second if i // 2 else first)")
    stored = ("scores[4 * column + i] = weight", "chains[i] = chains[i] + weight")
    for name, given, *lines in (
        ("raise_chains", "", "chains[i] = cute.arch.fmax(chains[i], scores[4 * column + i])"),
        ("add_exponentials", ", first, second", f"weight = {weight}", *stored),
    ):
        loops = (f"    for column in {unrolled(1, plan.keys // 8)}:", "        for i in cutlass.range_constexpr(4):")
        body = (f"            {line}" for line in lines)
        found.append(["@cute.jit", f"def {name}(scores, chains{given}):", *loops, *body])
    return found


def _softmax(plan: AttentionPlan) -> list[list[str]]:
    """Return the functions from scores to weights. Maxima and sums of both rows are in two chains each.

    A row that has seen no key has a maximum of minus infinity, for which exponents are not subtracted (``guarded``).
    """
    problem = plan.problem
    unit = problem.unit * problem.scale
    of_row = "bases" if problem.has_large_scores else "shifts"
    found = [
        f"def softmax({', '.join(_REGISTERS + _peaks(plan))}, first, guarded):",
        "    chains = cute.make_rmem_tensor(4, cutlass.Float32)",
        "    for i in range(4):",
        "        chains[i] = scores[i]",
        "    raise_chains(scores, chains)",
        "    best = [cute.arch.fmax(chains[0], chains[1]), cute.arch.fmax(chains[2], chains[3])]",
        "    for offset in (1, 2):",
        "        others = [cute.arch.shuffle_sync_bfly(each, offset=offset) for each in best]",
        "        best = [cute.arch.fmax(each, other) for each, other in zip(best, others)]",
        f"    {of_row}, scales = [], [None, None]",
        "    moved = cutlass.Boolean(False)",
        "    for row in range(2):",
        "        raised = best[row]",
        *(f"        {line}" for line in floored(problem)),
        *(
            ["        peaks[row] = raised if first else cute.arch.fmax(peaks[row], raised)"]
            if plan.restores_maxima
            else []
        ),
        "        if not first:",
        "            former = highest[row]",
        *_raised(plan, unit),
        *(_bases if problem.has_large_scores else _shifts)(unit, problem.lift),
        "            factors[row] = scales[row]",
        "        highest[row] = raised",
        *(
            ["    if not first:", "        factors[2] = cutlass.Float32(cutlass.select_(moved, 1.0, 0.0))"]
            if plan.lazy
            else []
        ),
        "    for i in range(4):",
        "        row = i // 2",
        f"        weight = {_weight(plan, 'scores[i]', f'{of_row}[row]')}",
        "        scores[i] = weight",
        "        chains[i] = weight if first or i % 2 else cute.math.fma(total[row], scales[row], weight)",
        f"    add_exponentials(scores, chains, {of_row}[0], {of_row}[1])",
        "    for row in range(2):",
        "        total[row] = chains[2 * row] + chains[2 * row + 1]",
    ]
    return [*_chains(plan), found]


def floored(problem: AttentionProblem) -> list[str]:
    """Return the lines that raise the maximum of the first block to the initial one, where scores may be below it."""
    if problem.floor is None:
        return []
    return ["if first:", f"    raised = cute.arch.fmax(raised, cutlass.Float32({problem.floor!r}))"]


def _shifts(unit: float, lift: float) -> list[str]:
    """Return the lines that multiply a row's maximum once, for exponents by one multiply-add, and scale the former sums."""
    return [
        f"        shift = raised * {unit!r}",
        "        if guarded:",
        f"            shift = cutlass.select_(raised == {NEGATIVE_INFINITY}, cutlass.Float32(0.0), shift)",
        f"        shifts.append({f'{lift!r} - shift' if lift else '-shift'})",
        "        if not first:",
        f"            scales[row] = exp2(cute.math.fma(former, cutlass.Float32({unit!r}), -shift))",
    ]


def _bases(unit: float, lift: float) -> list[str]:
    """Return the lines that keep a row's maximum, which exponents subtract exactly, and scale the former sums."""
    return [
        "        base = raised",
        "        if guarded:",
        f"            base = cutlass.select_(raised == {NEGATIVE_INFINITY}, cutlass.Float32(0.0), raised)",
        "        bases.append(base)",
        "        if not first:",
        f"            scales[row] = exp2((former - base) * {unit!r})",
    ]


def _add_weights(plan: AttentionPlan) -> list[str]:
    """Return the function that adds weights to the sums of both rows, in two chains each."""
    return [
        "def add_weights(scores, total, first):",
        "    sums = [scores[e] for e in range(4)]",
        f"    for e in range(4, {plan.keys // 2}):",
        "        sums[e % 4] = sums[e % 4] + scores[e]",
        "    for row in range(2):",
        "        added = sums[2 * row] + sums[2 * row + 1]",
        "        total[row] = added if first else total[row] + added",
    ]


def _add_product(plan: AttentionPlan) -> list[str]:
    """Return the function that adds the product of a block, which is rounded in pairs if the program rounds it."""
    values = plan.output_columns // 2
    if not plan.problem.rounded:
        return [
            "def add_product(output, product):",
            f"    for e in range({values}):",
            "        output[e] = output[e] + product[e]",
        ]
    added = (f"        {line}" for line in add_rounded("product", "output", plan.problem.rounded))
    return ["def add_product(output, product):", f"    for e in range(0, {values}, 2):", *added]


def _raised(plan: AttentionPlan, unit: float) -> list[str]:
    """Return the lines that raise a row's maximum: always, or where it grows by more than ``LAZY``."""
    if not plan.lazy:
        return ["            raised = cute.arch.fmax(raised, former)"]
    return [
        f"            far = (raised - former) * {unit!r} > {LAZY!r}",
        "            if guarded:",
        f"                far = far | (former == {NEGATIVE_INFINITY})",
        "            raised = cutlass.select_(far, cute.arch.fmax(raised, former), former)",
        "            moved = moved | far",
    ]


def _rescale(plan: AttentionPlan) -> list[list[str]]:
    """Return the function that multiplies the accumulator, as one vector, by the factors of its rows."""
    factors = f"cute.make_layout(((2, 2, {plan.output_columns // 8}), 1, 1), stride=((0, 1, 0), 0, 0))"
    lines = [
        f"    of_rows = cute.make_tensor(factors.iterator, {factors})",
        "    output.store(output.load() * of_rows.load())",
    ]
    if not plan.lazy:
        return [["def rescale(output, factors):", *lines]]
    condition = "    if cute.arch.vote_any_sync(factors[2] > 0.0):"
    return [["@cute.jit", "def rescale(output, factors):", condition, *(f"    {line}" for line in lines)]]


def _round(plan: AttentionPlan) -> list[str]:
    """Return the function that rounds weights. It names the instruction: LLVM moves a conversion that it knows past the
    phi of the loop, which then carries weights in fp32, in twice the registers."""
    if plan.takes_quads:
        return _round_quads(plan)
    name = "bf16x2" if plan.problem.q.dtype == "bfloat16" else "f16x2"
    return [
        "@cute.jit",
        "def round_weights(scores, rounded):",
        "    packed = cute.recast_tensor(rounded, cutlass.Int32)",
        f"    for e in {unrolled(plan.keys // 4)}:",
        "        packed[e] = cute.arch.inline_ptx(",
        f'            "cvt.rn.{name}.f32 {{$w0}}, {{$r0}}, {{$r1}};",',
        "            write_only_types=[cutlass.Int32],",
        "            read_only_args=[scores[2 * e + 1], scores[2 * e]],",
        "        )",
    ]


def _round_quads(plan: AttentionPlan) -> list[str]:
    """Return the same for weights of 8 bits, of which a register holds four consecutive keys of a row.

    The first two are in the first half of the columns, the others in the second half. The conversion saturates.
    """
    blocks = plan.keys // 16
    return [
        "def round_weights(scores, rounded):",
        "    packed = cute.recast_tensor(rounded, cutlass.Int32)",
        f"    for block in range({blocks}):",
        "        for row in range(2):",
        f"            low, high = 4 * block + 2 * row, 4 * (block + {blocks}) + 2 * row",
        f"            packed[2 * block + row] = {packed_quad(['scores[low]', 'scores[low + 1]', 'scores[high]', 'scores[high + 1]'])}",
    ]


def packed_quad(values: Sequence[str]) -> str:
    """Return the word of four numbers that are rounded to e4m3, the first in its lowest bits."""
    text = (
        "{ .reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, {$r1}, {$r0};"
        " cvt.rn.satfinite.e4m3x2.f32 h, {$r3}, {$r2}; mov.b32 {$w0}, {l, h}; }"
    )
    return f'cute.arch.inline_ptx("{text}", write_only_types=[cutlass.Int32], read_only_args=[{", ".join(values)}])'


def _restore(plan: AttentionPlan) -> list[str]:
    unit = plan.problem.unit * plan.problem.scale
    return [
        "def restore_maxima(output, highest, total, peaks):",
        "    scales = []",
        "    for row in range(2):",
        f"        scale = exp2((highest[row] - peaks[row]) * {unit!r})",
        f"        scale = cutlass.select_(peaks[row] == {NEGATIVE_INFINITY}, cutlass.Float32(1.0), scale)",
        "        total[row] = total[row] * scale",
        "        highest[row] = peaks[row]",
        "        scales.append(scale)",
        f"    for e in range({plan.output_columns // 2}):",
        "        output[e] = output[e] * scales[e // 2 % 2]",
    ]


def _join() -> list[str]:
    return [
        "def join_totals(total):",
        "    for row in range(2):",
        "        for offset in (1, 2):",
        "            total[row] = total[row] + cute.arch.shuffle_sync_bfly(total[row], offset=offset)",
    ]
