"""Searches that the user asks for: ``autotune`` and ``search`` of bound kernels, and ``autotune_multi``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ... import exc
from ..._support import logs as _logging
from ..._support.lazy import lazy
from ...autotuner.options import Options
from ...config import Config, as_config
from ..call.argument_checks import launches_on_gpu

if TYPE_CHECKING:
    from ..variants.variant import Variant
    from . import autotune as tuning
    from . import several
else:
    # where nothing is measured, the tuner is not needed
    tuning = lazy("helion.runtime.tuning.autotune")
    several = lazy("helion.runtime.tuning.several")


def autotune(variant: Variant, args: Sequence[Any], *, force: bool = True, **options: Any) -> Config:
    """Search for the fastest config of a variant, and use it; see ``BoundKernel.autotune``."""
    settings = variant.specialized.settings
    if settings.autotuner_fn is None:
        return search(variant, args, force=force, **options)
    settings.check_autotuning_disabled()
    variant.use(variant.full(settings.autotuner_fn(variant.face, args, **options).autotune()))
    return _in_use(variant)


def search(
    variant: Variant,
    args: Sequence[Any],
    candidates: Sequence[Config | Mapping[str, Any]] = (),
    /,
    *,
    force: bool = True,
    **options: Any,
) -> Config:
    """Search among candidates, the decorator's configs or the whole space, and use the fastest config."""
    of, kernel = variant.specialized, variant.kernel
    wanted = Options.of(of.settings, "full", options)
    listed = [as_config(config) for config in candidates] or kernel.configs
    on_gpu = any(isinstance(a, torch.Tensor) and a.device.type == "cuda" for a in args)
    if not listed and launches_on_gpu(args):
        variant.choice.check_feasible()
    given = legal_configs(variant, listed)
    if len(given) > 1:
        of.settings.check_autotuning_disabled()
    if len(given) == 1 or not (on_gpu or wanted.simulated) or (wanted.effort == "none" and not given):
        variant.use(given[0] if given else of.default_config)
        if not on_gpu:
            which = "the first given config" if given else "the default config"
            _logging.say_once(f"helion: {kernel.name}: no GPU: nothing was measured, {which} is used")
        return _in_use(variant)
    if variant.analysis.call_facts.meets_other_gpus:
        raise exc.InvalidAPIUsage(
            f"Kernel {kernel.name!r} waits for other GPUs, and would never end if one rank ran it more often than the "
            "others. Give it one config, the same on all ranks; compare configs by timing calls on all ranks."
        )
    variant.use(variant.full(tuning.tuned(of, args, wanted, given, force=force).config))
    return _in_use(variant)


def legal_configs(variant: Variant, configs: Sequence[Config]) -> list[Config]:
    """Return those that are legal, in full. Raises ``exc.NoConfigFound`` if none is."""
    legal, refusals = [], []
    for config in configs:
        try:
            legal.append(variant.analysis.space.worth_compiling(config))
        except exc.InvalidConfig as error:
            refusals.append(str(error))
    if refusals and not legal:
        raise exc.NoConfigFound(kernel=variant.kernel.name, reason="; ".join(refusals))
    return list(dict.fromkeys(legal))


def tune_together(
    sets: Sequence[tuple[Variant, Sequence[Any]]],
    options: Options,
    aggregation: str,
    relative_to: str | None,
    cache_tag: str | None,
    force: bool,
) -> Config:
    """Choose one config for several variants with their arguments; see ``Kernel.autotune_multi``."""
    first, args = sets[0]
    on_gpu = any(isinstance(a, torch.Tensor) and a.device.type == "cuda" for a in args)
    if options.effort == "none" or not (on_gpu or options.simulated):
        config = first.specialized.default_config
    else:
        pairs = [(variant.specialized, values) for variant, values in sets]
        config = several.tuned_for_all(pairs, options, aggregation, relative_to, cache_tag, force)
    for variant, _ in sets:
        variant.use(variant.full(config))
    return config


def _in_use(variant: Variant) -> Config:
    assert variant.config is not None
    return variant.config


__all__ = ["autotune", "legal_configs", "search", "tune_together"]
