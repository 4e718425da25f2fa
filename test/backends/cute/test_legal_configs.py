"""Every config that the space of a product gives has a plan: the rules of the space and the planner agree."""

from __future__ import annotations

import random

import pytest
from varied_kernels import Varied, cells

import helion
from helion import exc

CELLS = cells()
#: One of each kernel that the backend takes, in the sample.
SAMPLED = (
    "dynamic_product",
    "residual_product",
    "scaled_fp8_product",
    "block_scaled_fp8",
    "bilinear_scores",
    "moments",
)


def check(cell: Varied, target: str, count: int) -> bool:
    """Plan random configs, and what is brought into range. Returns whether the backend takes the kernel."""
    kernel = helion.kernel(cell.kernel.fn, backend="cute", static_shapes=cell.kernel.settings.static_shapes)
    try:
        bound = kernel.bind(cell.args, target=target)
    except exc.BackendUnsupported:
        return False
    space, rng = bound.config_spec, random.Random(str(cell))
    for _ in range(count):
        drawn = {field.key: field.random(rng) for field in space.fields}
        for config in (space.random(rng), space.repair(drawn)):
            assert space.normalize(config) == config
            bound.compile_config(config)
    return True


@pytest.mark.parametrize("target", ["h100", "sm_100"])
def test_random_configs_have_a_plan(target: str) -> None:
    first = {cell.kernel.name: cell for cell in reversed(CELLS) if cell.kernel.name in SAMPLED}
    assert set(first) == set(SAMPLED)
    assert sum(check(cell, target, 2) for cell in first.values()) >= 4


@pytest.mark.prove
@pytest.mark.parametrize("target", ["h100", "sm_100"])
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_random_configs_of_every_kernel_have_a_plan(cell: Varied, target: str) -> None:
    check(cell, target, 30)
