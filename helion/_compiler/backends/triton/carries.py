"""Which variables of a loop change places in it.

Triton decides that a name is carried by a loop when it stands for another SSA value after a trial visit of the body. In
that visit a name still stands for its initial value, so that with ``d = a; e = a`` a body that does ``d = e`` seems to
leave ``d`` as it was, and the loop silently loses it (Triton 3.6 to 3.7). A name that may take the place of another
therefore begins as a value of its own.
"""

from __future__ import annotations

from ...ir.grammar import Op, Operand, Region, Value


def changing_places(region: Region) -> frozenset[int]:
    """Positions of the carried values that may become another carried value as it is, with no op on the way."""
    makers = {id(result): op for op in region.walk() for result in op.results}
    params = {id(param): at for at, param in enumerate(region.params)}
    found = []
    for at, result in enumerate(region.results):
        if _sources(result, makers, params, set()) - {at}:
            found.append(at)
    return frozenset(found)


def _sources(value: Operand, makers: dict[int, Op], params: dict[int, int], seen: set[int]) -> set[int]:
    """The parameters that ``value`` may be, looking through branches and loops but not through ops."""
    if not isinstance(value, Value) or id(value) in seen:
        return set()
    seen.add(id(value))
    if id(value) in params:
        return {params[id(value)]}
    op = makers.get(id(value))
    if op is None or not op.regions or op.kind not in ("if", "for", "while"):
        return set()
    passed: list[Operand] = [*op.operands, *(result for region in op.regions for result in region.results)]
    return set().union(*(_sources(one, makers, params, seen) for one in passed))


__all__ = ["changing_places"]
