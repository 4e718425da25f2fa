"""ProgramShape of a program for its config space: loops, memory accesses and sizes of values."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..._compiler.ir.grammar import (
    Block,
    DotAttrs,
    ForAttrs,
    LoopAxis,
    MemoryAttrs,
    Op,
    OperandRef,
    Program,
    Region,
    Root,
    TileAttrs,
    Value,
)
from ..._compiler.rewrites.epilogue_subtile import subtile_blocks
from ..._compiler.source import Location
from ..._shapes import Dims
from ..._support.records import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A grid loop (``root`` is its number) or a sequential loop inside one (``root`` is None).

    A grid loop has ``spread`` dimensions of loops inside it in the source that are none in the program. It also has
    ``joined`` more axes of its own there. ``rewritten`` names a tensor whose memory the body both loads and stores, ""
    if there is none.
    """

    axes: tuple[LoopAxis, ...]
    root: int | None
    rewritten: str
    spread: int = 0
    joined: int = 0


@dataclass(frozen=True, kw_only=True)
class Volume:
    """The elements of a value: ``constant`` times the sizes of ``blocks``, from the op at ``location``."""

    constant: int
    blocks: tuple[int, ...]
    name: str
    location: Location | None

    def numel(self, sizes: Mapping[int, int]) -> int:
        numel = self.constant
        for block in self.blocks:
            numel *= sizes[block]
        return numel


@dataclass(frozen=True, kw_only=True)
class ProgramShape:
    """One program as the space sees it.

    ``rollable`` are the blocks that can be loops over chunks. ``loops`` are in program order, a grid loop before the
    loops in it. ``accesses`` and ``loads_left_open`` name the access of each memory slot and each load slot (a gap,
    left by an unused access, is ""). ``loads`` and ``stores`` name them by memory slot. ``load_slots`` maps load slots
    to memory slots. ``evicted`` are the memory slots of loads whose eviction policy the kernel fixes. ``matrix_blocks``
    are tiled as M or N of a dot. ``columns`` are those whose epilogues can be split into subtiles; if there are none,
    ``unsplit`` is the reason. ``inner`` maps a block whose every loop iterates over one tile of another block to that
    one. ``volumes`` are the shapes of all values, each once.
    """

    blocks: tuple[Block, ...]
    rollable: tuple[int, ...]
    loops: tuple[Loop, ...]
    accesses: tuple[str, ...]
    loads: Mapping[int, str]
    stores: Mapping[int, str]
    loads_left_open: tuple[str, ...]
    load_slots: Mapping[int, int]
    evicted: frozenset[int]
    matrix_blocks: frozenset[int]
    columns: tuple[int, ...]
    unsplit: str
    inner: Mapping[int, int]
    volumes: tuple[Volume, ...]

    @property
    def roots(self) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if loop.root is not None)

    def axes_text(self, axes: tuple[LoopAxis, ...]) -> str:
        return ", ".join(self.blocks[axis.block].name for axis in axes)


def program_shape(program: Program, rollable: tuple[int, ...]) -> ProgramShape:
    """Survey ``program``, which must not be rolled, in one pass."""
    walker = _Walker(program)
    for number, root in enumerate(program.roots):
        walker.root(number, root)
    columns, unsplit = subtile_blocks(program)
    return ProgramShape(
        blocks=program.blocks,
        rollable=rollable,
        loops=tuple(walker.loops),
        accesses=_by_number(walker.accesses),
        loads={slot: text for slot, text in sorted(walker.accesses.items()) if text.startswith("load")},
        stores={slot: text for slot, text in sorted(walker.accesses.items()) if text.startswith("store")},
        loads_left_open=_by_number({at: walker.accesses[slot] for at, slot in walker.load_slots.items()}),
        load_slots=walker.load_slots,
        evicted=frozenset(walker.evicted),
        matrix_blocks=frozenset(walker.matrix_blocks),
        columns=columns,
        unsplit=unsplit,
        inner=_inner(walker.bounds),
        volumes=tuple(walker.volumes.values()),
    )


def _inner(bounds: Mapping[int, set[int | None]]) -> dict[int, int]:
    pairs = ((block, next(iter(outers))) for block, outers in bounds.items() if len(outers) == 1)
    return {block: outer for block, outer in pairs if outer is not None}


def _by_number(names: Mapping[int, str]) -> tuple[str, ...]:
    return tuple(names.get(i, "") for i in range(max(names, default=-1) + 1))


@dataclass
class _Memory:
    """Names of the tensors that a region loads and stores, by storage."""

    loaded: dict[int, str] = field(default_factory=dict)
    stored: dict[int, str] = field(default_factory=dict)

    def add(self, other: _Memory) -> None:
        self.loaded.update(other.loaded)
        self.stored.update(other.stored)

    @property
    def rewritten(self) -> str:
        return next((name for storage, name in self.stored.items() if storage in self.loaded), "")


class _Walker:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.loops: list[Loop] = []
        self.accesses: dict[int, str] = {}
        self.load_slots: dict[int, int] = {}
        self.evicted: set[int] = set()
        self.matrix_blocks: set[int] = set()
        self.volumes: dict[Dims, Volume] = {}
        #: The identities of dims seen: most values share a tuple, and equal ones take long to compare.
        self.seen: set[int] = set()
        # per block, the outer block of each of its loops (None: the loop has its own bounds)
        self.bounds: dict[int, set[int | None]] = {}
        self.tiles: dict[int, TileAttrs] = {}

    def root(self, number: int, root: Root) -> None:
        at = self._reserve(root.axes, number, root.spread, root.joined)
        for axis in root.axes:
            self.bounds.setdefault(axis.block, set()).add(None)
        self._fill(at, self.region(root.body))

    def _reserve(self, axes: tuple[LoopAxis, ...], root: int | None, spread: int = 0, joined: int = 0) -> int:
        self.loops.append(Loop(axes=axes, root=root, rewritten="", spread=spread, joined=joined))
        return len(self.loops) - 1

    def _fill(self, at: int, memory: _Memory) -> None:
        self.loops[at] = replace(self.loops[at], rewritten=memory.rewritten)

    def region(self, region: Region) -> _Memory:
        memory = _Memory()
        for op in region.ops:
            self.measure(op)
            match op.attrs:
                case TileAttrs():
                    self.tiles[op.result.number] = op.attrs
                case MemoryAttrs():
                    self.access(op, op.attrs, memory)
                case DotAttrs():
                    self.dot(op)
                case ForAttrs():
                    at = self._reserve(op.attrs.axes, None)
                    self.enclosed(op, op.attrs)
                    inside = self.region(op.regions[0])
                    self._fill(at, inside)
                    memory.add(inside)
                case _:
                    for inner in op.regions:
                        memory.add(self.region(inner))
        return memory

    def measure(self, op: Op) -> None:
        for value in op.results:
            if not value.dims or id(value.dims) in self.seen:
                continue
            self.seen.add(id(value.dims))
            if value.dims not in self.volumes:
                self.volumes[value.dims] = Volume(
                    constant=math.prod(dim.const for dim in value.dims),
                    blocks=tuple(self.sized_by(block) for dim in value.dims for block in dim.blocks),
                    name=value.name or f"the result of {op.kind}",
                    location=op.location,
                )

    def sized_by(self, block: int) -> int:
        """Return the block that shrinks a volume: the base of a block that is a part of another."""
        base = self.program.blocks[block].base
        return block if base is None else self.sized_by(base)

    def access(self, op: Op, attrs: MemoryAttrs, memory: _Memory) -> None:
        tensor = self.program.tensors[attrs.tensor]
        if op.kind == "atomic":
            memory.loaded[tensor.storage] = memory.stored[tensor.storage] = tensor.name
            return
        self.accesses[attrs.slot] = f"{op.kind} of {tensor.name}"
        if attrs.load_slot is not None:
            self.load_slots[attrs.load_slot] = attrs.slot
        elif attrs.eviction:
            self.evicted.add(attrs.slot)
        (memory.loaded if op.kind == "load" else memory.stored)[tensor.storage] = tensor.name

    def dot(self, op: Op) -> None:
        lhs, rhs = op.operands[:2]
        assert isinstance(lhs, Value) and isinstance(rhs, Value)
        self.matrix_blocks.update(dim.block for dim in (lhs.dims[-2], rhs.dims[-1]) if dim.block is not None)

    def enclosed(self, op: Op, attrs: ForAttrs) -> None:
        """Record loops from ``outer.begin`` to ``outer.end``."""
        for axis in attrs.axes:
            begin, end = self._tile(op, axis.begin), self._tile(op, axis.end)
            outer = None
            if begin is not None and end is not None and (begin.field, end.field) == ("begin", "end"):
                outer = begin.block if begin.block == end.block else None
            self.bounds.setdefault(axis.block, set()).add(outer)

    def _tile(self, op: Op, bound: object) -> TileAttrs | None:
        value = op.operands[bound.at] if isinstance(bound, OperandRef) else None
        return self.tiles.get(value.number) if isinstance(value, Value) else None
