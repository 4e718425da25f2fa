"""Results that are known when the host code runs."""

from __future__ import annotations

from typing import Any

from .... import exc
from ...._shapes import Expr
from ..host import tensors as host_tensors
from ..purity import acts
from ..runtime_values import SAMPLES, Opaque, containers_in, is_runtime, numbers_in, settle
from ..walk.scope import Scope


def try_settle(s: Scope, values: Any) -> Any:
    """Return values with plain numbers, which become part of the key; None if some are known at run time only."""
    if any(is_runtime(s.t, number) for number in numbers_in(values)):
        return None
    return settle(s.t, values)


def runtime_number(s: Scope, kind: type, wide: bool = False) -> Expr:
    """Return a symbol for a number that the expression has at run time."""
    if s.t.on_device:
        raise exc.KnownAtRunTime(what=f"`{s.source_text()}`", because="")
    return host_tensors.number(s.t, 2**40 if wide and kind is int else SAMPLES[kind])


def unknown(s: Scope, function: Any, values: Any, because: Exception | None = None) -> Opaque:
    """Return the result of a call at run time as opaque; the call may change the containers among its arguments.

    A call that torch refuses for its arguments has no result at run time either: its error stays as it is.
    """
    if s.t.on_device:
        raise exc.KnownAtRunTime(what=f"`{s.source_text()}`", because="")
    s.t.world.effects += 1
    s.t.world.acts |= acts(function)
    if isinstance(because, exc.TorchOpTracingError):
        error: exc.Base = because
    else:
        reason = "" if because is None else f" ({_first_line(because)})"
        error = exc.KnownAtRunTime(what=f"`{s.source_text()}`", because=reason)
    error.at(None if s.node is None else s.frame.source.location(s.node))
    result = Opaque(error)
    for key, container in containers_in(values).items():
        s.t.world.poisoned[key] = (container, result)
    return result


def number_method(
    s: Scope, value: Expr, name: str, kind: type | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return ``value.name(...)`` of the number that a symbolic one represents."""
    settled = try_settle(s, (value, args, kwargs))
    if settled is not None:
        return getattr(settled[0], name)(*settled[1], **settled[2])
    if kind in SAMPLES:
        return runtime_number(s, kind)
    return unknown(s, name, ())


def _first_line(error: Exception) -> str:
    text = error.message if isinstance(error, exc.Base) else f"{type(error).__name__}: {error}"
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__
