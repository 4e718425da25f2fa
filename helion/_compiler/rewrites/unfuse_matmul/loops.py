"""The grid loops of unfused matmuls, and the loads of their results; the package has before and after."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from ...._shapes import Expr, cdiv, number_key
from ...._support.records import dataclass, replace
from ...ir.build import Builder, Numbers
from ...ir.effects import written_by
from ...ir.grammar import (
    Block,
    ForAttrs,
    HostTensor,
    Index,
    LoopAxis,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    OperandRef,
    Program,
    Region,
    Root,
    TileAttrs,
    Value,
)
from ...ir.rewrite import Makers, expand_ops, remembered
from ...passes.always.phases import insert_before
from ...passes.always.simplify import drop_dead
from ...passes.analysis.matmuls import Product, find_products
from .operands import OperandCopy

#: Row stride granularity in elements: 16 bytes of any dtype, also if only launches know the row length.
_ALIGNED = 16
#: Offsets of 32 bits cover fewer elements.
_MOST_ELEMENTS = 2**31
_NAME = "_helion_products"


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Blocks of the tiles of matmuls: M, N and K."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depths: tuple[int, ...]


Tile = tuple[int | None, int | None, int | None]


def products(program: Program) -> tuple[Product, ...]:
    """Return all matmuls of a program.

    Raises ``Declined`` with the reason if one of them cannot be computed first. It also declines if each program
    computes one tile of the matmul already, since then there is no gain.
    """
    return _known(program).found


def unfuse_matmul(program: Program, tile: Tile) -> Program:
    """Return the program with its matmuls in an earlier grid loop, in tiles of M, N and K.

    The size of a tile is left open if it is None. Raises ``Declined`` as ``products`` does.
    """
    return split_off(program, tile)[0]


def split_off(program: Program, tile: Tile) -> tuple[Program, Sides]:
    """Return the result of ``unfuse_matmul``, and the blocks of the tiles."""
    known = _known(program)
    sizes: dict[int, int | None] = dict.fromkeys(known.sides.rows, tile[0])
    sizes.update(dict.fromkeys(known.sides.columns, tile[1]))
    sizes.update(dict.fromkeys(known.sides.depths, tile[2]))
    blocks = (replace(b, size=sizes[b.id]) if b.id in sizes else b for b in known.made.blocks)
    return replace(known.made, blocks=tuple(blocks)), known.sides


@dataclass(frozen=True, kw_only=True, eq=False)
class _Known:
    """The matmuls of a program, the program that computes them first, and its tiles with open sizes."""

    found: tuple[Product, ...]
    made: Program
    sides: Sides


@remembered
def _known(program: Program) -> _Known:
    found = find_products(program)
    rewriter = _Rewriter(program, found)
    return _Known(found=found, made=rewriter.program(), sides=rewriter.sides())


def offsets_fit(program: Program) -> bool:
    """Return whether 32-bit offsets cover all elements of matmuls of known size; others have 64-bit offsets."""
    made = unfuse_matmul(program, (None, None, None))
    if program.index_dtype == torch.int64:
        return True
    sizes = (tensor.shape[0] * tensor.strides[0] for tensor in made.tensors[len(program.tensors) :])
    return all(isinstance(size, Expr) or size < _MOST_ELEMENTS for size in sizes)


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """A grid loop that computes a matmul, and the tensor that it stores to."""

    root: Root
    tensor: HostTensor


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """Location of a matmul's result.

    ``apart`` are the axes around it, with one program for each index, that it depends on but has no dimension along.
    They come first in the tensor.
    """

    tensor: HostTensor
    apart: tuple[LoopAxis, ...]


class _Rewriter:
    def __init__(self, program: Program, found: tuple[Product, ...]) -> None:
        self.before, self.found = program, found
        (self.root,) = program.roots
        self.numbers = Numbers.after(program)
        self.makers = Makers.among(self.root.body.walk())
        printed = any(op.kind == "print" for op in self.root.body.walk())
        self.written = written_by(program, self.root.body.walk()) | (frozenset((None,)) if printed else frozenset())
        taken = (op.attrs.slot for op in program.walk() if isinstance(op.attrs, MemoryAttrs))
        self.slots = itertools.count(1 + max(taken))
        self.blocks = list(program.blocks)
        #: Blocks of matmuls by their purpose: matmuls of equal sizes share them.
        self.known: dict[tuple[Any, ...], int] = {}

    def program(self) -> Program:
        made: dict[tuple[Any, ...], _Stored] = {}
        of: dict[tuple[int, int], _Kept] = {}
        for each in self.found:
            apart, stored = self.stored(each, len(made))
            known = made.setdefault((each.dtype, _identity(stored.root)), stored)
            of[each.op.number, each.at] = _Kept(tensor=known.tensor, apart=apart)
        changed = expand_ops(self.before, lambda op: self.loading(op, of))
        tensors = (*self.before.tensors, *(each.tensor for each in made.values()))
        changed = replace(self.before, tensors=tensors, blocks=tuple(self.blocks), roots=drop_dead(changed).roots)
        (rows,) = changed.roots
        # In one launch, the stages of each loop would have shared memory of their own, though a program runs one loop.
        return replace(changed, roots=insert_before(changed, rows, [each.root for each in made.values()], alone=True))

    def sides(self) -> Sides:
        def of(side: str) -> tuple[int, ...]:
            return tuple(block for (name, *_), block in self.known.items() if name == side)

        return Sides(rows=of("rows"), columns=of("columns"), depths=of("depth"))

    def block(self, side: str, axis: LoopAxis) -> int:
        """Return the block of the tiles along an axis."""
        old = self.before.blocks[axis.block]
        key = side, axis.block if side == "index" else (number_key(axis.end), old.min_size)
        if key not in self.known:
            self.known[key] = len(self.blocks)
            self.blocks.append(
                Block(
                    id=len(self.blocks),
                    kind="grid" if side == "index" else "tile",
                    extent=axis.end,  # type: ignore[arg-type]
                    size=1 if side in ("index", "batch") else None,
                    name=f"{old.name} of the product",
                    min_size=1 if side in ("index", "batch") else old.min_size,
                )
            )
        return self.known[key]

    def stored(self, each: Product, number: int) -> tuple[tuple[LoopAxis, ...], _Stored]:
        """Return the axes around a matmul that it depends on, and the grid loop that computes it."""
        *batch, m, n = each.axes
        tiles = [self.block("batch", axis) for axis in batch]
        tiles += [self.block("rows", m), self.block("columns", n)]
        k = self.block("depth", each.depth)
        copy = OperandCopy(
            self.before,
            each,
            self.makers,
            self.written,
            self.numbers,
            tuple(tiles),
            k,
            lambda axis: self.block("index", axis),
        )
        operands = copy.operands()
        apart = tuple(axis for block, axis in each.around.items() if block in copy.axes)
        tensor = self.tensor(each, apart, number)
        total = self.summing(each, copy, operands)
        indices = [copy.axes[axis.block] for axis in apart]
        self.storing(each, copy, total, tensor, indices)
        axes = (
            *(LoopAxis(block, 0, axis.end, scalar=True) for block, axis in zip(indices, apart, strict=True)),
            *(LoopAxis(block, 0, axis.end) for block, axis in zip(tiles, each.axes, strict=True)),
        )
        root = replace(self.root, axes=axes, body=Region((), tuple(copy.front), ()))
        return apart, _Stored(root=root, tensor=tensor)

    def summing(self, each: Product, copy: OperandCopy, operands: tuple[Operand, Operand]) -> Value:
        """Append the loop along K and return the accumulator."""
        out = Builder(self.numbers, each.op.location, copy.front)
        dtype, name = each.value.dtype, each.value.name
        start = out.emit("full", (_zero(dtype),), dtype, copy.dims, name=name)
        param, total = self.numbers.value(dtype, copy.dims, name), self.numbers.value(dtype, copy.dims, name)
        inside = Builder(self.numbers, each.dot.location, copy.body)
        if each.casts:
            term = inside.emit("dot", operands, each.dot.result.dtype, copy.dims, each.dot.attrs)
            for cast in each.casts:
                term = inside.cast(term, cast.result.dtype)
            following = inside.pointwise("add", param, inside.cast(term, dtype))
        else:
            following = inside.emit("dot", (*operands, param), dtype, copy.dims, each.dot.attrs, name)
        attrs = ForAttrs((LoopAxis(copy.depth, 0, each.depth.end),), 1, chunked=True)
        out.append("for", (start,), (total,), attrs, (Region((param,), tuple(copy.body), (following,)),))
        return total

    def storing(self, each: Product, copy: OperandCopy, total: Value, tensor: HostTensor, indices: list[int]) -> None:
        out = Builder(self.numbers, each.op.location, copy.front)
        places = [out.emit("tile", (), self.before.index_dtype, (), TileAttrs(block, "index")) for block in indices]
        attrs = self.access(tensor, len(places), copy.tiles, first=1)
        out.emit("store", (out.cast(total, tensor.dtype), *places), tensor.dtype, copy.dims, attrs)

    def access(self, tensor: HostTensor, apart: int, tiles: Iterable[int], *, first: int) -> MemoryAttrs:
        scalars = (Index("scalar", operand=first + at) for at in range(apart))
        blocks = [Index("block", block=block, positions=(at,)) for at, block in enumerate(tiles)]
        return MemoryAttrs(tensor.id, (*scalars, *blocks), next(self.slots), len(blocks))

    def tensor(self, each: Product, apart: tuple[LoopAxis, ...], number: int) -> HostTensor:
        shape = tuple(_end(axis) for axis in (*apart, *each.axes))
        strides: list[Any] = [cdiv(shape[-1], _ALIGNED) * _ALIGNED, 1]
        for extent in shape[-2:0:-1]:
            strides.insert(0, strides[0] * extent)
        at = len(self.before.tensors) + number
        return HostTensor(
            id=at,
            name=f"products_{number}" if number else "products",
            source=f"{_NAME}_{number}",
            dtype=each.dtype,
            shape=shape,
            strides=tuple(strides),
            storage=1 + number + max(tensor.storage for tensor in self.before.tensors),
            made=True,
        )

    # --- the rows -----------------------------------------------------------------------------------------------------

    def loading(self, op: Op, of: Mapping[tuple[int, int], _Kept]) -> Iterator[Op]:
        """Yield ``op`` without its matmul results, and loads of these."""
        own = [each for each in self.found if each.op.number == op.number]
        if not own:
            yield op
            return
        left = {each.at: self.numbers.value(each.value.dtype, each.value.dims, each.value.name) for each in own}
        yield replace(op, results=tuple(left.get(at, value) for at, value in enumerate(op.results)))
        for each in own:
            yield from self.load(each, of[each.op.number, each.at])

    def load(self, each: Product, kept: _Kept) -> list[Op]:
        ops: list[Op] = []
        out = Builder(self.numbers, each.op.location, ops)
        places = [
            out.emit(
                "tile", (), self.before.index_dtype, (), TileAttrs(axis.block, "index" if axis.scalar else "begin")
            )
            for axis in kept.apart
        ]
        tensor, value = kept.tensor, each.value
        attrs = self.access(tensor, len(places), (axis.block for axis in each.axes), first=0)
        read = out.emit("load", places, tensor.dtype, value.dims, attrs, value.name)
        if tensor.dtype != value.dtype:
            read = out.cast(read, value.dtype)
        if each.initial is not None:
            read = out.pointwise("add", each.initial, read)
        ops[-1] = replace(ops[-1], results=(value,))
        return ops


def _identity(root: Root) -> tuple[Any, ...]:
    """Return a key that is equal for grid loops that compute the same matmul."""
    known: dict[int, int] = {}

    def name(operand: Operand) -> object:
        if isinstance(operand, Value):
            return ("value", known.setdefault(operand.number, len(known)))
        return type(operand).__name__, repr(operand)

    def described(op: Op) -> tuple[Any, ...]:
        attrs: object = op.attrs
        match attrs:
            case MemoryAttrs():
                shifts = tuple(number_key(index.shift) for index in attrs.indices)
                plain = tuple(replace(index, shift=0) for index in attrs.indices)
                written = op.kind == "store"
                attrs = (None if written else attrs.tensor, plain, shifts, attrs.mask, attrs.eviction)
            case NumberAttrs(expr=expr):
                attrs = expr.key
            case ForAttrs(axes=axes):
                attrs = tuple((axis.block, number_key(axis.end)) for axis in axes)
        params = tuple(name(param) for region in op.regions for param in region.params)
        inside = tuple(described(inner) for region in op.regions for inner in region.ops)
        results = tuple((name(result), result.dtype, result.dims) for result in op.results)
        return op.kind, tuple(map(name, op.operands)), attrs, params, inside, results

    axes = tuple((axis.block, number_key(axis.end), axis.scalar) for axis in root.axes)
    return axes, tuple(map(described, root.body.ops))


def _zero(dtype: torch.dtype) -> float | int:
    return 0.0 if dtype.is_floating_point else 0


def _end(axis: LoopAxis) -> Any:
    """Return the end of an axis as a number that the host knows."""
    assert not isinstance(axis.end, OperandRef)
    return axis.end
