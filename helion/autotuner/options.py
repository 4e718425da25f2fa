"""Options of a search: the settings of a kernel, and the overrides of a call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .. import exc
from .._support import logs
from ..config import Config
from ..settings import Settings

#: Ratio to the least time within which configs are measured again at the end.
CLOSE = 1.15
EFFORTS = ("none", "minimal", "quick", "full")
SEARCHES = ("surrogate", "pattern", "evolution", "random", "finite")
#: Seconds and configs of each effort; the first limit reached ends the search, and the best so far is the answer. With
#: the work before and after it, a ``quick`` search ends within 30 s: on an H200 that took 0.2 to 1.1 s.
_BUDGETS: Mapping[str, tuple[float, int]] = {
    "none": (0.0, 0),
    "minimal": (60.0, 5),
    "quick": (28.0, 150),
    "full": (600.0, 2000),
}
#: Configs that count as a generation.
GENERATION = 20
#: Options of other searches, without effect.
_WITHOUT_EFFECT = (
    "copies",
    "initial_population",
    "population_size",
    "num_neighbors",
    "finishing_rounds",
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a search.

    ``seconds`` and ``configs`` are the budget. ``random_seed`` makes a search repeatable on equal times.

    ``lock_seconds`` is the timeout to wait for other processes' measurements on the same GPU; then it measures while
    they run. ``compile_seconds`` is the compile timeout of a config, which decreases as others finish if ``adaptive``.
    ``run_seconds`` is the timeout to check and time it. ``workers`` is the number of parallel compilations.
    ``isolated``: candidates run in a separate process. ``simulated``: CPU tensors are tuned as well, on predicted
    times. ``atol`` and ``rtol`` replace the tolerances of the dtypes. ``overrides`` are keys that every candidate has.
    ``seed_configs`` are configs to begin with, after the default one. ``best_of`` searches run one after the other,
    each with the whole budget and its own random seed. Configs within ``close`` times the least time are measured again
    at the end.

    Functions of the user: ``filter(config)`` returns whether a config is tried (None: it is not), or a replacement.
    ``benchmark(functions, repeat=..., desc=...)`` returns the milliseconds of each of a list of functions.
    ``baseline(*args)`` computes the expected results. ``check(result, expected)`` raises AssertionError for a wrong
    result. With ``benchmark`` or ``check`` candidates run in this process.
    """

    effort: str = "full"
    search: str = "surrogate"
    seconds: float = 600.0
    configs: int = 2000
    random_seed: int = 0
    compile_seconds: float = 60.0
    adaptive: bool = True
    run_seconds: float = 30.0
    lock_seconds: float = 60.0
    workers: int = 1
    isolated: bool = True
    accuracy: bool = True
    atol: float | None = None
    rtol: float | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    seed_configs: Any = None
    best_of: int = 1
    close: float = CLOSE
    filter: Callable[[Config], Any] | None = None
    benchmark: Callable[..., Sequence[float]] | None = None
    baseline: Callable[..., Any] | None = None
    check: Callable[[Any, Any], Any] | None = None
    simulated: bool = False
    progress: bool = True
    log: str | None = None

    @classmethod
    def of(cls, settings: Settings, default_effort: str, given: Mapping[str, Any]) -> Options:
        """Return the options of a kernel's ``settings``, with the overrides of a call by name.

        Names are those of this record, or of settings with or without ``autotune_``. Raises ``exc.InvalidAPIUsage`` for
        others, and for illegal values.
        """
        asked = _named(given)
        generations = asked.pop("max_generations", None)
        effort = asked.get("effort") or settings.autotune_effort or default_effort
        if effort not in EFFORTS:
            raise exc.InvalidAPIUsage(f"effort must be one of {', '.join(EFFORTS)}, got {effort!r}.")
        seconds, configs = _BUDGETS[effort]
        budget = settings.autotune_budget_seconds
        jobs = settings.autotune_precompile_jobs
        seed = settings.autotune_random_seed
        threshold = settings.autotune_rebenchmark_threshold
        generations = settings.autotune_max_generations if generations is None else generations
        made = cls(
            effort=effort,
            seconds=seconds if budget is None else float(budget),
            configs=configs,
            random_seed=0 if seed is None else seed,
            compile_seconds=float(settings.autotune_compile_timeout),
            adaptive=settings.autotune_adaptive_timeout,
            run_seconds=float(settings.autotune_benchmark_timeout),
            workers=max(1, cpus() - 1) if jobs is None else jobs,
            isolated=settings.autotune_benchmark_subprocess,
            accuracy=settings.autotune_accuracy_check,
            atol=settings.autotune_baseline_atol,
            rtol=settings.autotune_baseline_rtol,
            overrides=settings.autotune_config_overrides or {},
            seed_configs=settings.autotune_seed_configs,
            best_of=1 if settings.autotune_best_of_k is None else settings.autotune_best_of_k,
            close=CLOSE if threshold is None else threshold,
            filter=settings.autotune_config_filter,
            benchmark=settings.autotune_benchmark_fn,
            baseline=settings.autotune_baseline_fn,
            check=settings.autotune_baseline_accuracy_check_fn,
            progress=settings.autotune_progress_bar,
            log=settings.autotune_log,
        )
        chosen = replace(made, **{**asked, "effort": effort})
        if generations is None:
            return chosen
        _check("max_generations", generations, (int,), 0)
        return replace(chosen, configs=min(chosen.configs, GENERATION * (1 + generations)))

    def __post_init__(self) -> None:
        if self.search not in SEARCHES:
            raise exc.InvalidAPIUsage(f"search must be one of {', '.join(SEARCHES)}, got {self.search!r}.")
        for name in ("seconds", "configs", "compile_seconds", "run_seconds", "lock_seconds"):
            _check(name, getattr(self, name), (int, float), 0)
        _check("workers", self.workers, (int,), 1)
        _check("best_of", self.best_of, (int,), 1)
        _check("close", self.close, (int, float), 1)
        for name in ("filter", "benchmark", "baseline", "check"):
            if not (getattr(self, name) is None or callable(getattr(self, name))):
                raise exc.InvalidAPIUsage(f"{name} must be a function or None, got {getattr(self, name)!r}.")


def cpus() -> int:
    """Return the number of CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 2


def _check(name: str, value: Any, kinds: tuple[type, ...], least: int) -> None:
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not is_number or not value >= least:
        raise exc.InvalidAPIUsage(f"{name} must be a number of at least {least}, got {value!r}.")


#: Settings whose options have another name.
_OTHER_NAMES = {
    "budget_seconds": "seconds",
    "max_configs": "configs",
    "compile_timeout": "compile_seconds",
    "adaptive_timeout": "adaptive",
    "benchmark_timeout": "run_seconds",
    "precompile_jobs": "workers",
    "jobs": "workers",
    "benchmark_subprocess": "isolated",
    "best_of_k": "best_of",
    "rebenchmark_threshold": "close",
    "config_filter": "filter",
    "benchmark_fn": "benchmark",
    "baseline_fn": "baseline",
    "baseline_accuracy_check_fn": "check",
    "accuracy_check": "accuracy",
    "baseline_atol": "atol",
    "baseline_rtol": "rtol",
    "config_overrides": "overrides",
    "progress_bar": "progress",
}


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names of ``Options``."""
    known = {each.name for each in fields(Options)}
    found: dict[str, Any] = {}
    for name, value in given.items():
        bare = name.removeprefix("autotune_")
        bare = _OTHER_NAMES.get(bare, bare)
        if bare in _WITHOUT_EFFECT:
            logs.say_once(f"helion: the tuning option {name} has no effect here; budgets are seconds= and configs=")
        elif bare in known or bare == "max_generations":
            found[bare] = value
        else:
            options = ", ".join(sorted(known))
            raise exc.InvalidAPIUsage(f"Tuning has no option {name!r}; it has {options}.")
    return found
