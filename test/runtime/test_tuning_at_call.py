"""Tuning that a call triggers, and the settings and variables that say what it may do: CPU tensors stand for those of a GPU,
whose times are simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion.autotuner.cache.store import default_store
from helion.autotuner.options import GENERATION, Options
from helion.runtime.tuning import autotune
from helion.settings import Settings

pytestmark = pytest.mark.usefixtures("as_on_a_gpu")


def shifted_rows(x: torch.Tensor) -> torch.Tensor:
    """Each row less its largest element, and their sum beside it."""
    out, total = torch.empty_like(x), torch.empty(x.size(0), dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :] - torch.amax(x[tile, :], dim=-1, keepdim=True)
        out[tile, :] = row
        total[tile] = row.sum(-1)
    return out, total


def check(found: Any, x: torch.Tensor) -> None:
    row = x - x.amax(-1, keepdim=True)
    torch.testing.assert_close(found[0], row)
    torch.testing.assert_close(found[1], row.sum(-1))


ROWS = torch.randn(3, 130) + 5.0
QUIET = {"autotune_progress_bar": False, "autotune_benchmark_subprocess": False, "autotune_random_seed": 1}
QUIET |= {"first_call_seconds": 0}


def kernel(**settings: Any) -> helion.runtime.kernel.Kernel:
    return helion.kernel(shifted_rows, settings=Settings(**{**QUIET, **settings}))


def kept() -> int:
    store = default_store()
    return 0 if store is None else len(store.all())


def test_a_call_is_tuned_once_and_later_processes_take_what_was_kept(searches: list[int]) -> None:
    check(kernel()(ROWS), ROWS)
    assert searches == [] and kept() == 0  # no effort is set, and no seed is in doubt
    check(kernel(autotune_effort="minimal")(ROWS), ROWS)
    assert len(searches) == 1 and kept() == 1
    check(kernel(autotune_effort="minimal")(ROWS), ROWS)
    check(kernel()(ROWS), ROWS)
    assert len(searches) == 1


def test_the_effort_none_searches_nothing(searches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_FORCE_AUTOTUNE", "1")
    one = kernel(autotune_effort="none")
    check(one(ROWS), ROWS)
    assert searches == [] and one.bind((ROWS,)).config == one.bind((ROWS,)).default_config()


def test_a_forced_call_is_tuned_whatever_is_known(searches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel(autotune_effort="minimal")(ROWS)
    monkeypatch.setenv("HELION_FORCE_AUTOTUNE", "1")
    monkeypatch.setenv("HELION_AUTOTUNE_EFFORT", "minimal")
    check(kernel()(ROWS), ROWS)
    given = helion.kernel(shifted_rows, config=helion.Config(block_sizes=[1], num_warps=2), settings=Settings(**QUIET))
    check(given(ROWS), ROWS)
    assert len(searches) == 3
    monkeypatch.delenv("HELION_FORCE_AUTOTUNE")
    given = helion.kernel(shifted_rows, config=helion.Config(block_sizes=[1], num_warps=2), settings=Settings(**QUIET))
    given(ROWS)
    assert len(searches) == 3 and given.bind((ROWS,)).config["num_warps"] == 2


def test_what_must_be_kept_and_is_not_says_what_differs(searches: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_ASSERT_CACHE_HIT", "1")
    with pytest.raises(exc.CacheAssertionError, match="the cache has no config of this kernel"):
        kernel()(ROWS)
    kernel().autotune((ROWS,), effort="minimal", simulated=True)
    check(kernel()(ROWS), ROWS)
    with pytest.raises(
        exc.CacheAssertionError, match=r"the nearest cached config differs: .*shapes is \(\(4097, 3\),\)"
    ):
        kernel()(torch.randn(4097, 3))
    monkeypatch.setenv("HELION_SKIP_CACHE", "1")
    with pytest.raises(exc.CacheAssertionError, match="HELION_SKIP_CACHE are both set"):
        kernel()(ROWS)
    assert len(searches) == 1


def test_a_forbidden_search_raises_and_what_was_kept_is_taken(
    searches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel(autotune_effort="minimal")(ROWS)
    monkeypatch.setenv("HELION_DISALLOW_AUTOTUNING", "1")
    check(kernel(autotune_effort="full")(ROWS), ROWS)
    other = torch.randn(3, 5)
    check(kernel()(other), other)  # nothing would be searched
    with pytest.raises(exc.AutotuningDisallowedInEnvironment):
        kernel(autotune_effort="full")(torch.randn(3, 6))
    assert len(searches) == 1


def test_a_skipped_cache_is_neither_read_nor_written(
    searches: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELION_SKIP_CACHE", "1")
    for _ in range(2):
        check(kernel(autotune_effort="minimal")(ROWS), ROWS)
    assert len(searches) == 2 and not list(tmp_path.rglob("*.sqlite"))


def test_a_search_that_breaks_costs_the_call_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*args: Any) -> Any:
        raise OSError("no space left on device")

    monkeypatch.setattr(autotune, "search_of", broken)
    check(kernel(autotune_effort="quick")(ROWS), ROWS)
    assert "shifted_rows is not tuned: OSError: no space left on device" in capsys.readouterr().err


def test_what_is_captured_into_a_graph_is_not_tuned(
    searches: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To wait for the device would end the capture."""
    for name in ("is_initialized", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    check(kernel(autotune_effort="quick")(ROWS), ROWS)
    assert searches == []
    assert "shifted_rows is not tuned: it is first called while a CUDA graph is captured" in capsys.readouterr().err


# --- functions of the user's ----------------------------------------------------------------------------------------


def tuned(**options: Any) -> helion.Config:
    one = kernel()
    return one.autotune((ROWS,), **{"simulated": True, "isolated": False, "configs": 8, "progress": False, **options})


def test_a_filter_says_which_configs_are_tried() -> None:
    seen: list[helion.Config] = []

    def narrow(config: helion.Config) -> bool:
        seen.append(config)
        return bool(config["num_warps"] <= 2)

    assert tuned(autotune_config_filter=narrow)["num_warps"] <= 2
    assert len({repr(config) for config in seen}) > 8 and all(len(config) > 10 for config in seen)  # full ones


def test_a_filter_may_give_another_config_and_none_is_no_config() -> None:
    assert tuned(filter=lambda config: {**config, "num_warps": 1}, configs=3)["num_warps"] == 1
    assert (
        tuned(filter=lambda config: helion.Config(**{**config, "num_stages": 2}), effort="minimal")["num_stages"] == 2
    )
    with pytest.raises(exc.NoConfigFound, match="autotune_config_filter"):
        tuned(filter=lambda config: None, configs=3)


def test_overrides_are_in_the_answer_even_where_nothing_is_searched() -> None:
    assert tuned(config_overrides={"num_warps": 16}, configs=0)["num_warps"] == 16


def test_a_benchmark_of_the_users_decides() -> None:
    asked: list[tuple[int, int]] = []

    def benchmark(functions: Sequence[Callable[[], object]], *, repeat: int, desc: str | None = None) -> list[float]:
        asked.append((len(functions), repeat))
        for function in functions:
            check(function(), ROWS)
        return [0.5 if only_function_is(function, 16) else 1.0 for function in functions]

    def only_function_is(function: Any, wanted: int) -> bool:
        return f"num_warps={wanted}" in Path(function.func.__code__.co_filename).read_text()

    seeds = [{"block_sizes": [1], "num_warps": 16}]
    one = kernel(autotune_benchmark_fn=benchmark, autotune_seed_configs=seeds)
    assert one.autotune((ROWS,), simulated=True, configs=4, progress=False)["num_warps"] == 16
    assert {repeat for _, repeat in asked} == {5} and max(count for count, _ in asked) > 1


def test_a_baseline_and_seeds_are_options_of_a_search_too() -> None:
    def wrong(x: torch.Tensor) -> Any:
        return torch.zeros_like(x), torch.zeros(len(x))

    with pytest.raises(exc.NoConfigFound, match="off"):
        tuned(autotune_baseline_fn=wrong)
    seeds = [{"block_sizes": [2], "num_warps": 32}]
    seen: list[helion.Config] = []
    tuned(seed_configs=seeds, effort="minimal", filter=lambda config: seen.append(config) or True)
    assert any(config["block_sizes"] == [2] and config["num_warps"] == 32 for config in seen)


@pytest.mark.parametrize("times", [[], [0.0], [float("nan")], [1.0, 2.0], ["fast"]])
def test_a_benchmark_that_gives_no_times_is_named(times: list[Any]) -> None:
    with pytest.raises(exc.NoConfigFound, match="autotune_benchmark_fn gave"):
        tuned(benchmark=lambda functions, **_: times, configs=2)


def test_a_comparison_of_the_users_decides_what_is_right() -> None:
    compared: list[bool] = []

    def same(result: Any, expected: Any) -> None:
        compared.append(True)
        assert len(compared) > 1, "the first one does not please"
        torch.testing.assert_close(result, expected)

    config = tuned(autotune_baseline_accuracy_check_fn=same, configs=4)
    assert len(compared) == 4 and config != kernel().bind((ROWS,)).default_config()


@pytest.mark.parametrize("name", ["filter", "benchmark", "baseline", "check"])
def test_what_is_no_function_is_refused(name: str) -> None:
    with pytest.raises(exc.InvalidAPIUsage, match=f"{name} must be a function or None, got 3"):
        tuned(**{name: 3})


def test_generations_and_repeated_searches(searches: list[int]) -> None:
    def configs(**given: Any) -> int:
        return Options.of(Settings(), "full", given).configs

    assert [configs(max_generations=n) for n in (0, 1, 4)] == [GENERATION, 2 * GENERATION, 5 * GENERATION]
    assert configs(max_generations=4, configs=7) == 7 and configs() == configs(max_generations=10**6) == 2000
    settings = Settings(autotune_max_generations=2, autotune_best_of_k=3, autotune_rebenchmark_threshold=1.4)
    options = Options.of(settings, "full", {})
    assert (options.configs, options.best_of, options.close) == (3 * GENERATION, 3, 1.4)
    for wrong in ({"max_generations": -1}, {"best_of_k": 0}, {"rebenchmark_threshold": 0.5}):
        with pytest.raises(exc.InvalidAPIUsage):
            Options.of(Settings(), "full", wrong)
    tuned(configs=4)
    tuned(configs=4, autotune_best_of_k=3)
    once, thrice = searches
    assert once == 4 and 6 < thrice <= 12  # what one of them has tried, the others do not try again
