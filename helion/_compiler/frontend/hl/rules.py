"""All rules for functions of ``hl``, by function."""

from __future__ import annotations

from typing import Any

from .... import exc
from ....language._registry import DECLARED
from ..rules import Rule, union
from ..tracer import Tracer
from . import escape, functions, quantized, random, remote, remote_copies, stack

HL_RULES = union(
    functions.RULES, escape.RULES, quantized.RULES, random.RULES, remote.RULES, remote_copies.RULES, stack.RULES
)


def _of_backend(function: Any) -> Rule:
    """Return a rule that calls the backend's rule for a function, or refuses it if the backend has none."""

    def call(t: Tracer, *args: Any, **kwargs: Any) -> Any:
        rule = t.context.rules.get(function)
        if rule is None:
            raise exc.BackendUnsupported(what=f"hl.{function.__name__}", backend=t.context.limits.backend, remedy="")
        return rule(t, *args, **kwargs)

    return call


for _function, _where in DECLARED.items():
    if _where != "loop" and _function not in HL_RULES:
        HL_RULES.add(_function, _of_backend(_function))
