"""Keys that a query sees by integers that are loaded for it, as those of its sequence: masks, and the ends of the loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....._compiler.ir.grammar import ForAttrs, Op, Operand, OperandRef
from ....._shapes import Expr
from ...plan.attention.records import KeyRange, Source
from ...plan.refusal import Refusal
from .formula import FormulaReader
from .loops import Loops
from .values import end_of_tile, loaded_bound, name_of_op

MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


@dataclass(frozen=True, kw_only=True)
class LoadedRange:
    """The loads of the first key that a query sees, and of the one after the last, and numbers that are added to them."""

    begins: Op | None = None
    ends: Op | None = None
    shifts: tuple[int, int] = (0, 0)

    def joined(self, other: LoadedRange) -> LoadedRange | None:
        """Return the keys of both ranges, or None if both have the same bound."""
        if (self.begins and other.begins) or (self.ends and other.ends):
            return None
        return LoadedRange(
            begins=self.begins or other.begins,
            ends=self.ends or other.ends,
            shifts=(self.shifts[0] + other.shifts[0], self.shifts[1] + other.shifts[1]),
        )


def terms_of_condition(loops: Loops, condition: Operand, seen: bool) -> list[tuple[Operand, bool]]:
    """Return the conditions that together make up one, and whether each has to be true."""
    made = loops.stripped(condition)
    name = name_of_op(made)
    if made is not None and name in ("logical_not", "bitwise_not"):
        return terms_of_condition(loops, made.operands[0], not seen)
    if made is not None and name in (("bitwise_and", "logical_and") if seen else ("bitwise_or", "logical_or")):
        return [term for each in made.operands for term in terms_of_condition(loops, each, seen)]
    return [(condition, seen)]


def range_of(loops: Loops, condition: Operand, seen: bool) -> LoadedRange | None:
    """Return the keys for which a comparison of their indices with loaded integers of queries is ``seen``, or None."""
    made = loops.stripped(condition)
    name = name_of_op(made)
    if made is None or name not in NEGATED or not loops.is_aligned(made):
        return None
    name = name if seen else NEGATED[name]
    one, other = made.operands
    if not _is_key(loops, one):
        one, other, name = other, one, MIRRORED[name]
    load = loaded_bound(loops, other) if _is_key(loops, one) else None
    if load is None:
        return None
    if name in ("ge", "gt"):
        return LoadedRange(begins=load, shifts=(1 if name == "gt" else 0, 0))
    return LoadedRange(ends=load, shifts=(0, 1 if name == "le" else 0))


def _is_key(loops: Loops, value: Operand) -> bool:
    made = loops.stripped(value)
    while made is not None and name_of_op(made) == "cast" and not made.result.dtype.is_floating_point:
        made = loops.stripped(made.operands[0])
    return made is not None and made.kind == "iota" and not made.attrs.relative and made.attrs.block == loops.keys


def ends_of_loop(loops: Loops) -> LoadedRange:
    """Return the loads at whose least and greatest integers of the tile the loop over keys begins and ends."""
    (axis,) = loops.loop.attributes(ForAttrs).axes
    begin, end = (
        loops.loop.operands[each.at] if isinstance(each, OperandRef) else each for each in (axis.begin, axis.end)
    )
    return LoadedRange(begins=end_of_tile(loops, begin, "amin"), ends=end_of_tile(loops, end, "amax"))


def check_range(loops: Loops, found: LoadedRange) -> None:
    """Check that a loop that ends with the keys of a tile's queries hides the other keys of each. Raises ``Refusal``."""
    ends = ends_of_loop(loops)
    for name, bound, mask in (("begins", ends.begins, found.begins), ("ends", ends.ends, found.ends)):
        if bound is not None and (mask is None or not _same_load(loops, bound, mask)):
            raise Refusal(
                f"the loop over keys {name} with the {'first' if name == 'begins' else 'last'} key of a tile's queries,"
                f" by {loops.tensor(bound).name}, and no mask hides other keys by the same numbers: the result would"
                " depend on the size of tiles"
            )
    if ends.ends is not None and found.shifts[1]:
        raise Refusal("the loop over keys ends before the last key of a tile's queries that its mask shows")


def _same_load(loops: Loops, one: Op, other: Op) -> bool:
    return one is other or (
        one.attrs == other.attrs and one.operands == other.operands and loops.tensor(one) is loops.tensor(other)
    )


def key_range(reader: FormulaReader, found: LoadedRange) -> tuple[KeyRange | None, tuple[int | Expr, ...]]:
    """Return the range of the plan, and the ids of the tensors of its bounds. Raises ``Refusal``."""
    bounds: dict[str, Source] = {}
    ids: list[int | Expr] = []
    for name, load in (("begins", found.begins), ("ends", found.ends)):
        if load is None:
            continue
        source, tensor = reader.source_of(load)
        bounds[name] = replace(source, name=f"{source.name}_{name}")
        ids.append(tensor)
    return (KeyRange(**bounds, shifts=found.shifts) if bounds else None), tuple(ids)
