"""Searches on planted optima in the space of a real kernel, with a simulated device; no GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random

import pytest
import torch
from conftest import PROVE
from costs import calls
from sample_kernels import matmul, softmax

import helion
from helion import exc
from helion.autotuner.measure.comparison import COMPARING_ROUNDS
from helion.autotuner.measure.runs import TRIAL_RUNS
from helion.autotuner.measure.simulated import SimulatedDevice
from helion.autotuner.options import Options
from helion.autotuner.outcome import Outcome, Status
from helion.autotuner.search.domain import ListedDomain, SpaceDomain
from helion.autotuner.search.finite import FiniteSearch
from helion.autotuner.search.protocol import Search
from helion.autotuner.search.strategy import search_of
from helion.autotuner.search.surrogate import Pruned
from helion.autotuner.search.time_model import PredictedTime
from helion.autotuner.tuner import Budget, Measuring, Result, tune
from helion.config import Config
from helion.settings import Settings

SEARCHES = ("surrogate", "pattern", "evolution", "random")
#: Planted optima, and at how many times their time the surrogate search is at most after 80 evaluations, on average: 1.16 of
#: 16 from the seeds, 1.26 from the smallest config.
OPTIMA, PLANTED = (16, 1.4) if PROVE else (3, 1.4)


def bound_matmul() -> helion.runtime.bound.BoundKernel:
    x, y = (torch.empty(512, 512, dtype=torch.bfloat16, device="meta") for _ in range(2))
    return helion.kernel(matmul).bind((x, y), target="h200")


@pytest.fixture(scope="module")
def bound() -> helion.runtime.bound.BoundKernel:
    return bound_matmul()


def domain_of(bound: helion.runtime.bound.BoundKernel, seeds: list[Config] | None = None) -> SpaceDomain:
    chosen = [seed.config for seed in bound.seeds] if seeds is None else seeds
    return SpaceDomain(bound.config_spec, PredictedTime(bound._analysis.predict), chosen)


def planted(bound: helion.runtime.bound.BoundKernel, seed: int) -> Callable[[Config], float]:
    """Times with one optimum: 10 us, and 12 % more for every step away from it in a key that matters."""
    space = bound.config_spec
    best = space.random(Random(1000 + seed))
    fields = [f for f in space.fields if f.key in ("block_sizes", "num_warps", "num_stages", "l2_groupings")]

    def place(config: Config) -> list[float]:
        return [number for field in fields for number in field.coordinates(config[field.key])]

    goal = place(best)
    return lambda config: 10.0 * math.exp(0.12 * sum(abs(a - b) for a, b in zip(place(config), goal, strict=True)))


def found(search: Search, times: Callable[[Config], float], configs: int, baseline: Config) -> Result:
    return tune(search, SimulatedDevice(times), Budget(seconds=1e9, configs=configs), baseline)


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_is_repeatable(bound: helion.runtime.bound.BoundKernel, name: str) -> None:
    options = Options(search=name, random_seed=3)
    runs = []
    for capacity in (1, 4, 4):
        device = SimulatedDevice(planted(bound, 1), noise=0.02, seed=1, capacity=capacity)
        tune(search_of(options, domain_of(bound)), device, Budget(seconds=1e9, configs=40), bound.default_config())
        runs.append(device.started)
    assert runs[1] == runs[2]
    assert all(len(set(run)) == len(run) for run in runs)
    other = SimulatedDevice(planted(bound, 1), noise=0.02, seed=1)
    tune(search_of(options, domain_of(bound), seed=9), other, Budget(seconds=1e9, configs=40), bound.default_config())
    assert name == "pattern" or other.started != runs[0]


def test_everything_asked_is_legal_and_fits(bound: helion.runtime.bound.BoundKernel) -> None:
    for name in SEARCHES:
        device = SimulatedDevice(planted(bound, 2))
        tune(
            search_of(Options(search=name), domain_of(bound)),
            device,
            Budget(seconds=1e9, configs=30),
            bound.default_config(),
        )
        for config in device.started:
            assert bound.config_spec.normalize(config) == config
            assert bound._analysis.predict(config).fits


def mean_log(search: str, bound: helion.runtime.bound.BoundKernel, configs: int, seeds: list[Config] | None) -> float:
    """The geometric mean, as a logarithm, of the best over the optimum for several planted ones."""
    total = 0.0
    for planted_at in range(OPTIMA):
        times = planted(bound, planted_at)
        domain = domain_of(bound, seeds)
        result = found(
            search_of(Options(search=search, random_seed=planted_at), domain), times, configs, bound.default_config()
        )
        total += math.log(times(result.config) / 10.0)
    return total / OPTIMA


def test_a_planted_optimum_is_approached(bound: helion.runtime.bound.BoundKernel) -> None:
    """It lies anywhere, and neither seeds nor predictions know of it: 1.2 to 1.8 times its time, at random 2.2."""
    better = ("surrogate", "pattern", "evolution") if PROVE else ("surrogate",)
    reached = {search: mean_log(search, bound, 80, None) for search in ("random", *better)}
    print({search: round(math.exp(log), 2) for search, log in reached.items()})
    for search in better:
        assert reached[search] < reached["random"] - 0.1, search
    assert reached["surrogate"] < math.log(PLANTED)


def test_a_poor_start_is_left(bound: helion.runtime.bound.BoundKernel) -> None:
    assert mean_log("surrogate", bound, 80, [bound.config_spec.smallest()]) < math.log(PLANTED)


def test_failures_are_learnt_from(bound: helion.runtime.bound.BoundKernel) -> None:
    """Half of the space fails: with more than 4 stages."""
    times = planted(bound, 3)
    device = SimulatedDevice(times, failures=lambda c: Status.CRASHED if c["num_stages"] > 4 else None)
    search = search_of(Options(), domain_of(bound))
    result = tune(search, device, Budget(seconds=1e9, configs=60), bound.default_config())
    assert result.microseconds is not None and result.config["num_stages"] <= 4
    failed = [o for o in result.outcomes if o.status is Status.CRASHED]
    assert 0 < len(failed) < 25


def test_hopeless_configs_are_not_compiled(bound: helion.runtime.bound.BoundKernel) -> None:
    def times(config: Config) -> float:
        return 10.0 * 4.0 ** abs(math.log2(config["num_warps"]) - 3)

    domain = domain_of(bound)
    options = Options(search="random", random_seed=5)
    device, bare = SimulatedDevice(times), SimulatedDevice(times)
    tune(Pruned(search_of(options, domain), domain), device, Budget(seconds=1e9, configs=90), bound.default_config())
    tune(search_of(options, domain), bare, Budget(seconds=1e9, configs=90), bound.default_config())

    def hopeless(started: list[Config]) -> int:
        return sum(times(config) > 30.0 for config in started)

    assert hopeless(device.started[30:]) < 0.8 * hopeless(bare.started[30:])


def test_a_list_is_tried_in_full() -> None:
    bound = helion.kernel(softmax).bind((torch.empty(64, 100, device="meta"),), target="h200")
    configs = [bound.config_spec.normalize({"block_sizes": [1], "num_warps": warps}) for warps in (1, 2, 4, 8, 16)]
    domain = ListedDomain(configs, bound.config_spec.fields, PredictedTime(bound._analysis.predict))
    for name in (*SEARCHES, "finite"):
        result = found(search_of(Options(search=name), domain), lambda c: c["num_warps"], 100, configs[2])
        assert {o.config for o in result.outcomes} == set(configs) and result.config["num_warps"] == 1
        assert result.why == "out of configs"


def test_the_budget_is_kept(bound: helion.runtime.bound.BoundKernel) -> None:
    ticks = iter(range(10_000))
    device = SimulatedDevice(planted(bound, 1))
    search = search_of(Options(), domain_of(bound))
    result = tune(
        search, device, Budget(seconds=40.0, configs=999), bound.default_config(), clock=lambda: float(next(ticks))
    )
    assert result.why == "out of time" and 5 < len(device.started) < 40
    counted = found(search_of(Options(), domain_of(bound)), planted(bound, 1), 7, bound.default_config())
    assert counted.why == "out of budget" and len(counted.outcomes) == 7


@pytest.mark.parametrize("interrupts", [1, 2])
def test_an_interrupt_gives_the_best_so_far(bound: helion.runtime.bound.BoundKernel, interrupts: int) -> None:
    """The second one ends the comparison with the baseline, which stays unless it was far behind."""
    steep = planted(bound, 0)

    def times(config: Config) -> float:
        return steep(config) ** 0.25

    left = [interrupts]

    def interrupted(config: Config) -> float:
        if len(device.started) > 10 and left[0]:
            left[0] -= 1
            raise KeyboardInterrupt
        return times(config)

    device, baseline = SimulatedDevice(interrupted), bound.default_config()
    result = tune(search_of(Options(), domain_of(bound)), device, Budget(seconds=1e9, configs=99), baseline)
    assert result.why == "interrupted" and len(result.outcomes) == 10
    least = min(times(o.config) for o in result.outcomes)
    if interrupts == 1:
        assert times(result.config) == least < times(baseline)
    else:
        assert result.config == baseline and least > 0.85 * times(baseline)


def test_nothing_that_works_leaves_the_baseline(bound: helion.runtime.bound.BoundKernel) -> None:
    device = SimulatedDevice(lambda c: 1.0, failures=lambda c: Status.FAILED)
    baseline = bound.default_config()
    result = tune(search_of(Options(), domain_of(bound)), device, Budget(seconds=1e9, configs=9), baseline)
    assert result.config == baseline and result.microseconds is None and result.speedup is None


def test_noise_does_not_make_it_worse_than_the_baseline(bound: helion.runtime.bound.BoundKernel) -> None:
    """All take equally long but for some that are 0.5 % faster: the baseline stays, whatever noise says."""
    baseline = bound.default_config()
    for seed in range(10):
        device = SimulatedDevice(lambda c: 9.95 if c["num_warps"] == 8 else 10.0, noise=0.01, seed=seed)
        result = tune(search_of(Options(), domain_of(bound)), device, Budget(seconds=1e9, configs=20), baseline)
        assert result.config == baseline


@pytest.mark.parametrize("faster", [0.9, 1.1])
def test_two_leaders_are_compared_without_a_ranking(faster: float, bound: helion.runtime.bound.BoundKernel) -> None:
    baseline = bound.default_config()
    other = bound.config_spec.normalize({**baseline, "num_warps": 8})
    counts: list[int] = []

    class Counting(SimulatedDevice):
        def rounds(self, configs: Sequence[Config], count: int) -> Sequence[Mapping[Config, float]]:
            counts.append(count)
            return super().rounds(configs, count)

    device = Counting(lambda c: 10.0 * faster if c == other else 10.0, seed=1)
    result = tune(FiniteSearch([baseline, other]), device, Budget(seconds=1e9, configs=9), baseline)
    assert result.config == (other if faster < 1 else baseline) and set(counts) == {COMPARING_ROUNDS}


@pytest.mark.parametrize("milliseconds", [1, 20, 60, 300])
@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.2])
def test_slow_configs_are_compared_as_far_as_there_is_time(
    milliseconds: int, ratio: float, bound: helion.runtime.bound.BoundKernel
) -> None:
    """With 20 ms, search times alone decide, if they differ much; with 300 ms no other config runs.

    A config that takes half as long leaves time for more of them.
    """
    baseline = bound.default_config()
    others = [bound.config_spec.normalize({**baseline, "num_warps": warps}) for warps in (1, 8, 16)]
    device = SimulatedDevice(lambda c: 1e3 * milliseconds * (1.0 if c == baseline else ratio), noise=0.01, capacity=4)
    measuring = Measuring(brief=True, seconds=1.0)
    search, budget = FiniteSearch([baseline, *others]), Budget(seconds=1.0, configs=9)
    result = tune(search, device, budget, baseline, measuring=measuring, clock=device.clock)
    assert device.now < 1.2
    tried = {outcome.config for outcome in result.outcomes}
    # the simulated runs of three configs, and then those of one as slow as the slowest
    all_fit = 1e-3 * milliseconds * (4 * (1.0 + 2 * ratio) + TRIAL_RUNS * max(1.0, ratio)) < 1.0
    assert (tried == {baseline}) == (milliseconds == 300) and (len(tried) == 4) == all_fit
    faster = ratio < 1.0 if milliseconds == 1 else ratio < 0.6 and len(tried) > 1
    assert (result.config != baseline) == faster
    assert result.microseconds == pytest.approx(1e3 * milliseconds * (ratio if faster else 1.0), rel=0.05)
    assert result.why == ("out of configs" if all_fit else "out of time")


def test_nothing_runs_once_the_time_is_over(bound: helion.runtime.bound.BoundKernel) -> None:
    device, baseline = SimulatedDevice(lambda c: 1.0), bound.default_config()
    measuring, ticks = Measuring(seconds=0.5), iter(range(99))
    budget = Budget(seconds=9.0, configs=9)
    result = tune(
        FiniteSearch([baseline]), device, budget, baseline, measuring=measuring, clock=lambda: float(next(ticks))
    )
    assert device.now == 0.0 and result.outcomes == () and result.config == baseline and result.microseconds is None


def test_overrides_stay_as_they_are(bound: helion.runtime.bound.BoundKernel) -> None:
    model = PredictedTime(bound._analysis.predict)
    seeds = [bound.config_spec.repair({**bound.default_config(), "num_warps": 8})]
    domain = SpaceDomain(bound.config_spec, model, seeds, {"num_warps": 8})
    for name in SEARCHES:
        device = SimulatedDevice(planted(bound, 1))
        tune(search_of(Options(search=name), domain), device, Budget(seconds=1e9, configs=25), bound.default_config())
        assert {config["num_warps"] for config in device.started} == {8}


def test_a_config_costs_little_to_choose(bound: helion.runtime.bound.BoundKernel) -> None:
    """In a space of 20 keys; half of it is legalising."""

    def choose() -> None:
        device = SimulatedDevice(planted(bound, 1))
        tune(search_of(Options(), domain_of(bound)), device, Budget(seconds=1e9, configs=60), bound.default_config())

    assert calls(choose) <= 60 * 16_000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"efort": "full"}, "Tuning has no option 'efort'; it has accuracy, "),
        ({"effort": "much"}, "effort must be one of none, minimal, quick, full, got 'much'"),
        ({"search": "magic"}, "search must be one of surrogate, "),
        ({"seconds": -1}, "seconds must be a number of at least 0, got -1"),
        ({"workers": 0}, "workers must be a number of at least 1, got 0"),
        ({"configs": True}, "configs must be a number of at least 0, got True"),
    ],
)
def test_options_that_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(exc.InvalidAPIUsage, match=message):
        Options.of(Settings(), "full", given)


def test_options_come_from_settings_and_calls() -> None:
    settings = Settings(autotune_effort="quick", autotune_random_seed=7, autotune_budget_seconds=5)
    options = Options.of(settings, "full", {"autotune_compile_timeout": 9.0, "copies": 3})
    assert (options.effort, options.random_seed, options.seconds, options.compile_seconds) == ("quick", 7, 5.0, 9.0)
    assert Options.of(Settings(), "full", {}).effort == "full"
    assert Options.of(settings, "full", {"effort": "minimal"}).effort == "minimal"


def test_outcomes_survive_json() -> None:
    outcome = Outcome(config=Config(num_warps=4), status=Status.OK, microseconds=3.5, compile_seconds=0.25)
    assert Outcome.from_dict(outcome.to_dict()) == outcome
