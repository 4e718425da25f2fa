"""``with_row_tiles``: turn a grid over single rows into one over tiles of one row each.

::

    for i in hl.grid(m):                         for tile in hl.tile(m, block_size=1):
        row = x[i, :]                     →          row = x[tile, :]
        out[i, :] = row / row.sum()                  out[tile, :] = row / row.sum(-1)[:, None]

All values get the dimensions of the grid, except those that no row changes, such as weights of columns.
"""

from __future__ import annotations

from dataclasses import replace

from ....._compiler.ir.grammar import (
    ForAttrs,
    Index,
    IotaAttrs,
    MaskAttrs,
    MemoryAttrs,
    Op,
    Operand,
    OperandRef,
    Program,
    ReduceAttrs,
    Region,
    Root,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ....._shapes import ONE, Dim, Dims, fixed_at
from ...plan.refusal import Refusal

ROW_NUMBERS = ("index", "begin", "id")
"""Properties of a tile of one row that are the number of the row."""
ELEMENTWISE = ("pointwise", "full", "for")


def with_row_tiles(program: Program) -> Program:
    """Return the program with tiles of one row, or the same one. Raises ``Refusal`` for an operation without a form for
    tiles."""
    if len(program.roots) != 1 or not _over_rows(program, program.roots[0]):
        return program
    whole = _with_one_grid(program)
    return _Tiles(whole, _over_rows(whole, whole.roots[0])).program()


def _over_rows(program: Program, root: Root) -> tuple[int, ...]:
    """Return the blocks of a grid that are single rows: of ``hl.grid``, or of tiles of one that no value has."""
    used = {block for op in program.walk() for value in op.results for dim in value.dims for block in dim.blocks}
    found = []
    for axis in root.axes:
        block = program.blocks[axis.block]
        single = not axis.scalar and block.kind == "tile" and fixed_at(block.size, 1) and not axis.merged
        if (axis.scalar and fixed_at(axis.step, 1)) or (single and axis.block not in used):
            found.append(axis.block)
    return tuple(found)


def _with_one_grid(program: Program) -> Program:
    """Return the program with a loop that is all the work of a grid, and carries nothing, as its last dimension.

    ::

        for b in hl.grid(batches):                  for b, tile in hl.tile([batches, m], block_size=[1, None]):
            for tile in hl.tile(m):          →
    """
    (root,) = program.roots
    loops = [op for op in root.body.ops if op.kind == "for"]
    inner = loops[0].attributes(ForAttrs).axes if len(loops) == 1 and not loops[0].results else ()
    others = [op for op in root.body.ops if op.kind not in ("for", "tile", "number")]
    fixed = len(inner) == 1 and not any(isinstance(end, OperandRef) for end in (inner[0].begin, inner[0].end))
    if not fixed or others or not _is_over_whole_rows(loops[0], inner[0].block):
        return program
    (body,) = loops[0].regions
    body = replace(body, ops=(*(op for op in root.body.ops if op is not loops[0]), *body.ops))
    return replace(program, roots=(replace(root, axes=(*root.axes, *inner), body=body),))


def _is_over_whole_rows(loop: Op, block: int) -> bool:
    """Return whether a loop is over rows: it reduces another dimension, and never its own."""
    reduced = [
        operand.dims[dim].blocks
        for op in loop.walk()
        if op.kind == "reduce"
        for operand in op.values()
        for dim in op.attributes(ReduceAttrs).dims
    ]
    return bool(reduced) and all(block not in blocks for blocks in reduced)


class _Tiles:
    def __init__(self, source: Program, blocks: tuple[int, ...]) -> None:
        (root,) = source.roots
        self.source, self.root = source, root
        self.blocks = blocks
        self.rows: Dims = tuple(Dim(blocks=(block,)) for block in self.blocks)
        self.values: dict[int, Value] = {}
        self.numbers: dict[int, int] = {}
        """The blocks of the grid, by values that are numbers of rows."""
        self.next = 1 + max(number for op in source.walk() for number in (op.number, *(v.number for v in op.results)))

    def program(self) -> Program:
        blocks = tuple(
            replace(block, kind="tile", size=1) if block.id in self.blocks else block for block in self.source.blocks
        )
        axes = tuple(replace(axis, scalar=False) for axis in self.root.axes)
        body = _without_unused(self._region(self.root.body))
        return replace(self.source, blocks=blocks, roots=(replace(self.root, axes=axes, body=body),))

    def _region(self, region: Region) -> Region:
        params = tuple(map(self._with_rows, region.params))
        ops: list[Op] = []
        for op in region.ops:
            ops += self._op(op)
        return replace(region, params=params, ops=tuple(ops), results=tuple(map(self._carried, region.results)))

    def _with_rows(self, value: Value) -> Value:
        found = self.values[value.number] = replace(value, dims=(*self.rows, *value.dims))
        return found

    def _operand(self, operand: Operand) -> Operand:
        return self.values.get(operand.number, operand) if isinstance(operand, Value) else operand

    def _has_rows(self, operand: Operand) -> bool:
        return isinstance(operand, Value) and operand.number in self.values

    def _carried(self, operand: Operand) -> Operand:
        if not self._has_rows(operand):
            raise Refusal("a loop of a kernel over single rows carries a value that is the same for all of them")
        return self._operand(operand)

    def _op(self, op: Op) -> list[Op]:
        """Return an op for tiles of rows, after those that reshape its operands."""
        attrs = op.attrs
        if isinstance(attrs, TileAttrs) and attrs.block in self.blocks:
            return [self._number(op, attrs)]
        if isinstance(attrs, MemoryAttrs):
            return self._accessed(op, attrs)
        if op.kind != "full" and op.kind != "for" and not any(map(self._has_rows, op.operands)):
            return [op]
        if op.kind == "for":
            return [self._loop(op)]
        count = len(self.rows)
        if isinstance(attrs, (ReduceAttrs, MaskAttrs)):
            attrs = replace(attrs, dims=tuple(dim + count for dim in attrs.dims))
        elif isinstance(attrs, ViewAttrs):
            order = (*range(count), *(at + count for at in attrs.order)) if attrs.name == "permute" else ()
            attrs = replace(attrs, order=order)
        elif op.kind not in ELEMENTWISE:
            raise Refusal(f"{op.kind} in a kernel over single rows is not implemented")
        before, operands = self._aligned(op) if op.kind == "pointwise" else ([], [*map(self._operand, op.operands)])
        results = tuple(map(self._with_rows, op.results))
        return [*before, replace(op, operands=tuple(operands), results=results, attrs=attrs)]

    def _number(self, op: Op, attrs: TileAttrs) -> Op:
        """Return the number of a row as the indices of its tile."""
        if attrs.field not in ROW_NUMBERS:
            raise Refusal(f"the {attrs.field} of a tile of one row is not implemented")
        self.numbers[op.result.number] = attrs.block
        dims = tuple(dim if dim.blocks == (attrs.block,) else ONE for dim in self.rows)
        result = self.values[op.result.number] = replace(op.result, dims=dims)
        return replace(op, kind="iota", results=(result,), attrs=IotaAttrs(block=attrs.block, relative=False))

    def _aligned(self, op: Op) -> tuple[list[Op], list[Operand]]:
        """Return the operands of an elementwise op, of which those with rows have as many dimensions as its result."""
        before: list[Op] = []
        operands: list[Operand] = []
        rank, count = len(op.result.dims), len(self.rows)
        for operand in op.operands:
            found = self._operand(operand)
            if isinstance(operand, Value) and isinstance(found, Value) and found is not operand:
                ones = rank - (len(found.dims) - count)
                if ones:
                    dims = (*found.dims[:count], *(ONE,) * ones, *found.dims[count:])
                    view = Value(number=self.next, dtype=found.dtype, dims=dims)
                    before.append(Op(self.next, "view", (found,), (view,), ViewAttrs("reshape"), location=op.location))
                    self.next, found = self.next + 1, view
            operands.append(found)
        return before, operands

    def _loop(self, op: Op) -> Op:
        carried = len(op.results)
        operands = (*map(self._carried, op.operands[:carried]), *map(self._operand, op.operands[carried:]))
        regions = tuple(map(self._region, op.regions))
        return replace(op, operands=operands, results=tuple(map(self._with_rows, op.results)), regions=regions)

    def _accessed(self, op: Op, attrs: MemoryAttrs) -> list[Op]:
        """Return an access of the rows of a tile."""
        if attrs.mask is not None or op.kind not in ("load", "store"):
            raise Refusal(f"{op.kind} with a mask, or an atomic, in a kernel over single rows is not implemented")
        found = [self._row(op, index) for index in attrs.indices]
        blocks = [each for each in found if each is not None]
        used = any(self._has_rows(op.operands[index.operand]) for index in attrs.indices if index.operand is not None)
        if not used:
            if any(map(self._has_rows, op.operands)):
                raise Refusal(f"{self.source.tensors[attrs.tensor].name} is stored at the same place by all rows")
            return [op]
        if sorted(blocks) not in ([], sorted(self.blocks)):
            raise Refusal(f"{self.source.tensors[attrs.tensor].name} has some of the grid's dimensions")
        return [self._moved(op, attrs, found)]

    def _row(self, op: Op, index: Index) -> int | None:
        """Return the block of the grid whose number an index is."""
        operand = op.operands[index.operand] if index.kind == "scalar" and index.operand is not None else None
        return self.numbers.get(operand.number) if isinstance(operand, Value) and fixed_at(index.shift, 0) else None

    def _moved(self, op: Op, attrs: MemoryAttrs, found: list[int | None]) -> Op:
        count, every = len(self.rows), tuple(range(len(self.rows)))
        kept = [at for at in range(len(op.operands)) if not self._is_row(op, attrs, found, at)]
        indices = []
        for index, block in zip(attrs.indices, found, strict=True):
            positions = tuple(at + count for at in index.positions)
            moved = None if index.operand is None or block is not None else kept.index(index.operand)
            if block is not None:
                index = Index(kind="block", block=block, positions=(self.blocks.index(block),))
            elif index.operand is not None and self._has_rows(op.operands[index.operand]):
                if index.kind != "scalar" or not fixed_at(index.shift, 0):
                    raise Refusal("an index of elements that depends on a single row is not implemented")
                index = Index(kind="tensor", positions=every, operand=moved)
            else:
                index = replace(index, positions=positions, operand=moved)
            indices.append(index)
        return replace(
            op,
            operands=tuple(self._operand(op.operands[at]) for at in kept),
            results=tuple(map(self._with_rows, op.results)),
            attrs=replace(attrs, indices=tuple(indices), rank=attrs.rank + count),
        )

    def _is_row(self, op: Op, attrs: MemoryAttrs, found: list[int | None], at: int) -> bool:
        """Return whether an operand is an index that became a block."""
        return any(index.operand == at and block is not None for index, block in zip(attrs.indices, found, strict=True))


def _without_unused(region: Region) -> Region:
    """Return a region without numbers of rows that nothing reads."""
    read = {value.number for op in region.walk() for value in op.reads()}
    ops = tuple(op for op in region.ops if op.kind != "iota" or op.result.number in read)
    return replace(region, ops=ops)
