"""The records of one GEMM: the problem (``GemmProblem``), the tunable decisions (``Choice``), and the plan."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Literal

from ...._support.records import dataclass, field, hash_once
from ....hardware import TMA_ALIGNMENT_BYTES as TMA_ALIGNMENT_BYTES
from ....hardware import WARP_ROWS as WARP_ROWS
from ....hardware import WARP_THREADS as WARP_THREADS
from .copied import Copied, CopySource
from .dtypes import DTYPES, itemsize
from .epilogue import Epilogue, EpilogueOutput, LineNumbers, OutputKind
from .scales import BlockScales, Ends, Groups, Scale, Side, promoted

Major = Literal["k", "mn"]
Unit = Literal["wgmma", "tcgen05"]
RowsIn = Literal["cluster", "memory"]
CopiesIn = Literal["shared", "memory", "registers", "slices", "tma"]

SWIZZLE_BYTES = 128
"""Width of the widest swizzle atom in shared memory, and of the tile of one TMA instruction."""
WARPGROUP_THREADS = 128
LOADING_WARPS = 4
"""Register counts change per warpgroup, so the load warp of wgmma has a warpgroup to itself."""
WGMMA_ROWS = 64
SUM_BYTES = 4
NAMES = ("A", "B", "D")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch of ``size`` matmuls in one launch, 2 or more.

    ``a``, ``b`` and ``d`` are strides from one matrix to the next, in elements. ``operands`` are those of the
    epilogue's operands, in their order; 0 where all matmuls read the same. ``more`` are those of the outputs after D,
    ``terms`` those of ``GemmProblem.term_labels``. ``outer`` is the batch of such batches, if it has several dimensions.
    """

    size: int
    a: int
    b: int
    d: int
    operands: tuple[int, ...] = ()
    more: tuple[int, ...] = ()
    terms: tuple[int, ...] = ()
    outer: Batch | None = None

    @property
    def outputs(self) -> tuple[int, ...]:
        """Batch strides of all outputs, in order."""
        return (self.d, *self.more)

    @property
    def levels(self) -> tuple[Batch, ...]:
        """The dimensions of the batch, innermost first."""
        return (self, *(self.outer.levels if self.outer is not None else ()))


@dataclass(frozen=True, kw_only=True)
class Term:
    """A further matmul that is added to the accumulators: A (M, ``k``) and a B for each of the first one's, whose types and
    majors they have."""

    k: int
    a_pitch: int
    b_pitches: tuple[int, ...]
    names: tuple[str, ...] = field(default=(), compare=False)
    """Names of A and of each B in messages."""


@dataclass(frozen=True, kw_only=True)
class Multiplicand:
    """An operand of the matrix unit: ``label`` in generated code. ``base`` is that of the first term, ``term`` the number of
    its own. An ``absent`` B is not multiplied."""

    label: str
    base: str
    term: int
    pitch: int
    k: int
    absent: bool = False


@dataclass(frozen=True, kw_only=True)
class GemmProblem:
    """D (M, N) = epilogue(A (M, K) @ B (K, N)), accumulated in fp32; D has contiguous rows.

    Operands that are ``copied`` by warps have any strides; their major mode is that of shared memory.

    With ``groups``, whose number is the size of the batch, a group of rows takes the place of each matmul of a batch: M is
    the number of all rows.

    With ``scales`` the partial sum of each block of K is multiplied by its scales before it is accumulated.

    If the epilogue names outputs, the first of them is D, with ``output_dtype`` and ``d_pitch``.

    ``*_major`` names the contiguous dimension of an operand, ``*_pitch`` the elements from one line along it to the
    next. All pointers are multiples of 16 bytes, which launches check.
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
    copied: tuple[Copied, ...] = ()
    summed: tuple[Copied, ...] = ()
    """Vectors of the epilogue, by label, that are sums of computed elements along K."""
    groups: Groups | None = None
    ends: Ends | None = None
    terms: tuple[Term, ...] = ()
    rounded: str = ""
    """The type that the matmul of each K tile is rounded to before it is added, if any."""
    absent: tuple[str, ...] = ()
    """Labels of right operands that add nothing to their accumulators: tiles past the end of their K are loaded, not read."""
    starts: tuple[int, ...] = ()
    """Elements of each argument's tensor before its first one, in order; empty where all begin with their tensors."""
    runtime: tuple[str, ...] = ()
    """Names of numbers that each launch passes (``plan.runtime``), in order. Their fields hold example values, which
    guide the choice of tiles and are not part of the kernel's text."""
    names: tuple[str, str, str] = field(default=NAMES, compare=False)
    """Names of A, B and D in messages."""

    def __repr__(self) -> str:
        optional = ("batch", "scales", "copied", "summed", "groups", "ends", "terms", "rounded", "absent", "starts")
        hidden = {name: not getattr(self, name) for name in (*optional, "runtime")} | {"names": self.names == NAMES}
        shown = [each.name for each in dataclasses.fields(self) if not hidden.get(each.name)]
        return f"GemmProblem({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def __hash__(self) -> int:
        return hash_once(self)

    def copy_of(self, operand: str) -> Copied | None:
        """Return the copy of an operand of the matmul, by label; None if TMA loads it."""
        return next((each for each in self.copied if each.operand == operand), None)

    def loads(self, operand: str) -> bool:
        """Return whether TMA loads elements of an operand of the matmul as they are."""
        return self.copy_of(operand) is None and operand not in self.absent

    @functools.cached_property
    def multiplicands(self) -> tuple[Multiplicand, ...]:
        """Operands of the matrix unit, term by term: A, and each B."""
        seconds = self.epilogue.of_kind("product")
        bases = ("a", "b", *(each.label for each in seconds))
        pitches = (self.a_pitch, self.b_pitch, *(each.pitch for each in seconds))
        found = list[Multiplicand]()
        terms = ((self.k, pitches), *((term.k, (term.a_pitch, *term.b_pitches)) for term in self.terms))
        for number, (k, steps) in enumerate(terms):
            for base, pitch in zip(bases, steps, strict=True):
                label, gone = (f"{base}_of_{number}" if number else base), self.absent
                found.append(Multiplicand(label=label, base=base, term=number, pitch=pitch, k=k, absent=label in gone))
        return tuple(found)

    @property
    def term_labels(self) -> tuple[str, ...]:
        """Labels of the operands of further terms."""
        return tuple(each.label for each in self.multiplicands if each.term)

    def multiplicand(self, label: str) -> Multiplicand:
        return next(each for each in self.multiplicands if each.label == label)

    def loaded_dtype(self, operand: str) -> str:
        """Return the type in memory of an operand of the matmul: of its first source if it is copied. An absent one is passed
        as it is, and not read."""
        copied = self.copy_of(operand)
        return self.operand_dtype if copied is None else copied.sources[0].dtype

    @property
    def more_sources(self) -> tuple[CopySource | LineNumbers, ...]:
        """Tensors of copied operands after the first of each, the operand's own, and the numbers of outputs' lines."""
        lines = (output.lines for output in self.outputs if output.lines is not None)
        return (*(source for each in (*self.copied, *self.summed) for source in each.tensors[1:]), *lines)

    @property
    def batches(self) -> int:
        return 1 if self.batch is None else math.prod(level.size for level in self.batch.levels)

    @property
    def offsets(self) -> Groups | None:
        """Groups of rows, or of K, whose offsets a launch passes."""
        return self.groups or (None if self.ends is None else self.ends.groups)

    @property
    def line(self) -> int:
        """Elements of K in a line of swizzled shared memory, the least that a tile has."""
        return SWIZZLE_BYTES // itemsize(self.operand_dtype)

    @property
    def repeats(self) -> int:
        """Matmuls that have M rows each: those of a batch, unless groups share the rows."""
        return self.batches if self.groups is None else 1

    def batch_pitches(self, name: str) -> tuple[int, ...]:
        """Return the elements from one matrix, or vector, to the next along each dimension of the batch, innermost first."""
        found = []
        for level in self.batch.levels if self.batch is not None else ():
            pitches = {"a": level.a, "b": level.b}
            pitches |= zip(map(self.label_of, self.outputs), level.outputs, strict=True)
            pitches |= zip((operand.label for operand in self.epilogue.operands), level.operands, strict=True)
            found.append((pitches | dict(zip(self.term_labels, level.terms, strict=True)))[name])
        return tuple(found)

    def batch_pitch(self, name: str) -> int:
        """Return the same for a batch of one dimension, and 0 without a batch."""
        return sum(self.batch_pitches(name))

    @property
    def argument_names(self) -> tuple[str, ...]:
        """Names of the tensors and scalars of a launch for messages, in order."""
        outputs = (self.names[2], *(output.name for output in self.outputs[1:]))
        factors = self.scales.factors if self.scales is not None else ()
        read = (each.name for each in (*self.epilogue.operands, *factors, *self.more_sources))
        terms = (name for term in self.terms for name in term.names)
        groups = () if self.offsets is None else (self.offsets.name,)
        words = (word.name for word in self.epilogue.words)
        return (*self.names[:2], *outputs, *read, *terms, *groups, *words)

    @property
    def outputs_at(self) -> range:
        """Positions of the outputs among the arguments of a launch."""
        return range(2, 2 + len(self.outputs))

    @functools.cached_property
    def outputs(self) -> tuple[EpilogueOutput, ...]:
        """Outputs of a launch, in the order of its pointers."""
        value = self.epilogue.last
        d = EpilogueOutput(name="d", value=value, kind="exact", dtype=self.output_dtype, pitch=self.d_pitch)
        return self.epilogue.outputs or (d,)

    def outputs_of(self, kind: OutputKind) -> tuple[EpilogueOutput, ...]:
        return tuple(output for output in self.outputs if output.kind == kind)

    @functools.cached_property
    def matrices(self) -> tuple[EpilogueOutput, ...]:
        """The outputs of (M, N), stored by TMA or by threads."""
        return tuple(output for output in self.outputs if output.kind in ("exact", "strided"))

    @functools.cached_property
    def strided(self) -> bool:
        """True if threads store or read a matrix where it is, or draw one."""
        return bool(self.outputs_of("strided") or any(each.by_threads for each in self.epilogue.operands))

    @functools.cached_property
    def numbers(self) -> tuple[EpilogueOutput, ...]:
        """The outputs of one number per row, of whole rows or of their parts in each tile."""
        return tuple(output for output in self.outputs if output.kind not in ("exact", "strided"))

    def label_of(self, output: EpilogueOutput) -> str:
        """Return its name in generated code: the first matrix is ``d``."""
        return "d" if self.outputs_of("exact")[:1] == (output,) else output.label


@dataclass(frozen=True, kw_only=True)
class RowFinish:
    """The second kernel of a launch: a CTA per row reads the stored values of the matmul and finishes ``problem``.

    Value number ``held`` is in memory as ``dtype``, in rows of ``pitch`` elements. It is in the workspace, or in the
    output named ``home``, which is overwritten or stays.
    """

    problem: GemmProblem
    held: int
    dtype: str
    pitch: int
    home: str
    threads: int
    vector: int
    """Columns of one vectorized access of a thread, which has ``chunks`` of them."""
    chunks: int
    kept: bool
    """True if registers, or ``shared`` memory, keep a row; others are read again in each pass."""
    shared: bool = False


@dataclass(frozen=True, kw_only=True)
class Part:
    """A reduction, value number ``value`` of the whole problem, from those of the tiles.

    ``plain``: the tiles' results are reduced once more. ``first``: a position in the row, from the tiles whose extreme,
    reduction ``of``, is that of the row. ``rescaled``: a sum of ``power`` ((x - ``about``) * ``scale``), where ``about``
    is the row's top, ``of``, or 0 where that is infinite. Each tile has its own.
    """

    value: int
    kind: Literal["plain", "first", "rescaled"]
    of: int = 0
    about: int = 0
    power: str = ""
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class TileFinish:
    """The second kernel of a launch that stores numbers per row only: a warp per row combines the reductions of
    ``tiles``.

    The matmul stores these in the order of ``parts``.
    """

    problem: GemmProblem
    parts: tuple[Part, ...]
    tiles: int


Finish = RowFinish | TileFinish


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """An operand that a kernel before the matmul writes to the workspace, as a matrix that TMA loads.

    It has ``rows`` of ``pitch`` elements, of which ``columns`` are the operand's: along K, or along its lines with the
    major ``mn``. There is a matrix for each of ``batches`` matmuls, and the first is ``offset_bytes`` after the start of
    all operands.
    """

    copied: Copied
    major: Major
    rows: int
    columns: int
    pitch: int
    batches: int
    offset_bytes: int
    totals: bool = False
    """True for a vector of fp32 sums along K, of one column."""


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """The kernels before the matmul, of the whole ``problem``: one for each of ``operands``."""

    problem: GemmProblem
    operands: tuple[Prepared, ...]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The tunable decisions of a config; None means the most that fits.

    ``tile`` is the (M, N, K) of the MMAs of one K tile: of one CTA, or of both CTAs of a pair.
    """

    tile: tuple[int, int, int]
    """wgmma: 64, 128 or 256 rows; tcgen05: 64 or 128 rows per CTA. Columns are a multiple of 16 up to 256, K is 128 or
    256 bytes."""
    cluster: tuple[int, int] = (1, 1)
    """CTAs along M, which share B, and along N, which share A; up to 8, or 16 where they hold reduced rows."""
    ctas_per_mma: int = 1
    """2 lets a pair of CTAs along M issue MMAs together; tcgen05 only."""
    ab_stages: int | None = None
    """From 2 to as many as fit."""
    accumulator_stages: int | None = None
    """Accumulator stages in tensor memory, 1 to 4; tcgen05 only."""
    store_stages: int = 2
    """Buffers between registers and TMA stores: 2 or more that divide the sub-tiles of a tile."""
    epilogue_n: int = 32
    """Columns of a sub-tile: 8, 16, 32 or 64 that divide the tile."""
    group: int = 8
    """Tiles along M per group of the tile order, for L2 reuse."""
    promote: bool | None = None
    """Promotion of 8-bit accumulators out of the matrix unit; None where it is needed. wgmma only."""
    promote_k_tiles: int | None = None
    """K tiles between promotions, 1 to 8."""
    pingpong: bool = False
    """Ping-pong: two warpgroups alternate between tiles. wgmma only, 64 or 128 rows."""
    splits: int = 1
    """CTAs that split the K of one tile. Times ``cluster`` at most 16, at most the sub-tiles of a tile; wgmma only,
    without ping-pong."""
    grid_splits: int = 1
    """Clusters that split the K of their tiles, up to 64, without ping-pong. All store partials in a workspace in
    global memory, and the last one adds them."""
    split_last: bool = False
    """Clusters split only the tiles of the last wave (hybrid stream-K)."""
    residual_stages: int = 2
    """Pipeline stages of residual sub-tiles, 2 to 8."""
    ctas_per_sm: int = 1
    """2 lets the epilogue of one CTA overlap the mainloop of another; wgmma only, with half the resources each."""
    copies_in: CopiesIn = "shared"
    """Place of operands that are copied or computed: stages in shared memory that warps fill, global memory, where
    kernels before the matmul write them, or the registers of the warps that multiply, which convert raw tiles of A. With
    ``slices`` each of these warps has K tiles of its own. With ``tma`` operands stay where they are: tcgen05 takes 8-bit
    floats of either major mode."""
    rows_in: RowsIn = "cluster"
    """Place of rows that are reduced: the registers of a cluster's CTAs, or global memory, for a second kernel."""


@dataclass(frozen=True, kw_only=True)
class GemmPlan:
    """A GEMM with every decision made. Immutable and hashable; contains no generated text."""

    problem: GemmProblem
    unit: Unit
    tile: tuple[int, int, int]
    cluster: tuple[int, int]
    """CTAs along M and N; along M a number of pairs where ``ctas_per_mma`` is 2."""
    ctas_per_mma: int
    ab_stages: int
    accumulator_stages: int
    """Accumulator stages in tensor memory; 1 for accumulators in registers."""
    epilogue_n: int
    """Columns that are computed, staged and stored at a time."""
    store_stages: int
    group: int
    """Tiles along M per group of the tile order, so that their operands stay in the L2 cache."""
    promote: bool
    """Accumulators are added to fp32 registers outside of the matrix unit, after ``promote_k_tiles`` K tiles each."""
    promote_k_tiles: int
    teams: int
    """Consumer groups that alternate between tiles."""
    splits: int
    """CTAs of the cluster that each take a range of the K tiles of every tile."""
    grid_splits: int
    """Clusters that each take a range of the K tiles of the same tiles."""
    residual_stages: int
    ctas_per_sm: int
    warp_stores: bool
    """Each warp stores its own rows of a sub-tile, without a barrier with other warps."""
    shares_a: bool
    """CTAs along N each load a slice of A and multicast it; else each loads its own A."""
    joins: bool
    """Dependent row reductions share one exchange (``plan.joint``), in one stage."""
    shared_limit_bytes: int
    tensor_memory_limit_columns: int
    registers_per_sm: int
    registers_per_thread: int
    """Register limit of a thread."""
    whole_tiles: int = 0
    """The first cluster tiles, whose K is not split by clusters."""
    finish: Finish | None = None
    """The second kernel, which completes ``problem``, the first part of the whole."""
    prepare: Prepare | None = None
    """The kernels that write operands of ``problem``, which the whole problem has to compute."""
    converts: bool = False
    """The warps that multiply convert raw tiles of A in their registers; wgmma only."""
    sliced: bool = False
    """Each of these warps multiplies K tiles of its own, for all rows of the tile."""

    def __hash__(self) -> int:
        return hash_once(self)  # plans are cache keys in hot paths

    @property
    def whole(self) -> GemmProblem:
        """The problem of the launch, of which ``problem`` is the matmul's part."""
        part = self.prepare or self.finish
        return self.problem if part is None else part.problem

    @property
    def cta_tile(self) -> tuple[int, int]:
        """Rows and columns of D that one CTA computes."""
        return self.tile[0] // self.ctas_per_mma, self.tile[1]

    @functools.cached_property
    def cluster_tiles(self) -> tuple[int, int]:
        """MMA tiles of one cluster along M and N."""
        return self.cluster[0] // self.ctas_per_mma, self.cluster[1]

    @property
    def ctas(self) -> int:
        """CTAs of one cluster."""
        return self.cluster[0] * self.cluster[1] * self.splits

    @functools.cached_property
    def parts(self) -> int:
        """Parts of K of one tile."""
        return self.splits * self.grid_splits

    @functools.cached_property
    def warpgroups(self) -> int:
        """Warpgroups that hold the accumulator of one tile; with wgmma each multiplies 64 rows at a time."""
        return 1 if self.teams > 1 or self.unit == "tcgen05" else min(2, self.tile[0] // WGMMA_ROWS)

    @property
    def row_atoms(self) -> int:
        """Blocks of 64 accumulator rows of one warpgroup with wgmma."""
        return self.tile[0] // (WGMMA_ROWS * self.warpgroups) if self.unit == "wgmma" else 1

    @property
    def paired(self) -> bool:
        """True if a thread holds pairs of columns of two rows, 8 rows distant, rather than all columns of one row."""
        return self.unit == "wgmma" or self.cta_tile[0] == WGMMA_ROWS

    @functools.cached_property
    def consumer_warps(self) -> int:
        """Epilogue warps of one consumer group."""
        return 4 * self.warpgroups

    @functools.cached_property
    def storing_warps(self) -> int:
        """Warps of one consumer group that store parts of a sub-tile."""
        return self.consumer_warps if self.warp_stores else 1

    @property
    def store_box(self) -> tuple[int, int]:
        """Rows and columns of one TMA store."""
        return (WARP_ROWS if self.warp_stores else self.cta_tile[0]), self.epilogue_n

    @property
    def rounds(self) -> int:
        """The most sub-tiles of a tile that one CTA stores: the CTAs that split K interleave them."""
        return -(-self.subtiles // self.splits)

    @functools.cached_property
    def subtiles(self) -> int:
        return self.tile[1] // self.epilogue_n

    @property
    def mma_steps(self) -> int:
        """MMA instructions along one K tile."""
        return self.tile[2] // DTYPES[self.problem.operand_dtype].mma_k

    @functools.cached_property
    def products(self) -> int:
        """Matmuls of the same A, whose accumulators the epilogue reads."""
        return 1 + len(self.problem.epilogue.of_kind("product"))

    @property
    def sum_columns(self) -> int:
        """Columns of an MMA instruction: a tile of the first matmul, then one of the second."""
        return self.products * self.tile[1]

    @property
    def k_tiles(self) -> int:
        """K tiles of all terms."""
        return self.first_k_tiles[-1]

    @functools.cached_property
    def first_k_tiles(self) -> tuple[int, ...]:
        """Numbers of the first K tile of each term, and the number of all."""
        extents = (self.problem.k, *(term.k for term in self.problem.terms))
        return tuple(itertools.accumulate((-(-extent // self.tile[2]) for extent in extents), initial=0))

    @property
    def work(self) -> tuple[int, int]:
        """Cluster tiles along M and N. Along M they are those of all groups, at most."""
        rows, columns = (self.tile[at] * self.cluster_tiles[at] for at in (0, 1))
        groups = self.problem.groups
        along_m = -(-self.problem.m // rows) if groups is None else groups.most_tiles(self.problem.m, rows)
        return along_m, -(-self.problem.n // columns)

    @property
    def pieces(self) -> int:
        """Work items of the persistent tile loop."""
        return self.whole_tiles + (self.tiles - self.whole_tiles) * self.grid_splits

    @functools.cached_property
    def tiles(self) -> int:
        """Cluster tiles, of all matmuls of a batch."""
        rows, columns = self.work
        return rows * columns * self.problem.repeats

    @property
    def operand_bytes(self) -> int:
        return itemsize(self.problem.operand_dtype)

    @functools.cached_property
    def totals(self) -> bool:
        """True if accumulators are added up in fp32 registers outside of the matrix unit."""
        return self.promote or promoted(self.problem.scales) is not None

    def factor(self, side: Side) -> Scale | None:
        """Return the scales of blocks of K per row, or per column."""
        return scales.of(side) if (scales := promoted(self.problem.scales)) is not None else None

    @property
    def one_column_factor(self) -> bool:
        """True if all columns of a tile share the scale of a block."""
        scale = self.factor("column")
        return scale is not None and (not scale.pitch or scale.lines % self.tile[1] == 0)

    @functools.cached_property
    def by_rows(self) -> bool:
        """True if per-row values are kept in registers: reductions, or outputs of one number per row."""
        return self.problem.epilogue.reduces_rows or bool(self.problem.numbers)

    @property
    def columns_stay(self) -> bool:
        """True if a CTA with parts of rows has the same columns, and row operands, in all of its tiles."""
        return (
            self.by_rows and self.work[1] == 1 and self.problem.batch is None and "size_n" not in self.problem.runtime
        )

    @property
    def has_residual(self) -> bool:
        return bool(self.problem.epilogue.of_kind("exact"))
