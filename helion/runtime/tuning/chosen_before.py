"""The choice that the first call of a former process has made, as far as this machine remembers.

A choice is *decided*, or *unfinished*: configs that compiled too late are timed by the next process, the last that
measures anything. Most calls need nothing else of tuning, so this imports little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..._compiler.ir.effects import meets_other_gpus
from ...autotuner.cache.rows import Key
from ...autotuner.cache.store import default_store
from ...autotuner.outcome import Outcome, Status
from ...config import Config
from ..specialization.specialized import Specialized
from .keys import key_of, legal

#: The tag of results on disk, which separates them from those of requested tuning. Its number changes with the rules.
_TAG = "first call 2"
#: Tuning options, each of which means that the user decides when to tune.
_DECIDED = (
    "autotune_baseline_fn",
    "autotune_baseline_accuracy_check_fn",
    "autotune_benchmark_fn",
    "autotune_config_filter",
    "autotune_config_overrides",
    "autotune_seed_configs",
)


@dataclass(frozen=True, kw_only=True)
class Unfinished:
    """A choice among the configs that were timed. Those that are ``late`` compiled, and are to be timed."""

    config: Config
    late: tuple[Config, ...]
    outcomes: tuple[Outcome, ...]


def remembered(of: Specialized, args: Sequence[Any]) -> Config | None:
    """Return the config that the first calls of other processes have decided on; None if there is none."""
    if not of.settings.first_call_seconds or is_decided(of):
        return None
    store = default_store()
    key = tagged(of, args) if store is not None and store.has_any else None
    if store is None or key is None:
        return None
    row = store.get(key)
    if row is not None:
        return legal(of, row.config)
    untimed = next((each.config for each in store.sweep(key) if each.status is Status.UNTIMED), None)
    return None if untimed is None else legal(of, untimed)


def unfinished(of: Specialized, args: Sequence[Any]) -> Unfinished | None:
    """Return the choice of a former process that had no time for all configs; None if there is none."""
    store = default_store()
    key = tagged(of, args, is_unfinished=True) if store is not None and store.has_any else None
    row = None if store is None or key is None else store.get(key)
    config = None if row is None else legal(of, row.config)
    if store is None or key is None or config is None:
        return None
    outcomes = store.sweep(key)
    late = (legal(of, each.config) for each in outcomes if each.status is Status.UNTIMED)
    return Unfinished(config=config, late=tuple(filter(None, late)), outcomes=outcomes)


def keep_untimed(of: Specialized, args: Sequence[Any], config: Config, why: str) -> None:
    """Decide on a config without a time, so that later processes do not try to measure it either."""
    store, key = default_store(), tagged(of, args)
    if store is not None and key is not None:
        store.add(key, [Outcome(config=config, status=Status.UNTIMED, detail=why)])


def tagged(
    of: Specialized, args: Sequence[Any], *, is_unfinished: bool = False, measured: bool | None = None
) -> Key | None:
    """Return the key of the choice for such arguments, of the time that the setting allows. ``measured`` as in ``key_of``."""
    tag = f"{_TAG}, {of.settings.first_call_seconds:g} s{', unfinished' if is_unfinished else ''}"
    return key_of(of, args, tag, measured=measured)


def timed(of: Specialized, args: Sequence[Any]) -> tuple[Outcome, ...]:
    """Return the outcomes of the configs that first calls for such arguments on the target have tried."""
    store = default_store()
    keys = (tagged(of, args, is_unfinished=is_unfinished, measured=True) for is_unfinished in (False, True))
    return () if store is None else next((found for key in keys if key and (found := store.sweep(key))), ())


def is_decided(of: Specialized) -> bool:
    """Return whether the user decides on configs, or results have to be the same in every run or on every machine."""
    return (
        any(getattr(of.settings, name) for name in _DECIDED)
        or of.table_config is not None
        or torch.are_deterministic_algorithms_enabled()
        or _is_one_of_many()
        or meets_other_gpus(of.analysis.program)
        or of.kernel.is_in_graphs
    )


def _is_one_of_many() -> bool:
    """Return whether other processes compute the same results, which must agree in every bit."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
