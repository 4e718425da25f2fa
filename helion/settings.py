"""``helion.Settings``: options of a kernel that do not change with the config."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Callable, Mapping
from typing import Any

from . import _compatibility, exc, knobs

_PRECISION_ALIASES = {"default": "tf32", "high": "tf32x3", "highest": "ieee"}
_LISTENERS: list[Callable[[], None]] = []


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` whenever a field of some ``Settings`` is assigned."""
    _LISTENERS.append(listener)


class RefMode(enum.Enum):
    """Choice between compiling a kernel (``OFF``) and running its Python function eagerly (``EAGER``)."""

    OFF = "off"
    EAGER = "eager"


def _defaults() -> dict[str, Any]:
    return {**{name: knob.default for name, knob in knobs.SETTINGS.items()}, **dict.fromkeys(_OBJECT_FIELDS)}


def _settled(name: str, value: Any) -> Any:
    """Convert a value to the form that the field keeps. Raises TypeError or ValueError for an illegal value."""
    if name in _FORMS:
        return _FORMS[name](value)
    knob = knobs.SETTINGS.get(name)
    if knob is not None and not knob.accepts(value):
        kind = ValueError if isinstance(value, str) and isinstance(knob.default, str) else TypeError
        raise kind(f"{name} must be {knob.expected}, got {value!r}.")
    if name == "persistent_reserved_sms" and value < 0:
        raise ValueError(f"{name} must be 0 or more, got {value!r}.")
    return value


def _dot_precision(value: Any) -> str:
    precision = _PRECISION_ALIASES.get(value, value) if isinstance(value, str) else value
    if not isinstance(precision, str) or precision not in ("tf32", "tf32x3", "ieee"):
        raise ValueError(f"dot_precision must be tf32, tf32x3 or ieee, got {value!r}.")
    return precision


def _index_dtype(value: Any) -> Any:
    if value not in (None, "auto") and str(value).removeprefix("torch.") not in ("int32", "int64"):
        raise ValueError(f"index_dtype must be torch.int32, torch.int64 or None, got {value!r}.")
    return value


def _ref_mode(value: Any) -> RefMode:
    if not isinstance(value, RefMode):
        raise ValueError(f"ref_mode must be helion.RefMode.OFF or EAGER, got {value!r}.")
    return value


def _ignore_warnings(value: Any) -> tuple[str, ...]:
    items = () if value is None else value
    if not isinstance(items, (list, tuple, set, frozenset)) or not all(isinstance(i, (str, type)) for i in items):
        raise TypeError(f"ignore_warnings must be a list of names or classes of warnings, got {value!r}.")
    return tuple(item if isinstance(item, str) else item.__name__ for item in items)


def _size_hints(value: Any) -> tuple[int, ...]:
    items = value if isinstance(value, (list, tuple)) else (None,)
    if not all(isinstance(item, int) and not isinstance(item, bool) and item > 0 for item in items):
        raise TypeError(f"size_hints must be a tuple of sizes above 0, got {value!r}.")
    if list(items) != sorted(set(items)):
        raise ValueError(f"size_hints must ascend, got {value!r}.")
    return tuple(items)


def _function(name: str) -> Callable[[Any], Any]:
    def form(value: Any) -> Any:
        if value is not None and not callable(value):
            raise TypeError(f"{name} must be a function or None, got {value!r}.")
        return value

    return form


def _tolerance(name: str) -> Callable[[Any], Any]:
    def form(value: Any) -> Any:
        if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0):
            raise TypeError(f"{name} must be a number that is not negative or None, got {value!r}.")
        return value

    return form


def _seed_configs(value: Any) -> Any:
    items = value if isinstance(value, (list, tuple)) else () if value is None else (value,)
    if not all(isinstance(item, Mapping) for item in items):
        raise TypeError(f"autotune_seed_configs must be a config, a list of them or None, got {value!r}.")
    return value


#: Fields that take objects, which an environment variable cannot express. None is the default of all.
_OBJECT_FIELDS: dict[str, Callable[[Any], Any]] = {
    **{
        name: _function(name)
        for name in (
            "autotune_baseline_fn",
            "autotune_baseline_accuracy_check_fn",
            "autotune_config_filter",
            "autotune_benchmark_fn",
            "autotuner_fn",
        )
    },
    **{name: _tolerance(name) for name in ("autotune_baseline_atol", "autotune_baseline_rtol")},
    "autotune_seed_configs": _seed_configs,
}
#: Fields without an environment variable of their own name, and their meaning.
DOCS: Mapping[str, str] = {
    "ref_mode": "`helion.RefMode.EAGER` runs the Python function itself instead of compiling it; HELION_INTERPRET=1 makes that the default",
    "autotune_baseline_fn": "function that results of candidates are compared with",
    "autotune_baseline_accuracy_check_fn": "`f(result, expected)` raises AssertionError where they differ; candidates then run in this process",
    "autotune_config_filter": "`f(config)` returns True or False to accept or drop a candidate, or a config to try instead; None drops it",
    "autotune_benchmark_fn": "`f(functions, repeat=, desc=)` returns the milliseconds of each function; candidates then run in this process",
    "autotuner_fn": "called with the bound kernel and the arguments; returns an object whose `autotune()` returns the config",
    "autotune_baseline_atol": "absolute tolerance of that comparison",
    "autotune_baseline_rtol": "relative tolerance of that comparison",
    "autotune_seed_configs": "configs that a search begins with",
}
#: Fields whose values have other forms too.
_FORMS: dict[str, Callable[[Any], Any]] = {
    "dot_precision": _dot_precision,
    "index_dtype": _index_dtype,
    "ref_mode": _ref_mode,
    "ignore_warnings": _ignore_warnings,
    "size_hints": _size_hints,
    **_OBJECT_FIELDS,
}


class Settings:
    """Options of one kernel, given by keyword; each left out takes its environment variable, then its default.

    The environment is read when the object is made, that is, when the decorator runs. A field that has no effect warns
    once when it is set to another value than its default (``exc.SettingHasNoEffect``).

    Args:
        fields: settings by name; they are attributes of the object.

    Raises:
        TypeError: an unknown field, or a value of another type.
        ValueError: a value that the field cannot have; also one of an environment variable.
        AttributeError: an unknown field is assigned.
    """

    def __init__(self, **fields: Any) -> None:
        values: dict[str, Any] = {name: knob.read() for name, knob in knobs.SETTINGS.items()}
        values.update(dict.fromkeys(_OBJECT_FIELDS))
        values["ref_mode"] = RefMode.EAGER if knobs.INTERPRET.read() else RefMode.OFF
        if unknown := sorted(set(fields) - set(values)):
            if why := _compatibility.REFUSED.get(unknown[0]):
                raise TypeError(f"The setting {unknown[0]!r} is not supported: {why}.")
            close = difflib.get_close_matches(unknown[0], values, 1)
            meant = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(values))}."
            raise TypeError(f"Unknown setting {', '.join(map(repr, unknown))}; {meant}")
        values.update(fields)
        for name in (*fields, *_FORMS):
            values[name] = _settled(name, values[name])
        if values["ref_mode"] is RefMode.EAGER:
            if knobs.INTERPRET.read() and knobs.TRITON_INTERPRET.read():
                raise exc.IncompatibleInterpretModes()
            if values["print_output_code"]:
                raise exc.RefEagerModeCodePrintError()
        _compatibility.announce(values, _defaults(), values["ignore_warnings"])
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__:
            raise AttributeError(f"Settings has no field {name!r}")
        value = _settled(name, value)
        _compatibility.announce({name: value}, _defaults(), self.__dict__["ignore_warnings"])
        object.__setattr__(self, name, value)
        for listener in _LISTENERS:
            listener()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Settings has no field {name!r}")

    @property
    def index_dtype_name(self) -> str:
        """The dtype of offsets by name: ``"int32"``, ``"int64"`` or ``"auto"``."""
        name = self.__dict__["index_dtype"]
        return "auto" if name is None else str(name).removeprefix("torch.")

    def check_autotuning_disabled(self) -> None:
        """Refuse to tune where the environment forbids it.

        Raises:
            exc.AutotuningDisallowedInEnvironment: ``HELION_DISALLOW_AUTOTUNING`` is set.
        """
        if knobs.DISALLOW_AUTOTUNING.read():
            raise exc.AutotuningDisallowedInEnvironment()

    def get_rebenchmark_threshold(self) -> float:
        """Return the ratio to the best time within which candidates are timed again; 1.15 unless it is set."""
        threshold = self.__dict__["autotune_rebenchmark_threshold"]
        return 1.15 if threshold is None else threshold

    def to_dict(self) -> dict[str, Any]:
        """Return a copy as a dict from names to values."""
        return dict(self.__dict__)

    def __repr__(self) -> str:
        return f"helion.Settings({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"
