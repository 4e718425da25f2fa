"""One loop in place of several that differ in constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...._shapes import Dim, Dims, Number, fixed_at
from ...._support.records import dataclass, replace
from ...ir.build import Builder, Numbers
from ...ir.grammar import (
    Block,
    ForAttrs,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    Operand,
    Program,
    Region,
    TileAttrs,
    Value,
)
from ...ir.rewrite import Declined, Makers
from .digits import Sums, digits_of, totals

#: Ops between the loops that each iteration repeats with other constants.
REPEATED = frozenset(("pointwise", "view"))


@dataclass(frozen=True, kw_only=True)
class Run:
    """``loops`` that can be fused, with their ``blocks``, over ``extent`` elements each."""

    loops: tuple[Op, ...]
    blocks: tuple[int, ...]
    extent: int


class Fuser:
    """Fusion of loops; ``fused`` returns the loop of all passes, or raises ``Declined``."""

    def __init__(self, program: Program, run: Run, sizes: Mapping[int, int]) -> None:
        self.before, self.run = program, run
        self.size = sizes[run.blocks[0]]
        self.numbers = Numbers.after(program)
        (self.root,) = program.roots
        self.makers = Makers.among(self.root.body.ops)
        self.sums = Sums(self.makers, program.index_dtype)
        self.counter = Block(
            id=len(program.blocks), kind="grid", extent=self.passes * self.steps, size=1, name="passes"
        )
        self.bodies = [loop.regions[0] for loop in run.loops]
        #: Values of all bodies, by value of the first body.
        self.same: dict[int, tuple[Value, ...]] = {}
        self.renamed: dict[int, Value] = {}
        self.repeated: dict[tuple[int, ...], Operand] = {}

    @property
    def passes(self) -> int:
        return len(self.run.loops)

    @property
    def steps(self) -> int:
        """Iterations of one pass."""
        return max(1, self.run.extent // self.size)

    def program_of(self) -> Program:
        fused, gone = self.fused(), {op.number for op in self.run.loops}
        last = self.run.loops[-1].number
        ops = tuple(
            fused if op.number == last else op
            for op in self.root.body.ops
            if op.number not in gone or op.number == last
        )
        body = replace(self.root.body, ops=ops)
        blocks = (*self.before.blocks, self.counter)
        return replace(self.before, blocks=blocks, roots=(replace(self.root, body=body),))

    def fused(self) -> Op:
        """Return the first loop, extended to all passes. It replaces the last one."""
        first, last = self.run.loops[0], self.run.loops[-1]
        if len({len(body.ops) for body in self.bodies}) != 1:
            raise Declined("loops have different numbers of ops")
        for at, param in enumerate(self.bodies[0].params):
            self.same[param.number] = tuple(body.params[at] for body in self.bodies)
        ops: list[Op] = []
        self.out = Builder(self.numbers, first.location, ops)
        self.start()
        for same in zip(*(body.ops for body in self.bodies), strict=True):
            self.repeat(same)
        results = tuple(self.operand(same) for same in zip(*(body.results for body in self.bodies), strict=True))
        axis = LoopAxis(self.counter.id, 0, self.passes * self.steps, scalar=True)
        attrs = replace(first.attributes(ForAttrs), axes=(axis,))
        region = Region(self.bodies[0].params, tuple(ops), results)
        return replace(first, results=last.results, attrs=attrs, regions=(region,))

    def start(self) -> None:
        """Emit the pass, and the begin of its tile."""
        out, dtype = self.out, self.before.index_dtype
        count = out.emit("tile", (), dtype, (), TileAttrs(self.counter.id, "index"))
        self.at = out.pointwise("truncdiv", count, self.steps)
        self.begin = out.pointwise("mul", out.pointwise("fmod", count, self.steps), self.size)
        self.dims: Dims = (Dim(blocks=(self.run.blocks[0],)),)
        self.lanes = out.emit("iota", (), dtype, self.dims, IotaAttrs(self.run.blocks[0], True))

    # --- ops ----------------------------------------------------------------------------------------------------------

    def repeat(self, same: tuple[Op, ...]) -> None:
        """Emit an op of the first body for all passes."""
        first = same[0]
        for at, op in enumerate(same):
            if op.kind != first.kind or [self.dims_of(r, at) for r in op.results] != [r.dims for r in first.results]:
                raise Declined("ops of the loops differ")
            if any(a.dtype != b.dtype for a, b in zip(op.results, first.results, strict=True)):
                raise Declined("ops of the loops differ")
        for at, result in enumerate(first.results):
            self.same[result.number] = tuple(op.results[at] for op in same)
        if (made := self.walked(same)) is not None:
            self.renamed[first.result.number] = made
        elif isinstance(first.attrs, MemoryAttrs):
            self.load(same)
        elif any(op.attrs != first.attrs for op in same):
            raise Declined("attributes of the loops' ops differ")
        else:
            operands = tuple(map(self.operand, zip(*(op.operands for op in same), strict=True)))
            self.out.ops.append(replace(first, operands=operands))

    def dims_of(self, value: Value, at: int) -> Dims:
        """Return the dimensions of a value of body ``at``, along the block of the first one."""
        own, block = self.run.blocks[at], self.run.blocks[0]
        return tuple(replace(d, blocks=tuple(block if b == own else b for b in d.blocks)) for d in value.dims)

    def walked(self, same: tuple[Op, ...]) -> Value | None:
        """Return the replacement of an op that gives the begin of the loop's tile or its indices; None for other
        ops."""
        blocks = [op.attrs.block for op in same if isinstance(op.attrs, (TileAttrs, IotaAttrs))]
        if tuple(blocks) != self.run.blocks:
            return None
        first = same[0].attrs
        if isinstance(first, TileAttrs) and first.field == "begin" and all(op.attrs.field == "begin" for op in same):
            return self.begin
        if isinstance(first, IotaAttrs) and all(replace(op.attrs, block=first.block) == first for op in same):
            if first.relative:
                return self.out.emit("iota", (), same[0].result.dtype, self.dims, first)
            return self.out.pointwise("add", self.begin, self.lanes)
        raise Declined("the loops use tile properties other than begin and indices")

    def operand(self, same: Sequence[Operand]) -> Operand:
        """Return an operand for all passes."""
        first = same[0]
        if all(o is first for o in same):
            return self.renamed.get(first.number, first) if isinstance(first, Value) else first
        if isinstance(first, Value):
            if first.number in self.same:
                if not all(o is other for o, other in zip(same, self.same[first.number], strict=True)):
                    raise Declined("values of the loops differ")
                return self.renamed.get(first.number, first)
            return self.outside(same)
        if all(type(o) is type(first) and repr(o) == repr(first) for o in same):
            return first
        raise Declined("constants in the loops differ")

    # --- values that differ between passes ----------------------------------------------------------------------------

    def outside(self, same: Sequence[Operand]) -> Operand:
        """Return a value from before the loops that differs between passes; each iteration computes it again."""
        values = [value for value in same if isinstance(value, Value)]
        key = tuple(value.number for value in values)
        if key in self.repeated:
            return self.repeated[key]
        offsets = self.offsets(same)
        if offsets is not None:
            made: Operand = self.out.pointwise("add", values[0], self.varying(offsets))
        else:
            made = self.again(values) if len(values) == len(same) else self.declined()
        self.repeated[key] = made
        return made

    def declined(self) -> Operand:
        raise Declined("an operand is a constant in one loop and a value in another")

    def again(self, values: Sequence[Value]) -> Operand:
        makers = [self.makers.of(value) for value in values]
        ops = [op for op in makers if op is not None and op.kind in REPEATED]
        if len(ops) < len(makers) or any((op.kind, op.attrs) != (ops[0].kind, ops[0].attrs) for op in ops):
            raise Declined("different ops compute the values from before the loops")
        if any(value.dims != values[0].dims or value.dtype != values[0].dtype for value in values):
            raise Declined("values from before the loops have different dimensions")
        operands = [self.part(same) for same in zip(*(op.operands for op in ops), strict=True)]
        return self.out.emit(ops[0].kind, operands, values[0].dtype, values[0].dims, ops[0].attrs)

    def part(self, same: Sequence[Operand]) -> Operand:
        """Return an operand, for all passes, of an op before the loops."""
        first = same[0]
        if all(o is first for o in same) or all(type(o) is type(first) and repr(o) == repr(first) for o in same):
            return first
        if all(type(o) is int for o in same):
            return self.varying([o for o in same if isinstance(o, int)])
        return self.outside(same)

    def offsets(self, same: Sequence[Operand]) -> list[int] | None:
        """Return the differences of integers from the first of them, if known."""
        first = same[0]
        if not isinstance(first, Value) or first.dtype != self.before.index_dtype:
            return None
        sums = [self.sums.of(value) for value in same]
        found = [each for each in sums if each is not None]
        if len(found) < len(sums) or any(each.factors != found[0].factors for each in found):
            return None
        if any(isinstance(v, Value) and (v.dims != first.dims or v.dtype != first.dtype) for v in same):
            return None
        return [each.constant - found[0].constant for each in found]

    def varying(self, numbers: Sequence[int]) -> Operand:
        """Return a number that differs between passes."""
        digits = digits_of(numbers)
        if digits is None:
            raise Declined("constants of the loops are not linear in the pass")
        out = self.out
        made: Value | None = None
        for digit in digits:
            value = self.at if digit.divisor == 1 else out.pointwise("truncdiv", self.at, digit.divisor)
            if digit.divisor * digit.modulus < self.passes:
                value = out.pointwise("fmod", value, digit.modulus)
            value = value if digit.factor == 1 else out.pointwise("mul", value, digit.factor)
            made = value if made is None else out.pointwise("add", made, value)
        if made is None:
            return numbers[0]
        return made if numbers[0] == 0 else out.pointwise("add", made, numbers[0])

    # --- loads --------------------------------------------------------------------------------------------------------

    def load(self, same: tuple[Op, ...]) -> None:
        first = same[0]
        attrs = first.attributes(MemoryAttrs)
        every = [op.attributes(MemoryAttrs) for op in same]
        plain = replace(attrs, indices=())
        if any(replace(a, indices=(), slot=attrs.slot, load_slot=attrs.load_slot) != plain for a in every):
            raise Declined("attributes of the loops' loads differ")
        operands: list[Operand] = []
        indices: list[Index] = []
        begins = self.begins(same, every)
        for at, indexed in enumerate(zip(*(a.indices for a in every), strict=True)):
            index, operand = self.first_index(same, indexed) if at in begins else self.index(same, indexed, begins)
            if operand is not None:
                index = replace(index, operand=len(operands))
                operands.append(operand)
            indices.append(index)
        mask = attrs.mask
        if mask is not None:
            operands.append(self.operand([op.operands[mask] for op in same]))
            mask = len(operands) - 1
        made = replace(attrs, indices=tuple(indices), mask=mask)
        self.out.ops.append(replace(first, operands=tuple(operands), attrs=made))

    def begins(self, same: tuple[Op, ...], every: Sequence[MemoryAttrs]) -> Mapping[int, list[int]]:
        """Return tile begins by dimension, for dimensions whose index differs between passes by known numbers.

        They are in elements along the tile of the loop, relative to the first pass. Lanes are then the same in all
        passes, and only constants differ.
        """
        tensor, found = self.before.tensors[every[0].tensor], {}
        walked = [
            stride
            for stride, index in zip(tensor.strides, every[0].indices, strict=True)
            if index.block == self.run.blocks[0]
        ]
        if len(walked) != 1 or not isinstance(walked[0], int) or walked[0] <= 0:
            return {}
        for at, stride in enumerate(tensor.strides):
            offsets = self.moved(same, [attrs.indices[at] for attrs in every])
            if offsets is None or not any(offsets) or not isinstance(stride, int):
                continue
            if all(offset * stride % walked[0] == 0 for offset in offsets):
                found[at] = [offset * stride // walked[0] for offset in offsets]
        return found if found and digits_of(totals(found)) is not None else {}

    def moved(self, same: tuple[Op, ...], indexed: Sequence[Index]) -> list[int] | None:
        """Return the differences of an index from that of the first pass, if known; None for indices along the loop's
        tile."""
        first = indexed[0]
        if any((i.kind, i.positions, i.block) != (first.kind, first.positions, first.block) for i in indexed):
            return None
        if not all(type(index.shift) is int for index in indexed):
            return None
        shifts = [index.shift for index in indexed if isinstance(index.shift, int)]
        from_first = [shift - shifts[0] for shift in shifts]
        if all(index.operand is None for index in indexed):
            return from_first
        if any(index.operand is None for index in indexed):
            return None
        given = [op.operands[i.operand] for op, i in zip(same, indexed, strict=True)]  # type: ignore[index]
        offsets = [0] * len(given) if all(o is given[0] for o in given) else self.offsets(given)
        return None if offsets is None else [a + b for a, b in zip(from_first, offsets, strict=True)]

    def first_index(self, same: tuple[Op, ...], indexed: Sequence[Index]) -> tuple[Index, Operand | None]:
        """Return the index of the first pass, and its operand."""
        first = indexed[0]
        return first, None if first.operand is None else same[0].operands[first.operand]

    def index(
        self, same: tuple[Op, ...], indexed: Sequence[Index], begins: Mapping[int, list[int]]
    ) -> tuple[Index, Operand | None]:
        """Return one index for all passes, and its operand."""
        first = indexed[0]
        own = all(index.block == block for index, block in zip(indexed, self.run.blocks, strict=True))
        if any((i.kind, i.positions) != (first.kind, first.positions) for i in indexed):
            raise Declined("the kinds of index differ between the loops")
        if not own and any(index.block != first.block for index in indexed):
            raise Declined("the kinds of index differ between the loops")
        given = None
        if first.operand is not None:
            given = self.operand([op.operands[i.operand] for op, i in zip(same, indexed, strict=True)])  # type: ignore[index]
        elif any(index.operand is not None for index in indexed):
            raise Declined("the kinds of index differ between the loops")
        shifts = [index.shift for index in indexed]
        if first.block is not None and own:
            begin = self.out.pointwise("add", self.varying(totals(begins)), self.begin) if begins else self.begin
            lanes = self.out.pointwise("add", begin, self.lanes)
            lanes = lanes if given is None else self.out.pointwise("add", lanes, given)
            moved = (
                lanes if all(fixed_at(s, 0) for s in shifts) else self.out.pointwise("add", lanes, self.shift(shifts))
            )
            return Index("tensor", positions=first.positions), moved
        if all(repr(shift) == repr(shifts[0]) for shift in shifts):
            return first, given
        shift = self.shift(shifts)
        return replace(first, shift=0), shift if given is None else self.out.pointwise("add", given, shift)

    def shift(self, shifts: Sequence[Number]) -> Operand:
        if not all(type(shift) is int for shift in shifts):
            raise Declined("indices of the loops differ by more than constants")
        return self.varying([shift for shift in shifts if isinstance(shift, int)])
