"""Declarations of ``hl`` functions.

A declaration has the signature and the documentation, and an eager reference next to it (see ``_reference``). The
compiler's front end gives it a meaning.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from .. import exc
from ._reference.session import ACTIVE
from ._reference.session import reference as reference

Where = Literal["host", "device", "both", "loop"]
_F = TypeVar("_F", bound=Callable[..., Any])

#: Every declared function and where it may be called.
DECLARED: dict[Any, Where] = {}
#: Those of them whose first argument is a function, or the name of a global that holds one.
TAKES_FUNCTION: set[Any] = set()


def declare(where: Where, *, takes_function: bool = False) -> Callable[[_F], _F]:
    """Declare a function of the language. Called outside of a kernel it raises ``exc.NotInsideKernel``; in a kernel
    that runs eagerly it calls its reference.

    ``where`` is ``host`` (before the device loops), ``device`` (inside them), ``both``, or ``loop`` (only as the
    iterable of a for statement). ``takes_function``: its first argument is a function, or the name of a global that
    holds one.
    """

    def wrap(fn: _F) -> _F:
        @functools.wraps(fn)
        def outside(*args: Any, **kwargs: Any) -> Any:
            session = ACTIVE.get()
            if session is None:
                raise exc.NotInsideKernel(name=f"hl.{fn.__qualname__}")
            return session.call_declared(outside, where, args, kwargs)

        DECLARED[outside] = where
        if takes_function:
            TAKES_FUNCTION.add(outside)
        return outside  # type: ignore[return-value]

    return wrap
