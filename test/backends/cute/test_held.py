"""Dots over all of K at once: the loop over K that the kernel does not spell."""

from __future__ import annotations

import pytest
import torch
from backends.cute import products
from backends.cute.products import BF16, BOUNDS

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.resources.shape import shape_of
from helion.backends.cute.shapes import MATMUL

M, N, K = 150, 104, 200


@helion.kernel(backend="cute")
def linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n, k = w.size(1), hl.specialize(k)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = torch.relu(hl.dot(x[tile_m, :], w[:, tile_n]) + bias[tile_n]).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
    """Two products, of which the second is computed after the first is activated, and added to a loaded tensor."""
    m, k = x.size()
    n, k = gate.size(0), hl.specialize(k)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        rows = x[tile_m, :]
        factor = torch.nn.functional.silu(hl.dot(rows, gate[tile_n, :].T))
        added = start[tile_m, tile_n].to(torch.float32)
        out[tile_m, tile_n] = (factor * (hl.dot(rows, up[tile_n, :].T) + added)).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def scores(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Whole rows of each matmul of a batch."""
    b, m, k = x.size()
    n, k = hl.specialize(y.size(1)), hl.specialize(k)
    out = torch.empty([b, m, n], dtype=x.dtype, device=x.device)
    for i, tile_m in hl.tile([b, m], block_size=[1, None]):
        out[i.begin, tile_m, :] = torch.softmax(hl.dot(x[i.begin, tile_m, :], y[i.begin, :, :].T), -1).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def normalized(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Rows whose norm needs all of K."""
    m, k = x.size()
    n, k = w.size(1), hl.specialize(k)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        rows = x[tile_m, :].to(torch.float32)
        rows = rows * torch.rsqrt((rows * rows).mean(-1) + 1e-6)[:, None]
        out[tile_m, tile_n] = hl.dot(rows.to(x.dtype), w[:, tile_n]).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def nearest(x: torch.Tensor, centres: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """Dots of all of K in a loop over tiles of columns, whose rows are loaded before it."""
    m, d = x.size()
    d = hl.specialize(d)
    out = torch.empty([m], dtype=torch.int64, device=x.device)
    for i in hl.tile(m):
        rows = x[i, :]
        best = hl.full([i], float("inf"), dtype=torch.float32)
        number = hl.zeros([i], dtype=torch.int64)
        for j in hl.tile(centres.size(0)):
            apart = squares[j][None, :] - 2.0 * hl.dot(rows, centres[j, :].T)
            least = apart.amin(-1)
            number = torch.where(least < best, torch.argmin(apart, dim=-1) + j.begin, number)
            best = torch.minimum(least, best)
        out[i] = number
    return out


@helion.kernel(backend="cute")
def nearest_and_norm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same rows are reduced over K as well, which needs all of it."""
    m, d = x.size()
    d, out = hl.specialize(d), torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for i in hl.tile(m):
        rows = x[i, :]
        top = hl.full([i], float("-inf"), dtype=torch.float32)
        for j in hl.tile(y.size(0)):
            top = torch.maximum(top, hl.dot(rows, y[j, :].T).amax(-1))
        out[i] = top - rows.to(torch.float32).sum(-1)
    return out


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return products.values(*shape, dtype=BF16, device="cpu", seed=seed) * K**-0.25


CASES = {
    "linear": (linear, (tensor(M, K), tensor(K, N, seed=1), tensor(N, seed=2))),
    "gated": (gated, (tensor(M, K), tensor(N, K, seed=1), tensor(N, K, seed=2), tensor(M, N, seed=3))),
    "scores": (scores, (tensor(3, M, K), tensor(3, N, K, seed=1))),
}


def expected(name: str) -> torch.Tensor:
    x, y, *more = (each.double() for each in CASES[name][1])
    if name == "linear":
        return torch.relu(x @ y + more[0])
    if name == "scores":
        return torch.softmax(x @ y.transpose(1, 2), -1)
    return torch.nn.functional.silu(x @ y.t()) * (x @ more[0].t() + more[1])


@pytest.mark.parametrize("name", CASES)
def test_all_of_k_at_once(name: str) -> None:
    kernel, args = CASES[name]
    wanted = expected(name)
    error = products.row_error(kernel(*args).reshape(-1, N), wanted.reshape(-1, N))
    assert error < BOUNDS[BF16]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_tiles_of_k_are_no_part_of_a_config(name: str, target: str) -> None:
    kernel, args = CASES[name]
    bound = kernel.bind(args, target=target)
    plan, shape = bound.plan().gemm, shape_of(bound.facts)
    assert bound.seeds and not isinstance(shape, str)
    assert (plan.tile[2], plan.problem.k, shape.problem.k) == (64, K, K)
    assert shape.problem.scales is None and len(bound.default_config().block_sizes) == (1 if name == "scores" else 2)
    looped = "for k_tile in cutlass.range(0, 4, unroll=1):"
    assert looped in bound.to_cute_code()
    reason = "whose rows are reduced in a batch" if (name, target) == ("scores", "sm_100") else ""
    given = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    assert reason in given and bool(reason) == bool(given)


def test_an_operand_that_needs_all_of_k_is_refused() -> None:
    with pytest.raises(exc.CuteUnsupported, match="one loop over K between the grid and the store"):
        normalized.bind((tensor(M, K), tensor(K, N)), target="sm_90")


@pytest.mark.parametrize("k", [72, 200])
def test_loops_over_columns_have_dots_of_all_of_k(k: int) -> None:
    x, centres = tensor(M, k), tensor(N, k, seed=1)
    squares = centres.float().square().sum(1)
    apart = squares.double() - 2 * x.double() @ centres.double().t()
    assert torch.equal(nearest(x, centres, squares), apart.argmin(-1))
    bound = nearest.bind((x, centres, squares), target="sm_90")
    assert bound.seeds and bound.plan().gemm.whole.k == k
    assert MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target) == ""


def test_rows_that_other_values_need_stay_before_the_loop() -> None:
    with pytest.raises(exc.CuteUnsupported):
        nearest_and_norm.bind((tensor(M, K), tensor(N, K, seed=1)), target="sm_90")
