"""The choices of a layout that fit, and the one of the shortest predicted time."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from .....hardware import Target
from ..refusal import Refusal
from .choice import Keep, RowChoice
from .demand import RowDemand
from .layout import CLUSTERS, OVERLAPPED_PASSES, WARPS, layout_of
from .records import RowLayout
from .time import fastest_span

LEAST_CLUSTER_WARPS = 8
"""Warps of a row in each CTA of a cluster: with fewer, an exchange costs more than the row's part."""
KEEPS: tuple[Keep, ...] = ("registers", "shared")
ROWS = (1, 2, 4, 8)
"""Rows of a CTA at a time."""
CTAS = (2, 1)
"""CTAs per SM."""
SINGLE_ROW_CTAS = (8, 4)
"""The same, in addition, where a CTA has one row at a time: more of them hide the waits of short rows."""
OWN_LOAD_CTAS = (16, 12, 10)
"""The same where the one warp of a CTA loads its own rows with sums."""
NUMBERED_WARPS = {4: 4, 3: 8}
"""Warps of a CTA by CTAs per SM, in addition, where rows of 16 bits with numbers of their columns stay in shared memory
(grpo_loss, kind ``layout`` in nvidia-h200-row-kernels.jsonl)."""
OVERLAP_CTAS = (4, 3, 2, 1)
"""The same where the map of a row of several warps overlaps with the reduction of a later one."""
SHORT_ROW_BYTES = 2048
"""Bytes of a row of an input, for each sum, below which that is so (rms_norm_backward in nvidia-h200-row-kernels.jsonl)."""
LONG_ROW_BYTES = 2**18
"""Bytes of a row of all inputs from which rows without sums overlap by default: shorter ones gain one percent."""
LONG_MASKED_BYTES = 2**16
"""The same with rows that repeat: scaled_masked_softmax of 32768 columns gains 6 % (kind ``layout``)."""
MOST_OVERLAPPED_CTAS = 8
"""CTAs of a cluster up to which rows without sums overlap by default. Clusters of 16 CTAs leave SMs idle."""
MANY_ROWS = 8
"""Rows for each SM from which the smallest cluster is the fastest with several sums (layer_norm_backward in
nvidia-h200-row-kernels.jsonl: clusters of twice the CTAs take 1.2 to 1.4 times as long)."""
SINGLE_ROW_WARPS = 16
"""The most warps of rows that these have together."""


@functools.lru_cache(maxsize=64)
def layouts(demand: RowDemand, target: Target) -> tuple[RowLayout, ...]:
    """Return all layouts that fit; if there is none, the reason of the one with the most CTAs is raised as ``Refusal``.

    Those that move registers between warps are for rows that have no other.
    """
    found, reason = [], None
    for choice in _choices(demand):
        try:
            found.append(layout_of(demand, choice, target))
        except Refusal as refusal:
            large = choice.ctas_per_sm == 1 and choice.warps == LEAST_CLUSTER_WARPS and choice.rows == 1
            reason = refusal if large and not choice.rows_ahead else reason or refusal
    if not found:
        assert reason is not None
        raise reason
    return tuple([each for each in found if not each.moved] or found)


def _is_short(demand: RowDemand) -> bool:
    """Return whether more than two CTAs of rows with sums are faster: one warp has several granules of longer rows."""
    return demand.n * min(demand.inputs) < SHORT_ROW_BYTES * max(1, demand.sums)


def _is_better_overlapped(layout: RowLayout) -> bool:
    """Return whether rows are faster where their maps overlap with reductions: rows of several warps with sums, and long
    ones that begin at granules, of clusters that cover most SMs (kind ``layout`` in nvidia-h200-row-kernels.jsonl)."""
    demand = layout.demand
    if demand.sums:
        return layout.partials > 1
    twice = demand.walks > OVERLAPPED_PASSES[0] and not demand.repeated
    apart = demand.pairs or demand.group or twice
    timed = _is_long(demand) and layout.aligned and not apart
    return timed and 1 < layout.choice.cluster <= MOST_OVERLAPPED_CTAS


def _is_long(demand: RowDemand) -> bool:
    return demand.n * sum(demand.inputs) >= (LONG_MASKED_BYTES if demand.repeated else LONG_ROW_BYTES)


def _choices(demand: RowDemand) -> Iterator[RowChoice]:
    single = bool(demand.sums or demand.repeated)
    per_sm = (*SINGLE_ROW_CTAS, *CTAS) if single else CTAS
    for ctas, keep in itertools.product(OWN_LOAD_CTAS, KEEPS) if demand.sums else ():
        yield RowChoice(cluster=1, warps=1, rows=1, ctas_per_sm=ctas, keep=keep)
    for ahead, keep, ctas, cluster, warps in itertools.product((False, True), KEEPS, per_sm, CLUSTERS, WARPS):
        if (cluster > 1 and warps < LEAST_CLUSTER_WARPS) or (ctas == 2 and warps == WARPS[-1]):
            continue
        if ahead and cluster == 1:
            continue
        if ctas in SINGLE_ROW_CTAS and (cluster > 1 or ctas * warps > SINGLE_ROW_WARPS or not _is_short(demand)):
            continue
        for rows in ROWS if cluster == 1 and not single else (1,):
            if rows * warps <= 8 * (3 - ctas) or single:
                yield RowChoice(cluster=cluster, warps=warps, rows=rows, ctas_per_sm=ctas, keep=keep, ahead=ahead)
    for ctas, warps, rows in itertools.product(NUMBERED_WARPS, WARPS, ROWS) if demand.numbered and not single else ():
        if rows * warps == NUMBERED_WARPS[ctas] and (ctas == 4 or warps == 1):
            yield RowChoice(cluster=1, warps=warps, rows=rows, ctas_per_sm=ctas, keep="shared")
    for warps, cluster in itertools.product(WARPS, CLUSTERS) if demand.sums or demand.later else ():
        if (cluster > 1 or not demand.sums) and warps < LEAST_CLUSTER_WARPS:
            continue
        for ctas in CTAS if cluster > 1 else OVERLAP_CTAS if warps > 1 else SINGLE_ROW_CTAS:
            yield RowChoice(cluster=cluster, warps=warps, ctas_per_sm=ctas, keep="shared", overlap=True)


@functools.lru_cache(maxsize=256)
def ranked(demand: RowDemand, m: int, target: Target, tiled: bool = True) -> tuple[RowLayout, ...]:
    """Return the layouts by predicted time; of nearly equal ones, those with fewer CTAs, warps and registers first.

    With several sums over many rows the smallest cluster comes first: instructions bound such kernels, and each CTA of a
    cluster has those of its own wait for messages. Of many rows, those that overlap come first, as no warp waits.

    Rows whose warps take registers are not reduced ahead (layer_norm_backward of 262144 columns takes 0.88 of the time).
    Nor are many rows that are only reduced and have elements that data selects: each step would wait (cross_entropy of
    4096 rows of 32768 columns takes 0.87 of the time).

    Many rows that are searched for a position are reduced ahead (argmax of 50257 and 262144 columns takes 0.93 of the time).

    If rows are not ``tiled``, a CTA works on one at a time. Rows with an end that only the launch knows, which are stored,
    are reduced ahead by many warps: softmax of 50257 columns takes 0.92 of the time (kind ``layouts`` in
    nvidia-h200-row-kernels.jsonl).
    """

    few = m <= MANY_ROWS * target.num_sms
    bound = demand.sums > 1 and not few
    long = _is_long(demand)

    searched = bool(demand.temporaries) and not (few or demand.later or demand.sums or demand.gathers)

    def order(layout: RowLayout) -> tuple[float, ...]:
        choice = layout.choice
        _, share = fastest_span(layout, m, target)
        spare = layout.registers_needed + 16 <= layout.register_limit
        stored = bool(demand.least) and demand.later and not layout.aligned and not demand.sums
        return (
            layout.moved and choice.ahead,
            choice.ahead and bool(demand.gathers) and not demand.later and not few,
            choice.loads_itself or (choice.overlap and (few or not _is_better_overlapped(layout))),
            choice.cluster if bound else 0,
            (bool(demand.sums) or long) and not few and not choice.overlap,
            float(f"{share:.2g}"),
            choice.ahead != (stored or searched),
            demand.numbered and -choice.ctas_per_sm * choice.rows * choice.warps,
            demand.numbered and -choice.ctas_per_sm,
            choice.cluster,
            -choice.rows,
            -choice.warps if stored and choice.ahead else choice.warps,
            not spare,
            -choice.ctas_per_sm,
        )

    return tuple(sorted((each for each in layouts(demand, target) if tiled or each.choice.rows == 1), key=order))


def varied(demand: RowDemand, m: int, target: Target, tiled: bool = True) -> tuple[RowLayout, ...]:
    """Return the best layout, then the best of those that differ in one decision."""
    first, *others = ranked(demand, m, target, tiled)
    found = [first]
    for differs in (
        lambda choice: choice.keep != first.choice.keep,
        lambda choice: choice.ctas_per_sm != first.choice.ctas_per_sm,
        lambda choice: choice.cluster > first.choice.cluster,
        lambda choice: choice.warps != first.choice.warps,
        lambda choice: choice.ahead != first.choice.ahead,
    ):
        found += [layout for layout in others if differs(layout.choice) and layout not in found][:1]
    return tuple(found)
