"""Products in sequence with a narrow middle: two matmuls, of which the first writes the middle to the workspace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends.cute.products import BF16

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.lower.rewrites.middles import in_sequence
from helion.backends.cute.plan.chained.records import ChainedPlan
from helion.backends.cute.shapes import CHAINED, shape_of_program

M, K, N = 203, 320, 136


def adapter(x: torch.Tensor, w: torch.Tensor, down: torch.Tensor, up: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The middle is scaled and has a bias; the result has one as well."""
    (m, k), n, rank = x.size(), w.size(0), hl.specialize(down.size(0))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        low = hl.zeros([tile_m, rank], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            acc = hl.dot(rows, w[tile_n, tile_k].T, acc=acc)
            low = hl.dot(rows, down[:, tile_k].T, acc=low)
        low = low * 0.5 + bias[:][None, :]
        acc = hl.dot(low.to(x.dtype), up[tile_n, :].T, acc=acc)
        out[tile_m, tile_n] = torch.relu(acc).to(x.dtype)
    return out


def of_bytes(
    x: torch.Tensor, w: torch.Tensor, down: torch.Tensor, up: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """An adapter of integer weights, whose scales it has none of: both are sums of their own."""
    (m, k), n, rank = x.size(), w.size(1), hl.specialize(down.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        low = hl.zeros([tile_m, rank], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            acc = hl.dot(rows, w[tile_k, tile_n].to(x.dtype), acc=acc)
            low = hl.dot(rows, down[tile_k, :], acc=low)
        added = hl.dot(low.to(x.dtype), up[:, tile_n])
        out[tile_m, tile_n] = (acc * scale[tile_n][None, :] + 2.0 * added).to(x.dtype)
    return out


def turned(x: torch.Tensor, w: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The same transposed: the middle is the right operand."""
    (m, k), n, rank = x.size(), w.size(0), hl.specialize(down.size(0))
    out = torch.empty([n, m], dtype=x.dtype, device=x.device)
    for tile_n, tile_m in hl.tile([n, m]):
        acc = hl.zeros([tile_n, tile_m], dtype=torch.float32)
        low = hl.zeros([rank, tile_m], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(w[tile_n, tile_k], x[tile_m, tile_k].T, acc=acc)
            low = hl.dot(down[:, tile_k], x[tile_m, tile_k].T, acc=low)
        out[tile_n, tile_m] = hl.dot(up[tile_n, :], low.to(x.dtype), acc=acc).to(x.dtype)
    return out


def bottleneck(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Down to a few columns, and up again, column by column."""
    (m, k), n, rank = x.size(), b.size(1), hl.specialize(a.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        low = hl.zeros([tile_m, rank], dtype=torch.float32)
        for tile_k in hl.tile(k):
            low = hl.dot(x[tile_m, tile_k], a[tile_k, :], acc=low)
        narrow = torch.tanh(low).to(x.dtype)
        for tile_n in hl.tile(n):
            acc = hl.dot(narrow, b[:, tile_n])
            out[tile_m, tile_n] = (acc * scale[tile_n][None, :]).to(x.dtype)
    return out


def of_two(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The same in a grid of rows and columns, which computes the middle for each tile of columns."""
    (m, k), n, rank = x.size(), b.size(1), hl.specialize(a.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        low = hl.zeros([tile_m, rank], dtype=torch.float32)
        for tile_k in hl.tile(k):
            low = hl.dot(x[tile_m, tile_k], a[tile_k, :], acc=low)
        acc = hl.dot(torch.tanh(low).to(x.dtype), b[:, tile_n])
        out[tile_m, tile_n] = (acc * scale[tile_n][None, :]).to(x.dtype)
    return out


def stored(x: torch.Tensor, w: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The middle is a result as well."""
    (m, k), n, rank = x.size(), w.size(0), hl.specialize(down.size(0))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    middle = torch.empty([m, rank], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        low = hl.zeros([tile_m, rank], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
            low = hl.dot(x[tile_m, tile_k], down[:, tile_k].T, acc=low)
        middle[tile_m, :] = low
        out[tile_m, tile_n] = hl.dot(low.to(x.dtype), up[tile_n, :].T, acc=acc).to(x.dtype)
    return out, middle


def normalized(x: torch.Tensor, w: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The middle has a sum over its row."""
    (m, k), n, rank = x.size(), w.size(0), hl.specialize(down.size(0))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        low = hl.zeros([tile_m, rank], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T, acc=acc)
            low = hl.dot(x[tile_m, tile_k], down[:, tile_k].T, acc=low)
        low = low / low.abs().sum(-1)[:, None]
        out[tile_m, tile_n] = hl.dot(low.to(x.dtype), up[tile_n, :].T, acc=acc).to(x.dtype)
    return out


def made(*shape: int, seed: int, dtype: torch.dtype = BF16, scale: float = 1.0) -> torch.Tensor:
    return ((torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.25) * scale).to(dtype)


def operands(rank: int, dtype: torch.dtype = BF16, k: int = K) -> tuple[torch.Tensor, ...]:
    scale = k**-0.5
    x, w = made(M, k, seed=1, dtype=dtype), made(N, k, seed=2, dtype=dtype, scale=scale)
    return x, w, made(rank, k, seed=3, dtype=dtype, scale=scale), made(N, rank, seed=4, dtype=dtype)


def bound(function: Callable[..., Any], arguments: tuple[torch.Tensor, ...], target: str = "sm_90") -> Any:
    return helion.kernel(function, backend="cute", static_shapes=True).bind(arguments, target=target)


def relative(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(("rank", "dtype", "k"), [(16, BF16, K), (20, torch.float16, K), (64, torch.float32, 324)])
def test_a_middle_with_steps_of_its_own(rank: int, dtype: torch.dtype, k: int) -> None:
    x, w, down, up = operands(rank, dtype, k)
    bias = made(rank, seed=5, dtype=torch.float32)
    kernel = bound(adapter, (x, w, down, up, bias))
    low = (x.double() @ down.double().T * 0.5 + bias).to(dtype).double()
    exact = torch.relu(x.double() @ w.double().T + low @ up.double().T)
    assert relative(kernel(x, w, down, up, bias), exact) < (4e-3 if dtype == BF16 else 1e-3)
    plan = kernel.plan()
    assert isinstance(plan, ChainedPlan) and plan.before.whole.n == rank and f"{M} x {rank} x {k}" in str(plan)


def test_a_product_of_the_middle_beside_a_scaled_one() -> None:
    x, scale = made(M, K, seed=0), made(N, seed=4, dtype=torch.float32, scale=0.01)
    w = torch.randint(-100, 100, (K, N), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    down, up = made(K, 16, seed=2, scale=0.1), made(16, N, seed=3)
    found = bound(of_bytes, (x, w, down, up, scale))(x, w, down, up, scale)
    low = (x.double() @ down.double()).to(BF16).double()
    wanted = x.double() @ w.double() * scale + 2 * low @ up.double()
    assert relative(found, wanted) < 4e-3


def test_a_middle_on_the_right() -> None:
    x, w, down, up = operands(24)
    low = (x.double() @ down.double().T).to(BF16).double()
    exact = w.double() @ x.double().T + up.double() @ low.T
    assert relative(bound(turned, (x, w, down, up))(x, w, down, up), exact) < 4e-3


@pytest.mark.parametrize(
    ("function", "dtype", "n"),
    [(bottleneck, BF16, N), (bottleneck, torch.float32, N), (bottleneck, BF16, 1000), (of_two, BF16, N)],
)
def test_columns_of_a_loop_are_a_second_grid(function: Callable[..., Any], dtype: torch.dtype, n: int) -> None:
    x, a, b = (
        made(M, K, seed=1, dtype=dtype),
        made(K, 40, seed=2, dtype=dtype, scale=0.02),
        made(40, n, seed=3, dtype=dtype),
    )
    scale = made(n, seed=4, dtype=torch.float32)
    low = torch.tanh(x.double() @ a.double()).to(dtype).double()
    exact = low @ b.double() * scale
    kernel = bound(function, (x, a, b, scale))
    assert relative(kernel(x, a, b, scale), exact) < (5e-3 if dtype == BF16 else 2e-3)
    assert kernel.plan().gemm.whole.k == 40


@pytest.mark.parametrize("function", [stored, normalized])
def test_other_middles_are_refused(function: Callable[..., Any]) -> None:
    arguments = operands(16)
    general = helion.kernel(function, backend="triton", static_shapes=True).bind(arguments, target="sm_90")
    assert in_sequence(general._analysis.program) is None
    with pytest.raises(exc.CuteUnsupported):
        bound(function, arguments)


def test_wide_middles_and_sizes_of_a_launch_are_refused() -> None:
    with pytest.raises(exc.CuteUnsupported):
        bound(turned, operands(264))
    arguments = operands(16)
    with pytest.raises(exc.CuteUnsupported):
        helion.kernel(turned, backend="cute", static_shapes=False).bind(arguments, target="sm_90")


@pytest.mark.parametrize(("target", "taken"), [("h200", True), ("b200", False)])
def test_auto_takes_a_large_adapter(target: str, taken: bool) -> None:
    def given(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=BF16, device="meta")

    arguments = given(4096, 4096), given(4096, 4096), given(16, 4096), given(4096, 16)
    auto = helion.kernel(turned, backend="auto", static_shapes=True).bind(arguments, target=target)
    assert any(key.startswith("wgmma") for key in dict(auto.seeds[0].config)) == taken
    assert shape_of_program(bound(turned, arguments)._analysis.program) is CHAINED


@pytest.mark.parametrize("target", ["h100", "b200"])
@pytest.mark.parametrize("case", ["adapter", "few", "bottleneck"])
@pytest.mark.prove
def test_kernels_compile_without_spills(case: str, target: str) -> None:
    x, w, down, up = operands(16)
    arguments: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
        "adapter": (adapter, (x, w, down, up, made(16, seed=5, dtype=torch.float32))),
        "few": (turned, (x[:32], w, down, up)),
        "bottleneck": (bottleneck, (x, down.T.contiguous(), up.T.contiguous(), made(N, seed=4, dtype=torch.float32))),
    }
    function, given = arguments[case]
    kernel = bound(function, given, target)
    assert kernel.resources(kernel.default_config()).spill_bytes == 0
