"""The loops of attention in a program: the grid over heads and queries, and the loop over keys with two dots."""

from __future__ import annotations

from collections.abc import Mapping

from ....._compiler.ir.grammar import (
    ForAttrs,
    HostTensor,
    IotaAttrs,
    LoopAxis,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Region,
    Root,
    TileAttrs,
    Value,
)
from ....._shapes import Dim, Expr
from ....._support.records import dataclass, field
from ...plan.attention.numbers import is_known
from ...plan.attention.operands import Source
from ...plan.records import WGMMA_ROWS
from ...plan.refusal import Refusal
from ..numbers import equal, size
from .numbers import LaunchNumbers


@dataclass(frozen=True, kw_only=True)
class Loops:
    """The loops of a program with two chained dots.

    ``heads`` are the blocks of the grid other than that of the queries, each of one element at a time. ``columns`` is
    the block of the columns of v.
    """

    program: Program
    root: Root
    loop: Op
    makers: Mapping[int, Op]
    heads: tuple[int, ...]
    queries: int
    keys: int
    first: Op
    """The op whose result is q @ k.T: a dot, or the sum of the two dots ``terms``."""
    second: Op
    numbers: LaunchNumbers = field(compare=False)
    loaded: dict[Source, int | Expr] = field(default_factory=dict, compare=False)
    """Integers that are loaded for each head, and their arguments of a launch."""
    terms: tuple[Op, ...] = ()
    """The dots of the scores, of parts of the dimensions of a head."""
    rows: int = 0
    """The queries of a fixed tile whose number selects what is loaded, as the blocks of keys that it sees: then each tile is a
    head, and its number the last coordinate. Otherwise 0."""

    def maker(self, value: Operand) -> Op | None:
        return self.makers.get(value.number) if isinstance(value, Value) else None

    def stripped(self, value: Operand) -> Op | None:
        """Return the op that makes a value, without views and masks."""
        made = self.maker(value)
        while made is not None and made.kind in ("view", "mask"):
            made = self.maker(made.operands[0])
        return made

    def block(self, dim: Dim) -> int | None:
        """Return the block of a dimension; None for dimensions of one element and those of heads."""
        return None if dim.is_one or dim.block in self.heads else dim.block

    def blocks(self, value: Operand) -> tuple[int | None, ...]:
        """Return the blocks of a value's dimensions that have more than one element."""
        if not isinstance(value, Value):
            return ()
        return tuple(block for dim in value.dims if (block := self.block(dim)) is not None)

    def is_aligned(self, op: Op) -> bool:
        """Return whether the dimensions of an op's operands are those of its result, counted from the last one."""
        for value in op.values():
            met = op.result.dims[len(op.result.dims) - len(value.dims) :]
            pairs = zip(value.dims, met, strict=True)
            if any(not dim.is_one and dim.block != other.block for dim, other in pairs):
                return False
        return True

    def require_one(self, stride: int) -> bool:
        """Make launches check that a stride is 1, and return whether they can: strides of tensors that the host makes are
        known only then, and those of arguments that are 1 are known before."""
        if is_known(stride) or self.is_of_arguments(stride):
            return False
        self.numbers.units.setdefault(stride)
        return True

    def is_of_arguments(self, number: int) -> bool:
        """Return whether a number that only launches know is computed from sizes and strides of arguments alone."""
        expr = self.numbers.number(number)
        symbols = self.program.host.symbols
        return isinstance(expr, Expr) and all(leaf.op == "host" and leaf.args[0] in symbols for leaf in expr.leaves())

    def tensor(self, op: Op) -> HostTensor:
        return self.program.tensors[op.attrs.tensor]

    def extent(self, block: int) -> int:
        """Return the elements of a block, or of the queries of a head. Raises ``Refusal`` if they depend on data."""
        return self.rows if self.rows and block == self.queries else self._extent(block)

    def _extent(self, block: int) -> int:
        found = self.program.blocks[block]
        return self.numbers.of(size(found.extent), f"size_{found.name or found.id}")

    @property
    def tiles(self) -> int:
        """The number of tiles of ``rows`` queries, all of them full. Launches check those that only they know. Raises ``Refusal``."""
        queries = self._extent(self.queries)
        number = self.numbers.number(queries)
        if is_known(queries) and queries % self.rows:
            raise Refusal(
                f"{queries} queries are no multiple of the {self.rows} of a tile whose id the kernel reads; pad them to one"
            )
        if not is_known(queries):
            self.numbers.units.setdefault(self.numbers.of(number % self.rows + 1, "rest_queries"))
        return self.numbers.of(number // self.rows, "size_tiles")

    def check_queries(self, shape: int, name: str) -> None:
        """Check that a tensor has the queries of all tiles. Raises ``Refusal``."""
        if not equal(self.numbers.number(shape), self.numbers.number(self._extent(self.queries))):
            raise Refusal(f"{name} has {int(shape)} queries, of which tiles cover another number")

    @property
    def tile_axis(self) -> int:
        """The number of the coordinate of a head that is the number of its tile."""
        return len(self.heads)


def has_attention(program: Program) -> bool:
    """Return whether a loop of the program has two dots, of which one reads what the other computes, or the sum of two."""
    return any(_chained(op) is not None for op in program.walk() if op.kind == "for")


@dataclass(frozen=True, kw_only=True)
class _Chain:
    """The dots of the scores, the op that makes their sum, and the dot whose left operand depends on it."""

    terms: tuple[Op, ...]
    scores: Op
    second: Op


def _chained(loop: Op) -> _Chain | None:
    """Return the dots of a loop if the last one's left operand depends on the other, or on the sum of two others."""
    body = loop.regions[0]
    dots = [op for op in body.ops if op.kind == "dot"]
    if len(dots) not in (2, 3):
        return None
    terms, second = dots[:-1], dots[-1]
    makers = {result.number: op for op in body.walk() for result in op.results}
    scores = terms[0] if len(terms) == 1 else _sum_of(body, makers, *terms)
    if scores is None:
        return None
    waiting, seen = [second.operands[0]], set[int]()
    while waiting:
        value = waiting.pop()
        made = makers.get(value.number) if isinstance(value, Value) else None
        if made is None or made.number in seen:
            continue
        seen.add(made.number)
        if made is scores:
            return _Chain(terms=tuple(terms), scores=scores, second=second)
        waiting += made.operands
    return None


def _sum_of(body: Region, makers: Mapping[int, Op], one: Op, other: Op) -> Op | None:
    """Return the op that makes the sum of two dots: an addition, or the second one."""

    def made(value: Operand) -> Op | None:
        found = makers.get(value.number) if isinstance(value, Value) else None
        while found is not None and found.kind in ("view", "mask"):
            found = makers.get(found.operands[0].number) if isinstance(found.operands[0], Value) else None
        return found

    if len(other.operands) == 3 and made(other.operands[2]) is one:
        return other
    for op in body.ops:
        if op.attrs == PointwiseAttrs("add") and {id(made(each)) for each in op.operands} == {id(one), id(other)}:
            return op
    return None


def loops_of(program: Program) -> Loops:
    """Return the loops of a program. Raises ``Refusal``."""
    if len(program.roots) != 1:
        raise Refusal("attention in one grid loop is implemented")
    (root,) = program.roots
    nested = [op for op in root.body.ops if op.regions]
    if len(nested) != 1 or nested[0].kind != "for" or any(op.regions for op in nested[0].regions[0].ops):
        raise Refusal(
            "attention with one loop over keys in its grid is implemented, or with loops over adjacent ranges of keys that"
            " differ in masks alone, and nothing nested in it"
        )
    (loop,) = nested
    chain = _chained(loop)
    axes = loop.attributes(ForAttrs).axes
    if chain is None or len(axes) != 1:
        raise Refusal("attention with two matmuls in one loop over tiles of keys is implemented")
    first = chain.scores
    keys = axes[0].block
    blocks = [axis.block for axis in root.axes]
    queries = [dim.block for dim in first.results[0].dims if dim.block in blocks and not dim.is_one]
    rows = [block for block in queries if is_tile(program, block)] or _whole(program, first)
    if not rows:
        raise Refusal(f"attention needs a tile of queries in its grid, or up to {WGMMA_ROWS} of them in each program")
    (tile,) = rows[-1:]
    for axis in root.axes:
        check_axis(program, axis, axis.block == tile)
    assert tile is not None
    return Loops(
        program=program,
        root=root,
        loop=loop,
        makers={result.number: op for op in program.walk() for result in op.results},
        heads=tuple(block for block in blocks if block != tile),
        queries=tile,
        keys=keys,
        first=first,
        second=chain.second,
        terms=chain.terms,
        numbers=LaunchNumbers(program.host.specialized),
        rows=_numbered_rows(program, tile),
    )


def _numbered_rows(program: Program, tile: int) -> int:
    """Return the queries of a fixed tile of which the program reads the number and no other position, or 0."""
    rows, attrs = program.blocks[tile].size, [op.attrs for op in program.walk()]
    fields = {each.field for each in attrs if isinstance(each, TileAttrs) and each.block == tile}
    counted = any(isinstance(each, IotaAttrs) and each.block == tile for each in attrs)
    return rows if isinstance(rows, int) and fields == {"id"} and not counted else 0


def _whole(program: Program, scores: Op) -> list[int | None]:
    """Return the block of queries that are a whole dimension of each head, as the heads that share keys."""
    dims = [dim.block for dim in scores.results[0].dims if not dim.is_one]
    block = program.blocks[dims[0]] if dims and dims[0] is not None else None
    few = block is not None and block.kind == "full" and isinstance(block.extent, int) and block.extent <= WGMMA_ROWS
    return dims[:1] if few else []


def is_tile(program: Program, block: int | None) -> bool:
    return block is not None and program.blocks[block].kind == "tile"


def check_axis(program: Program, axis: LoopAxis, is_query: bool) -> None:
    """Check that an axis covers all of its dimension, and that one of heads may take a single one at a time."""
    block = program.blocks[axis.block]
    name = block.name or block.id
    plain = axis.jagged is None and not axis.merged and not axis.backwards and axis.split is None
    if not plain or not all(map(equal, (axis.begin, axis.step, size(axis.end)), (0, 1, size(block.extent)))):
        raise Refusal(f"dimension {name} of the grid is no plain loop from 0 to an extent that is known")
    if not is_query and block.kind == "tile" and (block.min_size > 1 or block.size not in (None, 1)):
        raise Refusal(f"dimension {name} of the grid has tiles of more than one head; use block_size=1")


def is_position(op: Op | None, fields: tuple[str, ...]) -> int | None:
    """Return the block of a tile whose position the op is, or None."""
    if op is None or not isinstance(op.attrs, TileAttrs) or op.attrs.field not in fields:
        return None
    return op.attrs.block
