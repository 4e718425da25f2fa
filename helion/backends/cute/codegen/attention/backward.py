"""The functions of attention's gradients in a generated module: MMAs, left operands from both products, and outputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from ...plan.attention.backward import BackwardPlan
from ...plan.attention.gradients import PRODUCTS, STREAMED
from ...plan.attention.numbers import is_known, text_of
from ...plan.attention.operands import Source
from ...plan.attention.records import Formula, ScorePlan
from ..setups import dsl
from ..writer import unrolled
from . import numbers, spans, vectors
from .atomic import atomic_functions, atomic_registers, exchanged_gradient, staged_view
from .formula import arguments_of, computed, head_axes, inverses, quotients, read
from .softmax import exp2_function, has_masks


def backward_functions(plan: BackwardPlan) -> list[list[str]]:
    """Return the functions of a block and of a tile's end, as the DSL traces them: loops over elements are unrolled."""
    functions = [*_mmas(plan), exp2_function(), pack_function(plan), *([PACK_OWNED] if _masks_rows(plan) else [])]
    if has_masks(plan):
        functions += [seen_function(plan), *(_bits_functions(plan) if plan.clears_rows else [])]
    functions += [BIT_OF] if plan.problem.drawn else []
    functions += vectors.vector_functions(plan, plan.problem.formula, loaded_ahead(plan))
    functions += vectors.write_functions(plan)
    functions += [_values(plan, late, only) for late, only in values_of_passes(plan)]
    functions += atomic_functions(plan)
    return [*functions, *(_finish(plan, at) for at in range(len(plan.problem.gradients)))]


def _mmas(plan: BackwardPlan) -> list[list[str]]:
    """Return the functions of MMAs. Atoms are made where they are used, so that loops carry no flag of theirs."""
    problem, dtype = plan.problem, dsl(plan.problem.owned[0].dtype)
    mma = f"hopper.make_trivial_tiled_mma({dtype}, {dtype}, OperandMajorMode.K"
    found = [
        [
            "def product_mma():",
            f"    return {mma}, OperandMajorMode.K, cutlass.Float32, (1, 1, 1), (64, {plan.keys}))",
        ]
    ]
    for at, gradient in enumerate(problem.gradients):
        columns = problem.streamed[gradient.right].columns
        found.append(
            [
                f"def gradient_mma_{at}():",
                f"    return {mma}, OperandMajorMode.MN, cutlass.Float32, (1, 1, 1), (64, {columns}), warpgroup.OperandSource.RMEM)",
            ]
        )
    found.append(
        [
            "def multiply(mma, accumulator, left, right, steps, first):",
            "    for step in range(steps):",
            "        mma.set(warpgroup.Field.ACCUMULATE, step > 0 or not first)",
            "        cute.gemm(mma, accumulator, left[None, None, step], right[None, None, step], accumulator)",
        ]
    )
    return found


def pack_function(plan: BackwardPlan) -> list[str]:
    """Return the function that rounds two numbers by a named instruction, which LLVM does not move."""
    name = "bf16x2" if plan.problem.owned[0].dtype == "bfloat16" else "f16x2"
    return [
        "def pack(low, high):",
        "    return cute.arch.inline_ptx(",
        f'        "cvt.rn.{name}.f32 {{$w0}}, {{$r0}}, {{$r1}};",',
        "        write_only_types=[cutlass.Int32],",
        "        read_only_args=[high, low],",
        "    )",
    ]


PACK_OWNED = [
    "def pack_owned(owned, low, high):",
    "    return cutlass.select_(owned, pack(low, high), cutlass.Int32(0))",
]
"""The function that rounds two numbers of a row, or returns zeros for a row past the end."""


def seen_function(plan: BackwardPlan) -> list[str]:
    """Return the function of the first and last element of a block that a row sees, less the first of the thread."""
    band = plan.problem.band
    last, first = f"{numbers.less(text_of(plan.problem.keys), 1)} - first_key", "cutlass.Int32(0)"
    if band.last is not None:
        last = f"cutlass.min({last}, query + {text_of(band.last)} - first_key)"
    if band.first is not None:
        first = f"query + {text_of(band.first)} - first_key"
    loaded = spans.bounds_of(plan)
    if "ends" in loaded:
        last = f"cutlass.min({last}, ends - 1 - first_key)"
    if "begins" in loaded:
        first = f"cutlass.max({first}, begins - first_key)"
    return [f"def seen({with_sizes(plan, 'query', 'first_key', *loaded)}):", f"    return {first}, {last}"]


def seen_arguments(plan: BackwardPlan) -> list[str]:
    """Return the names that the function of a block's seen elements takes, in the kernel as in the function."""
    return ["seen_bits", "first_query", "first_key", *spans.row_names(plan), *numbers.parameters(plan)]


def _bits_functions(plan: BackwardPlan) -> list[list[str]]:
    """Return the functions of the elements of a block that a thread's two rows see, as the bits of a word each: registers do
    not hold the first and the last one of both as well."""
    loaded = [f"{name}[row]" for name in spans.row_names(plan)]
    return [
        [
            "def elements_to(last):",
            f"    last = cutlass.max(cutlass.min(last, {plan.keys - 1}), -1)",
            "    return 2 * (last >> 3) + cutlass.min((last & 7) + 1, 2)",
        ],
        [
            f"def keep_seen({', '.join(seen_arguments(plan))}):",
            "    for row in range(2):",
            f"        first, last = seen({with_sizes(plan, 'first_query + 8 * row', 'first_key', *loaded)})",
            "        after = cutlass.Int32(1) << elements_to(last)",
            "        before = cutlass.Int32(1) << elements_to(first - 1)",
            f"        owned = first_query + 8 * row < {text_of(plan.problem.queries)}",
            "        seen_bits[row] = cutlass.select_(owned, (after - 1) & (0 - before), cutlass.Int32(0))",
        ],
    ]


def with_sizes(plan: BackwardPlan, *given: str) -> str:
    """Return arguments, and the sizes that only launches know."""
    return ", ".join([*given, *numbers.parameters(plan)])


FAST: dict[str, Callable[..., str]] = {
    "exp2": lambda x: f"exp2({x})",
    "exp": lambda x: f"exp2(({x}) * {math.log2(math.e)!r})",
}
"""Exponentials in one instruction, which gives 0 for results below the normal numbers."""


def fast(formula: Formula) -> dict[str, Callable[..., str]]:
    """Return the spelling of exponentials and quotients in few instructions, without branches."""
    return {**FAST, **quotients(formula)}


# Left operands ---------------------------------------------------------------------------------------------------------


def values_name(late: bool, only: int | None = None) -> str:
    """Return the name of the function of a block's values, before or after its second product; ``only`` is the one gradient
    of the pass."""
    return ("differences" if late else "weights") + ("" if only is None else f"_{only}")


def values_of_passes(plan: BackwardPlan) -> list[tuple[bool, int | None]]:
    """Return the functions of a block's values: whether after its second product, and the one gradient of the pass."""
    problem = plan.problem
    if len(problem.passes) == 1:
        return [(False, None), (True, None)]
    return [(late, only) for (only,) in problem.passes for late in (False, True) if not late or _is_late(plan, only)]


def _is_late(plan: BackwardPlan, gradient: int) -> bool:
    return plan.problem.late[plan.problem.gradients[gradient].left]


def lefts(plan: BackwardPlan, late: bool, only: int | None) -> list[int]:
    """Return the gradients whose left operands are computed before, or after, the second product."""
    gradients = range(len(plan.problem.gradients)) if only is None else (only,)
    return [at for at in gradients if _is_late(plan, at) == late]


def _held(plan: BackwardPlan, only: int | None) -> tuple[int, ...]:
    """Return the values that are held between the products of a block."""
    return plan.problem.held if only is None or _is_late(plan, only) else ()


WORD_BITS = 32
BIT_OF = [
    "def bit_of(element):",
    f"    place = element % {WORD_BITS}",
    f"    return cutlass.Int32((1 << place) - (1 << {WORD_BITS} if place == {WORD_BITS - 1} else 0))",
]
"""The function of an element's bit in its word, as a signed number."""


def drawn_words(plan: BackwardPlan) -> int:
    """Return the words with a bit for each of a thread's elements of a block."""
    return -(-plan.keys // 2 // WORD_BITS)


def values_arguments(plan: BackwardPlan, late: bool, only: int | None) -> list[str]:
    """Return the names that the function of a block's values takes, in the kernel as in the function."""
    held = [f"held_{value}" for value in _held(plan, only)] + [f"drawn_{value}" for value in plan.problem.drawn]
    products = [f"product_{at}" for at in range(PRODUCTS if late else 1)]
    written = [f"left_{at}" for at in lefts(plan, late, only)]
    bounds = ["seen_bits"] if plan.clears_rows else spans.row_names(plan)
    positions = ["first_query", "first_key", *bounds, "lane", *head_axes(plan.problem)]
    staged = [f"staged_{source.label}" for source in plan.staged[STREAMED[late]]]
    targets = [f"vector_{each.target.label}" for each in vectors.written(plan, late)]
    ahead = [f"{source.label}_ahead" for source in (() if late else loaded_ahead(plan))]
    given = [*products, *held, *written, *positions, *arguments_of(plan.problem.formula), *staged, *targets, *ahead]
    return [*given, *numbers.parameters(plan)]


def _values(plan: BackwardPlan, late: bool, only: int | None) -> list[str]:
    """Return the function that computes held values and left operands from one product, or from both.

    It takes the elements of a thread in pairs, which are rounded together. Left operands of elements that a row does not
    see, and of those past the end, are 0.
    """
    formula, needed = plan.problem.formula, _needed(plan, late, only)
    read_sources = [each for at, each in enumerate(formula.sources) if formula.starts + at in needed]
    once = _is_traced_once(plan, late, read_sources)
    given, written = [*values_arguments(plan, late, only), "stage", "masked"], lefts(plan, late, only)
    lines = ["@cute.jit"] if once else []
    lines.append(f"def {values_name(late, only)}({', '.join(given)}):")
    pair = "cutlass.range_constexpr(2)" if once else "range(2)"
    lines += [f"    packed_{at} = cute.recast_tensor(left_{at}, cutlass.Int32)" for at in written]
    if has_masks(plan) and not plan.clears_rows:
        loaded = [f"{name}[row]" for name in spans.row_names(plan)]
        seen = f"seen({with_sizes(plan, 'first_query + 8 * row', 'first_key', *loaded)})"
        lines.append(f"    limits = [{seen} if masked else (0, 0) for row in range(2)]")
    if _masks_rows(plan) and exchanged_gradient(plan) in written:
        lines.append(f"    owned = [first_query + 8 * row < {text_of(plan.problem.queries)} for row in range(2)]")
    stored = vectors.written(plan, late)
    for each in stored:
        column, axes = vectors.first_column(plan, each), head_axes(plan.problem)
        found = vectors.addresses(plan, each.target, column, text_of(plan.problem.keys), axes)
        found += [vectors.vector_words(each)] if vectors.in_vectors(plan, each) else []
        lines += [f"    {line}" for line in found]
    for value in () if late else plan.problem.drawn:
        lines += [f"    for word in range({drawn_words(plan)}):", f"        drawn_{value}[word] = cutlass.Int32(0)"]
    lines += [f"    {line}" for line in _reads(plan, read_sources, ("query", "head", "number"), ())]
    lines += [f"    {line}" for line in inverses(formula, read_sources)]
    columns = plan.keys // 8
    lines.append(f"    for column in {unrolled(columns) if once else f'range({columns})'}:")
    lines += [f"        {line}" for line in _reads(plan, read_sources, ("key",), plan.staged[STREAMED[late]])]
    for source in read_sources:
        lines += [f"        {line}" for line in _vectors(plan, source)]
    lines += [f"        for row in {pair}:", *(f"            pair_{at} = []" for at in written)]
    lines += [f"            {each.target.name}_pair = []" for each in stored]
    lines += [
        f"            for i in {pair}:",
        *(f"                {line}" for line in _element(plan, late, only, needed)),
    ]
    for at in written:
        zeroed = _masks_rows(plan) and at == exchanged_gradient(plan)
        text = f"pack_owned(owned[row], *pair_{at})" if zeroed else f"pack(*pair_{at})"
        lines.append(f"            packed_{at}[2 * column + row] = {text}")
    for each in stored:
        call = [vectors.write(each.target, f"*{each.target.name}_pair")]
        call = vectors.write_vector(each) if vectors.in_vectors(plan, each) else call
        lines += [f"            {line}" for line in call]
    return lines


def _is_traced_once(plan: BackwardPlan, late: bool, sources: Sequence[Source]) -> bool:
    """Return whether a block's columns are unrolled after the trace, with the same binary (measurement ``traced_gradients``).

    Places of drawn bits and of stored numbers are computed while a column is traced. Masks, and loads from global memory,
    get another order of instructions.
    """
    apart = plan.problem.drawn or vectors.written(plan, late) or has_masks(plan)
    return not apart and set(sources) <= set(plan.staged[STREAMED[late]])


def _needed(plan: BackwardPlan, late: bool, only: int | None) -> list[int]:
    """Return the values that the function computes or reads, in order. Held values are computed once."""
    problem = plan.problem
    wanted = [problem.gradients[at].left for at in lefts(plan, late, only)]
    wanted += [each.value for each in vectors.written(plan, late)]
    known = {*problem.held, *problem.drawn} if late else ()
    return sorted(problem.formula.read_by([*wanted, *(() if late else _held(plan, only))], known))


def _vectors(plan: BackwardPlan, source: Source) -> list[str]:
    """Return the loads of a source with a number for each owned and streamed row, where several are loaded at once."""
    if source in loaded_ahead(plan):
        return vectors.exchange(plan, source)
    return vectors.loads(plan, source, head_axes(plan.problem)) if vectors.width_of(plan, source) > 1 else []


@functools.lru_cache(maxsize=64)
def loaded_ahead(plan: BackwardPlan) -> tuple[Source, ...]:
    """Return the sources with a number for each owned and streamed row that are loaded while the first product is computed: those
    that the second one is not needed for, where the loop stores numbers. Registers are kept for these."""
    problem, formula = plan.problem, plan.problem.formula
    if not problem.loop_outputs or values_of_passes(plan)[0][1] is not None:
        return ()
    early, late = (set(_needed(plan, each, None)) for each in (False, True))
    numbered = [(formula.starts + at, source) for at, source in enumerate(formula.sources)]
    return tuple(
        source
        for at, source in numbered
        if at in early - late and source.kind == "exact" and vectors.width_of(plan, source) > 1
    )


def _reads(
    plan: BackwardPlan, sources: Sequence[Source], kinds: tuple[str, ...], staged: tuple[Source, ...]
) -> list[str]:
    """Return the reads of sources of some kinds: lists by row or by element of a pair, or single values. Those of
    ``staged`` are in shared memory."""
    lines = []
    for source in plan.problem.formula.sources:
        if source not in sources or source.kind not in kinds:
            continue
        if source in staged:
            lines.append(f"{source.label}_values = staged_{source.label}[None, lane % 4, column, stage].load()")
            continue
        positions = {"query": ("first_query + 8 * row", "0"), "key": ("0", "first_key + 8 * column + i")}
        query, key = positions.get(source.kind, ("0", "0"))
        text = read(plan, source, head_axes(plan.problem), query, key, plan.problem.keys)
        index = {"query": "row", "key": "i"}.get(source.kind)
        lines.append(
            f"{source.label}_value = {text}"
            if index is None
            else f"{source.label}_values = [{text} for {index} in range(2)]"
        )
    return lines


def _names(plan: BackwardPlan, late: bool, value: int) -> str:
    """Return the name of a value of an element."""
    formula = plan.problem.formula
    if value < formula.starts:
        return f"x{value}"
    if value < formula.computed:
        source = formula.sources[value - formula.starts]
        index = {"query": "s[row]", "key": "s[i]"}.get(source.kind, "")
        return f"{source.label}_value{index}"
    return f"held_{value}[e]" if late and value in plan.problem.held else f"y{value}"


def _element(plan: BackwardPlan, late: bool, only: int | None, needed: list[int]) -> list[str]:
    """Return the lines of one element."""
    problem, formula = plan.problem, plan.problem.formula
    lines = [
        "e = 4 * column + 2 * row + i",
        "query, key = first_query + 8 * row, first_key + 8 * column + i",
        *(f"x{at} = product_{at}[e]" for at in range(PRODUCTS) if at in needed),
    ]
    for value in needed:
        if formula.starts <= value < formula.computed:
            source = formula.sources[value - formula.starts]
            if source.kind == "exact":
                text = read(plan, source, head_axes(problem), "query", "key", problem.keys)
                text = vectors.element(plan, source) if vectors.width_of(plan, source) > 1 else text
                lines.append(f"{source.label}_value = {text}")
        elif late and value in problem.drawn:
            bit = f"(drawn_{value}[e // {WORD_BITS}] >> (e % {WORD_BITS})) & 1 == 1"
            lines.append(f"y{value} = cutlass.select_({bit}, cutlass.Float32(1.0), cutlass.Float32(0.0))")
        elif value >= formula.computed and not (late and value in problem.held):
            text = computed(formula, value, lambda each: _names(plan, late, each), ("query", "key"), fast(formula))
            lines.append(f"y{value} = {text}")
            if value in problem.drawn:
                word = f"drawn_{value}[e // {WORD_BITS}]"
                lines.append(f"{word} = {word} | cutlass.select_(y{value} != 0.0, bit_of(e), cutlass.Int32(0))")
    lines += [] if late else [f"held_{value}[e] = y{value}" for value in _held(plan, only)]
    for each in vectors.written(plan, late):
        lines.append(f"{each.target.name}_pair.append({_names(plan, late, each.value)})")
    for at in lefts(plan, late, only):
        name = _names(plan, late, problem.gradients[at].left)
        if has_masks(plan):
            inside = "(limits[row][0] <= 8 * column + i) & (limits[row][1] >= 8 * column + i)"
            if plan.clears_rows:
                inside = "(seen_bits[row] >> (2 * column + i)) & 1 == 1"
            lines += [
                f"left = {name}",
                "if masked:",
                f"    inside = {inside}",
                "    left = cutlass.select_(inside, left, cutlass.Float32(0.0))",
            ]
            name = "left"
        lines.append(f"pair_{at}.append({name})")
    return lines


def _masks_rows(plan: BackwardPlan) -> bool:
    """Return whether left operands of the gradient of streamed rows have to be 0 for owned rows past the end. It adds over
    these, and their weights may be infinite. Other gradients of them are not stored."""
    queries = plan.problem.queries
    hidden = plan.problem.atomic is None or plan.clears_rows  # those of masked blocks are not seen
    return not hidden and (not is_known(queries) or queries % plan.rows != 0)


# Outputs ---------------------------------------------------------------------------------------------------------------


def finish_arguments(plan: BackwardPlan, at: int) -> list[str]:
    """Return the names that the function of output number ``at`` takes, in the kernel as in the function."""
    positions = ["first_query", "lane", *head_axes(plan.problem)]
    gradient = plan.problem.gradients[at]
    target = f"rounded_{at}" if gradient.wide is None else f"vector_{gradient.wide[0].label}"
    given = [f"gradient_{at}", target, *positions, *arguments_of(gradient.finish)]
    return [*given, *numbers.parameters(plan)]


def _finish(plan: BackwardPlan, at: int) -> list[str]:
    """Return the function that computes an output from its accumulator, and rounds it, or stores what is in fp32."""
    gradient = plan.problem.gradients[at]
    formula, columns = gradient.finish, gradient.output.matrix.columns
    lines = [f"def finish_{at}({', '.join(finish_arguments(plan, at))}):"]
    if formula.instructions:
        lines += [
            f"    for e in range({columns // 2}):",
            "        query = first_query + e // 2 % 2 * 8",
            "        column = lane % 4 * 2 + e // 4 * 8 + e % 2",
            f"        x0 = gradient_{at}[e]",
        ]
        lines += [f"        {line}" for line in finished(plan, formula, columns, f"gradient_{at}[e]")]
    if gradient.wide is None:
        return [*lines, f"    rounded_{at}.store(gradient_{at}.load().to({dsl(gradient.output.dtype)}))"]
    source, columns = gradient.wide
    found = vectors.addresses(plan, source, "lane % 4 * 2", str(columns), head_axes(plan.problem))
    pair = f"gradient_{at}[4 * column + 2 * row], gradient_{at}[4 * column + 2 * row + 1]"
    lines += [f"    {line}" for line in found]
    lines += [f"    for column in range({columns // 8}):", "        for row in range(2):"]
    return [*lines, f"            {vectors.write(source, pair)}"]


def finished(plan: ScorePlan, formula: Formula, columns: int, element: str) -> list[str]:
    """Return the lines from ``x0``, an element of a gradient in ``query`` and ``column``, to that of its output."""

    def name(value: int) -> str:
        if value < formula.starts:
            return "x0"
        return f"{formula.sources[value - formula.starts].label}_value" if value < formula.computed else f"y{value}"

    axes = head_axes(plan.problem)
    lines = [f"{each.label}_value = {read(plan, each, axes, 'query', 'column', columns)}" for each in formula.sources]
    for value in range(formula.computed, formula.computed + len(formula.instructions)):
        lines.append(f"y{value} = {computed(formula, value, name, ('query', 'column'))}")
    return [*lines, f"{element} = {name(formula.value)}"]


# Set-up ----------------------------------------------------------------------------------------------------------------


def registers(plan: BackwardPlan) -> list[str]:
    """Return the registers and views of a consumer thread.

    Streamed blocks are operand B of both kinds of products. The gradients' own see them transposed: dimensions of a head as
    columns, rows as K. Both views have the same swizzle and addresses.
    """
    problem, dtype = plan.problem, dsl(plan.problem.owned[0].dtype)
    lines = [
        "consumer_thread = thread - 128",
        "group = cute.arch.make_warp_uniform(consumer_thread // 128)",
        "group_thread = consumer_thread % 128",
        "group_warp = cute.arch.make_warp_uniform(group_thread // 32)",
        "part_of_product = product_mma().get_slice(0)",
        *spans.registers(plan),
        *(["seen_bits = cute.make_rmem_tensor(2, cutlass.Int32)"] if plan.clears_rows else []),
    ]
    for at, name in enumerate(STREAMED):
        lines += [
            f"product_{at} = cute.make_rmem_tensor(product_mma().partition_shape_C((64, {plan.keys})), cutlass.Float32)",
            f"fragment_own_{at} = product_mma().make_fragment_A(part_of_product.partition_A(shared_own_{at}))",
            f"fragment_{name} = product_mma().make_fragment_B(part_of_product.partition_B(shared_{name}))",
        ]
    lines += [f"held_{value} = cute.make_rmem_tensor({plan.keys // 2}, cutlass.Float32)" for value in problem.held]
    lines += [f"drawn_{value} = cute.make_rmem_tensor({drawn_words(plan)}, cutlass.Int32)" for value in problem.drawn]
    lines += [vectors.ahead_registers(plan, source) for source in loaded_ahead(plan)]
    for source in (source for sources in plan.staged.values() for source in sources):
        lines += [] if plan.moves_vectors else [staged_view(plan, source)]
    for at, gradient in enumerate(problem.gradients):
        name, columns = STREAMED[gradient.right], problem.streamed[gradient.right].columns
        shape = f"(64, {columns}, {plan.keys}), {dtype}, {plan.stages}"
        lines += [
            f"transposed_{at} = hopper.make_smem_layout_b(LayoutEnum.COL_MAJOR, {shape})",
            f"transposed_{at} = cute.make_tensor(shared_{name}.iterator, transposed_{at}.outer)",
            f"mma_{at} = gradient_mma_{at}()",
            f"right_{at} = mma_{at}.make_fragment_B(mma_{at}.get_slice(0).partition_B(transposed_{at}))",
            f"gradient_{at} = cute.make_rmem_tensor(mma_{at}.partition_shape_C((64, {columns})), cutlass.Float32)",
            f"left_{at} = cute.make_rmem_tensor(product_0.shape, {dtype})",
            f"operand_{at} = cute.make_tensor(left_{at}.iterator, cute.make_layout(((2, 2, 2), 1, {plan.keys // 16})))",
        ]
        lines += (
            []
            if gradient.wide is not None
            else [
                f"rounded_{at} = cute.make_rmem_tensor(gradient_{at}.shape, {dtype})",
                f"stage_copy_{at} = cute.make_tiled_copy_C(",
                f"    cute.make_copy_atom(warp_level.StMatrix8x8x16bOp(False, 4), {dtype}), mma_{at}",
                ")",
                f"stage_part_{at} = stage_copy_{at}.get_slice(group_thread).partition_D(shared_own_{problem.output_memory(at)})",
                f"stage_registers_{at} = stage_copy_{at}.retile(rounded_{at})",
            ]
        )
    return [*lines, *atomic_registers(plan)]
