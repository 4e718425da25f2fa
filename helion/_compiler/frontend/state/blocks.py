"""Blocks of a trace: tiles, grids and whole dimensions, and the dimensions that sizes in device code denote."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from .... import exc
from ...._shapes import ONE, Dim, Dims, Expr, Number, hint_of, is_power_of_2, next_power_of_2, number_key
from ...ir.grammar import Block, BlockKind
from ..journal import Part
from ..polynomials import Polynomial, of_number
from ..values import Tile, describe
from .host_numbers import HostNumbers


class Blocks(Part):
    """All blocks of a trace. ``padded``: tiles have powers of two of lanes."""

    #: Extents of whole dimensions that reshapes are known to merge or split before the walk.
    known_counted: frozenset[int] = frozenset()

    def __init__(self, numbers: HostNumbers, padded: bool) -> None:
        self.numbers = numbers
        self.padded = padded
        self.all: list[Block] = []
        self.active: dict[int, Tile | None] = {}
        #: Number of branches on the device around the current position.
        self.branches = 0
        #: Order of the tiles in merged dimensions: their factors, outermost first; None where reshapes disagree.
        self.merged: dict[Dim, Dims | None] = {}
        #: Whole dimensions that reshapes merge or split: they have no more lanes than their next power of two.
        self.counted: set[int] = set()
        #: Extents of whole dimensions that had been widened when a reshape merged or split one.
        self.widened: set[int] = set()
        self._whole: dict[Any, Block] = {}
        #: Blocks that are a fraction of another block, by that block and the divisor.
        self._parts: dict[tuple[int, int], Block] = {}
        #: Twins of each block: blocks of the same size for nested loops over it.
        self._twins: dict[int, tuple[int, ...]] = {}

    def __getitem__(self, block: int) -> Block:
        return self.all[block]

    def new(self, kind: BlockKind, extent: Number | None, **fields: Any) -> Block:
        block = Block(id=len(self.all), kind=kind, extent=extent, **fields)
        self.all.append(block)
        return block

    def update(self, block: int, **fields: Any) -> None:
        self.all[block] = replace(self.all[block], **fields)
        if block in self.counted:
            self._check_counted(block)

    def count_lanes(self, dims: Iterable[Dim]) -> None:
        """Record that a reshape depends on the number of lanes of these dimensions, so that whole ones cannot be
        widened.
        """
        for block in (b for dim in dims for b in dim.blocks if self.all[b].kind == "full"):
            self.counted.add(block)
            self._check_counted(block)

    def _check_counted(self, block: int) -> None:
        extent, least = self.all[block].extent, self.all[block].min_size
        if self.cannot_widen(block, least):
            assert isinstance(extent, int)
            self.widened.add(extent)
            raise exc.TypeInferenceError(
                f"A matmul needs {least} lanes of a dimension of {extent} elements, but a reshape merges or splits it, "
                f"which limits it to {next_power_of_2(extent)}; reshape the tensor in host code and load from that."
            )

    def cannot_widen(self, block: int, least: int) -> bool:
        """Return whether a whole dimension has fewer than ``least`` lanes, and a reshape depends on their number."""
        extent = self.all[block].extent
        is_counted = self.padded and block in self.counted and isinstance(extent, int)
        return is_counted and least > next_power_of_2(extent)

    def lanes_of(self, dim: Dim) -> int | None:
        """Return the number of lanes of a dimension of tiles of constant size, and of whole dimensions that reshapes
        depend on; None if a config or a matmul may change it.
        """
        lanes = dim.const
        for block in (self.all[b] for b in dim.blocks):
            size = block.size
            if block.id in self.counted and isinstance(block.extent, int):
                size = next_power_of_2(block.extent) if self.padded else block.extent
            if not isinstance(size, int):
                return None
            lanes *= size
        return lanes

    def whole(self, extent: Number) -> Block:
        """Return the block of whole dimensions of ``extent`` elements; equal extents share one."""
        extent = self.numbers.known(extent)
        key = number_key(extent)
        self.numbers.rely_on(extent)
        if key not in self._whole:
            self._whole[key] = made = self.new("full", extent, name=f"r{len(self._whole)}")
            if isinstance(extent, int) and extent in self.known_counted:
                self.counted.add(made.id)
        return self._whole[key]

    def is_walked(self, block: Block) -> bool:
        """Return whether a loop over a block is open."""
        return block.id in self.active

    def has_no_tail(self, tile: Tile) -> bool:
        """Return whether all lanes of a tile are always in range."""
        size, extent = tile.block.size, self.all[tile.block.id].extent
        if tile.jagged is not None or not isinstance(size, int):
            return False
        return size == 1 or (isinstance(extent, int) and extent % size == 0)

    def hides_tail(self, dim: Dim) -> bool:
        """Return whether a dimension may have out-of-range lanes that no mask identifies: one of several tiles, or of a
        part of one.
        """
        if dim.block is not None:
            block = self.all[dim.block]
            return block.twin_of is None and block.base is not None and block.base in self.active
        return any(self.all[b].kind == "tile" for b in dim.blocks)

    def may_be_padded(self, dim: Dim) -> bool:
        """Return whether some lanes of a dimension may be out of range."""
        for block in dim.blocks:
            extent = self.all[block].extent
            known = self.all[block].kind == "full" and self.fills_lanes(extent)
            size = self.block_size(self.all[block])
            if not known and not (isinstance(size, int) and size == 1):
                return True
        return False

    def fills_lanes(self, extent: Number | None) -> bool:
        """Return whether a whole dimension has exactly as many lanes as elements."""
        return isinstance(extent, int) and (is_power_of_2(extent) or not self.padded)

    def block_size(self, block: Block) -> Number:
        block = self.all[block.id]
        if block.kind == "full":
            assert block.extent is not None
            return block.extent
        if block.size is not None and block.twin_of is None:
            return block.size
        return Expr("block", (block.id,), 64)

    def twins_text(self, *shapes: Dims) -> str:
        """Return a hint for shapes that do not match because two of their tiles share one block size."""
        tiles = dict.fromkeys(dim.block for dims in shapes for dim in dims if dim.block is not None)
        for block in tiles:
            root = self.all[block].twin_of
            if root is not None:
                others = [other for other in tiles if other != block and self.sized_by(other) == root]
                if others:
                    both = f"{self.all[others[0]].name} and {self.all[block].name}"
                    return (
                        f"; {both} are two tiles of one block size, which are two dimensions: give the tiles themselves as "
                        "sizes of values, as in hl.zeros([tile_i, tile_j]), or register a block size for each"
                    )
        return ""

    def sizes_text(self, *shapes: Dims) -> str:
        """Return a hint for shapes that do not match because the size of a whole dimension is known at run time only."""
        for position in range(-max(map(len, shapes)), 0):
            dims = [dims[position] for dims in shapes if -position <= len(dims)]
            whole = [
                self.all[b] for dim in dict.fromkeys(dims) if dim.const == 1 for b in dim.blocks[:1] if not dim.is_one
            ]
            sizes = [block.extent for block in whole if block.kind == "full"]
            symbols = [size for size in sizes if isinstance(size, Expr)]
            if len(sizes) > 1 and symbols:
                if len(symbols) > 1:
                    found = "; in this call " + " and ".join(f"{size!r} is {hint_of(size)}" for size in symbols)
                    return found + self._one_size(symbols)
                return self.size_text(symbols[0])
            fixed = [self.all[b].size for dim in dict.fromkeys(dims) if dim.const == 1 for b in dim.blocks[:1]]
            if len(symbols) == 1 and hint_of(symbols[0]) in [size for size in fixed if isinstance(size, int)]:
                return self.size_text(symbols[0])  # a tile of a size that the kernel gives
        return ""

    @staticmethod
    def _one_size(sizes: Sequence[Expr]) -> str:
        """Return the remedy for numbers that are equal in this call, and may be in all."""
        if len({hint_of(size) for size in sizes}) > 1:
            return ""
        return ": if they are equal in all calls, make the parts with one number, as in x.narrow(1, start, n)"

    def size_text(self, size: Number | None) -> str:
        """Return a hint for a size that would have to be another number, if it is known at run time only."""
        if not isinstance(size, Expr):
            return ""
        remedy = "mark it with hl.specialize in host code"
        if any(str(leaf.args[0]).startswith("host_size_") for leaf in size.leaves()):  # of no argument: ``deferred``
            remedy = f"make that tensor by a view to this number, as in x.view(-1, {hint_of(size)})"
        other = self.numbers.equal_sizes(size)
        here = f"{hint_of(size)} in this call{other and f', as {other}'}"
        return f"; {size!r} ({here}) is known at run time only: {remedy}"

    def dim_text(self, dim: Dim) -> str:
        parts = [self.all[b].name if self.all[b].kind != "full" else repr(self.all[b].extent) for b in dim.blocks]
        return "*".join([*([str(dim.const)] if dim.const != 1 or not parts else []), *parts])

    def dims_text(self, dims: Dims) -> str:
        return f"[{', '.join(map(self.dim_text, dims))}]"

    def size_of(self, dim: Dim) -> Number:
        size: Number = dim.const
        for block in dim.blocks:
            size = self.block_size(self.all[block]) * size
        return size

    def dim_of(self, size: Any) -> Dim:
        """Return the dimension that a size in device code denotes: a tile, a block size, a constant, or a product of
        them.
        """
        if isinstance(size, Tile):
            return Dim(blocks=(size.block.id,))
        size = self.numbers.known(size)
        if isinstance(size, bool) or not isinstance(size, (int, Expr)):
            raise exc.ShapeSpecializingAllocation(size=describe(size))
        if isinstance(size, int):
            return ONE if size == 1 else Dim(blocks=(self.whole(size).id,))
        found = self._dim_of_expression(size)
        if found is None:
            raise exc.ShapeSpecializingAllocation(size=self.numbers.text_of(size))
        return found

    def _dim_of_expression(self, size: Expr) -> Dim | None:
        if size.op == "block":
            return Dim(blocks=size.args)
        if number_key(size) in self._whole:
            return Dim(blocks=(self._whole[number_key(size)].id,))
        if size.op == "mul":
            first, second = (self.dim_of(arg) for arg in size.args)
            # canonical order: one size is one dimension however it is written, so tiles precede constants
            return first * second if self._has_tile(first) or not self._has_tile(second) else second * first
        return self.dim_of_polynomial(of_number(size))

    def _has_tile(self, dim: Dim) -> bool:
        return any(self.all[block].kind == "tile" for block in dim.blocks)

    def dim_of_polynomial(self, size: Polynomial) -> Dim | None:
        """Return the dimension of a size; None if it has none.

        A dimension exists for constants, block sizes times a constant, fractions of a block size, and sizes of known
        whole dimensions.
        """
        if size.constant is not None:
            return self.dim_of(size.constant) if size.constant > 0 else None
        dim = self._product(size) if len(size.terms) == 1 else None
        if dim is None:
            known = size.number()
            whole = None if known is None else self._whole.get(number_key(known))
            return None if whole is None else Dim(blocks=(whole.id,))
        for block, least in size.needs.items():
            self.require(block, least)
        return dim

    def _product(self, size: Polynomial) -> Dim | None:
        ((atoms, factor),) = size.terms.items()
        if factor < 0 or not all(atom[0] == "block" for atom in atoms):
            return None
        *others, last = (atom[1] for atom in atoms)
        if factor.denominator > 1:
            last = self.part(last, factor.denominator).id
        return Dim(blocks=(*others, last)) * self.dim_of(factor.numerator)

    def polynomial_of(self, dim: Dim) -> Polynomial:
        """Return the size of a dimension."""
        return of_number(self.size_of(dim))

    def share(self, block: Block) -> tuple[Fraction, int]:
        """Return the fraction that a block is of another, and that other block, whose size is independent."""
        if block.base is None:
            return Fraction(1), block.id
        share, whole = self.share(self.all[block.base])
        assert isinstance(block.size, Expr)
        return (share if block.twin_of is not None else share / block.size.args[1]), whole

    def sized_by(self, block: int) -> int:
        """Return the block whose size a block has: that of which it is a twin, else the block itself."""
        twin_of = self.all[block].twin_of
        return block if twin_of is None else twin_of

    def is_tunable(self, block: int) -> bool:
        """Return whether the config gives the size of a block, itself or as that of another."""
        return self.all[self.sized_by(block)].tunable

    def require(self, block: int, least: int) -> None:
        """Raise the smallest size of a block to ``least`` elements."""
        sized = self.sized_by(block)
        self.update(sized, min_size=max(least, self.all[sized].min_size))

    def limit(self, block: int, most: int) -> None:
        """Lower the largest size of a block to ``most`` elements."""
        self.update(self.sized_by(block), max_size=most)

    def unwalked(self, block: int, walked: Container[int], name: str) -> Block:
        """Return a block of the size of ``block`` that is not among those ``walked``: itself, or a twin. A new twin
        gets ``name``.

        Loops that follow each other share a block; nested ones have one each.
        """
        block = self.sized_by(block)
        twins = self._twins.get(block, ())
        for each in (block, *twins):
            if each not in walked:
                return self.all[each]
        made = self.new("tile", None, size=Expr("block", (block,), 64), name=name)
        self._twins[block] = (*twins, made.id)
        return made

    def part(self, block: int, count: int) -> Block:
        """Return the block whose size is that of ``block`` divided by ``count``, a power of two. No loop is over it."""
        if (block, count) not in self._parts:
            whole = self.all[block]
            size = Expr("floordiv", (Expr("block", (block,), 64), count), 64 // count)
            self._parts[block, count] = self.new("tile", None, size=size, name=f"{whole.name}_{count}")
        return self._parts[block, count]

    def dims_of(self, shape: Any) -> Dims:
        if isinstance(shape, (Tile, int, Expr)):
            shape = (shape,)
        if not isinstance(shape, (tuple, list)):
            raise exc.ShapeSpecializingAllocation(size=describe(shape))
        dims = [self.dim_of(size) for size in shape]
        for at, dim in enumerate(dims):
            if not isinstance(shape[at], Tile) and dim in dims[:at]:
                dims[at] = self._another(dim, dims[:at])
        return tuple(dims)

    def _another(self, dim: Dim, before: Sequence[Dim]) -> Dim:
        """Return the dimension of another open tile with the size of ``dim``, if there is one. A size that occurs twice
        in a shape means both tiles where two have it.
        """
        whole = None if dim.block is None else self.sized_by(dim.block)
        twins = () if whole is None else (whole, *self._twins.get(whole, ()))
        others = (Dim(blocks=(twin,)) for twin in twins if twin in self.active)
        return next((other for other in others if other not in before), dim)
