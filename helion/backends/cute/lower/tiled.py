"""Rows that a program processes in tiles of columns, where the result equals that of all columns at once.

::

    for tile_n:                              row = sum of x over all columns
        total = total + sum(x)         →     (the same for the maximum and the minimum)
    for tile_n:                              top = maximum of x over all columns
        raised = maximum(top, max(x))  →     total = sum of exp(x - top) over all columns
        total = total * exp(top - raised) + sum(exp(x - raised))

    for tile_n: lanes = lanes + x
    sum(lanes)                         →     sum of x over all columns

    for tile_n: out[...] = x                 y of the rounded x, which is read at the place
    for tile_n: y of out[...]          →     of the store

Other loops are computed with one tile of all columns, if tiles of any width store the same (``widths``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from ...._compiler.ir.grammar import ForAttrs, Op, Operand, PointwiseAttrs, ReduceAttrs, Region, Root, TileAttrs, Value
from ...._compiler.ir.ops import OPS
from ...._support.records import dataclass
from ..plan.epilogue import constant
from ..plan.refusal import Refusal
from .chain import Chain, Reference
from .frame import Frame, blocks_of
from .stored import Stored
from .widths import any_width_is_the_same

#: The reduction of a tile that each step of a running reduction includes, and the initial value.
RUNNING = {"add": ("sum", 0.0), "maximum": ("max", -math.inf), "minimum": ("min", math.inf)}


class TiledRows:
    """A reader of the loops over tiles of columns in a root.

    ``is_sums`` checks a loop over K, and returns whether it recomputes the accumulator.
    """

    def __init__(self, root: Root, frame: Frame, chain: Chain, sums: Op, is_sums: Callable[[Op], bool]) -> None:
        self.root = root
        self.frame = frame
        self.chain = chain
        self.sums = sums
        self.is_sums = is_sums
        self.stored = Stored(frame, chain)
        #: Initial loop-carried values of the loops over columns.
        self.handed_first: dict[int, Operand] = {}
        #: True if the loops are computed with one tile of all columns.
        self.one_tile = False
        chain.tiles = self

    def stores(self) -> list[Op]:
        """Return the final stores: for each tensor, the last one."""
        for op in self.root.body.ops:
            if op.kind == "for":
                self._loop(op.regions[0], op.operands)
            elif op.kind == "store":
                self.stored.keep([op])
            elif op.kind == "load" and op.attrs.tensor in self.stored.stores:
                self.stored.read_back(op)
        return list(self.stored.stores.values())

    def _loop(self, body: Region, first: Sequence[Operand]) -> None:
        self.handed_first |= {param.number: value for param, value in zip(body.params, first, strict=False)}
        here: dict[int, Op] = {}
        for op in body.ops:
            if op.kind == "load" and op.attrs.tensor in {**self.stored.stores, **here}:
                if op.attrs.tensor in here:
                    raise Refusal(f"{self.frame.tensor(op).name} is stored and read in one loop")
                self.stored.read_back(op)
            elif op.kind == "store":
                here[op.attrs.tensor] = self._whole(op)
            elif op.kind == "for":
                self._product(op)
            elif op.regions or OPS[op.kind].stays:
                raise Refusal(f"{op.kind} in a loop over tiles of columns is not implemented")
        self.stored.keep(here.values())

    def _whole(self, store: Op) -> Op:
        blocks = blocks_of(self.frame, store)
        if blocks == (self.frame.m,):
            self._take_one_tile(f"{self.frame.tensor(store).name} is stored by each tile of columns")
        elif blocks != (self.frame.m, self.frame.n):
            raise Refusal(f"{self.frame.tensor(store).name} is stored tile by tile, and not by rows and columns")
        return store

    def _product(self, loop: Op) -> None:
        if loop is self.sums:
            return
        if not self.is_sums(loop):
            raise Refusal("a second matmul over the same rows is not implemented")
        for result, known in zip(loop.results, self.sums.results, strict=True):
            self.chain.known[result.number] = self.chain.known[known.number]

    def carried(self, loop: Op, result: Value) -> Reference:
        """Return the final value of a loop-carried variable over all tiles of columns."""
        at = next(at for at, each in enumerate(loop.results) if each is result)
        plain = self._running(loop, at)
        if plain is not None:
            reduce, start = plain
            assert isinstance(reduce.operands[0], Value)
            return self._from(self.chain.reduce(reduce, result.dtype), loop, at, start)
        rescaled = self._rescaled(loop, at)
        if rescaled is not None:
            return rescaled
        self._take_one_tile("loop-carried values over tiles of columns are no running sums, maxima or minima")
        return self.chain.read(loop.regions[0].results[at])

    # One tile of all columns -------------------------------------------------------------------------------------------------

    def handed(self, value: Value) -> Reference:
        """Return the initial value of a loop over columns, for the only tile."""
        if value.number not in self.handed_first:
            raise Refusal("the epilogue reads a loop-carried value")
        self._take_one_tile("a tile of columns reads a loop-carried value")
        return self.chain.read(self.handed_first[value.number])

    def position(self, op: Op) -> Reference:
        """Return the position of the only tile."""
        attrs = op.attributes(TileAttrs)
        fields = {"begin": 0, "id": 0, "count": 1, "end": self.frame.columns}
        if self.frame.named(attrs.block) != self.frame.n or attrs.field not in fields:
            raise Refusal(f"the {attrs.field} of a tile in an epilogue is not implemented")
        self._take_one_tile("the result depends on the position of a tile of columns")
        return constant(fields[attrs.field])

    def added_to_lanes(self, reduction: Op) -> Operand | None:
        """Return the values that each tile adds to lanes, which are reduced after the loop by the same operation.

        ``lanes = lanes + x`` for each tile, from 0, then ``lanes.sum(-1)``, is the sum of all x.
        """
        lanes = self._plain(reduction.operands[0])
        loop = self._maker(lanes)
        if loop is None or loop.kind != "for":
            return None
        at, body = next(at for at, each in enumerate(loop.results) if each is lanes), loop.regions[0]
        made = self._pointwise(body.results[at])
        if made is None or made.name not in RUNNING or body.params[at] not in made.operands:
            return None
        added = next((each for each in made.operands if each is not body.params[at]), None)
        name, start = RUNNING[made.name]
        same = reduction.attributes(ReduceAttrs).name == name and self._begins(loop, (at, start))
        return added if same else None

    def take_whole(self, reduction: Op) -> None:
        """Take a tile's own reduction as one of the row, for the only tile."""
        self._take_one_tile("reductions of a tile's columns are no running ones")

    def _take_one_tile(self, why: str) -> None:
        """Use one tile of all columns. Raises ``Refusal`` if stored values depend on the width of tiles."""
        if self.one_tile:
            return
        fixed = any(self.frame.program.blocks[block].size is not None for block in self.frame.column_blocks)
        if not any_width_is_the_same(self.frame, self.root, self.frame.columns, rounded=fixed):
            raise Refusal(
                f"{why}, and what is stored depends on the width of tiles; reductions of whole rows are implemented,"
                " of acc[tile_m, n] or by running sums, maxima and minima"
            )
        self.one_tile = True

    # Carried values --------------------------------------------------------------------------------------------------------

    def _running(self, loop: Op, at: int) -> tuple[Op, float] | None:
        """Return the reduction that each tile adds to a carried value, and its initial value; None if it is no such
        value."""
        body = loop.regions[0]
        made = self._pointwise(body.results[at])
        if made is None or made.name not in RUNNING:
            return None
        first, second = made.operands
        reduction, start = RUNNING[made.name]
        other = second if first is body.params[at] else first if second is body.params[at] else None
        reduce = self._maker(other)
        if reduce is None or reduce.kind != "reduce" or reduce.attributes(ReduceAttrs).name != reduction:
            return None
        return reduce, start

    def _from(self, value: Reference, loop: Op, at: int, neutral: float) -> Reference:
        """Combine ``value`` with the initial value of the carried variable."""
        start = self.chain.read(loop.operands[at])
        if start == constant(neutral):
            return value
        name = next(name for name, (_, each) in RUNNING.items() if each == neutral)
        return self.chain.step(name, (value, start))

    def _rescaled(self, loop: Op, at: int) -> Reference | None:
        """Recognize an online sum of exponentials, which is rescaled with every larger maximum."""
        body = loop.regions[0]
        made = self._pointwise(body.results[at])
        if made is None or made.name != "add":
            return None
        for kept, added in (made.operands, made.operands[::-1]):
            scaled = self._scaled(kept, loop, at)
            if scaled is None or not self._begins(loop, (at, 0.0), (scaled[1], -math.inf)):
                continue
            power, top = scaled
            term = self._shifted(added, loop, power, top)
            if term is not None:
                shifted = self.chain.step("sub", (term, self.chain.read(loop.results[top])))
                return self.chain.step("row_sum", (self.chain.step(power, (shifted,)),))
        return None

    def _begins(self, loop: Op, *starts: tuple[int, float]) -> bool:
        """Return whether carried values, by position, start with these numbers."""
        return all(self.chain.read(loop.operands[at]) == constant(start) for at, start in starts)

    def _scaled(self, kept: Operand, loop: Op, at: int) -> tuple[str, int] | None:
        """Recognize ``kept`` as the carried sum times exp(top - raised). Return exp, and the position of ``top`` among
        the carried values."""
        body = loop.regions[0]
        made = self._pointwise(kept)
        factors = [each for each in made.operands if each is not body.params[at]] if made is not None else []
        if made is None or made.name != "mul" or len(factors) != 1:
            return None
        power = self._exponential(factors[0])
        for top, (param, raised) in enumerate(zip(body.params, body.results, strict=True)):
            if power is not None and power.operands[0] is param and power.operands[1] is raised:
                running = self._running(loop, top)
                return (power.name, top) if running is not None and running[1] == -math.inf else None
        return None

    def _shifted(self, added: Operand, loop: Op, name: str, top: int) -> Reference | None:
        """Recognize ``added`` as a tile's sum of exp(x - raised), where ``raised`` includes the maximum of x; return x."""
        reduce = self._maker(added)
        if reduce is None or reduce.kind != "reduce" or reduce.attributes(ReduceAttrs).name != "sum":
            return None
        power = self._exponential(reduce.operands[0])
        if power is None or power.name != name or power.operands[1] is not loop.regions[0].results[top]:
            return None
        running = self._running(loop, top)
        assert running is not None
        x = self.chain.read(power.operands[0])
        return x if self.chain.read(running[0].operands[0]) == x else None

    def _plain(self, value: Operand | None) -> Operand | None:
        """Return the value without views and masks, which change no valid column."""
        made = self.frame.maker(value) if value is not None else None
        while made is not None and (made.kind == "mask" or (made.kind == "view" and made.attrs.name != "permute")):
            value = made.operands[0]
            made = self.frame.maker(value)
        return value

    def _maker(self, value: Operand | None) -> Op | None:
        plain = self._plain(value)
        return self.frame.maker(plain) if plain is not None else None

    def _pointwise(self, value: Operand | None) -> _Made | None:
        made = self._maker(value)
        if made is None or made.kind != "pointwise" or made.results[0].dtype != torch.float32:
            return None
        operands = tuple(plain for each in made.operands if (plain := self._plain(each)) is not None)
        return _Made(name=made.attributes(PointwiseAttrs).name, operands=operands)

    def _exponential(self, value: Operand | None) -> _Made | None:
        """Recognize an exponential of a difference: its name, minuend and subtrahend."""
        power = self._pointwise(value)
        if power is None or power.name not in ("exp", "exp2"):
            return None
        difference = self._pointwise(power.operands[0])
        if difference is None or difference.name != "sub":
            return None
        return _Made(name=power.name, operands=difference.operands)


@dataclass(frozen=True, kw_only=True)
class _Made:
    """An elementwise operation and its operands, without views."""

    name: str
    operands: tuple[Operand, ...]


def loops_over_columns(root: Root) -> tuple[Op, ...]:
    """Return the loops of a root with loops inside, and those after them; none where its only loop is that over K."""
    loops = tuple(op for op in root.body.ops if op.kind == "for")
    tiled = bool(loops) and any(op.kind == "for" for op in loops[0].regions[0].ops)
    if not tiled:
        return ()
    for loop in loops:
        if len(loop.attributes(ForAttrs).axes) != 1:
            raise Refusal("loops over tiles of columns, and over nothing else, are implemented")
    return loops
