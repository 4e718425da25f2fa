"""Sums of several matmuls: programs of one term each, whose sums and stores are the same.

::

    for tile_k in hl.tile(k):                         for tile_k in hl.tile(k):          for tile_l in hl.tile(l):
        acc = hl.dot(a[...], b[...], acc=acc)    →        acc = hl.dot(a, b, acc=acc)  ,     acc = hl.dot(c, d, acc=acc)
    for tile_l in hl.tile(l):                         out[...] = acc                     out[...] = acc
        acc = hl.dot(c[...], d[...], acc=acc)
    out[...] = acc

So are several dots of one loop that add to one accumulator. Their results are the terms of one sum, in fp32.

A term has one left operand and all accumulators. One that it adds nothing to has a dot as well, with the right operand of
another, which is left out of the kernel: ``absent``.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence

import torch

from ...._compiler.ir.grammar import ForAttrs, MemoryAttrs, Op, Operand, PointwiseAttrs, Program, Region, Value
from ...._compiler.ir.ops import OPS
from ...._compiler.passes.always.simplify import drop_dead
from ...._support.records import dataclass
from ..plan.copied import Copied
from ..plan.epilogue import MAX_PRODUCTS, EpilogueOperand
from ..plan.records import GemmProblem, Major, Term
from ..plan.refusal import Refusal
from .product import Product

#: The ops that add one term to an accumulator: a dot, and its separate add, if any.
_Link = tuple[Op, ...]
_Makers = Mapping[int, Op]


@dataclass(frozen=True, kw_only=True)
class TermProgram:
    """The ``program`` of one term. ``absent`` are the numbers of the accumulators that it adds nothing to."""

    program: Program
    absent: frozenset[int] = frozenset()


@dataclass(kw_only=True)
class _Accumulator:
    """A sum that loops carry. ``places`` has its positions among their values, by number of the loop."""

    start: Operand
    final: Value
    places: dict[int, int]


def programs_of_terms(program: Program, side: int) -> list[TermProgram]:
    """Return a program for each term of the sums, whose dots share the operand of a ``side``; the original one where there
    is one term."""
    unchanged = [TermProgram(program=program)]
    if len(program.roots) != 1:
        return unchanged
    loops = [op for op in program.roots[0].body.ops if op.regions]
    if not loops or not all(map(_carries_sums, loops)):
        return unchanged
    makers = {result.number: op for op in program.walk() for result in op.results}
    accumulators = _accumulators(program, loops)
    links = [
        {at: _links(loops[at].regions[0], place, makers) for at, place in each.places.items()} for each in accumulators
    ]
    if any(not of_loop for each in links for of_loop in each.values()):
        return unchanged
    if any(_reads_loops(each.start, makers) for each in accumulators):
        return unchanged
    terms = [
        _Term(at=at, links=row)
        for at in range(len(loops))
        for row in _by_operand([each.get(at, []) for each in links], side, makers)
    ]
    if len(terms) == 1 and None not in terms[0].links:
        return unchanged
    order = _adjacent(terms)
    accumulators = [accumulators[at] for at in order]
    terms = [dataclasses.replace(term, links=tuple(term.links[at] for at in order)) for term in terms]
    return [_of_term(program, loops, accumulators, term) for term in terms]


def _carries_sums(loop: Op) -> bool:
    """Return whether a loop may do nothing but add to what it carries: it has no loop within, and no effect."""
    if loop.kind != "for" or not loop.results:
        return False
    return not any(op.regions or OPS[op.kind].stays for op in loop.regions[0].ops)


def _accumulators(program: Program, loops: Sequence[Op]) -> list[_Accumulator]:
    """Return the sums that loops carry, those of the last loop first. A loop continues a sum that nothing else reads."""
    reads = [value.number for op in program.walk() for value in op.reads()]
    found, by_value = list[_Accumulator](), dict[int, _Accumulator]()
    for number, loop in enumerate(loops):
        for at, result in enumerate(loop.results):
            start = loop.operands[at]
            known = by_value.get(start.number) if isinstance(start, Value) and reads.count(start.number) == 1 else None
            if known is None:
                known = _Accumulator(start=start, final=result, places={})
                found.append(known)
            known.final, known.places[number] = result, at
            by_value[result.number] = known
    last = len(loops) - 1
    order = {id(each): (last - max(each.places), each.places[max(each.places)]) for each in found}
    return sorted(found, key=lambda each: order[id(each)])


def _reads_loops(value: Operand, makers: _Makers) -> bool:
    """Return whether a value is computed from what a loop returns."""
    made = makers.get(value.number) if isinstance(value, Value) else None
    return made is not None and (bool(made.regions) or any(_reads_loops(each, makers) for each in made.operands))


def _links(body: Region, at: int, makers: _Makers) -> list[_Link]:
    """Return what adds to carried value number `at`, in order; nothing for a value that is no sum of dots."""
    value, found = body.results[at], list[_Link]()
    while value is not body.params[at]:
        made = makers.get(value.number) if isinstance(value, Value) else None
        if made is not None and made.kind == "dot" and len(made.operands) == 3:
            found.append((made,))
            value = made.operands[2]
            continue
        adds = made is not None and made.attrs == PointwiseAttrs("add") and made.result.dtype == torch.float32
        terms = [(x, y) for x, y in (made.operands, made.operands[::-1]) if _is_dot(x, makers)] if made and adds else []
        if made is None or len(terms) != 1:
            return []
        dot, value = terms[0]
        assert isinstance(dot, Value)
        found.append((makers[dot.number], made))
    return found[::-1]


def _is_dot(value: Operand, makers: _Makers) -> bool:
    made = makers.get(value.number) if isinstance(value, Value) else None
    return made is not None and made.kind == "dot" and len(made.operands) == 2


@dataclass(frozen=True, kw_only=True)
class _Term:
    """A term of loop ``at``: what adds to each accumulator, or None."""

    at: int
    links: tuple[_Link | None, ...]


def _by_operand(links: Sequence[Sequence[_Link]], side: int, makers: _Makers) -> list[tuple[_Link | None, ...]]:
    """Return the links of each accumulator, by what the operand of one side of their dots is computed from."""
    rows: dict[tuple[Hashable, int], list[_Link | None]] = {}
    for number, each in enumerate(links):
        seen: list[Hashable] = []
        for link in each:
            key = _computed(link[0].operands[side], makers)
            row = rows.setdefault((key, seen.count(key)), [None] * len(links))
            row[number] = link
            seen.append(key)
    return [tuple(row) for row in rows.values()]


def _adjacent(terms: Sequence[_Term]) -> tuple[int, ...]:
    """Return the order of accumulators where those of a term are adjacent, as far as possible: each MMA has adjacent ones."""

    def pieces(order: tuple[int, ...]) -> int:
        return sum(
            added for term in terms for added, _ in itertools.groupby(term.links[at] is not None for at in order)
        )

    numbers = range(len(terms[0].links))
    return min(itertools.permutations(numbers), key=pieces) if len(numbers) <= MAX_PRODUCTS else tuple(numbers)


def _computed(value: Operand, makers: _Makers) -> Hashable:
    """Return what a value is computed from: equal for loads of one place."""
    if not isinstance(value, Value):
        return value
    made = makers.get(value.number)
    if made is None or made.regions:
        return "value", value.number
    attrs = made.attrs
    if isinstance(attrs, MemoryAttrs):
        attrs = dataclasses.replace(attrs, slot=0, load_slot=None)
    return made.kind, attrs, tuple(_computed(each, makers) for each in made.operands)


def _of_term(program: Program, loops: Sequence[Op], accumulators: Sequence[_Accumulator], term: _Term) -> TermProgram:
    """Return the program without the other terms."""
    (root,) = program.roots
    loop, (region,) = loops[term.at], loops[term.at].regions
    numbers = _free(program)
    params = [
        region.params[each.places[term.at]]
        if term.at in each.places
        else dataclasses.replace(each.final, number=next(numbers))
        for each in accumulators
    ]
    kept, known = [link for link in term.links if link is not None], {}
    for number, (link, param) in enumerate(zip(term.links, params, strict=True)):
        known[number] = _added(link, param) if link is not None else _placeholder(kept[0][0], param, numbers)
    left_out = {op.number for op in _adding(region, kept)}
    changed = {link[-1].number: known[number] for number, link in enumerate(term.links) if link is not None}
    ops = [changed.get(op.number, op) for op in region.ops if op.number not in left_out]
    ops += [known[number] for number, link in enumerate(term.links) if link is None]
    body = dataclasses.replace(
        region,
        params=tuple(params),
        ops=tuple(ops),
        results=tuple(known[number].result for number in range(len(accumulators))),
    )
    carried = loop.attributes(ForAttrs).carried
    one = dataclasses.replace(
        loop,
        operands=(*(each.start for each in accumulators), *loop.operands[carried:]),
        results=tuple(each.final for each in accumulators),
        attrs=dataclasses.replace(loop.attributes(ForAttrs), carried=len(accumulators)),
        regions=(body,),
    )
    whole = dataclasses.replace(root, body=dataclasses.replace(root.body, ops=_ordered(root.body.ops, loops, one)))
    absent = frozenset(number for number, link in enumerate(term.links) if link is None)
    return TermProgram(program=drop_dead(dataclasses.replace(program, roots=(whole,))), absent=absent)


def _ordered(ops: Sequence[Op], loops: Sequence[Op], one: Op) -> tuple[Op, ...]:
    """Return the ops with ``one`` loop in place of all, where the first is, after what it reads."""
    makers = {result.number: op for op in ops if not op.regions for result in op.results}
    waiting, read = [*one.operands], set[int]()
    while waiting:
        value = waiting.pop()
        op = makers.get(value.number) if isinstance(value, Value) else None
        if op is not None and op.number not in read:
            read.add(op.number)
            waiting += op.operands
    first = ops.index(loops[0])
    rest = [op for op in ops[first:] if op not in loops]
    before = [op for op in rest if op.number in read]
    return (*ops[:first], *before, one, *(op for op in rest if op.number not in read))


def _free(program: Program) -> Iterator[int]:
    """Yield numbers that no op and no value has."""
    used = [number for op in program.walk() for number in (op.number, *(each.number for each in op.results))]
    used += [param.number for op in program.walk() for region in op.regions for param in region.params]
    yield from range(1 + max(used), 1 + max(used) + 4 * len(used))


def _adding(region: Region, kept: Sequence[_Link]) -> Iterator[Op]:
    """Yield the ops of other terms: the dots of a loop, and their adds, without those that are kept."""
    own = {op.number for link in kept for op in link}
    dots = [op for op in region.ops if op.kind == "dot"]
    results = {op.result.number for op in dots}
    for op in region.ops:
        adds = op.attrs == PointwiseAttrs("add") and any(value.number in results for value in op.values())
        if (op.kind == "dot" or adds) and op.number not in own:
            yield op


def _placeholder(dot: Op, start: Value, numbers: Iterator[int]) -> Op:
    """Return a dot of the same operands for an accumulator that the term adds nothing to."""
    result = dataclasses.replace(start, number=next(numbers))
    return dataclasses.replace(dot, number=next(numbers), operands=(*dot.operands[:2], start), results=(result,))


def _added(link: _Link, start: Value) -> Op:
    """Return the op that adds a term to the initial value."""
    if len(link) == 1:
        return dataclasses.replace(link[0], operands=(*link[0].operands[:2], start))
    return dataclasses.replace(link[1], operands=(start, link[0].result))


# The sum ----------------------------------------------------------------------------------------------------------------------


def sum_of(products: Sequence[Product], absent: Sequence[frozenset[int]], blocks: Sequence[int]) -> Product:
    """Return the product that adds the terms of others to the first; ``blocks`` are those of their loops over K, and
    ``absent`` the accumulators that each adds nothing to."""
    first, *others = products
    bases = ["b", *(each.label for each in _seconds(first.problem))]
    for other in others:
        if _without_operands(other.problem) != _without_operands(first.problem):
            raise Refusal("the terms of a sum of matmuls differ in type, or in what the epilogue does")
        if other.runtime or first.runtime:
            raise Refusal("sums of several matmuls are implemented for sizes and strides that are known in advance")
    labels = [[f"{base}_of_{number}" if number else base for base in ("a", *bases)] for number in range(len(products))]
    gone = [labels[number][1 + at] for number, each in enumerate(absent) for at in sorted(each)]
    copies = [each for number, product in enumerate(products) for each in _copies(product, labels[number], gone)]
    problem = dataclasses.replace(
        first.problem,
        terms=tuple(map(_term, others)),
        absent=tuple(gone),
        copied=tuple(each for each, _ in copies),
        a_major=_major(products, "a"),
        b_major=_major(products, "b"),
    )
    return dataclasses.replace(
        first,
        problem=problem,
        terms=tuple(tensor for other in others for tensor in (other.a, other.b, *_more(other))),
        sources=tuple(tensor for _, tensors in copies for tensor in tensors),
        batch_blocks=(*first.batch_blocks, *(block for block in blocks if block != first.blocks[2])),
    )


def of_two_majors(products: Sequence[Product]) -> frozenset[str]:
    """Return the sides of the terms of a sum, of A or B, that TMA loads with either dimension contiguous."""
    found = {
        side: {
            each.problem.a_major if side == "a" else each.problem.b_major
            for each in products
            if _loads(each.problem, side)
        }
        for side in ("a", "b")
    }
    return frozenset(side for side, majors in found.items() if len(majors) > 1)


def _term(other: Product) -> Term:
    problem = other.problem
    return Term(
        k=problem.k,
        a_pitch=problem.a_pitch,
        b_pitches=(problem.b_pitch, *(each.pitch for each in _seconds(problem))),
        names=(*problem.names[:2], *(each.name for each in _seconds(problem))),
    )


def _copies(product: Product, labels: Sequence[str], gone: Sequence[str]) -> Iterator[tuple[Copied, tuple[int, ...]]]:
    """Yield the copied operands of a term by their labels in the sum, with the tensors after the first of each."""
    own, at = dict(zip(_labels(product.problem), labels, strict=True)), 0
    for each in product.problem.copied:
        tensors = product.sources[at : at + len(each.tensors) - 1]
        at += len(tensors)
        if own[each.operand] not in gone:
            yield dataclasses.replace(each, operand=own[each.operand]), tensors


def _major(products: Sequence[Product], side: str) -> Major:
    """Return the contiguous dimension of the operands of a side: that of operands which TMA loads, or else of the first."""
    majors = [(each.problem.a_major if side == "a" else each.problem.b_major, each) for each in products]
    return next((major for major, each in majors if _loads(each.problem, side)), majors[0][0])


def _loads(problem: GemmProblem, side: str) -> bool:
    """Return whether TMA loads an operand of a side as it is."""
    labels = _labels(problem)
    return any(problem.copy_of(each) is None for each in (labels[:1] if side == "a" else labels[1:]))


def _labels(problem: GemmProblem) -> list[str]:
    return ["a", "b", *(each.label for each in _seconds(problem))]


def _seconds(problem: GemmProblem) -> tuple[EpilogueOperand, ...]:
    return problem.epilogue.of_kind("product")


def _more(product: Product) -> list[int]:
    """Return the tensors of the B of further matmuls of the same A."""
    pairs = zip(product.problem.epilogue.operands, product.operands, strict=True)
    return [tensor for operand, tensor in pairs if operand.kind == "product" and isinstance(tensor, int)]


def _without_operands(problem: GemmProblem) -> GemmProblem:
    """Return a problem that is the same for all terms of a sum."""
    operands = tuple(
        dataclasses.replace(each, name=f"product_{at}", pitch=0) if each.kind == "product" else each
        for at, each in enumerate(problem.epilogue.operands)
    )
    epilogue = dataclasses.replace(problem.epilogue, operands=operands)
    return dataclasses.replace(
        problem,
        k=1,
        a_pitch=0,
        b_pitch=0,
        a_major="k",
        b_major="k",
        copied=(),
        epilogue=epilogue,
        names=("", "", ""),
    )


def blocks_of_loops(program: Program) -> list[int]:
    """Return the blocks of the loops in the only grid of a program."""
    loops = [op for root in program.roots for op in root.body.ops if isinstance(op.attrs, ForAttrs)]
    return [axis.block for loop in loops for axis in loop.attributes(ForAttrs).axes]
