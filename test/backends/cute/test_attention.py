"""Attention of the cute backend: recognition, evaluation on CPU tensors, keys and refusals."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from backends.cute import attention_kernels as kernels
from backends.cute.printed_registers import unwritten_registers

import helion
import helion.language as hl
from benchmarks.unseen.attention import flash_forward, softcapped_window
from examples.flex_attention import unchanged
from helion import exc
from helion.backends.cute.codegen.attention import bounds, softmax
from helion.backends.cute.shapes import shape_of_plan

CASES = kernels.cases()


@pytest.mark.parametrize(("case", "arguments"), CASES, ids=[case.name for case, _ in CASES])
def test_values_on_cpu_tensors(case: kernels.Case, arguments: tuple[Any, ...]) -> None:
    """Evaluate a kernel, whose problem is all that is read of the program, against fp64."""
    found = helion.kernel(backend="cute")(case.kernel)(*arguments)
    wanted = case.reference(*arguments)
    for one, other in zip(*((x,) if torch.is_tensor(x) else x for x in (found, wanted)), strict=True):
        assert (one.double() - other).norm() < 5e-3 * other.norm()


@pytest.mark.parametrize(("case", "arguments"), CASES, ids=[case.name for case, _ in CASES])
def test_every_register_is_written(case: kernels.Case, arguments: tuple[Any, ...]) -> None:
    meta = tuple(each.to("meta") if torch.is_tensor(each) else each for each in arguments)
    plan = helion.kernel(backend="cute")(case.kernel).bind(meta, target="sm_90").plan()
    assert not unwritten_registers(shape_of_plan(plan).kernel(plan).source)


@pytest.mark.prove
@pytest.mark.parametrize(("case", "arguments"), CASES, ids=[case.name for case, _ in CASES])
def test_binaries_are_neither_spilled_nor_serialized(case: kernels.Case, arguments: tuple[Any, ...]) -> None:
    """Compile each seed. ptxas serializes MMAs, with an arrival for each, where accumulators need more registers."""
    meta = tuple(each.to("meta") if torch.is_tensor(each) else each for each in arguments)
    bound = helion.kernel(backend="cute")(case.kernel).bind(meta, target="sm_90")
    for seed in bound.seeds:
        found = bound.resources(seed.config)
        parts = bound.plan(seed.config).attention.parts
        assert found.spill_bytes == 0
        assert found.sass_counts["WARPGROUP"] <= 5 + 3 * len(parts), "4 of the first and last block, 3 of each loop"


def test_auto_selects_the_faster_backend_by_prediction() -> None:
    shape = (4, 32, 4096, 128)
    tensors = tuple(torch.empty(shape, dtype=torch.bfloat16, device="meta") for _ in range(3))
    bound = helion.kernel()(kernels.attention.fn).bind((*tensors, True), target="h100")
    assert bound.backend_on_gpu == "cute"
    older = helion.kernel()(kernels.attention.fn).bind((*tensors, True), target="sm_80")
    assert older.backend_on_gpu == "triton"


@pytest.mark.parametrize("m", [4, 16])
def test_auto_packs_the_heads_of_few_queries(m: int) -> None:
    """Compare with times of an H200 (``decode`` in benchmarks/results/nvidia-h200-attention.jsonl)."""
    shapes = (1, 32, m, 128), (1, 8, 65536, 128), (1, 8, 65536, 128)
    tensors = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
    assert helion.kernel(kernels.flex_attention.fn).bind(tensors, target="h200").backend_on_gpu == "cute"
    bound = helion.kernel(kernels.flex_attention.fn, backend="cute").bind(tensors, target="h200")
    assert abs(bound.seeds[0].predicted.time_us / 88 - 1) < 0.25


def aligned(score, b, h, q, k):
    return torch.where(k <= q + (150 - 5), score, float("-inf"))


def behind(score, b, h, q, k):
    return torch.where((k <= q + 100) & (k > q + 20), score, float("-inf"))


FEW = [
    (5, False, None),
    (5, True, None),
    (63, False, None),
    (64, False, None),
    (5, False, aligned),
    (40, False, behind),
]


@pytest.mark.parametrize(("m", "apart", "mask"), FEW)
def test_few_queries_of_heads_that_share_keys_are_rows_of_one_tile(m: int, apart: bool, mask: Any) -> None:
    """Pack heads whose queries follow each other in memory, and compare values and the masks of printed text with fp64."""
    torch.manual_seed(m)
    q, k, v = ((torch.randn(2, heads, rows, 64) + 0.2).bfloat16() for heads, rows in ((6, m), (2, 150), (2, 150)))
    q = torch.nn.functional.pad(q, (0, 0, 0, 3))[:, :, :m] if apart else q
    more = () if mask is None else (mask,)
    bound = helion.kernel(kernels.flex_attention.fn, backend="cute").bind((q, k, v, *more), target="h100")
    plan = bound.plan().attention
    problem, packed = plan.problem, m < 64 and not apart
    assert (problem.heads, problem.queries) == (((2, 2), 3 * m) if packed else ((2, 6), m))
    wide = [x.double().repeat_interleave(3, 1) for x in (k, v)]
    scores = q.double() @ wide[0].mT / 8
    if mask is not None:
        scores = mask(scores, 0, 0, torch.arange(m)[:, None], torch.arange(150))
    wanted = torch.softmax(scores, -1) @ wide[1]
    assert (bound(q, k, v, *more).double() - wanted).norm() < 5e-3 * wanted.norm()
    assert problem.band.period == (m if mask is not None else 0)


@pytest.mark.parametrize("name", ["biased", "scaled queries"])
def test_auto_may_take_loaded_and_computed_operands(name: str) -> None:
    cases = kernels.cases(device="meta", large=True)
    case, arguments = [each for each in cases if each[0].name.startswith(name)][-1]
    bound = helion.kernel(backend="auto")(case.kernel).bind(arguments, target="h100")
    assert bound.backend_on_gpu == "cute"


@pytest.mark.parametrize(("m", "n", "width"), [(4096, 4096, 100), (16384, 16384, 100), (4096, 4096, 700)])
def test_predicted_times_count_the_keys_of_windows(m: int, n: int, width: int) -> None:
    """A window of few keys takes the time of its blocks, with masks, not that of half the keys."""
    shapes = (8, 16, m, 128), (8, 16, n, 128), (8, 16, n, 128)
    tensors = tuple(torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes)

    def near(score, b, h, i, j):  # type: ignore[no-untyped-def]
        return torch.where((i >= j) & (i - j < width), score, float("-inf"))

    times = {}
    for mod in (near, kernels.causal):
        bound = helion.kernel(backend="cute")(kernels.flex_attention.fn).bind((*tensors, mod), target="h100")
        assert bound.facts.attention is not None
        assert bound.facts.attention.window == (width if mod is near else None)
        times[mod] = bound.seeds[0].predicted.time_us
    assert times[near] < 1.6 * times[kernels.causal] * (width + 256) / (m / 2)


def windowed(q, k, v, width: int):
    """Inputs `[H, S, D]` and a number of the launch: each query sees the last ``width`` keys."""
    heads, m, dims = q.size()
    dims, out = hl.specialize(dims), torch.empty_like(q)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(k.size(1)):
            scores = hl.dot(q[h.begin, tile_m, :], k[h.begin, tile_n, :].T) * dims**-0.5
            after = tile_m.index[:, None] - tile_n.index[None, :]
            scores = torch.where((after >= 0) & (after < width), scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[h.begin, tile_m, :] = acc / total[:, None]
    return out


def in_float32(q, k, v):
    """Inputs `[H, S, D]`, an output in fp32."""
    heads, m, dims = q.size()
    dims = hl.specialize(dims)
    out = torch.empty([heads, m, dims], dtype=torch.float32, device=q.device)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(k.size(1)):
            scores = hl.dot(q[h.begin, tile_m, :], k[h.begin, tile_n, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[h.begin, tile_m, :] = acc / total[:, None]
    return out


def hidden_by_numbers(q, k, v, padding, keys: hl.constexpr, window: int, known: hl.constexpr, padded: hl.constexpr):
    """Inputs `[H, S, D]`, a loop over the first ``keys``, and masks by a number, which hide all keys of some queries."""
    heads, m, dims = q.size()
    dims, out = hl.specialize(dims), torch.empty_like(q)
    width = hl.specialize(window) if known else window
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.full([tile_m], -1.0e30, dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(keys):
            scores = hl.dot(q[h.begin, tile_m, :], k[h.begin, tile_n, :].T) * dims**-0.5
            scores = scores + padding[h.begin, tile_n] if padded else scores
            after = tile_m.index[:, None] - tile_n.index[None, :]
            scores = torch.where((after >= 0) & (after < width), scores, -1.0e30)
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[h.begin, tile_m, :] = acc / total[:, None]
    return out


@pytest.mark.parametrize(
    ("keys", "known", "padded", "windows", "bounded"),
    [
        (150, False, False, (40, 1, 0, -3, 2**31 - 1, -(2**31)), True),
        (70, False, False, (40, 0), False),  # the last queries see no key
        (70, True, False, (40,), False),
        (150, True, True, (40,), False),  # padding is below the masks
        (150, True, False, (40,), True),
    ],
)
def test_masks_by_numbers(keys: int, known: bool, padded: bool, windows: tuple[int, ...], bounded: bool) -> None:
    """Queries that see no key have the mean of all values, and those whose keys are padding that of the others."""
    q, k, v = (kernels.random(2, 150, 64) for _ in range(3))
    padding = torch.zeros(2, 150)
    padding[0] = torch.finfo(torch.bfloat16).min
    kernel = helion.kernel(hidden_by_numbers, backend="cute", static_shapes=True)
    for window in windows:
        arguments = (q, k, v, padding, keys, window, known, padded)
        scores = q.double() @ k[:, :keys].double().mT / 8 + (padding[:, None, :keys].double() if padded else 0.0)
        after = torch.arange(150)[:, None] - torch.arange(keys)
        wanted = torch.softmax(torch.where((after >= 0) & (after < window), scores, -1.0e30), -1) @ v[:, :keys].double()
        assert (kernel(*arguments).double() - wanted).norm() < 6e-3 * wanted.norm()
    meta = [each.to("meta") if torch.is_tensor(each) else each for each in arguments]
    plan = kernel.bind(tuple(meta), target="sm_90").plan()
    assert plan.attention.problem.band.is_whole != bounded
    source = shape_of_plan(plan).kernel(plan).source
    assert ("raised = cute.arch.fmax(raised, cutlass.Float32(-1e+30))" in source) == (not bounded or len(windows) > 1)


def shifted(q, k, v, replaced: hl.constexpr):
    """Inputs `[H, S, D]`: the first queries see no key, and a sum of 0 becomes 1. A maximum of minus infinity may be
    ``replaced``."""
    heads, m, dims = q.size()
    dims, out = hl.specialize(dims), torch.empty_like(q)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(k.size(1)):
            scores = hl.dot(q[h.begin, tile_m, :], k[h.begin, tile_n, :].T) * dims**-0.5
            seen = tile_m.index[:, None] - tile_n.index[None, :] >= 5
            scores = torch.where(seen, scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            less = torch.where(raised == float("-inf"), 0.0, raised) if replaced else raised
            weights, shrink = torch.exp(scores - less[:, None]), torch.exp(highest - less)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[h.begin, tile_m, :] = acc / torch.where(total == 0.0, 1.0, total)[:, None]
    return out


@pytest.mark.parametrize("replaced", [False, True])
def test_sums_of_queries_without_keys(replaced: bool) -> None:
    """Exponents of minus infinity less itself are NaN, unless the program subtracts another number."""
    q, k, v = (kernels.random(2, 70, 64) for _ in range(3))
    kernel = helion.kernel(shifted, backend="cute")
    found = kernel(q, k, v, replaced)
    assert (found[:, :5] == 0.0 if replaced else found[:, :5].isnan()).all() and not found[:, 5:].isnan().any()
    plan = kernel.bind((*(x.to("meta") for x in (q, k, v)), replaced), target="sm_90").plan()
    assert ('float("nan")' in shape_of_plan(plan).kernel(plan).source) != replaced


@pytest.mark.parametrize("dims", [64, 192, 256])
def test_configs_have_room_for_outputs_in_float32(dims: int) -> None:
    """The output is as large as twice the queries there, and has shared memory of its own."""
    tensors = tuple(torch.empty(8, 2000, dims, dtype=torch.bfloat16, device="meta") for _ in range(3))
    bound = helion.kernel(in_float32, backend="cute").bind(tensors, target="h100")
    assert bound.seeds
    for config in (bound.default_config(), bound.conservative_config()):
        assert bound.plan(config).attention.own_output


@pytest.mark.parametrize("static", [False, True])
def test_predicted_times_count_the_keys_of_windows_of_a_launch(static: bool) -> None:
    tensors = tuple(torch.empty(64, 8192, 128, dtype=torch.bfloat16, device="meta") for _ in range(3))
    times = {}
    for width in (100, 2000):
        bound = helion.kernel(windowed, backend="cute", static_shapes=static).bind((*tensors, width), target="h200")
        assert bound.facts.attention is not None and bound.facts.attention.window == width
        times[width] = bound.seeds[0].predicted.time_us
    assert times[100] < times[2000] / 4


@pytest.mark.parametrize(("heads", "dims", "shared"), [(32, 64, True), (32, 128, False), (1, 64, False)])
def test_two_tiles_of_one_group_share_an_sm(heads: int, dims: int, shared: bool) -> None:
    """Windows visit fewer keys in short blocks; wide heads have no registers for two tiles, and one head has too few."""
    tensors = tuple(torch.empty(heads, 4097, dims, dtype=torch.float16, device="meta") for _ in range(3))
    bound = helion.kernel(softcapped_window.fn, backend="cute").bind((*tensors, 512), target="h200")
    assert (bound.seeds[0].config["block_sizes"] == [64, 64]) == shared


@pytest.mark.parametrize(
    ("heads", "m", "dims", "scheduler"),
    [(128, 1024, 64, "dynamic"), (128, 192, 64, "static"), (128, 1024, 128, "static"), (32, 1024, 64, "static")],
)
def test_narrow_heads_take_tiles_from_a_counter(heads: int, m: int, dims: int, scheduler: str) -> None:
    """The tiles of 32 heads of 1024 queries are not two rounds."""
    q = torch.empty(heads // 16, 16, m, dims, dtype=torch.bfloat16, device="meta")
    first = helion.kernel(flash_forward.fn, backend="cute").bind((q, q, q), target="h200").seeds[0].config
    assert first["wgmma_tile_scheduler"] == scheduler


def test_a_binary_that_spills_is_replaced() -> None:
    """Other seeds have shorter blocks or fewer groups, and each is rejected for a spilled byte."""
    tensors = tuple(torch.empty(2, 8, 2048, 128, dtype=torch.bfloat16, device="meta") for _ in range(3))
    bound = helion.kernel(kernels.attention.fn, backend="cute").bind((*tensors, True), target="h100")
    assert all(seed.predicted.never_spills for seed in bound.seeds)
    rows, keys = zip(*(seed.config.block_sizes[-2:] for seed in bound.seeds), strict=True)
    assert min(rows) < rows[0] or min(keys) < keys[0]


@pytest.mark.parametrize("causal", [False, True])
def test_random_configs_have_a_plan(causal: bool) -> None:
    """Draw configs; what the space gives is legal, fits by prediction, and compiles to a plan."""
    tensors = tuple(torch.empty(2, 4, 1000, 128, dtype=torch.bfloat16, device="meta") for _ in range(3))
    bound = helion.kernel(backend="cute")(kernels.attention.fn).bind((*tensors, causal), target="h100")
    space, rng = bound.config_spec, random.Random(0)
    seen = set()
    for _ in range(12):
        drawn = {field.key: field.random(rng) for field in space.fields}
        for config in (space.random(rng), space.repair(drawn)):
            assert space.normalize(config) == config
            plan = bound.plan(config).attention
            seen.add((plan.groups, plan.keys, plan.splits, plan.scheduler))
    assert len(seen) >= 6


def test_scores_with_a_formula_have_shorter_blocks() -> None:
    """Roundings of scores take registers, so that 176 keys of 128 dimensions are slower than 128; plain scores take 176."""
    sizes = [(1, 16, rows, 128) for rows in (1000, 4097, 4097)]
    tensors = [torch.empty(size, dtype=torch.bfloat16, device="meta") for size in sizes]
    found = {}
    for name, kernel, more in (("rounded", flash_forward.fn, ()), ("plain", kernels.attention.fn, (False,))):
        bound = helion.kernel(kernel, backend="cute").bind((*tensors, *more), target="h200")
        found[name] = [seed.config["block_sizes"][-1] for seed in bound.seeds]
    assert max(found["rounded"]) == 128
    assert found["plain"][0] == 176


@pytest.mark.parametrize("keys", [104, 100, 101])
def test_lanes_of_a_row_exchange_the_vectors_of_a_bias(keys: int) -> None:
    """Execute the printed text for the four lanes of a row: each has the pairs of its columns, of a bias in 16 bits."""
    tensors = [torch.empty(1, 2, rows, 64, dtype=torch.bfloat16, device="meta") for rows in (70, keys, keys)]
    bias = torch.arange(70 * keys, dtype=torch.int16).view(70, keys)

    added = torch.empty(2, 70, keys, dtype=torch.bfloat16, device="meta")

    def biased(score, b, h, q, k):
        return score + added[h, q, k]

    bound = helion.kernel(kernels.flex_attention.fn, backend="cute").bind((*tensors, biased), target="h100")
    plan = bound.plan(helion.Config(block_sizes=[128, 128]))
    texts = {text[0].partition("(")[0]: text for text in softmax.softmax_functions(plan.attention)}
    (name,) = [each for each in texts if each.startswith("def vectors_of_")] or [""]
    assert bool(name) == (keys % 2 == 0)
    if not name:
        return
    lanes, width = torch.arange(4), 8 if keys % 8 == 0 else 2

    def loaded(at: torch.Tensor) -> torch.Tensor:
        return bias.flatten()[at[:, None] + torch.arange(width)]

    def copied(source: torch.Tensor, part: torch.Tensor) -> None:
        part.copy_(source)

    fakes = SimpleNamespace(
        make_rmem_tensor=lambda size, dtype: torch.zeros(4, size, dtype=torch.int16),
        crd2idx=lambda place, layout: place[0] * keys + place[1],
        assume=lambda at, divby: at,
        make_tensor=lambda at, layout: loaded(at),
        make_layout=lambda size: size,
        autovec_copy=copied,
        recast_tensor=lambda part, dtype: part.view(torch.int32).T,
        arch=SimpleNamespace(shuffle_sync_bfly=lambda value, offset: value[lanes ^ offset]),
    )
    names: dict[str, Any] = {
        "cute": fakes,
        "cutlass": SimpleNamespace(Int32=None, BFloat16=None, select_=torch.where),
    }
    exec("\n".join(texts[name]), names)
    vector = SimpleNamespace(layout=None, iterator=0)
    found = names[name.removeprefix("def ")](vector, lanes, 5, 32 + width * lanes)
    for lane in range(4):
        wanted = [bias[5, 32 + 8 * column + 2 * lane + i] for column in range(width // 2) for i in range(2)]
        assert found[lane].tolist() == wanted


BIASES: dict[str, Any] = {
    "heads": ((4, 300, 200), lambda bias: lambda score, b, h, q, k: score + bias[h, q, k], 3),
    "batches": ((3, 300, 200), lambda bias: lambda score, b, h, q, k: score + bias[b, q, k], 4),
    "all": ((300, 200), lambda bias: lambda score, b, h, q, k: score + bias[q, k], 12),
    "own": ((3, 4, 300, 200), lambda bias: lambda score, b, h, q, k: score + bias[b, h, q, k], 1),
}


@pytest.mark.parametrize("name", BIASES)
def test_heads_that_share_a_tile_of_a_bias_follow_one_another(name: str) -> None:
    """Execute the printed order of tiles: each is visited once, those of heads with one tile of the bias in succession."""
    shape, formula, sharing = BIASES[name]
    tensors = [torch.empty(3, 4, rows, 64, dtype=torch.bfloat16, device="meta") for rows in (300, 200, 200)]
    score = formula(torch.empty(shape, dtype=torch.bfloat16, device="meta"))
    bound = helion.kernel(kernels.flex_attention.fn, backend="cute").bind((*tensors, score), target="h100")
    plan = bound.plan({**bound.default_config(), "block_sizes": [128, 128], "wgmma_bias_stages": 2}).attention
    names: dict[str, Any] = {}
    exec("\n".join(bounds.place_function(plan)), names)
    places = [names["place"](work) for work in range(plan.pieces)]
    assert sorted(places) == [(tile, head) for tile in range(3) for head in range(12)]

    axes = [mode.at.arguments[0] for mode in plan.bias.modes]
    seen = [(tile, *(divmod(head, 4)[axis] for axis in axes)) for tile, head in places]
    assert len([*itertools.groupby(seen)]) == len(places) // sharing


def test_a_bias_that_tma_does_not_take_has_no_stages() -> None:
    """Refuse stages for rows that are not aligned, for fp32, and without a bias; the reason names the key."""
    tensors = [torch.empty(3, 4, rows, 64, dtype=torch.bfloat16, device="meta") for rows in (300, 201, 201)]
    for keys, dtype in ((201, torch.bfloat16), (208, torch.float32), (0, None)):
        score = unchanged
        if keys:
            bias = torch.empty(4, 300, keys, dtype=dtype, device="meta")
            score = lambda s, b, h, q, k, bias=bias: s + bias[h, q, k]  # noqa: E731
        bound = helion.kernel(kernels.flex_attention.fn, backend="cute").bind((*tensors, score), target="h100")
        with pytest.raises(exc.InvalidConfig, match="wgmma_bias_stages.*TMA takes"):
            bound.plan({**bound.default_config(), "wgmma_bias_stages": 2})


def seed_of(shapes: tuple[tuple[int, ...], ...], *more: Any) -> Any:
    tensors = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
    return helion.kernel(kernels.flex_attention.fn, backend="cute").bind((*tensors, *more), target="h200").seeds[0]


def test_first_seeds_are_those_that_were_faster() -> None:
    """Compare seeds with the fastest configs of an H200 (``sweep`` in benchmarks/results/cute/nvidia-h200-attention.jsonl)."""

    def near(score, b, h, q, k):
        return torch.where((q >= k) & (q - k < 1024), score, float("-inf"))

    bias = torch.empty(32, 1024, 1024, dtype=torch.bfloat16, device="meta")
    found = {
        "few heads": seed_of(((1, 4, 4096, 64),) * 3, kernels.causal),
        "ragged": seed_of(((64, 16, 577, 64),) * 3, kernels.causal),
        "window": seed_of(((4, 32, 4096, 64),) * 3, near),
        "one query": seed_of(((16, 32, 1, 64), *((16, 32, 4096, 64),) * 2)),
        "bias": seed_of(((16, 32, 1024, 64),) * 3, lambda score, b, h, q, k: score + bias[h, q, k]),
    }
    blocks = {name: [*seed.config["block_sizes"][-2:]] for name, seed in found.items()}
    assert blocks == {name: [64 if name in ("few heads", "one query") else 128, 128] for name in found}
    assert not found["window"].config["wgmma_pingpong"] and found["ragged"].config["wgmma_kv_stages"] == 4
    assert found["one query"].config["wgmma_kv_stages"] == 4
    assert found["bias"].config["wgmma_bias_stages"] == 2
