"""Sweeps: what is kept, how far the first seeds are from its best, and what a sweep leaves out."""

from __future__ import annotations

import collections
import dataclasses
import json
import math

import torch
from conftest import PROVE

from benchmarks import sweep
from benchmarks.cells import inputs, timed_cells
from benchmarks.timing import RecordedTimer
from benchmarks.unseen.rows import channel_statistics
from benchmarks.workloads.rows import max_pool_nhwc
from helion._testing import map_tensors

KEPT = sweep.parse(sweep.KEPT.read_text())
#: Kernels that the seeds leave further from the best than a tenth: two loops that want different tiles, and rows of 4096
#: behind a product, held whole, which spill in the tiles that are fastest.
FAR = {"grpo_loss": 1.3, "matmul_layernorm": 1.3}


def test_what_is_kept_reads_back() -> None:
    assert len(KEPT) > 4000 and "\n".join(row.text for row in KEPT) + "\n" == sweep.KEPT.read_text()
    assert {row.key for row in KEPT} <= {cell.key[1:] for cell in timed_cells()}


def test_the_seeds_are_near_the_best_of_the_sweeps() -> None:
    kernels = sorted({row.kernel for row in KEPT})
    looked_at = kernels if PROVE else kernels[::5]
    ratios = collections.defaultdict(list)
    for score in sweep.scores(row for row in KEPT if row.kernel in looked_at):
        if score.ratio is not None:
            ratios[score.cell.kernel, score.cell.dtype].append(score.ratio)
    # first seeds whose loads evict first, or that walk one run flat, were not among what was swept
    assert sum(map(len, ratios.values())) > (170 if PROVE else 15)
    for (kernel, dtype), found in ratios.items():
        mean = math.exp(sum(map(math.log, found)) / len(found))
        assert mean <= FAR.get(kernel, 1.1), f"{kernel} {dtype}: {mean:.2f} of the best"


def test_a_sweep_leaves_out_what_is_illegal_and_orders_nothing() -> None:
    (cell,) = (c for c in timed_cells() if c.kernel == "softmax" and "of 1000" in c.case and c.dtype == "float32")
    small = map_tensors(cell.args, lambda t: torch.empty(8, 100, dtype=t.dtype, device="meta"))
    cell = dataclasses.replace(cell, args=small)
    timer = RecordedTimer(collections.defaultdict(lambda: [3.0, 4.0, 5.0]))
    grid = {"block_sizes": [[1], [2], [3]], "num_warps": [4, 8]}
    found = list(sweep.swept(cell, inputs(cell, "cpu"), sweep.combinations(grid), timer))
    assert [row.config for row in found] == [c for c in sweep.combinations(grid) if c["block_sizes"] != [3]]
    assert {row.microseconds for row in found} == {4.0}
    assert sweep.parse(found[0].text) == [dataclasses.replace(found[0], config=json.loads(json.dumps(found[0].config)))]


def test_scores_of_cells_whose_seed_was_not_timed_have_no_ratio() -> None:
    row = dataclasses.replace(next(r for r in KEPT if r.kernel == "softmax"), config={"block_sizes": [64]})
    (score,) = sweep.scores([row])
    assert score.ratio is None and sweep.text_of([score]).endswith("seed / best -; 0 of 1 cells, 1 configs")


def test_samples_are_the_same_every_time_and_are_legal() -> None:
    (cell,) = (c for c in timed_cells() if c.kernel == "softmax" and "of 1000" in c.case and c.dtype == "float32")
    found = sweep.sampled(cell, 12)
    assert found == sweep.sampled(cell, 12) and len(found) == len({repr(config) for config in found}) == 12
    bound = cell.function.bind(cell.args, target=sweep.KEPT_TARGET)
    assert [dict(bound.config_spec.normalize(config)) for config in found] == found
    assert found[0] == dict(bound.seeds[0].config)


def test_sampled_cells_take_turns_by_kernel() -> None:
    cells = timed_cells()
    of = [index for index, cell in enumerate(cells) if cell.kernel in ("softmax", "add")]
    order = sweep.in_turns(cells, of)
    assert sorted(order) == of and {cells[index].kernel for index in order[:2]} == {"softmax", "add"}


def test_kept_times_are_of_code_without_shared_rows_and_late_reductions() -> None:
    pool = max_pool_nhwc.bind((torch.empty(2, 9, 9, 64, device="meta"),), target="h200").facts
    means = channel_statistics.bind((torch.empty(4, 8, 1000, device="meta"),), target="h200").facts
    assert pool.row_windows and means.late_reductions
    for facts in map(sweep.measured_facts, (pool, means)):
        assert not facts.row_windows and not facts.late_reductions
        assert facts.flat is None or facts.flat.value is None or not facts.flat.value.facts.late_reductions
    again = sweep.measured_facts(means)
    assert sweep.measured_facts(again) is again and again.memory_ops == means.memory_ops
