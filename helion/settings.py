"""``helion.Settings``: options of a kernel that do not change with the config."""

from __future__ import annotations

import enum
from typing import Any

from . import exc, knobs

_PRECISION_ALIASES = {"default": "tf32", "high": "tf32x3", "highest": "ieee"}
#: Fields that take objects, which no environment variable can spell.
_OBJECT_FIELDS: dict[str, Any] = {
    "autotune_baseline_fn": None,
    "autotune_baseline_atol": None,
    "autotune_baseline_rtol": None,
    "autotune_baseline_accuracy_check_fn": None,
    "autotune_seed_configs": None,
    "autotune_config_filter": None,
    "autotune_benchmark_fn": None,
    "autotuner_fn": None,
}


class RefMode(enum.Enum):
    """Whether a kernel is compiled (``OFF``) or its Python function runs eagerly (``EAGER``)."""

    OFF = "off"
    EAGER = "eager"


class Settings:
    """Options of one kernel, given by keyword; each left out takes its environment variable, then its default.

    ``helion.knobs.SETTINGS`` is the table of fields. Unknown fields raise TypeError. The environment is read when
    the object is made, i.e. when the decorator runs.
    """

    def __init__(self, **fields: Any) -> None:
        values: dict[str, Any] = {name: knob.read() for name, knob in knobs.SETTINGS.items()}
        values.update(_OBJECT_FIELDS)
        values["ref_mode"] = RefMode.EAGER if knobs.INTERPRET.read() else RefMode.OFF
        if unknown := sorted(set(fields) - set(values)):
            raise TypeError(f"Unknown setting {', '.join(map(repr, unknown))}; known are {', '.join(sorted(values))}.")
        values.update(fields)
        values["dot_precision"] = _PRECISION_ALIASES.get(values["dot_precision"], values["dot_precision"])
        if values["dot_precision"] not in ("tf32", "tf32x3", "ieee"):
            raise ValueError(f"dot_precision must be tf32, tf32x3 or ieee, got {values['dot_precision']!r}.")
        if values["index_dtype"] not in (None, "auto") and str(values["index_dtype"]).removeprefix("torch.") not in (
            "int32",
            "int64",
        ):
            raise ValueError(f"index_dtype must be torch.int32, torch.int64 or None, got {values['index_dtype']!r}.")
        if not isinstance(values["ref_mode"], RefMode):
            raise ValueError(f"ref_mode must be helion.RefMode.OFF or EAGER, got {values['ref_mode']!r}.")
        if values["ref_mode"] is RefMode.EAGER:
            if knobs.INTERPRET.read() and knobs.TRITON_INTERPRET.read():
                raise exc.IncompatibleInterpretModes()
            if values["print_output_code"]:
                raise exc.RefEagerModeCodePrintError()
        values["ignore_warnings"] = tuple(
            w if isinstance(w, str) else w.__name__ for w in (values["ignore_warnings"] or ())
        )
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Settings has no field {name!r}")

    @property
    def index_dtype_name(self) -> str:
        """``"int32"``, ``"int64"`` or ``"auto"``."""
        name = self.__dict__["index_dtype"]
        return "auto" if name is None else str(name).removeprefix("torch.")

    def check_autotuning_disabled(self) -> None:
        """Raises ``exc.AutotuningDisallowedInEnvironment`` when ``HELION_DISALLOW_AUTOTUNING`` is set."""
        if knobs.DISALLOW_AUTOTUNING.read():
            raise exc.AutotuningDisallowedInEnvironment()

    def get_rebenchmark_threshold(self) -> float:
        """The ratio to the best time within which candidates are timed again; 1.5 unless it is set."""
        threshold = self.__dict__["autotune_rebenchmark_threshold"]
        return 1.5 if threshold is None else threshold

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __repr__(self) -> str:
        return f"helion.Settings({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"
