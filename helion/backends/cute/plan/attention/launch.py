"""Checks of the sizes and strides of one launch, and divisors that kernels rely on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..dtypes import itemsize
from ..records import TMA_ALIGNMENT_BYTES
from ..refusal import Refusal
from ..runtime import MAX_EXTENT
from .backward import BackwardProblem, is_staging_kind
from .build import NARROW_DTYPES, QUAD, check_quads
from .numbers import LaunchInt
from .operands import Matrix, Place, Source, Table
from .records import AttentionProblem, ScoreProblem


def strides_of(matrices: Iterable[Matrix], vectors: Iterable[Source]) -> dict[str, int]:
    """Return the divisors, in elements, of launch-time strides that TMA uses, by name."""
    found: dict[str, int] = {}
    accessed: list[Matrix | Source] = [*matrices, *vectors]
    for each in accessed:
        pitches = (each.pitch,) if isinstance(each, Matrix) else ()
        for number in (*pitches, each.offset, *(mode.stride for mode in each.modes)):
            if isinstance(number, LaunchInt):
                multiple = TMA_ALIGNMENT_BYTES // itemsize(each.dtype)
                found[number.name] = max(multiple, found.get(number.name, 1))
    return found


def launch_multiples(problem: ScoreProblem) -> dict[str, int]:
    """Return the divisors of launch-time strides by which kernels differ: those of matrices, and of numbers per streamed row
    that TMA loads where it can."""
    vectors = (
        [each for each in problem.sources if is_staging_kind(each)] if isinstance(problem, BackwardProblem) else []
    )
    return {**strides_of(problem.matrices, vectors), **key_multiples(problem)}


def key_multiples(problem: ScoreProblem) -> dict[str, int]:
    """Return the divisor of a launch-time number of keys, by its name, where keys are loaded in fours."""
    return {problem.keys.name: QUAD} if _loads_quads(problem) and isinstance(problem.keys, LaunchInt) else {}


def _loads_quads(problem: ScoreProblem) -> bool:
    return isinstance(problem, AttentionProblem) and problem.q.dtype in NARROW_DTYPES


def check_launch(problem: ScoreProblem) -> None:
    """Check the sizes of a launch. Raises ``Refusal``."""
    extents = {"heads": min(problem.heads), "queries": problem.queries, "keys": problem.keys}
    for name, extent in extents.items():
        if extent < 1:
            raise Refusal(f"attention of {extent} {name}; at least one is implemented")
    if isinstance(problem, BackwardProblem) and problem.repeats < 1:
        raise Refusal(f"gradients of {problem.repeats} heads that share keys; at least one is implemented")
    if problem.queries * problem.batches > MAX_EXTENT:
        raise Refusal(f"attention of {problem.queries * problem.batches} queries of all heads; up to {MAX_EXTENT}")
    if isinstance(problem, AttentionProblem):
        check_quads(problem)
    if any(unit != 1 for unit in problem.units):
        raise Refusal(
            "a tensor is not contiguous along the dimensions of a head, or the distance of its heads is no whole number of rows"
        )
    for matrix in problem.matrices:
        if any(mode.stride == 0 for mode in matrix.modes):
            raise Refusal(f"{matrix.name} has a stride of 0 that is known only at launch")
    for each in problem.accessed:
        for mode in each.modes:
            _check_divisors(mode.at, each.name)
    for each in problem.accessed[len(problem.matrices) :]:
        _check_reach(problem, each)


def _check_divisors(place: Place, name: str) -> None:
    parts = [each for each in place.arguments if isinstance(each, Place)]
    if place.op in ("floordiv", "mod") and parts[1].op == "number":
        (divisor,) = parts[1].arguments
        if isinstance(divisor, int) and divisor < 1:
            raise Refusal(f"an index of {name} is divided by {divisor}; divisors are positive")
    for each in parts:
        _check_divisors(each, name)


def _check_reach(problem: ScoreProblem, each: Matrix | Source) -> None:
    """Check that offsets of numbers that threads access fit in 32 bits."""
    pitches: Sequence[int] = (each.pitch,) if isinstance(each, Matrix) else each.pitches
    columns = each.size if isinstance(each, Table) else max(problem.keys, problem.matrices[0].columns)
    steps = [*zip(pitches, (problem.queries, columns), strict=False)]
    last = sum(stride * (size - 1) for stride, size in (*steps, *((mode.stride, mode.size) for mode in each.modes)))
    if last > MAX_EXTENT:
        raise Refusal(f"{each.name} has offsets of {last} elements; below 2**31 are implemented")
