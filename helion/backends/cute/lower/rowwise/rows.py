"""``rows_of``: turn a program that reads, reduces and maps whole rows into a ``RowProblem``.

Rows are a whole dimension (``x[tile, :]``), or loops over tiles of columns whose result is that of all columns at once.
A second load of an element is the value that the first one has read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch

from ....._compiler.ir.grammar import (
    ForAttrs,
    HostTensor,
    IotaAttrs,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    Region,
    Root,
    Value,
    ViewAttrs,
)
from ....._compiler.ir.ops import OPS
from ....._shapes import Expr, dtype_name, fixed_at
from ....._support.records import dataclass, replace
from ...plan.epilogue import (
    GROUP_REDUCTIONS,
    PARTNER,
    ROUND_E4M3,
    ROW_PLACE,
    Constant,
    Epilogue,
    EpilogueOperand,
    EpilogueOutput,
    constant,
)
from ...plan.refusal import Refusal
from ...plan.rowwise.operands import Gather, Repeat
from ...plan.rowwise.records import SIZE_M, SIZE_N, RowProblem, interned
from ..chain import COMPARISONS, EXACT_INTEGERS, Chain, Reference, Written, is_integer
from ..frame import Frame, Place, blocks_of, one_per_tile, place_of
from ..names import name_of
from ..numbers import Number, equal, exact_in_fp32, example, size
from ..product import check_axis
from ..stored import check_memory, stores_after_loop
from ..tiled import TiledRows
from .channels import numbers_of_groups, with_flat_columns
from .checks import check_problem
from .factors import without_factors
from .flat import Repeated, with_flat_rows
from .grids import with_row_tiles
from .integers import INTEGERS, Ranges, whole_number
from .lengths import bucket_of_rows
from .parts import PARTS, check_aligned, check_places, columns_in, groups_of, reduced_columns
from .parts_of_rows import with_loops_of_parts
from .strides import launch_strides
from .sums import RowSum, with_single_rows
from .totals import Total, without_totals

GROUPED = {"sum": "group_sum", "max": "group_maximum", "min": "group_minimum"}


@dataclass(frozen=True, kw_only=True)
class RowKernel:
    """A row kernel of a program. ``outputs`` and ``operands`` are ids of host tensors; scalar operands are host
    expressions. ``rows`` is the last block of the grid, ``others`` are those before it, and ``columns`` those that iterate
    over columns."""

    problem: RowProblem
    outputs: tuple[int, ...]
    operands: tuple[int | Expr, ...]
    runtime: tuple[tuple[str, Expr], ...]
    rows: int
    columns: tuple[int, ...]
    others: tuple[int, ...] = ()
    multiples: tuple[tuple[str, int], ...] = ()
    """Host numbers, and what they are multiples of, so that rows begin at multiples of 16 bytes."""
    ranges: tuple[tuple[str, range], ...] = ()
    """Numbers of the launch, and their values that the kernel is for: of columns, and of integers that are compared."""
    blocks: int | None = None
    """The block of the grid whose tiles have sums over their rows; None without sums."""
    is_empty: bool = False
    one_tile: bool = False
    """True if a tile of columns has to cover all of them."""
    fixed: bool = False
    """True if the kernel fixes the tile of rows."""

    @property
    def tile(self) -> int | None:
        """The block whose size is the number of rows of a CTA at a time; None if the kernel fixes it."""
        return None if self.fixed else self.rows

    @property
    def arguments(self) -> tuple[int | Expr, ...]:
        """Arguments of a launch, in order."""
        return (*self.outputs, *self.operands, *(number for _, number in self.runtime))


class RowChain(Chain):
    """A trace from stored values back to loads: rows of inputs are operands like any other."""

    by_tma = False

    def __init__(self, frame: Frame, repeated: Repeated) -> None:
        self.frame = frame
        self.repeated = repeated
        #: Vectors over one dimension of a grid of several, by the name of their operand.
        self.repeats: dict[str, Repeat] = {}
        #: Numbers of these that only the launch knows, by name.
        self.counts: dict[str, Expr] = {}
        #: Rows of a line of numbers of channels that totals add up.
        self.line_rows = 0
        self.known = {}
        self.loads = {}
        self.steps = []
        self.numbers = {}
        self.outputs = []
        self.read_from = []
        self.runtime = {}
        self.tiles = None
        #: Gathers by the name of their operand.
        self.gathers: dict[str, Gather] = {}
        #: Labels of integers that are compared with numbers of the launch, and labels of these.
        self.compared: set[tuple[str, str]] = set()
        #: The dimensions of one element of each pair of columns.
        self.halves = {
            result.dims[-1].block for op in frame.program.walk() if op.kind == "split" for result in op.results
        }

    @property
    def ranges(self) -> Ranges:
        return Ranges(self.steps, self.loads)

    def _load(self, op: Op) -> Reference:
        indices = op.attributes(MemoryAttrs).indices
        if [each.kind for each in indices] == ["block", "tensor"] and op.attributes(MemoryAttrs).rank == 1:
            return self._gather_of_rows(op)
        index = indices[0] if len(indices) == 1 else None
        if index is None or index.kind != "tensor" or index.operand is None:
            found = self._of_groups(op) or super()._load(op)
            if op.attrs.tensor in self.repeated.tensors and isinstance(found, str):
                self.repeats[found], counts = self.repeated.of(op.attrs.tensor, self.loads[found][0].label)
                self.counts |= counts
            return found
        return self._gather(op, op.operands[index.operand])

    def _of_groups(self, op: Op) -> Reference | None:
        """Read a number of each group of columns; return None for other loads."""
        found = numbers_of_groups(self.frame, op) if self.frame.groups else None
        if found is None:
            return None
        self.read_from.append((op, place_of(self.frame, op, aligned=False)))
        return self._loaded(found[0], op.attrs.tensor, found[1])

    def _position(self, op: Op) -> Reference:
        """Read an index, which may be that of one of several dimensions of rows."""
        place = self.repeated.places.get(op.result.number)
        return super()._position(op) if place is None else self.step(ROW_PLACE, tuple(map(constant, place)))

    def _gather(self, op: Op, index: Operand) -> Reference:
        """Read one element of each row: ``flat[row * pitch + number]``, with a loaded number. Raises ``Refusal``."""
        tensor, attrs, found = self.frame.tensor(op), op.attributes(MemoryAttrs), self.frame.maker(index)
        terms = found.operands if found is not None and found.attrs == PointwiseAttrs("add") else ()
        pitches = [self._pitch_of_row(term) for term in terms]
        known = [(pitch, other) for pitch, other in zip(pitches, terms[::-1], strict=True) if pitch is not None]
        plain = attrs.mask is None and fixed_at(attrs.indices[0].shift, 0) and tuple(tensor.strides) == (1,)
        if len(known) != 1 or not plain:
            raise Refusal(f"a gather from {tensor.name} other than one element of each row is not implemented")
        pitch, place = known[0]
        if not equal(pitch, self.frame.extent(self.frame.n)):
            raise Refusal(f"a gather from {tensor.name} in steps of {pitch} elements, not of the row's columns")
        return self._gathered(tensor, place, pitch)

    def _gather_of_rows(self, op: Op) -> Reference:
        """Read one element of each row: ``x[row, number]``. Raises ``Refusal``."""
        tensor, attrs = self.frame.tensor(op), op.attributes(MemoryAttrs)
        rows = attrs.indices[0].block == self.frame.m and equal(tensor.shape[0], self.frame.extent(self.frame.m))
        if not rows or attrs.mask is not None or not equal(tensor.strides[1], 1):
            raise Refusal(f"a gather from {tensor.name} other than one element of each row is not implemented")
        known = isinstance(tensor.strides[0], int) or self.frame.is_columns(tensor.strides[0])
        if not equal(tensor.shape[1], self.frame.extent(self.frame.n)) or not known:
            raise Refusal(f"a gather from {tensor.name}, which is {tuple(tensor.shape)}, and not of these rows")
        return self._gathered(tensor, op.operands[0], tensor.strides[0])

    def _gathered(self, tensor: HostTensor, place: Operand, pitch: Number) -> Reference:
        """Read the element of each row at a column that is loaded. Raises ``Refusal``."""
        column = self._column(place)
        if column is None or self.frame.columns > EXACT_INTEGERS:
            raise Refusal(f"a gather from {tensor.name} needs an integer per row that is loaded from a tensor")
        name = f"{name_of(tensor)}_gathered"
        operand = EpilogueOperand(name=name, kind="column", dtype=dtype_name(tensor.dtype))
        column = replace(column, operand=operand.label)
        if self.gathers.setdefault(name, column) != column:
            raise Refusal(f"several gathers from {tensor.name} are not implemented")
        return self._loaded(operand, tensor.id, pitch)

    def _column(self, place: Operand) -> Gather | None:
        """Return a gather's column: a loaded integer, or one that is replaced where a comparison does not hold."""
        made = self._uncast(place)
        if made is not None and made.kind == "load":
            number = self.read(made.result)
            if not isinstance(number, str) or self.loads[number][0].dtype not in ("int32", "int64"):
                return None
            return Gather(operand="", index=self.loads[number][0].label)
        name = made.attributes(PointwiseAttrs).name if made is not None and made.kind == "pointwise" else ""
        if made is None or name not in ("where", "maximum"):
            return None
        if name == "maximum":
            return self._column_from(made)
        condition, kept, otherwise = made.operands
        column, compared = self._column(kept), self._uncast(condition)
        if column is None or column.comparison or compared is None or compared.kind != "pointwise":
            return None
        comparison = compared.attributes(PointwiseAttrs).name
        if comparison not in COMPARISONS or len(compared.operands) != 2 or self._column(compared.operands[0]) != column:
            return None
        other = self.read(compared.operands[1])
        if not is_integer(compared.operands[1]) or not _is_in(otherwise, self.frame.columns):
            return None
        if isinstance(other, str) and self.loads[other][0].kind == "number" and comparison == "ne":
            return replace(column, comparison=comparison, other=self.loads[other][0].label, otherwise=otherwise)
        if not isinstance(other, Constant):
            return None
        return replace(column, comparison=comparison, other=other, otherwise=otherwise)

    def _column_from(self, maximum: Op) -> Gather | None:
        """Return the column of an integer that is raised to a known one."""
        least = next((each for each in maximum.operands if not isinstance(each, Value)), None)
        column = next((self._column(each) for each in maximum.operands if isinstance(each, Value)), None)
        if column is None or column.comparison or not _is_in(least, self.frame.columns):
            return None
        return replace(column, comparison="ge", other=constant(least), otherwise=least)

    def _check_integers(self, op: Op, name: str, arguments: Sequence[Reference]) -> None:
        """Allow a comparison of a loaded integer with a number of the launch, which ``exact_numbers`` checks later."""
        operands = [self.loads[x][0] for x in arguments if isinstance(x, str)]
        labels = {operand.kind: operand.label for operand in operands}
        if name in COMPARISONS and {*labels} == {"column", "number"} and all(map(is_integer, op.operands)):
            self.compared.add((labels["column"], labels["number"]))
            return
        super()._check_integers(op, name, arguments)

    def exact_numbers(self) -> tuple[tuple[str, range], ...]:
        """Return the numbers of the launch that integers are compared with, and values for which fp32 does not matter.

        An integer that is a column of the row, or that number itself, may be compared with any: fp32 rounds the number to
        no column unless it is one. Raises ``Refusal`` for numbers that are not exact in fp32.
        """
        columns = {gather.index: gather for gather in self.gathers.values()}
        found: dict[str, range] = {}
        for index, number in self.compared:
            gather = columns.get(index)
            if gather is not None and not (gather.comparison and gather.other != number):
                continue
            source = next(source for operand, source in self.loads.values() if operand.label == number)
            found |= exact_in_fp32(self.frame.program, source)
        return tuple(found.items())

    def _pitch(self, label: str, number: Number) -> int:
        """Return a stride: the most columns of a row for the number of columns. Raises ``Refusal`` for others that are
        known next to it."""
        if self.frame.is_columns(number):
            return self.frame.columns
        if self.frame.bucket is not None and isinstance(number, int) and number > 1:
            raise Refusal(f"a known stride of {number} elements, of rows whose columns only the launch knows")
        return super()._pitch(label, number)

    def _launch_number(self, value: Operand) -> Expr | None:
        """Return the number of the host that a value is; None for other values."""
        made = self._uncast(value)
        return made.attributes(NumberAttrs).expr if made is not None and made.kind == "number" else None

    def _pitch_of_row(self, value: Operand) -> Number | None:
        """Return the factor of the index of a row; None for other values."""
        made = self._uncast(value)
        factors = made.operands if made is not None and made.attrs == PointwiseAttrs("mul") else ()
        numbers: list[Number] = [factor for factor in factors if isinstance(factor, int)]
        numbers += [number for factor in factors if (number := self._launch_number(factor)) is not None]
        indices = [self._uncast(x) for x in factors if not isinstance(x, int) and self._launch_number(x) is None]
        if len(numbers) != 1 or len(indices) != 1 or indices[0] is None or indices[0].kind != "iota":
            return None
        attrs = indices[0].attributes(IotaAttrs)
        return numbers[0] if self.frame.named(attrs.block) == self.frame.m and not attrs.relative else None

    def _uncast(self, value: Operand) -> Op | None:
        made = self.frame.maker(value)
        while made is not None and (made.kind == "view" or made.attrs == PointwiseAttrs("cast")):
            made = self.frame.maker(made.operands[0])
        return made

    def store(self, op: Op) -> None:
        """Add the store of ``op``, whose columns may be groups of columns, to the outputs."""
        blocks, tensor = blocks_of(self.frame, op), self.frame.tensor(op)
        if one_per_tile(self.frame, op):
            self._store_group(op, place_of(self.frame, op), tensor.strides)
            return
        if len(blocks) != 2 or blocks[0] != self.frame.m or blocks[1] not in self.frame.groups:
            super().store(op)
            return
        place = place_of(self.frame, op)
        if blocks[1] in self.halves:
            self._store_pair(op, place)
        else:
            self._store_group(op, place, place.strides)

    def _store_pair(self, op: Op, place: Place) -> None:
        """Add a store of one element for each pair of columns."""
        tensor, value = place.tensor, self._stored(op)
        if not equal(place.strides[1], 1):
            raise Refusal(f"elements of pairs of columns are contiguous; {tensor.name} has strides {place.strides}")
        if not tensor.dtype.is_floating_point:
            limits, ends = torch.iinfo(tensor.dtype), self.ranges.of(value)
            if ends is None or not ends.within(limits.min, limits.max):
                raise Refusal(f"the numbers of {tensor.name} may not fit in {dtype_name(tensor.dtype)}")
        pitch = self._pitch(f"{name_of(tensor)}_output", place.strides[0])
        self.outputs.append(Written(op=op, place=place, value=value, kind="pair", pitch=pitch))

    def _store_group(self, op: Op, place: Place, strides: Sequence[Number]) -> None:
        tensor = place.tensor
        if not equal(strides[1], 1):
            raise Refusal(f"numbers of groups of columns are contiguous; {tensor.name} has strides {tuple(strides)}")
        pitch = self._pitch(f"{name_of(tensor)}_output", strides[0])
        value = self._stored(op)
        self.outputs.append(Written(op=op, place=place, value=value, kind="group", pitch=pitch))

    def _check_dims(self, value: Value) -> None:
        """Check dimensions as for matmuls. Groups of columns, and the columns of a group, are two dimensions for one."""
        blocks = [block for dim in value.dims if (block := self.frame.block(dim)) is not None]
        parts = [block for block in blocks if block in self.frame.groups]
        rest = [block for block in blocks if block not in self.frame.groups]
        if not parts and self.frame.groups and rest == [self.frame.m] == [self.frame.block(value.dims[0])]:
            return
        if not parts:
            super()._check_dims(value)
        elif rest not in ([], [self.frame.m]) or blocks[len(rest) :] != parts or len(parts) > PARTS:
            raise Refusal("groups of columns follow the dimension of rows, with their columns last")
        check_places(self.frame, value.dims)

    def _made(self, value: Value) -> Reference:
        op = self.frame.maker(value)
        grouped = any(self.frame.block(dim) in self.frame.groups for dim in value.dims)
        if grouped and op is not None and isinstance(op.attrs, ViewAttrs) and op.attrs.name == "permute":
            raise Refusal("a permutation of groups of columns is not implemented")
        if op is not None and op.kind == "split":
            return self._half(op, op.results.index(value))
        if op is not None and op.kind == "view" and self._is_half(op.operands[0]) and not self._is_half(value):
            raise Refusal("a reshape of the elements of pairs of columns is not implemented")
        return super()._made(value)

    def _is_half(self, value: Operand) -> bool:
        """Return whether a value has one element for each pair of columns."""
        return isinstance(value, Value) and bool(value.dims) and self.frame.block(value.dims[-1]) in self.halves

    def _half(self, split: Op, at: int) -> Reference:
        """Return the first or the second element of each pair of columns, in the first column of the pair."""
        (pairs,) = split.operands
        assert isinstance(pairs, Value)
        if columns_in(self.frame, pairs.dims[-1]) != 2 or pairs.dims[:-1] != split.results[at].dims:
            raise Refusal("a split of other elements than those of pairs of columns is not implemented")
        value = self.read(pairs)
        return value if at == 0 else self.step(PARTNER, (value,))

    def _pointwise(self, op: Op, dtype: torch.dtype) -> Reference:
        check_aligned(self.frame, op)
        found = whole_number(self, op, dtype) if dtype in INTEGERS else None
        return super()._pointwise(op, dtype) if found is None else found

    def _cast(self, op: Op, dtype: torch.dtype) -> Reference:
        if dtype == torch.float8_e4m3fn:
            return self.step(ROUND_E4M3, (self.read(op.operands[0]),))
        return super()._cast(op, dtype)

    def _reduced(self, op: Op, dtype: torch.dtype) -> Reference:
        """Read a reduction of a row, or one of each group of columns."""
        source, attrs = op.operands[0], op.attributes(ReduceAttrs)
        assert isinstance(source, Value)
        group = self._columns_of_tile(op)
        if group and attrs.name in GROUPED and dtype == torch.float32:
            return self.step(GROUPED[attrs.name], (self.read(source), constant(group)))
        reduced = [self.frame.block(source.dims[dim]) for dim in attrs.dims]
        if not any(block in self.frame.groups for block in reduced if block is not None):
            return super()._reduced(op, dtype)
        group = reduced_columns(self.frame, op)
        if attrs.name not in GROUPED or dtype != torch.float32 or not group:
            raise Refusal("sums, maxima and minima in fp32 of the columns of each group are implemented")
        return self.step(GROUPED[attrs.name], (self.read(source), constant(group)))

    def _columns_of_tile(self, op: Op) -> int:
        """Return the columns that a tile reduces for itself, in a loop over tiles of a fixed size that carries nothing; else
        0."""
        source, attrs = op.operands[0], op.attributes(ReduceAttrs)
        assert isinstance(source, Value)
        blocks = [source.dims[dim].block for dim in attrs.dims]
        alone = any(loop.kind == "for" and not loop.results and op in loop.regions[0].ops for loop in self._loops())
        return self.frame.tile_columns(blocks[0]) if alone and len(blocks) == 1 and blocks[0] is not None else 0

    def _loops(self) -> list[Op]:
        return [op for root in self.frame.program.roots for op in root.body.ops if op.kind == "for"]

    def _over_columns(self, name: str, value: Reference) -> Reference:
        """Return a reduction of a row. Sums of products leave out factors that need another exchange."""
        if name != "row_sum":
            return super()._over_columns(name, value)
        numbers = frozenset(name for name, (operand, _) in self.loads.items() if operand.kind in ("column", "number"))
        return without_factors(self, self.steps, numbers, value)

    def add_rows(self, summed: RowSum) -> None:
        """Add a sum over the rows of each block to the outputs."""
        tensor, frame = self.frame.tensor(summed.store), self.frame
        if not equal(tensor.shape[1], frame.extent(frame.n)) or not equal(tensor.strides[1], 1) or not tensor.aligned:
            raise Refusal(
                f"sums over rows have {frame.columns} contiguous columns; {tensor.name} has {tensor.shape[1]}"
            )
        place = Place(tensor=tensor, blocks=(frame.n,), strides=(1,))
        value = self.read(summed.value)
        pitch = self._pitch(f"{name_of(tensor)}_output", tensor.strides[0])
        self.outputs.append(Written(op=summed.store, place=place, value=value, kind="sum", pitch=pitch))

    def add_total(self, total: Total) -> None:
        """Add the sums over all blocks of rows to the outputs."""
        kind, self.line_rows = "group" if total.rows else "sum", total.rows
        of = next((each for each in self.outputs if each.kind == kind and each.place.tensor.id == total.parts), None)
        tensor = self.frame.tensor(total.store)
        if of is None:
            raise Refusal(f"{tensor.name} is the sum of a tensor that has no sums over the rows of blocks")
        if equal(self.frame.extent(self.frame.m), 0):
            raise Refusal(f"{tensor.name} is a sum of no rows")
        place = Place(tensor=tensor, blocks=(self.frame.n,), strides=(1,))
        self.outputs.append(Written(op=total.store, place=place, value=of.value, kind="total", pitch=1))

    def epilogue(self) -> Epilogue:
        """Return the program with all outputs named."""
        found = super().epilogue()
        if found.outputs:
            return found
        (output,) = self.outputs
        return replace(found, outputs=(_named(output, found.last),))

    def _has_sums(self, value: object) -> bool:
        """Return True: a stored value may depend on any input."""
        return True


def _named(output: Written, value: int) -> EpilogueOutput:
    tensor = output.place.tensor
    return EpilogueOutput(
        name=name_of(tensor),
        value=value,
        kind="exact" if output.kind == "exact" else "column",
        dtype=dtype_name(tensor.dtype),
        pitch=output.pitch,
    )


def _is_in(value: Operand | None, extent: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < extent


class RowTiles(TiledRows):
    """A reader of loops over tiles of columns, without a matmul."""

    def __init__(self, root: Root, frame: Frame, chain: Chain, first: Op) -> None:
        super().__init__(root, frame, chain, first, lambda loop: False)

    def _whole(self, store: Op) -> Op:
        """Return a store, which may be of one element for each tile."""
        return store if one_per_tile(self.frame, store) else super()._whole(store)

    def _product(self, loop: Op) -> None:
        raise Refusal("loops within loops over tiles of columns are not implemented")


def rows_of(program: Program) -> RowKernel:
    """Return the row kernel that `program` computes. Raises ``Refusal``."""
    program, after = without_totals(program)
    program = with_row_tiles(with_loops_of_parts(program))
    others = (*(axis.block for axis in program.roots[0].axes[:-1]), *after.blocks)
    program, repeated = with_flat_rows(program)
    program, blocks = with_single_rows(program)
    given = len(program.blocks)
    program = with_flat_columns(program)
    root = program.roots[0]
    check_axis(root.axes[0], program)
    loops = [op for op in root.body.ops if op.kind == "for"]
    _check_effects(program, [root.body, *(loop.regions[0] for loop in loops)])
    frame = _frame(program, root, loops)
    chain = RowChain(frame, repeated)
    tiled = RowTiles(root, frame, chain, loops[0]) if loops else None
    stores = tiled.stores() if tiled else stores_after_loop(root.body, frame, chain)
    for store in sorted(stores, key=lambda store: len(blocks_of(frame, store)), reverse=True):
        chain.store(store)
    for each in blocks.sums if blocks else ():
        chain.add_rows(each)
    for total in after.totals:
        chain.add_total(total)
    one_tile = tiled is not None and tiled.one_tile
    if one_tile and any(step.op in GROUP_REDUCTIONS for step in chain.steps):
        raise Refusal("tiles of columns are reduced for themselves, in a kernel that needs one tile of all columns")
    made = _kernel(frame, chain)
    return replace(
        made,
        problem=interned(replace(made.problem, hidden_sums=True)) if after.hidden else made.problem,
        one_tile=one_tile,
        columns=tuple(block for block in made.columns if block < given),
        others=others,
        blocks=blocks.block if blocks else None,
        fixed=not program.blocks[frame.m].tunable,
    )


def _check_effects(program: Program, bodies: list[Region]) -> None:
    others = [op.kind for body in bodies for op in body.ops if op.regions and op.kind != "for"]
    if others:
        raise Refusal(f"{others[0]} in a row kernel is not implemented")
    known = {op.number for body in bodies for op in body.ops if op.kind == "store"}
    for op in program.walk():
        if OPS[op.kind].stays and op.number not in known:
            raise Refusal(f"{op.kind} in a row kernel is not implemented")


def _frame(program: Program, root: Root, loops: list[Op]) -> Frame:
    """Find the dimension of columns: every loop, and every whole dimension, covers all of it."""
    rows = root.axes[0].block
    columns = []
    for loop in loops:
        axes = loop.attributes(ForAttrs).axes
        if len(axes) != 1:
            raise Refusal("loops over tiles of columns, and over nothing else, are implemented")
        check_axis(axes[0], program)
        columns.append(axes[0].block)
    used = {dim.block for op in program.walk() for value in op.results for dim in value.dims}
    columns += [block.id for block in program.blocks if block.kind == "full" and block.id in used]
    if not columns:
        raise Refusal("the kernel has no dimension of columns besides its grid")
    groups = groups_of(program)
    columns = [block for block in columns if block not in groups]
    first, *others = columns
    extent = size(program.blocks[first].extent)
    for other in others:
        if not equal(size(program.blocks[other].extent), extent):
            raise Refusal(f"the kernel has rows of {extent} and of {program.blocks[other].extent} columns")
    makers = {result.number: op for op in program.walk() for result in op.results}
    return Frame(
        program=program,
        makers=makers,
        m=rows,
        n=first,
        k=-1,
        bucket=bucket_of_rows(program, extent),
        whole_rows=True,
        by_tiles=bool(loops),
        same={other: first for other in others},
        groups=groups,
    )


def _kernel(frame: Frame, chain: RowChain) -> RowKernel:
    rows = frame.extent(frame.m)
    epilogue = chain.epilogue()
    outputs = tuple(output.place.tensor.id for output in chain.outputs)
    operands = tuple(source for _, source in chain.loads.values())
    read = [each for each in operands if isinstance(each, int)]
    check_memory(frame, read, outputs, chain.updated())
    columns, bucket = frame.extent(frame.n), frame.bucket
    bounds = ((columns.args[0], bucket),) if isinstance(columns, Expr) and bucket is not None else ()
    strides, multiples = launch_strides(chain, epilogue, columns)
    runtime = tuple((name, each) for name, each in ((SIZE_M, rows), (SIZE_N, columns)) if isinstance(each, Expr))
    runtime = (*runtime, *chain.counts.items(), *strides)
    problem = RowProblem(
        m=max(1, example(rows)),
        n=frame.columns,
        least=bucket[0] if bucket is not None else 0,
        epilogue=epilogue,
        runtime=tuple(name for name, _ in runtime),
        gathers=tuple(chain.gathers.values()),
        repeats=tuple(chain.repeats.values()),
        line_rows=chain.line_rows,
    )
    check_problem(problem := interned(problem))
    return RowKernel(
        problem=problem,
        outputs=outputs,
        operands=operands,
        runtime=runtime,
        multiples=multiples,
        ranges=(*bounds, *chain.exact_numbers()),
        rows=frame.m,
        columns=frame.column_blocks,
        is_empty=equal(rows, 0),
    )
