"""Reductions that a loop accumulates: their legality, for the rewrite and for facts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

import torch

from ...._shapes import fixed_at, hint_of
from ...._support.records import dataclass
from ....hardware import VECTOR_BYTES
from ...ir.grammar import (
    ForAttrs,
    MaskAttrs,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    Region,
    Value,
    ViewAttrs,
)
from ...ir.ops import OPS
from ...ir.reductions import REDUCTIONS, identity
from ...ir.rewrite import Makers
from .threads import Lanes

#: The reduction that each elementwise op accumulates.
_REDUCTION_OF: Mapping[str, str] = {row.combine: row.name for row in REDUCTIONS.values() if row.combine is not None}
#: Dtypes in which partial results of any order are as good as those of the kernel's order.
_WIDE = (torch.float32, torch.float64, torch.int32, torch.int64)
#: Dtypes that a conversion to fp32 keeps exact. Their extremes are exact too.
_NARROW = (torch.float16, torch.bfloat16)
_EXTREMES = ("max", "min")
_PRODUCTS = frozenset(("dot", "dot_scaled"))


@dataclass(frozen=True, kw_only=True)
class Term:
    """A reduction of ``value`` over ``dims`` that a loop combines with a carried value.

    ``combine`` is the op that does so, ``chain`` are the reductions, the last first, and ``views`` the ops after them.
    ``masks`` are dimensions of ``value`` whose lanes out of range need a mask before the reduction.
    """

    combine: Op
    chain: tuple[Op, ...]
    views: tuple[Op, ...]
    value: Value
    dims: tuple[int, ...]
    masks: tuple[int, ...]

    @property
    def reduce(self) -> Op:
        """The last reduction."""
        return self.chain[0]

    @property
    def name(self) -> str:
        return self.reduce.attributes(ReduceAttrs).name

    def is_term(self, operand: Operand) -> bool:
        """Return whether an operand of ``combine`` is the reduction."""
        return operand is (self.views[-1] if self.views else self.reduce).result


def held_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of a tile that accumulates values of ``dtype``: fp32 for 16 bits, which GPUs compare in fp32."""
    return torch.float32 if dtype in _NARROW else dtype


def may_reduce_late(loop: Op) -> bool:
    """Return whether a loop has no op that keeps its reductions inside."""
    return all(op.kind != "barrier" for op in loop.walk())


def multiplies(loop: Op) -> bool:
    """Return whether a loop has a matmul."""
    return any(op.kind in _PRODUCTS for op in loop.walk())


@dataclass(frozen=True, kw_only=True)
class Path:
    """The ops that change a carried value in one step: ``steps`` are elementwise ones, each with its other operand.

    ``loops`` are loops that carry the value further, each with the position there. ``names`` are those of all
    elementwise ops, also in the loops.
    """

    names: set[str]
    steps: list[tuple[Op, Operand]]
    loops: list[tuple[Op, int]]


@dataclass(frozen=True)
class Body:
    """The body of a loop, with the ops that define its values and the number of reads of each."""

    region: Region
    makers: Makers
    uses: Counter[int]

    @classmethod
    def of(cls, region: Region) -> Body:
        uses = Counter(value.number for op in region.walk() for value in op.reads())
        uses.update(value.number for value in region.results if isinstance(value, Value))
        return cls(region, Makers.among(region.ops), uses)

    def terms(self, at: int) -> Iterator[Term]:
        """Yield the reductions that the loop only combines with carried value number ``at``."""
        path = self.path(at)
        for combine, operand in () if path is None else path.steps:
            term = self._term(combine, operand)
            if term is not None and not self._is_multiplied(term.value):
                yield term

    def path(self, at: int) -> Path | None:
        """Return the ops that change carried value number ``at`` in one step.

        None where they are anything but combinations by one op, or where anything else reads the value on the way.
        """
        param = self.region.params[at]
        if param.dtype not in (*_WIDE, *_NARROW) or self.uses[param.number] != 1:
            return None
        found = Path(names=set(), steps=[], loops=[])
        return found if self._reaches(self.region.results[at], param, found) and len(found.names) <= 1 else None

    def _reaches(self, value: Operand, param: Value, found: Path) -> bool:
        """Return whether combinations lead from a carried value to ``value``, and add them to ``found``."""
        if value is param:
            return True
        made = self.makers.of(value)
        if made is None or not isinstance(value, Value) or self.uses[value.number] != 1:
            return False
        if isinstance(made.attrs, ForAttrs):
            at = next(at for at, result in enumerate(made.results) if result is value)
            inner = Body.of(made.regions[0]).path(at)
            if inner is None or not self._reaches(made.operands[at], param, found):
                return False
            found.names.update(inner.names)
            found.loops.append((made, at))
            return True
        if not isinstance(made.attrs, PointwiseAttrs) or made.attrs.name not in _REDUCTION_OF:
            return False
        first, second = made.operands
        for operand, other in ((first, second), (second, first)):
            same = isinstance(operand, Value) and (operand.dims, operand.dtype) == (value.dims, value.dtype)
            if same and self._reaches(operand, param, found):
                found.names.add(made.attrs.name)
                found.steps.append((made, other))
                return True
        return False

    def _term(self, combine: Op, operand: Operand) -> Term | None:
        """Return the reduction that an operand of ``combine`` is, if nothing else reads it."""
        name, views = _REDUCTION_OF[combine.attributes(PointwiseAttrs).name], list[Op]()
        made = self.makers.of(operand)
        while made is not None and _may_follow(made, name) and self._is_read_once(made):
            views.append(made)
            made = self.makers.of(made.operands[0])
        if made is None or not self._reduces(made, name):
            return None
        last = (views[0] if views else made).result
        if (last.dims, last.dtype) != (combine.result.dims, combine.result.dtype):
            return None
        term = self._chained(combine, tuple(reversed(views)), made, name)
        return term if term.value.dtype == made.result.dtype else None

    def _chained(self, combine: Op, views: tuple[Op, ...], reduce: Op, name: str) -> Term:
        """Return the term of a reduction, with the reductions before it whose results nothing else reads."""
        (value,), dims, masks = reduce.values(), reduce.attributes(ReduceAttrs).dims, tuple[int, ...]()
        chain = [reduce]
        while self.uses[value.number] == 1 and (made := self.makers.of(value)) is not None:
            masked: tuple[int, ...] = ()
            if isinstance(made.attrs, MaskAttrs):
                earlier = self.makers.of(made.operands[0])
                if earlier is None or len(made.operands) > 1 or made.attrs.fill != identity(name, value.dtype):
                    break
                made, masked = earlier, made.attrs.dims
            if not self._reduces(made, name):
                break
            chain.append(made)
            (value,), gone = made.values(), made.attributes(ReduceAttrs).dims
            left = [place for place in range(len(value.dims)) if place not in gone]
            dims = tuple(sorted((*gone, *(left[dim] for dim in dims))))
            masks = tuple(left[dim] for dim in (*masks, *masked))
        return Term(combine=combine, chain=tuple(chain), views=views, value=value, dims=dims, masks=masks)

    def _is_multiplied(self, value: Value) -> bool:
        """Return whether a matmul of the loop computes a value, whose elements then have threads of its own choice."""
        stack, seen = [value], {value.number}
        while stack:
            made = self.makers.of(stack.pop())
            if made is None:
                continue
            if multiplies(made):
                return True
            found = [each for each in made.values() if each.number not in seen]
            seen.update(each.number for each in found)
            stack += found
        return False

    def _reduces(self, op: Op, name: str) -> bool:
        """Return whether an op is a reduction of this name that may take any order, and is read once."""
        dtypes = (*_WIDE, *_NARROW) if name in _EXTREMES else _WIDE
        named = isinstance(op.attrs, ReduceAttrs) and op.attrs.name == name
        return named and op.result.dtype in dtypes and self._is_read_once(op)

    def _is_read_once(self, op: Op) -> bool:
        return self.uses[op.result.number] == 1


def _may_follow(op: Op, name: str) -> bool:
    """Return whether an op may follow the combination of all steps: a view, or a conversion, which keeps the order, of an
    extreme."""
    if isinstance(op.attrs, ViewAttrs):
        return True
    floats = (torch.float32, *_NARROW)
    converts = op.attrs == PointwiseAttrs("cast") and all(v.dtype in floats for v in (*op.values(), op.result))
    return name in _EXTREMES and converts


def memory_lanes(program: Program, value: Value, makers: Makers) -> Lanes:
    """Return how memory lies in the loads with all dimensions of ``value`` that it is computed from."""
    places: Counter[int] = Counter()
    vectors: list[int] = []
    vector = 1
    for op in _loads(value, makers):
        attrs = op.attributes(MemoryAttrs)
        tensor = program.tensors[attrs.tensor]
        itemsize, near = tensor.dtype.itemsize, None
        vector = max(vector, VECTOR_BYTES // itemsize)
        for index, stride in zip(attrs.indices, tensor.strides, strict=True):
            if index.positions and fixed_at(stride, 1):
                near = index.positions[-1]
                places[near] += 1
        steps = (hint_of(stride) * itemsize for stride in tensor.strides if not fixed_at(stride, 1))
        vectors.append(1 if near is None else max(1, math.gcd(VECTOR_BYTES, *steps) // itemsize))
    first = places.most_common(1)[0][0] if places else None
    return Lanes(first=first, vector=vector, vectors=tuple(vectors))


def _loads(value: Value, makers: Makers) -> Iterator[Op]:
    """Yield the loads of tiles with the dimensions of ``value`` that elementwise ops compute it from."""
    stack, seen = [value], {value.number}
    while stack:
        made = makers.of(stack.pop())
        if made is None:
            continue
        if made.kind == "load":
            yield made
        elif OPS[made.kind].per_lane or made.kind == "mask":
            found = [v for v in made.values() if v.dims == value.dims and v.number not in seen]
            seen.update(v.number for v in found)
            stack += found


__all__ = ["Body", "Term", "held_dtype", "may_reduce_late", "memory_lanes", "multiplies"]
