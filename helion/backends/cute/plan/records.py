"""The records of one matrix product: what is asked (``GemmProblem``), what is chosen (``Choice``), what results."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Literal

from .dtypes import DTYPES, itemsize
from .epilogue import Epilogue, EpilogueOutput, OutputKind
from .scales import BlockScales, Scale, Side

Major = Literal["k", "mn"]
Unit = Literal["wgmma", "tcgen05"]
RowsIn = Literal["cluster", "memory"]

SWIZZLE_BYTES = 128
"""Width of the widest swizzle atom in shared memory, and of the box that one TMA instruction moves."""
TMA_ALIGNMENT_BYTES = 16
"""Of the base and of every pitch that a tensor map holds (CUDA driver API, ``cuTensorMapEncodeTiled``)."""
WARP_THREADS = 32
WARPGROUP_THREADS = 128
WGMMA_ROWS = 64
WARP_ROWS = 16
"""Rows of sums that a warp holds, of each 64."""
SUM_BYTES = 4
NAMES = ("A", "B", "D")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Products of one launch that lie side by side: ``size`` of them, 2 or more.

    ``a``, ``b`` and ``d`` are the elements from one matrix to the next, ``operands`` those of the epilogue's operands, in
    their order; 0 where all products read the same. ``more`` are those of the outputs behind D.
    """

    size: int
    a: int
    b: int
    d: int
    operands: tuple[int, ...] = ()
    more: tuple[int, ...] = ()

    @property
    def outputs(self) -> tuple[int, ...]:
        """Of all outputs, in their order."""
        return (self.d, *self.more)


@dataclass(frozen=True, kw_only=True)
class GemmProblem:
    """D (M, N) = epilogue(A (M, K) @ B (K, N)), summed in fp32; D has contiguous rows.

    With ``scales`` the sums of each block of K are multiplied by its factors before they are added up.

    Where the epilogue names outputs, the first of them is D, and ``output_dtype`` and ``d_pitch`` are its own.

    ``*_major`` names the contiguous dimension of an operand, ``*_pitch`` the elements from one line along it to the
    next. All pointers are multiples of 16 bytes, which launching checks.
    """

    m: int
    n: int
    k: int
    operand_dtype: str
    output_dtype: str
    a_pitch: int
    b_pitch: int
    d_pitch: int
    a_major: Major = "k"
    b_major: Major = "k"
    epilogue: Epilogue = field(default_factory=Epilogue)
    batch: Batch | None = None
    scales: BlockScales | None = None
    runtime: tuple[str, ...] = ()
    """Numbers that each launch is given (``plan.runtime``), in order: what stands here in their place is an example of them,
    which chooses tiles and is no part of the kernel's text."""
    names: tuple[str, str, str] = field(default=NAMES, compare=False)
    """Of A, B and D in messages."""

    def __repr__(self) -> str:
        hidden = {
            "batch": self.batch is None,
            "scales": self.scales is None,
            "runtime": not self.runtime,
            "names": self.names == NAMES,
        }
        shown = [each.name for each in dataclasses.fields(self) if not hidden.get(each.name)]
        return f"GemmProblem({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    @property
    def batches(self) -> int:
        return 1 if self.batch is None else self.batch.size

    def batch_pitch(self, name: str) -> int:
        """Elements from one matrix, or vector, to the next: of ``a``, ``b``, an output or an operand of the epilogue, by
        label."""
        if self.batch is None:
            return 0
        pitches = {"a": self.batch.a, "b": self.batch.b}
        pitches |= zip(map(self.label_of, self.outputs), self.batch.outputs, strict=True)
        pitches |= zip((operand.label for operand in self.epilogue.operands), self.batch.operands, strict=True)
        return pitches[name]

    @property
    def outputs(self) -> tuple[EpilogueOutput, ...]:
        """What a launch writes, in the order of its pointers."""
        value = self.epilogue.last
        d = EpilogueOutput(name="d", value=value, kind="exact", dtype=self.output_dtype, pitch=self.d_pitch)
        return self.epilogue.outputs or (d,)

    def outputs_of(self, kind: OutputKind) -> tuple[EpilogueOutput, ...]:
        return tuple(output for output in self.outputs if output.kind == kind)

    @property
    def numbers(self) -> tuple[EpilogueOutput, ...]:
        """The outputs of one number per row, of whole rows or of their parts in each tile."""
        return tuple(output for output in self.outputs if output.kind != "exact")

    def label_of(self, output: EpilogueOutput) -> str:
        """Its name in the text: that of the first matrix is ``d``."""
        return "d" if self.outputs_of("exact")[:1] == (output,) else output.label


@dataclass(frozen=True, kw_only=True)
class RowFinish:
    """The second kernel of a launch: a CTA for each row, which reads what the product has stored of it and finishes ``problem``.

    Value number ``held`` lies in memory as ``dtype``, in rows of ``pitch`` elements: in the workspace, or in the output named
    ``home``, which is overwritten or stays.
    """

    problem: GemmProblem
    held: int
    dtype: str
    pitch: int
    home: str
    threads: int
    vector: int
    """Columns that a thread reads and writes at a time."""
    chunks: int
    """Of so many columns of each thread, that a thread has."""
    kept: bool
    """Whether registers keep a row; where it is too long, each walk reads it again."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A reduction, value number ``value`` of the whole problem, from those of the tiles.

    ``plain``: they are reduced once more. ``first``: a place in the row, from the tiles whose extreme, that of reduction
    ``of``, is the row's. ``rescaled``: a sum of ``power`` ((x - top) * ``scale``), where each tile has its own top, ``of``.
    """

    value: int
    kind: Literal["plain", "first", "rescaled"]
    of: int = 0
    power: str = ""
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class TileFinish:
    """The second kernel of a launch that stores numbers per row only: a warp for each row, which joins what each of ``tiles``
    has reduced its columns to. The product stores that in the order of ``parts``."""

    problem: GemmProblem
    parts: tuple[Part, ...]
    tiles: int


Finish = RowFinish | TileFinish


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a config decides; None takes the most that fits.

    ``tile`` is the (M, N, K) of one matrix instruction sequence: of one CTA, or of both CTAs of a pair.
    """

    tile: tuple[int, int, int]
    """wgmma: 64, 128 or 256 rows; tcgen05: 64 or 128 rows per CTA. Columns a multiple of 16 up to 256, K of 128 or 256
    bytes."""
    cluster: tuple[int, int] = (1, 1)
    """CTAs along M, which share B, and along N, which share A; up to 8, and 16 where they hold rows that are reduced."""
    ctas_per_mma: int = 1
    """2 lets a pair of CTAs along M issue instructions together; tcgen05 only."""
    ab_stages: int | None = None
    """From 2 to what fits."""
    accumulator_stages: int | None = None
    """Tiles of sums in tensor memory, 1 to 4; tcgen05 only."""
    store_stages: int = 2
    """Buffers between registers and TMA stores: 2 or more that divide the sub-tiles of a tile."""
    epilogue_n: int = 32
    """Columns of a sub-tile: 8, 16, 32 or 64 that divide the tile."""
    group: int = 8
    """Tiles along M that are swept together along N."""
    promote: bool | None = None
    """Sums of 8-bit products leave the matrix unit now and then; None where that is needed. wgmma only."""
    promote_k_tiles: int | None = None
    """After how many K tiles they do, 1 to 8."""
    pingpong: bool = False
    """Two warpgroups take tiles in turn: one stores while the other multiplies. wgmma only, 64 or 128 rows."""
    splits: int = 1
    """CTAs that share the K of one tile, times ``cluster`` up to 16, no more than the tile has sub-tiles; wgmma only, without
    ping-pong."""
    grid_splits: int = 1
    """Clusters that share the K of their tiles, up to 64, without ping-pong: all write their sums to a workspace in global
    memory, and the one that comes last adds them."""
    residual_stages: int = 2
    """Sub-tiles of exact operands that are loaded ahead, 2 to 8."""
    ctas_per_sm: int = 1
    """2 lets one CTA store and exchange while another multiplies; wgmma only, with room for half as much."""
    rows_in: RowsIn = "cluster"
    """Where rows lie that are reduced: in the registers of a cluster's CTAs, or in memory, from which a second kernel finishes
    them."""


@dataclass(frozen=True, kw_only=True)
class GemmPlan:
    """A product with every decision made. Immutable, hashable, no text of the kernel in it."""

    problem: GemmProblem
    unit: Unit
    tile: tuple[int, int, int]
    cluster: tuple[int, int]
    """CTAs along M and N; along M a whole number of pairs where ``ctas_per_mma`` is 2."""
    ctas_per_mma: int
    ab_stages: int
    accumulator_stages: int
    """Tiles of sums in tensor memory; 1 where they stay in registers."""
    epilogue_n: int
    """Columns that are computed, staged and stored at a time."""
    store_stages: int
    group: int
    """Tiles along M that are swept together along N, so that their operands stay in the L2 cache."""
    promote: bool
    """Sums are added to fp32 registers outside of the matrix unit, after so many K tiles each."""
    promote_k_tiles: int
    teams: int
    """Groups of storing warps that take tiles in turn."""
    splits: int
    """CTAs of the cluster that each take a range of the K tiles of every tile."""
    grid_splits: int
    """Clusters that each take a range of the K tiles of the same tiles."""
    residual_stages: int
    ctas_per_sm: int
    warp_stores: bool
    """Each warp stores its own rows of a sub-tile, and waits for no other."""
    shares_a: bool
    """CTAs along N each load a slice of A for all of them; else each loads its own."""
    joins: bool
    """Reductions of rows that wait for one another are exchanged at once (``plan.joint``), in one slot."""
    shared_limit_bytes: int
    tensor_memory_limit_columns: int
    registers_per_sm: int
    registers_per_thread: int
    """The most that a thread can have."""
    finish: Finish | None = None
    """What a second kernel makes of what ``problem``, the first part of the whole, has stored."""

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """Counted once: plans are looked up by it many times."""
        return hash(tuple(getattr(self, each.name) for each in dataclasses.fields(self)))

    @property
    def whole(self) -> GemmProblem:
        """What a launch computes, of which ``problem`` is the first kernel's part."""
        return self.problem if self.finish is None else self.finish.problem

    @property
    def cta_tile(self) -> tuple[int, int]:
        """Rows and columns of D that one CTA computes."""
        return self.tile[0] // self.ctas_per_mma, self.tile[1]

    @functools.cached_property
    def cluster_tiles(self) -> tuple[int, int]:
        """Instruction tiles of one cluster along M and N."""
        return self.cluster[0] // self.ctas_per_mma, self.cluster[1]

    @property
    def ctas(self) -> int:
        """Of one cluster."""
        return self.cluster[0] * self.cluster[1] * self.splits

    @functools.cached_property
    def parts(self) -> int:
        """Ranges of K tiles that a tile's are cut into."""
        return self.splits * self.grid_splits

    @functools.cached_property
    def warpgroups(self) -> int:
        """That hold the sums of one tile; those of wgmma multiply it, each 64 rows at a time."""
        return 1 if self.teams > 1 or self.unit == "tcgen05" else min(2, self.tile[0] // WGMMA_ROWS)

    @property
    def row_atoms(self) -> int:
        """Times 64 rows of sums that one warpgroup of wgmma holds."""
        return self.tile[0] // (WGMMA_ROWS * self.warpgroups) if self.unit == "wgmma" else 1

    @property
    def paired(self) -> bool:
        """Whether a thread holds pairs of columns of two rows, 8 apart, not all columns of one row."""
        return self.unit == "wgmma" or self.cta_tile[0] == WGMMA_ROWS

    @functools.cached_property
    def consumer_warps(self) -> int:
        """Warps of one team, which turn sums into stored values."""
        return 4 * self.warpgroups

    @functools.cached_property
    def storing_warps(self) -> int:
        """Of one team, that store parts of a sub-tile."""
        return self.consumer_warps if self.warp_stores else 1

    @property
    def store_box(self) -> tuple[int, int]:
        """Rows and columns that one store moves."""
        return (WARP_ROWS if self.warp_stores else self.cta_tile[0]), self.epilogue_n

    @property
    def rounds(self) -> int:
        """Sub-tiles of a tile that one CTA stores, at most: the CTAs that split K take them in turn."""
        return -(-self.subtiles // self.splits)

    @functools.cached_property
    def subtiles(self) -> int:
        return self.tile[1] // self.epilogue_n

    @property
    def mma_steps(self) -> int:
        """Matrix instructions along one K tile."""
        return self.tile[2] // DTYPES[self.problem.operand_dtype].mma_k

    @functools.cached_property
    def products(self) -> int:
        """Matrix products of the same A, whose sums the epilogue reads."""
        return 1 + len(self.problem.epilogue.of_kind("product"))

    @property
    def sum_columns(self) -> int:
        """Columns of a matrix instruction: a tile of the first product, then one of the second."""
        return self.products * self.tile[1]

    @property
    def k_tiles(self) -> int:
        return -(-self.problem.k // self.tile[2])

    @property
    def work(self) -> tuple[int, int]:
        """Clusters' worth of tiles along M and N."""
        rows, columns = self.cluster_tiles
        return -(-self.problem.m // (self.tile[0] * rows)), -(-self.problem.n // (self.tile[1] * columns))

    @property
    def pieces(self) -> int:
        """Of work that clusters take in turn."""
        return self.tiles * self.grid_splits

    @functools.cached_property
    def tiles(self) -> int:
        """Clusters' worth of tiles, of all products of a batch."""
        rows, columns = self.work
        return rows * columns * self.problem.batches

    @property
    def operand_bytes(self) -> int:
        return itemsize(self.problem.operand_dtype)

    @property
    def output_bytes(self) -> int:
        return itemsize(self.problem.output_dtype)

    @functools.cached_property
    def totals(self) -> bool:
        """Whether sums are added up in fp32 registers outside of the matrix unit."""
        return self.promote or self.problem.scales is not None

    def factor(self, side: Side) -> Scale | None:
        """The factors of blocks of K per row, or per column."""
        return self.problem.scales.of(side) if self.problem.scales is not None else None

    @property
    def one_column_factor(self) -> bool:
        """Whether all columns of a tile share the factor of a block."""
        scale = self.factor("column")
        return scale is not None and (not scale.pitch or scale.lines % self.tile[1] == 0)

    @functools.cached_property
    def by_rows(self) -> bool:
        """Whether numbers per row are kept in registers: reductions, or what is stored as one per row."""
        return self.problem.epilogue.reduces_rows or bool(self.problem.numbers)

    @property
    def columns_stay(self) -> bool:
        """Whether a CTA that holds parts of rows has the same columns, and the same row operands, in all of its tiles."""
        return (
            self.by_rows and self.work[1] == 1 and self.problem.batch is None and "size_n" not in self.problem.runtime
        )

    @property
    def has_residual(self) -> bool:
        return bool(self.problem.epilogue.of_kind("exact"))
