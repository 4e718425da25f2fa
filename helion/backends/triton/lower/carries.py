"""Variables of a loop's values: the lowering out of SSA.

Triton decides that a loop carries a name if, in a trial visit of the body, the name is bound to another SSA value. In
that visit a name is still bound to its initial value. So with ``d = a; e = a``, a body that does ``d = e`` seems to
leave ``d`` unchanged, and the loop silently loses it (Triton 3.6 to 3.7). A name that may receive another carried value
therefore begins as a value of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...._compiler.ir.grammar import ForAttrs, Op, Operand, Program, Region, Value, Variables, WhileAttrs
from ...._compiler.ir.ops import OPS
from ...._compiler.ir.rewrite import Makers, count_uses
from ...._compiler.rewrites.steps import StepInputs

#: Ops whose result may share the variable of an operand, or that assign in regions of their own.
_NO_UPDATES = frozenset(("for", "while", "if", "mask", "iota"))
#: Ops by which another value may share the variable of an operand.
_SHARING = frozenset(("for", "while", "mask"))


def share_variables(program: Program, inputs: StepInputs) -> Program:
    """Return the program with the ``variables`` of its loops."""
    if not any(OPS[op.kind].is_loop for op in program.walk()):
        return program
    uses = count_uses(program)
    return program.map_regions(lambda region: _region(region, uses))


def _region(region: Region, uses: Mapping[int, int]) -> Region:
    local = {v.number for v in region.params} | {r.number for op in region.ops for r in op.results}
    return replace(region, ops=tuple(_op(op, local, uses) if op.regions else op for op in region.ops))


def _op(op: Op, local: set[int], uses: Mapping[int, int]) -> Op:
    attrs = op.attrs
    if isinstance(attrs, (ForAttrs, WhileAttrs)):
        attrs = replace(attrs, variables=_variables(op, local, uses))
    return replace(op, attrs=attrs, regions=tuple(_region(child, uses) for child in op.regions))


def _variables(op: Op, local: set[int], uses: Mapping[int, int]) -> Variables:
    """Return the variables of a loop.

    ``local`` are the values of the region around it: a value from outside of that region is needed again in its next
    iteration.
    """
    body = op.regions[-1]
    initial = op.operands[: len(body.params)]
    return Variables(
        taken=frozenset(
            at
            for at, value in enumerate(initial)
            if isinstance(value, Value) and value.number in local and uses[value.number] == 1
        ),
        fresh=frozenset(at for at in changing_places(body) if isinstance(initial[at], Value)),
        updated=frozenset(_updated(body)),
    )


def _updated(body: Region) -> Iterator[int]:
    """Yield the positions with ``acc = tl.dot(a, b, acc=acc)`` instead of a new variable, where the old value
    is dead.
    """
    for at, (param, after) in enumerate(zip(body.params, body.results, strict=True)):
        made = next((i for i, op in enumerate(body.ops) if any(r is after for r in op.results)), None)
        if made is None or body.ops[made].kind in _NO_UPDATES:
            continue
        if any(op.kind in _SHARING and any(v is param for v in op.values()) for op in body.ops):
            continue
        later = (v for op in body.ops[made + 1 :] for inner in op.walk() for v in inner.reads())
        others = (v for i, v in enumerate(body.results) if i != at)
        if not any(v is param for v in later) and not any(v is param or v is after for v in others):
            yield at


def changing_places(region: Region) -> frozenset[int]:
    """Return the positions of carried values that may become another carried value unchanged."""
    makers = Makers.among(region.walk())
    params = {param.number: at for at, param in enumerate(region.params)}
    found = []
    for at, result in enumerate(region.results):
        if _sources(result, makers, params, set()) - {at}:
            found.append(at)
    return frozenset(found)


def _sources(value: Operand, makers: Makers, params: dict[int, int], seen: set[int]) -> set[int]:
    """Return the parameters that ``value`` may be, looking through branches and loops but not through ops."""
    if not isinstance(value, Value) or value.number in seen:
        return set()
    seen.add(value.number)
    if value.number in params:
        return {params[value.number]}
    op = makers.of(value)
    if op is None or not op.regions or op.kind not in ("if", "for", "while"):
        return set()
    return set().union(*(_sources(one, makers, params, seen) for one in op.reads()))
