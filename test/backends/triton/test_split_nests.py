"""Split-K of loops over several dimensions, and tiles of matmuls in nests of loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import facts_of, program_of, tensor

import helion
import helion.language as hl
from helion._compiler.ir.rewrite import Declined
from helion._compiler.rewrites.split_k.legality import accumulation_loop

BF16 = torch.bfloat16


def of_taps(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """The gradient of weights of a 3x3 convolution: a loop over images and rows around one over columns."""
    n, h, w, d = g.size()
    c = x.size(3)
    out = torch.empty([3, 3, c, d], dtype=torch.float32, device=x.device)
    for tile_i, tile_j, tile_c, tile_d in hl.tile([3, 3, c, d], block_size=[1, 1, None, None]):
        i, j = tile_i.begin, tile_j.begin
        acc = hl.full([tile_c, tile_d], 0.25, dtype=torch.float32)
        for image, y in hl.grid([n, h]):
            for tile_w in hl.tile(w):
                acc = hl.dot(x[image, y + i, tile_w.index + j, tile_c].T, g[image, y, tile_w, tile_d], acc=acc)
        out[i, j, tile_c, tile_d] = acc
    return out


def of_taps_expected(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    h, w = g.size(1), g.size(2)
    taps = [[torch.einsum("nhwc,nhwd->cd", x[:, i : i + h, j : j + w], g) for j in range(3)] for i in range(3)]
    return torch.stack([torch.stack(each) for each in taps]) + 0.25


def of_heads(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """One loop over all three dimensions of a sum, with tiles of one along two of them."""
    n, h, t, c = x.size()
    d = g.size(3)
    out = torch.empty([c, d], dtype=torch.float32, device=x.device)
    for tile_c, tile_d in hl.tile([c, d]):
        acc = hl.zeros([tile_c, tile_d], dtype=torch.float32)
        for tile_n, tile_h, tile_t in hl.tile([n, h, t], block_size=[1, 1, None]):
            left = x[tile_n.begin, tile_h.begin, tile_t, tile_c]
            acc = hl.dot(left.T, g[tile_n.begin, tile_h.begin, tile_t, tile_d], acc=acc)
        out[tile_c, tile_d] = torch.relu(acc)
    return out


def of_heads_expected(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.einsum("nhtc,nhtd->cd", x, g))


def of_rows(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A loop whose second dimension begins behind 0, with sums and extrema beside the products."""
    n, h, t, c = x.size()
    d = g.size(3)
    out = torch.empty([c, d], dtype=torch.float32, device=x.device)
    most = torch.empty([c], dtype=torch.float32, device=x.device)
    for tile_c, tile_d in hl.tile([c, d]):
        acc = hl.zeros([tile_c, tile_d], dtype=torch.float32)
        top = hl.full([tile_c], float("-inf"), dtype=torch.float32)
        for image, y in hl.grid([0, 1], [n, h]):
            for tile_t in hl.tile(t):
                left = x[image, y, tile_t, tile_c]
                acc = hl.dot(left.T, g[image, y, tile_t, tile_d], acc=acc)
            top = torch.maximum(top, x[image, y, 0, tile_c])
        out[tile_c, tile_d] = acc
        most[tile_c] = top
    return out, most


def of_rows_expected(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.einsum("nhtc,nhtd->cd", x[:, 1:], g[:, 1:]), x[:, 1:, 0].amax((0, 1))


CASES = [
    (of_taps, of_taps_expected, (3, 7, 11, 33), (3, 5, 9, 17)),
    (of_heads, of_heads_expected, (7, 3, 37, 33), (7, 3, 37, 17)),
    (of_rows, of_rows_expected, (9, 4, 21, 33), (9, 4, 21, 17)),
]


@pytest.mark.parametrize(("fn", "expected", "left", "right"), CASES)
@pytest.mark.parametrize("parts", [2, 4])
def test_parts_of_one_dimension_add_up(
    fn: Callable[..., Any], expected: Callable[..., Any], left: tuple[int, ...], right: tuple[int, ...], parts: int
) -> None:
    """The sizes are no multiples of the parts, so that the last program has fewer steps or none."""
    x, g = torch.randn(left), torch.randn(right)
    bound = helion.kernel(fn, backend="triton").bind((x, g))
    sizes = [16 for _ in bound.default_config()["block_sizes"]]
    config = bound.config_spec.normalize({"block_sizes": sizes, "split_k": parts, "num_warps": 4})
    assert config["split_k"] == parts and bound.to_triton_code(config).count("@triton.jit\ndef _helion") == 2
    found, wanted = bound.compile_config(config)(x, g), expected(x.double(), g.double())
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for each, want in pairs:
        torch.testing.assert_close(each.double(), want, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("images", "rows", "axis"), [(64, 28, 0), (8, 28, 0), (4, 28, 1), (28, 28, 0)])
def test_a_dimension_of_many_steps_is_split_rather_than_the_last(images: int, rows: int, axis: int) -> None:
    facts = facts_of(of_taps, tensor(images, rows + 2, 30, 64, dtype=BF16), tensor(images, rows, 28, 64, dtype=BF16))
    assert facts.split_axis is not None
    assert facts.axes[facts.split_axis].extent == (images, rows)[axis]
    loop = next(region for region in facts.regions if facts.split_axis in region.axes)
    assert loop.axes.index(facts.split_axis) == axis


def of_every_second(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Neither dimension of the loop begins at 0 in steps of one."""
    n, h, t, c = x.size()
    out = torch.empty([c, g.size(3)], dtype=torch.float32, device=x.device)
    for tile_c, tile_d in hl.tile([c, g.size(3)]):
        acc = hl.zeros([tile_c, tile_d], dtype=torch.float32)
        for image, y in hl.grid([1, 0], [n, h], step=[1, 2]):
            for tile_t in hl.tile(t):
                acc = hl.dot(x[image, y, tile_t, tile_c].T, g[image, y, tile_t, tile_d], acc=acc)
        out[tile_c, tile_d] = acc
    return out


def test_loops_without_a_dimension_to_split() -> None:
    with pytest.raises(Declined, match="from 0 on"):
        accumulation_loop(program_of(of_every_second, tensor(4, 4, 32, 32), tensor(4, 4, 32, 32)))


@pytest.mark.parametrize("name", ["h200", "b200", "a100", "rtx4090"])
def test_gradients_of_filters_have_one_step_along_short_rows_and_fill_the_gpu(name: str) -> None:
    x = torch.empty(8, 30, 30, 256, dtype=BF16, device="meta")
    g = torch.empty(8, 28, 28, 256, dtype=BF16, device="meta")
    bound = helion.kernel(of_taps, backend="triton").bind((x, g), target=name)
    config = bound.default_config()
    assert config["block_sizes"][-1] == 32 and config["num_stages"] >= 3
    found = bound.resources(config)
    assert found.spill_bytes == 0 and not found.overflow
    seed = bound.seeds[0]
    short = {**config, "block_sizes": [*config["block_sizes"][:-1], 16], "split_k": 1, "num_stages": 2}
    short = bound.config_spec.normalize(short)
    assert seed.predicted is not None
    assert 2 * seed.predicted.time_us < bound._analysis.predict(short).time_us
