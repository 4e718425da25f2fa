"""Cache modifiers of loads and stores: where they are printed, and that the assembler takes them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature


@helion.kernel
def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Three loads, the last with an eviction policy of its own, and a load between them that nobody needs."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        unused = x[tile, 0]  # noqa: F841
        value = x[tile, :] * y[tile, :]
        out[tile, :] = value + hl.load(x, [tile, slice(None)], eviction_policy="evict_last")
    return out


def bound(target: str = "sm_90") -> Any:
    return scaled.bind((torch.empty(64, 64, device="meta"),) * 2, target=target)


def accesses(code: str) -> list[str]:
    return [line.strip() for line in code.split("\n") if "tl.load(" in line or "tl.store(" in line]


def test_every_access_has_its_own() -> None:
    code = bound().to_triton_code(
        {"block_sizes": [8], "load_cache_modifiers": ["", ".cg"], "store_cache_modifiers": [".cs"]}
    )
    first, second, third, store = accesses(code)
    assert "cache_modifier" not in first + third
    assert second.endswith(", cache_modifier='.cg')")
    assert store.endswith(", cache_modifier='.cs')")


def test_an_eviction_policy_wins() -> None:
    config = {
        "block_sizes": [8],
        "load_cache_modifiers": [".cg", ".cg", ".cg"],
        "load_eviction_policies": ["", "first", ""],  # the first entry is that of the load nobody needs
    }
    first, second, third, _ = accesses(bound().to_triton_code(config))
    assert first.endswith(", eviction_policy='evict_first')")
    assert second.endswith(", cache_modifier='.cg')")
    assert third.endswith(", eviction_policy='evict_last')")


@pytest.mark.parametrize("indexing", ["pointer", "block_ptr", "tensor_descriptor"])
def test_assembles(indexing: str) -> None:
    kernel = bound()
    config = kernel.config_spec.normalize(
        {
            "block_sizes": [8],
            "indexing": indexing,
            "load_cache_modifiers": [".cg"] * 3,
            "store_cache_modifiers": [".wt"],
            "load_eviction_policies": ["", "first", ""],
        }
    )
    plan = kernel._analysis.code(config).plan
    function = inspect.unwrap(kernel.compile_config(config)).__globals__[plan.kernel_names[0]]
    ptx = compile_offline(function, **offline_signature(plan, kernel.target)).asm["ptx"]
    assert ("ld.global.cg" in ptx, "st.global.wt" in ptx) == ((indexing != "tensor_descriptor"),) * 2


@pytest.mark.parametrize("on", ["sm_80", "sm_100", "gfx942"])
def test_every_target_takes_them(on: str) -> None:
    config = bound(on).config_spec.normalize({"load_cache_modifiers": [".cg"], "store_cache_modifiers": [".wt"]})
    assert config["load_cache_modifiers"][0] == ".cg"
    assert config["store_cache_modifiers"] == [".wt"]
