"""Formulas as expressions in fp32, and the reads of their sources."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from ....._support.philox import INCREMENTS, MULTIPLIERS, ROUNDS, UNIFORM
from ...plan.attention.folded import SCALED_TANH, folded, needed
from ...plan.attention.numbers import text_of
from ...plan.attention.operands import GATHER, INTEGERS, RandomNumbers, Source, Table
from ...plan.attention.records import KEY_INDEX, PRODUCT, QUERY_INDEX, Formula, ScorePlan, ScoreProblem
from ...plan.epilogue import COLUMN_NUMBER, ROW_NUMBER, Constant, Instruction
from ..elements.quotients import STEPS, near_quotient, scale_of
from ..epilogue import EXPRESSIONS, SHORT, literal
from . import numbers

Names = Callable[[int], str]


def computed(
    formula: Formula, value: int, names: Names, positions: Sequence[str], own: Mapping[str, Callable[..., str]] = {}
) -> str:
    """Return the expression of instruction number ``value``. ``positions`` are the indices of the query and of the key
    or column, ``own`` operations that are spelled in another way."""
    made = formula.instructions[value - formula.computed]
    if made.op == GATHER:
        index, table = made.arguments
        assert isinstance(table, int)
        return own[GATHER](literal(index) if isinstance(index, Constant) else names(index), names(table))
    if made.op in (QUERY_INDEX, KEY_INDEX):
        return positions[0 if made.op == QUERY_INDEX else 1]
    if made.op in (ROW_NUMBER, COLUMN_NUMBER):
        return f"cutlass.Float32({positions[0 if made.op == ROW_NUMBER else 1]})"
    divisor = made.arguments[-1] if made.op == "div" else None
    if isinstance(divisor, Constant) and float(divisor.text):
        one = made.arguments[0]
        return f"{literal(one) if isinstance(one, Constant) else names(one)} * {1 / float(divisor.text)!r}"
    if _integers(formula)[value] or (made.op in ("eq", "ne", "lt", "le", "gt", "ge") and _compares(formula, made)):
        whole = [str(int(float(each.text))) if isinstance(each, Constant) else names(each) for each in made.arguments]
        return EXPRESSIONS[made.op](*whole)
    if made.op == SCALED_TANH:
        return _tanh(*(each.text if isinstance(each, Constant) else names(each) for each in made.arguments))
    arguments = [literal(each) if isinstance(each, Constant) else names(each) for each in made.arguments]
    return {**EXPRESSIONS, **SHORT, **_ABSOLUTE, **own}[made.op](*arguments)


def score_lines(plan: ScorePlan, formula: Formula, place: str, of_query: str = "_value") -> list[str]:
    """Return the lines that replace the score at a place by what is computed from it. ``of_query`` ends the names of numbers per
    query."""

    def names(value: int) -> str:
        if value == PRODUCT:
            return "x0"
        if value >= formula.computed:
            return f"x{value - formula.computed + 1}"
        source = formula.sources[value - formula.starts]
        suffix = "" if isinstance(source, Table) else of_query if source.kind == "query" else "_value"
        return source.label + suffix

    formula = folded(formula)
    own = {**gathers(plan, formula, head_axes(plan.problem)), **quotients(formula)}
    return [
        f"x0 = scores[{place}]",
        *(f"{names(each)} = {computed(formula, each, names, ('query', 'key'), own)}" for each in needed(formula)),
        f"scores[{place}] = {names(formula.value)}",
    ]


def quotients(formula: Formula) -> dict[str, Callable[..., str]]:
    """Return the spelling of quotients without branches, unless a step may depend on one. ``inverses`` defines the names in it.

    An exact division of the DSL branches for each element (measurement ``long_quotients``).
    """
    if any(made.op in STEPS or made.op == GATHER for made in formula.instructions):
        return {}
    divisors = _number_divisors(formula)

    def quotient(x: str, y: str) -> str:
        return f"({x}) * {y}_scale * {y}_inverse" if y in divisors else near_quotient(x, y)

    return {"div": quotient}


def inverses(formula: Formula, read_sources: Sequence[Source] | None = None) -> list[str]:
    """Return the definitions of what ``quotients`` multiplies by: the reciprocals of numbers that are the same for all scores.

    Only those of ``read_sources`` are defined, if given.
    """
    divisors = _number_divisors(formula) if quotients(formula) else ()
    if read_sources is not None:
        divisors = tuple(each for each in divisors if each in {f"{source.label}_value" for source in read_sources})
    return [
        line
        for each in divisors
        for line in (
            f"{each}_scale = {scale_of(each)}",
            f"{each}_inverse = cutlass.Float32(1.0) / ({each} * {each}_scale)",
        )
    ]


def _number_divisors(formula: Formula) -> tuple[str, ...]:
    """Return the names of the values of numbers that divide scores."""
    given = [made.arguments[1] for made in formula.instructions if made.op == "div"]
    sources = {
        formula.sources[each - formula.starts]
        for each in given
        if isinstance(each, int) and formula.starts <= each < formula.computed
    }
    return tuple(
        f"{source.label}_value"
        for source in formula.sources
        if source in sources and source.kind == "number" and source.dtype not in INTEGERS
    )


def definitions(places: Mapping[str, str], lines: Sequence[str]) -> list[str]:
    """Return the definitions of those ``places``, by name, that lines read: others would be traced for each element."""
    read = {word for line in lines for word in re.findall(r"\w+", line)}
    return [f"{name} = {place}" for name, place in places.items() if name in read]


def _tanh(x: str, inner: str = "1.0", outer: str = "1.0") -> str:
    """Return the tanh of ``inner`` times a number, times ``outer``: 1 - 2 / (1 + e^2x), whose error of 1e-7 is absolute. So
    is that which matters for a score."""
    exponent, factor = 2 / math.log(2) * float(inner), float(outer)
    power = f"cute.math.exp2({x} * {exponent!r}, fastmath=True)"
    return f"{factor!r} - {2 * factor!r} * cute.arch.rcp_approx(1.0 + {power})"


_ABSOLUTE: Mapping[str, Callable[..., str]] = {
    "tanh": _tanh,
    # one instruction, which gives 0 for results below the normal numbers, where the exact one scales each element
    "exp2": lambda x: f"cute.math.exp2({x}, fastmath=True)",
}


def head_axes(problem: ScoreProblem) -> tuple[str, ...]:
    """Return the names of the coordinates of a head."""
    return tuple(f"head_{at}" for at in range(len(problem.coordinates)))


def read(plan: ScorePlan, source: Source, axes: Sequence[str], query: str, key: str, columns: int) -> str:
    """Return the read of a source. Indices past the end, whose results are not used, read the last element."""
    if isinstance(source, RandomNumbers):
        return _uniform(plan, source, axes, query, key)
    if source.kind == "number":
        return source.label
    places = ["0", "0", *(mode.at.text(tuple(axes)) for mode in source.modes)]
    if source.kind in ("exact", "query"):
        places[0] = f"cutlass.min({query}, {numbers.less(text_of(plan.problem.queries), 1)})"
    if source.kind in ("exact", "key"):
        places[1] = f"cutlass.min({key}, {numbers.less(text_of(columns), 1)})"
    kept = source.dtype in INTEGERS
    return f"vector_{source.label}[{', '.join(places)}]" + ("" if kept else ".to(cutlass.Float32)")


def gathers(plan: ScorePlan, formula: Formula, axes: Sequence[str]) -> dict[str, Callable[..., str]]:
    """Return the spelling of reads of tables, given an index and the name of a table."""
    tables = {source.label: source for source in formula.sources if isinstance(source, Table)}

    def gathered(index: str, label: str) -> str:
        table = tables[label]
        last = numbers.less(text_of(table.size), 1)
        place = f"cutlass.max(cutlass.min(cutlass.Int32({index}), {last}), 0)"
        places = ["0", place, *(mode.at.text(tuple(axes)) for mode in table.modes)]
        return f"vector_{label}[{', '.join(places)}]" + ("" if table.dtype in INTEGERS else ".to(cutlass.Float32)")

    return {GATHER: gathered}


def _uniform(plan: ScorePlan, source: RandomNumbers, axes: Sequence[str], query: str, key: str) -> str:
    """Return the random number of a query and a key, at its offset in 64 bits."""
    seed = read(plan, source.seed, axes, "0", "0", 1)
    steps = [(query, source.pitches[0]), (key, source.pitches[1])]
    steps += [(mode.at.text(tuple(axes)), mode.stride) for mode in source.modes]
    parts = [f"cutlass.Int64({place}) * {text_of(stride)}" for place, stride in steps if stride != 0]
    offset = " + ".join([*parts, *([text_of(source.offset)] if source.offset != 0 else [])]) or "0"
    return f"uniform(cutlass.Int64({seed}), cutlass.Int64({offset}), {source.wide})"


def uniform_functions(problem: ScoreProblem) -> list[list[str]]:
    """Return the function of random numbers, if a problem has any."""
    return [uniform_function()] if problem.draws else []


def uniform_function() -> list[str]:
    """Return the function of a random number: Philox in one block of PTX, which is quick to trace.

    Offsets that are not ``wide`` wrap at 2**32. The keys of all rounds are computed before the block:
    they are the same for all elements, and for all threads unless the seed is loaded.
    """
    lines = [".reg .b32 a, b, c, d, x, y, z, w;", ".reg .b64 p;", "mov.b32 a, {$r0};", "mov.b32 b, {$r1};"]
    lines += ["mov.b32 c, 0;", "mov.b32 d, 0;"]
    one, other = MULTIPLIERS
    for at in range(ROUNDS):
        lines += [
            f"mul.wide.u32 p, a, {one};",
            "mov.b64 {x, y}, p;",
            f"mul.wide.u32 p, c, {other};",
            "mov.b64 {z, w}, p;",
        ]
        keys = [f"{{$r{2 + 2 * at + part}}}" for part in range(2)]
        lines += ["xor.b32 w, w, b;", f"xor.b32 a, w, {keys[0]};", "mov.b32 b, z;"]
        lines += ["xor.b32 y, y, d;", f"xor.b32 c, y, {keys[1]};", "mov.b32 d, x;"]
    steps = ", ".join(str(_signed(at * each)) for at in range(ROUNDS) for each in INCREMENTS)
    return [
        "def uniform(seed, offset, wide):",
        "    high = cutlass.Int32(offset >> 32) if wide else cutlass.Int32(0)",
        "    words = cutlass.Int32(seed), cutlass.Int32(seed >> 32)",
        f"    keys = [words[at % 2] + step for at, step in enumerate(({steps}))]",
        "    word = cute.arch.inline_ptx(",
        *(f'        "{line} "' for line in ["{", *lines, "mov.b32 {$w0}, a;", "}"]),
        "        ,",
        "        write_only_types=[cutlass.Int32],",
        "        read_only_args=[cutlass.Int32(offset), high, *keys],",
        "    )",
        f"    return cutlass.Float32(word ^ (word >> 31)) * {UNIFORM!r}",
    ]


def _signed(word: int) -> int:
    """Return the 32 bits of a word as a signed number."""
    return (word + 2**31) % 2**32 - 2**31


def _integers(formula: Formula) -> list[bool]:
    """Return flags by value, true for integers."""
    found = [False] * formula.starts + [source.dtype in INTEGERS for source in formula.sources]
    for made in formula.instructions:
        if made.op == GATHER:
            found.append(found[made.arguments[1]])  # type: ignore[index]
            continue
        sums = made.op in ("add", "sub") and any(
            not isinstance(each, Constant) and found[each] for each in made.arguments
        )
        found.append(made.op in (QUERY_INDEX, KEY_INDEX) or sums)
    return found


def _compares(formula: Formula, made: Instruction) -> bool:
    """Return whether a comparison is one of integers."""
    found = _integers(formula)
    return any(not isinstance(each, Constant) and found[each] for each in made.arguments)


def arguments_of(formula: Formula) -> list[str]:
    """Return the names of the sources in the kernel."""
    passed = [each.passed for each in formula.sources]
    return [each.label if each.kind == "number" else f"vector_{each.label}" for each in passed]


def per_row(formula: Formula, rows: Sequence[int]) -> list[bool]:
    """Return flags by value, true for one number per query. ``rows`` are the starting values that are."""
    found = [at in rows for at in range(formula.starts)]
    found += [source.kind in ("query", "head", "number") for source in formula.sources]
    for made in formula.instructions:
        values = [each for each in made.arguments if not isinstance(each, Constant)]
        found.append(made.op not in (COLUMN_NUMBER, KEY_INDEX) and all(found[each] for each in values))
    return found
