"""Row reductions: over the columns of a thread, its neighbors, and all CTAs of the row."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from ...._support.records import dataclass
from ..plan.counts import counts
from ..plan.epilogue import BLOCK_REDUCTIONS, Constant, EpilogueOutput
from ..plan.joint import OwnPart, exchanged, joint, most_exchanged
from ..plan.passes import divisors, passes, per_row
from ..plan.records import WARP_THREADS, GemmPlan
from ..plan.reductions import exchanges
from ..roles.grammar import Pipeline, Role
from . import numbers
from .elements.quotients import INFINITY, scale_of
from .epilogue import (
    column_number,
    column_registers,
    compute,
    divisor_registers,
    expression,
    fragment,
    moved_registers,
    numbers_columns,
    own_registers,
    row_number,
    row_registers,
    sum_of,
    value_name,
)
from .exchange import WAIT

_THERE = (
    "{ .reg .b32 there, bar; mapa.shared::cluster.u32 there, {$r0}, {$r2}; mapa.shared::cluster.u32 bar, {$r1}, {$r2};"
    " st.async.shared::cluster.mbarrier::complete_tx::bytes"
)
SEND = {
    1: f"{_THERE}.b32 [there], {{$r3}}, [bar]; }}",
    2: f"{_THERE}.v2.b32 [there], {{ {{$r3}}, {{$r4}} }}, [bar]; }}",
}
"""Send one or two numbers to another CTA's shared memory, whose barrier counts their bytes. Addresses are recomputed,
because the loop-invariant ones of all CTAs would occupy registers."""
ROWS_BARRIER = 15
"""The named barrier of warps that reduce blocks of rows: the last one of the hardware's 16, which no plan has."""
QUAD = 4
"""Neighboring lanes that hold the columns of a row where a thread holds pairs of them."""


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """A reduction with its ``identity`` and the expression that combines two values, ``join``."""

    identity: str
    join: Callable[[str, str], str]


REDUCTIONS: Mapping[str, Reduction] = {
    "row_sum": Reduction(identity="0.0", join=lambda x, y: f"{x} + {y}"),
    "row_maximum": Reduction(identity='float("-inf")', join=lambda x, y: f"cute.arch.fmax({x}, {y}, nan=True)"),
    "row_minimum": Reduction(identity='float("inf")', join=lambda x, y: f"cute.arch.fmin({x}, {y}, nan=True)"),
    "row_first": Reduction(identity='float("inf")', join=lambda x, y: f"cute.arch.fmin({x}, {y})"),
}


def _reduction(plan: GemmPlan, value: int) -> Reduction:
    return REDUCTIONS[plan.problem.epilogue.instruction(value).op]


def _chains(plan: GemmPlan) -> int:
    """Return the independent partial results of a row per thread, which hide latency."""
    return 2 if plan.paired else 4


def _terms(plan: GemmPlan, value: int) -> str:
    return f"x{value - len(plan.problem.epilogue.operands)}_terms"


def set_up(plan: GemmPlan, role: Role) -> list[str]:
    """Define registers of per-row numbers, including launch-time scalars, and the view of what other CTAs send."""
    places = fragment(plan)
    reduced = [value for exchange in exchanges(plan) for value in exchange]
    made = sorted({*reduced, *(v for level in range(len(exchanges(plan)) + 1) for v in per_row(plan, level))})
    lines = [f"{row_registers(plan, v)} = cute.make_rmem_tensor({places.rows}, cutlass.Float32)" for v in made]
    lines += [
        f"{_terms(plan, v)} = cute.make_rmem_tensor({places.rows * _chains(plan)}, cutlass.Float32)" for v in reduced
    ]
    for value in (v for level in range(len(exchanges(plan)) + 1) for v in divisors(plan, level)):
        lines += [
            f"{name} = cute.make_rmem_tensor({places.rows}, cutlass.Float32)" for name in divisor_registers(plan, value)
        ]
    for part in own_parts(plan):
        lines += [
            f"{name(plan, part)} = cute.make_rmem_tensor({places.rows}, cutlass.Float32)"
            for name in (own_registers, *((moved_registers,) if part.kind == "powers" else ()))
        ]
    for number in plan.problem.epilogue.of_kind("number"):
        lines.append(f"{number.label}_rows = cute.make_rmem_tensor({places.rows}, cutlass.Float32)")
        lines.append(f"{number.label}_rows.fill({number.label})")
    return lines + (_view(plan) if counts(plan).rows else [])


def _view(plan: GemmPlan) -> list[str]:
    """Define the view with dimensions (rows of a word, words of a reduction, reductions, source CTA, stage)."""
    ring = counts(plan).rows
    assert ring is not None
    shape = (_together(plan), _senders(plan), _most(plan), plan.cluster[1], ring.stages)
    strides = [1]
    for extent in shape[:-1]:
        strides.append(strides[-1] * extent)
    return [
        "rows_view = cute.make_tensor(",
        f"    cute.recast_ptr(shared_rows, dtype=cutlass.Float32), cute.make_layout({shape}, stride={tuple(strides)})",
        ")",
    ]


def _together(plan: GemmPlan) -> int:
    """Return the rows that a thread sends as one word: two, 8 rows distant, where it has pairs of columns."""
    return 2 if plan.paired else 1


def _senders(plan: GemmPlan) -> int:
    """Return the words of one reduction in a CTA's tile."""
    return plan.cta_tile[0] // _together(plan)


def _most(plan: GemmPlan) -> int:
    """Return the most reductions of one exchange."""
    return most_exchanged(plan)


def _words(plan: GemmPlan) -> int:
    """Return the words of one thread."""
    return fragment(plan).rows // _together(plan)


def _sender(plan: GemmPlan, word: str) -> str:
    """Return the index of a thread's word among those of the tile."""
    threads = counts(plan).consumer_threads
    first = f"store_thread // {QUAD}" if plan.paired else "store_thread"
    return first if _words(plan) == 1 else f"{word} * {threads // QUAD if plan.paired else threads} + {first}"


def clear(plan: GemmPlan, number: int) -> list[str]:
    return [f"{_terms(plan, v)}.fill({_reduction(plan, v).identity})" for v in exchanges(plan)[number]]


def add_terms(plan: GemmPlan, number: int) -> list[str]:
    """Return the body of a loop over the values of a sub-tile, with index ``i``."""
    walk, chains, places = passes(plan)[number], _chains(plan), fragment(plan)
    lines = compute(plan, walk)
    if _masked(plan):
        lines.append(f"inside = {column_number(plan)} < {plan.problem.n}")
    for value in walk.reduces:
        term = _term(plan, value)
        if _masked(plan):
            identity = f"cutlass.Float32({_reduction(plan, value).identity})"
            term = f"cutlass.Float32(cutlass.select_(inside, {term}, {identity}))"
        place = f"{_terms(plan, value)}[({places.row_of}) * {chains} + i % {chains}]"
        lines.append(f"{place} = {_reduction(plan, value).join(place, term)}")
    if walk.keeps != walk.held:
        held = "total" if plan.promote else "sums"
        lines.append(f"{held}[{sum_of(plan)}] = {value_name(plan, walk.keeps)}")
    return lines


def _term(plan: GemmPlan, value: int) -> str:
    made = plan.problem.epilogue.instruction(value)
    x, *others = (value_name(plan, argument) for argument in made.arguments if isinstance(argument, int))
    if made.op != "row_first":
        return x
    (sought,) = others
    return found_at(x, sought, f"cutlass.Float32({column_number(plan)})")


def found_at(x: str, sought: str, place: str) -> str:
    """Return `place` where `x` equals `sought`, or both are NaN; else infinity."""
    found = f"(({x} == {sought}) | (({x} != {x}) & ({sought} != {sought})))"
    return f'cutlass.Float32(cutlass.select_({found}, {place}, cutlass.Float32(float("inf"))))'


def needs_first_column(plan: GemmPlan, number: int) -> bool:
    """Return whether a pass needs the position of the thread's columns in the row."""
    walk = passes(plan)[number]
    looks = any(plan.problem.epilogue.instruction(value).op == "row_first" for value in walk.reduces)
    return looks or _masked(plan) or numbers_columns(plan.problem, walk)


def _masked(plan: GemmPlan) -> bool:
    """Return whether tiles have columns past the end of the row."""
    return plan.problem.n % (plan.cluster[1] * plan.tile[1]) != 0


def join(plan: GemmPlan, number: int) -> list[str]:
    """Combine the partial results of a thread, then of its neighboring lanes, bit-identical in all of them."""
    chains, lines = _chains(plan), []
    for value in exchanges(plan)[number]:
        reduction, registers, terms = _reduction(plan, value), row_registers(plan, value), _terms(plan, value)
        lines.append(f"for i in cutlass.range_constexpr({fragment(plan).rows}):")
        parts = [f"{terms}[i * {chains} + {chain}]" for chain in range(chains)]
        lines.append(f"    part = {functools.reduce(lambda x, y: reduction.join(x, y), parts)}")
        lines += _butterfly(plan, reduction)
        lines.append(f"    {registers}[i] = part")
    return lines


def _butterfly(plan: GemmPlan, reduction: Reduction) -> list[str]:
    if not plan.paired:
        return []
    return [
        f"    part = {reduction.join('part', f'cute.arch.shuffle_sync_bfly(part, offset={offset})')}"
        for offset in (1, 2)
    ]


def make(pipeline: Pipeline) -> list[str]:
    """Return the initialization of the barriers, which are all full barriers."""
    numbers = pipeline.counts
    return [
        "if warp == 0:",
        "    with cute.arch.elect_one():",
        *(
            f"        cute.arch.mbarrier_init({pipeline.barriers} + {slot}, {numbers.full_arrivals})"
            for slot in range(numbers.stages)
        ),
    ]


def arm(plan: GemmPlan, role: Role, pipeline: Pipeline, cursor: str, number: int) -> list[str]:
    size = pipeline.counts.transaction_bytes * len(exchanged(plan, number))
    return [
        f"if warp == {role.first_warp}:",
        "    with cute.arch.elect_one():",
        f"        cute.arch.mbarrier_arrive_and_expect_tx({pipeline.barriers} + {cursor}.index, {size})",
    ]


def wait(pipeline: Pipeline, cursor: str) -> list[str]:
    return [
        "cute.arch.inline_ptx(",
        f'    "{WAIT}",',
        f"    read_only_args=[({pipeline.barriers} + {cursor}.index).toint().to(cutlass.Int32), {cursor}.phase],",
        ")",
    ]


def send(plan: GemmPlan, pipeline: Pipeline, cursor: str, number: int) -> list[str]:
    """Send the results; where lanes share a row, each of them serves every fourth CTA."""
    together, lines = _together(plan), []
    for place, value in enumerate(exchanged(plan, number)):
        registers = row_registers(plan, value)
        words = ", ".join(f"{registers}[word * {together} + {i}].bitcast(cutlass.Int32)" for i in range(together))
        slot = f"({cursor}.index * {plan.cluster[1]} + place[2]) * {_most(plan)} + {place}"
        body = [
            "cute.arch.inline_ptx(",
            f'    "{SEND[together]}",',
            f"    read_only_args=[sent_word, full_barrier, cutlass.Int32({_rank(plan)}), {words}],",
            ")",
        ]
        lines += [
            f"full_barrier = ({pipeline.barriers} + {cursor}.index).toint().to(cutlass.Int32)",
            f"for word in cutlass.range_constexpr({_words(plan)}):",
            f"    sent_word = shared_rows + (({slot}) * {_senders(plan)} + {_sender(plan, 'word')})",
            "    sent_word = sent_word.toint().to(cutlass.Int32)",
            *(f"    {line}" for line in _peers(plan, body)),
        ]
    return lines


def _rank(plan: GemmPlan) -> str:
    """Return the rank of the CTA with the columns of number ``peer``."""
    rows = plan.cluster[0]
    return "peer" if rows == 1 else f"rank + (peer - place[2]) * {rows}"


def _peers(plan: GemmPlan, body: list[str]) -> list[str]:
    """Repeat `body` for the CTAs that this lane serves, as ``peer``."""
    ctas = plan.cluster[1]
    if not plan.paired:
        return [f"for peer in cutlass.range_constexpr({ctas}):", *(f"    {line}" for line in body)]
    lines = [
        f"for turn in cutlass.range_constexpr({-(-ctas // QUAD)}):",
        f"    peer = lane % {QUAD} + turn * {QUAD}",
    ]
    if ctas % QUAD == 0:
        return [*lines, *(f"    {line}" for line in body)]
    return [*lines, f"    if peer < {ctas}:", *(f"        {line}" for line in body)]


def gather(plan: GemmPlan, cursor: str, number: int) -> list[str]:
    """Combine results in the order of columns within each lane's share, then those of the lanes, in a fixed order."""
    together, lines = _together(plan), []
    known = {part.value: part for part in joint(plan)}
    for value in exchanges(plan)[number]:
        reduction, registers = _reduction(plan, value), row_registers(plan, value)
        body = [f"received = {_received(plan, cursor, number, value)}"]
        if value in known:
            body.append(f"about = {_received(plan, cursor, number, known[value].of)}")
            weights = known[value].weights
            body += [f"weights = {_received(plan, cursor, number, weights)}"] if weights else []
        for i in range(together):
            place = f"word * {together} + {i}"
            part, more = _to_the_row(plan, known[value], i, place) if value in known else (f"received[{i}]", [])
            body += [*more, f"{registers}[{place}] = {reduction.join(f'{registers}[{place}]', part)}"]
        lines += [
            f"{registers}.fill({reduction.identity})",
            f"for word in cutlass.range_constexpr({_words(plan)}):",
            *(f"    {line}" for line in _peers(plan, body)),
        ]
        if plan.paired:
            lines += [
                f"for i in cutlass.range_constexpr({fragment(plan).rows}):",
                f"    part = {registers}[i]",
                *_butterfly(plan, reduction),
                f"    {registers}[i] = part",
            ]
        if value in known and known[value].kind == "powers":
            lines += _move(plan, known[value])
    return lines


def _received(plan: GemmPlan, cursor: str, number: int, value: int) -> str:
    """Return the result of CTA ``peer`` for a reduction, for the rows of a word."""
    place = exchanged(plan, number).index(value)
    return f"rows_view[None, {_sender(plan, 'word')}, {place}, peer, {cursor}.index].load()"


def own_parts(plan: GemmPlan) -> list[OwnPart]:
    """Return the reductions of the second pass that use CTA-local statistics."""
    return [part for part in joint(plan) if part.kind != "first"]


def own(plan: GemmPlan) -> list[str]:
    """Return the CTA-local statistic: the mean of the CTA's columns, or their maximum, or 0 where that is not finite.

    Columns that are all -inf then sum up to 0.
    """
    lines = []
    for part in own_parts(plan):
        found = f"{row_registers(plan, part.of)}[i]"
        about = f"{found} * {_inverse_columns(plan, 'place[2]')}"
        if part.kind == "powers":
            about = (
                f"cutlass.Float32(cutlass.select_(cute.math.abs({found}) < {INFINITY}, {found}, cutlass.Float32(0.0)))"
            )
            lines.append(f"{moved_registers(plan, part)}[i] = {_shift(found)}")
        lines.append(f"{own_registers(plan, part)}[i] = {about}")
    if not lines:
        return []
    return [f"for i in cutlass.range_constexpr({fragment(plan).rows}):", *(f"    {line}" for line in lines)]


def _columns_of(plan: GemmPlan, cta: str) -> str:
    """Return the columns of a row that a CTA along N has, as an fp32 number."""
    width, n = plan.tile[1], plan.problem.n
    if not _masked(plan):
        return f"cutlass.Float32({float(width)})"
    return f"cutlass.Float32(cutlass.min(cutlass.max({n} - {cta} * {width}, 0), {width}))"


def _inverse_columns(plan: GemmPlan, cta: str) -> str:
    if not _masked(plan):
        return f"cutlass.Float32({1.0 / plan.tile[1]!r})"
    return f"(1.0 / cute.arch.fmax({_columns_of(plan, cta)}, cutlass.Float32(1.0)))"


def _to_the_row(plan: GemmPlan, part: OwnPart, i: int, place: str) -> tuple[str, list[str]]:
    """Return the ``received`` result of CTA ``peer``, corrected from ``about`` to the statistic of the row, and the
    lines before it.

    It is for row number `i` of a word.
    """
    received, about = f"received[{i}]", f"about[{i}]"
    if part.kind == "first":
        return found_at(about, f"{row_registers(plan, part.of)}[{place}]", received), []
    to = f"{column_registers(plan, part.about)}[{place}]"
    if part.kind == "powers":
        return f"{received} * {_power(part, _shift(about), to)}", []
    off = [f"off = {about} * {_inverse_columns(plan, 'peer')} - {to}"]
    if part.kind == "products":
        return f"({received} + weights[{i}] * off)", off
    return f"({received} + {_columns_of(plan, 'peer')} * off * off)", off


def _shift(largest: str) -> str:
    """Return the statistic that terms are relative to: the ``largest`` of a CTA's columns, or 0 where that is +inf.

    Where all columns are -inf, with all terms 0, it stays -inf, so that the correction factor is 0 too.
    """
    return f"cutlass.Float32(cutlass.select_({largest} == {INFINITY}, cutlass.Float32(0.0), {largest}))"


def _power(part: OwnPart, shift: str, to: str) -> str:
    """Return the factor that corrects terms from one statistic to another."""
    scaled = "" if part.scale == 1.0 else f" * {part.scale!r}"
    return f"cute.math.{part.op}(({shift} - {to}){scaled})"


def _move(plan: GemmPlan, part: OwnPart) -> list[str]:
    """Compute the correction factors of the terms that registers keep."""
    registers = moved_registers(plan, part)
    factor = _power(part, f"{registers}[i]", f"{column_registers(plan, part.about)}[i]")
    return [f"for i in cutlass.range_constexpr({fragment(plan).rows}):", f"    {registers}[i] = {factor}"]


def evaluate_rows(plan: GemmPlan, level: int) -> list[str]:
    """Evaluate per-row instructions, and the reciprocals of numbers that elements are divided by."""

    def text(value: int) -> str:
        return expression(plan.problem, value, lambda x: f"{column_registers(plan, x)}[i]", lambda op: row_number(plan))

    found, lines = list[str](), list[str]()

    def loop() -> list[str]:
        return [f"for i in cutlass.range_constexpr({fragment(plan).rows}):", *(f"    {line}" for line in lines)]

    for value in per_row(plan, level):
        if plan.problem.epilogue.instruction(value).op in BLOCK_REDUCTIONS:
            found, lines = [*found, *(loop() if lines else ()), *_over_rows(plan, value)], []
        else:
            lines.append(f"{row_registers(plan, value)}[i] = {text(value)}")
    for value in divisors(plan, level):
        lines += _inverse(plan, value)
    return [*found, *loop()] if lines else found


def _over_rows(plan: GemmPlan, value: int) -> list[str]:
    """Reduce a number per row over the rows of the CTA: those of a thread, of its warp, and of all warps."""
    made = plan.problem.epilogue.instruction(value)
    join, warps = REDUCTIONS[BLOCK_REDUCTIONS[made.op]].join, plan.consumer_warps
    of = column_registers(plan, next(x for x in made.arguments if not isinstance(x, Constant)))
    wait = f"cute.arch.barrier(barrier_id={ROWS_BARRIER}, number_of_threads={warps * WARP_THREADS})"
    return [
        f"of_block = {of}[0]",
        f"for i in cutlass.range_constexpr(1, {fragment(plan).rows}):",
        f"    of_block = {join('of_block', f'{of}[i]')}",
        *(
            f"of_block = {join('of_block', f'cute.arch.shuffle_sync_bfly(of_block, offset={offset})')}"
            for offset in (4, 8, 16)
        ),
        f"block_numbers = cute.make_tensor(shared_blocks, cute.make_layout({warps}))",
        "if lane == 0:",
        "    block_numbers[store_warp] = of_block",
        wait,
        "of_block = block_numbers[0]",
        f"for i in cutlass.range_constexpr(1, {warps}):",
        f"    of_block = {join('of_block', 'block_numbers[i]')}",
        wait,
        f"{row_registers(plan, value)}.fill(of_block)",
    ]


def _inverse(plan: GemmPlan, value: int) -> list[str]:
    """Compute a reciprocal, scaled so that it is not subnormal; for an infinite divisor the remainder is 0."""
    scale, scaled, inverse = divisor_registers(plan, value)
    over = f"{column_registers(plan, value)}[i]"
    return [
        f"{scale}[i] = {scale_of(over)}",
        f"product = {over} * {scale}[i]",
        f"{inverse}[i] = 1.0 / product",
        f"{scaled}[i] = cutlass.Float32("
        f"cutlass.select_(cute.math.abs(product) < {INFINITY}, product, cutlass.Float32(0.0)))",
    ]


def store_rows(plan: GemmPlan, rows: str, dsl: Callable[[str], str], batched: Callable[[str], str]) -> list[str]:
    """Store numbers per row, from one of the lanes that share the row.

    `rows` is the CTA's index among tiles along M, ``batched`` gives the last coordinate of an output, by label.
    """
    places, problem = fragment(plan), plan.problem
    row = f"{rows} * {plan.cta_tile[0]} + {places.first_row} + {places.row_offset}"
    parted = bool(problem.outputs_of("tile"))
    who = f"lane % {QUAD} == 0" if plan.paired else ""
    conditions = [each for each in ("" if parted else "tile_n == 0", who) if each]
    indent = "    " if conditions else ""
    return [
        *([f"if {' and '.join(conditions)}:"] if conditions else []),
        f"{indent}for i in cutlass.range_constexpr({places.rows}):",
        f"{indent}    row = {row}",
        f"{indent}    if row < {numbers.extent(plan, 'm')}:",
        *(
            f"{indent}        {line}"
            for output in problem.numbers
            for line in _store_number(plan, output, "tile_n" if parted else "", dsl, batched)
        ),
    ]


def _store_number(
    plan: GemmPlan, output: EpilogueOutput, tile: str, dsl: Callable[[str], str], batched: Callable[[str], str]
) -> list[str]:
    """Return the store of the number of a row, or its addition to memory."""
    label = plan.problem.label_of(output)
    place = f"row, {tile}" if tile else f"row{batched(label)}"
    value = f"{column_registers(plan, output.value)}[i].to({dsl(output.dtype)})"
    if output.block:
        return [f"if row % {output.block} == 0:", f"    {label}[row // {output.block}{batched(label)}] = {value}"]
    if not output.adds:
        return [f"{label}[{place}] = {value}"]
    return [
        f"to_number = {label}.iterator + cute.crd2idx(({place}), {label}.layout)",
        f'cute.arch.red(to_number, {value}, op="add", dtype={dsl(output.dtype)}, sem="relaxed", scope="gpu")',
    ]
