"""Values that the config decides."""

from __future__ import annotations

from typing import Any

from ._registry import declare


@declare("host")
def register_tunable(name: str, fragment: Any) -> Any:
    """A number of the kernel's own that becomes a config key ``name``, with the values of ``fragment``.

    ``fragment`` is one of ``helion.autotuner``'s: ``PowerOfTwoFragment``, ``IntegerFragment``, ``EnumFragment`` of
    numbers, ``BooleanFragment``. Raises ``exc.TunableNameConflict`` for a name that is a config key already,
    ``exc.RegisterTunableArgTypes`` for anything but a string and a fragment.
    """
