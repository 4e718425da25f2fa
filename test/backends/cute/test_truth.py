"""Outputs of bool: conditions, and numbers that are not 0."""

from __future__ import annotations

import pytest
import torch
from backends.cute.products import BF16, values

import helion
import helion.language as hl
from helion.backends.cute.shapes import MATMUL

M, N, K = 70, 136, 72


@helion.kernel(backend="cute")
def chosen(x: torch.Tensor, w: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    m, k = x.shape
    n = w.size(1)
    out = torch.empty([m, n], dtype=torch.bool, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[d, j], acc=acc)
        out[i, j] = ~hidden[i, j] & (acc > 0.5) | (acc < -8)
    return out


@helion.kernel(backend="cute")
def not_zero(x: torch.Tensor, w: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The store converts numbers below 1, which a conversion to integers would round to 0."""
    m, k = x.shape
    n = w.size(1)
    product = torch.empty([m, n], dtype=x.dtype, device=x.device)
    out = torch.empty([m, n], dtype=torch.bool, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[d, j], acc=acc)
        product[i, j] = acc.to(x.dtype)
        out[i, j] = torch.relu(acc) * 0.001
    return product, out


def given() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x, w = (values(*shape, dtype=BF16, device="cpu", seed=at) for at, shape in enumerate([(M, K), (K, N)]))
    return x, w, torch.arange(M * N).view(M, N) % 3 == 0


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_conditions_are_stored_as_bool(target: str) -> None:
    x, w, hidden = given()
    bound = chosen.bind((x, w, hidden), target=target)
    product = x.double() @ w.double()
    assert torch.equal(bound(x, w, hidden), ~hidden & (product > 0.5) | (product < -8))
    assert bool(MATMUL.on_request(bound.plan().program, bound.facts, bound.target)) == (target == "sm_100")


def test_a_number_is_true_unless_it_is_zero() -> None:
    x, w, hidden = given()
    bound = not_zero.bind((x, w, hidden), target="sm_90")
    assert torch.equal(bound(x, w, hidden)[1], x.double() @ w.double() > 0)
    epilogue = bound.plan().gemm.problem.epilogue
    of_bool = next(each for each in epilogue.outputs if each.dtype == "bool")
    assert epilogue.instruction(of_bool.value).op == "ne"
