"""Split-K of loops around a loop with a matmul, and of one of several grid loops."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import facts_of, program_of, space_of, tensor

import helion
import helion.language as hl
from helion import exc
from helion._compiler.ir.rewrite import Declined
from helion._compiler.rewrites.split_k.legality import accumulation_loop

F32, BF16 = torch.float32, torch.bfloat16


def weighted(x: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Each product of the outer loop is scaled before it is added."""
    i, j, k = x.size()
    r = b.size(1)
    out = torch.empty([i, r], dtype=torch.float32, device=x.device)
    for tile_i, tile_r in hl.tile([i, r]):
        acc = hl.zeros([tile_i, tile_r], dtype=torch.float32)
        for jj in hl.grid(j):
            part = hl.zeros([tile_i, tile_r], dtype=torch.float32)
            for tile_k in hl.tile(k):
                part = torch.addmm(part, x[tile_i, jj, tile_k], c[tile_k, tile_r])
            acc += part * b[jj, tile_r].to(torch.float32)[None, :]
        out[tile_i, tile_r] = torch.relu(acc)
    return out


def passed_on(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The accumulator passes both loops, and a sum beside it too."""
    i, j, k = a.size()
    n = b.size(0)
    out = torch.empty([i, n], dtype=torch.float32, device=a.device)
    for tile_i, tile_l in hl.tile([i, n]):
        acc = hl.zeros([tile_i, tile_l], dtype=torch.float32)
        rows = hl.zeros([tile_i], dtype=torch.float32)
        for jj in hl.grid(j):
            for tile_k in hl.tile(k):
                left = a[tile_i, jj, tile_k]
                acc = torch.addmm(acc, left, b[tile_l, jj, tile_k].T)
                rows += left.to(torch.float32).sum(1)
        out[tile_i, tile_l] = acc - rows[:, None]
    return out


def correlation(x: torch.Tensor) -> torch.Tensor:
    """A later grid loop reads what an earlier one stores, within its loop and after it."""
    n, d = x.size()
    mean = torch.empty([d], dtype=torch.float32, device=x.device)
    scale = torch.empty([d], dtype=torch.float32, device=x.device)
    out = torch.empty([d, d], dtype=torch.float32, device=x.device)
    for tile in hl.tile(d):
        total = hl.zeros([tile], dtype=torch.float32)
        squares = hl.zeros([tile], dtype=torch.float32)
        for rows in hl.tile(n):
            v = x[rows, tile].to(torch.float32)
            total += v.sum(0)
            squares += (v * v).sum(0)
        mu = total / n
        mean[tile] = mu
        scale[tile] = torch.rsqrt(squares - n * mu * mu)
    hl.barrier()
    for tile_m, tile_n in hl.tile([d, d]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for rows in hl.tile(n):
            a = (x[rows, tile_m].to(torch.float32) - mean[tile_m]).to(x.dtype)
            b = (x[rows, tile_n].to(torch.float32) - mean[tile_n]).to(x.dtype)
            acc = torch.addmm(acc, a.T, b)
        out[tile_m, tile_n] = acc * scale[tile_m][:, None] * scale[tile_n][None, :]
    return out


def gradients(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two grid loops of one launch, the one without a matmul first."""
    t, n = g.size()
    weight = torch.empty([n, x.size(1)], dtype=torch.float32, device=g.device)
    bias = torch.empty([n], dtype=torch.float32, device=g.device)
    for tile_n in hl.tile(n):
        sums = hl.zeros([tile_n], dtype=torch.float32)
        for tile_t in hl.tile(t):
            sums += g[tile_t, tile_n].to(torch.float32).sum(0)
        bias[tile_n] = sums
    for tile_n, tile_k in hl.tile([n, x.size(1)]):
        acc = hl.zeros([tile_n, tile_k], dtype=torch.float32)
        for tile_t in hl.tile(t):
            acc = torch.addmm(acc, g[tile_t, tile_n].T, x[tile_t, tile_k])
        weight[tile_n, tile_k] = acc
    return weight, bias


def read_later(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two later phases: the first reads the product, the second what the first stores."""
    m, k = x.size()
    n = y.size(1)
    product = torch.empty([m, n], dtype=torch.float32, device=x.device)
    rows = torch.empty([m], dtype=torch.float32, device=x.device)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        product[tile_m, tile_n] = acc
    hl.barrier()
    for tile_m in hl.tile(m):
        rows[tile_m] = product[tile_m, :].amax(-1)
    hl.barrier()
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = product[tile_m, tile_n] - rows[tile_m][:, None]
    return product, rows, out


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(BF16)


def correlated(x: torch.Tensor) -> torch.Tensor:
    return torch.corrcoef(x.double().T)


def read_later_wanted(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    product = x.double() @ y.double()
    return product, product.amax(1), product - product.amax(1, keepdim=True)


Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], Callable[..., Any], list[int]]
CASES: dict[str, Case] = {
    "weighted": (
        weighted,
        lambda: (values(33, 5, 40), values(5, 17), values(40, 17)),
        lambda x, b, c: torch.relu(torch.einsum("ijk,jr,kr->ir", x.double(), b.double(), c.double())),
        [16, 16, 16],
    ),
    "passed_on": (
        passed_on,
        lambda: (values(33, 7, 40), values(17, 7, 40)),
        lambda a, b: torch.einsum("ijk,ljk->il", a.double(), b.double()) - a.double().sum((1, 2))[:, None],
        [16, 16, 16],
    ),
    "correlation": (correlation, lambda: (values(301, 40),), correlated, [16, 32, 16, 16, 32]),
    "gradients": (
        gradients,
        lambda: (values(301, 40), values(301, 24)),
        lambda g, x: (g.double().T @ x.double(), g.double().sum(0)),
        [16, 32, 16, 16, 32],
    ),
    "read_later": (read_later, lambda: (values(33, 301), values(301, 40)), read_later_wanted, [16, 16, 32, 4, 8, 16]),
}


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, static: bool) -> None:
    function, make, wanted, sizes = CASES[name]
    args = make()
    kernel = helion.kernel(function, static_shapes=static, backend="triton", autotune_effort="none")
    bound = kernel.bind(args)
    want = wanted(*args)
    # grids of unknown sizes cannot be split
    for parts in (1, 2, 4) if static else (1,):
        config = helion.Config(block_sizes=sizes, num_warps=4, split_k=parts)
        assert (bound.to_triton_code(config).count("@triton.jit\ndef _helion_") > 1) == (
            parts > 1 or name in ("correlation", "read_later")
        )
        found = bound.compile_config(config)(*args)
        for got, right in zip(*((each if isinstance(each, tuple) else (each,)) for each in (found, want)), strict=True):
            assert torch.allclose(got.double(), right, rtol=2e-2, atol=2e-2), (name, parts)


@pytest.mark.parametrize("name", CASES)
def test_every_config_gives_the_same(name: str) -> None:
    function, make, wanted, _ = CASES[name]
    args = make()
    bound = helion.kernel(function, backend="triton", autotune_effort="none").bind(args)
    space, want, rng = space_of(function, *args), wanted(*args), random.Random(name)
    for _ in range(3):
        config = space.repair({**space.random(rng), "split_k": rng.choice((2, 4))})
        found = bound.compile_config(config)(*args)
        for got, right in zip(*((each if isinstance(each, tuple) else (each,)) for each in (found, want)), strict=True):
            assert torch.allclose(got.double(), right, rtol=2e-2, atol=2e-2), config


def test_later_grid_loops_wait_for_all_parts() -> None:
    args = tensor(33, 301), tensor(301, 40)
    bound = helion.kernel(read_later, backend="triton").bind(args, target="sm_90")
    code = bound.to_triton_code(helion.Config(block_sizes=[16, 16, 32, 4, 8, 16], split_k=2))
    launched = [line.split("(")[1].split(",")[0] for line in code.splitlines() if line.strip().startswith("_launcher(")]
    assert launched == [f"_helion_read_later{phase}" for phase in ("", "_1", "_2", "_3")]
    bodies = code.split("@triton.jit")[-4:]
    assert "tl.store(product" not in bodies[0] and "tl.store(product" in bodies[1] and "tl.store(rows" in bodies[2]
    with pytest.raises(exc.InvalidConfig, match="without unfuse_matmul and split_k"):
        bound.to_triton_code(
            helion.Config(split_k=2, cooperative_launch=True, pid_type="persistent_interleaved", block_sizes=[16] * 6)
        )


def two_products(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, k = x.size()
    n = y.size(1)
    one, two = (torch.empty([m, n], dtype=torch.float32, device=x.device) for _ in range(2))
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        one[tile_m, tile_n] = acc
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        two[tile_m, tile_n] = acc
    return one, two


def from_the_second(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, n = x.size(0), y.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for g in hl.grid(1, 4):
            for tile_k in hl.tile(64):
                acc = torch.addmm(acc, x[tile_m, g * 64 + tile_k.index], y[g * 64 + tile_k.index, tile_n])
        out[tile_m, tile_n] = acc
    return out


def every_second(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, n = x.size(0), y.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for g in hl.grid(0, 4, 2):
            for tile_k in hl.tile(64):
                acc = torch.addmm(acc, x[tile_m, g * 64 + tile_k.index], y[g * 64 + tile_k.index, tile_n])
        out[tile_m, tile_n] = acc
    return out


def rescaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, n = x.size(0), y.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for g in hl.grid(4):
            acc = acc * 0.5
            for tile_k in hl.tile(64):
                acc = torch.addmm(acc, x[tile_m, g * 64 + tile_k.index], y[g * 64 + tile_k.index, tile_n])
        out[tile_m, tile_n] = acc
    return out


def rescaled_inside(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, n = x.size(0), y.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for g in hl.grid(4):
            for tile_k in hl.tile(64):
                acc = torch.addmm(acc, x[tile_m, g * 64 + tile_k.index], y[g * 64 + tile_k.index, tile_n]) * 0.5
        out[tile_m, tile_n] = acc
    return out


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (two_products, "2 of them with matmuls"),
        (from_the_second, "from 0 on"),
        (every_second, "from 0 on"),
        (rescaled, "other values than sums"),
        (rescaled_inside, "other values than sums"),
    ],
)
def test_loops_that_are_not_split(function: Callable[..., Any], why: str) -> None:
    args = tensor(64, 256), tensor(256, 64)
    with pytest.raises(Declined, match=why):
        accumulation_loop(program_of(function, *args))
    assert not facts_of(function, *args).splittable_k


def test_loops_around_a_matmul_fill_the_gpu() -> None:
    """64 products of a K of 512 for 1024 x 64 results are few tiles, and a long sum."""
    args = tensor(1024, 64, 512), tensor(64, 64), tensor(512, 64)
    bound = helion.kernel(weighted, backend="triton").bind(args, target="h200")
    seed = bound.seeds[0]
    assert bound.facts.split_axis == 2 and seed.config["split_k"] >= 8
    assert 3 * seed.predicted.time_us < bound.seeds[1].predicted.time_us
    found = bound.resources(seed.config)
    assert found.spill_bytes == 0 and not found.overflow


def test_one_of_several_grid_loops_fills_the_gpu() -> None:
    """The sums beside the product get a program on more SMs, too."""
    args = tensor(16384, 1024), tensor(16384, 1024)
    bound = helion.kernel(gradients, backend="triton").bind(args, target="h200")
    seed = bound.seeds[0]
    sums, *_ = seed.config["block_sizes"]
    assert seed.config["split_k"] > 1 and 1024 // sums >= 32
    found = bound.resources(seed.config)
    assert found.spill_bytes == 0 and not found.overflow


@pytest.mark.parametrize(("columns", "half"), [(512, True), (4096, False)])
def test_sums_of_few_columns_take_half_lines(columns: int, half: bool) -> None:
    """Measurement ``half_lines``: 512 columns are 32 programs with lines of 16, 4096 are 256."""
    bound = helion.kernel(correlation, backend="triton").bind((tensor(32768, columns),), target="h200")
    assert (bound.seeds[0].config["block_sizes"][0] == 8) == half
    assert bound.resources(bound.seeds[0].config).spill_bytes == 0
