"""Which config is chosen on devices whose times mislead: clocks that rise, drift and jump, runs that take ten times as long."""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from random import Random

import pytest
from conftest import PROVE

from helion.autotuner.measure.comparison import compared, log_ratios, median_interval, medians, ranked
from helion.autotuner.measure.simulated import Disturbances, SimulatedDevice
from helion.autotuner.outcome import Status
from helion.autotuner.search.finite import FiniteSearch
from helion.autotuner.tuner import Budget, Result, tune
from helion.config import Config

SEED, *OTHERS = CONFIGS = [Config(num_warps=2**at) for at in range(5)]
RUNS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class World:
    """A device, and the microseconds that configs would take on it if nothing disturbed them."""

    times: Mapping[Config, float]
    disturbances: Disturbances
    seed: int

    @classmethod
    def drawn(cls, seed: int) -> World:
        rng = Random(seed)
        base = 10 ** rng.uniform(0.5, 3.7)
        others = (
            lambda: 1.0,
            lambda: rng.uniform(0.97, 1.03),
            lambda: rng.uniform(0.8, 1.5),
            lambda: rng.uniform(0.99, 1),
        )
        return cls(
            times={config: base * rng.choice(others)() for config in CONFIGS},
            disturbances=Disturbances(
                noise=rng.choice((0.002, 0.01, 0.03)),
                placement=rng.choice((0.0, 0.003, 0.006)),
                cold=rng.choice((1.0, 1.12, 1.3)),
                ramp=rng.choice((0.004, 0.01, 0.02, 0.05)),
                drift=rng.choice((0.0, 0.1, 0.5)),
                slow=rng.choice((1.0, 1.11, 1.5)),
                dwell=rng.choice((0.002, 0.02, 0.2)),
                tail=rng.choice((0.0, 0.05, 0.15)),
                step=rng.choice((0.0, 0.032)),
            ),
            seed=seed,
        )

    def device(self) -> SimulatedDevice:
        return SimulatedDevice(self.times.__getitem__, disturbances=self.disturbances, seed=self.seed)

    def ratio(self, config: Config) -> float:
        """How many times as long as the seed a config takes."""
        return self.times[config] / self.times[SEED]


def tuned(device: SimulatedDevice) -> Result:
    """As with the effort ``minimal``."""
    return tune(FiniteSearch(CONFIGS), device, Budget(seconds=60.0, configs=5), SEED, clock=device.clock)


def fastest_in_a_row(device: SimulatedDevice) -> Config:
    """The least median of 20 runs of each, one config after the other; 1 % of margin for the seed."""
    times: dict[Config, float] = {}
    for config in CONFIGS:
        device.start(config)
        times[config] = device.finish().time
    best = min(times, key=times.__getitem__)
    return best if times[best] <= 0.99 * times[SEED] else SEED


def test_what_is_chosen_is_never_slower_than_the_seed() -> None:
    """A thousand devices: none more than 1 % slower, each within a second of the device (two, where a run takes
    milliseconds), and most of the gain is found."""
    worlds = [World.drawn(seed) for seed in range(RUNS if PROVE else 120)]
    ratios, gains = [], []
    for world in worlds:
        device = world.device()
        result = tuned(device)
        ratios.append(world.ratio(result.config))
        gains.append(math.log(ratios[-1] / min(map(world.ratio, CONFIGS))))
        assert device.now <= (1.0 if world.times[SEED] <= 1000.0 else 2.0), world
    assert max(ratios) <= 1.01
    assert statistics.fmean(gains) < 0.01
    in_a_row = [world.ratio(fastest_in_a_row(world.device())) for world in worlds]
    # one config after the other, on the same devices: one in 20 is chosen wrongly
    assert max(in_a_row) > 1.03 and sum(ratio > 1.01 for ratio in in_a_row) > len(worlds) // 25


def test_a_device_that_warms_up_does_not_favour_who_comes_later() -> None:
    """Times as an H200 gave them: 83.6 us warm, 92.7 after it was idle; the challenger takes 91.5 warm."""
    times = {SEED: 83.6, OTHERS[0]: 91.5}
    for seed in range(20):
        device = SimulatedDevice(
            times.__getitem__, disturbances=Disturbances(noise=0.003, cold=1.11, ramp=0.03, step=0.032), seed=seed
        )
        result = tune(FiniteSearch(list(times)), device, Budget(seconds=9.0, configs=5), SEED, clock=device.clock)
        assert result.config == SEED


def test_a_clear_gain_is_taken_and_reported() -> None:
    for gain in (0.98, 0.9, 0.5):
        times = {SEED: 50.0, OTHERS[0]: 50.0 * gain}
        disturbances = Disturbances(noise=0.01, cold=1.11, slow=1.11, tail=0.05)
        device = SimulatedDevice(times.__getitem__, disturbances=disturbances)
        result = tune(FiniteSearch(list(times)), device, Budget(seconds=9.0, configs=5), SEED, clock=device.clock)
        assert result.config == OTHERS[0] and result.speedup == pytest.approx(1 / gain, rel=0.02)


def test_what_the_clock_cannot_tell_apart_is_no_gain() -> None:
    """One step of the clock is 1.6 % of 2 us."""
    times = {SEED: 2.001, OTHERS[0]: 1.999}
    device = SimulatedDevice(times.__getitem__, disturbances=Disturbances(step=0.064))
    assert tuned_of(times, device).config == SEED


def tuned_of(times: Mapping[Config, float], device: SimulatedDevice) -> Result:
    return tune(FiniteSearch(list(times)), device, Budget(seconds=9.0, configs=5), SEED, clock=device.clock)


def test_waiting_for_other_processes_shortens_no_comparison() -> None:
    """One of 10 s before all rounds, where comparisons take 0.65 s."""
    counts = []
    for waits in (0.0, 10.0):
        device = SimulatedDevice({SEED: 50.0, OTHERS[0]: 49.0}.__getitem__, disturbances=Disturbances(noise=0.03))
        rounds = counted(device, waits)
        result = tune(
            FiniteSearch([SEED, OTHERS[0]]), device, Budget(seconds=9.0, configs=5), SEED,
            clock=functools.partial(with_waits, device),
        )  # fmt: skip
        counts.append((len(rounds), result.config))
    assert counts[0] == counts[1] and counts[0][0] > 5


def counted(device: SimulatedDevice, waits: float) -> list[int]:
    """The counts of the rounds that a device is asked for, before each of which it waits."""
    found: list[int] = []
    original = device.rounds

    def rounds(configs: Sequence[Config], count: int) -> Sequence[Mapping[Config, float]]:
        found.append(count)
        device.waited += waits
        return original(configs, count)

    device.rounds = rounds  # type: ignore[method-assign]
    return found


def with_waits(device: SimulatedDevice) -> float:
    return device.clock() + device.waited


@pytest.mark.parametrize("broken", [SEED, OTHERS[0]])
def test_what_fails_only_when_it_is_run_again_is_not_chosen(broken: Config) -> None:
    """The fastest, or the seed, works in the search and never again."""
    times = {SEED: 50.0, OTHERS[0]: 40.0, OTHERS[1]: 45.0}
    later: list[bool] = []
    device = SimulatedDevice(
        times.__getitem__, failures=lambda config: Status.CRASHED if later and config == broken else None
    )
    original = device.rounds

    def rounds(configs: Sequence[Config], count: int) -> Sequence[Mapping[Config, float]]:
        later.append(True)
        return original(configs, count)

    device.rounds = rounds  # type: ignore[method-assign]
    assert tuned_of(times, device).config == (OTHERS[1] if broken == OTHERS[0] else OTHERS[0])


def test_one_that_spoils_rounds_for_all_loses_itself_only() -> None:
    times = {SEED: 50.0, OTHERS[0]: 40.0, OTHERS[1]: 45.0}
    device = SimulatedDevice(times.__getitem__)
    original = device.rounds
    device.rounds = lambda configs, count: [] if OTHERS[0] in configs else original(configs, count)  # type: ignore[method-assign]
    assert tuned_of(times, device).config == OTHERS[1]
    device = SimulatedDevice(times.__getitem__)
    device.rounds = lambda configs, count: []  # type: ignore[method-assign]
    assert tuned_of(times, device).config == SEED  # nothing can be compared: 40 against 50 could be a mistake


def measuring(draw: Callable[[], tuple[float, float]]) -> Callable[[Sequence[str], int], list[dict[str, float]]]:
    def measure(configs: Sequence[str], count: int) -> list[dict[str, float]]:
        return [{name: t for name, t in zip("ab", draw(), strict=True) if name in configs} for _ in range(count)]

    return measure


def test_bounds_hold_the_median_as_often_as_they_say() -> None:
    """Of a skewed distribution, at three quarters of 10^4 draws of 17 values: one bound fails once in 10^5 times."""
    rng = Random(5)
    outside = 0
    for _ in range(10_000):
        low, high = median_interval([rng.expovariate(1.0) for _ in range(17)])
        outside += not low <= math.log(2) <= high
    assert outside <= 2
    assert median_interval([1.0] * 16) == (-math.inf, math.inf) and median_interval([1.0] * 17) == (1.0, 1.0)
    low, high = median_interval([rng.gauss(0.0, 1.0) for _ in range(400)])
    assert -0.5 < low < 0 < high < 0.5


def test_noise_alone_never_replaces() -> None:
    rng = Random(1)
    ticks = iter(range(10**9))
    for _ in range(200):
        measure = measuring(lambda: (rng.lognormvariate(4.0, 0.05), rng.lognormvariate(4.0, 0.05)))
        assert not compared("a", "b", measure, lambda: 1e-3 * next(ticks)).replaces


def test_rankings_drop_what_is_slower_and_what_fails() -> None:
    asked: list[tuple[str, ...]] = []
    rng = Random(2)

    def measure(configs: Sequence[str], count: int) -> list[dict[str, float]]:
        asked.append(tuple(configs))
        known = {"fast": 10.0, "even": 10.0, "slow": 11.0}
        return [{c: known[c] * rng.lognormvariate(0, 0.01) for c in configs if c in known} for _ in range(count)]

    found = ranked(["slow", "gone", "fast", "even"], measure, lambda: 0.0)
    assert set(found) == {"fast", "even"} and list(found.values()) == sorted(found.values())
    assert asked[0] == ("slow", "gone", "fast", "even") and set(asked[-1]) == {"fast", "even"}
    assert ranked([], measure, lambda: 0.0) == {} == ranked(["gone"], measure, lambda: 0.0)
    assert log_ratios([{"a": 2.0, "b": 1.0}, {"a": 1.0}], "a", "b") == [math.log(2.0)]
    assert list(medians([{"a": 2.0, "b": 1.0}])) == ["b", "a"]
