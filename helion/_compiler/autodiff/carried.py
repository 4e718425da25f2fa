"""What loops carry: sums, whose gradients are the same in every iteration, and other values, which are kept for each.

Going back through a loop whose carried values are no sums takes them as they were before each iteration, and takes the
iterations in the opposite order. They are kept: what an iteration carries has fewer bytes than what made it has read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ... import exc
from ..._shapes import Dims
from ..ir.grammar import ForAttrs, LoopAxis, Op, OperandRef, PointwiseAttrs, Program, Region, Value
from ..ir.rewrite import Makers
from .refusal import not_supported
from .spelling import Spelling, dtype_text


@dataclass(frozen=True, kw_only=True)
class Tape:
    """A buffer for one carried value: ``allocation`` is its statement but for the device, ``index`` the subscripts of the
    programs that have one."""

    name: str
    sizes: tuple[str, ...]
    dtype: torch.dtype
    index: tuple[str, ...]

    def allocation(self, device: str) -> str:
        return f"{self.name} = torch.empty([{', '.join(self.sizes)}], dtype={dtype_text(self.dtype)}, device={device})"

    def place(self, iteration: str) -> str:
        return f"{self.name}[{', '.join([*self.index, iteration])}]"


@dataclass(frozen=True, kw_only=True)
class Reversal:
    """How a loop is gone through backwards. ``size`` is the expression of its block size, "" for a loop over indices;
    ``tapes`` are those of its params, in order; ``iteration`` numbers an iteration on the way there, ``count`` is how many there are."""

    axis: LoopAxis
    size: str
    count: str
    iteration: str
    tapes: tuple[Tape, ...]


def is_sum(param: Value, result: object, region: Region) -> bool:
    """Whether a loop adds to what it carries, and does nothing else with it."""
    if result is param:
        return True
    inner = [op for op in region.walk()]
    uses: dict[int, list[Op]] = {}
    for op in inner:
        for value in op.values():
            uses.setdefault(value.number, []).append(op)
    yielded = [r.number for nested in _regions(region) for r in nested.results if isinstance(r, Value)]
    own = {op.number for op in region.ops}
    value = param
    while True:
        users = uses.get(value.number, [])
        if value is result:
            return not users and yielded.count(value.number) == 1
        if len(users) != 1 or users[0].number not in own or value.number in yielded:
            return False
        (user,) = users
        if not _passes(user, value) or user.result.dims != param.dims:
            return False
        value = user.result


def _regions(region: Region) -> list[Region]:
    found = [region]
    for op in region.ops:
        for inner in op.regions:
            found += _regions(inner)
    return found


def _passes(op: Op, value: Value) -> bool:
    """Whether an op adds something to a value and gives the sum."""
    if op.kind == "dot":
        return value is op.operands[-1] and len(op.operands) == 3 and op.operands[0] is not value
    if not isinstance(op.attrs, PointwiseAttrs):
        return op.kind == "mask"
    if op.attrs.name == "add":
        return op.operands[0] is not op.operands[1]
    return op.attrs.name == "cast" or (op.attrs.name == "sub" and op.operands[0] is value is not op.operands[1])


def needs_iterations(op: Op, name: str) -> exc.Base:
    """The refusal of a loop."""
    return not_supported(
        f"a loop that carries {name or 'a value'!r} otherwise than as a sum",
        "its values in each iteration cannot be kept here: use one loop of constant bounds right inside of the grid loop, "
        "or compute over the whole dimension with `:`",
        op,
    )


class Reversals:
    """Plans how loops are gone through backwards."""

    def __init__(self, program: Program, spelling: Spelling, active: frozenset[int]) -> None:
        (self.root,) = program.roots
        self.program = program
        self.spelling = spelling
        self.active = active
        self.makers = Makers.among(program.walk())
        self.registered: list[str] = []
        self.tapes: list[Tape] = []
        self.known: dict[int, Reversal] = {}
        self.top = {op.number for op in self.root.body.ops}

    def of(self, op: Op) -> Reversal | None:
        """The reversal of a loop, None for one that only adds to what it carries, or that no gradient goes through."""
        (region,) = op.regions
        pairs = list(zip(region.params, region.results, strict=True))
        if all(is_sum(p, r, region) for p, r in pairs) or not any(p.number in self.active for p in region.params):
            return None
        if op.number not in self.known:
            self.known[op.number] = self._plan(op, region)
        return self.known[op.number]

    def _plan(self, op: Op, region: Region) -> Reversal:
        axes = op.attributes(ForAttrs).axes
        changed = next(p for p, r in zip(region.params, region.results, strict=True) if not is_sum(p, r, region))
        (axis, *others) = axes
        constant = not isinstance(axis.begin, OperandRef) and not isinstance(axis.end, OperandRef)
        plain = constant and axis.begin == 0 and axis.step == 1 if isinstance(axis.begin, int) else False
        if others or not plain or op.number not in self.top or axis.jagged is not None:
            raise needs_iterations(op, changed.name)
        assert not isinstance(axis.end, OperandRef)
        end, tile = self.spelling.number(axis.end), self.spelling.tile(axis.block)
        size, count, iteration = "", end, tile
        if not axis.scalar:
            size = self._size(axis, end, tile)
            count, iteration = f"helion.cdiv({end}, {size})", f"{tile}.id"
        tapes = tuple(self._tape(p, op, count) for p in region.params)
        return Reversal(axis=axis, size=size, count=count, iteration=iteration, tapes=tapes)

    def _size(self, axis: LoopAxis, end: str, tile: str) -> str:
        block = self.program.blocks[axis.block]
        if block.size is not None:
            return self.spelling.number(block.size)
        name = self.spelling.names.fresh(f"block_{tile}")
        self.registered.append(f"{name} = hl.register_block_size({end})")
        return name

    def _tape(self, param: Value, op: Op, count: str) -> Tape:
        blocks = {b for d in param.dims for b in d.blocks}
        single = all(d.is_one or d.block is not None for d in param.dims)
        if not single or any(not a.scalar and a.block not in blocks for a in self.root.axes):
            raise needs_iterations(op, param.name)
        ends = {a.block: a.end for a in self.root.axes}
        scalars = [a for a in self.root.axes if a.scalar]
        sizes = [self._number(a.end, op, param) for a in scalars]
        index = [self.spelling.tile(a.block) for a in scalars]
        for dim in param.dims:
            if dim.is_one:
                continue
            assert dim.block is not None
            block = self.program.blocks[dim.block]
            whole = block.kind == "full"
            if not whole and block.id not in ends:
                raise needs_iterations(op, param.name)
            sizes.append(self.spelling.number(block.extent or 0) if whole else self._number(ends[block.id], op, param))
            index.append(":" if whole else self.spelling.tile(block.id))
        name = self.spelling.names.fresh(f"each_{param.name or 'carried'}")
        tape = Tape(name=name, sizes=(*sizes, count), dtype=param.dtype, index=tuple(index))
        self.tapes.append(tape)
        return tape

    def _number(self, end: object, op: Op, param: Value) -> str:
        if isinstance(end, OperandRef):
            raise needs_iterations(op, param.name)
        return self.spelling.number(end)  # type: ignore[arg-type]


def without_ones(dims: Dims) -> Dims:
    """The dimensions that a tape has of a value."""
    return tuple(d for d in dims if not d.is_one)


__all__ = ["Reversal", "Reversals", "Tape", "is_sum", "needs_iterations", "without_ones"]
