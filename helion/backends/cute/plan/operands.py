"""Copied operands: limits of copies to shared memory, and kernels before the matmul that write operands to global memory.

In shared memory an operand is computed once for each tile of the other side. Where those are many, one pass over the
operand, and TMA from then on, takes less time. Tiles of TF32 leave shared memory no time to transpose B during the MMAs
(measurement ``tf32_turning``). Warps that read it to registers take as long as with B along K (measurement
``tf32_fragments``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from ...._support.records import replace
from .copied import MAX_LOADED_REGISTERS, MAX_SPAN, NIBBLE_GROUP, NOT_COPIED, Copied, raw_major, span_of
from .counts import check_fragments, copied_line_step, copied_lines, copied_registers, turns
from .dtypes import IMPRECISE_DTYPES, itemsize, per_byte
from .records import (
    SUM_BYTES,
    SWIZZLE_BYTES,
    TMA_ALIGNMENT_BYTES,
    WGMMA_ROWS,
    Batch,
    GemmPlan,
    GemmProblem,
    Major,
    Multiplicand,
    Prepare,
    Prepared,
    Unit,
)
from .refusal import Refusal
from .scales import LONGEST

MAX_MATRICES = 65535
"""CTAs along the second dimension of a grid (CUDA programming guide)."""
FEW_ROWS = 64
"""Rows of an output, of which one instruction has as many columns."""
TILE_ROWS, MOST_TURNED, TURNED_COLUMNS, TURNED_LINES, TURNED_GAINS = 128, 512, range(96, 257, 16), 4096, 1.15
"""Rows of usual tiles; with A and B swapped the most rows, the columns of tiles, the least lines of B and of K, and the least
rows of usual tiles over those of swapped ones (``swapped`` of benchmarks/results/cute/nvidia-h200-few-tiles.jsonl)."""
TURNED_TILES = (range(161), range(200, 265))
"""Tiles of about one wave, or of most of two. In more waves tiles of 64 rows and 256 columns are as fast (the same rows)."""
LEAST_READ = 512
"""Rows, columns and K of matmuls in fp32 that are swapped to read B to registers: those of fewer split K."""
TURNED_BYTES = (2, 4)
"""Elements of matrices that the epilogue of such a matmul reads."""
RESIDENT_COLUMNS = 32
"""Columns of a tile of two warpgroups that convert A, of which two CTAs share the registers of an SM without spills."""
MOST_RESIDENTS = (3, 4)
"""CTAs on an SM whose warps convert A of 8 bits, and of 4 bits, in tiles of 64 rows and few columns."""
SLICED_COLUMNS = 16
"""Columns of a tile of warps with K tiles of their own, which keep sums of 64 rows."""
SLICED_RESIDENTS = 3
"""CTAs on an SM that their registers leave room for."""
ALIGNMENT_BYTES = 128
"""Alignment of a matrix: sectors of its first line are whole."""


def takes_majors(problem: GemmProblem) -> bool:
    """Return whether operands of the type are implemented in these major modes on any matrix unit."""
    majors, size = (problem.a_major, problem.b_major), itemsize(problem.operand_dtype)
    words = problem.operand_dtype == "float32" and majors == ("mn", "k")
    return majors == ("k", "k") or words or size == 2 or problem.operand_dtype in IMPRECISE_DTYPES


def check_copies(plan: GemmPlan) -> None:
    """Check the tile and the cluster for copied operands, if there are any. Raises ``Refusal``."""
    check_fragments(plan)
    in_memory = plan.problem.groups is not None or any(copied.is_gathered for copied in plan.problem.copied)
    in_memory |= not plan.converts and (plan.problem.scales is not None or bool({*plan.problem.runtime} - {LONGEST}))
    if plan.problem.copied and (in_memory or plan.problem.terms or has_steps(plan.problem)):
        raise Refusal(
            "operands of groups of rows, of sums of matmuls, of several batched tensors or dimensions, of picked lines, of 4-bit"
            " neighbors, of numbers that neighbors along K share, and next to scales of blocks of K, are copied in memory"
        )
    if plan.problem.copied and (plan.cluster[0] > 1 or (plan.ctas_per_sm > 1 and not plan.converts)):
        raise Refusal(
            "operands that warps copy are implemented with one CTA along M in a cluster, and one on an SM unless the warps"
            " that multiply convert them"
        )
    if plan.converts:
        _check_converted(plan)
        return
    check_known(plan.problem)
    if plan.ab_stages % (groups := turns(plan)):
        raise Refusal(
            f"{plan.ab_stages} stages of A and B that {groups} groups of warps fill by turns; a multiple of {groups} is implemented,"
            " so that each stage has one of them: it could mistake an earlier phase of another for its own"
        )
    if plan.problem.copied and (plan.tile[0] > 2 * WGMMA_ROWS or plan.tile[2] * plan.operand_bytes > SWIZZLE_BYTES):
        raise Refusal(
            f"a tile of {plan.tile} with operands that warps copy; up to {2 * WGMMA_ROWS} rows and {SWIZZLE_BYTES} bytes"
            " along K are implemented"
        )
    for copied in plan.problem.copied:
        if (lines := copied_lines(plan, copied)) % (step := copied_line_step(plan, copied)):
            raise Refusal(f"a tile with {lines} lines of {copied.sources[0].name}; warps copy multiples of {step}")
    most = MAX_LOADED_REGISTERS[plan.unit == "wgmma" and plan.consumer_warps * plan.teams > 4]
    if (loaded := copied_registers(plan)) > most:
        raise Refusal(
            f"a K tile of {plan.tile} that warps copy by {loaded} registers per thread; up to {most} are implemented"
        )


def needs_registers(problem: GemmProblem) -> bool:
    """Return whether only the warps that multiply may convert its copied operands.

    Next to scales that the matrix unit does not multiply by, kernels before the matmul write others.
    """
    unknown = any({*problem.runtime} - {LONGEST} - _apart(problem, each) for each in problem.copied)
    converted = bool(problem.copied) and problem.scales is not None and (problem.scales.micro or can_convert(problem))
    return unknown or converted or any(each.is_packed for each in problem.copied)


def _apart(problem: GemmProblem, copied: Copied) -> set[str]:
    """Return the numbers that a launch may give where a kernel before the matmul writes its only right operand: the rows,
    and the strides of other matrices."""
    several = problem.batch or problem.groups or problem.terms or problem.scales or problem.summed
    if several or copied.operand != "b" or problem.epilogue.reduces_rows or problem.epilogue.of_kind("product"):
        return set()
    labels = ["a", *map(problem.label_of, problem.outputs), *(each.label for each in problem.epilogue.operands)]
    return {"size_m", *(f"pitch_{label}" for label in labels)}


def check_known(problem: GemmProblem) -> None:
    """Check that warps can copy operands. Raises ``Refusal``."""
    for copied in problem.copied:
        if copied.is_packed:
            raise Refusal(
                f"{copied.sources[0].name} has 4-bit integers, which are implemented with up to {FEW_ROWS} rows of the other"
                " operand on wgmma"
            )
        if needs_registers(problem):
            raise Refusal(f"{copied.sources[0].name}{NOT_COPIED}")


def can_convert(problem: GemmProblem) -> bool:
    """Return whether the warps that multiply can convert raw tiles of A: bytes along K, of one tensor, to 16 bits.

    Launches may give the columns, which only TMA and stores of threads depend on.
    """
    if len(problem.copied) != 1 or problem.groups is not None or not {*problem.runtime} <= {"size_n", "pitch_b"}:
        return False
    if problem.scales is not None and problem.scales.k != SWIZZLE_BYTES:
        return False
    (copied,) = problem.copied
    if copied.is_packed and (copied.offset is None or problem.k % NIBBLE_GROUP):
        return False
    (source, *others) = copied.sources
    along_k = copied.raw and source.k_pitch == 1 and itemsize(source.dtype) == 1 and problem.a_major == "k"
    one = copied.operand == "a" and not others and not problem.epilogue.of_kind("product")
    return along_k and one and itemsize(problem.operand_dtype) == 2


def residents_of(problem: GemmProblem) -> int:
    """Return the most CTAs on an SM whose warps convert A."""
    return MOST_RESIDENTS[any(each.is_packed for each in problem.copied)]


def fills_turned_tiles(problem: GemmProblem) -> bool:
    """Return whether swapping A and B fills tiles better: rows are then columns of tiles, which are multiples of 16.

    TMA loads both operands, and stores the output in tiles that are contiguous along M. B has many more lines.
    """
    batched = problem.batch or problem.groups or problem.runtime or any(problem.starts)
    others = problem.copied or problem.summed or problem.terms or problem.ends or problem.scales
    if batched or others or not _stores_whole(problem, 2):
        return False
    few = TILE_ROWS < problem.m <= MOST_TURNED and problem.n >= TURNED_LINES and problem.k >= TURNED_LINES
    covered, columns = min((-(-problem.m // columns) * columns, -columns) for columns in TURNED_COLUMNS)
    tiles = -(-problem.n // TILE_ROWS) * (covered // -columns)
    return (
        few
        and any(tiles in wave for wave in TURNED_TILES)
        and TURNED_GAINS * covered <= -(-problem.m // TILE_ROWS) * TILE_ROWS
    )


def gains_by_turning(problem: GemmProblem) -> bool:
    """Return whether a matmul of few rows should be computed transposed, with B, which is converted, as the rows of tiles.

    Few rows fill a small part of an instruction's 64, and the warps that multiply convert A alone.
    """
    turned = [replace(each, operand="a") for each in problem.copied if each.operand == "b"]
    stored = all(output.kind in ("exact", "strided") and not output.adds for output in problem.outputs)
    several = problem.terms or problem.epilogue.in_pairs
    if problem.m > FEW_ROWS or several or not stored or len(turned) != len(problem.copied):
        return False
    names = {"size_m": "size_n", "pitch_a": "pitch_b"}
    runtime = tuple(names.get(name, "") for name in problem.runtime)
    return can_convert(replace(problem, copied=tuple(turned), a_major=problem.b_major, runtime=runtime))


def _check_converted(plan: GemmPlan) -> None:
    """Check a plan whose warps convert A in their registers. Raises ``Refusal``."""
    if not can_convert(plan.problem) or plan.unit != "wgmma":
        raise Refusal(
            "operands in registers are implemented on wgmma for A of 8-bit elements, contiguous along K, that become 16 bits"
        )
    if plan.sliced:
        _check_sliced(plan)
        return
    if plan.teams > 1 or plan.tile[0] > 2 * WGMMA_ROWS or plan.tile[2] != SWIZZLE_BYTES:
        raise Refusal(
            f"a tile of {plan.tile} with A in registers; up to {2 * WGMMA_ROWS} rows and {SWIZZLE_BYTES} elements along K are"
            " implemented, without ping-pong"
        )
    tall, most = plan.tile[0] > WGMMA_ROWS, RESIDENT_COLUMNS // 2 if plan.promote else RESIDENT_COLUMNS
    if plan.ctas_per_sm > 1 and tall and (plan.splits > 1 or plan.tile[1] > most):
        raise Refusal(
            f"two CTAs on an SM with a tile of {plan.tile} and A in registers; {WGMMA_ROWS} rows, or up to {most} columns"
            " without splitting K in a cluster leave registers for both"
        )


def can_slice(problem: GemmProblem) -> bool:
    """Return whether warps can convert A in pairs, of K tiles of their own: integers, with scales of rows alone."""
    if not can_convert(problem):
        return False
    (copied,), scales = problem.copied, problem.scales
    paired = copied.is_packed or (copied.sources[0].dtype == "int8" and not copied.instructions)
    return paired and (scales is None or [each.side for each in scales.factors] == ["row"])


def _check_sliced(plan: GemmPlan) -> None:
    """Check a plan whose warps have K tiles of their own. Raises ``Refusal``."""
    if not can_slice(plan.problem) or plan.cluster != (1, 1):
        raise Refusal(
            "warps with K tiles of their own are implemented for A of int8 or 4-bit integers without arithmetic, with scales of"
            " its rows alone, where no CTAs share operands"
        )
    rows, columns, depth = plan.tile
    if columns != SLICED_COLUMNS or depth != SWIZZLE_BYTES or plan.teams > 1:
        raise Refusal(
            f"a tile of {plan.tile} of which warps have K tiles of their own; {SLICED_COLUMNS} columns and {SWIZZLE_BYTES} elements"
            " along K are implemented, without ping-pong"
        )
    if plan.ctas_per_sm > (SLICED_RESIDENTS if rows == WGMMA_ROWS else 1):
        raise Refusal(
            f"{plan.ctas_per_sm} CTAs on an SM with a tile of {plan.tile} of which warps have K tiles of their own; registers of"
            f" {SLICED_RESIDENTS} CTAs with {WGMMA_ROWS} rows, or of one, are enough"
        )


@functools.lru_cache(maxsize=256)
def split(problem: GemmProblem, *, copies: bool = True) -> tuple[GemmProblem, Prepare]:
    """Split a problem into the matmul of operands in memory, and the kernels that write them. Raises ``Refusal``.

    These are sums along K and, with ``copies``, copied operands.
    """
    if copies and not problem.copied:
        raise Refusal("operands in memory are implemented where TMA cannot load them as they are")
    if copies:
        check_known(problem)
    operands, offset, stored = list[Prepared](), 0, replace(problem, summed=())
    for copied in problem.summed:
        operands.append(_prepared_sums(problem, copied, offset))
        _check_span(problem, operands[-1])
        offset += _aligned_bytes(problem, operands[-1])
    if not copies:
        return stored, Prepare(problem=problem, operands=tuple(operands))
    stored = replace(stored, copied=())
    for copied in problem.copied:
        made = _prepared(problem, copied, offset)
        operands.append(made)
        _check_span(problem, made)
        offset += _aligned_bytes(problem, made)
        stored = _with_stored(stored, problem, made)
    for each in stored.multiplicands:
        if each.absent:
            stored = _with_pitch(stored, each, stored.multiplicand(present(problem, each)).pitch)
    return stored, Prepare(problem=problem, operands=tuple(operands))


def _with_stored(stored: GemmProblem, problem: GemmProblem, made: Prepared) -> GemmProblem:
    """Return the matmul with an operand in memory. Operands of one side have one major mode."""
    operand, batch = problem.multiplicand(made.copied.operand), stored.batch
    of_a = operand.base == "a"
    stored = replace(stored, a_major=made.major) if of_a else replace(stored, b_major=made.major)
    if batch is not None and operand.term:
        raise Refusal("operands in memory of further terms are implemented for one matmul, without a batch")
    if batch is not None:
        steps, matrices = list[int](), 1
        for level, varies in zip(batch.levels, varying(problem, made.copied), strict=True):
            steps.append(made.rows * made.pitch * matrices if varies else 0)
            matrices *= level.size if varies else 1
        labels = ["a", "b", *(each.label for each in problem.epilogue.operands)]
        stored = replace(stored, batch=_with_steps(batch, labels.index(operand.label), steps))
    return _with_pitch(stored, operand, made.pitch)


def _with_steps(batch: Batch, at: int, steps: Sequence[int]) -> Batch:
    """Return the batch with the elements from one matrix to the next along each dimension, innermost first. ``at`` is the
    number of the tensor: A, B, or one of the epilogue's operands."""
    outer = None if batch.outer is None else _with_steps(batch.outer, at, steps[1:])
    numbers = [batch.a, batch.b, *batch.operands]
    numbers[at] = steps[0]
    a, b, *operands = numbers
    return replace(batch, a=a, b=b, operands=tuple(operands), outer=outer)


def steps_of(problem: GemmProblem, copied: Copied, at: int) -> tuple[int, ...]:
    """Return the elements of source number ``at`` from one matmul of a batch to the next along each dimension, innermost
    first."""
    levels = problem.batch.levels if problem.batch is not None else ()
    return problem.batch_pitches(copied.operand) if at == 0 else copied.sources[at].batch or (0,) * len(levels)


def varying(problem: GemmProblem, copied: Copied) -> tuple[bool, ...]:
    """Return whether a copied operand of the matmul differs along each dimension of the batch, innermost first."""
    steps = zip(*(steps_of(problem, copied, at) for at in range(len(copied.sources))), strict=True)
    return tuple(any(each) for each in steps)


def has_steps(problem: GemmProblem) -> bool:
    """Return whether its copied operands are of several batched tensors, or of a batch of several dimensions."""
    several = problem.batch is not None and problem.batch.outer is not None
    return any(several or source.batch for each in problem.copied for source in each.sources)


def _with_pitch(stored: GemmProblem, operand: Multiplicand, pitch: int) -> GemmProblem:
    """Return the matmul with the elements from one line of an operand to the next."""
    bases = ["a", "b", *(each.label for each in stored.epilogue.of_kind("product"))]
    if operand.term:
        term = stored.terms[operand.term - 1]
        pitches = [term.a_pitch, *term.b_pitches]
        pitches[bases.index(operand.base)] = pitch
        changed = replace(term, a_pitch=pitches[0], b_pitches=tuple(pitches[1:]))
        terms = (*stored.terms[: operand.term - 1], changed, *stored.terms[operand.term :])
        return replace(stored, terms=terms)
    if operand.base == "a":
        return replace(stored, a_pitch=pitch)
    if operand.base == "b":
        return replace(stored, b_pitch=pitch)
    operands = tuple(
        replace(each, pitch=pitch) if each.label == operand.label else each for each in stored.epilogue.operands
    )
    return replace(stored, epilogue=replace(stored.epilogue, operands=operands))


def by_fragments(problem: GemmProblem) -> GemmProblem | None:
    """Return the matmul whose A TMA loads as it is, contiguous along M, for warps that read it to registers; None for others
    than fp32 of which nothing else is copied."""
    parts = problem.groups or problem.terms or problem.scales or problem.ends or problem.summed or problem.runtime
    if parts or problem.operand_dtype != "float32" or [each.operand for each in problem.copied] != ["a"]:
        return None
    return None if problem.epilogue.of_kind("product") else _as_stored(problem)


def stores_along_m(problem: GemmProblem) -> bool:
    """Return whether a matmul is faster with A and B swapped, where TMA stores tiles that are contiguous along M."""
    return fills_turned_tiles(problem) or _reads_turned(problem)


def _reads_turned(problem: GemmProblem) -> bool:
    """Return whether its B, of fp32 along N, is read to registers as A of the transposed matmul: no kernel transposes it."""
    if not problem.copied or problem.batch or any(problem.starts) or min(problem.m, problem.n, problem.k) < LEAST_READ:
        return False
    turned = [replace(each, operand="a") for each in problem.copied if each.operand == "b"]
    swapped = replace(problem, copied=tuple(turned), a_major=problem.b_major, a_pitch=problem.b_pitch)
    alone = len(turned) == len(problem.copied) and problem.a_major == "k"
    return alone and _stores_whole(problem, 4) and by_fragments(swapped) is not None


def _stores_whole(problem: GemmProblem, size: int) -> bool:
    """Return whether the matrices of an epilogue can be contiguous along M. Elements of A, B and the only output have so many
    bytes."""
    epilogue = problem.epilogue
    loaded = any(epilogue.of_kind(kind) for kind in ("strided", "product", "uniform", "integers"))
    loaded |= any(itemsize(each.dtype) not in TURNED_BYTES for each in epilogue.of_kind("exact"))
    if loaded or problem.rounded or epilogue.reduces_rows or epilogue.words or epilogue.in_pairs:
        return False
    if [each.kind for each in problem.outputs] != ["exact"] or problem.outputs[0].adds:
        return False
    return {itemsize(problem.operand_dtype), itemsize(problem.output_dtype)} == {size}


def in_both_majors(problem: GemmProblem) -> GemmProblem | None:
    """Return the matmul of operands that TMA loads as they are, for a matrix unit that takes 8-bit floats of either major
    mode; None where others are copied."""
    if not problem.copied or problem.terms or problem.operand_dtype not in IMPRECISE_DTYPES:
        return None
    return _as_stored(problem)


def _as_stored(problem: GemmProblem) -> GemmProblem | None:
    """Return the matmul of copied operands in the major mode of their tensors; None where they are copied otherwise."""
    stored = replace(problem, copied=())
    for copied in problem.copied:
        source, operand = copied.sources[0], problem.multiplicand(copied.operand)
        moves = not copied.instructions and copied.lines is None and source.dtype == problem.operand_dtype
        if not moves or raw_major(source, problem.batch_pitches(copied.operand)) != "mn":
            return None
        stored = _with_pitch(stored, operand, source.k_pitch)
        changed = {"a_major": stored.a_major, "b_major": stored.b_major}
        changed["a_major" if operand.base == "a" else "b_major"] = "mn"
        stored = replace(stored, a_major=changed["a_major"], b_major=changed["b_major"])
    of_b = {each.label for each in problem.multiplicands if each.base != "a"}
    copies = of_b & {each.operand for each in problem.copied}
    return stored if copies in (set(), of_b) else None


def by_gather(problem: GemmProblem) -> tuple[GemmProblem, Prepare] | None:
    """Return the matmul whose rows of A TMA gathers by a vector of their numbers, with no kernel before it; None where A is
    anything else than rows of a matrix in 16 bits."""
    whole = problem.batch or problem.groups or problem.terms or problem.ends or problem.scales or problem.runtime
    if whole or problem.summed or len(problem.copied) != 1:
        return None
    (copied,) = problem.copied
    source, numbers = copied.sources[0], copied.lines
    if (
        numbers is None
        or source.k_picked
        or (numbers.dtype, numbers.pitch) != ("int32", 1)
        or copied.operand != "a"
        or copied.instructions
    ):
        return None
    pitched = source.k_pitch == 1 and source.pitch * itemsize(source.dtype) % TMA_ALIGNMENT_BYTES == 0
    if not (pitched and source.aligned and source.dtype == problem.operand_dtype and itemsize(source.dtype) == 2):
        return None
    stored = _with_pitch(replace(problem, copied=(), a_major="k"), problem.multiplicand("a"), source.pitch)
    return stored, Prepare(problem=problem, operands=())


def gathered(plan: GemmPlan) -> Copied | None:
    """Return the copy of A whose rows TMA gathers: one that no kernel before the matmul writes."""
    if plan.prepare is None or plan.prepare.operands:
        return None
    return plan.prepare.problem.copied[0]


def loaded_by_tma(problem: GemmProblem, unit: Unit) -> tuple[GemmProblem, Prepare | None]:
    """Return the matmul of copied operands that TMA loads as they are, and what gathers its rows. Raises ``Refusal``."""
    picked, majors = by_gather(problem), in_both_majors(problem)
    if unit == "tcgen05" and picked is not None:
        return picked
    if unit == "tcgen05" and majors is not None:
        return majors, None
    if unit == "wgmma" and (read := by_fragments(problem)) is not None:
        return read, None
    raise Refusal(
        "operands that TMA loads as they are, are implemented on tcgen05 for 8-bit floats of either major mode and for rows in"
        " 16 bits by a vector of int32, and on wgmma for a left operand in fp32 that is contiguous along M"
    )


def with_gathering(plan: GemmPlan, gathering: Prepare) -> GemmPlan:
    """Return a plan whose rows TMA gathers: it reads four of their numbers at a time. Raises ``Refusal``."""
    whole = plan.ctas == 1 and plan.problem.m % plan.tile[0] == 0 and plan.products == 1
    if not whole or plan.tile[2] * plan.operand_bytes != SWIZZLE_BYTES:
        raise Refusal(
            f"a tile of {plan.tile} in clusters of {plan.ctas} CTAs whose rows TMA gathers; tiles that divide the"
            f" {plan.problem.m} rows, of {SWIZZLE_BYTES} bytes along K and one CTA, are implemented"
        )
    return replace(plan, prepare=gathering)


def present(problem: GemmProblem, absent: Multiplicand) -> str:
    """Return the label of the operand whose matrix an absent one has: the first right operand of its term that is not."""
    return next(
        each.label
        for each in problem.multiplicands
        if each.term == absent.term and each.base != "a" and not each.absent
    )


def extents_of(problem: GemmProblem, copied: Copied) -> tuple[int, int]:
    """Return the lines of a copied operand of the matmul, and its K."""
    operand = problem.multiplicand(copied.operand)
    return problem.m if operand.base == "a" else problem.n, operand.k


def _majors(problem: GemmProblem) -> dict[str, Major]:
    """Return the contiguous dimension of the operands of each side in memory: of A, and of all B."""
    found: dict[str, Major] = {}
    for copied in problem.copied:
        side = "a" if problem.multiplicand(copied.operand).base == "a" else "b"
        source = copied.sources[0]
        turns = itemsize(problem.operand_dtype) == 2 and source.lines_are_contiguous and not source.picked
        found[side] = "mn" if turns and found.get(side) != "k" else "k"
    for each in problem.multiplicands:
        side = "a" if each.base == "a" else "b"
        if side in found and problem.copy_of(each.label) is None:
            found[side] = problem.a_major if side == "a" else problem.b_major
    return found


def _prepared(problem: GemmProblem, copied: Copied, offset: int) -> Prepared:
    """Return the matrix of an operand: in the order of the first sources of its side, unless TMA loads another one of that,
    or the matrix unit needs it K-major."""
    (lines, k), size = extents_of(problem, copied), itemsize(problem.operand_dtype)
    major = _majors(problem)["a" if problem.multiplicand(copied.operand).base == "a" else "b"]
    rows, columns = (lines, k) if major == "k" else (k, lines)
    step = TMA_ALIGNMENT_BYTES // size
    return Prepared(
        copied=copied,
        major=major,
        rows=rows,
        columns=columns,
        pitch=-(-columns // step) * step,
        batches=_matrices(problem, copied),
        offset_bytes=offset,
    )


def _matrices(problem: GemmProblem, copied: Copied) -> int:
    """Return how many matrices an operand has: those of the dimensions of the batch along which it differs."""
    if problem.batch is None:
        return 1
    levels = zip(problem.batch.levels, varying(problem, copied), strict=True)
    found = math.prod(level.size for level, varies in levels if varies)
    if found > MAX_MATRICES:
        raise Refusal(f"{copied.sources[0].name} of {found} matmuls in memory; up to {MAX_MATRICES} are implemented")
    return found


def _prepared_sums(problem: GemmProblem, copied: Copied, offset: int) -> Prepared:
    """Return the vector of the sums of an operand of the epilogue."""
    lines = lines_of_sums(problem, copied)
    return Prepared(
        copied=copied, major="k", rows=lines, columns=1, pitch=1, batches=1, offset_bytes=offset, totals=True
    )


def lines_of_sums(problem: GemmProblem, copied: Copied) -> int:
    """Return the lines of a sum along K: rows, or columns, of the result."""
    return problem.m if copied.operand in [each.label for each in problem.epilogue.of_kind("column")] else problem.n


def check_sums(problem: GemmProblem) -> None:
    """Check vectors that are sums along K. Raises ``Refusal``."""
    several = problem.batch or problem.groups or problem.scales or problem.terms
    if problem.summed and (several or problem.runtime):
        raise Refusal(
            "sums along K next to a matmul are implemented without batches and scales, of sizes that are known when the"
            " kernel is compiled; use hl.specialize"
        )
    for copied in problem.summed:
        packed = [each.name for each in copied.sources if per_byte(each.dtype) > 1]
        if packed:
            raise Refusal(f"sums along K of {packed[0]}, which has 4-bit numbers, are not implemented")
        copied.check(lines_of_sums(problem, copied), problem.k)


def _bytes_of(problem: GemmProblem, prepared: Prepared) -> int:
    size = SUM_BYTES if prepared.totals else itemsize(problem.operand_dtype)
    return prepared.rows * prepared.pitch * prepared.batches * size


def _aligned_bytes(problem: GemmProblem, prepared: Prepared) -> int:
    """Return the bytes from one operand in memory to the next."""
    return -(-_bytes_of(problem, prepared) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _check_span(problem: GemmProblem, prepared: Prepared) -> None:
    """Check that 32-bit offsets reach all elements of all batches. Raises ``Refusal``."""
    copied = prepared.copied
    lines, k = (prepared.rows, problem.k) if prepared.totals else extents_of(problem, copied)
    spans = [span_of(each, lines, k) for each in copied.sources]
    for at in range(0 if prepared.totals or problem.batch is None else len(spans)):
        assert problem.batch is not None
        steps = zip(problem.batch.levels, steps_of(problem, copied, at), strict=True)
        spans[at] += sum((level.size - 1) * step for level, step in steps)
    span = max(*spans, prepared.rows * prepared.pitch * prepared.batches)
    if span > MAX_SPAN:
        raise Refusal(f"{copied.sources[0].name} spans {span} elements in memory; up to {MAX_SPAN} are implemented")


def is_turned(prepared: Prepared) -> bool:
    """Return whether the first source is contiguous across the rows of the matrix."""
    source = prepared.copied.sources[0]
    return prepared.major == "k" and source.lines_are_contiguous


def prepared_bytes(prepare: Prepare | None) -> int:
    """Return the bytes of all operands in memory."""
    if prepare is None:
        return 0
    last = prepare.operands[-1]
    return last.offset_bytes + _bytes_of(prepare.problem, last)
