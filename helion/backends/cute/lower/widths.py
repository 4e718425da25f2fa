"""A check that loops over tiles of columns store the same for every tile width.

The loops run in fp64 on a few rows of random numbers, in place of the accumulator and of loaded values. One run has all
columns in one tile, the others have narrower tiles. Analytic formulas that agree at random points agree everywhere.

The numbers reach maxima and conditions from all sides. They have either sign, unless roots and logarithms of them have
no value. Accumulators rise along one row and fall along another, so the first tile holds the maximum in one and the
last tile in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from ...._compiler.ir.grammar import IotaAttrs, Op, Operand, PointwiseAttrs, ReduceAttrs, Region, Root, TileAttrs, Value
from ...._compiler.ir.pointwise import POINTWISE
from ...._shapes import Dims
from ...._support.records import dataclass, field
from ..plan.refusal import Refusal
from .frame import Frame, walked_blocks

SLOPES = (0.0, 3.0, -3.0, 0.5)
"""Slopes of the accumulator of each row, from its first column to its middle."""
ROWS = len(SLOPES)
PARTS = (3, 5)
"""Tile counts to compare with a single tile."""
TOLERANCE = 1e-8
SIGNS = ((True, True), (True, False), (False, False))
"""Signs of accumulators and of operands, true for either sign: the first draw with finite results decides."""

_REDUCTIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    "sum": torch.sum,
    "max": torch.amax,
    "min": torch.amin,
    "argmax": lambda x, dims: torch.argmax(x, *dims),
    "argmin": lambda x, dims: torch.argmin(x, *dims),
}


@dataclass
class _Numbers:
    """Random numbers, the same for every width."""

    columns: int
    signed: tuple[bool, bool]
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    known: dict[object, torch.Tensor] = field(default_factory=dict)

    def of(self, name: object, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return the values of a loaded tensor."""
        if name not in self.known:
            self.known[name] = self._drawn(shape, dtype, self.signed[1])
        return self.known[name]

    def sums(self, at: int) -> torch.Tensor:
        """Return the accumulator of matmul number ``at``."""
        if ("sums", at) not in self.known:
            along = torch.linspace(-1, 1, self.columns, dtype=torch.float64, device="cpu")
            trend = torch.tensor(SLOPES, dtype=torch.float64, device="cpu")[:, None] * along
            drawn = self._drawn((ROWS, self.columns), torch.float32, self.signed[0])
            self.known["sums", at] = drawn + trend if self.signed[0] else drawn * trend.exp()
        return self.known["sums", at]

    def _drawn(self, shape: tuple[int, ...], dtype: torch.dtype, signed: bool) -> torch.Tensor:
        if dtype == torch.bool:
            return torch.rand(shape, generator=self.generator, device="cpu") < 0.5
        if not dtype.is_floating_point:
            return torch.randint(1, 100, shape, generator=self.generator, device="cpu")
        values = torch.rand(shape, generator=self.generator, dtype=torch.float64, device="cpu") * 1.5 + 0.25
        return (
            values * (1 - 2 * torch.randint(0, 2, shape, generator=self.generator, device="cpu")) if signed else values
        )


class _Run:
    """An execution of the loops of a root in tiles of ``width`` columns."""

    def __init__(self, frame: Frame, numbers: _Numbers, width: int) -> None:
        self.frame = frame
        self.numbers = numbers
        self.width = width
        self.begin, self.end = 0, numbers.columns
        self.values: dict[int, torch.Tensor] = {}
        #: Contents of tensors, by id, and by the index of the tile where it picks a part of them.
        self.memory: dict[tuple[int, int | None], torch.Tensor] = {}
        #: Inputs of casts that round, by op, tile by tile.
        self.rounded: dict[int, list[torch.Tensor]] = {}

    def root(self, root: Root) -> None:
        for op in root.body.ops:
            if op.kind == "for":
                self._loop(op)
            else:
                self._op(op)

    def _loop(self, loop: Op) -> None:
        (body,) = loop.regions
        if any(self.frame.block(dim) == self.frame.n for param in body.params for dim in param.dims):
            raise Refusal("accumulators with an element for each column of a tile are not implemented")
        carried = [self._read(operand) for operand in loop.operands[: len(body.params)]]
        for begin in range(0, self.numbers.columns, self.width):
            self.begin, self.end = begin, min(begin + self.width, self.numbers.columns)
            self.values |= {param.number: value for param, value in zip(body.params, carried, strict=True)}
            carried = self._body(body)
        self.begin, self.end = 0, self.numbers.columns
        self.values |= {result.number: value for result, value in zip(loop.results, carried, strict=True)}

    def _body(self, body: Region) -> list[torch.Tensor]:
        for op in body.ops:
            self._op(op)
        return [self._read(result) for result in body.results]

    def _read(self, value: Operand) -> torch.Tensor:
        if isinstance(value, Value):
            return self.values[value.number]
        return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None, device="cpu")

    def _shape(self, dims: Dims) -> tuple[int, ...]:
        known = {None: 1, self.frame.m: ROWS, self.frame.n: self.end - self.begin}
        blocks = [self.frame.block(dim) for dim in dims]
        if not set(blocks) <= set(known):
            raise Refusal("values of loops over tiles of columns have other dimensions than rows and columns")
        return tuple(known[block] for block in blocks)

    def _op(self, op: Op) -> None:
        if op.kind == "store":
            self._store(op)
        elif op.kind == "for":
            self._sums(op)
        else:
            self.values[op.result.number] = _typed(self._made(op), op.result.dtype)

    def _sums(self, loop: Op) -> None:
        """Evaluate a loop over K: all such loops have the same result, which was checked."""
        for at, result in enumerate(loop.results):
            start = self._read(loop.operands[at])
            turned = [self.frame.block(dim) for dim in result.dims] == [self.frame.n, self.frame.m]
            part = self.numbers.sums(at)[:, self.begin : self.end]
            self.values[result.number] = start + (part.t() if turned else part)

    def _made(self, op: Op) -> torch.Tensor:
        if op.kind == "load":
            return self._load(op)
        if op.kind == "pointwise":
            return self._pointwise(op)
        if op.kind == "number":
            return self.numbers.of(("number", op.result.number), (), op.result.dtype)
        if op.kind == "tile":
            return torch.tensor(self._field(op.attributes(TileAttrs)), device="cpu")
        if op.kind == "iota":
            return self._lanes(op)
        operand = self._read(op.operands[0]) if op.operands else None
        if operand is not None and op.kind == "full":
            return operand.expand(self._shape(op.result.dims))
        if operand is not None and op.kind == "mask":  # tiles have no masked lanes here
            return operand
        if operand is not None and op.kind == "view":
            return self._view(op, operand)
        if operand is not None and op.kind == "reduce":
            return self._reduced(op, operand)
        raise Refusal(f"{op.kind} in a loop over tiles of columns is not implemented")

    def _lanes(self, op: Op) -> torch.Tensor:
        attrs, (size,) = op.attributes(IotaAttrs), self._shape(op.result.dims)
        begin = self.begin if self.frame.named(attrs.block) == self.frame.n else 0
        lanes = torch.arange(size, device="cpu")
        return attrs.start + attrs.step * lanes if attrs.relative else begin + lanes

    def _field(self, attrs: TileAttrs) -> int:
        fields = {
            "begin": self.begin,
            "end": self.end,
            "id": self.begin // self.width,
            "count": -(-self.numbers.columns // self.width),
            "block_size": self.width,
        }
        if self.frame.named(attrs.block) != self.frame.n or attrs.field not in fields:
            raise Refusal("positions of rows in a loop over tiles of columns are not implemented")
        return fields[attrs.field]

    def _view(self, op: Op, operand: torch.Tensor) -> torch.Tensor:
        if op.attrs.name == "permute":
            return operand.permute(op.attrs.order)
        shape = self._shape(op.result.dims)
        return operand.expand(shape) if op.attrs.name == "broadcast" else operand.reshape(shape)

    def _reduced(self, op: Op, operand: torch.Tensor) -> torch.Tensor:
        attrs = op.attributes(ReduceAttrs)
        if attrs.name not in _REDUCTIONS:
            raise Refusal(f"a reduction by {attrs.name} in a loop over tiles of columns is not implemented")
        return _REDUCTIONS[attrs.name](operand.expand(self._shape(op.operands[0].dims)), attrs.dims)  # type: ignore[union-attr]

    def _pointwise(self, op: Op) -> torch.Tensor:
        name = op.attributes(PointwiseAttrs).name
        operands = [self._read(operand) for operand in op.operands]
        if name == "cast":
            self._keep_rounded(op, operands[0])
            return operands[0]
        eager = POINTWISE[name].eager
        if eager is None:
            raise Refusal(f"{name} in a loop over tiles of columns is not implemented")
        return eager(*operands)

    def _keep_rounded(self, op: Op, value: torch.Tensor) -> None:
        source = op.operands[0]
        if op.result.dtype.itemsize < (source.dtype.itemsize if isinstance(source, Value) else 8):
            self.rounded.setdefault(op.number, []).append(value)

    # Memory --------------------------------------------------------------------------------------------------------------

    def _place(self, op: Op) -> tuple[tuple[int, int | None], tuple[int, ...]]:
        """Return the key of a tensor's contents, and the blocks that iterate over it."""
        blocks, by_tile = walked_blocks(self.frame, op)
        return (op.attrs.tensor, self.begin // self.width if by_tile else None), blocks

    def _sizes(self, blocks: tuple[int, ...]) -> tuple[int, ...]:
        if not set(blocks) <= {self.frame.m, self.frame.n}:
            raise Refusal("tensors of loops over tiles of columns have other dimensions than rows and columns")
        return tuple(ROWS if block == self.frame.m else self.numbers.columns for block in blocks)

    def _part(self, tensor: torch.Tensor, blocks: tuple[int, ...]) -> torch.Tensor:
        for at, block in enumerate(blocks):
            if block == self.frame.n:
                tensor = tensor.narrow(at, self.begin, self.end - self.begin)
        return tensor

    def _load(self, op: Op) -> torch.Tensor:
        name, blocks = self._place(op)
        dtype = self.frame.tensor(op).dtype
        held = self.memory.get(name)
        if held is None:
            held = self.numbers.of(("tensor", *name, blocks), self._sizes(blocks), dtype)
        return self._part(held, blocks).reshape(self._shape(op.result.dims))

    def _store(self, op: Op) -> None:
        name, blocks = self._place(op)
        if name not in self.memory:
            self.memory[name] = torch.full(self._sizes(blocks), torch.nan, dtype=torch.float64, device="cpu")
        part = self._part(self.memory[name], blocks)
        part.copy_(self._read(op.operands[0]).expand(self._shape_stored(op)).reshape(part.shape))

    def _shape_stored(self, op: Op) -> tuple[int, ...]:
        return self._shape(op.results[0].dims)


def _typed(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Widen a value to the widest type of its kind: nothing is rounded."""
    if dtype == torch.bool:
        return value != 0
    return value.to(torch.float64 if dtype.is_floating_point else torch.int64)


def any_width_is_the_same(frame: Frame, root: Root, columns: int, *, rounded: bool) -> bool:
    """Return whether a root with ``columns`` columns per row stores the same in tiles of any width.

    With ``rounded``, intermediate values that are rounded have to agree as well. Its inner loops are the same matmul.
    Raises ``Refusal`` for ops that cannot be run here.
    """
    for signed in SIGNS:
        numbers = _Numbers(columns=columns, signed=signed)
        runs = list(_runs(frame, root, numbers))
        if all(bool(torch.isfinite(value).all()) for value in _stored(runs[0]).values()):
            return all(_agree(runs[0], other, rounded) for other in runs[1:])
    return False


def _runs(frame: Frame, root: Root, numbers: _Numbers) -> Iterator[_Run]:
    for parts in (1, *PARTS):
        run = _Run(frame, numbers, max(1, numbers.columns // parts))
        run.root(root)
        yield run


def _stored(run: _Run) -> dict[tuple[int, int | None], torch.Tensor]:
    """Return the stored tensors, without those that have a part per tile."""
    return {name: value for name, value in run.memory.items() if name[1] is None}


def _agree(one: _Run, other: _Run, rounded: bool) -> bool:
    first, second = _stored(one), _stored(other)
    if not all(_close(value, second[name]) for name, value in first.items()):
        return False
    return not rounded or all(_same_columns(values, other.rounded[at]) for at, values in one.rounded.items())


def _same_columns(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Return whether adjacent tiles contain the same numbers."""
    first, second = torch.cat(one, -1), torch.cat(other, -1)
    return first.shape == second.shape and _close(first, second)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)
