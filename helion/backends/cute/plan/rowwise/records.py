"""The records of a row kernel: the problem, what it demands of a layout, the tunable decisions, and the plan."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Literal

from ....._support.records import dataclass
from ..dtypes import itemsize
from ..epilogue import GROUP_REDUCTIONS, Constant, Epilogue, EpilogueOperand, EpilogueOutput
from .choice import WARP_LANES, WARPGROUP, RowChoice
from .demand import GRANULE_BYTES, WORD_BYTES, RowDemand, is_wide
from .operands import Gather, Repeat

Kind = Literal["all", "some", "edge"]

BARRIER_BYTES = 8
LINE_GRANULES = 8
MOST_PACKED = 8
"""The most granules of a thread in a chunk that is a whole row, of all inputs."""
SIZE_M, SIZE_N = "size_m", "size_n"
"""The names of the numbers of rows and of columns, if only the launch knows them."""
UNALIGNED_REGISTERS = 16
"""Registers for the places and masks of rows that begin anywhere."""

SUM_REGISTERS, SUMS_PER_REGISTER = 9, 8
"""Registers for the loop over blocks of rows with sums, and sums of a thread for each that is needed in addition."""
MORE_SUMS_REGISTERS = 4
"""Registers in addition for each output of sums but the first."""

MOST_WIDE_SUMS = 32
"""Sums of a thread up to which vectors of 16 bits are kept in fp32: with 64 of one output, binaries spill 8 bytes."""

ANYWHERE_SUM_REGISTERS = 55
"""Registers in addition where rows with sums begin anywhere, and stay in shared memory: compiled kernels need up to 58."""

WORD_REGISTERS = 8
"""Registers for the places of words of rows that begin anywhere."""

ANYWHERE_BUCKET_REGISTERS = 3
"""Registers in addition for each granule of a thread, where such rows have a number of columns that only the launch knows,
and a pass reads them again from shared memory to store: softmax of 14 granules spills with 96 registers."""

LEAST_TURNED_BYTES = 2**16
"""Bytes of a row from which rows may be read in another order: these are many pages of memory."""


def pitch_name(label: str) -> str:
    """Return the name of the stride of a tensor's rows among the numbers of a launch."""
    return f"pitch_{label}"


def is_pitch(name: str) -> bool:
    """Return whether a number of a launch is the stride of a tensor's rows: others are counts of 32 bits."""
    return name.startswith("pitch_")


@dataclass(frozen=True, kw_only=True)
class RowProblem:
    """Outputs of ``m`` rows of ``n`` columns, as a straight-line program over each row.

    Value 0 of ``epilogue`` has no meaning here. Its ``exact`` operands are the inputs with a value for each element,
    ``row`` operands have one for each column, ``column`` operands one for each row.
    """

    m: int
    n: int
    epilogue: Epilogue
    least: int = 0
    """The fewest columns of a row, if only the launch knows their number, which is up to ``n``; else 0."""
    runtime: tuple[str, ...] = ()
    """Names of numbers that each launch passes, in order: ``size_m``, ``size_n``, those of repeats, then strides of
    rows."""
    gathers: tuple[Gather, ...] = ()
    repeats: tuple[Repeat, ...] = ()
    span: int = 0
    """Rows of a block whose sums are stored, if there are sums over rows."""
    hidden_sums: bool = False
    """True if only the totals of the launch read the sums of its blocks: a block may have any rows."""
    line_rows: int = 0
    """Rows of a line of numbers of groups, of which totals add up all lines; 0 for totals of sums over rows."""
    late_sums: bool = False
    """True if the last pass over a row adds to all sums over rows: earlier ones may run for rows that are not there."""

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """The hash, which many caches of a plan ask for: that of a long program takes longer than most answers."""
        return hash(tuple(getattr(self, field.name) for field in dataclasses.fields(self)))

    @property
    def argument_names(self) -> tuple[str, ...]:
        """Names of the tensors and scalars of a launch for messages, in order."""
        outputs = tuple(output.name for output in self.outputs)
        return (*outputs, *(operand.name for operand in self.epilogue.operands))

    @property
    def outputs_at(self) -> range:
        """Positions of the outputs among the arguments of a launch."""
        return range(len(self.outputs))

    @property
    def outputs(self) -> tuple[EpilogueOutput, ...]:
        return self.epilogue.outputs

    @functools.cached_property
    def inputs(self) -> tuple[EpilogueOperand, ...]:
        return self.epilogue.of_kind("exact")

    @functools.cached_property
    def vectors(self) -> tuple[EpilogueOperand, ...]:
        return self.epilogue.of_kind("row")

    @functools.cached_property
    def matrices(self) -> tuple[EpilogueOutput, ...]:
        return tuple(output for output in self.outputs if output.kind == "exact")

    @functools.cached_property
    def pairs(self) -> tuple[EpilogueOutput, ...]:
        """The outputs of one element per pair of columns."""
        return tuple(output for output in self.outputs if output.kind == "pair")

    @property
    def elements(self) -> tuple[EpilogueOutput, ...]:
        """The outputs that passes store granule by granule."""
        return (*self.matrices, *self.pairs)

    @functools.cached_property
    def numbers(self) -> tuple[EpilogueOutput, ...]:
        """The outputs of one number per row."""
        return tuple(output for output in self.outputs if output.kind == "column")

    @functools.cached_property
    def groups(self) -> tuple[EpilogueOutput, ...]:
        """The outputs of one number per group of columns, of groups that the lanes of a warp have."""
        return tuple(
            output for output in self.outputs if output.kind == "group" and output.value not in self.after_wide
        )

    @functools.cached_property
    def wide_groups(self) -> tuple[EpilogueOutput, ...]:
        """The outputs of one number per wide group."""
        return tuple(output for output in self.outputs if output.kind == "group" and output.value in self.after_wide)

    @functools.cached_property
    def wide(self) -> tuple[int, ...]:
        """The reductions of wide groups, by value."""
        epilogue = self.epilogue
        computed = enumerate(epilogue.instructions, 1 + len(epilogue.operands))
        groups = {value: epilogue.grouped[value] for value, made in computed if made.op in GROUP_REDUCTIONS}
        return tuple(value for value, group in groups.items() if is_wide(group, self.lanes))

    @functools.cached_property
    def after_wide(self) -> frozenset[int]:
        """The values that reductions of wide groups are needed for, with these."""
        epilogue, found = self.epilogue, {*self.wide}
        for value, made in enumerate(epilogue.instructions, 1 + len(epilogue.operands)):
            if found.intersection(x for x in made.arguments if not isinstance(x, Constant)):
                found.add(value)
        return frozenset(found)

    @functools.cached_property
    def sums(self) -> tuple[EpilogueOutput, ...]:
        """The outputs of sums over the rows of a block."""
        return tuple(output for output in self.outputs if output.kind == "sum")

    @functools.cached_property
    def totals(self) -> tuple[EpilogueOutput, ...]:
        """The outputs of sums over all rows, which a second kernel of a launch adds up."""
        return tuple(output for output in self.outputs if output.kind == "total")

    @property
    def counted_at_launch(self) -> bool:
        """True if only the launch knows the number of rows."""
        return SIZE_M in self.runtime

    @property
    def columns_at_launch(self) -> bool:
        """True if only the launch knows the number of columns. A stride of ``n`` elements is that number then."""
        return SIZE_N in self.runtime

    @property
    def lanes(self) -> int:
        """Elements of one granule."""
        return GRANULE_BYTES // min(itemsize(operand.dtype) for operand in self.inputs)

    def has_launch_pitch(self, tensor: EpilogueOperand | EpilogueOutput) -> bool:
        """Return whether only the launch knows the stride of the rows of a tensor: a multiple of 16 bytes."""
        return pitch_name(tensor.label) in self.runtime

    def value_of(self, operand: EpilogueOperand) -> int:
        """Return the number of the value that an operand is."""
        return 1 + self.epilogue.operands.index(operand)


@functools.lru_cache(maxsize=256)
def interned(problem: RowProblem) -> RowProblem:
    """Return the first of equal problems, so that caches find its answers by identity: comparing two takes longer."""
    return problem


@dataclass(frozen=True, kw_only=True)
class RowLayout:
    """Division of rows among CTAs, warps and threads, and of a CTA's slice of a row into chunks of ``chunk_granules``
    per thread.

    A granule is ``lanes`` elements of the flat tensors, so that all accesses are aligned. If rows begin anywhere, the
    first and last granule of a row may have elements of its neighbors.
    """

    demand: RowDemand
    choice: RowChoice
    chunk_granules: int
    stages: int
    register_limit: int
    moved: bool = False
    """True if the warps of rows have registers of the warpgroup that loads them, whose other three warps do nothing."""

    @property
    def lanes(self) -> int:
        return self.demand.lanes

    @functools.cached_property
    def aligned(self) -> bool:
        """True if every row begins at a granule of a thread: those of one word are anywhere in memory."""
        return self.by_words or all(pitch % self.lanes == 0 for pitch in self.demand.pitches)

    @property
    def by_words(self) -> bool:
        """True if a granule is a word of rows that begin anywhere."""
        return self.demand.by_words

    @property
    def words(self) -> int:
        """Granules of 16 bytes of an input, if each is a word; else 1."""
        return GRANULE_BYTES // WORD_BYTES if self.by_words else 1

    @property
    def whole(self) -> bool:
        """True if rows are whole granules."""
        return self.aligned and self.demand.n % self.lanes == 0

    @property
    def by_columns(self) -> bool:
        """True if each CTA has the same columns of all rows, because it sums them, though rows begin anywhere.

        The first and the last granule of a CTA then may have elements of its neighbors.
        """
        return bool(self.demand.sums) and not self.aligned

    @functools.cached_property
    def line_granules(self) -> int:
        """Granules at a multiple of which a CTA's part of a row begins, if rows begin anywhere.

        Those of a line of 128 bytes, where warps store: a store that begins within a line writes parts of two sectors.
        Rows that may be packed begin at any granule.
        """
        demand, unit = self.demand, LINE_GRANULES * self.lanes
        apart = self.by_columns or demand.least or len({pitch % unit for pitch in demand.pitches}) > 1
        long = self.choice.cluster > 1 or demand.n // self.lanes > MOST_PACKED * self.threads
        return LINE_GRANULES if long and demand.outputs and not self.aligned and not apart else 1

    @property
    def unit(self) -> int:
        """Elements of these granules."""
        return self.line_granules * self.lanes

    @property
    def period(self) -> int:
        """Rows after which a row begins at the same place of a granule again."""
        return self.lanes // math.gcd(self.lanes, self.demand.pitches[0])

    @property
    def threads(self) -> int:
        """Threads of one row in a CTA."""
        return 32 * self.choice.warps

    @functools.cached_property
    def row_granules(self) -> int:
        """The most granules of a row."""
        return -(-(self.demand.n + (0 if self.aligned or self.by_columns else self.unit - 1)) // self.lanes)

    @functools.cached_property
    def slice_granules(self) -> int:
        """The most granules of a row in one CTA: whole groups of columns, and whole lines."""
        each = max(self.line_granules, self.demand.group // self.lanes, self.demand.copied_lanes // self.lanes)
        return -(-self.row_granules // (self.choice.cluster * each)) * each

    @functools.cached_property
    def thread_granules(self) -> int:
        return -(-(self.slice_granules + self.by_columns) // self.threads)

    @functools.cached_property
    def chunks(self) -> int:
        """Chunks of a slice."""
        return -(-self.thread_granules // self.chunk_granules)

    @property
    def packed(self) -> bool:
        """True if a chunk is all rows of a tile, one after the other in memory."""
        return self.choice.cluster == 1 and self.chunks == 1 and self.contiguous and not self.by_words

    @property
    def contiguous(self) -> bool:
        """True if rows of inputs and outputs follow each other without a gap."""
        return all(pitch == self.demand.n for pitch in self.demand.pitches)

    @functools.cached_property
    def chunk_size(self) -> int:
        """Granules of a chunk, of each input."""
        if not self.packed:
            return self.chunk_granules * self.threads
        return -(-(self.choice.rows * self.demand.n + (0 if self.aligned else self.lanes - 1)) // self.lanes)

    def granule_bytes(self, size: int) -> int:
        return self.lanes * size

    @functools.cached_property
    def input_offsets(self) -> tuple[int, ...]:
        """Offset of each input in a stage, then the bytes of a stage.

        Of rows that begin anywhere, 16 bytes at either end of a chunk are copied as well.
        """
        offsets, around = [0], 2 * GRANULE_BYTES if self.by_words else 0
        for size in self.demand.inputs:
            offsets.append(offsets[-1] + self.chunk_size * self.granule_bytes(size) + around)
        return tuple(offsets)

    @property
    def stage_bytes(self) -> int:
        return self.input_offsets[-1]

    @property
    def held_rows(self) -> int:
        """Rows in the ring that wait for their last pass."""
        return 1 + self.choice.rows_ahead if self.demand.later else 1

    @property
    def held_stages(self) -> int:
        """Stages that these rows occupy."""
        return self.chunks * self.held_rows if self.choice.keep == "shared" and self.demand.held_bytes else 0

    @property
    def slices_at_launch(self) -> bool:
        """True if the CTAs of a cluster divide a number of columns that only the launch knows."""
        return bool(self.demand.least) and self.choice.cluster > 1

    def slice_at(self, n: int) -> int:
        """Return the granules in each CTA but the last of a row of ``n`` columns."""
        if not self.slices_at_launch:
            return self.slice_granules
        more = 0 if self.aligned or self.by_columns else self.lanes - 1
        granules = -(-(n + more) // self.lanes)
        return -(-granules // (self.choice.cluster * self.words)) * self.words

    @functools.cached_property
    def wide(self) -> bool:
        """True if threads convert vectors of 16 bits to fp32 in shared memory.

        ptxas has room for twice the words of a granule where sums take up to a fifth of the registers. It also has where
        each is of a few granules.
        """
        sums = self.demand.sums * self.lanes * self.thread_granules
        few = sums <= MOST_WIDE_SUMS or (self.demand.sums > 1 and (self.choice.warps > 1 or self.choice.overlap))
        return self.demand.wide_vectors and few and not self.moved

    @property
    def vector_sizes(self) -> tuple[int, ...]:
        """Bytes of an element of each vector in shared memory."""
        return tuple(WORD_BYTES if self.wide and size == 2 else size for size in self.demand.vectors)

    @property
    def bulk_vectors(self) -> bool:
        """True if bulk copies load the vectors."""
        if not self.demand.vectors or not self.aligned or self.demand.strided_vectors or self.wide:
            return False
        if self.choice.loads_itself:
            return False
        granules = 1 if self.slices_at_launch else self.slice_granules
        steps = (granules * self.granule_bytes(size) for size in self.demand.vectors)
        return self.choice.cluster == 1 or all(step % GRANULE_BYTES == 0 for step in steps)

    @property
    def vector_granules(self) -> int:
        """Granules of one vector in shared memory; with rows that begin anywhere, the length of each plane."""
        return self.slice_granules + (0 if self.aligned else self.line_granules)

    @functools.cached_property
    def vector_offsets(self) -> tuple[int, ...]:
        """Offset of each vector in shared memory, then the bytes of all."""
        offsets = [0]
        for size in self.vector_sizes:
            offsets.append(offsets[-1] + -(-self.vector_granules * self.granule_bytes(size) // 16) * 16)
        return tuple(offsets)

    @property
    def group_parts(self) -> int:
        """Parts of wide groups in a CTA's slice of a row, whose reductions are in shared memory."""
        return -(-self.thread_granules * self.threads // max(1, self.demand.part_lanes))

    @property
    def plane_bytes(self) -> int:
        """Bytes of the sums over rows of one output in shared memory, if rows begin anywhere.

        They lie in one plane for each column modulo the lanes of a granule.
        """
        return self.lanes * self.slice_granules * WORD_BYTES

    @property
    def partials(self) -> int:
        """Warps that hold parts of a row."""
        return self.choice.cluster * self.choice.warps

    @property
    def slot_words(self) -> int:
        """Words of one warp's message: 1, 2, or a multiple of 4."""
        most = max(self.demand.exchanges, default=0)
        return most if most <= 2 else -(-most // 4) * 4

    @property
    def exchange_stages(self) -> int:
        """Stages of messages.

        A warp sends for exchange i + 2 after it has received all messages of i. Then all warps have read those of i - 1,
        so that two stages do. With ``ahead``, a warp sends for i + 1 before it reads those of i: four stages. With
        ``overlap`` as well: it sends for i + 4 after it has those for i + 2, which each warp sends after it has read those of i.
        """
        return 4 if self.choice.rows_ahead else 2

    @property
    def partial_bytes(self) -> int:
        """Bytes of the messages of all stages."""
        each = self.choice.rows * self.partials * self.slot_words * WORD_BYTES
        return self.exchange_stages * each if self.exchanges else 0

    @property
    def exchanges(self) -> bool:
        """True if warps exchange partial results. With ``overlap`` one warp keeps those of rows ahead as messages."""
        return (self.partials > 1 or self.choice.overlap) and bool(self.demand.exchanges)

    @property
    def barrier_words(self) -> int:
        """The full and empty barriers of the ring, those of the exchange, and that of the vectors."""
        return self.vectors_barrier + 1

    @property
    def vectors_barrier(self) -> int:
        """Place of the barrier of the vectors."""
        return 2 * self.stages + self.exchange_stages

    @functools.cached_property
    def spare_bytes(self) -> int:
        """Bytes after the last allocation that threads without a granule may read, and do not use.

        All lanes load, because a predicate of each load would take registers.
        """
        # a loop over chunks has all granules of each
        end = max(self.thread_granules, self.chunks * self.chunk_granules if self.rolled else 0) * self.threads
        after = self.partial_bytes + self.barrier_words * BARRIER_BYTES
        over = end + self.line_granules - self.vector_granules
        widths = (self.lanes * size if self.aligned else size for size in self.vector_sizes)
        vectors = max(0, over) * max(widths, default=0) - after
        ring = 0
        if self.packed:
            over = end - self.demand.n // self.lanes
            ring = max(0, over) * self.granule_bytes(max(self.demand.inputs)) - after - self.vector_offsets[-1]
        return max(0, vectors, ring)

    @functools.cached_property
    def allocations(self) -> tuple[tuple[str, int, int], ...]:
        """Name, offset and bytes of each part of shared memory."""
        found, end = [], 0
        for name, size in (
            ("ring", self.stages * self.stage_bytes),
            ("vectors", self.vector_offsets[-1]),
            ("partials", self.partial_bytes),
            ("planes", self.demand.sums * self.plane_bytes if self.by_columns else 0),
            ("parts", self.choice.rows * self.demand.wide * self.group_parts * WORD_BYTES),
            ("barriers", self.barrier_words * BARRIER_BYTES),
            ("spare", self.spare_bytes),
        ):
            if size:
                found.append((name, end, size))
                end += -(-size // 128) * 128
        return tuple(found)

    @property
    def shared_bytes(self) -> int:
        _, offset, size = self.allocations[-1]
        return offset + size

    @property
    def first_thread(self) -> int:
        """The first thread of the rows."""
        return WARP_LANES * (WARPGROUP if self.moved else self.choice.load_warps)

    @property
    def cta_threads(self) -> int:
        """The threads of a CTA."""
        return self.first_thread + self.choice.row_threads

    @property
    def registers_needed(self) -> int:
        """Registers of a thread between passes, approximately."""
        held = self.demand.held_bytes if self.choice.keep == "registers" else 0
        words = -(-held * self.lanes // WORD_BYTES) * (self.thread_granules if held else 1)
        if self.demand.sums:
            sums = self.demand.sums * self.lanes * self.thread_granules
            words += sums + SUM_REGISTERS + sums // SUMS_PER_REGISTER + MORE_SUMS_REGISTERS * (self.demand.sums - 1)
            words += 0 if self.by_columns else (self.partials - 1) // WARP_LANES * self.slot_words
        words += ANYWHERE_SUM_REGISTERS if self.by_columns and self.choice.keep == "shared" else 0
        words += WORD_REGISTERS if self.by_words else 0
        if self.demand.least and not self.aligned and self.demand.later and self.choice.keep == "shared":
            words += ANYWHERE_BUCKET_REGISTERS * self.thread_granules
        return words + 40 + self.demand.temporaries + (0 if self.aligned else UNALIGNED_REGISTERS)

    @property
    def rolled(self) -> bool:
        """True if a loop runs over the chunks of a row, because nothing is held and one pass reads it."""
        held = self.demand.held_bytes or self.demand.sums
        return not held and self.demand.passes == 1 and self.chunks > 1

    def _sure_granules(self) -> int:
        """Return the granules that every CTA certainly has, and that are certainly whole if they are not the first.

        Slices of a number of granules that only the launch knows are a part of them, rounded up.
        """
        cluster, fewest = self.choice.cluster, self.demand.fewest
        known = fewest // self.lanes if self.aligned and not self.whole else -(-fewest // self.lanes)
        sure = known - (cluster - 1) * self.slice_granules
        if self.slices_at_launch:
            sure = known // cluster - (cluster - 1) * self.words
        return sure if self.aligned else sure - 1

    def kind(self, granule: int) -> Kind:
        """Return if granule number ``granule`` of a thread is certainly whole, is whole or outside of its row, or may
        have elements of other rows."""
        sure = self._sure_granules()
        if self.by_columns:
            sure = min(sure, self.slice_granules)
        certain = (granule + 1) * self.threads <= sure and self.choice.rows == 1
        if certain and (self.aligned or granule):
            return "all"
        return "some" if self.whole else "edge"

    @functools.cached_property
    def segments(self) -> tuple[tuple[int, int, Kind], ...]:
        """Runs of chunks (first, end) whose granules are of one kind."""
        kinds: list[Kind] = []
        for chunk in range(self.chunks):
            first = chunk * self.chunk_granules
            found = {self.kind(granule) for granule in range(first, first + self.chunk_granules)}
            kinds.append("edge" if "edge" in found else "some" if "some" in found else "all")
        cuts = [chunk for chunk in range(self.chunks) if not chunk or kinds[chunk] != kinds[chunk - 1]]
        return tuple((a, b, kinds[a]) for a, b in zip(cuts, [*cuts[1:], self.chunks], strict=True))


@dataclass(frozen=True, kw_only=True)
class RowPlan:
    """A row kernel with every decision made."""

    problem: RowProblem
    layout: RowLayout
    unit: str
    shared_limit_bytes: int
    registers_per_sm: int

    @functools.cached_property
    def turned(self) -> int:
        """Rows from one to the next that reads the same row of an input, as for a mask that heads share; 0 for others.

        A cluster takes such rows one after the other: in order, what they share leaves the L2 cache before the next one.
        """
        problem = self.problem
        labels = {operand.label for operand in problem.inputs}
        found = {(each.divisor, each.modulus) for each in problem.repeats if each.operand in labels}
        divisor, modulus = next(iter(found)) if len(found) == 1 else (0, 0)
        long = self.layout.demand.n * self.layout.demand.column_bytes >= LEAST_TURNED_BYTES
        known = divisor == 1 and isinstance(modulus, int) and not (problem.counted_at_launch or problem.sums)
        return modulus if known and long and isinstance(modulus, int) and problem.m % modulus == 0 else 0

    def row_of(self, tile: str) -> str:
        """Return the row of a tile of one row."""
        shared = self.problem.m // self.turned if self.turned else 1
        return tile if shared == 1 else f"{tile} % {shared} * {self.turned} + {tile} // {shared}"

    @property
    def interleaved(self) -> bool:
        """True if a block has every row whose number leaves the same rest, divided by the number of blocks.

        So all clusters read what is near. Nothing but the launch reads the sums of blocks then.
        """
        layout, added = self.layout, {total.value for total in self.problem.totals}
        apart = layout.by_columns or layout.choice.loads_itself
        every = added >= {each.value for each in self.problem.sums}
        return bool(self.problem.sums) and self.problem.hidden_sums and every and not apart
