"""Sums of several matmuls: programs of one term each, whose sums and stores are the same.

::

    for tile_k in hl.tile(k):                         for tile_k in hl.tile(k):          for tile_l in hl.tile(l):
        acc = hl.dot(a[...], b[...], acc=acc)    →        acc = hl.dot(a, b, acc=acc)  ,     acc = hl.dot(c, d, acc=acc)
    for tile_l in hl.tile(l):                         out[...] = acc                     out[...] = acc
        acc = hl.dot(c[...], d[...], acc=acc)
    out[...] = acc

So are several dots of one loop that add to one accumulator. Their results are the terms of one sum, in fp32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ...._compiler.ir.grammar import ForAttrs, Op, Operand, PointwiseAttrs, Program, Region, Value
from ...._compiler.passes.always.simplify import drop_dead
from ..plan.epilogue import EpilogueOperand
from ..plan.records import GemmProblem, Term
from ..plan.refusal import Refusal
from .product import Product

#: The ops that add one term to an accumulator: a dot, and its separate add, if any.
_Link = tuple[Op, ...]


def programs_of_terms(program: Program) -> list[Program]:
    """Return a program for each term of the sums; the original one where there is one term."""
    if len(program.roots) != 1:
        return [program]
    body = program.roots[0].body
    loops = [op for op in body.ops if op.regions]
    makers = {result.number: op for op in program.walk() for result in op.results}
    if not loops or any(op.kind != "for" or any(each.regions for each in op.regions[0].ops) for op in loops):
        return [program]
    places = _places(program, loops)
    links = [[_links(loop.regions[0], at, makers) for at in range(len(loop.results))] for loop in loops]
    counts = [{len(each) for each in of_loop} for of_loop in links]
    if places is None or any(len(each) != 1 or 0 in each for each in counts) or (len(loops) == 1 and counts == [{1}]):
        return [program]
    terms = [(at, term) for at, (count,) in enumerate(counts) for term in range(count)]
    return [_of_term(program, _Term(loops=loops, places=places, links=links, at=at, number=term)) for at, term in terms]


def _places(program: Program, loops: Sequence[Op]) -> list[tuple[int, ...]] | None:
    """Return where each loop carries the results of the last one; None if a loop does not go on with all of the loop
    before, or something else reads them."""
    found = [tuple(range(len(loops[-1].results)))]
    for before, after in zip(loops[-2::-1], loops[:0:-1], strict=True):
        numbers = {result.number: at for at, result in enumerate(before.results)}
        given = [after.operands[at] for at in found[0]]
        if not all(isinstance(each, Value) and each.number in numbers for each in given) or len(numbers) != len(given):
            return None
        readers = [op for op in program.walk() if any(each.number in numbers for each in op.reads())]
        if readers != [after]:
            return None
        found.insert(0, tuple(numbers[each.number] for each in given if isinstance(each, Value)))
    return found


def _links(body: Region, at: int, makers: Mapping[int, Op]) -> list[_Link]:
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


def _is_dot(value: Operand, makers: Mapping[int, Op]) -> bool:
    made = makers.get(value.number) if isinstance(value, Value) else None
    return made is not None and made.kind == "dot" and len(made.operands) == 2


@dataclass(frozen=True, kw_only=True)
class _Term:
    """Term ``number`` of loop ``at``."""

    loops: Sequence[Op]
    places: Sequence[tuple[int, ...]]
    links: Sequence[Sequence[Sequence[_Link]]]
    at: int
    number: int


def _of_term(program: Program, term: _Term) -> Program:
    """Return the program without the other terms."""
    (root,) = program.roots
    loop, (region,) = term.loops[term.at], term.loops[term.at].regions
    kept = [each[term.number] for each in term.links[term.at]]
    left_out = {op.number for each in term.links[term.at] for link in each for op in link if link not in kept}
    changed = {link[-1].number: _added(link, region.params[at]) for at, link in enumerate(kept)}
    ops = tuple(changed.get(op.number, op) for op in region.ops if op.number not in left_out)
    order, first, last = term.places[term.at], term.loops[0], term.loops[-1]
    body = dataclasses.replace(
        region,
        params=tuple(region.params[at] for at in order),
        ops=ops,
        results=tuple(kept[at][-1].result for at in order),
    )
    starts = tuple(first.operands[at] for at in term.places[0])
    bounds = loop.operands[loop.attributes(ForAttrs).carried :]
    one = dataclasses.replace(loop, operands=(*starts, *bounds), results=last.results, regions=(body,))
    others = [each for each in term.loops if each is not loop]
    rest = tuple(one if op is loop else op for op in root.body.ops if op not in others)
    whole = dataclasses.replace(root, body=dataclasses.replace(root.body, ops=rest))
    return drop_dead(dataclasses.replace(program, roots=(whole,)))


def _added(link: _Link, start: Value) -> Op:
    """Return the op that adds a term to the initial value."""
    if len(link) == 1:
        return dataclasses.replace(link[0], operands=(*link[0].operands[:2], start))
    return dataclasses.replace(link[1], operands=(start, link[0].result))


def sum_of(products: Sequence[Product], blocks: Sequence[int]) -> Product:
    """Return the product that adds the terms of others to the first; ``blocks`` are those of their loops over K."""
    first, *others = products
    if not others:
        return first
    for other in others:
        if _without_operands(other.problem) != _without_operands(first.problem):
            raise Refusal("the terms of a sum of matmuls differ in type, or in what is contiguous")
        if other.runtime or first.runtime or other.problem.copied or first.problem.copied:
            raise Refusal(
                "sums of several matmuls are implemented where TMA loads all operands, of sizes known in advance"
            )
    terms = tuple(
        Term(
            k=other.problem.k,
            a_pitch=other.problem.a_pitch,
            b_pitches=(other.problem.b_pitch, *(each.pitch for each in _seconds(other.problem))),
            names=(*other.problem.names[:2], *(each.name for each in _seconds(other.problem))),
        )
        for other in others
    )
    tensors = [tensor for other in others for tensor in (other.a, other.b, *_more(other))]
    return dataclasses.replace(
        first,
        problem=dataclasses.replace(first.problem, terms=terms),
        terms=tuple(tensors),
        batch_blocks=(*first.batch_blocks, *(block for block in blocks if block != first.blocks[2])),
    )


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
    return dataclasses.replace(problem, k=1, a_pitch=0, b_pitch=0, epilogue=epilogue, names=("", "", ""))


def blocks_of_loops(program: Program) -> list[int]:
    """Return the blocks of the loops in the only grid of a program."""
    loops = [op for root in program.roots for op in root.body.ops if isinstance(op.attrs, ForAttrs)]
    return [axis.block for loop in loops for axis in loop.attributes(ForAttrs).axes]
