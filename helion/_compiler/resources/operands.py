"""Shared memory that the operands of dots take: an upper bound.

What Triton 3.7 does with an operand, as its GPU dialect shows for sm_80, sm_90 and sm_100: in a loop, loads of at least 4
bytes a thread are prefetched, a copy per stage. A loop of one iteration is no loop. A left operand that is computed
from another product stays in registers, or goes to tensor memory; from loads, it changes its layout before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..._shapes import cdiv
from ...hardware import Target
from ..facts.records import KernelFacts, MatmulFact, MemoryOpFact, StagedOperand
from .matrix import Unit, is_waiting, keeps_rows, tile_shape, unit_of
from .tiles import tile_bytes, vector_elements

#: What Triton takes for the barriers of tcgen05 products: 8 bytes each.
_BARRIER_BYTES = 64
#: Bytes of the narrowest asynchronous copy to shared memory.
_ASYNC_COPY_BYTES = 4


def operand_bytes(
    facts: KernelFacts,
    sizes: Mapping[int, int],
    num_warps: int,
    num_stages: int,
    target: Target,
    exchange: Mapping[int, int],
) -> int:
    """Bytes per block for the operands of all dots; each grid loop is a kernel of its own.

    ``exchange`` has, by region, the bytes that something else takes there while operands of the loops around it wait.
    """
    if not facts.matmuls:
        return 0
    units = tuple(unit_of(fact, sizes, num_warps, target) for fact in facts.matmuls)
    tally = _Tally(facts, sizes, num_warps, num_stages, target, units, exchange)
    tally.staged()
    tally.computed()
    barriers = _BARRIER_BYTES if "tcgen05" in units else 0
    return max(tally.total(root) for root in range(facts.num_roots)) + barriers


@dataclass(frozen=True, kw_only=True)
class _Passing:
    """Bytes that nothing keeps: in ``region``, from behind dot ``after`` - 1 to dot ``until``, which stands in region
    ``used``."""

    region: int
    after: int
    until: int
    used: int
    size: int


@dataclass
class _Tally:
    """``loops`` has the bytes of each loop; ``turns`` the largest of those of operands that pass through the same memory
    one after the other."""

    facts: KernelFacts
    sizes: Mapping[int, int]
    num_warps: int
    num_stages: int
    target: Target
    units: tuple[Unit, ...]
    exchange: Mapping[int, int]
    loops: dict[int, int] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)
    passing: list[_Passing] = field(default_factory=list)

    def home(self, region: int) -> int:
        """The region that ops of ``region`` end up in: loops of one iteration disappear."""
        while self.facts.regions[region].kind == "loop" and self.runs_once(region):
            parent = self.facts.regions[region].parent
            assert parent is not None
            region = parent
        return region

    def runs_once(self, region: int) -> bool:
        axes = [self.facts.axes[axis] for axis in self.facts.regions[region].axes]
        if not axes or any(not axis.static or axis.extent is None for axis in axes):
            return False
        return math.prod(cdiv(axis.extent or 1, self.sizes[axis.block_id]) for axis in axes) == 1

    def pipeline_of(self, region: int) -> int | None:
        """The loop that prefetches for ops of ``region``. With one stage none does, but on AMD it still keeps memory."""
        region = self.home(region)
        pipelined = self.num_stages > 1 or self.target.kind == "hip"
        return region if pipelined and self.facts.regions[region].kind == "loop" else None

    def add(self, region: int, size: int, dot: int, after: int, axes: tuple[int, ...] | None = None) -> None:
        """``size`` bytes made in ``region`` for dot number ``dot``, of a tile that spans ``axes``."""
        loop = self.pipeline_of(region)
        if loop is not None:
            self.loops[loop] = self.loops.get(loop, 0) + size
            return
        home, used = self.home(region), self.home(self.facts.matmuls[dot].region)
        around = self.facts.regions[home]
        if around.kind == "loop" and axes is not None and not set(axes) & set(around.axes):
            # the same in every iteration: loaded once, and there throughout
            after, dot = 0, len(self.facts.matmuls)
        self.passing.append(_Passing(region=home, after=after, until=dot, used=used, size=size))

    def staged(self) -> None:
        """Operands that are loaded, and what is computed from one load alone."""
        slots = {op.slot: op for op in self.facts.memory_ops}
        prefetched: set[int] = set()
        for operand in self.facts.staged:
            fact, unit = self.facts.matmuls[operand.dot], self.units[operand.dot]
            loop = self.pipeline_of(operand.region)
            if loop is None:
                loaded, computed = self.sides(operand, fact)
                self.add(operand.region, max(loaded, computed), operand.dot, operand.after, operand.axes)
                continue
            ahead, own = self.in_loop(operand, fact, unit, self.is_narrow(slots[operand.slot]))
            if self.target.kind == "hip" and self.num_stages == 1:
                # AMD without a pipeline brings in one operand after the other
                self.turns[loop] = max(self.turns.get(loop, 0), ahead + own)
                continue
            if operand.slot not in prefetched:
                self.loops[loop] = self.loops.get(loop, 0) + ahead
            prefetched.add(operand.slot)
            self.add(operand.region, own, operand.dot, operand.after, operand.axes)
        self.sources(prefetched)

    def sources(self, prefetched: set[int]) -> None:
        """Whatever an operand is computed from in a loop is prefetched as well."""
        computing = {
            self.pipeline_of(fact.region) for fact in self.facts.matmuls if None in (fact.lhs_slot, fact.rhs_slot)
        } - {None}
        known = prefetched | {operand.slot for operand in self.facts.staged}
        for op in self.facts.memory_ops:
            loop = self.pipeline_of(op.region)
            if op.kind == "load" and op.tile_axes and op.slot not in known and loop in computing and loop is not None:
                size = tile_bytes((op.tile_axes, op.itemsize), self.sizes) * max(1, self.num_stages - 1)
                self.loops[loop] = self.loops.get(loop, 0) + size

    def sides(self, operand: StagedOperand, fact: MatmulFact) -> tuple[int, int]:
        """Bytes of an operand as it is loaded, and as the dot takes it."""
        loaded = tile_bytes((operand.axes, operand.itemsize), self.sizes)
        converted = (fact.lhs_dtype if operand.role == "lhs" else fact.rhs_dtype).itemsize
        return loaded, loaded if operand.direct else loaded // operand.itemsize * converted

    def in_loop(self, operand: StagedOperand, fact: MatmulFact, unit: Unit, narrow: bool) -> tuple[int, int]:
        """Bytes of prefetched copies of the load, and of what the dot has of its own."""
        loaded, computed = self.sides(operand, fact)
        waiting = max(1, self.num_stages - 1)
        if narrow:
            # ``mma`` converts behind shared memory, for every dot that reads the load
            return (loaded, 0) if unit == "mma" else (0, max(loaded, computed) * (2 if unit == "tcgen05" else 1))
        if operand.direct:
            return loaded * (waiting if is_waiting(fact, unit) else self.num_stages), 0
        # what ops compute from the load: the left operand stays in registers or tensor memory, the right one is written
        # back
        if self.num_stages == 1:
            return 0, max(loaded, computed) if unit == "mma" and operand.role == "rhs" else computed
        return loaded * waiting, computed if operand.role == "rhs" and unit != "mma" else 0

    def is_narrow(self, op: MemoryOpFact) -> bool:
        """Whether a load moves fewer bytes at once than an asynchronous copy takes, so that it is not prefetched."""
        moved = vector_elements(op, self.sizes, 1) * op.itemsize
        return self.target.kind == "cuda" and moved < _ASYNC_COPY_BYTES

    def computed(self) -> None:
        """Operands that are computed from more than one load."""
        for fact, unit in zip(self.facts.matmuls, self.units, strict=True):
            m, n, k = tile_shape(fact, self.sizes)
            k = max(k, self.depth(fact, m))
            own_rows = unit != "mma" or keeps_rows((m, n), self.num_warps, self.target)
            if fact.lhs_slot is None and not (fact.consumes and own_rows):
                # it changes its layout on the way to the unit
                self.add(fact.region, m * k * fact.lhs_dtype.itemsize, fact.number, fact.number)
            if fact.rhs_slot is None:
                self.add(fact.region, k * n * fact.rhs_dtype.itemsize, fact.number, fact.number)

    def depth(self, fact: MatmulFact, m: int) -> int:
        """K of a tile whose axes a view has merged: elements of the left operand's load over its rows."""
        loads = [o for o in self.facts.staged if o.dot == fact.number and o.role == "lhs"]
        return max((self.sides(o, fact)[1] // (m * fact.lhs_dtype.itemsize) for o in loads), default=1)

    def total(self, root: int) -> int:
        """Bytes of one kernel: what is there during a loop, or between loops."""
        first = next(region.region for region in self.facts.regions if region.root == root)
        own = [p for p in self.passing if p.region == first]
        between, loops = self.peak(own), self.nested(first)
        if "tcgen05" not in self.units:
            return between + loops
        return max(between, sum(p.size for p in own if p.used != first) + loops)

    def nested(self, region: int) -> int:
        """Bytes of the regions in ``region``, which run one after the other."""
        return max((self.inside(r.region) for r in self.facts.regions if r.parent == region), default=0)

    def inside(self, region: int) -> int:
        """Bytes of a loop or branch: its operands wait while loops and exchanges in it run."""
        waiting = self.loops.get(region, 0) + self.turns.get(region, 0)
        passing = self.peak([p for p in self.passing if p.region == region])
        return waiting + passing + max(self.exchange.get(region, 0), self.nested(region))

    def peak(self, passing: list[_Passing]) -> int:
        """Most bytes at the same dot."""
        return max(
            (sum(p.size for p in passing if p.after <= fact.number <= p.until) for fact in self.facts.matmuls),
            default=0,
        )
