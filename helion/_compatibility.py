"""Names of the public API without an implementation here, so that kernels written for it run unchanged.

Settings without effect warn once when they are set. Settings that would change results are refused with a reason. Some
errors are never raised but may be named in an ``except``.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any

from . import exc

_NO_SEARCH = "the search has no such option; kernel.autotune() names those it has"

#: Settings without effect, and the reason.
SETTINGS: Mapping[str, str] = {
    "fast_math": "no approximate functions are generated",
    "debug_dtype_asserts": "generated code asserts no dtypes; HELION_VERIFY=1 checks them in the device IR",
    "triton_do_not_specialize": "Triton specializes integer arguments as it does by itself",
    "distributed": "configs follow from arguments and GPU, so that equal ranks have equal ones",
    **dict.fromkeys(
        (
            "autotune_force_persistent",
            "autotune_log_level",
            "autotune_log_details",
            "autotune_precompile",
            "autotune_suspicious_rebenchmark_ratio",
            "autotune_log_search_space",
            "autotune_ignore_errors",
            "autotune_cache",
            "autotune_search_acf",
            "autotune_initial_population_strategy",
            "autotune_best_available_max_configs",
            "autotune_best_available_max_cache_scan",
        ),
        _NO_SEARCH,
    ),
}

#: Settings of the public API that are refused, and the reason: code that sets them relies on their effect.
REFUSED: Mapping[str, str] = {
    "autotune_with_torch_compile_fusion": "kernels with fused neighbors are tuned like others, by autotune_effort",
}

#: Classes of ``helion.exc`` that are never raised, nor any class derived from them.
ERRORS = frozenset(
    {
        "AssignmentMultipleTargets",
        "AutodiffKernelNotCalled",
        "BackendImplementationMissing",
        "BarrierRequiresPersistent",
        "CantReadOnDevice",
        "MissingEnableTile",
        "MultipleReductionDims",
        "NestedDeviceLoopsConflict",
        "NotEnoughConfigs",
        "ProcessGroupNameNotFound",
        "ReductionDimInvalidForShape",
        "ReductionOnNonTile",
        "TensorOperationsInHostCall",
        "TopLevelStatementBetweenLoops",
        "TracedArgNotSupported",
        "TritonUnrecoverableRuntimeError",
        "WrongDevice",
    }
)

_said: set[str] = set()


def announce(values: Mapping[str, Any], defaults: Mapping[str, Any], ignored: Collection[str]) -> None:
    """Warn on stderr, once per process and setting, about ``values`` that differ from their default but have no effect.

    ``ignored`` are names of warnings that are not wanted.
    """
    if exc.SettingHasNoEffect.__name__ in ignored:
        return
    for name, why in SETTINGS.items():
        if name in values and name not in _said and values[name] != defaults[name]:
            _said.add(name)
            warning = exc.SettingHasNoEffect(name=name, value=values[name], why=why)
            print(f"WARNING[{type(warning).__name__}]: {warning}", file=sys.stderr)
