"""Numbers of the tiles of plain matmuls."""

from __future__ import annotations

from typing import ClassVar

from ......_support.records import dataclass
from ...tuned import Tuned


@dataclass(frozen=True)
class TileNumbers(Tuned):
    rule: ClassVar[str] = "product_tiles"

    #: Caps of the starting tile, and of K.
    start_m: int
    start_n: int
    max_k: int
    #: Columns to start from where each accumulator has an fp32 partial next to it.
    promoted_n: int
    #: Fraction of the register file for fp32 accumulators.
    accumulator_share: int
    #: Stages that the K tile is chosen for, and the most stages.
    pipeline: int
    max_stages: int
    #: Waves are full enough at this efficiency; tiles do not shrink below the floor for it, less for few rows.
    tile_floor: int
    narrow_floor: int
    narrow_rows: int
    #: Elements of the tile from which 8 warps share it.
    wide_tile: int
    wide_warps: int
    warps: int
    #: M, N, K, warps and stages of tiles under a condition, zeros for none.
    branched_tile: tuple[int, int, int, int, int]
    #: With this many matmuls per SM, one tile per matmul is enough: small tiles, a short pipeline.
    many_batches: int
    many_batches_tile: tuple[int, int]
    many_batches_stages: int
    #: With accumulators in tensor memory from 64 rows on, small matmuls stay below that, with one warp.
    many_batches_mma_tile: tuple[int, int]
    many_batches_mma_warps: int
    #: Blocks of rows are grouped for the L2 cache when the grid is this much taller than wide.
    tall: int
    group: int
    #: Least bytes of a tile along K, as far as K has them for each stage. Where shared memory has no room for them, a
    #: smaller tile uses it better (64 KiB of MI300X, 99 KiB of L40S).
    least_line: int
    #: The same where one side has no more rows than a tile. Then the other operand is read once, and its tiles are lines of
    #: memory (measurement ``rows_in_one_tile``).
    few_rows_line: int
    #: Bytes along K of an unaligned operand whose elements are also summed.
    summed_line: int
    #: Most bytes of a K that a loop is around, for which one tile has all of it.
    nested_line: int
    #: Most stages of a loop around such a K.
    nested_stages: int
    #: Bytes of a tile along K, if K has three such tiles: a line of the shared memory swizzle.
    whole_line: int
    #: Smallest transposed alternate, and the factor of padded elements of the output from which it comes first.
    smallest_alternate: int
    padding: float
    #: A side that a program loops over between bounds from data: masks and addresses of each stage's rows need
    #: registers as well.
    looped_side: int
    looped_stages: int
    #: The synchronous matrix unit (mma.sync) multiplies fp32 that wgmma cannot read, which is not K-major; and M, N,
    #: K, warps and stages for that.
    mma_v2_for_tf32: bool
    mma_v2_tile: tuple[int, int, int, int, int]
    #: Smallest side of such tiles with split-K, and programs of whole tiles that an SM runs at once.
    mma_v2_floor: int
    mma_v2_programs: int
    #: K tiles of a separate loop over K, relative to those of the matmul.
    beside: int
    #: Columns and warps where rows of an operand are not aligned to this many bytes. Strides passed at launch are
    #: known multiples of as many elements, or unknown.
    unaligned_columns: int
    unaligned_warps: int
    unaligned_tile: int
    #: A persistent grid pays from this many waves on. Descriptors stage the output as well, which leaves room for
    #: three stages of the largest tiles. An epilogue or partial sums keep tiles smaller, and leave room for more.
    persistent_waves: int
    persistent_group: int
    persistent_stages: int
    persistent_least_stages: int
    #: Stages where the matmul's loop also reduces its operands.
    summed_stages: int
    #: Least waves and least elements of tiles for which K-major TF32 operands use descriptors.
    tf32_waves: int
    tf32_tile: int
    #: Up to this K the output has as many bytes as the operands: smaller tiles, of which more run at once.
    short_k: int
    short_tile: tuple[int, int]
    #: From this K on, a matmul with fewer tiles than half of the SMs is bound by the L2 bandwidth of one SM.
    #: L2 serves so many SMs at full rate.
    long_k: int
    fed_sms: int
    #: Least elements of K that a program accumulates, when K is split.
    least_span: int
    #: Largest split-K factor.
    most_parts: int
    #: Number of split-K factors, powers of two, that are compared: small programs that share an SM hide each other's
    #: latency.
    rounds: int
    #: Wider tiles along K where several matmuls read one operand, which is staged once.
    operands_once: bool
    #: 8-bit integers whose right operand wgmma takes transposed: more rows than columns.
    tall_transposed: bool
    #: The order of proposals: the tile for a long K, split-K, and the persistent grid with descriptors come first.
    long_k_first: bool
    split_k_first: bool
    persistent_first: bool
    #: Descriptors load K-major right operands, operands whose rows end within a vector, and K-major TF32 operands.
    descriptors_along_k: bool
    descriptors_for_ragged: bool
    descriptors_for_tf32: bool
    #: Elements of the tiles of other grid loops, such as one that reduces split-K partials.
    rest_elements: int
