"""Up to four matmuls of one left operand: their accumulators, and outputs that depend on any of them."""

from __future__ import annotations

import re

import pytest
import torch
from backends.cute import products
from backends.cute.products import BF16, BOUNDS

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.module import build
from helion.backends.cute.shapes import MATMUL
from helion.backends.cute.toolchain.offline import compile_text

M, N, K = 150, 104, 136


@helion.kernel(backend="cute")
def queries_and_keys(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m, depth = x.size()
    n = q.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    other = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        first = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        second = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(depth):
            first = hl.dot(x[tile_m, tile_k], q[tile_k, tile_n], acc=first)
            second = hl.dot(x[tile_m, tile_k], k[tile_k, tile_n], acc=second)
        out[tile_m, tile_n] = first.to(x.dtype)
        other[tile_m, tile_n] = second
    return out, other


@helion.kernel(backend="cute")
def gated(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Four products, whose sums meet in one output; another has three of them."""
    m, depth = x.size()
    n = a.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    kept = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        one = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        two = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        three = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        four = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(depth):
            rows = x[tile_m, tile_k]
            one = hl.dot(rows, a[tile_n, tile_k].T, acc=one)
            two = hl.dot(rows, b[tile_n, tile_k].T, acc=two)
            three = hl.dot(rows, c[tile_n, tile_k].T, acc=three)
            four = hl.dot(rows, d[tile_n, tile_k].T, acc=four)
        inner = torch.sigmoid(two + bias[tile_n]) * torch.tanh(three)
        kept[tile_m, tile_n] = inner + four
        out[tile_m, tile_n] = (inner + one * four).to(x.dtype)
    return out, kept


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return products.values(*shape, dtype=BF16, device="cpu", seed=seed) * K**-0.25


def check(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert products.row_error(actual, expected) < BOUNDS[BF16]


def arguments(kernel: helion.Kernel) -> tuple[torch.Tensor, ...]:
    x = tensor(M, K)
    if kernel is queries_and_keys:
        return x, tensor(K, N, seed=1), tensor(K, N, seed=2)
    return x, *(tensor(N, K, seed=seed) for seed in range(1, 5)), tensor(N, seed=5)


def test_each_product_has_an_output_of_its_own() -> None:
    x, q, k = arguments(queries_and_keys)
    out, other = queries_and_keys(x, q, k)
    check(out, x.double() @ q.double())
    assert products.row_error(other, x.double() @ k.double()) < 1e-5


def test_four_products_meet() -> None:
    x, *weights, bias = arguments(gated)
    one, two, three, four = (x.double() @ each.double().t() for each in weights)
    inner = torch.sigmoid(two + bias.double()) * torch.tanh(three)
    out, kept = gated(x, *weights, bias)
    check(out, inner + one * four)
    assert products.row_error(kept, inner + four) < 1e-5


@pytest.mark.parametrize("kernel", [queries_and_keys, gated])
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_products_share_an_instruction(kernel: helion.Kernel, target: str) -> None:
    bound = kernel.bind(arguments(kernel), target=target)
    plan = bound.plan().gemm
    assert bound.seeds and plan.products == (2 if kernel is queries_and_keys else 4)
    assert plan.sum_columns == plan.products * plan.tile[1] <= 256
    text = build(plan)
    last = rf"to_\w+\[None, ab_fill\.index \* {plan.products} \+ {plan.products - 1}\]"
    assert len(re.findall(last, text)) == 1
    reason = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    asked = "matmuls of several products that are stored separately, or of more than two, run on request, with backend='cute'"
    assert reason == ("" if target == "sm_90" else asked)


@pytest.mark.prove
@pytest.mark.parametrize("kernel", [queries_and_keys, gated])
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_several_products_compile(kernel: helion.Kernel, target: str) -> None:
    plan = kernel.bind(arguments(kernel), target=target).plan().gemm
    assert compile_text(build(plan), plan).cubin
    assert kernel.bind(arguments(kernel), target=target).resources().spill_bytes == 0


def test_two_products_of_256_rows_take_narrow_tiles_on_request() -> None:
    bound = queries_and_keys.bind(arguments(queries_and_keys), target="h100")
    assert all(seed.config["block_sizes"][0] <= 128 for seed in bound.seeds)
    keys = {"block_sizes": [256, 64, 64], "wgmma_ab_stages": None, "wgmma_epilogue_columns": 16}
    plan = bound.plan({**bound.default_config().to_dict(), **keys}).gemm
    assert (plan.tile, plan.products, plan.row_atoms) == ((256, 64, 64), 2, 2)
    with pytest.raises(exc.InvalidConfig, match="accumulator registers"):
        bound.plan({**bound.default_config().to_dict(), **keys, "block_sizes": [256, 128, 64]})


@helion.kernel(backend="cute")
def five(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    (m, depth), n = x.size(), w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        a = b = c = d = e = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(depth):
            a = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=a)
            b = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=b)
            c = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=c)
            d = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=d)
            e = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=e)
        out[tile_m, tile_n] = (a + b * c * d * e).to(x.dtype)
    return out


def test_five_products_are_refused() -> None:
    with pytest.raises(exc.CuteUnsupported, match="one accumulator, or up to 4"):
        five.bind((tensor(M, K), tensor(K, N)), target="sm_90")


def test_calls_with_cpu_tensors_need_no_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger tiles for the interpreter fit shared memory, and their config has a short form."""
    monkeypatch.delenv("HELION_CPU_CONFIG")
    x, *weights, bias = arguments(gated)
    out, _ = helion.kernel(gated.fn, backend="cute")(x, *weights, bias)
    check(out, gated(x, *weights, bias)[0].double())
