"""Shared memory for the operands of dots: an upper bound.

Modeled on the GPU dialect of Triton 3.7 for sm_80, sm_90, sm_100 and gfx942. In a loop, loads of at least 4 bytes a
thread are prefetched, with one copy per stage. A loop of one iteration disappears. A left operand computed from another
dot stays in registers, or goes to tensor memory; one computed from loads converts its layout before. On AMD every
operand returns to registers as soon as it is written. All but the prefetched ones share the same memory in turn.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from ...._compiler.facts.records import KernelFacts, MatmulFact, MemoryOpFact, StagedOperand
from ...._shapes import cdiv
from ...._support.records import dataclass, field
from ....hardware import Target
from ..lookups import looks_up_tables_alone, tables
from .buffers import Exchange, Passing, peak
from .layouts import fragment_warps
from .matrix import Unit, is_transposed, is_waiting, keeps_rows, tile_shape, unit_of
from .operand_rounds import product_layout, rounds_in_place, rounds_transposed
from .tiles import VECTOR_BYTES, tile_bytes, vector_elements

#: Bytes that Triton allocates for the barriers of tcgen05 instructions: 8 each.
_BARRIER_BYTES = 64
#: Operands begin at multiples of at most this many bytes.
_ALIGNMENT = 128
#: Bytes of the dtypes whose copies may outlive a loop.
_WIDE_BYTES = 4
#: Bytes of an element that a scaled operand is decoded to, and the number of elements that share a scale.
_DECODED_BYTES, _SCALED_GROUP = 2, 32
#: Bytes of elements that registers exchange in pairs.
_TURNED_BYTES = 2
#: Bytes of the narrowest asynchronous copy to shared memory.
_ASYNC_COPY_BYTES = 4


@dataclass
class Operands:
    """Shared memory of the operands of all dots by region. ``loops`` has the bytes of each loop.

    ``turns`` has, by region, the largest of the operands that use the same memory one after the other.
    """

    facts: KernelFacts
    sizes: Mapping[int, int]
    num_warps: int
    num_stages: int
    target: Target
    exchanges: list[Exchange]
    loops: dict[int, int] = field(default_factory=dict, init=False)
    turns: dict[int, int] = field(default_factory=dict, init=False)
    passing: list[Passing] = field(default_factory=list, init=False)
    homes: list[int] = field(default_factory=list, init=False)
    #: Steps per iteration of a loop: each is prefetched into separate buffers.
    unrolled: int = 1
    #: Grid loops whose tile loop is flattened with the loops inside.
    fused: frozenset[int] = frozenset()
    boxed: frozenset[int] = frozenset()
    persistent: bool = False

    def __post_init__(self) -> None:
        self.units = tuple([unit_of(fact, self.sizes, self.num_warps, self.target) for fact in self.facts.matmuls])
        self.slots = {op.slot: op for op in self.facts.memory_ops}
        #: The dots that complete before the next begins, as far as asked.
        self.over: dict[int, bool] = {}
        self.stages: dict[int, int] = {}
        for region in self.facts.regions:  # parents come first
            gone = region.kind == "loop" and self.runs_once(region.region)
            self.homes.append(self.homes[region.parent] if gone and region.parent is not None else region.region)
        inner = {self.facts.regions[home].root for home in self.homes if self.facts.regions[home].kind == "loop"}
        first = (region for region in self.facts.regions if region.parent is None and region.root not in inner)
        #: Grid loops of persistent programs without a loop inside: Triton prefetches for their next tile.
        self.tile_loops = frozenset(region.region for region in first) if self.persistent else frozenset()
        #: The loop that prefetches for the ops of each region; None with one stage.
        loops = {r.region for r in self.facts.regions if r.kind == "loop"} | self.tile_loops
        self.pipes = [home if home in loops and self.num_stages > 1 else None for home in self.homes]
        #: Slots of tables that are loaded before the loops.
        self.tables = tables(self.facts) if self.target.kind == "cuda" and self.num_stages > 1 else frozenset()

    def bytes(self) -> int:
        """Return the bytes per block for the operands of all dots, and for the exchanges live at the same time.

        Each grid loop is a kernel of its own.
        """
        self.staged()
        self.computed()
        barriers = _BARRIER_BYTES if "tcgen05" in self.units else 0
        return max([self.total(root) for root in range(self.facts.num_roots)]) + barriers

    def prefetched_sources(self) -> frozenset[int]:
        """Return the memory slots of loads that operands are computed from and that loops prefetch.

        They are read from shared memory in the layout in which they are combined, except those for the next tile.
        """
        loads = self.source_loads if self.num_stages > 1 else []
        return frozenset([op.slot for loop, op in loads if loop not in self.tile_loops])

    def home(self, region: int) -> int:
        """Return the region that ops of ``region`` end up in: loops of one iteration disappear."""
        return self.homes[region]

    def runs_once(self, region: int) -> bool:
        axes = [self.facts.axes[axis] for axis in self.facts.regions[region].axes]
        if not axes or any(not axis.static or axis.extent is None for axis in axes):
            return False
        return math.prod(cdiv(axis.extent or 1, self.sizes[axis.block_id]) for axis in axes) == 1

    def pipeline_of(self, region: int) -> int | None:
        """Return the loop that prefetches for ops of ``region``; None with one stage."""
        return self.pipes[region]

    def stages_of(self, loop: int) -> int:
        """Return the stages of a loop's operands, at least two.

        Loads that give the index of others have an equal part of the steps on CUDA, and one step each on AMD.
        """
        found = self.stages.get(loop)
        if found is None:
            lookups, hip = self.lookups_of(loop), self.target.kind == "hip"
            found = max(2, self.num_stages - lookups if hip else (self.num_stages - 1) // (1 + lookups) + 1)
            self.stages[loop] = found
        return found

    def lookups_of(self, loop: int) -> int:
        """Return the lookups of a step: Triton hoists those of loop-invariant indices, except with tcgen05."""
        units = {self.units[fact.number] for fact in self.facts.matmuls if self.home(fact.region) == loop}
        region = self.facts.regions[loop]
        if self.tables and looks_up_tables_alone(self.facts, loop):
            return 0
        return region.gathers if "tcgen05" in units else region.lookups

    def add(self, region: int, size: int, dot: int, after: int, axes: tuple[int, ...] | None = None) -> None:
        """Add ``size`` bytes made in ``region`` for dot number ``dot``, of a tile that spans ``axes``."""
        size = cdiv(size, _ALIGNMENT) * _ALIGNMENT
        if self.target.kind == "hip":
            # AMD reads an operand back into registers as soon as it is written
            home = self.home(region)
            self.turns[home] = max(self.turns.get(home, 0), size)
            return
        loop = self.pipeline_of(region)
        if loop is not None and not self.is_over(dot):
            self.loops[loop] = self.loops.get(loop, 0) + size
            return
        home, used = self.home(region), self.home(self.facts.matmuls[dot].region)
        around = self.facts.regions[home]
        lasting = self.units[dot] == "wgmma"
        if around.kind == "loop" and axes is not None and not set(axes) & set(around.axes):
            # loop-invariant: loaded once, and live throughout
            after, dot = 0, len(self.facts.matmuls)
        self.passing.append(Passing(region=home, after=after, until=dot, used=used, size=size, lasting=lasting))

    def is_over(self, dot: int) -> bool:
        """Return whether a dot in a loop completes before the next begins, so that its transient shared
        memory is free.
        """
        if dot not in self.over:
            self.over[dot] = self._is_over(dot)
        return self.over[dot]

    def _is_over(self, dot: int) -> bool:
        if self.units[dot] == "wgmma":
            unfetched = any(self.stays(operand) for operand in self.facts.staged if operand.dot == dot)
            return unfetched or self.facts.matmuls[dot].accumulator_loop is None
        fact = self.facts.matmuls[dot]
        return self.units[dot] == "mma" or None in (fact.lhs_slot, fact.rhs_slot)

    def stays(self, operand: StagedOperand) -> bool:
        """Return whether a CUDA loop does not prefetch an operand, because its loads are too narrow.

        The dot then reads it from the shared memory it was written to after the load.
        """
        return self.target.kind == "cuda" and operand.direct and self.is_narrow(self.slots[operand.slot])

    def staged(self) -> None:
        """Add operands that are loaded, and those computed from one load alone."""
        uses = Counter([operand.slot for operand in self.facts.staged])
        transposed = {o.slot for o in self.facts.staged if self.is_turned(o) and self.is_permuted(o)}
        # operands that other ops read too are copied to registers, so no buffer is still in use by an asynchronous dot
        copied = {o.slot for o in self.facts.staged if o.shared or o.worked or not o.direct}
        once = self.read_in_place()
        prefetched: set[int] = set()
        layouts: dict[int, set[str | None]] = {}
        orders: dict[int, set[bool]] = {}
        again: dict[int, list[int]] = {}
        for operand in self.facts.staged:
            if operand.slot in self.tables:
                continue
            fact, unit = self.facts.matmuls[operand.dot], self.units[operand.dot]
            loop = self.pipeline_of(operand.region)
            if loop is None:
                self.without_loop(operand, fact, once)
                continue
            layout = fact.lhs_layout if operand.role == "lhs" else fact.rhs_layout
            if operand.slot in transposed and uses[operand.slot] > 1 and self.is_permuted(operand):
                # the dot that takes the transpose finds it in registers
                size = self.sides(operand, fact)[0]
                self.exchanges.append(Exchange(region=operand.region, size=size, after=operand.after))
                continue
            turned = operand.slot in transposed if uses[operand.slot] > 1 else self.is_turned(operand)
            copies = self.stages_of(loop) - (is_waiting(unit) or (unit == "wgmma" and operand.slot in copied))
            ahead, own = self.in_loop(operand, fact, unit, self.is_narrow(self.slots[operand.slot]), turned, copies)
            if ahead and self.is_converted(self.slots[operand.slot], unit):
                if operand.slot not in prefetched:
                    last = max(o.dot for o in self.facts.staged if o.slot == operand.slot)
                    # the load of the next dot's operand may precede this dot
                    self.add(operand.region, ahead, last, max(0, operand.after - 1), operand.axes)
            elif operand.slot not in prefetched:
                self.loops[loop] = self.loops.get(loop, 0) + ahead
            elif unit == "tcgen05":
                size = self.sides(operand, fact)[0]
                if self.is_accumulated(operand.slot, loop):
                    again.setdefault(operand.dot, []).append(size)
                if orders.get(operand.slot, {self.is_permuted(operand)}) != {self.is_permuted(operand)}:
                    # both the rows and their transpose are used: the unit has a second copy
                    self.loops[loop] = self.loops.get(loop, 0) + size
            prefetched.add(operand.slot)
            known = layouts.setdefault(operand.slot, set())
            if unit == "tcgen05":
                orders.setdefault(operand.slot, set()).add(self.is_permuted(operand))
            if self.stays(operand) and unit != "mma":
                # one copy serves all dots with the same layout, until the last
                own = 0 if layout in known else own
                last = max(o.dot for o in self.facts.staged if o.slot == operand.slot)
            else:
                last = operand.dot
            known.add(layout)
            self.add(operand.region, own, last, operand.after, operand.axes)
        self.outlasting(again)
        self.read_twice()
        self.sources()
        self.looked_up()

    def is_accumulated(self, slot: int, loop: int) -> bool:
        """Return whether all dots that read a load are added up in the loop, so that none completes in its step."""
        dots = (self.facts.matmuls[operand.dot] for operand in self.facts.staged if operand.slot == slot)
        return all(dot.accumulator_loop == loop for dot in dots)

    def without_loop(
        self, operand: StagedOperand, fact: MatmulFact, once: Mapping[int, tuple[int, StagedOperand]]
    ) -> None:
        """Add an operand that no loop prefetches; ``once`` is what ``read_in_place`` returns."""
        loaded, computed = self.sides(operand, fact)
        if self.is_read_at_once(operand):
            home = self.home(operand.region)
            self.turns[home] = max(self.turns.get(home, 0), loaded, computed)
            return
        if self.units[operand.dot] == "mma" and self.is_transposed_again(operand):
            # converted to fragments of the transpose right after the load
            size = loaded // rounds_transposed(operand, fact, self.facts, self.sizes, self.num_warps, self.target)
            self.add(operand.region, size, operand.after, operand.after, operand.axes)
            return
        last, first = once.get(operand.slot, (operand.dot, operand))
        if operand is first:
            self.add(operand.region, max(loaded, computed), last, operand.after, operand.axes)

    def is_read_at_once(self, operand: StagedOperand) -> bool:
        """Return whether a left operand of ``mma`` is in registers early: another left one is computed from it."""
        fact = self.facts.matmuls[operand.dot]
        if operand.role != "lhs" or self.is_left(operand.dot) or self.target.kind != "cuda":
            return False
        alike = (o for o in self.facts.matmuls if o.region == fact.region and o.lhs_slot is None and not o.consumes)
        return self.pipeline_of(operand.region) is None and any((o.m_axis, o.k_axis) == operand.axes for o in alike)

    def looked_up(self) -> None:
        """Add the prefetched indices of other loads, on CUDA."""
        known = {operand.slot for operand in self.facts.staged} | {op.slot for _, op in self.source_loads} | self.tables
        for op in self.facts.memory_ops if self.target.kind == "cuda" else ():
            loop = self.pipes[op.region]
            if op.kind != "load" or op.slot in known or loop is None:
                continue
            if self.lookups_of(loop) or self.tables:
                size = tile_bytes((op.tile_axes, op.itemsize), self.sizes) * self.num_stages
                self.loops[loop] = self.loops.get(loop, 0) + cdiv(size, VECTOR_BYTES) * VECTOR_BYTES

    def read_in_place(self) -> dict[int, tuple[int, StagedOperand]]:
        """Return, by memory slot, 16-bit loads that only asynchronous units read, some as the transpose: the last dot and
        the first operand.

        The unit reads both from one copy.
        """
        found: dict[int, list[StagedOperand]] = {}
        for operand in self.facts.staged:
            found.setdefault(operand.slot, []).append(operand)

        def alike(operand: StagedOperand) -> bool:
            asynchronous = self.units[operand.dot] in ("wgmma", "tcgen05")
            return asynchronous and operand.direct and operand.itemsize == _TURNED_BYTES

        return {
            slot: (max(o.dot for o in operands), min(operands, key=lambda o: (o.after, o.dot)))
            for slot, operands in found.items()
            if len(operands) > 1 and all(map(alike, operands))
        }

    def read_twice(self) -> None:
        """Add operands that AMD writes once, as rows of a left operand, for dots with several layouts.

        Those include dots whose left operand of the same shape is computed. The buffer lives until the last dot has
        read it, while other loads and computed values use other memory in turn.
        """
        if self.target.kind != "hip":
            return
        products = self.facts.matmuls
        alone = [o for o in self.facts.staged if self.pipeline_of(o.region) is None]
        rows = [o for o in alone if o.role == "lhs" and not self.is_permuted(o)]
        for operand in rows:
            same = [o for o in rows if o.slot == operand.slot]
            taking = [products[o.dot] for o in same]
            axes = operand.region, *operand.axes
            of_rows = (p for p in products if p.lhs_slot is None and operand.worked)
            computed = [p for p in of_rows if (p.region, p.m_axis, p.k_axis) == axes]
            given = self.facts, self.sizes, self.num_warps, self.target
            if len({product_layout(fact, *given) for fact in (*taking, *computed)}) > 1:
                home, last = self.home(operand.region), max(o.dot for o in same)
                near = (o for o in alone if o.slot != operand.slot and self.home(o.region) == home)
                others = [max(self.sides(o, products[o.dot])) for o in near]
                for fact in products[: last + 1]:
                    m, n, k = tile_shape(fact, self.sizes)
                    others.append(m * k * fact.lhs_dtype.itemsize if fact.lhs_slot is None else 0)
                    others.append(k * n * fact.rhs_dtype.itemsize if fact.rhs_slot is None else 0)
                size = self.sides(operand, products[operand.dot])[0] + max(others)
                self.turns[home] = max(self.turns.get(home, 0), size)

    def outlasting(self, again: Mapping[int, Sequence[int]]) -> None:
        """Add operands of dots whose operands earlier dots read as well: they outlive those by an iteration.

        ``again`` has their bytes by dot.
        """
        for number, sizes in again.items():
            loop = self.pipeline_of(self.facts.matmuls[number].region)
            if len(sizes) > 1 and loop is not None:
                self.loops[loop] = self.loops.get(loop, 0) + sum(sizes)

    @functools.cached_property
    def source_loads(self) -> list[tuple[int, MemoryOpFact]]:
        """The prefetched loads that operands in the same loop are computed from, each with its loop.

        AMD prefetches into registers what is combined with indices, which have another layout than operands.
        """
        computing = {
            self.pipes[fact.region]
            for fact in self.facts.matmuls
            if (None in (fact.lhs_slot, fact.rhs_slot) and not (fact.indexed and self.target.kind == "hip"))
            or self.is_decoded(fact)  # computed with the scales
        }
        if computing <= {None}:
            return []
        found = []
        known = {operand.slot for operand in self.facts.staged}
        # AMD converts them to the layout of a matmul result when it is live
        added = [{fact.m_axis, fact.n_axis} for fact in self.facts.matmuls if self.target.kind == "hip"]
        for op in self.facts.memory_ops:
            loop = self.pipes[op.region]
            if loop is None or loop not in computing:
                continue
            loaded = op.kind == "load" and op.tile_axes and op.slot not in known and op.slot not in self.tables
            loaded = loaded and not any([axes.issubset(op.tile_axes) for axes in added])
            if loaded and not self.is_narrow(op):
                found.append((loop, op))
        return found

    def sources(self) -> None:
        """Add the prefetched loads that operands are computed from.

        On AMD they replace the operand's own buffer when the ops between can use the operand's layout.
        """
        found: dict[int, int] = {}
        shapes: dict[int, set[frozenset[int]]] = {}
        for loop, op in self.source_loads:
            size = tile_bytes((op.tile_axes, op.itemsize), self.sizes) * max(1, self.stages_of(loop) - 1)
            found[loop] = found.get(loop, 0) + size
            shapes.setdefault(loop, set()).add(frozenset(op.tile_axes))
        for loop, size in found.items():
            # tiles of several shapes do not have the layout of the operand
            into = self.turns if self.target.kind == "hip" and len(shapes[loop]) == 1 else self.loops
            into[loop] = into.get(loop, 0) + size * (self.unrolled if into is self.turns else 1)

    def sides(self, operand: StagedOperand, fact: MatmulFact) -> tuple[int, int]:
        """Return the bytes of an operand as it is loaded, and as the dot reads it."""
        loaded = tile_bytes((operand.axes, operand.itemsize), self.sizes)
        dtype = fact.lhs_dtype if operand.role == "lhs" else fact.rhs_dtype
        if self.is_decoded(fact):
            packed = (fact.lhs_format if operand.role == "lhs" else fact.rhs_format) == "e2m1"
            numbers = loaded // dtype.itemsize * (2 if packed else 1)
            return loaded, numbers * _DECODED_BYTES + numbers // _SCALED_GROUP * _WIDE_BYTES
        return loaded, loaded if operand.direct else loaded // operand.itemsize * dtype.itemsize

    def is_decoded(self, fact: MatmulFact) -> bool:
        """Return whether a scaled dot becomes a 16-bit one, for lack of a unit of its own."""
        return bool(fact.lhs_format or fact.rhs_format) and not self.target.has("scaled_mma")

    def is_turned(self, operand: StagedOperand) -> bool:
        """Return whether a 16-bit left operand goes through registers because memory has it MN-major."""
        lhs_layout, unit = self.facts.matmuls[operand.dot].lhs_layout, self.units[operand.dot]
        narrow = operand.itemsize == _TURNED_BYTES and operand.role == "lhs" and lhs_layout == "mn_major"
        return narrow and unit == "mma" and self.target.kind == "cuda" and operand.direct

    def is_permuted(self, operand: StagedOperand) -> bool:
        """Return whether rows are loaded whose transpose is an operand."""
        fact = self.facts.matmuls[operand.dot]
        if operand.role == "lhs":
            return fact.lhs_layout == "mn_major" and operand.axes[-1] == fact.m_axis
        return fact.rhs_layout == "k_major" and operand.axes[-1] == fact.k_axis

    def in_loop(
        self, operand: StagedOperand, fact: MatmulFact, unit: Unit, narrow: bool, turned: bool, copies: int
    ) -> tuple[int, int]:
        """Return the bytes of the prefetched ``copies`` of the load, and of the dot's own buffer."""
        loaded, computed = self.sides(operand, fact)
        loop = self.pipeline_of(operand.region)
        waiting = max(1, (self.num_stages if loop is None else self.stages_of(loop)) - 1)
        if turned:
            return 0, loaded
        if self.is_loaded_in_place(operand, fact):
            # registers are prefetched, except for descriptors
            apart = rounds_in_place(operand, fact, self.sizes, self.num_warps, self.target)
            return 0, loaded // apart if operand.slot in self.boxed else 0
        if self.target.kind == "hip" and (operand.shared or (narrow and not self.target.has("lds_copy"))):
            return 0, max(loaded, computed)
        if narrow and self.target.kind != "hip":
            # ``mma`` converts after shared memory, for every dot that reads the load
            return (
                (loaded, 0)
                if unit == "mma"
                else (0, max(loaded, computed) * (2 if unit == "tcgen05" and operand.direct else 1))
            )
        if operand.role == "rhs" and is_transposed(fact, unit):
            return 0, max(loaded, computed)
        if operand.direct and not self.is_decoded(fact):
            return loaded * max(1, copies), 0
        if self.target.kind == "hip":
            # prefetched, or if the ops between prevent that, one buffer of the computed value
            return loaded * waiting, max(0, computed - loaded * waiting)
        # an operand computed from the load: the left one stays in registers or tensor memory, the right one is written
        # back
        return loaded * waiting, computed if operand.role == "rhs" and unit != "mma" else 0

    def is_loaded_in_place(self, operand: StagedOperand, fact: MatmulFact) -> bool:
        """Return whether every AMD thread loads its elements of a right operand directly.

        Each loads 16 bytes of a row along K, and all warps lie along N so that no two load the same elements.
        """
        turned = operand.role == "rhs" and self.is_permuted(operand) and operand.direct and not operand.shared
        if not turned or operand.itemsize != _TURNED_BYTES or not self.target.has("lds_copy"):
            return False
        op = self.slots[operand.slot]
        m, n, _ = tile_shape(fact, self.sizes)
        of_warp, (down, across) = fragment_warps((m, n), self.num_warps, self.target)
        whole = vector_elements(op, self.sizes, 1) * op.itemsize >= VECTOR_BYTES
        return whole and m >= of_warp[0] and down == 1 and across * of_warp[1] <= n

    def is_transposed_again(self, operand: StagedOperand) -> bool:
        """Return whether a right operand alone is the transpose of loaded rows, on CUDA. In squares only others tell."""
        same = [each for each in self.facts.staged if each.slot == operand.slot and each is not operand]
        direct = operand.role == "rhs" and operand.direct and self.target.kind == "cuda"
        known = bool(same) or len(set(operand.axes)) == len(operand.axes)
        known = known and len(operand.axes) > 1  # the others are constant
        return direct and known and self.is_permuted(operand) and not any(map(self.is_permuted, same))

    def is_converted(self, op: MemoryOpFact, unit: Unit) -> bool:
        """Return whether a loaded value passes through shared memory on its way to the unit, and is not kept there."""
        return unit == "mma" and self.target.kind == "cuda" and self.is_narrow(op)

    def is_narrow(self, op: MemoryOpFact) -> bool:
        """Return whether a load is narrower than an asynchronous copy, so that it is not prefetched."""
        if self.tables and op.steps and op.steps[-1] == (op.tile_axes[-1], 1.0):
            return False
        return vector_elements(op, self.sizes, 1) * op.itemsize < _ASYNC_COPY_BYTES

    def computed(self) -> None:
        """Add operands that are computed from more than one load."""
        for fact, unit in zip(self.facts.matmuls, self.units, strict=True):
            m, n, k = tile_shape(fact, self.sizes)
            k = max(k, self.depth(fact, m))
            own_rows = unit != "mma" or keeps_rows(fact, self.facts, self.sizes, self.num_warps, self.target)
            # after a loop of dots that share their buffers, another dot has buffers of its own
            together = all(self.facts.matmuls[number].region == fact.region for number in fact.consumes)
            apart = unit == "mma" and not together and fact.lhs_dtype.itemsize >= _WIDE_BYTES
            # tensor memory holds operands of one step, so one that a loop does not change is in shared memory
            apart = apart or (unit == "tcgen05" and not together)
            if unit == "wgmma" and fact.lhs_slot is None and self.takes_transpose(fact):
                # gradients of keys and of values: each is back in registers before the next
                size = m * k * fact.lhs_dtype.itemsize
                self.exchanges.append(Exchange(region=fact.region, size=size, after=fact.number))
            elif (
                fact.lhs_slot is None and not self.is_in_fragments(fact) and (apart or not (fact.consumes and own_rows))
            ):
                # it converts its layout on the way to the unit, and copies of fp32 may remain from the loop before
                after = 0 if apart else fact.number
                row, column = fact.m_axis, fact.k_axis
                axes = None if (together and fact.consumes) or row is None or column is None else (row, column)
                self.add(fact.region, m * k * fact.lhs_dtype.itemsize, fact.number, after, axes)
            if fact.rhs_slot is None:
                self.add(fact.region, k * n * fact.rhs_dtype.itemsize, fact.number, fact.number)

    def is_in_fragments(self, fact: MatmulFact) -> bool:
        """Return whether a left operand is computed from another one that is in the layout of operands before it.

        A loop prefetches that one, and both read it in that layout.
        """
        rows = [o for o in self.facts.staged if o.region == fact.region and o.axes == (fact.m_axis, fact.k_axis)]
        return any(map(self.is_read_at_once, rows)) or any(o.worked and self.is_read_in_fragments(o) for o in rows)

    def is_read_in_fragments(self, operand: StagedOperand) -> bool:
        """Return whether a loop prefetches a left operand of ``mma``, which reads the rows as they are, on CUDA."""
        cuda = self.target.kind == "cuda" and self.pipeline_of(operand.region) is not None
        rows = operand.role == "lhs" and operand.direct and not self.is_permuted(operand)
        return cuda and rows and not self.is_left(operand.dot) and not self.is_narrow(self.slots[operand.slot])

    def takes_transpose(self, fact: MatmulFact) -> bool:
        """Return whether the left operand comes from another dot's transpose, whose rows are distributed over all
        threads.
        """
        consumed = (self.facts.matmuls[number] for number in fact.consumes)
        return fact.m_axis is not None and any(o.n_axis == fact.m_axis and o.m_axis == fact.k_axis for o in consumed)

    def depth(self, fact: MatmulFact, m: int) -> int:
        """Return K of a tile whose axes a view has merged: elements of the left operand's load over its rows."""
        loads = [o for o in self.facts.staged if o.dot == fact.number and o.role == "lhs"]
        return max([self.sides(o, fact)[1] // (m * fact.lhs_dtype.itemsize) for o in loads], default=1)

    def total(self, root: int) -> int:
        """Return the bytes of one kernel: the largest of those live during a loop, or between loops."""
        first = next(region.region for region in self.facts.regions if region.root == root)
        own = [p for p in self.passing if p.region == first]
        unrolled = [each for each in self.exchanged(first) if each.region != first]
        between = max(self.at_once(own, unrolled), self.turns.get(first, 0))
        nested = self.nested(first)
        if first in self.loops:
            # the prefetched operands of the next tile are live while this one is stored
            return self.loops[first] + max(between, self.at_once(own, self.exchanged(first)))
        if nested and root in self.fused and self.num_stages > 1:
            nested += max((each.size for each in self.exchanged(first) if not each.boxed), default=0)
        return max(between, self.held(own, first) + nested) if nested else between

    def nested(self, region: int) -> int:
        """Return the bytes of the regions in ``region``, which run consecutively."""
        return max([self.inside(r.region) for r in self.facts.regions if r.parent == region], default=0)

    def inside(self, region: int) -> int:
        """Return the bytes of a loop or branch: its operands stay live while nested loops and exchanges run."""
        own = [p for p in self.passing if p.region == region]
        if self.home(region) != region:
            return self.nested(region)
        least = peak(own, len(self.facts.matmuls)) + self.turns.get(region, 0)
        passing = max(least, self.at_once(own, self.exchanged(region)))
        if any([each.parent == region for each in self.facts.regions]):
            passing = max(passing, self.held(own, region) + self.nested(region))
        return self.unrolled * self.loops.get(region, 0) + passing

    def exchanged(self, region: int) -> list[Exchange]:
        """Return the exchanges in ``region``, and in loops of one iteration in it."""
        return [each for each in self.exchanges if self.homes[each.region] == region]

    def at_once(self, passing: list[Passing], exchanges: list[Exchange]) -> int:
        """Return the most bytes of ``passing`` live at a dot, or during one of ``exchanges``."""
        most = peak(passing, len(self.facts.matmuls))
        return max([most, *[self.beside(passing, each) + each.size for each in exchanges]])

    def beside(self, passing: list[Passing], exchange: Exchange) -> int:
        """Return the bytes of ``passing`` live during an exchange."""
        if exchange.after is None:
            return peak(passing, len(self.facts.matmuls))
        own = (p for p in passing if p.after <= exchange.after)
        return sum(p.size for p in own if exchange.after <= p.until or self.is_left(p.until))

    def is_left(self, dot: int) -> bool:
        """Return whether the operands of a dot may stay live to the end: the unit is asynchronous, or copies of fp32
        remain.
        """
        return self.units[dot] != "mma" or self.facts.matmuls[dot].lhs_dtype.itemsize >= _WIDE_BYTES

    def held(self, passing: list[Passing], region: int) -> int:
        """Return the bytes of ``passing``, made in ``region``, live while a loop or branch in it runs."""
        inner = [fact.number for fact in self.facts.matmuls if self.home(fact.region) != region]
        return sum(
            p.size for p in passing if p.lasting or p.used != region or any(p.after <= i < p.until for i in inner)
        )
