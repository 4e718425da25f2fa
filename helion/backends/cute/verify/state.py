"""The state of a simulated cluster: barriers, stages, buffers, CTAs and warps."""

from __future__ import annotations

from ...._support.records import dataclass, field
from ..roles import grammar as g
from ..toolchain.errors import CompilationFailed
from .elements import Elements, Slices

Tag = tuple[int, int]
"""Contents of a stage: (tile, K tile or sub-tile)."""


class Fault(CompilationFailed):
    """An error in the interaction of roles; the message names the first symptom. ``auto`` leaves such a kernel to another
    backend, as one that cannot be compiled."""


@dataclass
class Barrier:
    """An mbarrier: its phase completes after all arrivals and all expected bytes."""

    name: str
    count: int
    pending: int = 0
    bytes: int = 0
    phase: int = 0

    def __post_init__(self) -> None:
        self.pending = self.count

    def arrive(self, announced: int = 0) -> None:
        if self.pending == 0:
            raise Fault(f"{self.name}: more than {self.count} arrivals in one phase")
        self.pending -= 1
        self.bytes += announced
        self._turn()

    def complete(self, size: int) -> None:
        self.bytes -= size
        self._turn()

    def passed(self, parity: int) -> bool:
        return self.phase != parity

    def _turn(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.phase ^= 1
            self.pending = self.count


@dataclass
class Slot:
    held: dict[tuple[str, int], Tag] = field(default_factory=dict)
    """Contents by operand and by the CTA that loaded its part."""
    readers: int = 0
    copied: bool = False
    """True if cp.async has written parts, which a fence of each reader orders before the matrix unit."""


@dataclass
class Ring:
    pipeline: g.Pipeline
    full: list[Barrier]
    empty: list[Barrier]
    slots: list[Slot]


@dataclass
class Sums:
    """The accumulator: a stage of tensor memory, or the registers of a warp."""

    added: list[Tag] = field(default_factory=list)
    of_each: dict[int, list[Tag]] = field(default_factory=dict)
    """The same of each accumulator, where terms add to a part of them."""


@dataclass
class Store:
    done: bool = False
    awaited: bool = False
    """True if the storing warp has waited for it."""
    landed: bool = False
    """True if it is complete in memory."""


@dataclass
class Buffer:
    written: dict[int, Tag] = field(default_factory=dict)
    stores: int = 0
    last: Store = field(default_factory=lambda: Store(done=True, awaited=True))


Put = tuple[int, int, int, int, int]
"""Partials in the workspace: tile, CTA of its cluster, part of K, sub-tile, warp."""


@dataclass
class Workspace:
    """Global memory that clusters share."""

    released: dict[Put, int] = field(default_factory=dict)
    """Partials that a release fence has made visible to an acquiring CTA, and their order."""
    counters: dict[Tag, int] = field(default_factory=dict)
    """Counters by tile and CTA."""


@dataclass
class Cta:
    rank: int
    rings: dict[str, Ring]
    stages: list[Sums]
    buffers: list[Buffer]
    meetings: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By barrier: (waiting warps, completed phases)."""
    coming: dict[str, list[Warp]] = field(default_factory=dict)
    """By barrier: the waiting warps."""
    put: list[Put] = field(default_factory=list)
    """Partials that its warps had stored in the workspace at their last barrier."""
    count: int | None = None
    """Parts of the tile in the workspace before its own."""
    vectors: dict[int, dict[int, int]] = field(default_factory=dict)
    """By consumer group and warp: the tile of its row operands in shared memory, before the last barrier."""
    complete: dict[int, dict[int, int | None]] = field(default_factory=dict)
    """By consumer group and warp: the tile whose stores were complete in memory before the last barrier."""
    slices: dict[int, tuple[int, list[Tag]]] = field(default_factory=dict)
    """By warp: the tile and the K tiles of its sums in shared memory, before the last barrier."""
    slice_readers: dict[int, set[int]] = field(default_factory=dict)
    """By warp: the warps that have read its sums."""
    allocated: bool = False
    freed: bool = False
    running: int = 0


@dataclass
class Warp:
    """One warp of a role in one CTA."""

    cta: Cta
    role: g.Role
    number: int
    cursors: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """By name: (pipeline, stage, parity)."""
    tile: int = 0
    k_tile: int = 0
    k_tiles: int = 0
    """K tiles of its loops so far."""
    group: range | None = None
    """The K tiles of a loop over them, if not all."""
    subtile: int = 0
    part: int = 0
    """Index of its cluster among those that split K."""
    seen: int = 0
    """Prefix length of ``Workspace.released`` that is visible to the warp."""
    put: list[Put] = field(default_factory=list)
    """Partials that it has stored since its last barrier."""
    sums: Sums = field(default_factory=Sums)
    total: list[Tag] = field(default_factory=list)
    scales: Tag | None = None
    """(tile, block of K) of the scales in registers."""
    turn_scales: dict[int, Tag] = field(default_factory=dict)
    """The same for each of two accumulators that take turns."""
    stage: int = 0
    overwrite: bool = False
    fenced: bool = False
    awaited: tuple[int, int] | None = None
    """The stage of A and B, and the parity of its phase, that it has waited for."""
    open_group: list[tuple[Slot, Tag]] = field(default_factory=list)
    groups: list[list[tuple[Slot, Tag]]] = field(default_factory=list)
    held: Tag | None = None
    """The sub-tile whose accumulator is in the registers of the epilogue."""
    gathered: Tag | None = None
    """The sub-tile whose partials of other CTAs have been added there."""
    taken: Tag | None = None
    """The sub-tile whose partials of all clusters have been added."""
    vectors: int | None = None
    """The tile whose column operands are in registers."""
    row_vectors: int | None = None
    shared_vectors: int | None = None
    """The tile whose row operands it has stored to shared memory since its last barrier."""
    residual: Tag | None = None
    terms: list[int] = field(default_factory=list)
    """Sub-tiles whose reduction terms have been accumulated."""
    joined: dict[int, int] = field(default_factory=dict)
    """By pass: the tile whose CTA-local reductions are in registers."""
    own: int | None = None
    """The tile of the CTA-local statistics for the second pass."""
    whole: Tag | None = None
    """(tile, pass) of the row reductions in registers."""
    level: Tag | None = None
    """(tile, exchanges) up to which per-row numbers are computed."""
    drawn: Tag | None = None
    """(tile, number) of the bits that it has drawn."""
    evaluated: Tag | None = None  # the sub-tile whose results are in the registers of the epilogue
    stores: list[Store] = field(default_factory=list)
    unfenced_reads: list[Slot] = field(default_factory=list)
    copies: Elements = field(default_factory=Elements)
    slices: Slices = field(default_factory=Slices)
    waited: bool = False
    """True if, since the last warp sync, the storing lane has waited for its stores (with stores by warps)."""
    written: bool = False
    """True if, since then, lanes have written store buffers."""
    unfenced_writes: list[tuple[Buffer, Tag]] = field(default_factory=list)
    """Writes to shared memory since the last proxy fence."""
    views: int | None = None
    """The tile whose group of rows its views of matrices begin at."""
    heard: int | None = None
    """The tile whose messages it has waited for."""
    complete: int | None = None
    """The tile up to which its stores are complete in memory."""
