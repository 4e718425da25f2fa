"""The choice that the first call of a former process has made, as far as this machine remembers.

Most calls need nothing else of tuning, so this imports little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..._compiler.ir.effects import meets_other_gpus
from ..._support.lazy import lazy
from ...autotuner.cache.store import default_store
from ...autotuner.outcome import Outcome
from ...config import Config
from ..specialization.specialized import Specialized
from .keys import key_of

if TYPE_CHECKING:
    from . import candidates
else:
    # needed only where something is remembered
    candidates = lazy("helion.runtime.tuning.candidates")

#: The tag of results on disk, which separates them from those of requested tuning. Its number changes with the rules.
TAG = "first call 1"
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
    """Return the config that the first call of another process has chosen; None if there is none."""
    if not of.settings.first_call_seconds or is_decided(of):
        return None
    store = default_store()
    key = key_of(of, args, TAG) if store is not None and store.has_any else None
    row = None if store is None or key is None else store.get(key)
    return None if row is None else candidates.legal(of, row.config)


def timed(of: Specialized, args: Sequence[Any]) -> tuple[Outcome, ...]:
    """Return the outcomes of the configs that the first call for such arguments on the target has tried."""
    store, key = default_store(), key_of(of, args, TAG, measured=True)
    return () if store is None or key is None else tuple(store.sweep(key))


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
