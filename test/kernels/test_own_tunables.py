"""Tunables with the names of keys that the public API does not have: the name is the user's."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion.autotuner import PowerOfTwoFragment
from helion.config import KEYS, OWN_KEYS, RENAMED


def split_product(x: torch.Tensor, y: torch.Tensor, name: hl.constexpr) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.zeros([m, n], dtype=torch.float32)
    parts = hl.register_tunable(name, PowerOfTwoFragment(1, 64))
    size = helion.next_power_of_2(helion.cdiv(k, parts))
    for tile_m, tile_n, outer in hl.tile([m, n, k], block_size=[None, None, size]):
        acc = hl.zeros([tile_m, tile_n])
        for inner in hl.tile(outer.begin, outer.end):
            acc = torch.addmm(acc, x[tile_m, inner], y[inner, tile_n])
        hl.atomic_add(out, [tile_m, tile_n], acc)
    return out


def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=torch.float32)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


@pytest.mark.parametrize("name", sorted(OWN_KEYS))
def test_a_tunable_named_like_an_own_key(name: str) -> None:
    x, y = torch.randn(20, 100) + 0.25, torch.randn(100, 30)
    kernel = helion.kernel(
        split_product, config=helion.Config(block_sizes=[16, 16, 16], **{name: 4}), static_shapes=True
    )
    torch.testing.assert_close(kernel(x, y, name), x @ y, atol=1e-3, rtol=1e-3)
    bound = kernel.bind((x, y, name), target="sm_90")
    space = bound.config_spec
    full = space.normalize(kernel.configs[0])
    assert full[name] == 4 and space.keys.count(name) == 1
    for parts, size in ((1, 128), (4, 32)):
        code = bound.to_triton_code(helion.Config(block_sizes=[16, 16, 16], **{name: parts}))
        assert f"= tl.constexpr({size})" in code and code.count("@triton.jit") == 1
    with pytest.raises(exc.InvalidConfig, match=f"{name} must be"):
        space.normalize(helion.Config(block_sizes=[16, 16, 16], **{name: 3}))
    for seed in bound._analysis.seeds.seeds:  # proposals for the key that the kernel lacks are none for the tunable
        assert space.normalize(seed.config) == seed.config


def test_public_keys_stay_what_they_are() -> None:
    assert set(KEYS) >= OWN_KEYS
    for name in ("num_warps", "block_sizes", "indexing", "pid_type"):
        with pytest.raises(exc.TunableNameConflict, match=name):
            helion.kernel(split_product).bind((torch.randn(4, 4), torch.randn(4, 4), name)).to_triton_code()


@pytest.mark.parametrize("former, present", sorted(RENAMED.items()))
def test_former_names_of_keys_are_accepted(former: str, present: str) -> None:
    x = torch.randn(64, 64)
    bound = helion.kernel(matmul).bind((x, x), target="sm_90")
    value = bound.config_spec.normalize(helion.Config()).get(present)
    assert bound.config_spec.normalize(helion.Config(**{former: value})) == bound.config_spec.normalize(
        helion.Config(**{present: value})
    )
    full = bound.config_spec.normalize(helion.Config(**{former: value}))
    assert (former in full) == (present in full) and former not in list(full)
    if present in full:
        assert full[former] == getattr(full, former) == full[present]
    with pytest.raises(exc.InvalidConfig, match=f"{former!r} is the former name"):
        bound.config_spec.normalize(helion.Config(**{former: value, present: value}))


def test_a_tunable_may_have_the_former_name_of_a_key() -> None:
    x, y = torch.randn(20, 100), torch.randn(100, 30)
    config = helion.Config(block_sizes=[16, 16, 16], load_ahead=4)
    bound = helion.kernel(split_product, config=config).bind((x, y, "load_ahead"), target="sm_90")
    assert bound.config_spec.normalize(config)["load_ahead"] == 4
