"""The choice that the first call of a former process has made, as far as this machine remembers.

Most calls need nothing else of tuning, so this imports little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...autotuner.cache.rows import Key
from ...autotuner.cache.store import default_store
from ...autotuner.outcome import Outcome, Status
from ...config import Config
from ..specialization.specialized import Specialized
from .keys import key_of, legal

#: The tag of results on disk, which separates them from those of requested tuning. Its number changes with the rules.
_TAG = "first call 4"
#: Tuning options, each of which means that the user decides when to tune.
_DECIDED = (
    "autotune_baseline_fn",
    "autotune_baseline_accuracy_check_fn",
    "autotune_benchmark_fn",
    "autotune_config_filter",
    "autotune_config_overrides",
    "autotune_seed_configs",
)


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


def keep_untimed(of: Specialized, args: Sequence[Any], config: Config, why: str) -> None:
    """Decide on a config without a time, so that later processes do not try to measure it either."""
    store, key = default_store(), tagged(of, args)
    if store is not None and key is not None:
        store.add_later(key, [Outcome(config=config, status=Status.UNTIMED, detail=why)])


def tagged(of: Specialized, args: Sequence[Any], *, measured: bool | None = None) -> Key | None:
    """Return the key of the choice for such arguments, of the time that the setting allows. ``measured`` as in ``key_of``."""
    return key_of(of, args, f"{_TAG}, {of.settings.first_call_seconds:g} s", measured=measured)


def timed(of: Specialized, args: Sequence[Any]) -> tuple[Outcome, ...]:
    """Return the outcomes of the configs that first calls for such arguments on the target have tried."""
    store, key = default_store(), tagged(of, args, measured=True)
    return () if store is None or key is None else tuple(store.sweep(key))


def is_decided(of: Specialized) -> bool:
    """Return whether the user decides on configs, or results have to be the same in every run or on every machine."""
    return (
        any(getattr(of.settings, name) for name in _DECIDED)
        or of.table_config is not None
        or torch.are_deterministic_algorithms_enabled()
        or _is_one_of_many()
        or of.analysis.call_facts.meets_other_gpus
        or of.kernel.is_in_graphs
    )


def _is_one_of_many() -> bool:
    """Return whether other processes compute the same results, which must agree in every bit."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
