"""Normal forms: two configs are equal exactly when their code is, and what is predicted is what is launched."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import memory_kernels
import pytest
import torch
from harness import space_of, tensor
from sample_kernels import matmul, row_sum

import helion
import helion.language as hl
from helion import exc
from helion._compiler.rewrites.unfuse_matmul import UNFUSE_MATMUL
from helion._testing import EXAMPLES_DIR, as_meta, import_path
from helion.autotuner.space import ConfigSpace

#: Random configs per kernel, and keys changed in each: a sample, and what `make prove` looks at.
SAMPLED, PROVEN = (1, 4), (20, 12)
TARGETS = ("sm_90", "sm_100", "gfx942")
NAMES = sorted(p.stem for p in Path(EXAMPLES_DIR).glob("*.py") if p.stem != "demo" and not p.stem.startswith("_"))


@functools.cache
def kernels(example: str) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """The kernels of an example, each with the arguments of its first case."""
    found: dict[str, tuple[Any, tuple[Any, ...]]] = {}
    for _, kernel, args in import_path(Path(EXAMPLES_DIR) / f"{example}.py").cases():
        found.setdefault(kernel.name, (kernel, as_meta(args)))
    return found


def pairs(space: ConfigSpace, count: int, changes: int, rng: Random) -> Iterator[tuple[helion.Config, helion.Config]]:
    """Random configs with ones that differ in one key before they are settled."""
    for _ in range(count):
        asked = {field.key: field.random(rng) for field in space.fields}
        if True not in asked["flatten_loops"]:  # a search tries it for long sums only
            asked["epilogue_subtile"] = rng.choice((None, 2, 4))
        config = space.repair(asked)
        fields = rng.sample(space.fields, changes)
        for field in fields:
            if others := field.neighbours(config[field.key]):
                yield config, space.repair({**asked, field.key: rng.choice(others)})


def check(example: str, targets: tuple[str, ...], count: int, changes: int) -> None:
    for name, (kernel, args) in kernels(example).items():
        for on in targets:
            try:
                bound = kernel.bind(args, target=on)
            except exc.BackendUnsupported:
                continue
            compare(bound, count, changes, f"{name} {on}")


def compare(bound: Any, count: int, changes: int, label: str) -> None:
    code = functools.cache(functools.partial(_code, bound))
    for config, other in pairs(bound.config_spec, count, changes, Random(label)):
        assert bound.config_spec.normalize(config) == config, label
        differing = {key: (config[key], other[key]) for key in config if config[key] != other[key]}
        assert (code(config) == code(other)) == (not differing), (label, differing, config)


def _code(bound: Any, config: helion.Config) -> str:
    """The module of a config, or why there is none."""
    try:
        code = bound._analysis.code(config)
    except exc.ReadModifyWriteRace as refusal:
        return f"{refusal} {config!r}"
    assert dict(code.plan.launch.options)["num_warps"] == config["num_warps"], config
    return bound.to_triton_code(config, output_origin_lines=False)


@pytest.mark.parametrize("example", NAMES)
def test_configs_are_equal_when_their_code_is(example: str) -> None:
    check(example, TARGETS[:1], *SAMPLED)


@pytest.mark.prove
@pytest.mark.parametrize("example", NAMES)
def test_all_configs_are_equal_when_their_code_is(example: str) -> None:
    check(example, TARGETS, *PROVEN)


@pytest.mark.parametrize("case", memory_kernels.CASES)
@pytest.mark.parametrize("settings", [{}, {"checked": True}], ids=str)
def test_loops_that_wait_for_other_threads(case: str, settings: dict[str, Any]) -> None:
    chosen = memory_kernels.CASES[case]
    compare(helion.kernel(chosen.kernel, **settings).bind(chosen.make("cpu"), target="sm_100"), 2, 5, case)


# --- what a config did not get -------------------------------------------------------------------------------------------


def chained(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Two products in one accumulator."""
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for i, j in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[i, k], y[k, j])
            acc = torch.addmm(acc, x[i, k], z[k, j])
        out[i, j] = acc
    return out


def magnitudes(x: torch.Tensor) -> torch.Tensor:
    """Squares of complex numbers, whose parts are neighbors."""
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for i in hl.tile(x.size(0)):
        real, imaginary = x[i, 0], x[i, 1]
        out[i] = real * real + imaginary * imaginary
    return out


def largest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The largest element of each row of a product."""
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for i in hl.tile(x.size(0)):
        acc = hl.zeros([i, y.size(1)], dtype=torch.float32)
        for k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[i, k], y[k, :])
        out[i] = acc.amax(-1)
    return out


HALF = functools.partial(tensor, dtype=torch.float16)
PRODUCT = (matmul, (HALF(256, 128), HALF(128, 256)))
ODD = (matmul, (HALF(250, 125), HALF(125, 250)))
CHAIN = (chained, (HALF(256, 128), HALF(128, 256), HALF(128, 256)))
STEPS = (memory_kernels.CASES["shifted"].kernel, memory_kernels.CASES["shifted"].make("cpu"))
ROWS = (row_sum, (HALF(256, 300),))
PARTS = (magnitudes, (tensor(300, 2),))
LARGEST = (largest, (HALF(256, 128), HALF(128, 256)))
UNFUSED = {"block_sizes": [1, 64], "unfuse_matmul": [64, 64, 32], "num_warps": 4, "num_stages": 3}
FEWER = "its chunks have fewer elements than threads, which Triton 3.6 fails on"
TILES = {"block_sizes": [64, 64, 32]}
GRID = {"pid_type": "persistent_blocked"}


@pytest.mark.parametrize(
    ("kernel", "on", "config", "said"),
    [
        (PRODUCT, "sm_90", {"block_sizes": [1024, 64, 32]}, ["block_sizes[0] (tile_m) is 256, not 1024: the nearest that the dimension takes"]),
        (CHAIN, "sm_90", {**TILES, "num_warps": 16}, ["num_warps is 4, not 16: Triton miscompiles chained dots with fewer than 16 rows per warp"]),
        (CHAIN, "sm_80", {**TILES, "num_warps": 16}, []),
        (ROWS, "sm_90", {"block_sizes": [1], "reduction_loops": [32], "num_warps": 4}, [f"num_warps is 1, not 4: {FEWER}"]),
        (ROWS, "gfx942", {"block_sizes": [2], "reduction_loops": [64], "num_warps": 8}, [f"num_warps is 2, not 8: {FEWER}"]),
        (ROWS, "sm_90", {"block_sizes": [4], "reduction_loops": [32], "num_warps": 4}, []),
        (ROWS, "sm_90", {"block_sizes": [1], "reduction_loops": [None], "num_warps": 16}, []),
        (
            PRODUCT,
            "sm_90",
            {**TILES, "num_warps": 8, "range_unroll_factors": [0, 2]},
            ["range_unroll_factors[1] (the loop over tile_k) is 0, not 2: unrolling chains the dots of a loop, and Triton miscompiles chained dots with fewer than 16 rows per warp"],
        ),
        (
            ODD,
            "sm_90",
            {**TILES, "indexing": ["pointer", "tensor_descriptor", "pointer"]},
            ["indexing[1] (load of y) is 'pointer', not 'tensor_descriptor': this access cannot use it on this target, or with these tile sizes"],
        ),
        (
            PRODUCT,
            "sm_90",
            {**TILES, "indexing": "tensor_descriptor", "load_cache_modifiers": [".cg"], "load_eviction_policies": ["", "last"]},
            [
                "load_eviction_policies[1] (load of y) is '', not 'last': the access has another cache option, or a descriptor, which takes none",
                "load_cache_modifiers[0] (load of x) is '', not '.cg': the access has another cache option, or a descriptor, which takes none",
            ],
        ),
        (
            PRODUCT,
            "sm_90",
            {**TILES, "load_cache_modifiers": [".cg", ".cg"], "load_eviction_policies": ["", "last"]},
            ["load_cache_modifiers[1] (load of y) is '', not '.cg': the access has another cache option, or a descriptor, which takes none"],
        ),
        (
            PRODUCT,
            "sm_90",
            {**TILES, "range_flattens": [True, None]},
            ["range_flattens[0] (the grid over tile_m, tile_n) is None, not True: programs of this pid_type take one tile each"],
        ),
        (PRODUCT, "sm_90", {**TILES, **GRID, "range_flattens": [True, None]}, []),
        (
            PRODUCT,
            "sm_100",
            {**TILES, **GRID, "num_warps": 2, "range_warp_specializes": [True, True]},
            [
                "range_warp_specializes[1] (the loop over tile_k) is None, not True: at most one loop is warp-specialized, with at least 4 warps and no unrolling",
                "num_warps is 4, not 2: at most one loop is warp-specialized, with at least 4 warps and no unrolling",
            ],
        ),
        (
            STEPS,
            "sm_90",
            {"range_flattens": [None, True]},
            ["range_flattens[1] (the loop over _) is None, not True: the loop has a barrier in each iteration"],
        ),
        (
            PRODUCT,
            "sm_90",
            {**TILES, "epilogue_subtile": 2},
            [],
        ),
        (
            PARTS,
            "sm_90",
            {"block_sizes": [64], "load_eviction_policies": ["first", "last"]},
            ["load_eviction_policies[1] (load of x) is '', not 'last': the kernel accesses it together with its neighbor, whose cache options both have"],
        ),
        (
            LARGEST,
            "sm_90",
            {**UNFUSED, "matmul_num_warps": 4, "matmul_num_stages": 2},
            [
                f"block_sizes[1] (k) is 16, not 64: {UNFUSE_MATMUL.needs}",
                "matmul_num_warps is None, not 4: it is what None means",
            ],
        ),
        (PRODUCT, "sm_90", {**TILES, "l2_groupings": [4], "pid_type": "xyz"}, ["l2_groupings[0] (tile_m, tile_n) is 1, not 4: programs of this pid_type take one tile each"]),
    ],
)  # fmt: skip
def test_what_a_config_does_not_get(
    kernel: tuple[Callable[..., Any], tuple[Any, ...]], on: str, config: dict[str, Any], said: list[str]
) -> None:
    space = space_of(kernel[0], *kernel[1], on=on)
    assert [str(change) for change in space.adjusted(config)] == said
    assert space.adjusted(space.normalize(config)) == ()


def test_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    bound = helion.kernel(chained).bind(CHAIN[1], target="sm_90")
    config = helion.Config(block_sizes=[64, 64, 32], num_warps=16)
    change = "num_warps is 4, not 16: Triton miscompiles chained dots with fewer than 16 rows per warp"
    line = f"helion: config of chained on sm_90: {change}"
    for _ in range(2):
        assert "num_warps=4" in bound.to_triton_code(config)
    bound.to_triton_code({**TILES, "num_warps": 4})
    assert [record.getMessage() for record in caplog.records] == [line]
    assert f"adjusted:\n  {change}\n" in bound.explain("text")
    assert json.loads(bound.explain("json"))["adjusted"] == [change]


def test_predicted_warps_are_launched() -> None:
    bound = helion.kernel(chained).bind(CHAIN[1], target="sm_90")
    four, sixteen = (bound.config_spec.normalize({**TILES, "num_warps": warps}) for warps in (4, 16))
    assert four == sixteen
    assert bound._analysis.predict(sixteen) == bound._analysis.predict(four)
