"""The epilogue of a GEMM, traced from stored values back to the accumulator, one instruction per op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

import torch

from ...._compiler.ir.grammar import (
    HostTensor,
    IotaAttrs,
    NumberAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    ReduceAttrs,
    Value,
    ViewAttrs,
)
from ...._shapes import Expr, Number, dtype_name
from ...._support.records import dataclass, replace
from ..plan.epilogue import (
    ARITY,
    COLUMN_NUMBER,
    INTEGER_SUM,
    MAX_NUMBERED,
    ROW_NUMBER,
    Constant,
    Epilogue,
    EpilogueOperand,
    EpilogueOutput,
    Instruction,
    OperandKind,
    OutputKind,
    constant,
)
from ..plan.records import TMA_ALIGNMENT_BYTES
from ..plan.refusal import Refusal
from .frame import Frame, Place, kind_of, numbers_of, picked_lines, place_of, suits_tma, upright
from .known import known_number, known_of_positions, power
from .names import name_of
from .numbers import equal, example, known
from .rewrites.integers import added_integers
from .rewrites.picks import Pick
from .rewrites.random import random_numbers

ROUNDED = {torch.bfloat16: "round_bfloat16", torch.float16: "round_float16"}
"""Types to which eager rounds every result; arithmetic itself is in fp32."""
EXACT_INTEGERS = MAX_NUMBERED
"""Limit of the integers that are exact in fp32."""
EXAMPLE_MULTIPLE = 16
"""Multiple of example strides, in elements: enough for TMA with every type."""
INDICES = (torch.int32, torch.int64)
"""Types of positions, which fp32 represents."""

#: A number, the name of an operand, or the position of a step.
Reference = Constant | str | int
SUMS = "sums"
"""The accumulator's name among operands, whose own names contain more than letters."""


@dataclass(frozen=True)
class Step:
    op: str
    arguments: tuple[Reference, ...]


@dataclass(frozen=True, kw_only=True)
class Written:
    """An output before values have numbers."""

    op: Op
    place: Place
    value: Reference
    kind: OutputKind
    pitch: int
    column_pitch: int = 1
    picked: int = 0
    lines: HostTensor | None = None
    pairs: int = 0
    block: int = 0

    @property
    def adds(self) -> bool:
        return self.op.kind == "atomic"


class Steps(Protocol):
    """A trace that appends steps."""

    def step(self, name: str, arguments: tuple[Reference, ...]) -> int:
        """Return the position of a step."""


class Tiles(Protocol):
    """Loops over tiles of columns."""

    def carried(self, loop: Op, result: Value) -> Reference:
        """Return the final value of a loop-carried variable."""

    def handed(self, value: Value) -> Reference:
        """Return the value that a loop passes to its body."""

    def position(self, op: Op) -> Reference:
        """Return a number for the position of a tile."""

    def added_to_lanes(self, reduction: Op) -> Operand | None:
        """Return the values that tiles have added to lanes, which are then reduced; None for other reductions."""

    def take_whole(self, reduction: Op) -> None:
        """Require that a tile's own reduction covers all columns. Raises ``Refusal``."""


class Chain:
    """A trace from stored values back to the accumulator, which numbers values as ``Epilogue`` does.

    Operands come first in that order, so steps refer to them by name until ``epilogue`` runs. Matrices are moved
    ``by_tma`` where it can, and by threads where it cannot.
    """

    by_tma: ClassVar[bool] = True

    def __init__(self, frame: Frame, sums: Value | None = None) -> None:
        self.frame = frame
        self.known: dict[int, Reference] = {} if sums is None else {sums.number: SUMS}
        self.loads: dict[str, tuple[EpilogueOperand, int | Expr]] = {}
        self.steps: list[Step] = []
        self.numbers: dict[Step, int] = {}
        self.outputs: list[Written] = []
        #: Loads and their places.
        self.read_from: list[tuple[Op, Place]] = []
        #: Strides known only at launch, by their names in the kernel.
        self.runtime: dict[str, Expr] = {}
        #: The interpretation of loops over tiles of columns, if there are any.
        self.tiles: Tiles | None = None

    def add_product(self, sums: Value, tensor: HostTensor, dtype: torch.dtype, pitch: Number) -> str:
        """Read the accumulator of another matmul like an operand, whose label is returned."""
        name = name_of(tensor)
        name = f"{name}_{len(self.loads)}" if name in self.loads else name
        operand = EpilogueOperand(name=name, kind="product", dtype=dtype_name(dtype))
        self.known[sums.number] = self._loaded(operand, tensor.id, pitch)
        return operand.label

    def begin(self, sums: Value, start: Operand) -> None:
        """Add the initial value of an accumulator, which is read as a part of the epilogue."""
        if starts_from_zero(self.frame, start):
            return
        if sums.dtype == torch.int32:
            raise Refusal("accumulators in int32 that start from other numbers than zero are not implemented")
        self.known[sums.number] = self.step("add", (self.known[sums.number], self.read(start)))

    def updated(self) -> frozenset[int]:
        """Return the outputs whose tiles are read, at the same place, before they are stored."""
        order = {op.number: at for at, op in enumerate(self.frame.program.walk())}
        matrices = [output for output in self.outputs if output.kind in ("exact", "strided") and not output.adds]
        stored = {output.place.tensor.id: output for output in matrices}
        return frozenset(
            tensor
            for tensor, output in stored.items()
            if all(
                place == output.place and order[op.number] < order[output.op.number]
                for op, place in self.read_from
                if place.tensor.id == tensor
            )
        )

    def _pitch(self, label: str, number: Number) -> int:
        if isinstance(number, Expr):
            self.runtime[f"pitch_{label}"] = number
        return example(number, EXAMPLE_MULTIPLE)

    def read(self, value: Operand) -> Reference:
        if not isinstance(value, Value):
            return constant_of(value)
        if value.number not in self.known:
            self._check_dims(value)
            self.known[value.number] = self._made(value)
        return self.known[value.number]

    def _made(self, value: Value) -> Reference:
        op = self.frame.maker(value)
        if op is None and self.tiles is not None:
            return self.tiles.handed(value)
        if op is None:
            raise Refusal("the epilogue reads a loop-carried value")
        if op.kind == "load":
            return self._load(op)
        if op.kind == "for" and self.tiles is not None:
            return self.tiles.carried(op, value)
        if op.kind == "tile" and self.tiles is not None:
            return self.tiles.position(op)
        if op.kind == "mask":  # reductions and stores leave out columns past the end of a row
            return self.read(op.operands[0])
        if op.kind == "view" and isinstance(op.attrs, ViewAttrs):
            return self.read(op.operands[0])
        if op.kind == "number":
            return self._number(op)
        if op.kind == "random":
            return self._random(op)
        if op.kind == "iota":
            return self._position(op)
        if op.kind == "full":
            return constant_of(op.operands[0])
        if op.kind == "reduce":
            return self._reduced(op, value.dtype)
        if op.kind == "pointwise":
            return self._pointwise(op, value.dtype)
        raise Refusal(f"{op.kind} in an epilogue is not implemented")

    def _check_dims(self, value: Value) -> None:
        """Check that values have dimensions of the tile, none of them merged. They may be transposed or lack one."""
        blocks = [block for dim in value.dims if (block := self.frame.block(dim)) is not None]
        if len(value.dims) > 2 or len({*blocks}) < len(blocks) or not {*blocks} <= {self.frame.m, self.frame.n}:
            raise Refusal("values of an epilogue have the dimensions of the output's tile, or some of them")

    def _load(self, op: Op) -> Reference:
        place = upright(self.frame, place_of(self.frame, op))
        if place.tensor.id in self.frame.picks:
            pick = self.frame.picks[place.tensor.id]
            raise Refusal(f"lines of {pick.tensor.name} that {pick.lines.name} picks are read in an epilogue")
        self.read_from.append((op, place))
        tensor, column_pitch = place.tensor, 1
        kind: OperandKind
        if self.by_tma and self._is_strided(place):
            columns = known(place.strides[1], f"a stride of {tensor.name}")
            along_m = self.frame.along_m and equal(place.strides[0], 1)
            kind, pitch, column_pitch = "exact" if along_m else "strided", place.strides[0], columns
        else:
            kind, pitch = kind_of(self.frame, place)
        name = name_of(tensor)
        if name in self.loads and self.loads[name][0].kind == "product":
            raise Refusal(f"{tensor.name} is multiplied, and read by the epilogue as well")
        if name in self.loads and self.loads[name][0].kind != kind:
            name = f"{name}_{kind}"
        operand = EpilogueOperand(name=name, kind=kind, dtype=dtype_name(tensor.dtype), column_pitch=column_pitch)
        return self._loaded(operand, tensor.id, pitch)

    def _is_strided(self, place: Place) -> bool:
        """Return whether a matrix has strides that TMA cannot take."""
        if place.blocks != (self.frame.m, self.frame.n) or any(equal(stride, 0) for stride in place.strides):
            return False
        return not suits_tma(self.frame, place)

    def _ends_in_a_granule(self, place: Place) -> bool:
        """Return whether rows of an output end within 16 bytes, which TMA stores whole."""
        extent = self.frame.extent(self.frame.n) if place.blocks == (self.frame.m, self.frame.n) else 0
        return isinstance(extent, int) and extent * place.tensor.dtype.itemsize % TMA_ALIGNMENT_BYTES != 0

    def _number(self, op: Op) -> Reference:
        """Read a number known only at launch; it is passed in fp32 as in eager."""
        expr = op.attributes(NumberAttrs).expr
        if expr.kind is bool:
            raise Refusal("booleans of an epilogue that are known only at run time are not implemented")
        for name, (operand, source) in self.loads.items():
            if operand.kind == "number" and isinstance(source, Expr) and source.key == expr.key:
                return name
        return self._loaded(EpilogueOperand(name=f"number_{op.result.number}", kind="number", dtype="float32"), expr)

    def _random(self, op: Op) -> Reference:
        """Read random numbers of a seed, which the threads draw."""
        if self.tiles is not None:
            raise Refusal("random numbers of rows that loops reduce are not implemented")
        seed, operand = random_numbers(self.frame, op)
        return self._loaded(operand, seed, operand.pitch)

    def _loaded(self, operand: EpilogueOperand, source: int | Expr, pitch: Number = 1) -> str:
        self.loads[operand.name] = (replace(operand, pitch=self._pitch(operand.label, pitch)), source)
        return operand.name

    def _position(self, op: Op) -> Reference:
        """Read the index of a row or a column."""
        attrs = op.attributes(IotaAttrs)
        block = self.frame.named(attrs.block)
        if block not in (self.frame.m, self.frame.n) or (attrs.relative and (attrs.start, attrs.step) != (0, 1)):
            raise Refusal("indices of rows and columns are implemented in steps of 1 only")
        if attrs.relative and block == self.frame.n and self.tiles is not None:
            self.tiles.take_whole(op)
        elif attrs.relative and (block == self.frame.m or not self.frame.whole_rows):
            raise Refusal("indices relative to a tile are not implemented")
        return self.step(COLUMN_NUMBER if block == self.frame.n else ROW_NUMBER, ())

    # Reductions ----------------------------------------------------------------------------------------------------------

    def _reduced(self, op: Op, dtype: torch.dtype) -> Reference:
        """Read a reduction to one number per row. Its type is that of its operand: fp32 results are rounded to it."""
        _check_reduction(op, self.frame)
        added = self.tiles.added_to_lanes(op) if self.tiles is not None else None
        if self.tiles is not None and added is None:
            self.tiles.take_whole(op)
        return self.reduce(op, dtype, added)

    def reduce(self, op: Op, dtype: torch.dtype, source: Operand | None = None) -> Reference:
        """Apply the reduction of ``op`` to all columns, of ``source`` in place of its operand if there is one."""
        name, source = op.attributes(ReduceAttrs).name, op.operands[0] if source is None else source
        exact = name in _POSITIONS or _counts_truths(self.frame, source)
        if name not in _REDUCTIONS or (not exact and dtype != torch.float32 and dtype not in ROUNDED):
            raise Refusal(f"a reduction by {name} to {dtype_name(dtype)} in an epilogue is not implemented")
        value = self.read(source)
        result = self._over_columns(_REDUCTIONS[name], value)
        if name in _POSITIONS:
            return self.step("row_first", (value, result))
        return self.rounded(result, dtype)

    def _over_columns(self, name: str, value: Reference) -> Reference:
        """Return the reduction of a value over all columns."""
        return self.step(name, (value,))

    # Elementwise ---------------------------------------------------------------------------------------------------------

    def _pointwise(self, op: Op, dtype: torch.dtype) -> Reference:
        name = op.attributes(PointwiseAttrs).name
        if name == "cast":
            return self._cast(op, dtype)
        found = added_integers(self.frame, op, self._is_sums) if name == "add" else None
        if found is not None:
            return self.step(INTEGER_SUM, (SUMS, self._loaded(found[1], found[0], found[1].pitch)))
        known = self._known(op, name)
        if known is not None:
            return known
        if name not in (TRUTH if dtype == torch.bool else ARITHMETIC):
            raise Refusal(f"{name} in an epilogue is not implemented")
        if dtype not in (torch.bool, torch.float32, *ROUNDED) and not (name == "where" and dtype in INDICES):
            raise Refusal(f"{name} of {dtype_name(dtype)} in an epilogue is not implemented")
        _check_ranks(op, self.frame)
        arguments = tuple(self.read(operand) for operand in op.operands)
        self._check_integers(op, name, arguments)
        tanh_of = self._tanh_plus_one(name, arguments)
        if tanh_of is not None and dtype == torch.float32:
            return self.step("one_plus_tanh", (tanh_of,))
        if name in SPELLED:
            return self.rounded(SPELLED[name](self, arguments), dtype)
        return self.rounded(self.step(name, arguments), dtype)

    def _is_sums(self, value: Value) -> bool:
        return self.known.get(value.number) == SUMS

    def _check_integers(self, op: Op, name: str, arguments: Sequence[Reference]) -> None:
        """Check comparisons of integers. In fp32 they keep their order relative to all integers below
        ``EXACT_INTEGERS``, so only those are allowed."""
        integers = [is_integer(each) and _may_be_large(x) for each, x in zip(op.operands, arguments, strict=True)]
        if name == "where" and any(integers[1:]):
            raise Refusal("integers that fp32 may not hold are compared with positions, and nothing else")
        if name in COMPARISONS and sum(integers) > 1:
            raise Refusal("comparisons of two integers, which fp32 may not hold, are not implemented")

    def _cast(self, op: Op, dtype: torch.dtype) -> Reference:
        """Read a cast: widening is exact, and positions fit in every integer type."""
        source = op.operands[0]
        from_dtype = source.dtype if isinstance(source, Value) else torch.float32
        if dtype in INDICES and from_dtype in (*INDICES, torch.bool):
            value = self.read(source)
            if dtype.itemsize < from_dtype.itemsize and _may_be_large(value):
                raise Refusal("integers that fp32 may not hold are compared with positions, and nothing else")
            return value
        if dtype != torch.float32 and dtype not in ROUNDED:
            raise Refusal(f"cast of {dtype_name(dtype)} in an epilogue is not implemented")
        value = self.read(source)
        return value if dtype in (from_dtype, torch.float32) else self.rounded(value, dtype)

    def _known(self, op: Op, name: str) -> Reference | None:
        """Return an operation's known result: a constant, the choice of a known condition, or a position plus 0."""
        found = known_of_positions(self.frame, op, self.read) or known_number(op, self.read)
        if found is not None:
            return found
        if name == "where" and isinstance(condition := self.read(op.operands[0]), Constant):
            return self.read(op.operands[1 if float(condition.text) else 2])
        if name == "add" and op.result.dtype in INDICES:
            rest = [value for value in map(self.read, op.operands) if value != constant(0.0)]
            return rest[0] if len(rest) == 1 else None
        return None

    def _tanh_plus_one(self, name: str, arguments: tuple[Reference, ...]) -> Reference | None:
        """Return the argument of a tanh that 1 is added to: twice a logistic function, which is shorter and does not
        cancel."""
        rest = [argument for argument in arguments if argument != constant(1.0)]
        if name == "add" and len(rest) == 1 and isinstance(rest[0], int) and self.steps[rest[0]].op == "tanh":
            return self.steps[rest[0]].arguments[0]
        return None

    def rounded(self, value: Reference, dtype: torch.dtype) -> Reference:
        return self.step(ROUNDED[dtype], (value,)) if dtype in ROUNDED else value

    def step(self, name: str, arguments: tuple[Reference, ...]) -> int:
        step = Step(name, arguments)
        if step not in self.numbers:
            self.numbers[step] = len(self.steps)
            self.steps.append(step)
        return self.numbers[step]

    # Outputs -------------------------------------------------------------------------------------------------------------

    def store(self, op: Op) -> None:
        """Add the store, or the atomic addition, of ``op`` to the outputs."""
        place = upright(self.frame, place_of(self.frame, op))
        picked = picked_lines(self.frame, op, place)
        if self.frame.along_m and picked is None:
            self._store_along_m(op, place)
            return
        if self.by_tma and (picked is not None or self._is_strided(place) or self._ends_in_a_granule(place)):
            self._store_strided(op, place, picked)
            return
        kind, stride = _output_kind(self.frame, place)
        first = kind == "exact" and all(output.kind != "exact" for output in self.outputs)
        pitch = self._pitch("d" if first else f"{name_of(place.tensor)}_output", stride)
        self.outputs.append(Written(op=op, place=place, value=self._stored(op), kind=kind, pitch=pitch))

    def _store_along_m(self, op: Op, place: Place) -> None:
        """Add an output that TMA stores in tiles that are contiguous along M."""
        if place.blocks != (self.frame.m, self.frame.n) or not equal(place.strides[0], 1):
            raise Refusal(f"{place.tensor.name} is not contiguous along M")
        columns = known(place.strides[1], f"a stride of {place.tensor.name}")
        value = self._stored(op)
        self.outputs.append(Written(op=op, place=place, value=value, kind="exact", pitch=1, column_pitch=columns))

    def _store_strided(self, op: Op, place: Place, picked: Pick | None) -> None:
        if place.blocks != (self.frame.m, self.frame.n):
            raise Refusal(f"{place.tensor.name} is stored to picked lines, and has another dimension than columns")
        tensor, (stride, columns) = place.tensor, place.strides
        lines = None if picked is None else picked.tensor.shape[picked.along]
        written = Written(
            op=op,
            place=place,
            value=self._stored(op),
            kind="strided",
            pitch=self._pitch(f"{name_of(tensor)}_output", stride),
            column_pitch=known(columns, f"a stride of {tensor.name}"),
            picked=0 if lines is None else known(lines, f"the size of {tensor.name}, whose lines are picked,"),
            lines=None if picked is None else picked.lines,
        )
        self.outputs.append(written)

    def _stored(self, store: Op) -> Reference:
        """Return the stored value without a cast that the store makes redundant. A bool is of a number that is not 0."""
        value, dtype = store.operands[0], self.frame.tensor(store).dtype
        maker = self.frame.maker(value)
        if maker is not None and maker.attrs == PointwiseAttrs("cast") and maker.result.dtype == dtype:
            value = maker.operands[0]
        is_number = dtype == torch.bool and not (isinstance(value, Value) and value.dtype == torch.bool)
        return self.step("ne", (self.read(value), constant(0.0))) if is_number else self.read(value)

    def epilogue(self) -> Epilogue:
        """Number the operands and the instructions that outputs need; each output has to depend on the accumulator."""
        names: dict[Reference, int] = {SUMS: 0}
        names |= {name: number for number, name in enumerate(self.loads, start=1)}
        instructions: list[Instruction] = []
        for position in self._needed():
            step = self.steps[position]
            numbers = tuple(x if isinstance(x, Constant) else names[x] for x in step.arguments)
            names[position] = 1 + len(self.loads) + len(instructions)
            instructions.append(Instruction(step.op, numbers))
        operands = tuple(operand for operand, _ in self.loads.values())
        written = tuple(self._output(output, names) for output in self.outputs)
        epilogue = Epilogue(operands=operands, instructions=tuple(instructions))
        stored = len(written) == 1 and written[0].kind == "exact" and not written[0].adds
        plain = stored and written[0].value == epilogue.last and not written[0].turned
        return epilogue if plain else Epilogue(operands=operands, instructions=tuple(instructions), outputs=written)

    def _output(self, output: Written, names: Mapping[Reference, int]) -> EpilogueOutput:
        tensor = output.place.tensor
        if isinstance(output.value, Constant) or not self._has_sums(output.value):
            raise Refusal(f"the value stored to {tensor.name} does not depend on the matmul")
        return EpilogueOutput(
            name=name_of(tensor),
            value=names[output.value],
            kind=output.kind,
            dtype=dtype_name(tensor.dtype),
            pitch=output.pitch,
            column_pitch=output.column_pitch,
            adds=output.adds,
            picked=output.picked,
            pairs=output.pairs,
            block=output.block,
            lines=None if output.lines is None else numbers_of(output.lines),
        )

    def _has_sums(self, value: Reference) -> bool:
        read = (value, *(x for position in self._steps_of([value]) for x in self.steps[position].arguments))
        sums = {SUMS, *(name for name, (operand, _) in self.loads.items() if operand.kind == "product")}
        return any(isinstance(each, str) and each in sums for each in read)

    def _needed(self) -> list[int]:
        return sorted(self._steps_of([output.value for output in self.outputs]))

    def _steps_of(self, values: list[Reference]) -> set[int]:
        """Return the steps that ``values`` depend on."""
        needed: set[int] = set()
        waiting = list(values)
        while waiting:
            position = waiting.pop()
            if isinstance(position, int) and position not in needed:
                needed.add(position)
                waiting += self.steps[position].arguments
        return needed


def starts_from_zero(frame: Frame, start: Operand) -> bool:
    made = frame.maker(start)
    value = made.operands[0] if made is not None and made.kind == "full" else None
    return isinstance(value, (int, float)) and value == 0


# Translation of ops to instructions
# ----------------------------------------------------------------------------------------

_REDUCTIONS = {
    "sum": "row_sum",
    "max": "row_maximum",
    "min": "row_minimum",
    "argmax": "row_maximum",
    "argmin": "row_minimum",
}
"""Row reductions by the program's name for them; positions need a second step."""
_POSITIONS = ("argmax", "argmin")


SPELLED: Mapping[str, Callable[[Steps, tuple[Reference, ...]], Reference]] = {
    "log1p_unit": lambda chain, x: chain.step("log1p", x),
    "logical_and": lambda chain, x: chain.step("minimum", x),
    "logical_or": lambda chain, x: chain.step("maximum", x),
    "logical_xor": lambda chain, x: chain.step("ne", x),
    "logical_not": lambda chain, x: chain.step("eq", (*x, constant(0.0))),
    "bitwise_and": lambda chain, x: chain.step("minimum", x),
    "bitwise_or": lambda chain, x: chain.step("maximum", x),
    "bitwise_xor": lambda chain, x: chain.step("ne", x),
    "bitwise_not": lambda chain, x: chain.step("eq", (*x, constant(0.0))),
    "pow": lambda chain, x: power(chain.step, *x),
    "reciprocal": lambda chain, x: chain.step("div", (constant(1.0), *x)),
    "sign": lambda chain, x: chain.step("sub", tuple(chain.step(way, (*x, constant(0.0))) for way in ("gt", "lt"))),
}
"""Operations that are composed of others."""
ARITHMETIC = {*SPELLED, *(name for name in ARITY if not name.startswith("round_"))}
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite")
TRUTH = (*COMPARISONS, *(name for name in SPELLED if name.startswith(("logical", "bitwise"))))
"""Operations with a boolean result, here 1 or 0."""


def _check_ranks(op: Op, frame: Frame) -> None:
    """Check that dimensions align with those of the result from the last one: a vector along M would be read along N
    otherwise."""
    for value in op.operands:
        dims = value.dims if isinstance(value, Value) else ()
        met = op.result.dims[len(op.result.dims) - len(dims) :]
        if any(not dim.is_one and frame.block(dim) != frame.block(other) for dim, other in zip(dims, met, strict=True)):
            raise Refusal("a vector along M without its second dimension")


def is_integer(operand: Operand) -> bool:
    return operand.dtype in INDICES if isinstance(operand, Value) else isinstance(operand, int)


def _may_be_large(value: Reference) -> bool:
    """Return whether an integer comes from a tensor or the launch, and is no position, count or known number."""
    return abs(float(value.text)) >= EXACT_INTEGERS if isinstance(value, Constant) else isinstance(value, str)


def _check_reduction(op: Op, frame: Frame) -> None:
    source = op.operands[0]
    assert isinstance(source, Value)
    reduced = {frame.block(source.dims[dim]) for dim in op.attributes(ReduceAttrs).dims}
    if not frame.whole_rows and reduced == {frame.n}:
        raise Refusal(
            "reductions of a tile's columns are implemented where a program holds whole rows, hl.tile over M alone"
        )
    kept = [block for dim in source.dims if (block := frame.block(dim)) not in reduced]
    if reduced != {frame.n} or kept[:1] != [frame.m]:
        raise Refusal("reductions of whole rows, along N, are implemented")


def _counts_truths(frame: Frame, value: Operand) -> bool:
    """Return whether integers are booleans, whose row sums are exact in fp32."""
    made = frame.maker(value)
    while made is not None and (made.kind in ("mask", "view") or made.attrs == PointwiseAttrs("cast")):
        source = made.operands[0]
        if isinstance(source, Value) and source.dtype == torch.bool:
            return frame.columns <= EXACT_INTEGERS
        made = frame.maker(source)
    return False


def _output_kind(frame: Frame, place: Place) -> tuple[OutputKind, Number]:
    if place.blocks == (frame.m, frame.n):
        if not equal(place.strides[1], 1):
            raise Refusal(
                f"{place.tensor.name} has a stride of {place.strides[1]!r} along N; contiguous rows are implemented"
            )
        return "exact", place.strides[0]
    if place.blocks == (frame.m,) and frame.whole_rows:
        return "column", place.strides[0]
    raise Refusal(f"{place.tensor.name} is not tiled by the grid")


def constant_of(value: object) -> Constant:
    """Return a number that is known at compile time. Raises ``Refusal``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refusal("numbers of an epilogue that are known only at run time, or booleans, are not implemented")
    if isinstance(value, int) and abs(value) > EXACT_INTEGERS:
        raise Refusal(f"{value} has no exact value in float32")
    return constant(value)
