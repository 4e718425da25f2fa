"""Sizes and strides of a GEMM: those known only at launch, and checks of strides and of parts of a problem.

Numbers known only at launch are ``size_m``, ``size_n``, ``size_k``, ``batches`` and ``longest``, and ``pitch_`` and ``batch_stride_`` with the label of an
operand or output: parameters of the kernel have these names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...._shapes import is_power_of_2
from ...._support.records import replace
from .copied import check_lines
from .dtypes import ADDED_DTYPES, COLUMN_OUTPUT_DTYPES, FLOAT_DTYPES, OUTPUT_DTYPES, itemsize, per_byte
from .epilogue import ROW_NUMBER, EpilogueOperand, EpilogueOutput
from .finish import ROWS
from .records import SWIZZLE_BYTES, TMA_ALIGNMENT_BYTES, WGMMA_ROWS, Batch, Choice, GemmPlan, GemmProblem, Groups
from .refusal import Refusal
from .scales import (
    ATOM_BLOCKS,
    ATOM_LINES,
    LONGEST,
    MICRO_FORMATS,
    SCALE_DTYPES,
    BlockScales,
    Ends,
    factors_of,
    micro_block,
)

MAX_EXTENT = 2**31 - 1
"""Tile coordinates are 32-bit."""
MAX_PROMOTE_K_TILES = 8
MAX_TURN_K_TILES = 2
"""K tiles of an accumulator that takes turns with another one."""
MAX_TERMS = 12
"""Matmuls of a sum: each has TMA descriptors of its own among the parameters of the kernel."""
MAX_BATCH_DIMENSIONS = 3
"""Dimensions of TMA after rows and columns."""
SIZES = ("size_m", "size_n", "size_k", "batches", LONGEST)
MAX_INT8_K = 2**17 - 1
"""Products of two int8 numbers, up to 2**14 each, whose sum int32 holds."""


def is_size(name: str) -> bool:
    """Return whether a number is a count in 32 bits; the others are strides."""
    return name in SIZES


def multiple_of(problem: GemmProblem, name: str) -> int:
    """Return the required divisor of a stride in elements: 16 bytes for TMA, or 1 where TMA does not use it."""
    dtypes = {"a": problem.operand_dtype, "b": problem.operand_dtype}
    dtypes |= {problem.label_of(output): output.dtype for output in problem.outputs_of("exact")}
    moved = ("exact", "product")
    dtypes |= {operand.label: operand.dtype for operand in problem.epilogue.operands if operand.kind in moved}
    dtype = dtypes.get(name.partition("_")[2])
    return 1 if dtype is None or is_size(name) else TMA_ALIGNMENT_BYTES // itemsize(dtype)


def shown(problem: GemmProblem, name: str) -> str:
    """Return the name of a stride's tensor in messages."""
    label = name.partition("_")[2]
    others = {problem.label_of(output): output.name for output in problem.outputs}
    others |= {operand.label: operand.name for operand in problem.epilogue.operands}
    return dict(zip("abd", problem.names, strict=True)).get(label) or others[label]


def filled(problem: GemmProblem, numbers: Mapping[str, int]) -> GemmProblem:
    """Return `problem` of one launch, with these numbers by name."""

    def known(name: str, example: int) -> int:
        return numbers[name] if name in problem.runtime else example

    epilogue, batch = problem.epilogue, problem.batch
    operands = tuple(replace(each, pitch=known(f"pitch_{each.label}", each.pitch)) for each in epilogue.operands)
    outputs = tuple(
        replace(each, pitch=known(f"pitch_{problem.label_of(each)}", each.pitch)) for each in epilogue.outputs
    )
    strides = (
        known(f"batch_stride_{operand.label}", pitch)
        for operand, pitch in zip(epilogue.operands, batch.operands if batch else (), strict=False)
    )
    written = (
        known(f"batch_stride_{problem.label_of(output)}", pitch)
        for output, pitch in zip(problem.outputs, batch.outputs if batch else (), strict=False)
    )
    d, *more = written if batch else (0,)
    return replace(
        problem,
        m=known("size_m", problem.m),
        n=known("size_n", problem.n),
        k=known("size_k", problem.k),
        a_pitch=known("pitch_a", problem.a_pitch),
        b_pitch=known("pitch_b", problem.b_pitch),
        d_pitch=outputs[0].pitch if outputs else known("pitch_d", problem.d_pitch),
        epilogue=replace(epilogue, operands=operands, outputs=outputs),
        batch=None
        if batch is None
        else Batch(
            size=known("batches", batch.size),
            a=known("batch_stride_a", batch.a),
            b=known("batch_stride_b", batch.b),
            d=d,
            operands=tuple(strides),
            more=tuple(more),
            outer=batch.outer,
        ),
        groups=_filled_groups(problem, known),
        ends=_filled_ends(problem, known),
        runtime=(),
    )


def _filled_groups(problem: GemmProblem, known: Callable[[str, int], int]) -> Groups | None:
    """Return the groups of rows of a launch."""
    groups = problem.groups
    if groups is None:
        return None
    longest = None if groups.longest is None else known(LONGEST, groups.longest)
    return replace(groups, size=known("batches", groups.size), longest=longest)


def _filled_ends(problem: GemmProblem, known: Callable[[str, int], int]) -> Ends | None:
    """Return the ends of K, with the number of groups of a launch."""
    ends = problem.ends
    if ends is None or ends.groups is None:
        return ends
    return replace(ends, groups=replace(ends.groups, size=known("batches", ends.groups.size)))


# Checks of strides ------------------------------------------------------------------------------------------------------


def check_batch(problem: GemmProblem) -> None:
    """Check that matrices of a batch are at multiples of 16 bytes, as TMA needs, and that outputs do not overlap: groups
    of rows do not."""
    for level in problem.batch.levels if problem.batch is not None else ():
        _check_level(problem, level)
    if problem.batch is None or problem.batch.outer is None:
        return
    if problem.scales is not None or problem.groups is not None:
        raise Refusal("scales of blocks of K and groups of rows are implemented with a batch of one dimension")
    if any(is_of_batch(name) for name in problem.runtime):
        raise Refusal("a batch of several dimensions has sizes and strides that are known when the kernel is compiled")
    for name in (*"ab", *map(problem.label_of, problem.outputs), *(each.label for each in problem.epilogue.operands)):
        if sum(map(bool, problem.batch_pitches(name))) > MAX_BATCH_DIMENSIONS:
            raise Refusal(
                f"a batch of {len(problem.batch.levels)} dimensions; TMA has {MAX_BATCH_DIMENSIONS} besides rows and columns"
            )
    for output in problem.outputs:
        _check_disjoint(problem, output)


def is_of_batch(name: str) -> bool:
    """Return whether a number of a launch is of the batch."""
    return name == "batches" or name.startswith("batch_stride_")


def _check_level(problem: GemmProblem, batch: Batch) -> None:
    """Check one dimension of the batch."""
    if not 2 <= batch.size <= MAX_EXTENT or len(batch.operands) != len(problem.epilogue.operands):
        raise Refusal(f"a batch of {batch.size} matmuls with {len(batch.operands)} operands of the epilogue")
    if len(batch.outputs) != len(problem.outputs) or problem.outputs_of("tile"):
        raise Refusal(f"a batch of matmuls with {len(problem.outputs)} outputs and strides of {len(batch.outputs)}")
    moved = [
        (name, problem.operand_dtype, pitch)
        for operand, name, pitch in zip("ab", problem.names, (batch.a, batch.b), strict=False)
        if problem.copy_of(operand) is None
    ]
    moved += zip(problem.term_labels, (problem.operand_dtype,) * len(problem.term_labels), batch.terms, strict=True)
    for output, pitch in zip(problem.outputs, batch.outputs, strict=True):
        apart = output.kind != "column" or not output.adds
        if problem.groups is None and problem.batch == batch and batch.outer is None and apart:
            _check_disjoint(problem, output)
        moved += [(shown_output(problem, output), output.dtype, pitch)] if output.kind == "exact" else []
    for operand, pitch in zip(problem.epilogue.operands, batch.operands, strict=True):
        if operand.kind in ("exact", "product") and problem.copy_of(operand.label) is None:
            moved.append((operand.name, operand.dtype, pitch))
        elif pitch < 0:
            raise Refusal(f"{operand.name} has a stride of {pitch} elements from one matmul of the batch to the next")
    for name, dtype, pitch in moved:
        if pitch < 0 or pitch * itemsize(dtype) % TMA_ALIGNMENT_BYTES:
            raise Refusal(
                f"{name} has a stride of {pitch} elements, {pitch * itemsize(dtype)} bytes, from one matmul of the batch to the next; TMA"
                f" needs a multiple of {TMA_ALIGNMENT_BYTES} bytes"
            )


def _check_disjoint(problem: GemmProblem, output: EpilogueOutput) -> None:
    """Check that no two elements of an output of a batch are at the same place."""
    assert problem.batch is not None
    sizes = [level.size for level in problem.batch.levels]
    matrix = output in problem.matrices
    steps = [*zip(problem.batch_pitches(problem.label_of(output)), sizes, strict=True), (output.pitch, problem.m)]
    steps += [(output.column_pitch, output.pairs or problem.n)] if matrix else []
    label = problem.label_of(output)
    if {f"batch_stride_{label}", f"pitch_{label}", *SIZES} & {*problem.runtime}:
        return  # each launch checks its own numbers
    last = 0
    for step, size in sorted(each for each in steps if each[1] > 1):
        if step <= last:
            name = shown_output(problem, output)
            raise Refusal(f"{name} has a stride of {step} elements, so matmuls of the batch overlap")
        last += step * (size - 1)


def _columns_of(problem: GemmProblem, output: EpilogueOutput) -> int:
    """Return the elements from the first one of a row of an output to its last, inclusive."""
    return 1 + ((output.pairs or problem.n) - 1) * output.column_pitch if output in problem.matrices else 1


def check_strided(
    problem: GemmProblem, name: str, matrix: EpilogueOperand | EpilogueOutput, *, stored: int = 0
) -> None:
    """Check the strides of a matrix that threads access: offsets have 32 bits, and outputs, of ``stored`` lines, no
    element twice."""
    repeated = matrix.repeated if isinstance(matrix, EpilogueOperand) else 0
    height, width = stored or problem.m, matrix.pairs or repeated or problem.n
    pitch, column_pitch = matrix.pitch, matrix.column_pitch
    span = (height - 1) * pitch + (width - 1) * column_pitch
    if min(pitch, column_pitch) < 0 or span > MAX_EXTENT:
        raise Refusal(
            f"{name} with strides of {pitch} and {column_pitch} spans {span} elements; 0 to {MAX_EXTENT} are implemented"
        )
    rows, columns = (height - 1) * pitch, (width - 1) * column_pitch
    if stored and not ((pitch > columns or height == 1) or (column_pitch > rows or width == 1)):
        raise Refusal(f"{name} with strides of {pitch} and {column_pitch} elements may store two results at one place")


def shown_output(problem: GemmProblem, output: EpilogueOutput) -> str:
    """Return the name of an output in messages."""
    return problem.names[2] if output == problem.outputs[0] else output.name


def check_pitch(problem: GemmProblem, name: str, dtype: str, pitch: int, side: str | int) -> None:
    """Check a pitch along `side`, or between lines of so many elements: TMA needs a multiple of 16 bytes."""
    line = getattr(problem, side) if isinstance(side, str) else side
    if pitch < line and (pitch == 0 or f"size_{side}" not in problem.runtime):
        raise Refusal(f"{name} has a stride of {pitch} elements between lines of {line}: they overlap")
    if pitch * itemsize(dtype) % TMA_ALIGNMENT_BYTES:
        raise Refusal(
            f"{name} has a stride of {pitch} elements, {pitch * itemsize(dtype)} bytes; TMA needs a multiple of"
            f" {TMA_ALIGNMENT_BYTES} bytes"
        )


def check_row_ends(problem: GemmProblem, output: EpilogueOutput) -> None:
    """Check that rows of an output are a multiple of 16 bytes long: TMA stores their last 16 bytes whole.

    Rows of the workspace are padded.
    """
    elements = problem.m if output.turned else problem.n
    row = elements * itemsize(output.dtype)
    if row % TMA_ALIGNMENT_BYTES and output.name != ROWS:
        raise Refusal(
            f"{shown_output(problem, output)} has rows of {elements} elements, {row} bytes; TMA stores a multiple of"
            f" {TMA_ALIGNMENT_BYTES} bytes"
        )


# Checks of parts of a problem -------------------------------------------------------------------------------------------


def check_numbers(problem: GemmProblem) -> None:
    """Check limits of the types of operands."""
    if problem.operand_dtype == "int8" and problem.k > MAX_INT8_K:
        raise Refusal(f"K = {problem.k} of int8 operands; sums of up to {MAX_INT8_K} products fit in int32")
    if per_byte(problem.operand_dtype) > 1 and (problem.scales is None or not problem.scales.micro):
        raise Refusal(f"matmuls of {problem.operand_dtype} are implemented by hl.dot_scaled")


def check_micro_scales(problem: GemmProblem, scales: BlockScales) -> None:
    """Check scales that the matrix unit multiplies by."""
    if problem.operand_dtype not in MICRO_FORMATS.values():
        raise Refusal(f"microscaling formats of {problem.operand_dtype}; {', '.join(MICRO_FORMATS)} are implemented")
    if problem.batch or problem.terms or problem.copied or problem.runtime or problem.epilogue.of_kind("product"):
        raise Refusal(
            "microscaling formats are implemented for one matmul that TMA loads, of sizes that are known when the kernel is"
            " compiled"
        )
    if [factor.side for factor in scales.factors] != ["row", "column"]:
        raise Refusal("microscaling formats are implemented with scales of rows and of columns")
    packed = per_byte(problem.operand_dtype)
    if problem.k % SWIZZLE_BYTES:
        raise Refusal(
            f"K = {problem.k * packed} in a microscaling format of {problem.operand_dtype}; multiples of"
            f" {SWIZZLE_BYTES * packed} are implemented"
        )
    for factor in scales.factors:
        known = factor.dtype in SCALE_DTYPES and scales.k == micro_block(problem.operand_dtype, factor.dtype)
        if not known or factor.k_pitch != 1 or factor.pitch < 1 or factor.pitch % ATOM_BLOCKS:
            raise Refusal(
                f"{factor.name} is of {factor.dtype} with strides of {factor.pitch} and {factor.k_pitch}; scales of both sides in"
                f" uint8, or float8_e4m3fn, are implemented, contiguous along K, in rows that are multiples of {ATOM_BLOCKS} apart"
            )


def check_scales(problem: GemmProblem, scales: BlockScales) -> None:
    if scales.micro:
        check_micro_scales(problem, scales)
        return
    if problem.epilogue.of_kind("product") or (problem.batch is not None and problem.batch.outer is not None):
        raise Refusal("scales of blocks of K are implemented for one matmul, or a batch of one dimension")
    if problem.copied and problem.batch is not None:
        raise Refusal("scales of blocks of K are implemented for matmuls of a batch that TMA loads")
    if problem.runtime and not (problem.copied and all(factor.side == "row" for factor in scales.factors)):
        raise Refusal(
            "scales of blocks of K are implemented where sizes and strides are known when the kernel is compiled"
        )
    sides = [factor.side for factor in scales.factors]
    if not sides or len(set(sides)) != len(sides):
        raise Refusal(f"scales of blocks of K per {', '.join(sides)}; one per row and one per column are implemented")
    line = SWIZZLE_BYTES // itemsize(problem.operand_dtype)
    if scales.k % line or scales.k > MAX_PROMOTE_K_TILES * line:
        raise Refusal(
            f"scales of blocks of {scales.k} along K; multiples of {line} up to {MAX_PROMOTE_K_TILES * line} are"
            f" implemented for {problem.operand_dtype}"
        )
    for factor in scales.factors:
        if factor.dtype not in FLOAT_DTYPES:
            raise Refusal(f"{factor.name} is of {factor.dtype}; scales of {', '.join(FLOAT_DTYPES)} are implemented")
        if factor.lines < 1 or factor.pitch < 0 or factor.k_pitch < 0:
            raise Refusal(
                f"{factor.name} has strides of {factor.pitch} and {factor.k_pitch}; none below 0 is implemented"
            )


def check_groups(problem: GemmProblem, groups: Groups) -> None:
    if groups.size < 1 or groups.pitch < 1 or groups.dtype not in ("int32", "int64"):
        raise Refusal(
            f"{groups.name} of {groups.dtype} with a stride of {groups.pitch} for {groups.size} groups of rows"
        )
    if groups.span is not None and (groups.span < 1 or {*SIZES, "batches"} & {*problem.runtime}):
        raise Refusal(
            f"rows that {groups.name} counts are implemented for sizes that are known when the kernel is compiled"
        )
    if groups.rows is not None and {*SIZES} & {*problem.runtime}:
        raise Refusal(
            f"blocks of rows by {groups.name} are implemented for sizes that are known when the kernel is compiled; use"
            " hl.specialize"
        )
    if any(each.by_threads for each in problem.epilogue.operands):
        raise Refusal(f"groups of rows by {groups.name} are implemented where TMA loads what the epilogue reads")
    shared = [each.name for each in factors_of(problem.scales) if each.side == "row" and (each.lines > 1 or each.batch)]
    if shared or (problem.scales is not None and (problem.scales.micro or groups.rows is not None)):
        raise Refusal(
            f"groups of rows by {groups.name} are implemented with a scale along K for each row, and those of the columns of"
            " each group"
        )
    residuals = [each.label for each in problem.epilogue.of_kind("exact") if any(problem.batch_pitches(each.label))]
    if any(problem.batch_pitches("a")) or residuals:
        raise Refusal(f"groups of rows by {groups.name} are implemented where all groups are rows of one matrix")
    if problem.numbers or problem.epilogue.numbers(ROW_NUMBER):
        raise Refusal(f"groups of rows by {groups.name} are implemented without numbers and indices of rows")


def check_blocks(plan: GemmPlan) -> None:
    """Check that the rows of a cluster are of one block, where blocks have the numbers of their groups."""
    groups, (rows, _, _) = plan.problem.groups, plan.tile
    if groups is not None and groups.rows is not None and (groups.rows % rows or plan.cluster[0] > 1):
        raise Refusal(
            f"a tile of {rows} rows in a cluster of {plan.cluster} CTAs, with groups of blocks of {groups.rows} rows by"
            f" {groups.name}; tiles that divide a block are implemented, with one CTA along M"
        )


def check_integers(problem: GemmProblem, operand: EpilogueOperand) -> None:
    """Check integers that are added to an accumulator in int32."""
    check_strided(problem, operand.name, operand)
    if problem.operand_dtype != "int8" or operand.dtype != "int32":
        raise Refusal(
            f"{operand.name} of {operand.dtype} is added to an accumulator of {problem.operand_dtype} operands"
        )
    several = any(len(each.tensors) > 1 for each in problem.copied)
    by_rows = problem.epilogue.reduces_rows or problem.numbers
    if problem.scales or problem.batch or problem.runtime or by_rows or several:
        raise Refusal(
            f"{operand.name} is added to an accumulator in int32, which is implemented without batches, scales and numbers"
            " per row, for sizes that are known when the kernel is compiled"
        )


def check_random(problem: GemmProblem, operand: EpilogueOperand) -> None:
    """Check random numbers of the epilogue."""
    if operand.dtype not in ("int32", "int64") or min(operand.pitch, operand.column_pitch) < 0:
        raise Refusal(
            f"random numbers at offsets of {operand.dtype} in steps of {operand.pitch} and {operand.column_pitch}; steps of 0"
            " and more in int32 and int64 are implemented"
        )
    if problem.batch is not None or problem.runtime:
        raise Refusal(
            "random numbers in an epilogue are implemented without a batch, for sizes that are known when the kernel is"
            " compiled; use hl.specialize"
        )


def check_pairs(problem: GemmProblem) -> None:
    """Check an epilogue over the pairs of neighboring columns, both of which a thread has."""
    if problem.n % 2 or problem.epilogue.reduces_rows or problem.numbers or "size_n" in problem.runtime:
        raise Refusal(
            "pairs of columns in an epilogue are implemented for an even number of columns that is known when the kernel is"
            " compiled, without row reductions and numbers of rows"
        )


def check_outputs(problem: GemmProblem) -> None:
    """Check each output separately, and that the first one is D of the problem."""
    if problem.epilogue.in_pairs:
        check_pairs(problem)
    first = problem.outputs[0]
    if (first.dtype, first.pitch) != (problem.output_dtype, problem.d_pitch):
        raise Refusal(f"the first output is of {first.dtype} and pitch {first.pitch}, D of another")
    for output in problem.outputs:
        known = {"column": COLUMN_OUTPUT_DTYPES, "tile": ("float32",)}.get(output.kind, OUTPUT_DTYPES)
        if output.dtype not in known:
            raise Refusal(f"outputs of {output.dtype} are not implemented; {', '.join(known)} are")
        if output.adds and (output.dtype not in ADDED_DTYPES or not _is_added(problem, output)):
            raise Refusal(
                f"{shown_output(problem, output)} is added to, which is implemented for matrices of"
                f" {', '.join(ADDED_DTYPES)}, without row reductions, for numbers of rows without groups, and for picked lines of"
                " groups of rows"
            )
        if output.lines is not None and (output.kind != "strided" or output.picked < 1 or problem.scales is not None):
            raise Refusal(f"{shown_output(problem, output)} is stored to picked lines, without scales of blocks of K")
        check_lines(output.lines)
        if output.kind == "strided":
            rows = output.picked or problem.m
            check_strided(problem, shown_output(problem, output), output, stored=rows)
        elif output.divided:
            _check_divided(problem, output)
        elif output.turned:
            _check_turned(problem, output)
        elif output.kind == "exact":
            check_pitch(problem, shown_output(problem, output), output.dtype, output.pitch, "n")
            if "size_n" not in problem.runtime:  # each launch checks its own
                check_row_ends(problem, output)
        elif output.pitch < 1:
            raise Refusal(f"output {output.name} has a stride of {output.pitch}; 1 and more are implemented")


LEAST_PART_BYTES = 64
"""Bytes of a part of columns: the copy engine has stored no shorter ones."""


def _check_divided(problem: GemmProblem, output: EpilogueOutput) -> None:
    """Check an output whose rows or columns are in parts, which TMA stores together."""
    name = shown_output(problem, output)
    others = problem.batch or problem.groups or problem.runtime or problem.epilogue.reduces_rows or output.turned
    if others or output.kind != "exact" or output.adds:
        raise Refusal(
            f"{name} has dimensions in parts, which are implemented for matrices that TMA stores, without batches, groups and"
            " row reductions, of sizes that are known when the kernel is compiled"
        )
    rows, columns = output.rows, output.columns
    if rows is not None and (not is_power_of_2(rows.size) or rows.size > WGMMA_ROWS):
        raise Refusal(f"{name} has rows in parts of {rows.size}; powers of two up to {WGMMA_ROWS} are implemented")
    if columns is not None and (
        not is_power_of_2(columns.size) or columns.size * itemsize(output.dtype) < LEAST_PART_BYTES
    ):
        raise Refusal(
            f"{name} has columns in parts of {columns.size}; powers of two of {LEAST_PART_BYTES} bytes and more are implemented"
        )
    for each in (output.pitch, *(parts.step for parts in (rows, columns) if parts is not None)):
        check_pitch(problem, name, output.dtype, each, 1)


def _check_turned(problem: GemmProblem, output: EpilogueOutput) -> None:
    """Check an output that TMA stores in tiles that are contiguous along M."""
    name = shown_output(problem, output)
    upright = [each for each in problem.epilogue.of_kind("exact") if not each.turned]
    others = upright or problem.epilogue.reduces_rows or len(problem.matrices) > 1
    size = {itemsize(output.dtype), itemsize(problem.operand_dtype)}
    if others or problem.batch or problem.groups or problem.runtime or output.adds or size not in ({2}, {4}):
        raise Refusal(
            f"{name} is contiguous along M, which is implemented for one matrix of 16 or 32 bits, as operands have, without batches and row"
            " reductions, with matrices of the epilogue that are as well, of sizes that are known when the kernel is compiled"
        )
    check_pitch(problem, name, output.dtype, output.column_pitch, "m")
    check_row_ends(problem, output)


def _is_added(problem: GemmProblem, output: EpilogueOutput) -> bool:
    """Return whether an addition to an output is implemented: by TMA, or by threads, which know the ends of groups. Rows that
    a second kernel finishes have none."""
    if output.kind == "column":
        return problem.groups is None
    matrix = output.kind == "strided" or (output.kind == "exact" and problem.groups is None)
    return matrix and not problem.epilogue.reduces_rows


def check_terms(problem: GemmProblem) -> None:
    """Check the further terms of a sum of matmuls."""
    if len(problem.terms) >= MAX_TERMS:
        raise Refusal(f"a sum of {1 + len(problem.terms)} matmuls; up to {MAX_TERMS} are implemented")
    if problem.terms and (problem.groups or problem.scales or problem.runtime or (problem.batch and problem.copied)):
        raise Refusal(
            "sums of several matmuls are implemented without groups and scales, in batches where TMA loads all operands, of"
            " sizes that are known when the kernel is compiled; use hl.specialize"
        )
    given = {each.base for each in problem.multiplicands if not each.absent and each.base != "a"}
    wrong = [
        each.label
        for each in problem.multiplicands
        if each.absent and (each.base == "a" or problem.copy_of(each.label))
    ]
    if wrong or given != {"b", *(each.label for each in problem.epilogue.of_kind("product"))}:
        raise Refusal(f"a sum of matmuls without {', '.join(wrong) or 'a term'} is not implemented")
    if problem.terms and any(output.lines is not None for output in problem.outputs):
        raise Refusal("sums of several matmuls are stored to lines in order")
    if problem.terms and problem.operand_dtype == "int8":
        raise Refusal("sums of several matmuls are implemented for floating-point operands")
    for number, term in enumerate(problem.terms, start=1):
        if not 0 < term.k <= MAX_EXTENT:
            raise Refusal(f"K = {term.k} of a term; 1 to {MAX_EXTENT} are implemented")
        own = [each for each in problem.multiplicands if each.term == number]
        for name, each in zip(term.names or problem.names, own, strict=False):
            if problem.loads(each.label):
                major, lines = (problem.a_major, problem.m) if each.base == "a" else (problem.b_major, problem.n)
                check_pitch(problem, name, problem.operand_dtype, each.pitch, term.k if major == "k" else lines)


def check_micro(plan: GemmPlan) -> None:
    """Check the tiles of a matmul whose scales the matrix unit takes."""
    if plan.unit != "tcgen05":
        raise Refusal("microscaling formats are implemented for tcgen05")
    if plan.tile[0] != ATOM_LINES or plan.ctas > 1 or plan.tile[2] * plan.operand_bytes != SWIZZLE_BYTES:
        raise Refusal(
            f"tiles of {plan.tile} in clusters of {plan.cluster} in a microscaling format; {ATOM_LINES} rows by K tiles of"
            f" {SWIZZLE_BYTES} bytes are implemented, without clusters"
        )


def accumulators_in_turn(plan: GemmPlan, stages: int) -> int:
    """Return the accumulators of wgmma that take turns, one of which is promoted while the unit adds to the other."""
    if stages == 1:
        return 1
    most = 1 if plan.problem.scales is not None else MAX_TURN_K_TILES
    plain = (
        not plan.converts and plan.teams == plan.parts == 1 and plan.ctas_per_sm == 1 and plan.promote_k_tiles <= most
    )
    if stages != 2 or not plan.promote or not plain or plan.problem.absent or "size_k" in plan.problem.runtime:
        raise Refusal(
            f"{stages} accumulators of wgmma; 1 is implemented, and 2 that are promoted after each K tile, or {MAX_TURN_K_TILES}"
            " without scales, where K is known and not split, without ping-pong"
        )
    return stages


def of_ends(problem: GemmProblem, choice: Choice) -> GemmProblem:
    """Return a problem whose K ends with tiles of a choice; that of groups stays."""
    assert problem.ends is not None
    if problem.ends.side == "batch":
        return problem
    tile = choice.tile[0 if problem.ends.side == "m" else 1]
    return replace(problem, ends=replace(problem.ends, tile=tile))


def check_ends(plan: GemmPlan, ends: Ends) -> None:
    """Check that K tiles end with tiles of D, which one CTA or one pair computes, or with groups."""
    problem = plan.problem
    several = problem.terms or problem.groups or problem.scales or problem.summed or plan.by_rows
    if ends.groups is not None:
        _check_groups_of_k(plan, ends.groups, bool(several))
        return
    if several or problem.runtime:
        raise Refusal(
            "K that ends with tiles is implemented for one matmul without scales, sums along K and numbers per row, of sizes"
            " that are known when the kernel is compiled"
        )
    at = 0 if ends.side == "m" else 1
    if ends.tile % plan.tile[2] or plan.cluster_tiles[at] > 1 or plan.teams * plan.parts > 1 or plan.promote:
        raise Refusal(
            f"tiles of {plan.tile} in clusters of {plan.cluster} that end K; multiples of the K tile are implemented, one in a"
            " cluster, without ping-pong, promotion and splitting K"
        )


def _check_groups_of_k(plan: GemmPlan, groups: Groups, several: bool) -> None:
    """Check a matmul of which each member of the batch has the K of its group."""
    problem = plan.problem
    if several or (problem.batches != groups.size and problem.batch is not None):
        raise Refusal(
            f"{groups.name} has groups of K, which are implemented for one matmul of each group, without scales, sums along K"
            " and numbers per row"
        )
    for name, operand, major in zip(problem.names, "ab", (problem.a_major, problem.b_major), strict=False):
        if major != "mn" or problem.copy_of(operand) is not None:
            raise Refusal(
                f"{name} is read by groups of K, whose lines TMA loads from any of them; it has to be in 16 bits, with K not"
                " contiguous and rows at multiples of 16 bytes"
            )
        if any(problem.batch_pitches(operand)):
            raise Refusal(
                f"{name} is read by groups of K, of which each has a matrix; one matrix of all is implemented"
            )
    if plan.teams * plan.parts > 1 or plan.promote:
        raise Refusal("groups of K are implemented without ping-pong and without splitting K")
