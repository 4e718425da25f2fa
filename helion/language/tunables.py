"""Values that the config decides."""

from __future__ import annotations

from typing import Any

from .. import exc
from ..fields import Fragment
from ._reference.session import current
from ._registry import declare, reference


@declare("host")
def register_tunable(name: str, fragment: Any) -> Any:
    """Add a user-defined number to the kernel's configs.

    Args:
        name: the config key, a string literal.
        fragment: the values it may have: ``PowerOfTwoFragment``, ``IntegerFragment``, ``BooleanFragment`` of
            ``helion.autotuner``, or an ``EnumFragment`` of numbers.

    Returns:
        The number that the config gives: an int, a float or a bool.

    Raises:
        exc.TunableNameConflict: ``name`` is a config key of the public API, or another tunable.
        exc.RegisterTunableArgTypes: anything but a string and a fragment.
        exc.TunableTypeNotSupported: the values are not numbers.

    Example::

        from helion.autotuner import PowerOfTwoFragment

        @helion.kernel
        def double(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            size = hl.register_tunable("size", PowerOfTwoFragment(16, 256, 64))
            for tile in hl.tile(x.size(0), block_size=size):
                out[tile] = x[tile] * 2
            return out

        double(torch.ones(100))
    """


@reference(register_tunable, "raw")
def _register_tunable(name: str, fragment: Any) -> Any:
    """Return the value of the kernel's only config, or else the fragment's default."""
    if not isinstance(name, str) or not isinstance(fragment, Fragment):
        raise exc.RegisterTunableArgTypes(got=f"{name!r} and {fragment!r}")
    config = current().config
    value = config[name] if config is not None and name in config else fragment.default()
    if not isinstance(value, (int, float)):
        raise exc.TunableTypeNotSupported(name=name, got=type(value).__name__)
    return value
