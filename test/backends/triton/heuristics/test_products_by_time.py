"""Products for which no rule promotes a seed: the tile by rule, or the one of the least predicted time."""

from __future__ import annotations

import pytest
import torch
from harness import facts_of, tensor

import helion
import helion.language as hl
from benchmarks.unfitted.product_sums import clip_sums
from benchmarks.unfitted.products import complex_matmul, complex_pairs
from benchmarks.unseen.products import adapter, two_layers
from helion.backends.triton.heuristics.families.matmul.several import TritonProductsHeuristic
from helion.hardware import Target, target


def sum_of_two(a, b, c, d):
    m, k = a.size()
    out = torch.empty([m, b.size(1)], dtype=a.dtype, device=a.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, a[tile_m, tile_k], b[tile_k, tile_n])
        for tile_l in hl.tile(c.size(1)):
            acc = torch.addmm(acc, c[tile_m, tile_l], d[tile_l, tile_n])
        out[tile_m, tile_n] = acc.to(a.dtype)
    return out


def proposed(m: int, k: int, n: int, gpu: Target):
    args = tensor(m, k), tensor(k, n), tensor(m, k), tensor(k, n)
    return TritonProductsHeuristic().propose(facts_of(sum_of_two, *args, on=gpu.name), gpu)


def test_a_long_k_of_few_tiles_takes_wide_lines() -> None:
    """25 us in tiles of 64 x 32 x 128, 40 us of 64 x 32 x 64 (H200)."""
    first, *others = proposed(512, 4096, 512, target("h200"))
    assert max(first.block_sizes.values()) >= 128 and "least predicted time" in first.reason
    assert others


def class_sums(labels, x, classes):
    n, d = x.size()
    classes = hl.specialize(classes)
    out = torch.zeros([classes, d], dtype=torch.float32, device=x.device)
    for tile_d, tile_n in hl.tile([d, n]):
        hot = (labels[tile_n][None, :] == hl.arange(classes)[:, None]).to(x.dtype)
        hl.atomic_add(out, [hl.arange(classes), tile_d], hl.dot(hot, x[tile_n, tile_d], out_dtype=torch.float32))
    return out


def test_products_that_programs_add_have_a_longer_k_while_an_sm_has_two() -> None:
    gpu = target("h200")
    facts = facts_of(class_sums, tensor(131072, dtype=torch.int64), tensor(131072, 256), 64, on=gpu.name)
    first, second, *_ = TritonProductsHeuristic().propose(facts, gpu)
    assert (list(first.block_sizes.values()), first.num_warps) == ([128, 256], 8) and "addition" in first.reason
    assert list(second.block_sizes.values()) == [128, 128]


def test_tiles_that_leave_half_of_the_sms_idle_may_be_the_fastest() -> None:
    """Of 4096 rows, tiles of 64 take 17.5 us and of 32 23.4 (fp16, an H200): fewer rows read each weight more often."""
    args = tensor(4096, 256, dtype=torch.float16), tensor(256, 1024, dtype=torch.float16)
    bound = two_layers.bind((*args, tensor(1024, 256, dtype=torch.float16)), target="h200")
    assert bound.seeds[0].heuristic == "TritonProductsHeuristic" and bound.seeds[0].config["block_sizes"][0] == 64


def ways(name: str, *sizes: int) -> list[set[str]]:
    """The ways to access memory of each seed of an adapter: a matmul and one of low rank with K-major operands."""
    m, k, n, rank = sizes
    args = tensor(m, k), tensor(n, k), tensor(rank, k), tensor(n, rank)
    return [set(seed.config["indexing"]) for seed in adapter.bind(args, target=name).seeds]


def test_k_major_operands_of_several_matmuls_have_descriptors() -> None:
    first, second, *_ = ways("h200", 4096, 4096, 4096, 16)
    assert first == {"tensor_descriptor", "pointer"} and second == {"pointer"}
    bound = adapter.bind((tensor(1000, 3000), tensor(1000, 3000), tensor(8, 3000), tensor(1000, 8)), target="h200")
    assert bound.default_config()["indexing"] == ["tensor_descriptor"] * 2 + ["pointer"] * 3


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("h200", (4096, 4097, 4096, 16)),  # rows begin at odd addresses
        ("h200", (32, 4096, 11008, 64)),  # too few rows for the asynchronous unit
        ("a100", (4096, 4096, 4096, 16)),
        ("mi300x", (4096, 4096, 4096, 16)),
    ],
)
def test_other_operands_have_pointers(name: str, sizes: tuple[int, int, int, int]) -> None:
    assert all(way == {"pointer"} for way in ways(name, *sizes))


def test_the_rule_stands_where_time_tells_little_apart() -> None:
    first, *_ = proposed(4096, 4096, 4096, target("h200"))
    assert "least predicted time" not in first.reason


@pytest.mark.parametrize("name", ["mi300x", "a100"])
def test_other_gpus_have_the_least_predicted_time(name: str) -> None:
    first, *_ = proposed(512, 4096, 512, target(name))
    assert "least predicted time" in first.reason


def test_loops_that_run_at_the_same_time_fill_the_gpu_together() -> None:
    """Tiles of 128 rows in 8 warps take 332 us, of 64 rows in 4 warps 458 (H200): each loop has 64 programs."""
    rows = tensor(8192, 512)
    seed = clip_sums.bind((rows, rows, tensor(1, dtype=torch.float32)), target="h200").seeds[0].config
    assert (seed["block_sizes"], seed["num_warps"], seed["num_stages"]) == ([128, 32, 128, 32], 8, 3)


@pytest.mark.parametrize("kernel", [complex_matmul, complex_pairs], ids=lambda kernel: kernel.name)
def test_several_operands_of_a_side_take_whole_lines(kernel: helion.Kernel) -> None:
    parts = [tensor(2048, 2048) for _ in range(4)]
    seed = kernel.bind(tuple(parts), target="h200").seeds[0].config
    assert (seed["block_sizes"], seed["num_warps"], seed["num_stages"]) == ([128, 128, 64], 8, 3)


def turned_blocks(x: torch.Tensor, turn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, k = x.size()
    out = torch.empty([m, k], dtype=torch.int8, device=x.device)
    scales = torch.empty([m, k // 128], dtype=torch.float32, device=x.device)
    for rows, block in hl.tile([m, k], block_size=[None, 128]):
        y = hl.dot(x[rows, block], turn[:, :])
        scale = torch.clamp(y.abs().amax(-1), min=1e-6) / 127.0
        scales[rows, block.id] = scale
        out[rows, block] = torch.round(y / scale[:, None]).to(torch.int8)
    return out, scales


def test_programs_that_multiply_once_and_reduce_have_few_rows() -> None:
    """Measurement ``multiplied_once``."""
    seed = helion.kernel(turned_blocks).bind((tensor(16384, 4096), tensor(128, 128)), target="h200").seeds[0]
    assert seed.config["block_sizes"] == [64] and "multiply once" in seed.reason


@helion.kernel(backend="triton", static_shapes=True)
def head_norms(x: torch.Tensor, w: torch.Tensor, width: hl.constexpr) -> torch.Tensor:
    m, k = x.size()
    out = torch.empty([m, w.size(0)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, w.size(0)], block_size=[None, width]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_n, tile_k].T)
        out[tile_m, tile_n] = (acc * torch.rsqrt((acc * acc).mean(-1, keepdim=True))).to(x.dtype)
    return out


@pytest.mark.parametrize(("width", "boxed"), [(128, True), (64, False)])
def test_wide_sides_that_a_kernel_fixes_have_descriptors(width: int, boxed: bool) -> None:
    """Measurement ``fixed_sides``: narrow ones are slower so."""
    x, w = (torch.empty(n, 4096, dtype=torch.bfloat16, device="meta") for n in (4096, 4096))
    found = head_norms.bind((x, w, width), target="h200").default_config()["indexing"]
    assert found == (["tensor_descriptor"] * 2 + ["pointer"] if boxed else ["pointer"] * 3)


@helion.kernel(backend="triton")
def words_of_eight(x: torch.Tensor, words: torch.Tensor, zeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Weights of 4 bits, eight columns in a word, with a zero and a scale for each 128 rows."""
    m, k = x.size()
    n = scales.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([m, n]):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for inner in hl.tile(k, block_size=128):
            shift = (columns.index % 8) * 4
            codes = (words[inner, columns.index // 8] >> shift[None, :]) & 15
            zero = (zeros[inner.id, columns.index // 8] >> shift) & 15
            weights = (codes - zero[None, :]).to(x.dtype) * scales[inner.id, columns][None, :]
            acc = hl.dot(x[rows, inner], weights, acc=acc)
        out[rows, columns] = acc.to(x.dtype)
    return out


def words_for(m: int, k: int, n: int, device: str) -> tuple[torch.Tensor, ...]:
    words, zeros = (
        torch.randint(-(2**31), 2**31, [r, n // 8], device=device, dtype=torch.int32) for r in (k, k // 128)
    )
    scales = torch.rand([k // 128, n], device=device) * 0.01
    return torch.randn([m, k], device=device, dtype=torch.float16), words, zeros, scales.to(torch.float16)


@pytest.mark.parametrize("rows", [1, 16])
def test_words_of_several_weights_are_not_staged(rows: int) -> None:
    first = words_of_eight.bind(words_for(rows, 4096, 11008, "meta"), target="h200").seeds[0]
    assert first.config["num_stages"] == 1 and first.config["split_k"] >= 2 and "one stage" in first.reason
    assert first.predicted.spill_risk < 0.5


def test_words_of_several_weights_give_their_product() -> None:
    x, words, zeros, scales = words_for(5, 256, 72, "cpu")
    shifts = 4 * torch.arange(8, dtype=torch.int32)
    codes, zero = (((each[:, :, None] >> shifts) & 15).flatten(1) for each in (words, zeros))
    weights = (codes - zero.repeat_interleave(128, 0)).half() * scales.repeat_interleave(128, 0)
    torch.testing.assert_close(words_of_eight(x, words, zeros, scales), x @ weights, rtol=2e-2, atol=2e-2)


def heads_of_rows(x: torch.Tensor, w: torch.Tensor, dim: int) -> torch.Tensor:
    """`x[T, K] @ w[H D, K].T` by heads, whose columns begin at a computed place."""
    t, k = x.size()
    dim = hl.specialize(dim)
    heads = w.size(0) // dim
    out = torch.empty([heads, t, dim], dtype=x.dtype, device=x.device)
    for tile, rows in hl.tile([heads, t], block_size=[1, None]):
        own = tile.begin * dim + hl.arange(dim)
        acc = hl.zeros([rows, dim], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[own, inner].T, acc=acc)
        out[tile.begin, rows, :] = acc.to(x.dtype)
    return out


def heads_of_data(x: torch.Tensor, w: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The same with columns that data select."""
    t, k = x.size()
    dim = hl.specialize(places.size(1))
    out = torch.empty([places.size(0), t, dim], dtype=x.dtype, device=x.device)
    for tile, rows in hl.tile([places.size(0), t], block_size=[1, None]):
        own = places[tile.begin, :]
        acc = hl.zeros([rows, dim], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[own, inner].T, acc=acc)
        out[tile.begin, rows, :] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize(("dim", "boxed"), [(128, True), (64, False)])
def test_rows_beside_lines_at_a_computed_place_have_a_descriptor(dim: int, boxed: bool) -> None:
    given = (torch.empty(rows, 4096, dtype=torch.bfloat16, device="meta") for rows in (4096, 48 * dim))
    bound = helion.kernel(heads_of_rows, backend="triton").bind((*given, dim), target="h200")
    config = bound.default_config()
    assert (config["indexing"][0] == "tensor_descriptor") == boxed and "tensor_descriptor" not in config["indexing"][1:]
    if boxed:
        assert (config["block_sizes"], config["num_warps"], config["num_stages"]) == ([256, 64], 8, 4)
    found = bound.resources(config)
    assert found.spill_bytes == 0 and not found.overflow


@pytest.mark.parametrize("gpu", ["h200", "a100", "b200"])
def test_lines_that_data_select_have_pointers_beside_them(gpu: str) -> None:
    x, w = (torch.empty(rows, 4096, dtype=torch.bfloat16, device="meta") for rows in (4096, 6144))
    places = torch.empty(48, 128, dtype=torch.int64, device="meta")
    bound = helion.kernel(heads_of_data, backend="triton").bind((x, w, places), target=gpu)
    assert "tensor_descriptor" not in bound.default_config()["indexing"]


def test_heads_of_rows_are_right_with_a_descriptor() -> None:
    x, w = torch.randn(77, 96), torch.randn(384, 96)
    kernel = helion.kernel(heads_of_rows, backend="triton")
    bound = kernel.bind((x, w, 128))
    config = {"block_sizes": [32, 32], "indexing": ["tensor_descriptor", "pointer", "pointer"]}
    found = bound.compile_config(bound.config_spec.normalize(config))(x, w, 128)
    wanted = (x.double() @ w.double().T).unflatten(1, (3, 128)).transpose(0, 1)
    torch.testing.assert_close(found.double(), wanted, atol=1e-3, rtol=1e-3)


def farthest(x: torch.Tensor, labels: torch.Tensor, margin: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A loss of the farthest row of the same label and the nearest of the others, whose norms each step computes."""
    n, d = x.size()
    d = hl.specialize(d)
    far = torch.empty([n], dtype=torch.float32, device=x.device)
    near = torch.empty([n], dtype=torch.float32, device=x.device)
    for rows in hl.tile(n):
        own = x[rows, :]
        own_norm = (own.to(torch.float32) * own.to(torch.float32)).sum(-1)
        own_label = labels[rows]
        most = hl.zeros([rows], dtype=torch.float32)
        least = hl.full([rows], float("inf"), dtype=torch.float32)
        for columns in hl.tile(n):
            other = x[columns, :]
            norm = (other.to(torch.float32) * other.to(torch.float32)).sum(-1)
            square = own_norm[:, None] + norm[None, :] - 2.0 * hl.dot(own, other.T)
            distance = torch.sqrt(torch.clamp(square, min=1e-6))
            same = own_label[:, None] == labels[columns][None, :]
            most = torch.maximum(most, torch.amax(torch.where(same, distance, 0.0), 1))
            least = torch.minimum(least, torch.amin(torch.where(same, float("inf"), distance), 1))
        far[rows] = torch.relu(most - least + margin)
        near[rows] = least
    return far, near


def test_steps_that_reduce_products_have_twice_the_columns_where_that_is_faster() -> None:
    x, labels = (torch.empty(size, dtype=dtype, device="meta") for size, dtype in (((8192, 256), torch.bfloat16), ((8192,), torch.int64)))  # fmt: skip
    bound = helion.kernel(farthest, backend="triton").bind((x, labels, 0.3), target="h200")
    config = bound.default_config()
    assert config["block_sizes"] == [64, 128] and config["num_warps"] == 16
    found = bound.resources(config)
    assert found.spill_bytes == 0 and not found.overflow
    x, labels = torch.randn(77, 32), torch.randint(0, 5, (77,))
    far, near = helion.kernel(farthest, backend="triton")(x, labels, 0.3)
    distance = torch.cdist(x.double(), x.double()).clamp(min=1e-3)
    same = labels[:, None] == labels
    most, least = distance.masked_fill(~same, 0.0).amax(1), distance.masked_fill(same, torch.inf).amin(1)
    torch.testing.assert_close(far.double(), torch.relu(most - least + 0.3), atol=2e-3, rtol=1e-3)
    torch.testing.assert_close(near.double(), least, atol=2e-3, rtol=1e-3)
