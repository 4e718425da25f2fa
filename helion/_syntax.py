"""Parsing Python source from several threads."""

from __future__ import annotations

import ast

from ._locks import new_lock

_LOCK = new_lock()
_ATTEMPTS = 8


def parse(text: str) -> ast.Module:
    """``ast.parse`` that works in threads.

    Python 3.11 keeps the recursion depth of the conversion in shared state: a parse that another thread interrupts
    fails with "AST constructor recursion depth mismatch". The lock keeps our own threads apart; for anyone else's a
    second attempt succeeds.

    Raises:
        SyntaxError: ``text`` is not Python.
    """
    with _LOCK:
        for _ in range(_ATTEMPTS - 1):
            try:
                return ast.parse(text)
            except SystemError:
                continue
        return ast.parse(text)
