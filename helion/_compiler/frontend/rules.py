"""Tables of rules, which record the ops of a function during a trace. Each function has one rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Called with the tracer and the call's arguments.
Rule = Callable[..., Any]


class Rules(dict[Any, Rule]):
    """Rules by the function that a kernel calls."""

    def register(self, *functions: Any) -> Callable[[Rule], Rule]:
        """Use the decorated rule for ``functions``."""

        def add(rule: Rule) -> Rule:
            for function in functions:
                self.add(function, rule)
            return rule

        return add

    def add(self, function: Any, rule: Rule) -> None:
        """Add a rule. Raises ``ValueError`` for a function that already has one."""
        if self.setdefault(function, rule) is not rule:
            raise ValueError(f"{function!r} has two rules")


def union(*tables: Mapping[Any, Rule]) -> Rules:
    """Return all rules of tables that have no function in common."""
    found = Rules()
    for table in tables:
        for function, rule in table.items():
            found.add(function, rule)
    return found
