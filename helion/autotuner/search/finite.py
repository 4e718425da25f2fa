"""Every config of a list, in its order."""

from __future__ import annotations

from collections.abc import Sequence

from ...config import Config
from ..outcome import Outcome


class FiniteSearch:
    """Search that returns each of ``configs`` once."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self._left = list(dict.fromkeys(configs))

    def ask(self, count: int) -> Sequence[Config]:
        given, self._left = self._left[:count], self._left[count:]
        return given

    def tell(self, outcome: Outcome) -> None:
        pass
