"""Formulas of attention, traced from a value back to the values that they start from, one instruction per op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from ....._compiler.ir.grammar import MemoryAttrs, NumberAttrs, Op, Operand, PointwiseAttrs, RandomAttrs, Value
from ....._shapes import Expr, Number, dtype_name
from ....._support.records import dataclass, replace
from ...plan.attention.numbers import is_known
from ...plan.attention.operands import GATHER, Mode, Place, RandomNumbers, Source, Table
from ...plan.attention.operands import INTEGERS as _INTEGERS
from ...plan.attention.records import KEY_INDEX, QUERY_INDEX, Formula
from ...plan.dtypes import FLOAT_DTYPES, PITCH
from ...plan.epilogue import COLUMN_NUMBER, MAX_NUMBERED, ROW_NUMBER, Constant, Instruction, constant
from ...plan.refusal import Refusal
from ..batch import POSITION
from ..chain import ARITHMETIC, COMPARISONS, ROUNDED, SPELLED, TRUTH, Reference, constant_of
from ..names import name_of
from .band import last_key
from .loops import Loops, is_position
from .places import access_of, check_reach, computed_index, place_of_value
from .values import name_of_op

INTEGERS = (torch.int32, torch.int64)
SOURCE_DTYPES = (*FLOAT_DTYPES, "bool", "int8", *_INTEGERS)
MOST_DIVISOR = 2**16
"""The largest number that positions are divided by."""
_OF_POSITIONS = ("add", "sub", "neg", "abs", "maximum", "minimum")
"""Arithmetic of positions, whose results fp32 holds exactly."""


Sums = Callable[[Op], tuple[Source, int | Expr]]


class FormulaReader:
    """A trace that numbers values as ``Formula`` does: starting values, then sources, then steps.

    ``known`` are references by the number of a value: names of starting values in ``starts``, or constants. ``columns``
    is the block that a second dimension of the formula's values has. ``rest`` names the formula in messages, and its
    sources, which other formulas may read as well. ``sums`` returns the source of a sum that a kernel before computes.
    """

    def __init__(
        self, loops: Loops, starts: tuple[str, ...], columns: int | None, rest: str, sums: Sums | None = None
    ) -> None:
        self.loops, self.starts, self.columns = loops, starts, columns
        self.rest, self.sums = rest, sums
        self.known: dict[int, Reference] = {}
        self.steps: list[tuple[str, tuple[Reference, ...]]] = []
        self.sources: dict[str, tuple[Source, int | Expr]] = {}

    def step(self, name: str, arguments: tuple[Reference, ...]) -> int:
        made = (name, arguments)
        if made not in self.steps:
            self.steps.append(made)
        return self.steps.index(made)

    def read(self, value: Operand) -> Reference:
        if not isinstance(value, Value):
            return constant(float(value)) if isinstance(value, bool) else constant_of(value)
        if value.number not in self.known:
            self._check_dims(value)
            self.known[value.number] = self._made(value)
        return self.known[value.number]

    def _check_dims(self, value: Value) -> None:
        """Check that dimensions are those of the formula. Elements meet by block, so that their order is free."""
        blocks = self.loops.blocks(value)
        if self.columns is None:
            return
        both = (self.loops.queries, self.columns)
        if blocks not in ((), both[:1], both[1:], both, both[::-1]):
            raise Refusal(f"{self.rest} with values of other dimensions than queries and keys are not implemented")

    def _made(self, value: Value) -> Reference:
        op = self.loops.maker(value)
        if op is None:
            raise Refusal(f"{self.rest} that read other values of the loop are not implemented")
        if op.kind in ("view", "mask"):
            return self.read(op.operands[0])
        if op.kind == "load":
            return self._load(op)
        if op.kind == "number":
            return self._number(op)
        if op.kind == "iota":
            return self._position(op)
        if op.kind == "tile":
            return self._of_head(op)
        if op.kind == "full":
            return self.read(op.operands[0])
        if op.kind == "random":
            return self._random(op)
        if op.kind == "pointwise":
            return self._pointwise(op, value.dtype)
        if op.kind == "reduce" and self.sums is not None:
            source, given = self.sums(op)
            return self.rounded(self._added(source, given, "more"), value.dtype)
        remedy = "; compute it before the kernel, as the row sums of do * o" if op.kind == "reduce" else ""
        raise Refusal(f"{op.kind} in {self.rest} is not implemented{remedy}")

    def _number(self, op: Op) -> Reference:
        expr = op.attributes(NumberAttrs).expr
        if expr.kind is bool:
            raise Refusal(f"booleans in {self.rest} that are known only at run time are not implemented")
        return self.number(f"number_{op.result.number}", expr)

    def number(self, label: str, number: Number) -> Reference:
        """Read a number of the launch in fp32."""
        if not isinstance(number, Expr):
            return constant(float(number))
        name = f"{label}_of_{self.rest}"
        self.sources[name] = Source(name=name, kind="number", dtype="float32"), number
        return name

    def _position(self, op: Op) -> Reference:
        if op.attrs.relative or op.attrs.block not in (self.loops.queries, self.columns):
            raise Refusal(f"indices in {self.rest} other than those of queries and keys are not implemented")
        return self.step(ROW_NUMBER if op.attrs.block == self.loops.queries else COLUMN_NUMBER, ())

    def _of_head(self, op: Op) -> Reference:
        """Refuse the index of a head as a number: loads by it are implemented."""
        place_of_value(self.loops, op.result, self.rest)
        raise Refusal(f"the index of a head as a number in {self.rest} is not implemented")

    def _gather(self, op: Op, at: int, compared: bool) -> int:
        """Read elements of a table of each head, selected by index number ``at``."""
        attrs, tensor = op.attributes(MemoryAttrs), self.loops.tensor(op)
        access, dtype, name = access_of(self.loops, op, left_out=at), dtype_name(tensor.dtype), name_of(tensor)
        access.check_plain()
        if access.strides or self.columns != self.loops.keys:
            raise Refusal(f"{tensor.name} is indexed by computed positions, and by others than those of heads")
        if dtype not in FLOAT_DTYPES and not (compared and dtype in _INTEGERS):
            raise Refusal(f"{self.rest} that read {tensor.name} in {dtype} are not implemented")
        numbers = self.loops.numbers
        table = Table(
            name=f"{name}_of_{self.rest}",
            kind="table",
            dtype=dtype,
            pitches=(0, numbers.of(tensor.strides[at], f"stride_{name}_{at}", PITCH)),
            offset=access.offset,
            modes=access.modes,
            size=numbers.of(tensor.shape[at], f"size_{name}_{at}"),
        )
        operand = attrs.indices[at].operand
        assert operand is not None
        return self.step(GATHER, (self._index(op.operands[operand]), self._added(table, tensor.id, "table")))

    def _index(self, value: Operand) -> Reference:
        """Read an index of a table: an integer of a tensor, or arithmetic of positions."""
        made = self.loops.stripped(value)
        while made is not None and name_of_op(made) == "cast" and made.result.dtype in INTEGERS:
            made = self.loops.stripped(made.operands[0])
        if made is not None and made.kind == "load" and made.result.dtype in INTEGERS:
            self._check_dims(made.result)
            return self._load(made, compared=True)
        return self.read(value)

    def _load(self, op: Op, compared: bool = False) -> Reference:
        computed = computed_index(self.loops, op)
        if computed is not None:
            return self._gather(op, computed, compared)
        access = access_of(self.loops, op)
        access.check_plain()
        check_reach(access)
        dtype = dtype_name(access.tensor.dtype)
        if dtype not in SOURCE_DTYPES or (dtype in _INTEGERS and not compared):
            raise Refusal(f"{self.rest} that read {access.tensor.name} in {dtype} are not implemented")
        along = [block for block, stride in access.strides.items() if stride != 0 and _is_long(access.extents[block])]
        row, column = self.loops.queries in along, self.columns in along
        if any(block not in (self.loops.queries, self.columns) for block in along):
            raise Refusal(f"{access.tensor.name} is indexed by more than queries and keys")
        for block in along:
            needed = last_key(self.loops) if block == self.loops.keys else self.loops.extent(block)
            if not self.loops.numbers.at_most(needed, access.extents[block]):
                raise Refusal(f"{access.tensor.name} has fewer elements than the loop over it")
        kind = "exact" if row and column else "query" if row else "key" if column else "head"
        pitches = access.strides.get(self.loops.queries, 0), access.strides.get(self.columns or -1, 0)
        source = Source(
            name=f"{name_of(access.tensor)}_of_{self.rest}",
            kind=kind,  # type: ignore[arg-type]
            dtype=dtype,
            pitches=(pitches[0] if row else 0, pitches[1] if column else 0),
            offset=access.offset,
            modes=access.modes,
        )
        return self._added(source, access.tensor.id, kind)

    def _random(self, op: Op) -> Reference:
        """Read uniform numbers of a seed that is an integer of the launch, or one that is loaded for each head."""
        if op.attributes(RandomAttrs).name != "uniform":
            raise Refusal(f"random numbers in {self.rest} that are not uniform are not implemented")
        seed, given = self._seed(op.operands[0])
        found = offsets_of(self.loops, op.operands[1], f"random numbers in {self.rest}")
        numbers, terms = self.loops.numbers, dict(found.terms)
        pitches = tuple(
            numbers.of(terms.pop(block, 0) if block is not None else 0, f"step_{seed.name}", PITCH)
            for block in (self.loops.queries, self.columns)
        )
        if any(block not in self.loops.heads for block in terms):
            raise Refusal(f"random numbers in {self.rest} that depend on more than queries, keys and heads")
        modes = tuple(
            Mode(
                size=self.loops.extent(block),
                stride=numbers.of(stride, f"step_{seed.name}", PITCH),
                at=Place("axis", (self.loops.heads.index(block),)),
            )
            for block, stride in terms.items()
        )
        source = RandomNumbers(
            name=seed.name,
            kind="exact",
            dtype="float32",
            pitches=pitches,  # type: ignore[arg-type]
            offset=numbers.of(found.constant, f"first_{seed.name}", PITCH),
            modes=modes,
            seed=seed,
            wide=found.wide,
        )
        return self._added(source, given, "more")

    def _seed(self, value: Operand) -> tuple[Source, int | Expr]:
        """Return the source of a seed, and the id of its tensor or its host expression."""
        made = self.loops.stripped(value)
        while made is not None and name_of_op(made) == "cast" and made.result.dtype in INTEGERS:
            made = self.loops.stripped(made.operands[0])
        if made is not None and made.kind == "number" and made.attributes(NumberAttrs).expr.kind is int:
            name = f"seed_{made.result.number}_of_{self.rest}"
            return Source(name=name, kind="number", dtype="int64"), made.attributes(NumberAttrs).expr
        if made is not None and made.kind == "load" and made.result.dtype in INTEGERS:
            access = access_of(self.loops, made)
            check_reach(access)
            if not access.strides:
                name = f"{name_of(access.tensor)}_of_{self.rest}"
                dtype = dtype_name(access.tensor.dtype)
                made_of = {"kind": "head", "dtype": dtype, "offset": access.offset, "modes": access.modes}
                return Source(name=name, **made_of), access.tensor.id  # type: ignore[arg-type]
        raise Refusal(
            f"seeds in {self.rest} other than integers of the launch, or loaded for each head, are not implemented"
        )

    def _added(self, source: Source, given: int | Expr, suffix: str) -> str:
        """Keep a source under a name of its own, and return that."""
        name = source.name
        while name in self.sources and self.sources[name][0] != source:
            name = f"{name}_{suffix}"
            source = replace(source, name=name)
            if isinstance(source, RandomNumbers):
                source = replace(source, seed=replace(source.seed, name=name))
        self.sources[name] = source, given
        return name

    def source_of(self, op: Op) -> tuple[Source, int | Expr]:
        """Return the source that a load of integers is, and its argument of a launch. Raises ``Refusal``."""
        name = self._load(op, compared=True)
        if not isinstance(name, str):
            raise Refusal(f"{self.loops.tensor(op).name} is indexed by computed positions, which is not implemented")
        return self.sources[name]

    def _pointwise(self, op: Op, dtype: torch.dtype) -> Reference:
        name = op.attributes(PointwiseAttrs).name
        if name == "cast":
            return self._cast(op, dtype)
        if name in COMPARISONS and self._compares_integers(op):
            return self.step(name, tuple(self._integer(operand) for operand in op.operands))
        if name not in (TRUTH if dtype == torch.bool else (*ARITHMETIC, "floordiv", "remainder")):
            raise Refusal(f"{name} in {self.rest} is not implemented")
        if dtype in INTEGERS and name in ("floordiv", "remainder"):
            return self._quotient(op, name)
        if dtype in INTEGERS:
            self._check_positions(op, name)
        elif dtype not in (torch.bool, torch.float32, *ROUNDED):
            raise Refusal(f"{name} of {dtype_name(dtype)} in {self.rest} is not implemented")
        if not self.loops.is_aligned(op):
            raise Refusal(f"{self.rest} with a vector along another dimension than its own are not implemented")
        arguments = tuple(self.read(operand) for operand in op.operands)
        if name == "where" and isinstance(condition := arguments[0], Constant):
            return arguments[1 if float(condition.text) else 2]
        made = SPELLED[name](self, arguments) if name in SPELLED else self.step(name, arguments)
        return self.rounded(made, dtype)

    def _compares_integers(self, op: Op) -> bool:
        """Return whether a comparison reads integers of a tensor."""
        if not self.loops.is_aligned(op):
            return False
        return any(self._reads_integers(operand) for operand in op.operands)

    def _reads_integers(self, value: Operand) -> bool:
        made = self.loops.stripped(value)
        if made is None or made.result.dtype not in INTEGERS:
            return False
        if made.kind == "load":
            return True
        return made.kind == "pointwise" and any(map(self._reads_integers, made.operands))

    def _integer(self, value: Operand) -> Reference:
        """Read an integer: that of a tensor, an index, a number, or a sum or difference of them."""
        if not isinstance(value, Value):
            return self._whole(value)
        made = self.loops.stripped(value)
        if made is not None and made.kind == "load" and value.dtype in INTEGERS:
            self._check_dims(value)
            return self._load(made, compared=True)
        if made is not None and made.kind == "full":
            return self._whole(made.operands[0])
        if made is not None and made.kind == "iota" and not made.attrs.relative:
            self._position(made)  # checks the block
            return self.step(QUERY_INDEX if made.attrs.block == self.loops.queries else KEY_INDEX, ())
        name = made.attrs.name if made is not None and isinstance(made.attrs, PointwiseAttrs) else ""
        if made is not None and name == "cast" and made.result.dtype in INTEGERS:
            return self._integer(made.operands[0])
        if made is not None and name in ("add", "sub") and self.loops.is_aligned(made):
            return self.step(name, tuple(map(self._integer, made.operands)))
        raise Refusal(
            f"integers in {self.rest} other than sums of indices and of a tensor's elements are not implemented"
        )

    def _whole(self, value: Operand) -> Reference:
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= MAX_NUMBERED:
            raise Refusal(f"{value!r} is compared with integers in {self.rest}")
        return constant(float(value))

    def _quotient(self, op: Op, name: str) -> Reference:
        """Read the quotient of a position and a number, rounded down, or what remains of the position.

        A first quotient may be wrong by some units, since fp32 rounds it. The rest is exact, and so small that
        half a unit keeps its quotient away from integers.
        """
        position, divisor = op.operands
        if not isinstance(divisor, int) or not 0 < divisor <= MOST_DIVISOR:
            raise Refusal(f"{name} in {self.rest} by other than a number from 1 to {MOST_DIVISOR} is not implemented")
        numbers, value = constant(float(divisor)), self.read(position)

        def divided(x: Reference) -> tuple[Reference, Reference]:
            ratio = self.step("div", (self.step("add", (x, constant(0.5))), numbers))
            quotient = self.step("floor", (ratio,))
            return quotient, self.step("sub", (x, self.step("mul", (quotient, numbers))))

        first, rest = divided(value)
        second, remainder = divided(rest)
        return remainder if name == "remainder" else self.step("add", (first, second))

    def _check_positions(self, op: Op, name: str) -> None:
        """Check that integers are sums and differences of positions and small numbers."""
        if name not in _OF_POSITIONS:
            raise Refusal(f"{name} of integers in {self.rest} is not implemented")
        for operand in op.operands:
            if not isinstance(operand, Value) and abs(operand) >= MAX_NUMBERED:
                raise Refusal(f"{operand} has no exact value in float32")

    def _cast(self, op: Op, dtype: torch.dtype) -> Reference:
        source = op.operands[0]
        value = self.read(source)
        held = source.dtype if isinstance(source, Value) else torch.float32
        if held in INTEGERS and dtype in (*INTEGERS, torch.float32):
            return value  # positions, since integers of tensors are only compared
        if held == torch.bool and dtype in (torch.float32, *ROUNDED):
            return value
        if dtype != torch.float32 and dtype not in ROUNDED:
            raise Refusal(f"a cast to {dtype_name(dtype)} in {self.rest} is not implemented")
        return value if dtype in (held, torch.float32) else self.rounded(value, dtype)

    def rounded(self, value: Reference, dtype: torch.dtype) -> Reference:
        return self.step(ROUNDED[dtype], (value,)) if dtype in ROUNDED else value

    # The result ------------------------------------------------------------------------------------------------------

    def formula(self, values: Mapping[str, Reference]) -> tuple[Formula, dict[str, int]]:
        """Return the formula of the steps that ``values`` need, and their numbers in it."""
        needed = self._needed([*values.values()])
        sources = [name for name in self.sources if name in needed]
        names: dict[Reference, int] = {start: at for at, start in enumerate(self.starts)}
        names |= {name: len(self.starts) + at for at, name in enumerate(sources)}
        instructions = list[Instruction]()
        for position in sorted(each for each in needed if isinstance(each, int)):
            op, arguments = self.steps[position]
            numbers = tuple(each if isinstance(each, Constant) else names[each] for each in arguments)
            names[position] = len(self.starts) + len(sources) + len(instructions)
            instructions.append(Instruction(op, numbers))
        found = {name: names[value] for name, value in values.items() if not isinstance(value, Constant)}
        formula = Formula(
            sources=tuple(self.sources[name][0] for name in sources),
            instructions=tuple(instructions),
            starts=len(self.starts),
        )
        return formula, found

    def arguments(self, formula: Formula) -> list[int | Expr]:
        """Return the arguments of a launch for the sources of a formula."""
        return [self.sources[source.name][1] for source in formula.sources]

    def _needed(self, waiting: list[Reference]) -> set[Reference]:
        found = set[Reference]()
        while waiting:
            value = waiting.pop()
            if isinstance(value, Constant) or value in found:
                continue
            found.add(value)
            if isinstance(value, int):
                waiting += self.steps[value][1]
        return found

    def reads(self, value: Reference, start: str) -> bool:
        """Return whether a value depends on a starting value."""
        return start in self._needed([value])


def _is_long(extent: int) -> bool:
    """Return whether a dimension may have more than one element."""
    return not is_known(extent) or extent > 1


@dataclass(frozen=True, kw_only=True)
class Offsets:
    """An integer that is a sum of multiples of positions: its terms by block, and a constant. ``wide`` has 64 bits."""

    terms: Mapping[int, Number]
    constant: Number
    wide: bool


def offsets_of(loops: Loops, value: Operand, what: str) -> Offsets:
    """Return an integer of the program as a sum of multiples of positions. Raises ``Refusal``."""
    if not isinstance(value, Value):
        return Offsets(terms={}, constant=int(value), wide=False)
    made, wide = loops.stripped(value), value.dtype == torch.int64
    block = is_position(made, POSITION)
    if block is not None and block in loops.heads:
        return Offsets(terms={block: 1}, constant=0, wide=wide)
    if (
        made is not None
        and made.kind == "iota"
        and not made.attrs.relative
        and (made.attrs.start, made.attrs.step) == (0, 1)
    ):
        return Offsets(terms={made.attrs.block: 1}, constant=0, wide=wide)
    if made is not None and made.kind == "number" and made.attributes(NumberAttrs).expr.kind is int:
        return Offsets(terms={}, constant=made.attributes(NumberAttrs).expr, wide=wide)
    if made is not None and made.kind == "full":
        return replace(offsets_of(loops, made.operands[0], what), wide=wide)
    name = made.attrs.name if made is not None and isinstance(made.attrs, PointwiseAttrs) else ""
    if made is not None and name in ("cast", "add", "sub", "mul") and not value.dtype.is_floating_point:
        parts = [offsets_of(loops, each, what) for each in made.operands]
        exact = all(isinstance(each.constant, int) and len(each.terms) < 2 for each in parts)
        if name != "cast" or parts[0].wide or not wide or exact:  # else sums of 32 bits may have wrapped
            return _computed(name, parts, wide, what)
    raise Refusal(
        f"offsets of {what} other than sums of multiples of positions, in one integer type, are not implemented"
    )


def _computed(name: str, parts: Sequence[Offsets], wide: bool, what: str) -> Offsets:
    one, other = parts[0], parts[-1]
    if name == "cast":
        return replace(one, wide=wide)
    if name == "mul":
        one, other = (other, one) if not one.terms else (one, other)
        if other.terms:
            raise Refusal(f"offsets of {what} that are products of positions are not implemented")
        terms = {block: factor * other.constant for block, factor in one.terms.items()}
        return Offsets(terms=terms, constant=one.constant * other.constant, wide=wide)
    sign = -1 if name == "sub" else 1
    blocks = dict.fromkeys((*one.terms, *other.terms))
    terms = {block: one.terms.get(block, 0) + sign * other.terms.get(block, 0) for block in blocks}
    return Offsets(terms=terms, constant=one.constant + sign * other.constant, wide=wide)
