"""How far sums of 8-bit products are off, by a model of the matrix unit, where they are long and do not cancel.

wgmma adds 32 products to a sum at a time, and keeps 14 bits below the leading one of the largest of them; what lies behind
is cut off, so that errors of sums far from zero add up.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from backends.cute import gemms

from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.dtypes import DTYPES
from helion.backends.cute.plan.records import Choice, GemmPlan

KEPT_BITS = 13
"""Former the leading one."""
LONG = 16384
HALF_ROUNDED = 2.0**-9
"""Half of what rounding to bfloat16 takes off at most."""
ONE_K_TILE = 2.0**-11
"""What 14 bits leave of the sums of a K tile; no more than rounding to float16 takes off."""
MEANS = (0.0, 0.5, 2.0)


def cut(value: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """`value` without what lies behind the bits that are kept of `largest`."""
    _, exponent = torch.frexp(largest)
    unit = torch.ldexp(torch.ones_like(value), exponent - 1 - KEPT_BITS)
    return torch.where(largest > 0, torch.trunc(value / unit) * unit, value)


def summed(plan: GemmPlan, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A @ B.T of each of several products as the plan adds it up, in fp64 where nothing says otherwise."""
    depth = DTYPES[plan.problem.operand_dtype].mma_k
    steps = plan.mma_steps * plan.promote_k_tiles if plan.promote else a.shape[2] // depth
    # Sums that leave the unit do not depend on one another: (product, row, sum, step, element).
    left, right = (each.double().unflatten(2, (-1, steps, depth)) for each in (a, b))
    sums = torch.zeros(a.shape[0], a.shape[1], b.shape[1], left.shape[2], dtype=torch.float64)
    for step in range(steps):
        products = left[:, :, None, :, step] * right[:, None, :, :, step]
        largest = torch.maximum(products.abs().amax(4), sums.abs())
        sums = cut(products, largest[..., None]).sum(4) + cut(sums, largest)
        sums = cut(sums, sums.abs())
    total = torch.zeros(sums.shape[:3])
    for part in sums.unbind(3):
        total = (total.double() + part).float()
    return total.double()


def error(plan: GemmPlan, k: int = LONG) -> float:
    """The largest relative to the largest sum of its row, for any of ``MEANS``."""
    generator = torch.Generator().manual_seed(3)
    means = torch.tensor(MEANS)[:, None, None]
    a, b = ((torch.randn(len(MEANS), 4, k, generator=generator) + means).to(torch.float8_e4m3fn) for _ in range(2))
    wanted = a.double() @ b.double().transpose(1, 2)
    return float(((summed(plan, a, b) - wanted).abs().amax(2) / wanted.abs().amax(2)).max())


TILE = Choice(tile=(128, 128, 128))


@pytest.mark.parametrize(
    ("output", "deep", "bound"),
    [("bfloat16", 128, HALF_ROUNDED), ("bfloat16", 256, HALF_ROUNDED), ("float32", 128, ONE_K_TILE)],
)
def test_long_sums_are_better_than_their_rounding(output: str, deep: int, bound: float) -> None:
    problem = gemms.product(64, 64, LONG, operands=gemms.E4M3, output=output)
    plan = plan_gemm(problem, dataclasses.replace(TILE, tile=(128, 128, deep)), gemms.HOPPER)
    assert plan.promote and error(plan) < bound


def test_sums_that_stay_in_the_unit_are_not() -> None:
    problem = gemms.product(64, 64, LONG, operands=gemms.E4M3)
    plan = plan_gemm(problem, dataclasses.replace(TILE, promote=False), gemms.HOPPER)
    assert error(plan, LONG // 4) > 4 * HALF_ROUNDED


def test_blocks_with_factors_leave_it_one_by_one() -> None:
    plan = plan_gemm(gemms.blockwise(64, 64, LONG, output="float32"), TILE, gemms.HOPPER)
    assert plan.promote_k_tiles == 1 and error(plan) < ONE_K_TILE
