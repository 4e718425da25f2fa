"""Where no seed can be launched, the default with less shared memory runs, and not the conservative config."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Container
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import Config
from helion.runtime.specialization import binary_check
from helion.runtime.specialization.binary_check import BinaryResources
from helion.runtime.specialization.smaller import smaller

LIMIT = 232448


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))


def both_ways(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.empty([a.size(0)], dtype=torch.float32, device=a.device)
    columns = torch.empty([b.size(0)], dtype=torch.float32, device=a.device)
    for tile_m in hl.tile(a.size(0)):
        own, top = a[tile_m, :], hl.full([tile_m], float("-inf"))
        for tile_n in hl.tile(b.size(0)):
            top = torch.maximum(top, torch.amax(hl.dot(own, b[tile_n, :].T), -1))
        rows[tile_m] = top
    for tile_n in hl.tile(b.size(0)):
        own, top = b[tile_n, :], hl.full([tile_n], float("-inf"))
        for tile_m in hl.tile(a.size(0)):
            top = torch.maximum(top, torch.amax(hl.dot(own, a[tile_m, :].T), -1))
        columns[tile_n] = top
    return rows, columns


def bound() -> Any:
    x = torch.empty(8192, 512, dtype=torch.bfloat16, device="meta")
    return helion.kernel(both_ways, backend="triton").bind((x, x), target="h200")


def needing(factor: float, seen: list[Config], predict: Any, **taken: Any) -> Any:
    """Binaries with ``factor`` times the predicted shared memory."""

    def resources(_: Any, config: Config, __: float | None) -> BinaryResources:
        seen.append(config)
        shared = int(factor * predict(config).shared_bytes)
        if shared <= LIMIT:
            return BinaryResources()
        return dataclasses.replace(BinaryResources(refusal="too much", shared_bytes=shared, limit_bytes=LIMIT), **taken)

    return resources


def test_two_loops_in_one_launch_run_with_tiles_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first that fits with the measured factor runs, the fastest by prediction."""
    found, seen = bound(), []
    predict, default = found._analysis.predict, found.default_config()
    factor = 1.01 * LIMIT / min(predict(seed.config).shared_bytes for seed in found.seeds)
    monkeypatch.setattr(binary_check, "_resources_of", needing(factor, seen, predict))
    ran = binary_check.verdict_of(found.variant.compiled).config
    proposed = dict.fromkeys((default, *(seed.config for seed in found.seeds)))
    assert seen == [*proposed, ran], "each seed, then one config"
    assert ran not in proposed and ran != found.conservative_config()
    fitting = [c for c in smaller(found.variant.specialized) if factor * predict(c).shared_bytes <= LIMIT]
    assert predict(ran).time_us == min(predict(c).time_us for c in fitting)
    assert 10 * predict(ran).time_us < predict(found.conservative_config()).time_us
    assert f"runs       the default with tiles {ran['block_sizes']}" in found.explain()
    rejected = json.loads(found.explain("json"))["verdict"]["rejected"]
    assert [each["config"] for each in rejected] == [dict(each) for each in proposed]
    again = bound()  # as the next process
    assert binary_check.verdict_of(again.variant.compiled).config == ran and len(seen) == len(proposed) + 1


@pytest.mark.parametrize("why", ["nothing fits", "not for memory"])
def test_what_has_no_smaller_config_runs_with_the_conservative_one(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, seen = bound(), []
    taken = {} if why == "nothing fits" else {"shared_bytes": 0, "limit_bytes": 0}
    factor = 1e6 if why == "nothing fits" else 2.0
    monkeypatch.setattr(binary_check, "_resources_of", needing(factor, seen, found._analysis.predict, **taken))
    binary_check.verdict_of(found.variant.compiled)
    proposed = dict.fromkeys((found.default_config(), *(seed.config for seed in found.seeds)))
    assert seen == [*proposed, found.conservative_config()]


def test_smaller_configs_are_legal_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    found = bound()
    configs = list(smaller(found.variant.specialized))
    assert configs and len(set(configs)) == len(configs) and found.default_config() not in configs
    for config in configs:
        assert found.config_spec.normalize(config) == config
        stages, most = config["num_stages"], found.default_config()["num_stages"]
        pairs = zip(config["block_sizes"], found.default_config()["block_sizes"], strict=True)
        assert stages <= most and all(small <= large for small, large in pairs)


def group_statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    images, places, groups, _ = x.size()
    total, squares = (torch.empty([images, groups], device=x.device) for _ in range(2))
    for image, group in hl.grid([images, groups]):
        first, second = hl.zeros([]), hl.zeros([])
        for tile in hl.tile(places):
            values = x[image, tile, group, :].to(torch.float32)
            first += values.sum()
            second += (values * values).sum()
        total[image, group], squares[image, group] = first, second
    return total, squares


def grouped() -> Any:
    x = torch.empty(16, 4096, 32, 10, dtype=torch.bfloat16, device="meta")
    return helion.kernel(group_statistics, backend="triton").bind((x,), target="h200")


def spilling(configs: Container[Config], seen: list[Config]) -> Any:
    """Binaries of which those of ``configs`` spill."""

    def resources(_: Any, config: Config, __: float | None) -> BinaryResources:
        seen.append(config)
        return BinaryResources(spill_bytes=800 if config in configs else 0)

    return resources


def test_where_all_seeds_spill_a_smaller_tile_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    found, seen = grouped(), []
    predict, first = found._analysis.predict, found.default_config()
    monkeypatch.setattr(binary_check, "_resources_of", spilling({seed.config for seed in found.seeds}, seen))
    ran = binary_check.verdict_of(found.variant.compiled).config
    assert ran in set(smaller(found.variant.specialized)) and ran["num_stages"] == first["num_stages"]
    assert seen[0] == first and seen[-1] == ran and len(seen) <= 1 + binary_check.MORE_TRIES
    assert predict(ran).time_us < predict(found.conservative_config()).time_us


def test_a_seed_that_spills_nothing_leaves_smaller_tiles_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found, seen = grouped(), []
    monkeypatch.setattr(binary_check, "_resources_of", spilling((), seen))
    assert binary_check.verdict_of(found.variant.compiled).config == found.default_config() == seen[-1]
    assert len(seen) == 1


def test_matmuls_that_all_spill_have_no_smaller_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    found, seen = bound(), []
    seeds = {seed.config for seed in found.seeds}
    monkeypatch.setattr(binary_check, "_resources_of", spilling(seeds | {*smaller(found.variant.specialized)}, seen))
    binary_check.verdict_of(found.variant.compiled)
    assert set(seen) <= seeds | {found.conservative_config()}
