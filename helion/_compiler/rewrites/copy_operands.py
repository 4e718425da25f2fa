"""Copies operands of matmuls to a memory layout that the MMA reads faster.

There are three kinds of operands. Those with rows at unaligned addresses are copied to rows that begin at multiples of 16
bytes. Operands of 1 or 4 bytes that are MN-major, which wgmma cannot read from shared memory, are copied to K-major. So
are operands whose contiguous dimension is none of the matrix, of which a load has one element in each sector
(measurement ``scattered_operands``). Matrices without neighbouring elements, such as every other column, are copied too.

Rows of 777 elements of 2 bytes can only be loaded one element at a time. Before::

    grid b0 in 0..m, b1 in 0..n: for b2 in 0..777: %1: [b0, b2] = load x[b0, b2]; %2: [b2, b1] = load y; dot %1, %2

After, with tiles of b0 of 64 and of b2 of 32 elements, ``unaligned`` has whole tiles, with zeros after the last row and
column::

    grid b3 in 0..cdiv(m, 64) * 64, b4 in 0..800:
        %3: [b3, b4] = load x[b3, b4] where in range; store packed[b3, b4] <- %3
    grid b0 in 0..m, b1 in 0..n: for b2 in 0..777: %1: [b0, b2] = load packed[b0, b2]; ...

A result whose contiguous dimension is a batch is stored to a copy, which a kernel after the matmul copies to its tensor.
The copies of operands launch before all other kernels but those that compute their operands. Loads of them need no mask: lanes out
of range exist in memory and are 0. A K-major copy has the same shape and other strides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from ..._shapes import ONE, Dim, cdiv, fixed_at, next_power_of_2
from ..._support.records import dataclass, replace
from ...hardware import Target
from ..decisions import Decisions
from ..ir.build import Builder, Numbers
from ..ir.effects import written_by
from ..ir.grammar import (
    Block,
    DotAttrs,
    HostTensor,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    Region,
    Root,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ..ir.loops import inside_loops
from ..ir.rewrite import Declined, Makers, map_ops, remembered
from ..passes.always.phases import insert_before
from ..sizes import representative_sizes
from .record import FactContext, Rewrite, RuleContext, has_matmul
from .steps import StepInputs
from .unfuse_matmul import matmul_tile
from .unfuse_matmul.loops import unfuse_matmul

#: Alignment of rows in bytes: the widest access of one thread.
_ALIGNMENT = 16
#: Largest tile sides of a copy, and bytes of both sides for a transposing copy.
_ROWS, _COLUMNS = 8, 128
_TRANSPOSED_BYTES = 128
_NAME = "_helion_packed"


@dataclass(frozen=True, kw_only=True)
class CopiedOperand:
    """A load of an operand that can be copied: of ``tensor``, over whole dimensions from 0, in tiles of one block each.

    The store of a result is described alike.

    A dimension with an index for all lanes has no block. ``along`` is the dimension along which memory is contiguous, or
    neighbours are nearest, ``to`` the one along which the copy is contiguous.
    """

    load: Op
    tensor: HostTensor
    blocks: tuple[int | None, ...]
    along: int
    to: int


@remembered
def unaligned_operands(program: Program) -> tuple[CopiedOperand, ...]:
    """Return the loads in loops of matmul operands with unaligned or scattered rows, of read-only tensors of known size."""
    operands = [value for dot in _dots(program) for value in list(dot.values())[:2]]
    makers = Makers.among(program.walk() if operands else ())
    loads = (_load_of(value, makers) for value in operands)
    fed = {load.result.number for load in loads if load is not None}
    rows = tuple(each for each in _operands(program, fed, apart=True) if not _rows_are_aligned(each))
    return (*rows, *_unaligned_batches(program))


def _unaligned_batches(program: Program) -> tuple[CopiedOperand, ...]:
    """Return the loads of operands with unaligned rows, or with scattered elements, of tensors of several matrices.

    Elements are scattered where the contiguous dimension is a batch, or has one index for all lanes. Each element of a
    tile is in a sector of its own, and the copy is contiguous along K.
    """
    sides = _sides_of_operands(program)
    found = []
    for each in _operands(program, {*sides}, matrices=False):
        depths, matrix = sides[each.load.result.number]
        if each.blocks[each.along] in matrix:
            found += [] if _rows_are_aligned(each) else [each]
        elif len(depths) == 1 and depths <= {*each.blocks}:
            found.append(replace(each, to=each.blocks.index(*depths)))
    return tuple(found)


def scattered_results(program: Program) -> tuple[CopiedOperand, ...]:
    """Return the stores of results along whose contiguous dimension a matmul has a batch, if operands have it so too.

    Each is all that the program does with its tensor. The matmul stores to a copy that is contiguous along N, and a
    grid loop after it copies that to the tensor.
    """
    if all(each.to == each.along for each in _unaligned_batches(program)):
        return ()
    (root,) = program.roots
    axes = {axis.block: axis for axis in root.axes}
    matrices = [dot.result.dims[-2:] for dot in _dots(program)]
    matrix = {block for dims in matrices for dim in dims for block in dim.blocks}
    touched = [op.attrs.tensor for op in program.walk() if isinstance(op.attrs, MemoryAttrs)]
    makers = Makers.among(root.body.ops)
    found = []
    for op in root.body.ops:
        if op.kind != "store" or not isinstance(op.attrs, MemoryAttrs) or op.attrs.atomic is not None:
            continue
        tensor = program.tensors[op.attrs.tensor]
        alone = sum(program.tensors[each].storage == tensor.storage for each in touched) == 1
        each = _operand(program, op, axes, frozenset()) if alone else None
        each = None if each is None else replace(each, blocks=_of_each_index(program, each, axes, makers))
        if each is None or each.blocks[each.along] in (None, *matrix) or None in each.blocks:
            continue
        columns = [dims[-1].blocks for dims in matrices]
        if len({*columns}) == 1 and len(columns[0]) == 1 and columns[0][0] in each.blocks:
            found.append(replace(each, to=each.blocks.index(columns[0][0])))
    return tuple(found)


def _of_each_index(
    program: Program, each: CopiedOperand, axes: Mapping[int, LoopAxis], makers: Makers
) -> tuple[int | None, ...]:
    """Return the blocks of a store's dimensions; one index at a time counts as a block of a loop over all of them."""
    blocks = list(each.blocks)
    for at, index in enumerate(each.load.attributes(MemoryAttrs).indices):
        operand = each.load.operands[index.operand] if index.operand is not None else None
        made = makers.of(operand) if isinstance(operand, Value) else None
        if blocks[at] is not None or made is None or not isinstance(made.attrs, TileAttrs):
            continue
        if made.attrs.field not in ("begin", "id", "index"):
            continue
        block, axis = program.blocks[made.attrs.block], axes.get(made.attrs.block)
        if axis is None or block.id in blocks or not (block.kind == "grid" or fixed_at(block.size, 1)):
            continue
        if _whole(axis, int(each.tensor.shape[at])) and fixed_at(axis.step, 1) and fixed_at(index.shift, 0):
            blocks[at] = block.id
    return tuple(blocks)


@remembered
def mn_major_operands(program: Program) -> tuple[CopiedOperand, ...]:
    """Return the MN-major loads of operands of TF32 and 8-bit matmuls."""
    depths = _depths(program)
    found = []
    for each in _operands(program, set(depths)):
        blocks = depths[each.load.result.number]
        if len(blocks) == 1 and blocks <= set(each.blocks):
            to = each.blocks.index(*blocks)
            found.append(replace(each, to=to))
    return tuple(each for each in found if each.to != each.along)


def copied_operands(program: Program, *, unaligned: bool, mn_major: bool) -> tuple[CopiedOperand, ...]:
    """Return the operands to copy: those with unaligned or scattered rows if ``unaligned``, MN-major ones if ``mn_major``."""
    found = {each.load.number: each for each in (unaligned_operands(program) if unaligned else ())}
    found |= {each.load.number: each for each in (mn_major_operands(program) if mn_major else ())}
    return tuple(found.values())


def may_copy(each: CopiedOperand, sizes: Mapping[int, int]) -> bool:
    """Return whether rows of whole tiles begin at multiples of 16 bytes, in memory within reach of 32-bit offsets."""
    row = each.blocks[each.to]
    assert row is not None
    aligned = sizes[row] * each.tensor.dtype.itemsize % _ALIGNMENT == 0
    return aligned and math.prod(_whole_tiles(each, sizes)) < 2**31


def _whole_tiles(each: CopiedOperand, sizes: Mapping[int, int]) -> tuple[int, ...]:
    tiles = (1 if block is None else sizes[block] for block in each.blocks)
    return tuple(cdiv(int(extent), tile) * tile for extent, tile in zip(each.tensor.shape, tiles, strict=True))


def copy_operands(program: Program, sizes: Mapping[int, int], *, unaligned: bool, mn_major: bool) -> Program:
    """Return the program that first copies the operands of ``copied_operands``, and then reads the copies."""
    reading = multiplying(program)
    found = copied_operands(reading, unaligned=unaligned, mn_major=mn_major)
    stored = tuple(each for each in scattered_results(reading) if may_copy(each, sizes)) if unaligned else ()
    return _Copier(program, sizes).program(found, stored) if found else program


def multiplying(program: Program) -> Program:
    """Return the program without the grid loops that have no matmul, such as those that reduce split-K partials."""
    return replace(program, roots=tuple(root for root in program.roots if multiplies(root)))


def multiplies(root: Root) -> bool:
    """Return whether a grid loop has a matmul."""
    return any(isinstance(op.attrs, DotAttrs) for op in root.body.walk())


# --- operands to copy -------------------------------------------------------------------------------------------------


def _dots(program: Program) -> Iterator[Op]:
    """Yield the matmuls of a program with one grid loop; none for other programs."""
    if len(program.roots) == 1:
        yield from (op for op in program.walk() if isinstance(op.attrs, DotAttrs))


def _depths(program: Program) -> dict[int, set[int]]:
    """Return the blocks along K of loads that are operands, possibly transposed, of matmuls that need K-major operands.

    The key is the number of the loaded value.
    """
    found: dict[int, set[int]] = {}
    makers = None
    for dot in _dots(program):
        lhs, rhs = list(dot.values())[:2]
        if not _reads_rows(dot.attributes(DotAttrs), lhs.dtype, rhs.dtype):
            continue
        makers = makers or Makers.among(program.roots[0].body.walk())
        for side, dim in ((lhs, lhs.dims[-1]), (rhs, rhs.dims[-2])):
            load = _load_of(side, makers)
            if load is not None:
                found.setdefault(load.result.number, set()).update(dim.blocks)
    return found


def _reads_rows(attrs: DotAttrs, *dtypes: torch.dtype) -> bool:
    narrow = all(dtype.itemsize == 1 for dtype in dtypes)
    tf32 = attrs.precision == "tf32" and all(dtype == torch.float32 for dtype in dtypes)
    return attrs.scaled is None and (narrow or tf32)


def _sides_of_operands(program: Program) -> dict[int, tuple[set[int], set[int]]]:
    """Return the blocks along K, and along K and M or N, of loads that are operands of matmuls, possibly transposed.

    The key is the number of the loaded value.
    """
    found: dict[int, tuple[set[int], set[int]]] = {}
    dots = [*_dots(program)]
    makers = Makers.among(program.walk() if dots else ())
    for dot in dots:
        if dot.attributes(DotAttrs).scaled is not None:
            continue
        lhs, rhs = list(dot.values())[:2]
        for side, depth in ((lhs, -1), (rhs, -2)):
            load = _load_of(side, makers, rank=None)
            if load is not None:
                depths, matrix = found.setdefault(load.result.number, (set(), set()))
                depths.update(side.dims[depth].blocks)
                matrix.update(block for dim in side.dims[-2:] for block in dim.blocks)
    return found


def _load_of(value: Value, makers: Makers, rank: int | None = 2) -> Op | None:
    """Return the load of an operand, also if it is transposed, if it has ``rank`` dimensions."""
    op = makers.of(value)
    while op is not None and isinstance(op.attrs, ViewAttrs) and op.attrs.name == "permute":
        op = makers.of(op.operands[0])
    return op if op is not None and op.kind == "load" and rank in (None, len(op.result.dims)) else None


def _operands(
    program: Program, fed: set[int], *, matrices: bool = True, apart: bool = False
) -> Iterator[CopiedOperand]:
    """Yield the loads in loops that define the values ``fed`` and can be copied, of ``matrices`` or of other tensors.

    With ``apart``, tensors may have no two neighbouring elements. The program has one grid loop.
    """
    if not fed:
        return
    (root,) = program.roots
    written = written_by(program, root.body.walk())
    for op, axes in inside_loops(root.body, {axis.block: axis for axis in root.axes}):
        if op.kind != "load" or op.result.number not in fed:
            continue
        each = _operand(program, op, axes, written, apart=apart)
        if each is not None and (each.tensor.ndim == 2) == matrices:
            yield each


def _operand(
    program: Program,
    op: Op,
    axes: Mapping[int, LoopAxis],
    written: frozenset[int | None],
    *,
    apart: bool = False,
) -> CopiedOperand | None:
    attrs = op.attributes(MemoryAttrs)
    tensor = program.tensors[attrs.tensor]
    if attrs.mask is not None or tensor.ndim < 2 or tensor.storage in written or None in written:
        return None
    numbers = (*tensor.shape, *tensor.strides)
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        return None
    blocks: list[int | None] = []
    for index, extent in zip(attrs.indices, tensor.shape, strict=True):
        if index.kind == "scalar" and tensor.ndim > 2:
            blocks.append(None)
            continue
        axis = axes.get(index.block) if index.kind == "block" and index.block is not None else None
        if axis is None or not _whole(axis, int(extent)) or index.operand is not None or not fixed_at(index.shift, 0):
            return None
        blocks.append(axis.block)
    least = min(map(int, tensor.strides))
    unit = [dim for dim, stride in enumerate(tensor.strides) if stride == least]
    if len(unit) != 1 or (least > 1 and not apart):
        return None
    return CopiedOperand(load=op, tensor=tensor, blocks=tuple(blocks), along=unit[0], to=unit[0])


def _rows_are_aligned(each: CopiedOperand) -> bool:
    if each.tensor.strides[each.along] != 1:
        return False
    others = (int(stride) for at, stride in enumerate(each.tensor.strides) if at != each.along)
    return all(stride * each.tensor.dtype.itemsize % _ALIGNMENT == 0 for stride in others)


def _whole(axis: LoopAxis, extent: int) -> bool:
    """Return whether an axis covers a dimension from its begin to its end."""
    return fixed_at(axis.begin, 0) and fixed_at(axis.end, extent) and axis.jagged is None and not axis.merged


# --- the copies -------------------------------------------------------------------------------------------------------


class _Copier:
    def __init__(self, program: Program, sizes: Mapping[int, int]) -> None:
        self.before, self.sizes = program, sizes
        self.numbers = Numbers.after(program)
        self.blocks = list(program.blocks)
        self.tensors = list(program.tensors)
        slots = (op.attrs.slot for op in program.walk() if isinstance(op.attrs, MemoryAttrs))
        self.slots = itertools.count(1 + max(slots))

    def program(self, found: tuple[CopiedOperand, ...], stored: tuple[CopiedOperand, ...]) -> Program:
        packed: dict[tuple[int, tuple[int | None, ...]], HostTensor] = {}
        roots: list[Root] = []
        for each in found:
            key = each.tensor.id, each.blocks
            if key not in packed:
                packed[key] = self.tensor(each)
                roots.append(self.copy(each, packed[key]))
        of = {each.load.number: packed[each.tensor.id, each.blocks].id for each in found}
        results = [(each, self.tensor(each)) for each in stored]
        of |= {each.load.number: copy.id for each, copy in results}
        changed = map_ops(self.before, lambda op: _redirected(op, of))
        changed = replace(changed, tensors=tuple(self.tensors), blocks=tuple(self.blocks))
        (reader,) = multiplying(changed).roots
        changed = replace(changed, roots=insert_before(changed, reader, roots))
        return self.followed(changed, results) if results else changed

    def followed(self, program: Program, results: Sequence[tuple[CopiedOperand, HostTensor]]) -> Program:
        """Return the program with grid loops after that of the matmul, which copy its ``results`` to their tensors."""
        (reader,) = multiplying(program).roots
        after = reader.phase + 1
        later = (
            replace(root, phase=root.phase + 1) if root.phase >= after and root.launch == reader.launch else root
            for root in program.roots
        )
        made = [replace(self.copy_back(each, copy), phase=after, launch=reader.launch) for each, copy in results]
        return replace(program, roots=(*later, *made), blocks=tuple(self.blocks))

    def tensor(self, each: CopiedOperand) -> HostTensor:
        """Return the tensor of the copy, which has whole tiles of the operand's blocks.

        Its other dimensions have the order in memory of the operand's.
        """
        shape = _whole_tiles(each, self.sizes)
        others = sorted((-int(stride), at) for at, stride in enumerate(each.tensor.strides) if at != each.to)
        strides, step = [1] * len(shape), shape[each.to]
        for _, at in reversed(others):
            strides[at], step = step, step * shape[at]
        made = replace(
            each.tensor,
            id=len(self.tensors),
            name=f"packed_{each.tensor.name}",
            source=f"{_NAME}_{len(self.tensors)}",
            shape=shape,
            strides=tuple(strides),
            storage=1 + max(tensor.storage for tensor in self.tensors),
            aligned=True,
            made=True,
        )
        self.tensors.append(made)
        return made

    def copy(self, each: CopiedOperand, to: HostTensor) -> Root:
        made = [
            self.block(
                int(extent), side, f"{to.name}" if block is None else f"{self.before.blocks[block].name} of {to.name}"
            )
            for extent, side, block in zip(to.shape, _sides(each, self.sizes), each.blocks, strict=True)
        ]
        dims = tuple(Dim(1, (block.id,)) for block in made)
        indices = tuple(Index("block", block=block.id, positions=(at,)) for at, block in enumerate(made))
        ops: list[Op] = []
        out = Builder(self.numbers, each.load.location, ops)
        mask = self.inside(out, each, made)
        read = MemoryAttrs(each.tensor.id, indices, next(self.slots), len(dims), mask=0)
        value = out.emit("load", (mask,), to.dtype, dims, read)
        out.emit("store", (value,), to.dtype, dims, MemoryAttrs(to.id, indices, next(self.slots), len(dims)))
        axes = tuple(LoopAxis(block.id, 0, int(extent)) for block, extent in zip(made, to.shape, strict=True))
        return replace(self.before.roots[0], axes=axes, body=Region((), tuple(ops), ()))

    def copy_back(self, each: CopiedOperand, copy: HostTensor) -> Root:
        """Return the grid loop that copies a result to its tensor."""
        made = [
            self.block(int(extent), side, f"{copy.name} of {each.tensor.name}")
            for extent, side in zip(each.tensor.shape, _sides(each, self.sizes), strict=True)
        ]
        dims = tuple(Dim(1, (block.id,)) for block in made)
        indices = tuple(Index("block", block=block.id, positions=(at,)) for at, block in enumerate(made))
        ops: list[Op] = []
        out = Builder(self.numbers, each.load.location, ops)
        value = out.emit("load", (), copy.dtype, dims, MemoryAttrs(copy.id, indices, next(self.slots), len(dims)))
        stored = MemoryAttrs(each.tensor.id, indices, next(self.slots), len(dims))
        out.emit("store", (value,), copy.dtype, dims, stored)
        axes = tuple(LoopAxis(block.id, 0, int(extent)) for block, extent in zip(made, each.tensor.shape, strict=True))
        return replace(self.before.roots[0], axes=axes, body=Region((), tuple(ops), ()))

    def block(self, extent: int, size: int, name: str) -> Block:
        made = Block(id=len(self.blocks), kind="tile", extent=extent, size=size, name=name)
        self.blocks.append(made)
        return made

    def inside(self, out: Builder, each: CopiedOperand, made: list[Block]) -> Operand:
        """Return the mask of the lanes that the operand has."""
        inside: Operand | None = None
        shown: tuple[Dim, ...] = ()
        dims = tuple(Dim(1, (block.id,)) for block in made)
        for at, (dim, extent) in enumerate(zip(dims, each.tensor.shape, strict=True)):
            lanes = out.emit("iota", (), self.before.index_dtype, (dim,), IotaAttrs(made[at].id, False))
            below = out.reshape(
                out.pointwise("lt", lanes, int(extent)), (*[ONE] * at, dim, *[ONE] * (len(dims) - at - 1))
            )
            shown = (*dims[: at + 1], *[ONE] * (len(dims) - at - 1))
            both = (below,) if inside is None else (inside, below)
            inside = out.emit("pointwise", both, torch.bool, shown, PointwiseAttrs("logical_and")) if at else below
        assert inside is not None
        return inside


def _sides(each: CopiedOperand, sizes: Mapping[int, int]) -> tuple[int, ...]:
    """Return the sides of a copied tile. A transposing copy reads and writes full cache lines on both sides."""
    tiles = [1 if block is None else sizes[block] for block in each.blocks]
    if len(tiles) > 2 and each.to == each.along:
        others = [at for at in range(len(tiles)) if at != each.along]
        near = min(others, key=lambda at: abs(int(each.tensor.strides[at])))
        sides = [1] * len(tiles)
        sides[each.along], sides[near] = min(_COLUMNS, tiles[each.along]), min(_ROWS, tiles[near])
        return tuple(sides)
    if len(tiles) > 2:
        side = _TRANSPOSED_BYTES // each.tensor.dtype.itemsize
        along = min(side, next_power_of_2(int(each.tensor.shape[each.along])))
        sides = [min(side, tile) if at == each.to else 1 for at, tile in enumerate(tiles)]
        sides[each.along] = along
        # a short run is part of a line: the next dimension has the rest
        others = [at for at in range(len(tiles)) if at not in (each.along, each.to)]
        near = min(others, key=lambda at: abs(int(each.tensor.strides[at])))
        sides[near] = min(max(1, side // along), tiles[near])
        return tuple(sides)
    if each.to != each.along:
        side = _TRANSPOSED_BYTES // each.tensor.dtype.itemsize
        most = side, side
    else:
        most = (_ROWS, _COLUMNS) if each.along else (_COLUMNS, _ROWS)
    return tuple(map(min, most, tiles))


def _redirected(op: Op, to: Mapping[int, int]) -> Op:
    if op.number not in to:
        return op
    return replace(op, attrs=replace(op.attrs, tensor=to[op.number], padded=True))


# --- the record ------------------------------------------------------------------------------------------------------


def _has_unaligned(context: FactContext) -> bool:
    return bool(context.dots) and bool(unaligned_operands(context.program))


def _mn_major_slots(context: FactContext) -> tuple[int, ...]:
    return tuple(each.load.attributes(MemoryAttrs).slot for each in mn_major_operands(context.program))


def _has_mn_major(program: Program) -> bool:
    """Return whether operands can be copied K-major, where they are or in the kernel of unfused matmuls."""
    if mn_major_operands(program):
        return True
    try:
        return bool(mn_major_operands(multiplying(unfuse_matmul(program, (None, None, None)))))
    except Declined:
        return False


def _transposes(program: Program, target: Target) -> str:
    if not target.has("wgmma"):
        return f"the matrix unit of {target} does not need K-major operands"
    return "" if _has_mn_major(program) else "no TF32 or 8-bit matmul operand of known size is MN-major"


def _packs(program: Program, target: Target) -> str:
    if not unaligned_operands(program):
        return "no matmul operand of known size has rows that are not aligned to 16 bytes, or tiles without adjacent elements"
    return ""


def _may_copy(context: RuleContext, decisions: Decisions, *, unaligned: bool, mn_major: bool) -> bool:
    """Return whether there are operands to copy, which all allow it, and no grid is flattened."""
    program, sizes = context.program, dict(decisions.sizes)
    if (tile := matmul_tile(decisions)) is not None:
        program = multiplying(unfuse_matmul(program, tile))
        sizes.update((block.id, block.size) for block in program.blocks if isinstance(block.size, int))
    flattened = any(decisions.entries["flatten_loops"].values())
    found = copied_operands(program, unaligned=unaligned, mn_major=mn_major)
    return not flattened and bool(found) and all(may_copy(each, sizes) for each in found)


def _may_transpose(context: RuleContext, value: bool, decisions: Decisions) -> bool:
    return _may_copy(context, decisions, unaligned=False, mn_major=True)


def _may_pack(context: RuleContext, value: bool, decisions: Decisions) -> bool:
    return _may_copy(context, decisions, unaligned=True, mn_major=TRANSPOSE_OPERANDS.is_on(decisions))


def _copy_all(program: Program, value: bool, inputs: StepInputs) -> Program:
    """Return the program with copies of MN-major operands, and in the same pass of unaligned ones if both are on."""
    unaligned = inputs.values.get("pack_operands", False)
    return copy_operands(program, inputs.sizes_in(program), unaligned=unaligned, mn_major=True)


def _copy_unaligned(program: Program, value: bool, inputs: StepInputs) -> Program:
    return copy_operands(program, inputs.sizes_in(program), unaligned=True, mn_major=False)


_NEEDS = "operand copies need whole tiles with rows of a multiple of 16 bytes, fewer than 2**31 elements, no flatten_loops and a pid_type other than 'xyz'"
TRANSPOSE_OPERANDS = Rewrite(
    key="transpose_operands",
    doc="First copy operands of a TF32 or 8-bit matmul that are MN-major to a K-major temporary, which Hopper's WGMMA needs.",
    applies=_transposes,
    varies=has_matmul,
    fit=_may_transpose,
    needs=_NEEDS,
    numbered=True,
    after=("split_k", "precompute_operands"),
    fact=_mn_major_slots,
    model=lambda program: copy_operands(program, representative_sizes(program), unaligned=False, mn_major=True),
    apply=_copy_all,
)
PACK_OPERANDS = Rewrite(
    key="pack_operands",
    doc="First copy operands of a matmul whose row stride is no multiple of 16 bytes, or of whose tiles no two elements are adjacent in memory, to an aligned temporary.",
    applies=_packs,
    varies=has_matmul,
    fit=_may_pack,
    needs=_NEEDS,
    numbered=True,
    after=("split_k", "precompute_operands", "transpose_operands"),
    fact=_has_unaligned,
    model=lambda program: copy_operands(program, representative_sizes(program), unaligned=True, mn_major=False),
    apply=_copy_unaligned,
)
