"""Failures made small: keys of the config at their defaults, then operations, options and sizes of the kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .cases import Draft
from .families import BY_NAME

#: Sizes to try for a dimension, smallest first.
SIZES = (1, 2, 3, 5, 8, 16, 17, 32, 33, 64, 65, 128)
MOST_TRIALS = 150


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A pair that fails, with the kind of its outcome. ``trials`` is the number of pairs run to shrink it."""

    draft: Draft
    backend: str
    config: Mapping[str, Any]
    kind: str
    detail: str = ""
    trials: int = 0


#: Function that runs a draft under a config adapted to it; returns kind, detail, and the full config.
Trial = Callable[[Draft, str, Mapping[str, Any]], tuple[str, str, Mapping[str, Any]]]


class Shrinker:
    """Shrinker that keeps each change after which the pair still fails in the same way, as long as time allows."""

    def __init__(self, failure: Failure, trial: Trial, deadline: float) -> None:
        self.best, self.trial, self.deadline = failure, trial, deadline

    def run(self, defaults: Mapping[str, Any]) -> Failure:
        """Return the smallest failure found; ``defaults`` is the default config of the kernel."""
        before = None
        while before != (self.best.draft, self.best.config) and self._goes_on():
            before = (self.best.draft, self.best.config)
            self._config(defaults)
            self._kernel()
        return self.best

    def _goes_on(self) -> bool:
        return self.best.trials < MOST_TRIALS and time.monotonic() < self.deadline

    def _try(self, draft: Draft, config: Mapping[str, Any]) -> bool:
        if not self._goes_on():
            return False
        kind, detail, full = self.trial(draft, self.best.backend, config)
        self.best = replace(self.best, trials=self.best.trials + 1)
        if kind != self.best.kind:
            return False
        self.best = replace(self.best, draft=draft, config=dict(full), detail=detail)
        return True

    def _config(self, defaults: Mapping[str, Any]) -> None:
        changed = [key for key, value in self.best.config.items() if key in defaults and value != defaults[key]]
        if changed and self._try(self.best.draft, {**self.best.config, **{key: defaults[key] for key in changed}}):
            return
        for key in changed:
            simpler = {**self.best.config, key: defaults[key]}
            if simpler != self.best.config and not self._try(self.best.draft, simpler):
                self._entries(key, defaults[key])

    def _entries(self, key: str, default: Any) -> None:
        """Try single entries of a list at their defaults."""
        value = self.best.config.get(key)
        if not isinstance(value, list) or not isinstance(default, list) or len(value) != len(default) < 2:
            return
        for at, simple in enumerate(default):
            now = list(self.best.config[key])
            if at < len(now) and now[at] != simple:
                self._try(self.best.draft, {**self.best.config, key: [*now[:at], simple, *now[at + 1 :]]})

    def _kernel(self) -> None:
        for change in (_without_steps, _simpler, _smaller):
            progress = True
            while progress and self._goes_on():
                progress = any(self._try(draft, self.best.config) for draft in change(self.best.draft))


def smaller(draft: Draft) -> Iterator[Draft]:
    """Yield every draft that one change makes smaller."""
    for change in (_without_steps, _simpler, _smaller):
        yield from change(draft)


def _without_steps(draft: Draft) -> Iterator[Draft]:
    if len(draft.steps) > 1:
        yield replace(draft, steps=())
        yield replace(draft, steps=draft.steps[len(draft.steps) // 2 :])
        yield replace(draft, steps=draft.steps[: len(draft.steps) // 2])
    for at in range(len(draft.steps)):
        yield replace(draft, steps=(*draft.steps[:at], *draft.steps[at + 1 :]))


def _simpler(draft: Draft) -> Iterator[Draft]:
    simplest = BY_NAME[draft.family].simplest
    for key, value in draft.options.items():
        simple = simplest.get(key, simplest.get(key.rstrip("0123456789"), value))
        if simple != value:
            yield replace(draft, options={**draft.options, key: simple})


def _smaller(draft: Draft) -> Iterator[Draft]:
    for key, size in draft.sizes.items():
        for smaller in (each for each in SIZES if each < size):
            yield replace(draft, sizes={**draft.sizes, key: smaller})
