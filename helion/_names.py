"""Names that generated code contains, and the rule that keeps the user's names away from them."""

from __future__ import annotations

import builtins
import keyword
import re

#: Modules and helpers that a generated module binds at its top level.
RESERVED = frozenset(
    (
        "torch",
        "triton",
        "tl",
        "libdevice",
        "_launcher",
        "_default_launcher",
        "_source_module",
        "_NUM_SM",
        "_helion_runtime",
    )
)
#: Names every generated module imports under the name users give them, too: a global bound to that very module is fine.
SHARED_MODULES = {"torch": "torch", "triton": "triton", "tl": "triton.language"}

_IDENTIFIER = re.compile(r"[^0-9a-zA-Z_]+")


def identifier(text: str, default: str = "v") -> str:
    """``text`` as a Python identifier: runs of other characters become one underscore."""
    name = _IDENTIFIER.sub("_", text).strip("_") or default
    if name[0].isdigit() or keyword.iskeyword(name):
        name = f"_{name}"
    return name


class NameSpace:
    """Hands out distinct identifiers. The first taker of a name gets it bare, later ones get ``_1``, ``_2`` ..."""

    def __init__(self, taken: frozenset[str] = RESERVED) -> None:
        # a variable called `sum` is legal, but not pleasant to read
        self._taken = {*taken, *dir(builtins)}
        self._next: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        name = base = identifier(base)
        while name in self._taken:
            count = self._next.get(base, 0) + 1
            self._next[base] = count
            name = f"{base}_{count}"
        self._taken.add(name)
        return name
