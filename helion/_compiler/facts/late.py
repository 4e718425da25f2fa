"""Reductions that may run after the loops that accumulate them."""

from __future__ import annotations

from ..._shapes import cdiv
from ..ir.grammar import ForAttrs, LoopAxis, Op
from ..rewrites.late_reductions.terms import Body, Term, held_dtype, may_reduce_late, memory_lanes, multiplies
from .records import LateReductionFact
from .walk import Walk


def late_reductions(walk: Walk) -> dict[int, LateReductionFact]:
    """Return the facts by the number of each reduction op."""
    loops = [op for op in walk.program.walk() if isinstance(op.attrs, ForAttrs)] if walk.reduces else []
    bodies = {op.number: Body.of(op.regions[0]) for op in loops if may_reduce_late(op)}
    around = {inner.number: op for op in loops for inner in op.regions[0].ops if isinstance(inner.attrs, ForAttrs)}
    found: dict[int, LateReductionFact] = {}
    for loop in loops:
        body = bodies.get(loop.number)
        for at in range(len(loop.regions[0].params)) if body is not None else ():
            for term in body.terms(at) if body is not None else ():
                fact = _fact(term, walk, _around(loop, at, bodies, around), multiplies(_outermost(loop, around)))
                found.update((op.number, fact) for op in term.chain)
    return found


def _around(loop: Op, at: int, bodies: dict[int, Body], around: dict[int, Op]) -> list[Op]:
    """Return the loops that accumulate a carried value of ``loop``, number ``at`` there; the outermost is the last."""
    outer = around.get(loop.number)
    body = None if outer is None else bodies.get(outer.number)
    if outer is None or body is None:
        return [loop]
    for place in range(len(body.region.params)):
        path = body.path(place)
        if path is not None and any(inner is loop and position == at for inner, position in path.loops):
            return [loop, *_around(outer, place, bodies, around)]
    return [loop]


def _outermost(loop: Op, around: dict[int, Op]) -> Op:
    while (outer := around.get(loop.number)) is not None:
        loop = outer
    return loop


def _fact(term: Term, walk: Walk, loops: list[Op], beside_matmul: bool) -> LateReductionFact:
    (region,) = walk.inner[loops[-1].number]
    after = walk.regions[region].parent
    assert after is not None
    return LateReductionFact(
        region=walk.homes[term.reduce.number],
        after=after,
        dims=tuple((dim.blocks, dim.const) for dim in term.value.dims),
        reduced=term.dims,
        itemsize=held_dtype(term.value.dtype).itemsize,
        memory=memory_lanes(walk.program, term.value, walk.makers),
        walked=tuple((axis.block, _elements(axis)) for loop in loops for axis in loop.attributes(ForAttrs).axes),
        multiplies=beside_matmul,
    )


def _elements(axis: LoopAxis) -> int | None:
    """Return the length of an axis in tile elements, None if only the launch knows it."""
    if not (isinstance(axis.begin, int) and isinstance(axis.end, int) and isinstance(axis.step, int)):
        return None
    return cdiv(axis.end - axis.begin, axis.step if axis.scalar else 1)


__all__ = ["late_reductions"]
