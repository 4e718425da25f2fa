"""Tiles of loops over single indices, by the loads that their rows share."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl

GPUS = ("sm_80", "sm_90", "sm_100", "gfx942")


@helion.kernel
def differing_words(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    n, words = a.size()
    m = b.size(0)
    out = torch.empty([n, m], dtype=torch.int32, device=a.device)
    for rows, columns in hl.tile([n, m]):
        count = hl.zeros([rows, columns], dtype=torch.int32)
        for word in range(words):
            count += (a[rows, word][:, None] != b[columns, word][None, :]).to(torch.int32)
        out[rows, columns] = count
    return out


@helion.kernel
def summed_steps(x: torch.Tensor) -> torch.Tensor:
    steps, n, m = x.size()
    out = torch.empty([n, m], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile([n, m]):
        total = hl.zeros([rows, columns])
        for step in range(steps):
            total = total * 0.5 + x[step, rows, columns]
        out[rows, columns] = total
    return out


def codes(rows: int, device: str = "meta") -> torch.Tensor:
    return torch.randint(0, 3, [rows, 8], dtype=torch.int32, device=device)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("rows", [100, 4096])
def test_rows_share_loads_that_lack_an_axis(rows: int, gpu: str) -> None:
    bound = differing_words.bind((codes(rows), codes(4096)), target=gpu)
    first, *others = (seed for seed in bound.seeds if seed.heuristic == "TritonRecurrenceHeuristic")
    count, run = first.config["block_sizes"]
    assert count >= 8 and run >= 32
    assert first.config == bound.default_config() and not first.predicted.spills
    assert first.predicted.time_us < 0.7 * min(seed.predicted.time_us for seed in others)


@pytest.mark.parametrize("gpu", GPUS)
def test_tiles_follow_memory_where_loads_have_all_axes(gpu: str) -> None:
    bound = summed_steps.bind((torch.empty([64, 512, 4096], device="meta"),), target=gpu)
    count, run = bound.default_config()["block_sizes"]
    assert count == 1 and run >= 64


@pytest.mark.parametrize("sizes", [(63, 33), (1, 130)])
def test_codes_are_compared(sizes: tuple[int, int]) -> None:
    a, b = (codes(rows, "cpu") for rows in sizes)
    assert torch.equal(differing_words(a, b), (a[:, None] != b[None]).sum(-1, dtype=torch.int32))
