"""The choice among the candidates of a family, and how far predicted times are trusted for it.

A candidate must fit and not spill. Among those, the first that fills the waves comes first, else the one that leaves
the fewest SMs idle (``full_first``). Another one replaces it where its predicted time is shorter by a ratio that the
rows of rule ``trust`` have (``unless_faster``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar, TypeVar

from ...._support.records import dataclass
from ....hardware import Target
from .sizing import wave_efficiency
from .tuned import Tuned, tuned

_T = TypeVar("_T")
#: A candidate and its predicted microseconds.
Timed = tuple[_T, float]


@dataclass(frozen=True)
class Trust(Tuned):
    """Largest ratios of predicted times at which one candidate replaces another; 0 where it never does."""

    rule: ClassVar[str] = "trust"

    #: Fraction of the SMs' time from which waves count as full.
    full_waves: float
    #: The fastest tile of several matmuls, for the first that fills the waves.
    several_matmuls: float
    #: Fewer rows of programs that multiply once, for the usual tile.
    fewer_multiplied: float
    #: Shorter runs of random numbers, for those by the rule.
    shorter_runs: float
    #: Fewer and longer rows of a permuted copy, for the tile of other elementwise kernels.
    longer_rows: float
    #: Other rows per thread and another order of programs, for the tile of elementwise kernels whose rows share operands.
    reused: float
    #: Other runs and warps, for an elementwise kernel of less than a wave.
    at_once: float
    #: Longer or shorter lines along K of several matmuls, for the usual ones.
    other_lines: float
    #: Longer tiles that leave fewer atomics, for moderate ones.
    fewer_atomics: float
    #: More rows of a program that adds their sums to memory, for those by the rule: such sums take longer than predicted.
    fewer_sums: float
    #: A quarter or an eighth of the results of a reduction over pairs, for all that registers hold.
    fewer_results: float
    #: Steps of a vector of rows of both sides of pairs, for single elements.
    vector_steps: float
    #: A warp for results of one row of several, for a thread of each result of several rows.
    one_row: float
    #: Half the warps and half the tile that a loop between bounds from data reduces, for those by the rule.
    fewer_reducing: float
    #: Programs of more warps and longer chunks, for fewer programs than SMs.
    wide_programs: float
    #: Column reductions with half the warps, for a tile by the rule.
    lighter_columns: float
    #: The same for programs that an SM holds one of, though there are more, by those of which it holds several.
    overlapping_columns: float
    #: Rows held whole with a half or a quarter of the warps, for those by the rule.
    lighter_rows: float
    #: Shorter tiles of loops that read a row twice, in a part of the warps, for those of all threads.
    shorter_loops: float
    #: Fewer rows of a warp whose threads hold most of their registers, for those by the rule.
    thinner_rows: float
    #: Programs of more short rows, for those by the rule.
    fuller_programs: float
    #: Scans of columns in chunks, for all steps at once.
    chunked_scans: float
    #: Short steps of a loop over several tiles, for tiles by the rules for rows.
    short_steps: float
    #: Programs of the same rows together, for those of the same result of each row.
    near_rows: float
    #: Nearby tiles and warps of a reduction, for those by its rule.
    nearby: float
    #: The same for a loop of the kernel's own over rows.
    nearby_steps: float
    #: The tiles of each grid loop alone, for those by the rule of one of them.
    loops_alone: float
    #: The same in kernels with computed subscripts.
    gathers_alone: float
    #: Elementwise tiles in a half or a quarter of the warps, for those by the rule.
    fewer_threads: float
    #: Tiles of a kernel without a rule, for moderate ones.
    predicted_tiles: float
    #: Chunks of a scan in few warps, for whole rows.
    predicted_scans: float
    #: Two rows of a batch that share loads, for one.
    sharing_rows: float
    #: Half the rows of a program that accumulates gradients, for as many as give each SM one.
    fewer_summed_rows: float
    #: A split reduction of fewer chunks than a rule asks for, for the same without a split.
    few_chunks: float
    #: More rows of a tile with results that host code reads, for those by a rule.
    tile_results: float
    #: Another order of programs, for row-major.
    grid_order: float
    #: A matmul with rewritten operands, for the one as written; and the same with swapped A and B and split-K.
    rewritten: float
    rewritten_split_k: float
    #: Split-K, for one program per tile; the same of matmuls of which one multiplies the results of another.
    split_k: float
    chained_split_k: float
    #: The same where steps of a program that an SM holds alone compute an operand.
    shared_steps: float
    #: Fewer warps for elementwise tiles that many tensors make short; 0 keeps the warps.
    short_tiles: float
    #: Tiles of rows that a loop computes from several loads, for those by the formula.
    computed_rows: float
    #: Twice the columns of fused loops, for the usual tile.
    more_columns: float
    #: A persistent grid of matmuls with a fixed side, for programs of one tile.
    persistent: float
    #: Nearby tiles and warps of several matmuls, for those by the rule.
    near_products: float
    #: Longer pipelines and more rows of matmuls of a large batch, for those by the formula.
    pipelined: float
    #: The programs of each matrix of a batch together, where an operand exceeds the cache, for those of all matrices.
    whole_batches: float
    #: Unfused matmuls, for the fused kernel's promoted seed.
    unfused: float
    #: The same where K has a few steps.
    unfused_short: float
    #: More whole rows of an elementwise program, for a tile of so many bytes.
    fewer_programs: float
    #: Fewer rows per program after an unfused matmul, for as many as the budget allows.
    fewer_rows: float
    #: K-major copies of operands, for swapped A and B.
    copied: float
    #: One cooperative launch, for a launch of each phase.
    one_launch: float
    #: One stage of several matmuls over K, for a pipeline of smaller tiles.
    unstaged: float


def trust(target: Target) -> Trust:
    """Return the ratios for ``target``."""
    return tuned(Trust, target)


def full_first(candidates: Iterable[_T], programs: Callable[[_T], int], target: Target) -> _T | None:
    """Return the first candidate whose programs fill the waves, else the one that leaves the fewest SMs idle.

    The candidates are feasible, in order of preference. Return None without candidates.
    """
    seen: list[tuple[float, _T]] = []
    for candidate in candidates:
        efficiency = wave_efficiency(programs(candidate), target)
        if efficiency >= trust(target).full_waves:
            return candidate
        seen.append((efficiency, candidate))
    return max(seen, key=lambda pair: pair[0])[1] if seen else None


def fastest(candidates: Iterable[Timed[_T]]) -> Timed[_T] | None:
    """Return the candidate of least predicted time, the first of several; None without candidates."""
    return min(candidates, key=lambda timed: timed[1], default=None)


def unless_faster(first: Timed[_T], others: Iterable[Timed[_T]], ratio: float) -> _T:
    """Return ``first``, or the fastest of ``others`` where its predicted time is at most ``ratio`` times as long."""
    best = fastest(others)
    return best[0] if best is not None and best[1] <= ratio * first[1] else first[0]
