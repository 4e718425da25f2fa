"""Plain products: the published worked examples, thresholds and refusals."""

from __future__ import annotations

import pytest
import torch
from harness import facts_of, tensor
from heuristic_kernels import (
    B200,
    BF16,
    FP8,
    FP32,
    H100,
    attention_facts,
    grouped,
    halves,
    matmul_largest,
    matmul_layer_norm,
    matmul_rms_norm_tiled,
    parts_then_sum,
    proposed,
    reason,
    split_k,
)
from sample_kernels import bmm, matmul_to_bf16, softmax

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from helion._compiler.facts.records import KernelFacts
from helion._shapes import cdiv
from helion._testing import EXAMPLES_DIR, import_path
from helion.backends.triton.heuristics.families.matmul.extents import Extents, product_extents
from helion.backends.triton.heuristics.families.matmul.plain import TritonMatmulHeuristic
from helion.backends.triton.heuristics.sizing import estimate
from helion.hardware import Target, known_targets, target

# (M, N, K), then (M, N, K tile, warps, stages, group) for 16-bit and for fp32 operands; the same on H100 and B200
MATMULS = [
    ((4096, 4096, 4096), (128, 256, 64, 8, 4, 1), (128, 256, 32, 8, 4, 1)),
    ((2048, 2048, 2048), (128, 256, 64, 8, 4, 1), (128, 256, 32, 8, 4, 1)),
    ((8192, 8192, 8192), (128, 256, 64, 8, 4, 1), (128, 256, 32, 8, 4, 1)),
    ((1024, 1024, 1024), (128, 64, 128, 4, 4, 1), (128, 64, 64, 4, 4, 1)),
    ((512, 512, 512), (64, 64, 128, 4, 4, 1), (64, 64, 64, 4, 6, 1)),
    ((16, 4096, 4096), (16, 32, 256, 4, 6, 1), (16, 32, 256, 4, 4, 1)),
    ((1, 4096, 4096), (16, 32, 256, 4, 6, 1), (16, 32, 256, 4, 4, 1)),
    ((128, 4096, 4096), (64, 64, 128, 4, 6, 1), (64, 64, 64, 4, 6, 1)),
    ((8192, 1024, 4096), (128, 256, 64, 8, 4, 2), (128, 256, 32, 8, 4, 2)),
    ((131072, 64, 512), (512, 64, 32, 8, 6, 2), (512, 64, 16, 8, 6, 2)),
    ((256, 256, 12288), (64, 64, 128, 4, 6, 1), (64, 64, 64, 4, 6, 1)),
    ((16, 11008, 4096), (16, 128, 128, 4, 6, 1), (16, 128, 64, 4, 6, 1)),
]


def matmul_seed(facts: KernelFacts, gpu: Target) -> tuple[int, ...]:
    first = proposed(TritonMatmulHeuristic(), facts, gpu)[0]
    fact = facts.matmuls[0]
    tile = [first.block_sizes[b] for b in (fact.m_block_id, fact.n_block_id, fact.k_block_id)]
    return (*tile, first.num_warps, first.num_stages, first.l2_groupings.get(0, 1))


@pytest.mark.parametrize(("extents", "half", "single"), MATMULS, ids=[str(row[0]) for row in MATMULS])
def test_matmul_published(extents: tuple[int, int, int], half: tuple[int, ...], single: tuple[int, ...]) -> None:
    m, n, k = extents
    for dtype, expected in ((BF16, half), (torch.float16, half), (FP32, single)):
        facts = facts_of(matmul_to_bf16, tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype))
        for gpu in (H100, B200):
            assert matmul_seed(facts, gpu) == expected, (dtype, gpu)


def test_matmul_of_fp8_is_sized_by_one_byte() -> None:
    facts = facts_of(matmul_to_bf16, tensor(4096, 4096, dtype=FP8), tensor(4096, 4096, dtype=FP8))
    assert matmul_seed(facts, H100) == matmul_seed(facts, B200) == (128, 256, 128, 8, 4, 1)
    k_major = facts_of(matmul_to_bf16, tensor(4096, 4096, dtype=FP8), tensor(4096, 4096, dtype=FP8).t())
    # partial sums stand beside the accumulator where the unit does not add in fp32
    assert matmul_seed(k_major, H100) == (128, 128, 128, 8, 6, 1)
    assert matmul_seed(k_major, B200) == (128, 256, 128, 8, 4, 1)


@pytest.mark.parametrize(
    ("shape", "gpu", "expected"),
    [
        ((10240, 64, 128, 256), target("h100"), (64, 128, 64, 4, 2, 1)),
        ((10240, 64, 128, 256), B200, (32, 64, 64, 1, 2, 1)),
        ((4096, 128, 128, 64), target("h100"), (64, 128, 64, 4, 2, 1)),
        ((4096, 128, 128, 64), B200, (32, 64, 16, 1, 2, 1)),
    ],
)
def test_many_small_products(shape: tuple[int, ...], gpu: Target, expected: tuple[int, ...]) -> None:
    batch, m, n, k = shape
    facts = facts_of(bmm, tensor(batch, m, k), tensor(batch, k, n))
    assert matmul_seed(facts, gpu) == expected
    assert proposed(TritonMatmulHeuristic(), facts, gpu)[0].block_sizes[0] == 1


def test_matmul_alternates_are_transposed_and_shorter() -> None:
    facts = facts_of(matmul_to_bf16, tensor(4096, 4096), tensor(4096, 4096))
    found = proposed(TritonMatmulHeuristic(), facts, H100)
    tiles = [(dict(p.block_sizes), p.num_stages, p.pid_type) for p in found]
    assert tiles == [
        ({0: 128, 1: 256, 2: 64}, 4, None),
        ({0: 256, 1: 128, 2: 64}, 4, None),
        ({0: 256, 1: 128, 2: 64}, 3, None),
        ({0: 128, 1: 256, 2: 64}, 3, "persistent_interleaved"),
        ({0: 128, 1: 128, 2: 64}, 3, "persistent_interleaved"),
    ]


@pytest.mark.parametrize("name", known_targets())
def test_matmul_fits_everywhere(name: str) -> None:
    gpu = target(name)
    for extents in ((4096, 4096, 4096), (16, 4096, 4096), (131072, 64, 512), (100, 77, 33)):
        m, n, k = extents
        for dtype in (BF16, FP32, FP8):
            facts = facts_of(matmul_to_bf16, tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype))
            first = proposed(TritonMatmulHeuristic(), facts, gpu)[0]
            predicted = estimate(facts, gpu, first.block_sizes, first.num_warps or 0, first.num_stages or 0)
            assert predicted.fits and predicted.spill_risk < 1, (extents, dtype, predicted)


@pytest.mark.parametrize(
    ("extents", "tile"), [((70, 37, 75), (64, 32)), ((70, 37, 140), (64, 64)), ((4096,) * 3, None)]
)
def test_an_epilogue_that_may_spill_gets_a_smaller_tile(
    extents: tuple[int, int, int], tile: tuple[int, int] | None
) -> None:
    """Two warps of 64 x 64 in fp32 have too few registers where stores are of single elements, as those of 75 columns."""
    m, k, n = extents
    kernel = import_path(EXAMPLES_DIR / "epilogue_subtiling.py").matmul_residual_gelu
    facts = facts_of(kernel.fn, *(tensor(*sizes, dtype=FP32) for sizes in ((m, k), (k, n), (m, n), (n,))))
    (first, *_) = proposed(TritonMatmulHeuristic(), facts, target("sm_90"))
    predicted = estimate(facts, target("sm_90"), first.block_sizes, first.num_warps or 0, first.num_stages or 0)
    assert first.num_warps == 2 and not predicted.spill_risk
    assert tile is None or (first.block_sizes[0], first.block_sizes[1]) == tile
    wide = estimate(facts, target("sm_90"), {0: 64, 1: 64, 2: 32}, 2, 2)
    assert (wide.spill_risk > 0) == (tile == (64, 32))


def test_matmul_declines() -> None:
    heuristic = TritonMatmulHeuristic()
    assert "0 matmuls" in reason(heuristic, facts_of(softmax, tensor(64, 64)), H100)
    layer_norm = facts_of(matmul_layer_norm, tensor(64, 64), tensor(64, 128), tensor(128), tensor(128))
    assert "not three tiles" in reason(heuristic, layer_norm, H100)
    assert "2 matmuls" in reason(heuristic, attention_facts(64), H100)
    for kernel in (matmul_rms_norm_tiled, matmul_largest):
        facts = facts_of(kernel, tensor(4096, 4096), tensor(4096, 512))
        assert "reduced in the same program" in reason(heuristic, facts, H100)
    assert heuristic.promote_seed_to_default


def tiles_of(facts: KernelFacts, gpu: Target) -> list[tuple[tuple[int, ...], int | None, int | None]]:
    found = proposed(TritonMatmulHeuristic(), facts, gpu)
    return [(tuple(dict(sorted(p.block_sizes.items())).values()), p.num_warps, p.num_stages) for p in found]


def test_a_tile_that_bounds_k_is_split_until_the_wave_is_full() -> None:
    # (M, N, span, K): 8 products of 128 x 128 and 16 parts of K for 132 SMs; 4 products of 128 x 256 add twice as much
    facts = facts_of(split_k, tensor(256, 16384), tensor(16384, 512))
    assert tiles_of(facts, H100)[:2] == [((128, 128, 1024, 64), 8, 6), ((128, 256, 512, 64), 8, 4)]
    # two products per SM already
    facts = facts_of(split_k, tensor(4096, 16384), tensor(16384, 2048))
    assert tiles_of(facts, H100)[0] == ((128, 256, 16384, 64), 8, 4)
    spans = [
        tiles_of(facts_of(split_k, tensor(m, 16384), tensor(16384, 512)), H100)[0][0][2] for m in (256, 1024, 4096)
    ]
    assert spans == sorted(spans)


def test_loops_without_a_product_get_tiles_of_their_own() -> None:
    facts = facts_of(parts_then_sum, tensor(256, 16384), tensor(16384, 512))
    # (M, N, K of the parts, M and N of their sum)
    assert tiles_of(facts, H100)[0] == ((64, 64, 128, 2, 512), 4, 6)


def test_rows_of_groups_are_as_many_as_there_are_on_average() -> None:
    offsets = torch.empty(17, dtype=torch.int32, device="meta")
    facts = facts_of(grouped, tensor(32768, 2048), tensor(16, 2048, 4096), offsets)
    assert product_extents(facts) == Extents(m=2048, n=4096, k=2048, batch=16, span=None)
    # N, M, K; no more than 128 rows and 3 stages, whose masks are in registers
    assert tiles_of(facts, H100) == [((128, 128, 64), 8, 3)]
    few = facts_of(grouped, tensor(512, 2048), tensor(16, 2048, 4096), offsets)
    assert tiles_of(few, H100)[0][0][1] == 32


def test_two_products_over_the_same_tiles_stage_twice_the_operands() -> None:
    facts = facts_of(halves, tensor(4096, 4096), tensor(4096, 4096), tensor(4096, 4096))
    one = facts_of(matmul_to_bf16, tensor(4096, 4096), tensor(4096, 4096))
    assert tiles_of(facts, H100)[0] == ((128, 256, 32), 8, 4)
    assert tiles_of(one, H100)[0] == ((128, 256, 64), 8, 4)


def shared_sums(m: int, n: int, k: int, gpu: Target, dtype: torch.dtype = BF16) -> list[tuple[int, int]]:
    """By proposal: the parts of its sums, and how many programs that gives."""
    found = proposed(
        TritonMatmulHeuristic(), facts_of(matmul_to_bf16, tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype)), gpu
    )
    tiles = ((tuple(p.block_sizes.values()), p.launch.get("split_k", 1)) for p in found)
    return [(parts, parts * cdiv(m, sizes[0]) * cdiv(n, sizes[1])) for sizes, parts in tiles]


@pytest.mark.parametrize(
    ("m", "n", "k"), [(256, 256, 65536), (512, 512, 16384), (1024, 1024, 16384), (16, 512, 16384), (64, 1024, 8192)]
)
def test_few_tiles_and_a_long_k_share_sums(m: int, n: int, k: int) -> None:
    h200 = target("h200")
    (parts, programs), *others = shared_sums(m, n, k, h200)
    assert parts > 1 and h200.num_sms / 2 < programs <= 2 * h200.num_sms
    assert all(count == 1 for count, _ in others)
    # where the formula is published, it stays the first seed
    (first, _), (second, _), *_ = shared_sums(m, n, k, H100)
    assert (first, second > 1) == (1, True)


@pytest.mark.parametrize(("m", "n", "k"), [(2048, 2048, 8192), (256, 256, 1024), (16, 4096, 4096), (4096, 4096, 4096)])
def test_grids_that_fill_the_gpu_and_short_sums_are_left(m: int, n: int, k: int) -> None:
    assert {parts for parts, _ in shared_sums(m, n, k, target("h200"))} == {1}


def test_sums_that_cannot_be_shared_are_left() -> None:
    """The kernel splits K itself."""
    facts = facts_of(split_k, tensor(256, 65536), tensor(65536, 256))
    assert not facts.splittable_k
    assert all("split_k" not in p.launch for p in proposed(TritonMatmulHeuristic(), facts, target("h200")))


@helion.kernel()
def gradient_of_weights(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    (tokens, n), k = grad.size(), x.size(1)
    out = torch.empty([n, k], dtype=torch.float32, device=x.device)
    for tile_n, tile_k in hl.tile([n, k]):
        acc = hl.zeros([tile_n, tile_k], dtype=torch.float32)
        for tile_t in hl.tile(tokens):
            acc = hl.dot(grad[tile_t, tile_n].T, x[tile_t, tile_k], acc=acc)
        out[tile_n, tile_k] = acc
    return out


@pytest.mark.parametrize(("n", "boxed"), [(300, True), (301, False)], ids=["aligned rows", "rows that begin anywhere"])
def test_turned_tf32_operands_are_loaded_with_descriptors(n: int, boxed: bool) -> None:
    args = (torch.empty(16384, n, device="meta"), torch.empty(16384, 300, device="meta"))
    bound = gradient_of_weights.bind(args, target="h200")
    first = next(seed.config for seed in bound.seeds if "Matmul" in seed.heuristic)
    assert first["indexing"] == ["tensor_descriptor" if boxed else "pointer", "pointer", "pointer"]


def masked_product(x: torch.Tensor, mask: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), w.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            kept = torch.where(mask[tile_m, tile_k], x[tile_m, tile_k], 0.0).to(x.dtype)
            acc = hl.dot(kept, w[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize("sizes", [(2048, 512, 768), (8192, 1024, 256)])
def test_a_mask_in_shared_memory_takes_a_stage_and_not_half_of_the_tile(sizes: tuple[int, int, int]) -> None:
    """Measurement ``masked_operands``: six stages have no room for it."""
    m, k, n = sizes
    facts = facts_of(masked_product, tensor(m, k), tensor(m, k, dtype=torch.bool), tensor(k, n))
    first = proposed(TritonMatmulHeuristic(), facts, target("h200"))[0]
    assert (list(first.block_sizes.values()), first.num_warps, first.num_stages) == ([128, 128, 64], 8, 5)


def frames(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    b, f, pixels, c = x.size()
    out = torch.empty([b, f, pixels, w.size(2)], dtype=x.dtype, device=x.device)
    for batch, frame, places, cols in hl.tile([b, f, pixels, w.size(2)], block_size=[1, 1, None, None]):
        acc = hl.zeros([places, cols], dtype=torch.float32)
        for near in hl.tile(max(frame.begin - 1, 0), min(frame.begin + 2, f), block_size=1):
            for inner in hl.tile(c):
                acc = hl.dot(
                    x[batch.begin, near.begin, places, inner], w[near.begin - frame.begin + 1, inner, cols], acc=acc
                )
        out[batch.begin, frame.begin, places, cols] = acc.to(out.dtype)
    return out


@pytest.mark.parametrize(
    ("columns", "tile"), [(320, [256, 128]), (640, [256, 128]), (512, [128, 256]), (896, [128, 256])]
)
def test_tiles_that_leave_fewer_columns_empty_come_first(columns: int, tile: list[int]) -> None:
    args = tensor(2, 16, 1024, 320), tensor(3, 320, columns)
    seeds = helion.kernel(frames, backend="triton").bind(args, target="h200").seeds
    assert seeds[0].config["block_sizes"][:2] == tile and not seeds[0].predicted.spills


def test_loops_around_one_step_of_k_have_fewer_warps() -> None:
    cell = CELLS["conv_weight_gradient"]
    bound = cell.kernel.bind(cell.arguments("meta", False), target="h200")
    config, analysis = bound.default_config(), bound._analysis
    assert config["num_warps"] == 4 and config["split_k"] == 8 and config["block_sizes"] == [128, 128, 32]
    wider = analysis.predict(analysis.full_config({**config, "num_warps": 8}))
    assert analysis.predict(config).time_us < wider.time_us


def with_zero_points(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), w.size(0)], dtype=w.dtype, device=x.device)
    for rows, columns in hl.tile([x.size(0), w.size(0)]):
        acc = hl.zeros([rows, columns])
        total = hl.zeros([rows])
        for inner in hl.tile(x.size(1)):
            own = x[rows, inner]
            total += own.to(torch.float32).sum(-1)
            acc = hl.dot(own, w[columns, inner].T, acc=acc)
        out[rows, columns] = (acc - total[:, None]).to(w.dtype)
    return out


@pytest.mark.parametrize("target", ["h200", "b200", "a100"])
def test_configs_have_no_entries_for_accesses_of_precomputed_operands(target: str) -> None:
    x, w = torch.empty(6304, 1280, dtype=torch.int8, device="meta"), torch.empty(3840, 1280, dtype=BF16, device="meta")
    bound = helion.kernel(with_zero_points).bind((x, w), target=target)
    config = bound.default_config()
    assert any(seed.config == config for seed in bound.seeds) and bound.to_code(config)
