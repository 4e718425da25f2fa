"""Computes matmuls in a separate, earlier grid loop, if each program would otherwise hold whole rows of them.

A program that reduces the rows of a matmul has registers for few rows, too few to keep the MMA busy. Before::

    grid b0 in 0..m: %1: [b0, b1] = for b2 in 0..k: dot x[b0, b2], y[b2, b1]
                     %2: [b0] = reduce sum %1 over 1; ..

After, with separate tiles b3, b4, b5 of the matmul, so that the row tiles do not depend on it::

    grid b3 in 0..m, b4 in 0..n: %3: [b3, b4] = for b5 in 0..k: dot x[b3, b5], y[b5, b4]; store products[b3, b4] <- %3
    grid b0 in 0..m: %1: [b0, b1] = load products[b0, b1]
                     %2: [b0] = reduce sum %1 over 1; ..

A matmul that a kernel computes again for another pass over its rows is computed once. The stored values have the dtype
of the accumulator, or a narrower one if all uses cast to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch

from ..._shapes import ONE, Dim, Dims, Expr, Number, cdiv, fixed_at, number_key
from ...fields import IntegerFragment, PowerOfTwoFragment, values_of
from ...hardware import Target
from ..decisions import Decisions
from ..ir.build import Builder, Numbers
from ..ir.effects import written_by
from ..ir.grammar import (
    Block,
    ForAttrs,
    HostTensor,
    Index,
    IotaAttrs,
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
    ViewAttrs,
)
from ..ir.rewrite import Declined, Makers, expand_ops, remembered
from ..passes.always.phases import insert_before
from ..passes.always.simplify import drop_dead
from ..passes.analysis.matmuls import Product, find_products
from .record import FactContext, LaunchKey, Rewrite, RuleContext, TileSides, Values, has_matmul_of_open_sizes

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


# --- the grid loop of the matmuls -------------------------------------------------------------------------------------


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


@dataclass
class _Copy:
    """A copy of the ops that compute a matmul, in other tiles. It has each op once per required result shape."""

    program: Program
    product: Product
    makers: Makers
    written: frozenset[int | None]
    numbers: Numbers
    #: Blocks of the tiles of the matmul, along its own dimensions and along K.
    tiles: tuple[int, ...]
    depth: int
    apart: Callable[[LoopAxis], int]
    front: list[Op] = field(default_factory=list)
    body: list[Op] = field(default_factory=list)
    made: dict[tuple[int, Dims], Value] = field(default_factory=dict)
    #: Values that differ between tiles along K.
    inside: set[int] = field(default_factory=set)
    #: Axes around the matmul that its operands depend on, besides those of its dimensions: the new block of each.
    axes: dict[int, int] = field(default_factory=dict)

    @property
    def dims(self) -> Dims:
        return tuple(Dim(1, (block,)) for block in self.tiles)

    def operands(self) -> tuple[Operand, Operand]:
        """Return the operands of the dot."""
        k = Dim(1, (self.depth,))
        *batch, m, n = self.dims
        lhs, rhs = list(self.product.dot.values())[:2]
        return self.copy(lhs, (*batch, m, k)), self.copy(rhs, (*batch, k, n))

    def copy(self, operand: Operand, dims: Dims) -> Operand:
        if not isinstance(operand, Value):
            return operand
        dims = tuple(ONE if old.is_one else new for old, new in zip(operand.dims, dims, strict=True))
        key = operand.number, dims
        if key not in self.made:
            op = self.makers.of(operand)
            if op is None:
                raise Declined("an operand of a matmul depends on a value that a loop carries")
            self.made[key] = self.again(op, operand, dims)
        return self.made[key]

    def again(self, op: Op, value: Value, dims: Dims) -> Value:
        operands, attrs = self.rewritten(op, value, dims)
        result = self.numbers.value(value.dtype, dims, value.name)
        along = any(self.depth in dim.blocks for dim in dims)
        if along or any(isinstance(o, Value) and o.number in self.inside for o in operands):
            self.inside.add(result.number)
        ops = self.body if result.number in self.inside else self.front
        Builder(self.numbers, op.location, ops).repeat(op, operands=operands, results=(result,), attrs=attrs)
        return result

    def rewritten(self, op: Op, value: Value, dims: Dims) -> tuple[tuple[Operand, ...], Any]:
        """Return operands and attributes of an op whose new result has the dimensions ``dims``."""
        match op.attrs:
            case NumberAttrs(expr=expr) if not _measures(expr):
                return (), op.attrs
            case TileAttrs():
                return (), self.place(op.attrs)
            case IotaAttrs(relative=False):
                (block,) = dims[0].blocks
                return (), replace(op.attrs, block=block)
            case MemoryAttrs() if op.kind == "load":
                return self.load(op, op.attrs, dims)
            case ViewAttrs():
                (source,) = op.values()
                return (self.copy(source, _before(op.attrs, source.dims, value.dims, dims)),), op.attrs
        if op.kind in ("full", "pointwise", "mask"):
            return tuple(self.copy(o, _aligned(o, dims)) for o in op.operands), op.attrs
        raise Declined(f"an operand of a matmul is the result of {op.kind}")

    def place(self, attrs: TileAttrs) -> TileAttrs:
        """Return the index along an axis that has one program for each."""
        axis = self.product.around.get(attrs.block)
        own = dict(zip((axis.block for axis in self.product.axes), self.tiles, strict=True))
        single = axis is not None and _is_single(self.program.blocks[attrs.block], axis)
        if not single or attrs.field not in ("index", "begin"):
            raise Declined("an operand of a matmul depends on the begin of a tile")
        assert axis is not None
        if attrs.block in own:
            return TileAttrs(own[attrs.block], attrs.field)
        self.axes.setdefault(attrs.block, self.apart(axis))
        return TileAttrs(self.axes[attrs.block], "index")

    def load(self, op: Op, attrs: MemoryAttrs, dims: Dims) -> tuple[tuple[Operand, ...], MemoryAttrs]:
        tensor = self.program.tensors[attrs.tensor]
        if None in self.written or tensor.storage in self.written:
            raise Declined(f"a matmul reads {tensor.name}, which the kernel writes")
        wanted: dict[int, Dims] = {} if attrs.mask is None else {attrs.mask: dims}
        indices = []
        for index in attrs.indices:
            if _measures(index.shift):
                raise Declined("an operand of a matmul depends on tile sizes")
            along = tuple(dims[at] for at in index.positions)
            if index.operand is not None:
                wanted[index.operand] = along if index.kind == "tensor" else ()
            indices.append(replace(index, block=along[0].block) if index.kind == "block" else index)
        operands = (self.copy(o, _aligned(o, wanted[at])) for at, o in enumerate(op.operands))
        return tuple(operands), replace(attrs, indices=tuple(indices))


def _is_single(block: Block, axis: LoopAxis) -> bool:
    """Return whether an axis has one program for each index from 0."""
    one = fixed_at(axis.step, 1) if axis.scalar else fixed_at(block.size, 1) or fixed_at(block.max_size, 1)
    known = isinstance(axis.end, (int, Expr)) and fixed_at(axis.begin, 0)
    return one and known and axis.jagged is None and not axis.merged and axis.split is None


def _aligned(operand: Operand, dims: Dims) -> Dims:
    """Return the last of ``dims``, as many as an operand has that broadcasts to them."""
    rank = len(operand.dims) if isinstance(operand, Value) else 0
    return dims[len(dims) - rank :]


def _before(attrs: ViewAttrs, source: Dims, result: Dims, dims: Dims) -> Dims:
    """Return the new dimensions of the source of a view, given the ``dims`` of its result, which were ``result``."""
    if attrs.name == "permute":
        return tuple(dims[attrs.order.index(at)] for at in range(len(source)))
    if attrs.name == "broadcast":
        return dims[len(dims) - len(source) :]
    lanes = [new for old, new in zip(result, dims, strict=True) if not old.is_one]
    if [dim for dim in source if not dim.is_one] != [dim for dim in result if not dim.is_one]:
        raise Declined("a reshape moves lanes of a matmul operand to another dimension")
    remaining = iter(lanes)
    return tuple(ONE if dim.is_one else next(remaining) for dim in source)


def _end(axis: LoopAxis) -> Any:
    """Return the end of an axis as a number that the host knows."""
    assert not isinstance(axis.end, OperandRef)
    return axis.end


def _measures(number: Number) -> bool:
    """Return whether a number depends on tile sizes."""
    return isinstance(number, Expr) and any(leaf.op == "block" for leaf in number.leaves())


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
        return replace(changed, roots=insert_before(changed, rows, [each.root for each in made.values()]))

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
        copy = _Copy(
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

    def summing(self, each: Product, copy: _Copy, operands: tuple[Operand, Operand]) -> Value:
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

    def storing(self, each: Product, copy: _Copy, total: Value, tensor: HostTensor, indices: list[int]) -> None:
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


# --- the record ------------------------------------------------------------------------------------------------------


Facts = TypeVar("Facts")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class UnfusedMatmulFact(Generic[Facts]):
    """A kernel whose matmuls are computed first, in separate grid loops: facts of the matmuls (``products``) and of the
    remaining kernel (``rest``).

    Both have the same axes. ``rows``, ``columns`` and ``depths`` are the axes of the matmul tiles: M, N and K.
    """

    products: Facts
    rest: Facts
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    depths: tuple[int, ...]


def _fact(context: FactContext) -> UnfusedMatmulFact[Any] | str:
    """Return the facts of both parts, or the reason why matmuls cannot be computed first."""
    if not context.dots:
        return "the kernel has no matmul"
    try:
        made, sides = split_off(context.program, (None, None, None))
    except Declined as declined:
        return str(declined)
    traced = len(context.program.roots)
    rest, first = (_alone(made, roots) for roots in (made.roots[:traced], made.roots[traced:]))
    return UnfusedMatmulFact(
        products=context.collect(first),
        rest=context.collect(rest),
        rows=sides.rows,
        columns=sides.columns,
        depths=sides.depths,
    )


def _alone(program: Program, roots: tuple[Root, ...]) -> Program:
    """Return a program with some of the grid loops. Tiles of other loops get size 1, so no config key sizes them."""
    part = replace(program, roots=roots)
    walked = {axis.block for root in roots for axis in root.axes}
    walked |= {axis.block for op in part.walk() if isinstance(op.attrs, ForAttrs) for axis in op.attrs.axes}
    blocks = (replace(b, size=1) if b.tunable and b.id not in walked else b for b in program.blocks)
    return replace(part, blocks=tuple(blocks))


#: Sides of tiles.
_LEAST_SIDE, _MOST_SIDE, _MOST_DEPTH = 16, 256, 256
_WARPS, _STAGES = PowerOfTwoFragment(1, 32), IntegerFragment(1, 8)


def matmul_tile(decisions: Decisions) -> tuple[int, int, int] | None:
    """Return the M, N and K of the tiles of unfused matmuls; None if matmuls stay fused."""
    asked = decisions.values.get("unfuse_matmul")
    return None if asked is None else (asked[0], asked[1], asked[2])


def matmul_launch(decisions: Decisions) -> tuple[int, int]:
    """Return the warps and pipeline stages of the kernel of unfused matmuls."""
    values = decisions.values
    return values["matmul_num_warps"] or values["num_warps"], values["matmul_num_stages"] or values["num_stages"]


def _values(program: Program, target: Target) -> Values:
    made, blocks = split_off(program, (None, None, None))
    sides = ((blocks.rows, _MOST_SIDE), (blocks.columns, _MOST_SIDE), (blocks.depths, _MOST_DEPTH))
    least = ([_LEAST_SIDE, *(made.blocks[block].min_size for block in of)] for of, _ in sides)
    pairs = zip(least, sides, strict=True)
    return Values(legal=TileSides(sides=tuple(PowerOfTwoFragment(max(low), high) for low, (_, high) in pairs)))


def _applies(program: Program, target: Target) -> str:
    try:
        products(program)
    except Declined as declined:
        return str(declined)
    return ""


def _fit(context: RuleContext, value: Any, decisions: Decisions) -> Any:
    return value if offsets_fit(context.program) else None


def _warps(target: Target) -> tuple[int, ...]:
    most = min(_WARPS.high, target.max_threads_per_block // target.warp_size)
    return values_of(PowerOfTwoFragment(_WARPS.low, most))


UNFUSE_MATMUL = Rewrite(
    key="unfuse_matmul",
    doc="Tile sizes (M, N, K), such as `[128, 128, 32]`, of a separate kernel that first computes the matmuls whose rows are reduced, and stores them; None computes them where they are used.",
    off=None,
    range=PowerOfTwoFragment(1, _MOST_SIDE),
    values=_values,
    applies=_applies,
    varies=has_matmul_of_open_sizes,
    fit=_fit,
    needs="unfused matmuls need an intermediate below 2**31 elements and a pid_type other than 'xyz', and replace their loops with all options",
    resets={
        "epilogue_subtile": None,
        "split_k": 1,
        "pack_operands": False,
        "precompute_operands": False,
        "fuse_loops": False,
        "flatten_loops": False,
    },
    removes=frozenset(("loops", "accesses")),
    numbered=True,
    launch=(
        LaunchKey(
            key="matmul_num_warps",
            doc="Warps of the kernel that computes such matmuls first; None takes `num_warps`.",
            of="num_warps",
            range=_WARPS,
            values=_warps,
        ),
        LaunchKey(
            key="matmul_num_stages",
            doc="Pipeline stages of its loop; None takes `num_stages`.",
            of="num_stages",
            range=_STAGES,
            values=lambda target: values_of(_STAGES),
        ),
    ),
    fact=_fact,
    apply=lambda program, value, inputs: unfuse_matmul(program, value),
)
