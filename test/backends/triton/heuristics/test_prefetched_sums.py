"""Loops that add rows up for each feature prefetch their steps."""

from __future__ import annotations

import torch
from harness import tensor

import helion
from benchmarks.unfitted import CELLS


def stages_of(config: helion.Config) -> list[int | None]:
    return list(config.config.get("range_num_stages") or [])


def test_sums_of_rows_prefetch_their_steps() -> None:
    """Measured on an H200: 16 rows in 4 warps 138.8 us without stages, 86.6 with three."""
    cell = CELLS["sentence_embeddings"]
    bound = cell.kernel.bind(cell.arguments("meta", False), target="h200")
    first, plain, *_ = bound.seeds
    assert first.config == bound.default_config() and stages_of(first.config) == [0, 3]
    assert plain.config["block_sizes"] == first.config["block_sizes"] == [16] and 3 not in stages_of(plain.config)
    hidden, mask = torch.randn(3, 70, 40), (torch.arange(70) < torch.tensor([[70], [33], [1]])).to(torch.int64)
    torch.testing.assert_close(cell.kernel(hidden, mask), cell.reference(hidden, mask).float())


def test_short_loops_unaligned_rows_and_other_gpus_have_no_stages() -> None:
    kernel = CELLS["sentence_embeddings"].kernel
    for tokens, features, gpu in ((384, 767, "h200"), (40, 768, "h200"), (384, 768, "gfx942")):
        given = tensor(512, tokens, features, dtype=torch.float16), tensor(512, tokens, dtype=torch.int64)
        assert 3 not in stages_of(kernel.bind(given, target=gpu).default_config())
