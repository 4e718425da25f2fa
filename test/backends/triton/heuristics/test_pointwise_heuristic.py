"""Elementwise kernels: the published worked examples."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from harness import facts_of, tensor
from heuristic_kernels import B200, FP32, H100, gelu, nine_sines, proposed, reason
from sample_kernels import add, scan, softmax, transpose

import helion
import helion.language as hl
from benchmarks.cells import timed_cells
from benchmarks.unfitted.serving import CELLS
from helion.backends.triton.heuristics.choose import trust
from helion.backends.triton.heuristics.families.pointwise import TritonPointwiseHeuristic
from helion.hardware import target
from helion.ops.kernels import dropout, gated

BF16 = torch.bfloat16


@helion.kernel()
def scaled_and_shifted(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """A number for each row, one for each column."""
    out = torch.empty_like(x)
    for row, column in hl.tile(x.size()):
        out[row, column] = (x[row, column].to(torch.float32) * scale[row][:, None] + shift[column][None, :]).to(x.dtype)
    return out


@pytest.mark.parametrize(
    ("kernel", "args", "hopper", "blackwell"),
    [
        (add, (tensor(2**26),) * 2, ([1024], 4), ([2048], 4)),
        (add, (tensor(2**26, dtype=FP32),) * 2, ([512], 4), ([1024], 2)),
        (add, (tensor(1024, 1024),) * 2, ([1, 512], 4), ([1, 1024], 4)),
        (gelu, (tensor(8192, 8192),), ([1, 2048], 4), ([1, 4096], 8)),
        (nine_sines, (tensor(2**26),), ([2048], 4), ([4096], 8)),
        (add, (tensor(4096, 4096, dtype=FP32).T,) * 2, ([512, 1], 4), ([1024, 1], 2)),
        (transpose, (tensor(4096, 4096, dtype=FP32),), ([64, 64], 4), ([64, 64], 8)),
        (transpose, (tensor(4096, 4096),), ([128, 128], 4), ([128, 128], 16)),
        (add, (tensor(65536, dtype=FP32),) * 2, ([256], 4), None),
    ],
)
def test_pointwise_published(kernel: Any, args: Any, hopper: Any, blackwell: Any) -> None:
    facts = facts_of(kernel, *args)
    for gpu, expected in ((H100, hopper), (B200, blackwell)):
        if expected is not None:
            first = proposed(TritonPointwiseHeuristic(), facts, gpu)[0]
            assert ([first.block_sizes[a.block_id] for a in facts.tunable_axes], first.num_warps) == expected


def test_pointwise_declines_where_tiles_change_results() -> None:
    assert reason(TritonPointwiseHeuristic(), facts_of(scan, tensor(64, 64)), H100)
    assert reason(TritonPointwiseHeuristic(), facts_of(softmax, tensor(64, 64)), H100)


def flattened(m: int, n: int, dtype: torch.dtype) -> bool:
    """Whether the first config walks the matrix as a run."""
    facts = facts_of(scaled_and_shifted, tensor(m, n, dtype=dtype), tensor(m, dtype=dtype), tensor(n, dtype=dtype))
    assert facts.pointwise is not None and not facts.pointwise.one_run
    return proposed(TritonPointwiseHeuristic(), facts, H100)[0].flatten_loops == {0: True}


def test_narrow_rows_that_begin_anywhere_are_a_run_beside_a_bias() -> None:
    assert flattened(4097, 3001, BF16)
    assert not flattened(4096, 3000, BF16), "vectors of all rows"
    assert not flattened(4097, 3001, FP32), "single elements fill what a warp accesses"
    assert not flattened(4097, 15, BF16), "the row's numbers are no few"


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize(("m", "n"), [(17, 63), (3, 1001), (130, 35), (1, 9)])
def test_a_run_beside_a_bias_is_right(m: int, n: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(n)
    x, scale, shift = ((torch.randn(*shape, generator=generator) + 2).to(dtype) for shape in ((m, n), (m,), (n,)))
    config = helion.Config(block_sizes=[1, 128], flatten_loops=[True])
    got = helion.kernel(scaled_and_shifted.fn, config=config)(x, scale, shift)
    expected = x.float() * scale.float()[:, None] + shift.float()[None, :]
    torch.testing.assert_close(got, expected.to(dtype))


# --- tiles in two dimensions ------------------------------------------------------------------------------------------


@helion.kernel(static_shapes=True)
def taps_of_channels(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A causal depthwise convolution, whose few taps of a channel are next to each other."""
    out = torch.empty_like(x)
    for batch, time, channel in hl.tile(x.size()):
        acc = hl.zeros([batch, time, channel], dtype=torch.float32)
        for tap in hl.static_range(4):
            at = time.index - 3 + tap
            earlier = hl.load(x, [batch, at, channel], extra_mask=(at >= 0)[None, :, None])
            acc = acc + earlier.to(torch.float32) * w[channel, tap][None, None, :].to(torch.float32)
        out[batch, time, channel] = acc.to(x.dtype)
    return out


@helion.kernel(static_shapes=True)
def shuffled_pixels(x: torch.Tensor) -> torch.Tensor:
    """A pixel shuffle by 2, whose stores run along an axis of two elements."""
    b, c, h, w = x.size()
    out = torch.empty([b, c // 4, h, 2, w, 2], dtype=x.dtype, device=x.device)
    view = x.view(b, c // 4, 2, 2, h, w)
    for tb, tc, th, i, tw, j in hl.tile([b, c // 4, h, 2, w, 2]):
        out[tb, tc, th, i, tw, j] = view[tb, tc, i, j, th, tw].permute(0, 1, 4, 2, 5, 3)
    return out


def meta(*sizes: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(*sizes, dtype=dtype, device="meta")


@pytest.mark.parametrize("target", ["h100", "b200", "gfx942"])
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_operands_that_rows_share_are_loaded_for_several_rows(dtype: torch.dtype, target: str) -> None:
    """A program with one row is predicted to take 1.7 to 8 times as long, because it loads all taps for it alone."""
    bound = taps_of_channels.bind((meta(8, 4096, 4096, dtype=dtype), meta(4096, 4, dtype=dtype)), target=target)
    (first, second, *_) = bound.seeds
    rows, columns = first.config["block_sizes"][1:]
    assert rows >= 8 and columns * dtype.itemsize >= 128
    assert second.config["block_sizes"][:2] == [1, 1]
    assert 1.5 * first.predicted.time_us < second.predicted.time_us
    assert bound.default_config() == first.config


def test_a_bias_is_no_reason_for_more_rows() -> None:
    facts = facts_of(scaled_and_shifted, tensor(4096, 4096), tensor(4096), tensor(4096))
    assert proposed(TritonPointwiseHeuristic(), facts, H100)[0].block_sizes[facts.tunable_axes[0].block_id] == 1


@pytest.mark.parametrize("sizes", [(2, 37, 129), (1, 1, 3), (3, 70, 65)])
def test_taps_are_right_in_tiles_of_several_rows(sizes: tuple[int, int, int]) -> None:
    generator = torch.Generator().manual_seed(sum(sizes))
    x, w = torch.randn(sizes, generator=generator) + 2, torch.randn(sizes[2], 4, generator=generator) + 1
    config = taps_of_channels.bind((meta(8, 4096, 4096), meta(4096, 4)), target="h100").default_config()
    blocks = {"block_sizes": config["block_sizes"], "loop_orders": config["loop_orders"], "num_warps": 4}
    got = helion.kernel(taps_of_channels.fn, config=helion.Config(**blocks))(x, w)
    padded = torch.nn.functional.pad(x.double(), (0, 0, 3, 0))
    expected = sum(padded[:, tap : tap + sizes[1]] * w[:, tap].double() for tap in range(4))
    torch.testing.assert_close(got.double(), expected, atol=1e-5, rtol=1e-5)


def test_a_tile_that_a_short_axis_leaves_small_has_more_of_the_others() -> None:
    bound = shuffled_pixels.bind((meta(16, 256, 64, 64),), target="h100")
    sizes = bound.default_config()["block_sizes"]
    assert sizes[4:] == [64, 2] and 1024 <= sizes[2] * sizes[3] * 128 <= 4096
    small = bound.config_spec.normalize({**bound.default_config(), "block_sizes": [1, 1, 1, 1, 64, 2]})
    assert bound.seeds[0].predicted.time_us < bound.variant.analysis.predict(small).time_us


def test_shuffled_pixels_are_right_in_such_tiles() -> None:
    x = torch.randn(3, 8, 5, 7, generator=torch.Generator().manual_seed(1)) + 3
    config = helion.Config(block_sizes=[1, 1, 8, 2, 8, 2], num_warps=4)
    got = helion.kernel(shuffled_pixels.fn, config=config)(x)
    torch.testing.assert_close(got.reshape(3, 2, 10, 14), torch.nn.functional.pixel_shuffle(x, 2))


# --- elements with numbers ----------------------------------------------------------------------------------------------


def upper(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size()):
        out[a, b] = torch.where(a.index[:, None] <= b.index[None, :], x[a, b], 0.0)
    return out


def enlarged(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 2 * x.size(1), 2 * x.size(2)], dtype=x.dtype, device=x.device)
    for a, b, c in hl.tile(out.size()):
        out[a, b, c] = x[a, b.index // 2, c.index // 2]
    return out


def pooled(x: torch.Tensor) -> torch.Tensor:
    """The maxima of windows of 3 x 3."""
    _, h, w = x.size()
    out = torch.empty_like(x)
    for a, b, c in hl.tile(x.size()):
        best = hl.full([a, b, c], float("-inf"), dtype=x.dtype)
        for dy in hl.static_range(3):
            for dx in hl.static_range(3):
                rows, columns = b.index + (dy - 1), c.index + (dx - 1)
                inside = ((rows >= 0) & (rows < h))[:, None] & ((columns >= 0) & (columns < w))[None, :]
                near = hl.load(x, [a, rows, columns], extra_mask=inside[None, :, :])
                best = torch.maximum(best, torch.where(inside[None, :, :], near, float("-inf")))
        out[a, b, c] = best
    return out


def averaged(x: torch.Tensor) -> torch.Tensor:
    p, h, w = x.size()
    out = torch.empty([p, h // 2, w // 2], dtype=x.dtype, device=x.device)
    for a, b, c in hl.tile([p, h // 2, w // 2]):
        i, j = b.index * 2, c.index * 2
        out[a, b, c] = (x[a, i, j] + x[a, i, j + 1] + x[a, i + 1, j] + x[a, i + 1, j + 1]) * 0.25
    return out


def summed(x: torch.Tensor, width: hl.constexpr) -> torch.Tensor:
    p, h, w = x.size()
    out = torch.empty([p, h, w // 2], dtype=x.dtype, device=x.device)
    for a, b, c in hl.tile([p, h, w // 2]):
        total = hl.zeros([a, b, c], dtype=torch.float32)
        for k in hl.static_range(width):
            at = c.index * 2 + k
            total += hl.load(x, [a, b, at], extra_mask=(at < w)[None, None, :])
        out[a, b, c] = total.to(x.dtype)
    return out


def turned_parts(x: torch.Tensor) -> torch.Tensor:
    m, n, _ = x.size()
    out = torch.empty_like(x)
    for a, b in hl.tile([m, n]):
        out[a, b, 0] = -x[a, b, 1]
        out[a, b, 1] = x[a, b, 0]
    return out


def diffused(x: torch.Tensor) -> torch.Tensor:
    a, b, c = x.size()
    out = torch.empty([a - 2, b - 2, c - 2], dtype=x.dtype, device=x.device)
    for p, q, r in hl.tile([a - 2, b - 2, c - 2]):
        i, j, k = p.index + 1, q.index + 1, r.index + 1
        near = x[i - 1, j, k] + x[i + 1, j, k] + x[i, j - 1, k] + x[i, j + 1, k] + x[i, j, k - 1] + x[i, j, k + 1]
        out[p, q, r] = near - 6.0 * x[i, j, k]
    return out


def test_windows_in_space_have_blocks_of_planes_and_rows() -> None:
    for n, sizes in ((386, [8, 2, 128]), (322, [8, 4, 64])):
        first, second = helion.kernel(diffused).bind((meta(n, n, n, dtype=FP32),), target="h200").seeds[:2]
        assert (first.config["block_sizes"], first.config["num_warps"]) == (sizes, 2)
        assert second.config["block_sizes"][0] == 1
    few = helion.kernel(diffused).bind((meta(34, 34, 34, dtype=FP32),), target="h200").seeds[0].config
    assert few["block_sizes"][0] < 8


def test_threads_have_few_elements_of_strided_windows() -> None:
    first = helion.kernel(averaged).bind((meta(2048, 112, 112),), target="h200").seeds[0].config
    assert (first["block_sizes"], first["flatten_loops"], first["num_warps"]) == ([1, 8, 64], [True], 8)
    wide = helion.kernel(averaged).bind((meta(2048, 256, 1024, dtype=FP32),), target="h200").seeds[0].config
    assert (math.prod(wide["block_sizes"]), wide["flatten_loops"], wide["num_warps"]) == (256, [False], 8)
    pixels = helion.kernel(averaged).bind((meta(2048, 256, 1024, dtype=torch.uint8),), target="h200").seeds[0].config
    assert math.prod(pixels["block_sizes"]) == 4 * 32 * pixels["num_warps"]
    for width, elements in ((3, 2), (4, 16)):  # neighbors share a third of three positions, and half of four
        config = helion.kernel(summed).bind((meta(4096, 112, 112), width), target="h200").seeds[0].config
        assert math.prod(config["block_sizes"]) == elements * 32 * config["num_warps"]


def looked_up(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size()):
        out[a, b] = table[x[a, b].long()] * table[0]
    return out


def scaled_by_labels(x: torch.Tensor, labels: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] * table[labels[a]][:, None]
    return out


def resized(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    out = torch.empty([x.size(0), rows, columns], dtype=x.dtype, device=x.device)
    for a, b, c in hl.tile(out.size(), block_size=[1, None, None]):
        out[a.begin, b, c] = x[a.begin, b.index * x.size(1) // rows, c.index * x.size(2) // columns]
    return out


def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 2 * x.size(1), 2 * x.size(2)], dtype=x.dtype, device=x.device)
    for a, b, c in hl.tile(out.size(), block_size=[1, None, None]):
        out[a.begin, b, c] = x[a.begin, b.index // 2, torch.clamp(c.index // 2 + 1, max=99)]
    return out


def test_a_table_does_not_keep_elements_from_being_a_run() -> None:
    images, table = meta(16384, 4097, dtype=torch.uint8), meta(256, dtype=FP32)
    first = helion.kernel(looked_up).bind((images, table), target="h200").seeds[0].config
    assert first["flatten_loops"] == [True]
    labels = meta(16384, dtype=torch.int64)
    first = helion.kernel(scaled_by_labels).bind((images, labels, table), target="h200").seeds[0].config
    assert first["flatten_loops"] == [False], "a row looks up one value"


def test_positions_in_tiles_of_one_number_elements() -> None:
    kernel = helion.kernel(resized)
    given = kernel.bind((meta(1024, 96, 96), 160, 200), target="h200").seeds[0].config
    assert given["flatten_loops"] == [False], "divisions by sizes of the launch take longer than single accesses"
    tiles, run = helion.kernel(doubled).bind((meta(1024, 96, 100),), target="h200").seeds[:2]
    assert tiles.config["flatten_loops"] == [False] and run.config["flatten_loops"] == [True]
    assert tiles.predicted.time_us < run.predicted.time_us
    issued = [dict(seed.predicted.units)["instructions"] for seed in (tiles, run)]
    assert 2 * issued[0] < issued[1], "divisions of each element by sizes of no power of two"


@pytest.mark.parametrize(
    ("kernel", "sizes", "flat"),
    [
        (upper, (4096, 4099), [True]),  # rows begin anywhere
        (turned_parts, (4096, 4097, 2), [True]),  # as well, of pairs
        (averaged, (2048, 112, 112), [True]),  # rows of 56 elements in tiles of 64
        (averaged, (2048, 256, 1024), [False]),
        (upper, (4096, 4096), [False]),
        (enlarged, (2048, 64, 64), [True]),  # computed indices select elements
        (pooled, (2048, 112, 112), [False]),
    ],
)
def test_numbered_elements_are_a_run_where_tiles_have_single_accesses(
    kernel: Any, sizes: tuple[int, ...], flat: list[bool]
) -> None:
    bound = helion.kernel(kernel).bind((meta(*sizes),), target="h200")
    seeds = [seed.config for seed in bound.seeds if "Pointwise" in seed.heuristic]
    assert seeds[0]["flatten_loops"] == flat
    assert any(config["flatten_loops"] != flat for config in seeds)


def test_a_launch_of_less_than_a_wave_has_a_tile_of_less_time() -> None:
    rows, pieces, bias, seed = (
        meta(32, 8192),
        meta(32, 4, 2048),
        meta(4, 2048),
        torch.empty([1], dtype=torch.int64, device="meta"),
    )
    cases: Any = (
        (gated.gated_kernel, (rows, rows, gated.silu)),
        (dropout.dropout_kernel, (pieces, bias, pieces, seed, 0.1, True)),
    )
    first = [kernel.bind(args, target="h200").seeds[0].config for kernel, args in cases]
    assert [(config["block_sizes"], config["num_warps"]) for config in first] == [([1, 512], 8), ([1, 64], 2)]


def test_windows_of_many_loads_have_fewer_rows_per_thread() -> None:
    bound = helion.kernel(pooled).bind((meta(2048, 112, 112),), target="h200")
    first, second = bound.seeds[0].config, bound.seeds[1].config
    assert (first["block_sizes"], second["block_sizes"]) == ([1, 4, 128], [1, 16, 128])
    assert first["num_warps"] == second["num_warps"]


def test_programs_follow_memory_where_a_tile_covers_the_contiguous_axis() -> None:
    three = helion.kernel(pooled).bind((meta(2048, 112, 112),), target="h200")
    assert three.seeds[0].config["loop_orders"] == [[2, 1, 0]]
    two = helion.kernel(upper).bind((meta(4096, 1024),), target="h200")
    assert two.seeds[0].config["loop_orders"] == [[0, 1]]


def laplacian() -> torch.Tensor:
    """The weights of a position and its six neighbours."""
    weights = torch.zeros(1, 1, 3, 3, 3)
    for axis in range(3):
        at = [1, 1, 1]
        for at[axis] in (0, 2):
            weights[(0, 0, *at)] = 1.0
    weights[0, 0, 1, 1, 1] = -6.0
    return weights


@pytest.mark.parametrize(
    ("kernel", "sizes", "reference"),
    [
        (upper, (13, 35), torch.triu),
        (enlarged, (3, 5, 9), lambda x: x.repeat_interleave(2, 1).repeat_interleave(2, 2)),
        (pooled, (3, 7, 9), lambda x: torch.nn.functional.max_pool2d(x, 3, 1, 1)),
        (diffused, (5, 7, 9), lambda x: torch.nn.functional.conv3d(x[None, None], laplacian())[0, 0]),
        (averaged, (3, 7, 10), lambda x: torch.nn.functional.avg_pool2d(x, 2)),
        (turned_parts, (5, 7, 2), lambda x: torch.view_as_real(torch.view_as_complex(x) * 1j)),
    ],
)
def test_seeds_of_numbered_elements_are_right(kernel: Any, sizes: tuple[int, ...], reference: Any) -> None:
    x = torch.randn(*sizes, generator=torch.Generator().manual_seed(1))
    for seed in helion.kernel(kernel).bind((meta(*sizes, dtype=FP32),), target="h200").seeds:
        config = {key: seed.config[key] for key in ("block_sizes", "flatten_loops", "loop_orders")}
        torch.testing.assert_close(helion.kernel(kernel, config=helion.Config(**config))(x), reference(x))


@helion.kernel()
def kronecker(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (m, n), (p, q) = a.size(), b.size()
    out = torch.empty([m * p, n * q], dtype=a.dtype, device=a.device)
    view = out.view(m, p, n, q)
    for tm, tn, tp, tq in hl.tile([m, n, p, q]):
        view[tm, tp, tn, tq] = a[tm, tn][:, None, :, None] * b[tp, tq][None, :, None, :]
    return out


def test_rows_that_begin_anywhere_are_stored_in_the_order_of_memory() -> None:
    facts = facts_of(kronecker, tensor(64, 64), tensor(65, 63))
    assert facts.pointwise is not None
    assert facts.pointwise.run_order == (0, 2, 1, 3)
    first, tiles = proposed(TritonPointwiseHeuristic(), facts, H100)
    assert (first.loop_orders, first.flatten_loops) == ({0: (0, 2, 1, 3)}, {0: True})
    assert (list(first.block_sizes.values()), first.num_warps) == ([1, 1, 16, 64], 4)
    assert not tiles.flatten_loops
    aligned = facts_of(kronecker, tensor(64, 64), tensor(65, 64))
    assert not proposed(TritonPointwiseHeuristic(), aligned, H100)[0].flatten_loops
    x, y = torch.randn(5, 7), torch.randn(9, 11)
    config = helion.Config(block_sizes=[1, 1, 4, 16], loop_orders=[[0, 2, 1, 3]], flatten_loops=[True])
    torch.testing.assert_close(helion.kernel(kronecker.fn, config=config)(x, y), torch.kron(x, y))


@helion.kernel()
def resized_to(x: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    out = torch.empty([x.size(0), rows, columns], dtype=x.dtype, device=x.device)
    for plane, row, column in hl.tile(out.size()):
        out[plane, row, column] = x[plane, row.index // 2, column.index // 2]
    return out


def test_gathers_by_sizes_of_the_call_have_half_of_the_rows() -> None:
    facts = facts_of(resized_to, tensor(1024, 100, 100), 200, 200)
    first, tiles = proposed(TritonPointwiseHeuristic(), facts, H100)
    assert "half of the rows" in first.reason
    assert 2 * math.prod(first.block_sizes.values()) == math.prod(tiles.block_sizes.values())


@helion.kernel()
def rotated_views(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Even and odd elements of heads are turned; host code selects them."""
    out = torch.empty_like(x)
    even, odd, out_even, out_odd = x[..., ::2], x[..., 1::2], out[..., ::2], out[..., 1::2]
    for tile_t, tile_h in hl.tile([x.size(0), x.size(1)]):
        c, s = cos[tile_t, :][:, None, :], sin[tile_t, :][:, None, :]
        a, b = even[tile_t, tile_h, :].to(torch.float32), odd[tile_t, tile_h, :].to(torch.float32)
        out_even[tile_t, tile_h, :] = (a * c - b * s).to(x.dtype)
        out_odd[tile_t, tile_h, :] = (a * s + b * c).to(x.dtype)
    return out


@pytest.mark.parametrize(
    ("rows", "heads", "size", "dtype", "tile"),
    [(8192, 32, 128, BF16, 16), (8192, 32, 64, torch.float16, 32), (4096, 16, 256, FP32, 4), (300, 4, 128, BF16, 4)],
)
def test_angles_of_fp32_leave_threads_whole_vectors(
    rows: int, heads: int, size: int, dtype: torch.dtype, tile: int
) -> None:
    """Measurement ``rotated_views``: the bytes of angles would leave two elements for a thread."""
    angles = tensor(rows, size // 2, dtype=FP32)
    args = (tensor(rows, heads, size, dtype=dtype), angles, tensor(rows, size // 2, dtype=FP32))
    found, *_ = proposed(TritonPointwiseHeuristic(), facts_of(rotated_views, *args), H100)
    assert (list(found.block_sizes.values()), found.num_warps) == ([1, tile], 4)


@helion.kernel
def turned_pixels(x: torch.Tensor) -> torch.Tensor:
    """Pixels turned by a quarter: rows become columns."""
    b, h, w, c = x.size()
    out = torch.empty([b, w, h, c], dtype=x.dtype, device=x.device)
    for tile, rows, columns in hl.tile([b, h, w]):
        out[tile, w - 1 - columns.index, rows, :] = x[tile, rows, columns, :].transpose(1, 2)
    return out


@pytest.mark.parametrize("gpu", ["sm_80", "sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize(("colours", "dtype"), [(4, torch.uint8), (3, torch.float32), (8, torch.bfloat16)])
def test_transposed_rows_of_short_vectors_take_tiles_along_both_axes(
    colours: int, dtype: torch.dtype, gpu: str
) -> None:
    shape = (4, 1080, 1920, colours)
    bound = turned_pixels.bind((torch.empty(shape, dtype=dtype, device="meta"),), target=gpu)
    _, rows, columns = bound.default_config()["block_sizes"]
    assert min(rows, columns) * colours * dtype.itemsize >= 96


def test_rows_of_whole_transactions_keep_their_tile() -> None:
    bound = turned_pixels.bind((torch.empty([4, 256, 512, 64], dtype=torch.bfloat16, device="meta"),), target="sm_90")
    _, rows, _ = bound.default_config()["block_sizes"]
    assert rows == 1


@helion.kernel
def norms_of_vectors(x: torch.Tensor) -> torch.Tensor:
    """Sums of squares of records of three."""
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        a, b, c = (x[tile, i] for i in range(3))
        out[tile] = a * a + b * b + c * c
    return out


@pytest.mark.parametrize(("stride", "each"), [(3, 1), (9, 1), (2, None), (40, None)])
def test_threads_take_one_record(stride: int, each: int | None) -> None:
    x = torch.empty_strided([1 << 22, 3], [stride, 1], device="meta")
    bound = norms_of_vectors.bind((x,), target="sm_90")
    config = bound.default_config()
    elements = config["block_sizes"][0] // (32 * config["num_warps"])
    assert elements == each if each else elements > 1


def test_records_that_fill_memory_are_no_run() -> None:
    bound = norms_of_vectors.bind((torch.empty([1 << 22, 3], device="meta"),), target="sm_90")
    assert not any(bound.default_config().get("flatten_loops") or ())


def test_runs_of_random_numbers_are_short_where_the_last_tile_of_a_row_is_idle() -> None:
    @helion.kernel
    def rounded(x: torch.Tensor, seed: int) -> torch.Tensor:
        out = torch.empty(x.size(), dtype=torch.bfloat16, device=x.device)
        for tile in hl.tile(x.size()):
            out[tile] = (x[tile] + hl.rand(tile, seed) * 0.01).to(torch.bfloat16)
        return out

    def tile(columns: int) -> tuple[int, int]:
        seed = rounded.bind((torch.empty(4096, columns, device="meta"), 7), target="h200").seeds[0]
        return seed.config["block_sizes"][-1], seed.config["num_warps"]

    (odd, few), (even, many) = tile(4097), tile(4096)
    assert odd < even and few < many and odd // few <= even // many


def stepped(x: torch.Tensor, state: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows, columns in hl.tile(x.size()):
        value = x[rows, columns].to(torch.float32) * taps[3, columns][None, :]
        for at in hl.static_range(3):
            value = value + state[at, rows, columns].to(torch.float32) * taps[at, columns][None, :]
        out[rows, columns] = value * torch.sigmoid(value)
    return out


def test_rows_that_share_operands_are_few_where_elements_are_stored_in_parts() -> None:
    """Measurement ``rows_of_parts``: a thread stores each part by itself."""
    args = (tensor(1000, 8192), tensor(3, 1000, 8192), tensor(4, 8192, dtype=torch.float32))
    assert "share operands" in helion.kernel(stepped).bind(args, target="h200").seeds[0].reason
    cell = CELLS["conv_step"]
    parts = cell.kernel.bind(cell.arguments("meta", False), target="h200").seeds[0]
    assert "share operands" not in parts.reason and parts.config["block_sizes"][0] == 1


@helion.kernel()
def overlaps_of_pairs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty([a.size(0), b.size(0)], dtype=torch.float32, device=a.device)
    for i, j in hl.tile(out.size()):
        left, right = (
            torch.maximum(a[i, 0][:, None], b[j, 0][None, :]),
            torch.minimum(a[i, 1][:, None], b[j, 1][None, :]),
        )
        out[i, j] = torch.relu(right - left)
    return out


@helion.kernel()
def differences(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A load has both axes."""
    out = torch.empty_like(x)
    for i, j in hl.tile(out.size()):
        out[i, j] = (
            torch.relu(a[i, 0][:, None] - b[j, 0][None, :]) * torch.relu(a[i, 1][:, None] - b[j, 1][None, :]) + x[i, j]
        )
    return out


def test_pairs_share_what_rows_and_columns_load() -> None:
    """Measurement ``pairs_of_elements``."""
    a, b, x = tensor(8192, 2, dtype=FP32), tensor(8192, 2, dtype=FP32), tensor(8192, 8192, dtype=FP32)
    config = helion.kernel(overlaps_of_pairs.fn, backend="triton").bind((a, b), target="h200").default_config()
    assert config["block_sizes"] == [4, 512] and config["num_warps"] == 4
    short = helion.kernel(overlaps_of_pairs.fn, backend="triton").bind((a, b[:200]), target="h200").seeds[0]
    assert "pairs" not in short.reason
    assert "pairs" not in helion.kernel(differences.fn, backend="triton").bind((a, b, x), target="h200").seeds[0].reason


def test_narrow_rows_beside_wide_angles_begin_fewer_programs_where_memory_is_fast() -> None:
    """All elements of a tile count as wide as the angles, which are few."""
    cell = next(c for c in timed_cells() if c.kernel == "partial_rope" and c.case.startswith("4 by 4096"))
    for gpu, rows in (("b200", 8), ("h200", 8)):
        kernel = cell.function.bind(cell.args, target=gpu)
        default, predict = kernel.default_config(), kernel._analysis.predict
        assert default["block_sizes"] == [1, 1, rows]
        fewer = predict(kernel.config_spec.normalize({**default, "block_sizes": [1, 1, rows // 2]}))
        assert gpu != "b200" or predict(default).time_us <= trust(target(gpu)).reused * fewer.time_us
