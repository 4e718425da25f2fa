"""Inserts barriers that order the global memory accesses of a program's threads.

The ops of a program are in source order, but its threads are not. A thread sees another thread's store only after a
barrier. Without one it may also overwrite an element that another has not read yet. Before::

    for i in 0..n: %1: [b0] = load x[b0 + 1]; store x[b0] <- %1

After, with a barrier between load and store, and one between the store and the load of the next iteration::

    for i in 0..n: %1: [b0] = load x[b0 + 1]; barrier; store x[b0] <- %1; barrier

A dataflow analysis runs over the regions. The state is the set of accesses since the last barrier, a merge is their
union, and loops iterate to a fixpoint. Two accesses need a barrier between them if they may touch the same element
(``accesses.apart`` fails) in different threads (``same_thread`` fails). The barrier is right before the later access.
It is at the end of the loop if only the back edge connects the two. It is before the loop if the loop contains only the
later access. Redundant barriers are removed again.

An op that releases or acquires (``effects.order_of``) does so for the whole program. But each thread executes only its
own part of it, and one thread executes all of a scalar op. So every access before a release needs a barrier between
them, and every access after an acquire. Before::

    store x[b0] <- %1; atomic xchg flag[0] <- 1, release

After::

    store x[b0] <- %1; barrier; atomic xchg flag[0] <- 1, release
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from ...._shapes import Expr
from ...._support.records import dataclass, field, replace
from ...ir.build import Numbers
from ...ir.effects import is_fence, order_of
from ...ir.grammar import MemoryAttrs, Op, Program, Region, Root
from ...ir.ops import OPS
from ...ir.rewrite import expand_region
from ..analysis.accesses import NOW, Access, Accesses, Launched, Since

#: Position of a barrier: before an op, or at the end of the body of a loop.
Place = tuple[Literal["before", "end"], int]
#: An access since the last barrier, and the loop iterations and exits since then.
Pending = tuple[Access, Since]
_State = frozenset[Pending]
_NONE: _State = frozenset()


def order_memory(program: Program, launched: Launched) -> Program:
    """Return the program with a barrier on every path between two accesses of one element by different threads."""
    unordered = [rewrites(program, root.body) for root in program.roots]
    if not any(unordered):
        return program
    numbers = Numbers.after(program)
    roots = (
        _ordered(program, root, launched, numbers) if found else root
        for root, found in zip(program.roots, unordered, strict=True)
    )
    return replace(program, roots=tuple(roots))


def overlapping_storages(program: Program, root: Root, launched: Launched) -> frozenset[int]:
    """Return the storages with an element that one access of a root writes and another one touches, or the same one in
    another iteration."""
    found: set[int] = set()
    accesses = Accesses.collect(program, root, launched)
    groups: dict[int, list[Access]] = {}
    for access in accesses.all():
        if access.storage is not None:
            groups.setdefault(access.storage, []).append(access)
    for storage, members in groups.items():
        pairs = ((a, b) for at, a in enumerate(members) for b in members[at:] if a.writes or b.writes)
        if any(_overlap(accesses, a, b) for a, b in pairs):
            found.add(storage)
    return frozenset(found)


def _overlap(accesses: Accesses, first: Access, second: Access) -> bool:
    if first is not second and not (accesses.apart(first, second, NOW) and accesses.apart(second, first, NOW)):
        return True
    common = [loop for loop in first.loops if loop in second.loops]
    for at, loop in enumerate(common):
        for one, other in ((first, second), (second, first)):
            if not accesses.apart(
                one, other, Since(loop, frozenset(one.loops[at + 1 :]) | frozenset(other.loops[at + 1 :]))
            ):
                return True
    return False


def _ordered(program: Program, root: Root, launched: Launched, numbers: Numbers) -> Root:
    accesses = Accesses.collect(program, root, launched)
    flow = _Flow(accesses, _contended(tuple(accesses.all())))
    flow.solve(root.body)
    if not flow.barriers:
        return root
    return replace(root, body=expand_region(root.body, _Inserter(flow.barriers, numbers).around))


def rewrites(program: Program, body: Region) -> bool:
    """Return whether a storage may be written and accessed again, or a fence orders accesses. A cheap filter: few
    kernels pass it."""
    ops = [op for op in body.walk() if OPS[op.kind].reads or OPS[op.kind].writes or is_fence(op)]
    counts = Counter(program.tensors[op.attrs.tensor].storage for op in ops if isinstance(op.attrs, MemoryAttrs))
    top = {op.number for op in body.ops}
    return any(
        not isinstance(op.attrs, MemoryAttrs)
        or is_fence(op)
        or (op.kind != "load" and (counts[program.tensors[op.attrs.tensor].storage] > 1 or op.number not in top))
        for op in ops
    )


def _contended(accesses: Sequence[Access]) -> frozenset[int | None]:
    """Return storages that are written, and accessed again by another op or iteration. A fence makes that all
    storages."""
    groups: dict[int | None, list[Access]] = {}
    for access in accesses:
        groups.setdefault(access.storage, []).append(access)
    if any(is_fence(access.op) for access in accesses):
        return frozenset(groups)
    return frozenset(
        storage
        for storage, members in groups.items()
        if any(a.writes for a in members) and (len(members) > 1 or members[0].loops)
    )


def _by_one_thread(op: Op) -> bool:
    """Return whether the first thread of a program executes all of an op, as for scalar atomics."""
    return op.kind == "atomic" and not op.result.dims


@dataclass
class _Flow:
    accesses: Accesses
    storages: frozenset[int | None]
    #: In the order of discovery.
    barriers: dict[Place, None] = field(default_factory=dict)
    conflicts: dict[Place, None] = field(default_factory=dict)
    #: True if missing barriers are placed immediately, during the traversal.
    placing: bool = False
    _verdicts: dict[tuple[Access, Access, Since], bool] = field(default_factory=dict)

    def solve(self, body: Region) -> None:
        self.placing = True
        while self.missing(body):
            # one at a time: a barrier may resolve conflicts after it
            self.barriers[next(iter(self.conflicts))] = None
        self.placing = False
        if not self.accesses.loop_ops:
            return  # without loops, each barrier resolves a conflict with an access since the previous one
        for place in sorted(self.barriers, key=self.rank, reverse=True):
            del self.barriers[place]
            if self.missing(body):
                self.barriers[place] = None

    def missing(self, body: Region) -> bool:
        self.conflicts = {}
        self.region(body, _NONE)
        return bool(self.conflicts)

    def region(self, region: Region, state: _State) -> _State:
        for op in region.ops:
            if ("before", op.number) in self.barriers:
                state = _NONE
            if op.number in self.accesses.of:
                state = self.access(op, state)
            elif op.kind == "if":
                state = frozenset().union(*(self.region(child, state) for child in op.regions))
            elif OPS[op.kind].is_loop:
                state = self.loop(op, state)
        return state

    def loop(self, op: Op, state: _State) -> _State:
        """Return the state after a loop of any number of iterations, possibly none."""
        *condition, body = op.regions
        entry = state
        while True:
            checked = self.region(condition[0], entry) if condition else entry
            end = self.region(body, checked)
            if ("end", op.number) in self.barriers:
                end = _NONE
            around = {(access, _next(since, access, op.number)) for access, since in end}
            if around <= entry:
                break
            entry |= around
        # a loop exits at its condition
        left = checked if condition else state | end
        return frozenset((access, _left(since, access, op.number)) for access, since in left)

    def access(self, op: Op, state: _State) -> _State:
        mine = [a for a in self.accesses.of[op.number] if a.storage in self.storages]
        if not mine:
            return state
        found = [(p, a, since) for p, since in state for a in mine if self.conflict(p, a, since)]
        places = {self.place(*entry) for entry in found}
        # A barrier right before the op covers all paths to it.
        here = ("before", op.number)
        if here in places and self.placing and not self.conflicts:
            # The first missing barrier; no op after it has been analyzed.
            self.barriers[here] = None
            return frozenset((access, NOW) for access in mine)
        for place in [here] if here in places else sorted(places, key=self.rank):
            assert place not in self.barriers, "a barrier does not separate the accesses around it"
            self.conflicts[place] = None
        return state | {(access, NOW) for access in mine}

    def conflict(self, first: Access, second: Access, since: Since) -> bool:
        if order_of(first.op).acquires or order_of(second.op).releases:
            return not (_by_one_thread(first.op) and _by_one_thread(second.op))
        if first.storage != second.storage or not (first.writes or second.writes):
            return False
        if (first.is_atomic and second.is_atomic) or first.differs(second):
            return False
        key = (first, second, since)
        if key not in self._verdicts:
            accesses = self.accesses
            harmless = accesses.apart(first, second, since) or accesses.same_thread(first, second, since)
            self._verdicts[key] = not harmless
        return self._verdicts[key]

    def rank(self, place: Place) -> tuple[bool, int]:
        """Return a sort key that puts barriers at the ends of loops last."""
        return place[0] == "end", self.accesses.numbers[place[1]]

    def place(self, first: Access, second: Access, since: Since) -> Place:
        if since.later:
            return ("end", since.later)
        for loop in second.loops:
            if loop not in first.loops or loop in since.left:
                return ("before", loop)
        return ("before", second.op.number)


def _next(since: Since, access: Access, loop: int) -> Since:
    """Return ``since`` one iteration of ``loop`` later."""
    return since if loop in since.left or loop not in access.loops else Since(loop, since.left)


def _left(since: Since, access: Access, loop: int) -> Since:
    if loop not in access.loops:
        return since
    return Since(0 if since.later == loop else since.later, since.left | {loop})


@dataclass
class _Inserter:
    barriers: Mapping[Place, None]
    numbers: Numbers

    def around(self, op: Op) -> tuple[Op, ...]:
        """Return an op with the barriers before it and at the end of its loop."""
        if ("end", op.number) in self.barriers:
            *others, last = op.regions
            last = replace(last, ops=(*last.ops, self.barrier(last.ops[-1])))
            op = replace(op, regions=(*others, last))
        return (self.barrier(op), op) if ("before", op.number) in self.barriers else (op,)

    def barrier(self, at: Op) -> Op:
        return Op(self.numbers.op(), "barrier", (), (), None, (), at.location)


def least_lanes(program: Program, sizes: Mapping[int, int]) -> dict[int, int]:
    """Return ``sizes``, with 1 for whole dimensions of run-time length."""
    return {
        block.id: 1 if block.kind == "full" and isinstance(block.extent, Expr) else sizes[block.id]
        for block in program.blocks
    }
