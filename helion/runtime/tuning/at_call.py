"""The config of a call without a given one: tuned before, tuned now, or none."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ... import exc, knobs
from ..._support import logs as _logging
from ..._support.lazy import lazy
from ...autotuner.cache.rows import Key, Row
from ...autotuner.cache.store import Store, default_store
from ...backends import stub
from ...config import Config
from ..signature import tensors_in
from ..specialized import Specialized
from .loaded import loaded_config

_LOG = _logging.logger(__name__)

if TYPE_CHECKING:
    from ...autotuner import options as search_options
    from . import autotune, candidates, keys, unasked
else:
    # a call without tuned configs needs no search
    search_options = lazy("helion.autotuner.options")
    autotune = lazy("helion.runtime.tuning.autotune")
    candidates = lazy("helion.runtime.tuning.candidates")
    keys = lazy("helion.runtime.tuning.keys")
    unasked = lazy("helion.runtime.tuning.unasked")


def is_forced(of: Specialized, args: Sequence[Any]) -> bool:
    """Return whether a call is always tuned: ``force_autotune`` is set, with an effort, and arguments are on a GPU."""
    return bool(of.settings.force_autotune) and of.settings.autotune_effort != "none" and _on_gpu(args)


def _on_gpu(args: Sequence[Any]) -> bool:
    return any(map(stub.on_gpu, tensors_in(args)))


def tuned_config(of: Specialized, args: Sequence[Any], given: Sequence[Config] = ()) -> Config | None:
    """Return a config that was loaded or tuned for this call, or None for the default config.

    On a GPU it may come from the cache, or from tuning now if the effort requests it, beginning with ``given``.

    Failures of tuning are reported, and the call continues. Raises ``exc.CacheAssertionError`` with
    ``HELION_ASSERT_CACHE_HIT`` if nothing was tuned before.
    """
    config = loaded_config(of, args)
    forced = is_forced(of, args)
    if not forced and (config is not None or not _on_gpu(args) or of.settings.autotune_effort == "none"):
        return config
    if forced:
        return _tuned_now(of, args, given, "full")
    config = _kept(of, args)
    effort = of.settings.autotune_effort
    return _tuned_now(of, args, given, effort) if config is None and effort is not None else config


def untuned_config(of: Specialized, args: Sequence[Any], config: Config) -> Config:
    """Return the config that runs if nothing was tuned and no effort is set.

    It is ``config``, unless another seed is predicted and measured to be faster.
    """
    if of.settings.autotune_effort is not None or not _on_gpu(args):
        return config
    try:
        return unasked.measured(of, args, config)
    except Exception as error:  # the measurement is optional
        _LOG.debug("%s: seeds are not measured: %s: %s", of.kernel.name, type(error).__name__, error)
        return config


def _kept(of: Specialized, args: Sequence[Any]) -> Config | None:
    store = default_store()
    asserted = knobs.ASSERT_CACHE_HIT.read()
    if store is None and asserted:
        raise exc.CacheAssertionError(
            "HELION_ASSERT_CACHE_HIT and HELION_SKIP_CACHE are both set: nothing is looked up."
        )
    if store is None or not (store.has_any or asserted):
        return None
    key = keys.key_of(of, args)
    row = None if key is None else store.get(key)
    config = None if row is None else candidates.legal(of, row.config)
    if config is None and asserted:
        raise exc.CacheAssertionError(_missing(of, store, key))
    return config


def _missing(of: Specialized, store: Store, key: Key | None) -> str:
    """Describe why there is no tuned config, by comparison with the nearest one."""
    text = f"HELION_ASSERT_CACHE_HIT is set, and kernel {of.kernel.name!r} has no tuned config in {store.path}"
    rows: list[Row] = store.all(of.kernel.name)
    if key is None or not rows:
        return f"{text}; no config of it was kept at all."
    names = [each.name for each in dataclasses.fields(Key)]
    nearest = min(rows, key=lambda row: sum(getattr(row.key, name) != getattr(key, name) for name in names))
    differing = [name for name in names if getattr(nearest.key, name) != getattr(key, name)]
    parts = (f"{name} is {getattr(key, name)!r}, kept is {getattr(nearest.key, name)!r}" for name in differing)
    return f"{text}; the nearest differs: {'; '.join(parts)}."


def _tuned_now(of: Specialized, args: Sequence[Any], given: Sequence[Config], effort: str) -> Config | None:
    """Tune now, with ``effort`` if the settings name none. Nothing can be measured during CUDA graph capture."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        _logging.say_once(f"helion: {of.kernel.name} is not tuned: it is first called while a CUDA graph is captured")
        return None
    try:
        options = search_options.Options.of(of.settings, effort, {})
        return autotune.tuned(of, args, options, given, only=False).config
    except exc.AutotuningDisallowedInEnvironment:
        raise
    except Exception as error:  # a call does not fail for want of a better config
        _logging.say_once(f"helion: {of.kernel.name} is not tuned: {type(error).__name__}: {error}")
        return None
