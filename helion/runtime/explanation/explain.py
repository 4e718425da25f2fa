"""The forms of an explanation."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ... import exc
from ..._support.lazy import lazy
from ..specialization.compiled import Compiled
from .collect import collect
from .text import render_facts, render_text

if TYPE_CHECKING:
    from . import assembled, page
else:
    assembled = lazy("helion.runtime.explanation.assembled")
    page = lazy("helion.runtime.explanation.page")

_FORMS: dict[str, Callable[[Compiled], str]] = {
    "text": lambda compiled: render_text(collect(compiled)),
    "facts": lambda compiled: render_facts(collect(compiled)),
    "json": lambda compiled: json.dumps(collect(compiled), indent=2),
    "assembly": lambda compiled: assembled.render_assembled(compiled),
    "html": lambda compiled: page.page(compiled, collect(compiled)),
}


def explain(compiled: Compiled, format: str) -> str:
    """Return the text of ``BoundKernel.explain``. Raises ``exc.InvalidAPIUsage`` for an unknown format."""
    if format not in _FORMS:
        known: Any = ", ".join(map(repr, _FORMS))
        raise exc.InvalidAPIUsage(f"explain takes one of the formats {known}; got {format!r}.")
    return _FORMS[format](compiled)
