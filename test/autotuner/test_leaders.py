"""The leaders: the configs that a few measurements choose from, of a list and of the space of a kernel."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import helion
import helion.language as hl
from helion.autotuner.leaders import candidates, is_moved, leaders, promising, scale
from helion.autotuner.search.domain import SpaceDomain
from helion.autotuner.search.time_model import PredictedTime
from helion.autotuner.space.fields import LoopOrders, Slot
from helion.fields import PermutationFragment


def near(count: int) -> np.ndarray:
    """Features of configs that are one step apart from each other."""
    return np.eye(count) / np.sqrt(2)


def first(found: Iterator[int], count: int) -> list[int]:
    return list(itertools.islice(found, count))


def test_certain_predictions_leave_nothing_to_measure() -> None:
    times = np.log([10.0, 10.5, 20.0])
    assert first(promising(near(3), times, 0, 1e-3), 3) == []


def test_certain_predictions_of_a_faster_config_give_it() -> None:
    times = np.log([10.0, 10.5, 8.0, 9.0])
    assert first(promising(near(4), times, 0, 1e-3), 3) == [2]


def test_an_uncertain_prediction_gives_those_that_may_be_the_fastest() -> None:
    times = np.log([10.0, 10.5, 10.1, 100.0])
    assert first(promising(near(4), times, 0, 0.3), 4) == [2, 1]


def test_a_gain_below_the_least_one_is_not_measured() -> None:
    times = np.log([10.0, 9.0, 8.0])
    assert first(promising(near(3), times, 0, 1e-3, 0.1), 3) == [2]
    assert first(promising(near(3), times, 0, 1e-3, 0.3), 3) == []


def test_of_configs_alike_one_is_enough() -> None:
    """The second one is predicted as fast as the first, which it is most like; the third is unlike both."""
    features = np.array([[0.0, 9.0], [0.0, 0.0], [1e-4, 0.0], [30.0, 0.0]])
    times = np.log([10.0, 10.0, 10.0, 10.3])
    found = first(promising(features, times, 0, 0.3), 2)
    assert len({1, 2} & set(found)) == 1 and 3 in found


def test_the_same_leaders_in_every_process() -> None:
    rng = np.random.default_rng(3)
    features, times = rng.normal(size=(40, 6)), rng.normal(2.0, 0.2, 40)
    found = first(promising(features, times, 5, 0.3), 6)
    assert found == first(promising(features, times, 5, 0.3), 6)
    assert 5 not in found and len(set(found)) == len(found) == 6


def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), w.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), w.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        out[tile_m, tile_n] = (acc * 0.5).to(x.dtype)
    return out


ARGS = (
    torch.empty(1000, 520, dtype=torch.bfloat16, device="meta"),
    torch.empty(520, 777, dtype=torch.bfloat16, device="meta"),
)


@pytest.mark.parametrize("target", ["h100", "b200", "a100", "mi300x"])
def test_candidates_of_a_kernel_are_legal_and_differ_in_few_keys(target: str) -> None:
    bound = helion.kernel(scaled).bind(ARGS, target=target)
    analysis = bound.variant.analysis
    model = PredictedTime(analysis.predict)
    seeds = [seed.config for seed in bound.seeds]
    domain = SpaceDomain(analysis.space, model, seeds, moves=is_moved)
    default, asked = analysis.default_config, list[helion.Config]()

    def allowed(config: helion.Config) -> bool:
        asked.append(config)
        return model.fits(config) and config["num_warps"] <= 8

    found = candidates(domain, default, allowed, lambda: True)
    assert found[0] == default and len(found) > len(seeds) and len(set(found)) == len(found)
    assert set(found[1:]) <= set(asked) and all(config["num_warps"] <= 8 for config in found[1:])
    keys = {field.key for field in analysis.space.fields if is_moved(field)}
    assert {"block_sizes", "num_warps", "loop_orders"} <= keys and not {"pid_type", "indexing"} & keys
    for config in found:
        assert analysis.space.normalize(config) == config
        assert any(_moved(config, other) <= keys | _LEGALISED for other in (default, *seeds, *found))
    chosen = list(itertools.islice(leaders(domain, default, 0.3, allowed), 4))
    assert default not in chosen and len(set(chosen)) == len(chosen) > 1
    assert set(chosen) <= set(found)
    unresolved = leaders(domain, default, 0.3, allowed, resolution=model.predicted(default).time_us)
    assert next(unresolved, None) is None


def test_balanced_steps_keep_the_elements_of_a_thread() -> None:
    analysis = helion.kernel(scaled).bind(ARGS, target="h200").variant.analysis
    domain = SpaceDomain(analysis.space, PredictedTime(analysis.predict), moves=is_moved)
    given = {**analysis.default_config, "block_sizes": [64, 64, 64], "num_warps": 4, "num_stages": 2}
    base = analysis.space.normalize(given)
    found = list(domain.balanced(base))
    assert len(set(found)) == len(found) > 3 and base not in found
    for config in found:
        tiles, warps = config["block_sizes"], config["num_warps"]
        assert np.prod(tiles) // warps == 64**3 // 4 and sum(size != 64 for size in tiles) in (1, 2)
        assert warps in (2, 4) and (warps == 2) == (np.prod(tiles) < 64**3)
    assert set(found) <= set(candidates(domain, base, lambda config: True, lambda: True))


def test_stages_are_left_where_nothing_is_pipelined() -> None:
    analysis = helion.kernel(scaled).bind(ARGS, target="h200").variant.analysis
    stages = analysis.space.field("num_stages")
    assert is_moved(stages) and not is_moved(stages, pipelines=False)
    assert is_moved(analysis.space.field("num_warps"), pipelines=False)


def test_reversed_orders_are_equally_far_for_any_number_of_dimensions() -> None:
    distances = []
    for dims in (2, 3, 5):
        order = PermutationFragment(dims)
        slot = Slot(name="", at=0, fragment=order, initial=list(order.default()))
        field = LoopOrders(slots=(slot,))
        ways = [scale(field) * np.array(field.coordinates([list(way)])) for way in (range(dims), range(dims)[::-1])]
        distances.append(float(np.linalg.norm(ways[0] - ways[1])))
    assert distances == pytest.approx([distances[0]] * 3)


def test_without_time_the_seeds_are_the_candidates() -> None:
    bound = helion.kernel(scaled).bind(ARGS, target="h100")
    analysis = bound.variant.analysis
    seeds = [seed.config for seed in bound.seeds]
    domain = SpaceDomain(analysis.space, PredictedTime(analysis.predict), seeds, moves=is_moved)
    found = candidates(domain, analysis.default_config, lambda config: True, lambda: False)
    assert found == list(dict.fromkeys([analysis.default_config, *seeds]))


#: Keys that follow others.
_LEGALISED = {"range_num_stages", "range_multi_buffers", "num_sm_multiplier", "range_flattens"}


def _moved(one: helion.Config, other: helion.Config) -> set[str]:
    return {key for key in one if one[key] != other[key]}
