"""Steps of several matmuls: a tile without stages where a pipeline has room for small tiles alone."""

from __future__ import annotations

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS


@helion.kernel()
def taps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Convolve rows of ``x[B, T, C]`` with ``w[TAPS, C, N]``."""
    b, t, c = x.size()
    count, _, n = w.size()
    count = hl.specialize(count)
    out = torch.empty([b, t - count + 1, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_t, tile_n in hl.tile([b, t - count + 1, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
        for tile_c in hl.tile(c):
            for tap in hl.static_range(count):
                acc = hl.dot(x[tile_b.begin, tile_t.index + tap, tile_c], w[tap, tile_c, tile_n], acc=acc)
        out[tile_b.begin, tile_t, tile_n] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize(("count", "gpu", "stages"), [(5, "h200", 1), (2, "h200", None), (5, "sm_80", None)])
def test_steps_of_several_matmuls_have_one_stage(count: int, gpu: str, stages: int | None) -> None:
    args = (tensor(16, 2048 + count - 1, 256), tensor(count, 256, 512))
    first = taps.bind(args, target=gpu).seeds[0]
    assert first.heuristic == "TritonMatmulHeuristic"
    assert first.config["num_stages"] == stages if stages else first.config["num_stages"] > 1
    if stages:
        assert first.config["block_sizes"] == [128, 128, 64] and not first.predicted.spills


@pytest.mark.parametrize(("gpu", "stages"), [("h200", 3), ("sm_80", 4)])
def test_short_pipelines_of_shallow_tiles_are_predicted_too(gpu: str, stages: int) -> None:
    cell = CELLS["dilated_taps"]
    bound = cell.kernel.bind(cell.arguments("meta", False), target=gpu)
    first = bound.seeds[0]
    assert first.config["num_stages"] == stages and not first.predicted.spills
    if gpu == "h200":
        assert first.config["block_sizes"] == [128, 64, 32]
        alone = bound._analysis.predict(bound._analysis.full_config({"block_sizes": [64, 64, 64], "num_stages": 1}))
        assert first.predicted.time_us < 0.9 * alone.time_us
