"""How ``hl`` functions are declared: signature and documentation here, meaning in the compiler's front end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from .. import exc

Where = Literal["host", "device", "both", "loop"]
_F = TypeVar("_F", bound=Callable[..., Any])

#: Every declared function and where it may be called.
DECLARED: dict[Any, Where] = {}


def declare(where: Where) -> Callable[[_F], _F]:
    """Declare a function of the language. Called outside of a kernel it raises ``exc.NotInsideKernel``.

    ``where`` is ``host`` (before the device loops), ``device`` (inside them), ``both``, or ``loop`` (only as the
    iterable of a for statement).
    """

    def wrap(fn: _F) -> _F:
        @functools.wraps(fn)
        def outside(*args: Any, **kwargs: Any) -> Any:
            raise exc.NotInsideKernel(name=f"hl.{fn.__name__}")

        DECLARED[outside] = where
        return outside  # type: ignore[return-value]

    return wrap
