"""The config that runs at the first call of a variant: the first of ``POLICIES`` that has one decides."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ... import exc, knobs
from ..._support import collecting
from ..._support import logs as _logging
from ..._support.lazy import lazy
from ..._support.nested import tensors_in
from ...backends import stub
from ...config import Config
from ..call.argument_checks import launches_on_gpu
from ..tuning.loaded import has_loaded, loaded_config

if TYPE_CHECKING:
    from ...autotuner import options as search_options
    from ...autotuner.cache import rows, store
    from ..specialization import aot, kept
    from ..tuning import autotune, chosen_before, first_call, keys, requests
    from . import interpreted
    from .variant import Variant
else:
    # most calls need no tuner
    rows = lazy("helion.autotuner.cache.rows")
    store = lazy("helion.autotuner.cache.store")
    aot = lazy("helion.runtime.specialization.aot")
    kept = lazy("helion.runtime.specialization.kept")
    interpreted = lazy("helion.runtime.variants.interpreted")
    search_options = lazy("helion.autotuner.options")
    autotune = lazy("helion.runtime.tuning.autotune")
    chosen_before = lazy("helion.runtime.tuning.chosen_before")
    first_call = lazy("helion.runtime.tuning.first_call")
    keys = lazy("helion.runtime.tuning.keys")
    requests = lazy("helion.runtime.tuning.requests")

_LOG = _logging.logger(__name__)


@dataclass(frozen=True, kw_only=True)
class CallContext:
    """The context of a call: tensors ``on_gpu``, or launches there or on its stub. ``forced``: it must be tuned now."""

    on_gpu: bool
    launches: bool
    forced: bool


#: Policy: uses a config for a first call, and returns True, or returns False for the next policy.
Policy = Callable[["Variant", Sequence[Any], CallContext], bool]


def choose(variant: Variant, args: Sequence[Any]) -> None:
    """Use a config for the first call of a variant, with these arguments.

    Raises ``exc.NoFeasibleConfig`` if no config is given, and none can fit the GPU. Raises ``exc.NoConfigFound`` if no
    given one is legal, and ``exc.CacheAssertionError`` with ``HELION_ASSERT_CACHE_HIT`` if nothing was tuned before.
    """
    settings = variant.specialized.settings
    on_gpu = any(map(stub.on_gpu, tensors_in(args)))
    forced = bool(settings.force_autotune) and settings.autotune_effort != "none" and on_gpu
    context = CallContext(on_gpu=on_gpu, launches=launches_on_gpu(args), forced=forced)
    with collecting.paused():
        for policy in POLICIES:
            if policy(variant, args, context):
                return


# --- requested configs ------------------------------------------------------------------------------------------------


def set_for_class(variant: Variant, args: Sequence[Any], context: CallContext) -> bool:
    """Use the config that was set for other sizes or strides of the class."""
    return variant.requested is not None and variant.adopt(variant.requested)


def collected_for_table(variant: Variant, args: Sequence[Any], context: CallContext) -> bool:
    """Tune, and write the config into the kernel's table, with ``HELION_AOT_MODE=collect``."""
    kernel = variant.kernel
    if kernel.configs or kernel.aot is None or not aot.collecting(kernel):
        return False
    with collecting.resumed():  # a search may take minutes
        config = requests.autotune(variant, args)
    aot.record(kernel, variant.target, args, variant.specialized.short_config(config).to_dict())
    for others in aot.others(kernel):
        values = kernel.normalize_args(*others)
        variant.siblings.exact(values, variant.target).ensure_config_exists(values)
    return True


def given(variant: Variant, args: Sequence[Any], context: CallContext) -> bool:
    """Use the decorator's only config."""
    configs = variant.kernel.configs
    if len(configs) != 1 or (context.forced and variant.specialized.settings.autotuner_fn is None):
        return False
    variant.set_config(configs[0])
    if context.on_gpu:
        variant.keeps = True
    return True


def searched_by_user(variant: Variant, args: Sequence[Any], context: CallContext) -> bool:
    """Use the fastest of the decorator's configs, or the one that ``autotuner_fn`` finds."""
    several = bool(variant.kernel.configs) and not context.forced
    if variant.specialized.settings.autotuner_fn is None and not several:
        return False
    with collecting.resumed():
        requests.autotune(variant, args, force=False)
    return True


# --- configs that were tuned ------------------------------------------------------------------------------------------


def loaded(variant: Variant, args: Sequence[Any], context: CallContext) -> bool:
    """Use a config of ``helion.load_configs``."""
    if context.forced or not has_loaded(variant.kernel.name):
        return False
    known = [keys.key_of(variant.specialized, args), keys.key_of(variant.specialized, args, measured=True)]
    return _used(variant, loaded_config(variant.specialized, known))


def cached(variant: Variant, args: Sequence[Any], context: CallContext) -> bool:
    """Use the config that a former search has written to the cache."""
    settings = variant.specialized.settings
    if context.forced or not context.on_gpu or settings.autotune_effort == "none":
        return False
    kept, asserted = store.default_store(), knobs.ASSERT_CACHE_HIT.read()
    if kept is None and asserted:
        raise exc.CacheAssertionError(
            "HELION_ASSERT_CACHE_HIT and HELION_SKIP_CACHE are both set: nothing is looked up."
        )
    if kept is None or not (kept.has_any or asserted):
        return False
    key = keys.key_of(variant.specialized, args)
    row = None if key is None else kept.get(key)
    config = None if row is None else keys.legal(variant.specialized, row.config)
    if config is None and asserted:
        raise exc.CacheAssertionError(_missing(variant.kernel.name, kept, key))
    return _used(variant, config)


def measured_before(variant: Variant, args: Sequence[Any], context: CallContext) -> bool:
    """Use the config that the first call of a former process has measured to be the fastest, without a request to tune."""
    if context.forced or not context.on_gpu or variant.specialized.settings.autotune_effort is not None:
        return False
    found = _used(variant, chosen_before.remembered(variant.specialized, args))
    if found:
        variant.keeps = True
    return found


def is_infeasible(variant: Variant, args: Sequence[Any], context: CallContext) -> bool:
    """Raise ``exc.NoFeasibleConfig`` if no config can launch. The interpreter has no limits.

    This needs all seeds, so that configs which former processes have launched come before.
    """
    if context.launches and not variant.kernel.configs:
        variant.choice.check_feasible()
    return False


def tuned_now(variant: Variant, args: Sequence[Any], context: CallContext) -> bool:
    """Search now, if ``force_autotune`` or an effort requests it.

    Failures are reported, and the call continues. Nothing can be measured during CUDA graph capture.
    """
    of = variant.specialized
    effort = "full" if context.forced else of.settings.autotune_effort
    if not context.on_gpu or effort in (None, "none"):
        return False
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        _logging.say_once(f"helion: {of.kernel.name} is not tuned: it is first called while a CUDA graph is captured")
        return False
    try:
        options = search_options.Options.of(of.settings, effort, {})
        with collecting.resumed():
            found = autotune.tuned(of, args, options, requests.legal_configs(variant, of.kernel.configs), only=False)
    except exc.AutotuningDisallowedInEnvironment:
        raise
    except Exception as error:  # a call does not fail for want of a better config
        _logging.say_once(f"helion: {of.kernel.name} is not tuned: {type(error).__name__}: {error}")
        return False
    return _used(variant, found.config)


# --- configs without a request --------------------------------------------------------------------------------------


def first_given(variant: Variant, args: Sequence[Any], context: CallContext) -> bool:
    """Use the first legal config of the decorator, where tuning was forced and failed."""
    configs = requests.legal_configs(variant, variant.kernel.configs) if variant.kernel.configs else []
    return _used(variant, configs[0] if configs else None)


def by_default(variant: Variant, args: Sequence[Any], context: CallContext) -> bool:
    """Use the config of the kernel's table, else the compiler's choice.

    On a GPU the compiler's choice is checked by its binary, and configs that may be faster are measured. For CPU tensors
    its tiles are larger.
    """
    measures = context.on_gpu and variant.specialized.settings.autotune_effort is None
    with contextlib.ExitStack() as stack:
        along = _compiling_along(variant, args, stack) if measures and context.launches else None
        default = config = variant.choice.verified(context.launches)
        if measures:
            config = _measured(variant, args, default, along)
    used = config if context.launches else interpreted.in_other_tiles(variant.specialized, config)
    _announce(variant, config, used, is_faster=config != default)
    found = _used(variant, used)
    if measures and context.launches:
        variant.keeps = True
    return found


#: Requested configs come first, then those of former processes, the default last.
POLICIES: tuple[Policy, ...] = (
    set_for_class,
    collected_for_table,
    given,
    searched_by_user,
    loaded,
    cached,
    measured_before,
    is_infeasible,
    tuned_now,
    first_given,
    by_default,
)


def _used(variant: Variant, config: Config | None) -> bool:
    """Use a config that was not requested by the user, and may be replaced if it does not fit."""
    if config is not None:
        variant.choice.use(config, by_default=True)
    return config is not None


def keep(variant: Variant) -> None:
    """Keep the analysis and the code of the config in use for other processes."""
    config = variant.choice.config
    if config is not None:
        kept.keep(variant.specialized, config, getattr(variant.compiled.loaded(config), "__globals__", None))


def _missing(kernel: str, kept: store.Store, key: rows.Key | None) -> str:
    """Explain why no tuned config applies, by comparison with the nearest cached one."""
    text = f"HELION_ASSERT_CACHE_HIT is set, and kernel {kernel!r} has no tuned config in {kept.path}"
    known = kept.all(kernel)
    if key is None or not known:
        return f"{text}; the cache has no config of this kernel."
    names = [each.name for each in dataclasses.fields(rows.Key)]
    nearest = min(known, key=lambda row: sum(getattr(row.key, name) != getattr(key, name) for name in names))
    differing = [name for name in names if getattr(nearest.key, name) != getattr(key, name)]
    parts = (f"{name} is {getattr(key, name)!r}, cached is {getattr(nearest.key, name)!r}" for name in differing)
    return f"{text}; the nearest cached config differs: {'; '.join(parts)}."


def _compiling_along(variant: Variant, args: Sequence[Any], stack: contextlib.ExitStack) -> first_call.Along | None:
    """Compile configs that may be faster along with the default, until ``stack`` is left."""
    try:
        return stack.enter_context(first_call.compiling_along(variant.compiled, args))
    except Exception as error:  # as in ``_measured``; the default is compiled by itself
        _LOG.debug("%s: nothing compiles along: %s: %s", variant.kernel.name, type(error).__name__, error)
        return None


def _measured(variant: Variant, args: Sequence[Any], config: Config, along: first_call.Along | None) -> Config:
    """Return ``config``, unless another one is measured to be faster."""
    try:
        return first_call.measured(variant.compiled, args, config, along)
    except Exception as error:  # the measurement is optional
        _LOG.debug("%s: nothing is measured: %s: %s", variant.kernel.name, type(error).__name__, error)
        return config


def _announce(variant: Variant, config: Config, used: Config, *, is_faster: bool) -> None:
    """Print once which config runs: ``used``, which may have larger tiles than ``config`` in the interpreter.

    ``is_faster``: it was measured to be faster than the default.
    """
    kernel, of = variant.kernel, variant.specialized
    if kernel.default_printed or _logging.is_silent("default"):
        return
    kernel.default_printed = True
    if config == of.table_config:
        return
    seeds = of.analysis.seeds.seeds
    at, seed = next(((at, s) for at, s in enumerate(seeds, 1) if s.config == config), (0, None))
    other = "the conservative config" if config == of.analysis.space.conservative() else "the default with less memory"
    other = "a config near the seeds" if is_faster else other
    which = f"seed {at} of {len(seeds)}, by {seed.heuristic}" if seed else other
    which += ", which this call measured to be faster than the default" if is_faster else ""
    verdict = variant.compiled.verdict
    others = () if verdict is None else (f"; {of.short_config(r.config)!r} {r.reason}" for r in verdict.rejected)
    if used != config:
        tiles = "two tiles along each axis for checked mode" if of.settings.checked else "larger tiles for CPU tensors"
        which += f" in {tiles} (HELION_CPU_CONFIG=target keeps those of the target)"
    _logging.say(
        f"helion: {kernel.name}: no config given, using {which}: {of.decorator(variant.full(used))}{''.join(others)}"
    )


__all__ = ["POLICIES", "choose", "keep"]
