"""The kernels before the matmul, which write operands to global memory, and their launches."""

from __future__ import annotations

import functools
import itertools
import operator

from ...._support.records import dataclass
from ..plan.copied import CHUNK_BYTES, Copied, CopySource
from ..plan.dtypes import DTYPES, itemsize, per_byte
from ..plan.epilogue import COLUMN_NUMBER, ROW_NUMBER, Constant
from ..plan.operands import extents_of, is_turned, present, steps_of, varying
from ..plan.records import SUM_BYTES, WARP_THREADS, GemmPlan, GemmProblem, Prepared
from ..plan.workspace import prepared_offset
from .copied import lines_name, pointers_of, source_names
from .epilogue import EXPRESSIONS, literal
from .raw import WORDS
from .writer import Writer

THREADS = 256
VECTOR_ROWS, ELEMENT_ROWS = 4, 8
"""Rows of which a thread has loads in flight, with vectors and with single elements."""
BEGIN, AWAIT = "cute.arch.griddepcontrol_launch_dependents()", "cute.arch.griddepcontrol_wait()"
"""The matmul's CTAs set up their barriers while those of the kernel before end, whose operands they wait for."""
SUMMED_LINES = 16
"""Contiguous lines of which the 16-bit elements are a sector of 32 bytes."""
SHIFTED: tuple[int, ...] = (2, 4)
"""Bytes of elements of which threads load whole granules of 16 bytes, whose rows begin anywhere, and shift them in registers.
These have run on a GPU."""
SQUARE, WIDE_SQUARE = WARP_THREADS, 64
"""Sides of a square that a CTA transposes in shared memory, with single elements and with vectors."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The work of a thread: ``rows`` of ``vector`` columns each; a square is of CTAs that transpose. They read vectors along
    the rows of the matrix."""

    prepared: Prepared
    problem: GemmProblem
    vector: int
    rows: int
    threads: int
    turned: bool

    @property
    def across(self) -> int:
        """CTAs along the columns of a matrix."""
        return -(-self.prepared.columns // (self.side if self.turned else self.threads * self.vector))

    @property
    def ctas(self) -> int:
        """CTAs of a matrix, or of sums."""
        if self.prepared.totals:
            return -(-self.prepared.rows // self.lines)
        return self.across * -(-self.prepared.rows // (self.side if self.turned else self.rows))

    @property
    def side(self) -> int:
        """The side of a square."""
        return WIDE_SQUARE if self.vector > 1 else SQUARE

    @property
    def padded(self) -> int:
        """Elements from one line of a square to the next, a word more than it has, so that both directions meet all banks."""
        return self.side + max(1, SUM_BYTES // itemsize(self.problem.operand_dtype))

    @property
    def lines(self) -> int:
        """Lines that a CTA sums: one for each warp, or a sector of them if they are contiguous."""
        return THREADS // WARP_THREADS if self.prepared.copied.sources[0].k_pitch == 1 else SUMMED_LINES

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a CTA."""
        square = self.padded * self.side * SUM_BYTES if self.turned else 0
        return THREADS * SUM_BYTES if self.prepared.totals else square

    @property
    def stored(self) -> str:
        """The type of the elements as they are written."""
        return "cutlass.Float32" if self.prepared.totals else self.word

    @property
    def read(self) -> str:
        """The type of the elements as the matmul reads them."""
        operand = f"cutlass.{DTYPES[self.problem.operand_dtype].dsl}"
        return "cutlass.Float32" if self.prepared.totals else operand

    @property
    def moves(self) -> bool:
        """True if elements are copied as they are."""
        copied = self.prepared.copied
        if self.prepared.totals:
            return False
        return not copied.instructions and copied.sources[0].dtype == self.problem.operand_dtype

    @property
    def word(self) -> str:
        """The type of the elements that are written: integers of their size."""
        return WORDS[itemsize(self.problem.operand_dtype)]

    def dtype(self, source: CopySource) -> str:
        """Return the type of the registers of a source."""
        return self.word if self.moves else f"cutlass.{DTYPES[source.dtype].dsl}"

    def shifts(self, source: CopySource) -> bool:
        """Return whether threads shift the columns of a source, which are adjacent and begin anywhere."""
        return _shifts(self.prepared, self.problem, source) and not self.turned

    def vectors(self, source: CopySource) -> bool:
        """Return whether the columns of a source are contiguous and aligned vectors of a thread."""
        across, along = source.stored_pitch, source.k_pitch
        step, pitch = (along, across) if self.prepared.major == "k" else (across, along)
        if self.prepared.major == "k" and (source.shared > 1 or source.is_interleaved):
            return False
        if _across(self.prepared, source):
            return False
        return step == 1 and _is_aligned(self.prepared, self.problem, source, pitch, self.vector)


def shape_of(prepared: Prepared, problem: GemmProblem) -> Shape:
    """Return the work of the threads that write an operand."""
    if prepared.totals:
        return Shape(prepared=prepared, problem=problem, vector=1, rows=1, threads=THREADS, turned=False)
    source = prepared.copied.sources[0]
    whole = CHUNK_BYTES // itemsize(problem.operand_dtype)
    pitch = source.stored_pitch if prepared.major == "k" else source.k_pitch
    turned = is_turned(prepared)
    contiguous = (source.k_pitch if prepared.major == "k" else source.stored_pitch) == 1
    aligned = source.is_interleaved and prepared.columns % whole == 0
    aligned |= _is_aligned(prepared, problem, source, pitch, whole) or _shifts(prepared, problem, source)
    if turned:
        vector = whole if _turns_vectors(prepared, problem, source) else 1
        side = WIDE_SQUARE if vector > 1 else SQUARE
        rows = side * side // (THREADS * vector)
        return Shape(prepared=prepared, problem=problem, vector=vector, rows=rows, threads=THREADS, turned=True)
    vector = whole if contiguous and aligned else 1
    columns = -(-prepared.columns // vector)
    return Shape(
        prepared=prepared,
        problem=problem,
        vector=vector,
        rows=VECTOR_ROWS if vector > 1 else ELEMENT_ROWS,
        threads=min(THREADS, -(-columns // WARP_THREADS) * WARP_THREADS),
        turned=False,
    )


def _turns_vectors(prepared: Prepared, problem: GemmProblem, source: CopySource) -> bool:
    """Return whether elements are copied as they are from whole vectors along the rows of the matrix to vectors along its
    columns."""
    size = itemsize(problem.operand_dtype)
    vector = CHUNK_BYTES // size
    whole = source.pitch == 1 and prepared.rows % vector == prepared.columns % vector == 0
    moves = not prepared.copied.instructions and source.dtype == problem.operand_dtype and prepared.copied.lines is None
    steps = (source.k_pitch * size, *(step * size for step in steps_of(problem, prepared.copied, 0)))
    return whole and moves and source.aligned and source.shared == 1 and not any(step % CHUNK_BYTES for step in steps)


def _shifts(prepared: Prepared, problem: GemmProblem, source: CopySource) -> bool:
    """Return whether the columns of the only source are adjacent, but begin between multiples of 16 bytes."""
    step, pitch = (source.k_pitch, source.pitch) if prepared.major == "k" else (source.pitch, source.k_pitch)
    size = itemsize(source.dtype)
    plain = source.shared == 1 and per_byte(source.dtype) == 1 and len(prepared.copied.sources) == 1
    if (
        not plain
        or prepared.totals
        or _across(prepared, source)
        or step != 1
        or size not in SHIFTED
        or size != itemsize(problem.operand_dtype)
    ):
        return False
    return not _is_aligned(prepared, problem, source, pitch, CHUNK_BYTES // size)


def _is_aligned(prepared: Prepared, problem: GemmProblem, source: CopySource, pitch: int, vector: int) -> bool:
    size = itemsize(source.dtype)
    at = prepared.copied.sources.index(source)
    steps = (pitch * size, *(step * size for step in steps_of(problem, prepared.copied, at)))
    return (
        source.aligned
        and prepared.columns % vector == 0
        and not any(step % min(vector * size, CHUNK_BYTES) for step in steps)
    )


# The host function -------------------------------------------------------------------------------------------------------


def launches(plan: GemmPlan, part: str) -> list[str]:
    """Return the lines of the host function before the matmul: launches, after which operands are those in memory."""
    found: list[str] = []
    for prepared in plan.prepare.operands if plan.prepare is not None else ():
        shape, label = shape_of(prepared, plan.whole), prepared.copied.operand
        names = source_names(prepared.copied)
        lines, k = (prepared.rows, plan.whole.k) if prepared.totals else extents_of(plan.whole, prepared.copied)
        pointers = pointers_of(prepared.copied)
        for at, (name, pointer) in enumerate(zip(names, pointers, strict=False)):
            source = prepared.copied.sources[at]
            matrices, steps = _matrices(plan.whole, prepared, at)
            along, pitches = _along_k(source, source.k_picked or k)
            shape_of_source = f"({source.picked or lines}, {along}, {matrices})"
            layout = f"{shape_of_source}, stride=({source.stored_pitch}, {pitches}, {steps})"
            given = f"cute.recast_ptr({pointer}, dtype={shape.word})" if shape.moves else pointer
            found.append(f"{name} = cute.make_tensor({given}, cute.make_layout({layout}))")
        if (numbers := prepared.copied.lines) is not None:
            names.append(lines_name(prepared.copied))
            of_k = any(source.k_picked for source in prepared.copied.sources)
            vector = f"cute.make_layout({k if of_k else lines}, stride={numbers.pitch})"
            found.append(f"{names[-1]} = cute.make_tensor({pointers[-1]}, {vector})")
        place = f"workspace + {(prepared_offset(plan) + prepared.offset_bytes) // SUM_BYTES}"
        strides = f"({prepared.pitch}, 1, {prepared.rows * prepared.pitch})"
        layout = f"({prepared.rows}, {prepared.columns}, {prepared.batches}), stride={strides}"
        found += [
            f"to_{label} = cute.make_tensor(",
            f"    cute.recast_ptr({place}, dtype={shape.stored}), cute.make_layout({layout})",
            ")",
            f"prepare_{label}{part}({', '.join([*names, f'to_{label}'])}).launch(",
            f"    grid=({shape.ctas}, {prepared.batches}, 1),",
            f"    block=({shape.threads}, 1, 1),",
            *([f"    smem={shape.shared_bytes},"] if shape.shared_bytes else []),
            "    stream=stream,",
            ")",
            f"{label} = cute.recast_ptr({place}, dtype={shape.read})",
        ]
    made = [] if plan.prepare is None else [each.copied.operand for each in plan.prepare.operands]
    for each in plan.whole.multiplicands:
        if each.absent and (label := present(plan.whole, each)) in made:
            found.append(f"{each.label} = {label}")
    return found


def _along_k(source: CopySource, k: int) -> tuple[str, str]:
    """Return the shape and the strides of the mode of a source along K."""
    if per_byte(source.dtype) > 1:
        half, pitch = source.apart, source.k_pitch
        return f"({half}, 2, {-(-k // (2 * half))})", f"({pitch}, 0, {half * pitch})"
    if source.shared > 1:
        return f"({source.shared}, {-(-k // source.shared)})", f"(0, {source.k_pitch})"
    return str(k), str(source.k_pitch)


def _matrices(problem: GemmProblem, prepared: Prepared, at: int) -> tuple[str, str]:
    """Return the shape and the strides of the mode of a source's matrices. They are numbers, or tuples for several dimensions
    of a batch, innermost first. The number of a matrix counts through all dimensions."""
    if prepared.batches == 1 or problem.batch is None:
        return "1", "0"
    differs = varying(problem, prepared.copied)
    sizes = [level.size for level, varies in zip(problem.batch.levels, differs, strict=True) if varies]
    steps = [step for step, varies in zip(steps_of(problem, prepared.copied, at), differs, strict=True) if varies]
    if len(sizes) == 1:
        return str(sizes[0]), str(steps[0])
    return f"({', '.join(map(str, sizes))})", f"({', '.join(map(str, steps))})"


# The kernels -------------------------------------------------------------------------------------------------------------


def print_kernels(out: Writer, plan: GemmPlan, part: str) -> None:
    """Print a kernel for each operand in memory. Its parameters are the sources and the matrix."""
    for prepared in plan.prepare.operands if plan.prepare is not None else ():
        label = prepared.copied.operand
        out.lines(("", "", "@cute.kernel", f"def prepare_{label}{part}("))
        lines = [] if prepared.copied.lines is None else [lines_name(prepared.copied)]
        out.lines(f"    {name}: cute.Tensor," for name in (*source_names(prepared.copied), *lines, f"to_{label}"))
        with out.block(") -> None:"):
            out.lines((BEGIN, *body(shape_of(prepared, plan.whole))))


def body(shape: Shape) -> list[str]:
    """Return the body of a kernel."""
    if shape.prepared.totals:
        return _summing(shape)
    return _turning(shape) if shape.turned else _copying(shape)


def _begin(shape: Shape) -> list[str]:
    return [
        "thread, _, _ = cute.arch.thread_idx()",
        "cta, batch, _ = cute.arch.block_idx()",
        f"across = cta % {shape.across}",
        f"down = cta // {shape.across}",
    ]


def _copying(shape: Shape) -> list[str]:
    """Return the body of a kernel that goes along the columns of sources and matrix: loads of all rows, then stores."""
    prepared, label, vector = shape.prepared, shape.prepared.copied.operand, shape.vector
    inner = [*_registers(shape), f"for i in cutlass.range_constexpr({shape.rows}):"]
    inner.append(f"    row = cutlass.min(down * {shape.rows} + i, {prepared.rows - 1})")
    inner += [f"    {line}" for line in _picked(shape)]
    for source, name in zip(prepared.copied.sources, source_names(prepared.copied), strict=True):
        inner += [f"    {line}" for line in _loaded(shape, source, name)]
    inner += _computed(shape, f"down * {shape.rows} + e // {vector}", f"column + e % {vector}")
    inner.append(f"for i in cutlass.range_constexpr({shape.rows}):")
    inner.append(f"    row = down * {shape.rows} + i")
    store = [f"to_{label}[row, column, batch] = written[i]"]
    if vector > 1:
        whole = f"cute.make_layout({vector})"
        store = [
            f"chunk = (to_{label}.iterator + cute.crd2idx((row, column, batch), to_{label}.layout)).align({CHUNK_BYTES})",
            f"from_chunk = cute.make_tensor(written.iterator + i * {vector}, {whole})",
            f"cute.autovec_copy(from_chunk, cute.make_tensor(chunk, {whole}))",
        ]
    inner += [f"    if row < {prepared.rows}:", *(f"        {line}" for line in store)]
    return [
        *_begin(shape),
        f"column = (across * {shape.threads} + thread) * {vector}",
        f"if column < {prepared.columns}:",
        *(f"    {line}" for line in inner),
    ]


def _summing(shape: Shape) -> list[str]:
    """Return the body of a kernel that adds up computed elements along K: each thread a part, then one thread a line."""
    copied, label, lines = shape.prepared.copied, shape.prepared.copied.operand, shape.lines
    parts, k, last = THREADS // lines, shape.problem.k, shape.prepared.rows - 1
    along_k = copied.sources[0].k_pitch == 1
    line, part = (f"thread // {parts}", f"thread % {parts}") if along_k else (f"thread % {lines}", f"thread // {lines}")
    names = source_names(copied)
    computed = [f"    v{at} = {name}[row, column, 0].to(cutlass.Float32)" for at, name in enumerate(names)]
    computed += _instructions(copied, "row", "column")
    return [
        "thread, _, _ = cute.arch.thread_idx()",
        "cta, _, _ = cute.arch.block_idx()",
        f"line = {line}",
        f"part = {part}",
        f"row = cutlass.min(cta * {lines} + line, {last})",
        "memory = cutlass.memory.SmemAllocator()",
        f"partials = memory.allocate_tensor(cutlass.Float32, cute.make_layout(({lines}, {parts}), stride=({parts}, 1)), 16)",
        "total = cutlass.Float32(0.0)",
        f"for step in cutlass.range({-(-k // parts)}, unroll=8):",
        f"    column = cutlass.min(step * {parts} + part, {k - 1})",
        *computed,
        f"    inside = step * {parts} + part < {k}",
        f"    total += cutlass.Float32(cutlass.select_(inside, v{copied.last}, cutlass.Float32(0.0)))",
        "partials[line, part] = total",
        "cute.arch.sync_threads()",
        f"if thread < {lines} and cta * {lines} + thread <= {last}:",
        "    found = cutlass.Float32(0.0)",
        f"    for at in cutlass.range_constexpr({parts}):",
        "        found += partials[thread, at]",
        f"    to_{label}[cta * {lines} + thread, 0, 0] = found",
    ]


def _instructions(copied: Copied, line: str, k: str) -> list[str]:
    """Return the instructions of an element, given its line and its index along K."""
    found = []
    for number, made in enumerate(copied.instructions, start=len(copied.sources)):
        arguments = [literal(x) if isinstance(x, Constant) else f"v{x}" for x in made.arguments]
        index = {ROW_NUMBER: line, COLUMN_NUMBER: k}.get(made.op)
        value = EXPRESSIONS[made.op](*arguments) if index is None else f"cutlass.Float32({index})"
        found.append(f"    v{number} = {value}")
    return found


def _turning(shape: Shape) -> list[str]:
    """Return the body of a kernel that reads along the rows of the matrix and writes along its columns."""
    if shape.vector > 1:
        return _turning_vectors(shape)
    prepared, label, step = shape.prepared, shape.prepared.copied.operand, THREADS // WARP_THREADS
    loads = []
    for source, name in zip(prepared.copied.sources, source_names(prepared.copied), strict=True):
        loads.append(f"    {name}_loaded[i] = {name}[{_place(shape, source, 'column')}]")
    return [
        *_begin(shape),
        f"lane = thread % {WARP_THREADS}",
        f"part = thread // {WARP_THREADS}",
        "memory = cutlass.memory.SmemAllocator()",
        f"square = memory.allocate_tensor({shape.word}, cute.make_layout(({SQUARE}, {SQUARE}), stride=({SQUARE + 1}, 1)), 16)",
        *_registers(shape),
        f"for i in cutlass.range_constexpr({shape.rows}):",
        f"    row = cutlass.min(down * {SQUARE} + lane, {prepared.rows - 1})",
        f"    column = cutlass.min(across * {SQUARE} + part + i * {step}, {prepared.columns - 1})",
        *(f"    {line}" for line in _picked(shape)),
        *loads,
        *_computed(shape, f"down * {SQUARE} + lane", f"across * {SQUARE} + part + e * {step}"),
        f"for i in cutlass.range_constexpr({shape.rows}):",
        f"    square[part + i * {step}, lane] = written[i]",
        "cute.arch.sync_threads()",
        f"for i in cutlass.range_constexpr({shape.rows}):",
        f"    row = down * {SQUARE} + part + i * {step}",
        f"    column = across * {SQUARE} + lane",
        f"    if row < {prepared.rows} and column < {prepared.columns}:",
        f"        to_{label}[row, column, batch] = square[lane, part + i * {step}]",
    ]


def _turning_vectors(shape: Shape) -> list[str]:
    """Return the same of a kernel whose threads read and write vectors, each of the elements of several lines of a square."""
    prepared, label, vector, side = shape.prepared, shape.prepared.copied.operand, shape.vector, shape.side
    (name,), across = source_names(prepared.copied), side // shape.vector
    step, whole = THREADS // across, f"cute.make_layout({vector})"
    pitch = shape.padded
    each = f"for i in cutlass.range_constexpr({shape.rows}):"
    elements = f"    for j in cutlass.range_constexpr({vector}):"
    return [
        *_begin(shape),
        f"chunk_of = thread % {across}",
        f"part = thread // {across}",
        "memory = cutlass.memory.SmemAllocator()",
        f"square = memory.allocate_tensor({shape.word}, cute.make_layout(({side}, {side}), stride=({pitch}, 1)), 16)",
        *_registers(shape),
        each,
        f"    row = cutlass.min(down * {side} + chunk_of * {vector}, {prepared.rows - vector})",
        f"    column = cutlass.min(across * {side} + part + i * {step}, {prepared.columns - 1})",
        f"    vector = ({name}.iterator + cute.crd2idx((row, column, batch), {name}.layout)).align({CHUNK_BYTES})",
        f"    to_vector = cute.make_tensor({name}_loaded.iterator + i * {vector}, {whole})",
        f"    cute.autovec_copy(cute.make_tensor(vector, {whole}), to_vector)",
        each,
        elements,
        f"        square[part + i * {step}, chunk_of * {vector} + j] = {name}_loaded[i * {vector} + j]",
        "cute.arch.sync_threads()",
        f"moved = cute.make_rmem_tensor({shape.rows * vector}, {shape.word})",
        each,
        elements,
        f"        moved[i * {vector} + j] = square[chunk_of * {vector} + j, part + i * {step}]",
        each,
        f"    row = down * {side} + part + i * {step}",
        f"    column = across * {side} + chunk_of * {vector}",
        f"    if row < {prepared.rows} and column < {prepared.columns}:",
        f"        chunk = (to_{label}.iterator + cute.crd2idx((row, column, batch), to_{label}.layout)).align({CHUNK_BYTES})",
        f"        from_chunk = cute.make_tensor(moved.iterator + i * {vector}, {whole})",
        f"        cute.autovec_copy(from_chunk, cute.make_tensor(chunk, {whole}))",
    ]


def _picked(shape: Shape) -> list[str]:
    """Return the definition of what ``row`` picks: a line, or an index along K where that is the row."""
    sources, along_k = shape.prepared.copied.sources, shape.prepared.major == "k"
    picked = next((of for source in sources if (of := source.picked if along_k else source.k_picked)), 0)
    return [f"picked = {_number(shape, 'row', picked)}"] if picked else []


def _number(shape: Shape, at: str, picked: int) -> str:
    """Return the number that the vector has: in the tensor for any number, as of rows that no group has."""
    number = f"cutlass.max({lines_name(shape.prepared.copied)}[{at}].to(cutlass.Int32), 0)"
    return f"cutlass.min({number}, {picked - 1})"


def _place(shape: Shape, source: CopySource, column: str) -> str:
    """Return the coordinate in a source of an element of ``row`` at a ``column`` of the matrix."""
    along_k = shape.prepared.major == "k"
    row = "picked" if (source.picked if along_k else source.k_picked) else "row"
    if across := _across(shape.prepared, source):
        column = _number(shape, column, across)
    return f"{row}, {column}, batch" if along_k else f"{column}, {row}, batch"


def _across(prepared: Prepared, source: CopySource) -> int:
    """Return the elements of a source, of which numbers pick the columns of the matrix; 0 where none do."""
    return source.k_picked if prepared.major == "k" else source.picked


def _registers(shape: Shape) -> list[str]:
    size, found = shape.rows * shape.vector, list[str]()
    for source, name in zip(shape.prepared.copied.sources, source_names(shape.prepared.copied), strict=True):
        if shape.shifts(source):
            found += [
                f"{name}_words = cute.make_rmem_tensor({size * itemsize(source.dtype) // 4}, cutlass.Uint32)",
                f"{name}_loaded = cute.recast_tensor({name}_words, {shape.dtype(source)})",
                "words = cute.make_rmem_tensor(8, cutlass.Uint32)",
            ]
        else:
            found.append(f"{name}_loaded = cute.make_rmem_tensor({size}, {shape.dtype(source)})")
    return found


def _loaded(shape: Shape, source: CopySource, name: str) -> list[str]:
    """Return the loads of the columns of ``row``."""
    place = functools.partial(_place, shape, source)
    if shape.shifts(source):
        return _shifted(shape, name, place("column"), place(str(shape.prepared.columns - 1)))
    if shape.vector == 1:
        return [f"{name}_loaded[i] = {name}[{place('column')}]"]
    if not shape.vectors(source):
        return [
            f"for j in cutlass.range_constexpr({shape.vector}):",
            f"    {name}_loaded[i * {shape.vector} + j] = {name}[{place('column + j')}]",
        ]
    whole, bytes_ = f"cute.make_layout({shape.vector})", min(CHUNK_BYTES, shape.vector * itemsize(source.dtype))
    return [
        f"vector = ({name}.iterator + cute.crd2idx(({place('column')}), {name}.layout)).align({bytes_})",
        f"to_vector = cute.make_tensor({name}_loaded.iterator + i * {shape.vector}, {whole})",
        f"cute.autovec_copy(cute.make_tensor(vector, {whole}), to_vector)",
    ]


def _shifted(shape: Shape, name: str, first: str, last: str) -> list[str]:
    """Return the loads of the 16 bytes from an element on: of both granules of 16 bytes that have some of them, from which they
    are shifted. The second one ends with the row at the latest."""

    def address(place: str) -> str:
        return f"({name}.iterator + cute.crd2idx(({place}), {name}.layout)).toint()"

    def granule(at: str) -> str:
        pointer = f"cute.make_ptr(cutlass.Uint32, {at}, cute.AddressSpace.gmem, assumed_align={CHUNK_BYTES})"
        return f"cute.make_tensor({pointer}, cute.make_layout(4))"

    to = "cute.make_tensor(words.iterator{}, cute.make_layout(4))"
    return [
        f"begin = {address(first)}",
        f"end = {address(last)} & cutlass.Int64(-{CHUNK_BYTES})",
        f"granule = begin & cutlass.Int64(-{CHUNK_BYTES})",
        f"cute.autovec_copy({granule('granule')}, {to.format('')})",
        f"cute.autovec_copy({granule(f'cutlass.min(granule + {CHUNK_BYTES}, end)')}, {to.format(' + 4')})",
        f"over = (begin & cutlass.Int64({CHUNK_BYTES - 1})).to(cutlass.Int32)",
        "for j in cutlass.range_constexpr(6):",
        "    words[j] = cutlass.Uint32(cutlass.select_((over & 8) != 0, words[j + 2], words[j]))",
        "for j in cutlass.range_constexpr(5):",
        "    words[j] = cutlass.Uint32(cutlass.select_((over & 4) != 0, words[j + 1], words[j]))",
        "for j in cutlass.range_constexpr(4):",
        f"    {name}_words[i * 4 + j] = cute.arch.inline_ptx(",
        '        "shf.r.wrap.b32 {$w0}, {$r0}, {$r1}, {$r2};",',
        "        write_only_types=[cutlass.Uint32],",
        "        read_only_args=[words[j], words[j + 1], ((over & 3) * 8).to(cutlass.Uint32)],",
        "    )",
    ]


def _computed(shape: Shape, row: str, column: str) -> list[str]:
    """Return the elements ``written``, given the row and the column of element ``e``."""
    copied, size = shape.prepared.copied, shape.rows * shape.vector
    names = source_names(copied)
    if shape.moves:
        return [f"written = {names[0]}_loaded"]
    line, k = (row, column) if shape.prepared.major == "k" else (column, row)
    found: list[str] = []
    packed = [per_byte(source.dtype) > 1 for source in copied.sources]
    for name in itertools.compress(names, map(operator.not_, packed)):
        found.append(f"{name}_wide = cute.make_rmem_tensor({size}, cutlass.Float32)")
        found.append(f"{name}_wide.store({name}_loaded.load().to(cutlass.Float32))")
    found.append(f"computed = cute.make_rmem_tensor({size}, cutlass.Float32)")
    found.append(f"for e in cutlass.range_constexpr({size}):")
    for at, (name, source) in enumerate(zip(names, copied.sources, strict=True)):
        found += _nibble(source, at, f"{name}_loaded[e]", k) if packed[at] else [f"    v{at} = {name}_wide[e]"]
    found += _instructions(copied, line, k)
    stored = f"cutlass.{DTYPES[shape.problem.operand_dtype].dsl}"
    return [
        *found,
        f"    computed[e] = v{copied.last}",
        f"rounded = cute.make_rmem_tensor({size}, {stored})",
        f"rounded.store(computed.load().to({stored}))",
        f"written = cute.recast_tensor(rounded, {shape.word})",
    ]


def _nibble(source: CopySource, at: int, byte: str, k: str) -> list[str]:
    """Return the definition of value number ``at``: the 4-bit number of a byte at index ``k``."""
    half = f"({k})" if source.apart == 1 else f"({k}) // {source.apart}"
    high = f"(1 - {half} % 2)" if source.high_first else f"{half} % 2"
    bits = f"    bits{at} = ({byte}.to(cutlass.Int32) >> ({high} * 4)) & 15"
    if source.dtype == "float4_e2m1fn_x2":
        # twice the absolute numbers, in four bits each
        return [
            bits,
            f"    twice{at} = (cutlass.Uint32(0xC8643210) >> ((bits{at} & 7) * 4).to(cutlass.Uint32)) & cutlass.Uint32(15)",
            f"    v{at} = twice{at}.to(cutlass.Float32) * (0.5 - (bits{at} >> 3).to(cutlass.Float32))",
        ]
    number = f"(bits{at} ^ 8) - 8" if source.dtype == "int4" else f"bits{at}"
    return [bits, f"    v{at} = ({number}).to(cutlass.Float32)"]
