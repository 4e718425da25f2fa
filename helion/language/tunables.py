"""Values that the config decides."""

from __future__ import annotations

from typing import Any

from .. import exc
from ..fields import Fragment
from ._reference import current
from ._registry import declare, reference


@declare("host")
def register_tunable(name: str, fragment: Any) -> Any:
    """A number of the kernel's own that becomes a config key ``name``, with the values of ``fragment``.

    ``fragment`` is one of ``helion.autotuner``'s: ``PowerOfTwoFragment``, ``IntegerFragment``, ``EnumFragment`` of
    numbers, ``BooleanFragment``. Raises ``exc.TunableNameConflict`` for a name that is a config key already,
    ``exc.RegisterTunableArgTypes`` for anything but a string and a fragment.
    """


@reference(register_tunable, "raw")
def _register_tunable(name: str, fragment: Any) -> Any:
    """The value of the kernel's only config, or else the fragment's default."""
    if not isinstance(name, str) or not isinstance(fragment, Fragment):
        raise exc.RegisterTunableArgTypes(got=f"{name!r} and {fragment!r}")
    config = current().config
    value = config[name] if config is not None and name in config else fragment.default()
    if not isinstance(value, (int, float)):
        raise exc.TunableTypeNotSupported(name=name, got=type(value).__name__)
    return value
