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


@helion.kernel
def blurred(x: torch.Tensor, radius: int) -> torch.Tensor:
    h, w, channels = x.size()
    out = torch.empty_like(x)
    for rows, columns, each in hl.tile([h, w, channels]):
        total = hl.zeros([rows, columns, each])
        for i in range(-radius, radius + 1):
            for j in range(-radius, radius + 1):
                y, at = rows.index + i, columns.index + j
                inside = ((y >= 0) & (y < h))[:, None, None] & ((at >= 0) & (at < w))[None, :, None]
                total += hl.load(x, [y, at, each], extra_mask=inside).to(torch.float32)
        out[rows, columns, each] = (total / (2 * radius + 1) ** 2).to(x.dtype)
    return out


@helion.kernel
def filtered(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    b, t = x.size()
    out = torch.empty_like(x)
    for rows, columns in hl.tile([b, t]):
        total = hl.zeros([rows, columns])
        for i in range(taps.size(0)):
            at = columns.index - i
            total += taps[i] * hl.load(x, [rows, at], extra_mask=(at >= 0)[None, :])
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


@pytest.mark.parametrize("gpu", GPUS)
def test_steps_that_walk_windows_have_rows_and_no_stages(gpu: str) -> None:
    image = torch.empty([224, 224, 64], dtype=torch.float16, device="meta")
    signals, taps = torch.empty([256, 48000], device="meta"), torch.empty([33], device="meta")
    more = 1 if gpu.startswith("sm") else 2  # threads of a warp
    for bound, sizes in (
        (blurred.bind((image, 2), target=gpu), [8, 4 * more, 64]),
        (filtered.bind((signals, taps), target=gpu), [8 * more, 128]),
    ):
        config = bound.default_config()
        assert config["block_sizes"] == sizes and config["num_warps"] == 4
        assert not any(config["range_num_stages"])


def test_windows_are_filtered() -> None:
    torch.manual_seed(0)
    x, taps = torch.randn(3, 300), torch.randn(9)
    want = torch.nn.functional.conv1d(torch.nn.functional.pad(x[:, None], (8, 0)), taps.flip(0)[None, None])[:, 0]
    torch.testing.assert_close(filtered(x, taps), want)
    image = torch.randn(13, 17, 5).to(torch.float16)
    mean = torch.nn.functional.avg_pool2d(image.float().permute(2, 0, 1), 5, 1, 2).permute(1, 2, 0)
    torch.testing.assert_close(blurred(image, 2), mean.to(torch.float16), rtol=1e-2, atol=1e-3)
