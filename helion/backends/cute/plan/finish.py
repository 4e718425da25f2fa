"""Rows too long for a cluster: the stores of the matmul, and the second kernel that finishes the rows.

Where an output matrix depends on whole rows, the matmul stores the values that all outputs depend on. The second kernel
then reads each row once. Where only numbers per row are stored, tiles reduce their own columns, and the second kernel
combines the results: no matrix is written. Sums of exponentials use the maximum of the tile, and are rescaled to that
of the row.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from ...._shapes import next_power_of_2
from ...._support.records import replace
from ....hardware import REGISTER_BYTES, VECTOR_BYTES
from .dtypes import itemsize
from .epilogue import Constant, Epilogue, EpilogueOperand, EpilogueOutput, Instruction, constant
from .operands import by_fragments
from .passes import Pass, check_places, walks
from .records import SUM_BYTES, WARP_THREADS, Choice, GemmPlan, GemmProblem, Part, RowFinish, TileFinish
from .reductions import needed, reductions_of
from .refusal import Refusal

STORED = {"round_bfloat16": "bfloat16", "round_float16": "float16"}
"""Rounded values, which are exact in a type of 16 bits."""
KEPT_VALUES, KEPT_THREADS = 32, 512
"""Values of a row that a thread keeps besides the registers of its epilogue, and the most threads that can have as
many. With 1024 threads, each has 64 registers in all."""
THREADS = (128, 256, 512, 1024)
EARLY_REGISTERS = 16
"""Registers of a thread for epilogue operands that it loads before the matmul ends."""
ROWS_PER_CTA = 4
"""Rows per CTA of the kernel that combines tiles, one warp each."""
ROWS = "rows"
"""The name of the output that the matmul stores."""
SIZE_M, LAUNCHED = "size_m", ("size_m", "size_k", "pitch_a", "pitch_b")
"""The number of rows, and all numbers of a launch that a second kernel allows: it depends on none of the others.
"""
MOST_HELD_COLUMNS = 4096
"""Columns that 16 CTAs with tiles of 256 hold. Longer rows lie in memory."""
MAX_ROWS_BYTES = 2**33
"""Limit of rows in the workspace: as much as a large activation, which a library's matmul would also leave in memory.
"""


@functools.lru_cache(maxsize=256)
def split(problem: GemmProblem, tile_columns: int, shared_bytes: int) -> tuple[GemmProblem, RowFinish | TileFinish]:
    """Split a problem into the matmul, in tiles of ``tile_columns``, and the finish after it, whose CTAs have up to
    ``shared_bytes`` of shared memory. Raises ``Refusal``."""
    if problem.batch is not None or not problem.epilogue.reduces_rows:
        raise Refusal("rows in memory are implemented for one matmul whose rows are reduced")
    if not finishes(problem):
        raise Refusal(
            f"rows in memory are implemented without atomic additions, for sizes that are known when the kernel is compiled,"
            f" or of more than {MOST_HELD_COLUMNS} columns if only the launch knows their number; use static_shapes=True or"
            " hl.specialize"
        )
    parts = _parts(problem)
    return _with_tiles(problem, parts, tile_columns) if parts else _with_rows(problem, shared_bytes)


def finishes(problem: GemmProblem) -> bool:
    """Return whether a second kernel may finish rows, given the numbers that only the launch knows."""
    known = SIZE_M not in problem.runtime or problem.n > MOST_HELD_COLUMNS
    known &= not problem.epilogue.rows_of_blocks and problem.groups is None
    return {*problem.runtime} <= {*LAUNCHED} and known and not any(each.adds for each in problem.outputs)


def counts_rows(problem: GemmProblem) -> bool:
    """Return whether rows lie in memory, and only the launch knows their number: ``m`` is then the most of them."""
    return SIZE_M in problem.runtime and problem.epilogue.reduces_rows and finishes(problem)


def with_most_rows(problem: GemmProblem) -> GemmProblem:
    """Return a problem with the most rows of its bucket, which ends at a power of two, if only the launch counts them."""
    return replace(problem, m=next_power_of_2(problem.m)) if counts_rows(problem) else problem


# Whole rows ------------------------------------------------------------------------------------------------------------


def _with_rows(problem: GemmProblem, shared_bytes: int) -> tuple[GemmProblem, RowFinish]:
    held = _held(problem)
    made = problem.epilogue.made(held)
    dtype = STORED.get(made.op, "float32") if made else "float32"
    home = next((each for each in problem.outputs_of("exact") if each.dtype == dtype), None)
    pitch = home.pitch if home else _up(problem.n, VECTOR_BYTES // itemsize(dtype))
    finish = _row_finish(problem, held, dtype, pitch, home.name if home else "", shared_bytes)
    if rows_bytes(finish) > MAX_ROWS_BYTES:
        raise Refusal(f"rows of {rows_bytes(finish)} bytes in memory; up to {MAX_ROWS_BYTES} are implemented")
    check_places(problem.epilogue, row_walks(finish), "the kernel after the matmul")
    rounds = made is not None and made.op in STORED  # the store rounds
    epilogue, (value,) = _cut(problem.epilogue, tuple(_values(made)) if made and rounds else (held,))
    output = EpilogueOutput(name=ROWS, value=value, kind="exact", dtype=dtype, pitch=pitch)
    stored = replace(epilogue, outputs=(output,))
    return replace(problem, epilogue=stored, output_dtype=dtype, d_pitch=pitch), finish


def _row_finish(problem: GemmProblem, held: int, dtype: str, pitch: int, home: str, shared_bytes: int) -> RowFinish:
    widest = max(itemsize(name) for name in (dtype, *_matrix_dtypes(problem)))
    vector = VECTOR_BYTES // widest
    kept = [
        each for each in THREADS if each <= KEPT_THREADS and _chunks(problem.n, each, vector) * vector <= KEPT_VALUES
    ]
    threads = kept[0] if kept else THREADS[-1]
    finish = RowFinish(
        problem=problem,
        held=held,
        dtype=dtype,
        pitch=pitch,
        home=home,
        threads=threads,
        vector=vector,
        chunks=_chunks(problem.n, threads, vector),
        kept=bool(kept),
    )
    return finish if kept else _in_shared_memory(finish, shared_bytes)


def _in_shared_memory(finish: RowFinish, shared_bytes: int) -> RowFinish:
    """Return the finish with rows in shared memory, if it has room for one. Several CTAs of an SM have fewer threads each."""
    several = replace(finish, threads=KEPT_THREADS, kept=True, shared=True)
    for found in (several, replace(several, threads=THREADS[-1])):
        chunks = _chunks(found.problem.n, found.threads, found.vector)
        found = replace(found, chunks=chunks)
        room = shared_bytes // 2 if found.threads == KEPT_THREADS else shared_bytes
        if SUM_BYTES * (row_words(found) + shared_words(found)) <= room:
            return found
    return finish


def _matrix_dtypes(problem: GemmProblem) -> Iterator[str]:
    """Yield the types of column accesses in the second kernel: of 2 bytes or more, so a vector has at most 8 columns."""
    yield "float16"
    yield from (each.dtype for each in problem.outputs_of("exact"))
    yield from (each.dtype for each in problem.epilogue.operands if each.kind in ("exact", "row"))


def _chunks(columns: int, threads: int, vector: int) -> int:
    return -(-columns // (threads * vector))


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _held(problem: GemmProblem) -> int:
    """Return the first value that all later ones depend on, preferring one that is rounded to 16 bits anyway."""
    epilogue = problem.epilogue
    wanted = needed(epilogue, (output.value for output in problem.outputs))
    candidates = [0, *(value for value in wanted if value > len(epilogue.operands))]
    found = [
        value
        for value in candidates
        if not epilogue.per_row[value] and epilogue.levels[value] == 0 and not _sums_beside(problem, wanted, value)
    ]
    rounded = [value for value in found if (made := epilogue.made(value)) and made.op in STORED]
    if not found:
        raise Refusal("rows of two matmuls that do not depend on one common value are not implemented")
    return [*rounded, *found][0]


def _sums_beside(problem: GemmProblem, wanted: Sequence[int], held: int) -> bool:
    """Return whether some of the `wanted` values after `held`, or an output, depend on accumulators other than through
    it."""
    epilogue = problem.epilogue
    sums = {0, *(at for at, each in enumerate(epilogue.operands, start=1) if each.kind == "product")}
    dependent = sums - {held}
    for value in wanted:
        made = epilogue.made(value)
        if made is not None and value != held and dependent & set(_values(made)):
            dependent.add(value)
    later = {value for value in wanted if epilogue.made(value)} - set(needed(epilogue, (held,)))
    return bool(dependent & (later | {output.value for output in problem.outputs}))


def _values(made: Instruction) -> Iterator[int]:
    return (x for x in made.arguments if not isinstance(x, Constant))


def row_walks(finish: RowFinish) -> tuple[Pass, ...]:
    """Return the passes of the second kernel over a row: one per level of dependent reductions, then one that stores."""
    problem = finish.problem
    return walks(problem.epilogue, stored_last(finish), reductions_of(problem), finish.held, finish.kept)


def operands_read(finish: RowFinish) -> tuple[EpilogueOperand, ...]:
    """Return the epilogue's matrices and rows that some pass reads."""
    numbers = sorted({value for walk in row_walks(finish) for value in walk.reads})
    return tuple(finish.problem.epilogue.operands[value - 1] for value in numbers)


@functools.lru_cache(maxsize=256)
def loaded_early(finish: RowFinish) -> tuple[EpilogueOperand, ...]:
    """Return the operands that a thread loads while the matmul still runs, up to a few registers.

    A load that misses the caches takes about a microsecond, more than the rest of the work on a short row.
    """
    found, left = [], EARLY_REGISTERS if finish.kept and not finish.shared else 0
    for operand in operands_read(finish):
        registers = -(-finish.chunks * finish.vector * itemsize(operand.dtype) // REGISTER_BYTES)
        if registers <= left:
            found.append(operand)
            left -= registers
    return tuple(found)


def stored_last(finish: RowFinish) -> tuple[EpilogueOutput, ...]:
    """Return the matrices that the second kernel stores: all but the one that the matmul has stored whole."""
    exact = finish.problem.outputs_of("exact")
    return tuple(each for each in exact if (each.name, each.value) != (finish.home, finish.held))


# Rows of a transposed matmul ---------------------------------------------------------------------------------------------


def turned(stored: GemmProblem) -> GemmProblem | None:
    """Return the transposed matmul of the rows, whose B of fp32 along N warps read to registers as A; None for others.

    Its tiles are contiguous along M, and rows of the whole problem are its columns.
    """
    outputs, copied = stored.epilogue.outputs, stored.copied
    plain = not (stored.epilogue.operands or stored.epilogue.instructions or any(stored.starts))
    if not plain or stored.a_major != "k" or [each.operand for each in copied] != ["b"] or len(outputs) > 1:
        return None
    output = replace(outputs[0], pitch=1, column_pitch=outputs[0].pitch)
    x, y, d = stored.names
    swapped = replace(
        stored,
        m=stored.n,
        n=stored.m,
        a_pitch=stored.b_pitch,
        b_pitch=stored.a_pitch,
        d_pitch=1,
        epilogue=Epilogue(outputs=(output,)),
        copied=(replace(copied[0], operand="a"),),
        names=(y, x, d),
    )
    return by_fragments(swapped) if output.kind == "exact" else None


def with_turned(stored: GemmProblem, choice: Choice) -> tuple[GemmProblem, Choice]:
    """Return the matmul of the rows with its choice, transposed if TMA loads copied operands. Raises ``Refusal``."""
    if choice.copies_in != "tma":
        return stored, choice
    found = turned(stored)
    if found is None:
        raise Refusal(
            "rows in memory whose operands TMA loads are implemented for a plain matmul of fp32 with B along N"
        )
    (rows, columns, k), (cluster_m, cluster_n) = choice.tile, choice.cluster
    return found, replace(choice, tile=(columns, rows, k), cluster=(cluster_n, cluster_m), copies_in="shared")


def is_turned(plan: GemmPlan) -> bool:
    """Return whether the matmul has A and B of the whole problem in exchange."""
    return plan.finish is not None and any(output.turned for output in plan.problem.outputs)


# Parts of rows -----------------------------------------------------------------------------------------------------------


def _with_tiles(problem: GemmProblem, parts: Sequence[Part], columns: int) -> tuple[GemmProblem, TileFinish]:
    tiles = -(-problem.n // columns)
    finish = TileFinish(problem=problem, parts=tuple(parts), tiles=tiles)
    about, numbers = _about_tiles(problem.epilogue, parts)
    epilogue, values = _cut(about, tuple(numbers[part.value] for part in parts))
    outputs = tuple(
        EpilogueOutput(name=f"part_{at}", value=value, kind="tile", dtype="float32", pitch=len(parts) * tiles)
        for at, value in enumerate(values)
    )
    stored = replace(epilogue, outputs=outputs)
    first = outputs[0]
    return replace(problem, epilogue=stored, output_dtype=first.dtype, d_pitch=first.pitch), finish


def _parts(problem: GemmProblem) -> list[Part]:
    """Return how row reductions follow from those of tiles, in order; none where a matrix is stored, or one does not."""
    if problem.outputs_of("exact"):
        return []
    found = []
    for value in (value for level in reductions_of(problem) for value in level):
        part = _part(problem.epilogue, value)
        if part is None:
            return []
        found.append(part)
    return found


def _part(epilogue: Epilogue, value: int) -> Part | None:
    made = epilogue.instruction(value)
    term = made.arguments[0]
    assert isinstance(term, int)
    if epilogue.levels[value] == 1:
        return Part(value=value, kind="plain")
    if made.op == "row_first":
        of = made.arguments[1]
        assert isinstance(of, int)
        return Part(value=value, kind="first", of=of) if _extreme(epilogue, of, term) else None
    power = epilogue.made(term)
    if made.op != "row_sum" or power is None or power.op not in ("exp", "exp2"):
        return None
    argument = power.arguments[0]
    scale, shifted = _scaled(epilogue, argument) if isinstance(argument, int) else (1.0, None)
    if shifted is None or shifted.op != "sub":
        return None
    x, about = shifted.arguments
    if not isinstance(x, int) or not isinstance(about, int):
        return None
    top = _unguarded(epilogue, about)
    if not _extreme(epilogue, top, x, ("row_maximum",)):
        return None
    return Part(value=value, kind="rescaled", of=top, about=about, power=power.op, scale=scale)


def _unguarded(epilogue: Epilogue, value: int) -> int:
    """Return the number that `value` equals where it is finite, if `value` is 0 where it is infinite; else `value`."""
    made = epilogue.made(value)
    if made is None or made.op != "where":
        return value
    at, *chosen = made.arguments
    test = epilogue.made(at) if isinstance(at, int) else None
    if test is None or test.op not in ("isinf", "isfinite"):
        return value
    (number,) = test.arguments
    expected = [constant(0.0), number] if test.op == "isinf" else [number, constant(0.0)]
    return number if isinstance(number, int) and chosen == expected else value


def _extreme(epilogue: Epilogue, value: int, x: int, ops: Sequence[str] = ("row_maximum", "row_minimum")) -> bool:
    """Return whether `value` is the maximum, or the minimum, of `x`."""
    made = epilogue.made(value)
    return made is not None and made.op in ops and made.arguments == (x,) and epilogue.levels[value] == 1


def _scaled(epilogue: Epilogue, value: int) -> tuple[float, Instruction | None]:
    """Return a positive factor of `value`, and the other operand's instruction."""
    made = epilogue.made(value)
    if made is None or made.op != "mul":
        return 1.0, made
    factors = [float(x.text) for x in made.arguments if isinstance(x, Constant)]
    others = list(_values(made))
    if len(factors) != 1 or len(others) != 1 or factors[0] <= 0:
        return 1.0, None
    return factors[0], epilogue.made(others[0])


def _about_tiles(epilogue: Epilogue, parts: Sequence[Part]) -> tuple[Epilogue, dict[int, int]]:
    """Rewrite rescaled sums to use the maximum of a tile, or 0 where that is not finite; renumber the values.

    A tile of only -inf then has a sum of 0.
    """
    tops = {part.of for part in parts if part.kind == "rescaled" and part.about == part.of}
    numbers: dict[int, int] = {value: value for value in range(1 + len(epilogue.operands))}
    about: dict[int, int] = {}
    made: list[Instruction] = []

    def add(instruction: Instruction) -> int:
        made.append(instruction)
        return len(epilogue.operands) + len(made)

    for at, instruction in enumerate(epilogue.instructions, start=1 + len(epilogue.operands)):
        shifts = instruction.op == "sub" and instruction.arguments[1] in tops
        names = {**numbers, **about} if shifts else numbers
        arguments = tuple(x if isinstance(x, Constant) else names[x] for x in instruction.arguments)
        numbers[at] = add(Instruction(instruction.op, arguments))
        if at in tops:
            finite = add(Instruction("isfinite", (numbers[at],)))
            about[at] = add(Instruction("where", (finite, numbers[at], constant(0.0))))
    return Epilogue(operands=epilogue.operands, instructions=tuple(made)), numbers


def joined(finish: TileFinish) -> tuple[tuple[Part, ...], ...]:
    """Return the parts in the order in which they can be combined."""
    known = {part.value: part for part in finish.parts}
    return tuple(tuple(known[value] for value in level) for level in reductions_of(finish.problem))


# Both --------------------------------------------------------------------------------------------------------------------


def _cut(epilogue: Epilogue, values: tuple[int, ...]) -> tuple[Epilogue, tuple[int, ...]]:
    """Return the part of `epilogue` that computes `values`, and their numbers in it."""
    wanted = needed(epilogue, values)
    kept = [at for at in wanted if 0 < at <= len(epilogue.operands)]
    made = [at for at in wanted if at > len(epilogue.operands)]
    names = {0: 0} | {at: number for number, at in enumerate((*kept, *made), start=1)}
    instructions = tuple(
        Instruction(
            epilogue.instruction(at).op,
            tuple(x if isinstance(x, Constant) else names[x] for x in epilogue.instruction(at).arguments),
        )
        for at in made
    )
    operands = tuple(epilogue.operands[at - 1] for at in kept)
    return Epilogue(operands=operands, instructions=instructions), tuple(names[value] for value in values)


def levels(problem: GemmProblem) -> range:
    """Return the levels of per-row values: 0 before the first reduction, then one after each level of reductions."""
    return range(1 + len(reductions_of(problem)))


def rows_bytes(finish: RowFinish | TileFinish | None) -> int:
    """Return the workspace bytes of the rows that the matmul stores, the most of any launch."""
    if finish is None or (isinstance(finish, RowFinish) and finish.home):
        return 0
    if isinstance(finish, RowFinish):
        return finish.problem.m * finish.pitch * itemsize(finish.dtype)
    return finish.problem.m * len(finish.parts) * finish.tiles * SUM_BYTES


def threads_of(finish: RowFinish | TileFinish) -> int:
    """Return the threads of a CTA of the second kernel."""
    return finish.threads if isinstance(finish, RowFinish) else ROWS_PER_CTA * WARP_THREADS


def rows_of_cta(finish: RowFinish | TileFinish) -> int:
    """Return the rows of each CTA of the second kernel."""
    return 1 if isinstance(finish, RowFinish) else ROWS_PER_CTA


def ctas_of(finish: RowFinish | TileFinish) -> int:
    """Return the CTAs of the second kernel, the most of any launch."""
    return -(-finish.problem.m // rows_of_cta(finish))


def part_slot(finish: RowFinish, value: int) -> int:
    """Return the first word of a reduction's per-warp results among ``shared_words``."""
    order = [value for level in reductions_of(finish.problem) for value in level]
    return order.index(value) * (finish.threads // WARP_THREADS)


def row_words(finish: RowFinish | TileFinish) -> int:
    """Return the fp32 words of shared memory that keep a row."""
    if not isinstance(finish, RowFinish) or not finish.shared:
        return 0
    return finish.chunks * finish.threads * finish.vector


def shared_words(finish: RowFinish | TileFinish) -> int:
    """Return the fp32 words that warps of a CTA of the second kernel exchange.

    Each warp and reduction has its own word, so none is written twice.
    """
    if isinstance(finish, TileFinish):
        return 0
    return sum(map(len, reductions_of(finish.problem))) * (finish.threads // WARP_THREADS)
