"""The page of a log: one self-contained file."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..._support.pages import rendered
from ...config import Config
from .history import History

#: Number of configs in the table of the fastest.
_FASTEST = 10


def page(histories: Sequence[History], pictures: Sequence[Mapping[str, bytes]]) -> str:
    """Format the HTML of searches, with pictures (PNGs by caption) of each."""
    searches = [_search(history, shown) for history, shown in zip(histories, pictures, strict=True)]
    return rendered("autotuner/report/page.html", searches=searches)


def _search(history: History, pictures: Mapping[str, bytes]) -> dict[str, Any]:
    """Return what the template shows of a search."""
    counts = ", ".join(f"{count} {status}" for status, count in history.counts().items()) or "none"
    return {
        "name": history.name,
        "effort": history.effort,
        "tried": f"{len(history.steps)} configs: {counts}.",
        **_answer(history),
        "pictures": [(caption, base64.b64encode(png).decode()) for caption, png in pictures.items()],
        "fastest": list(_fastest(history)),
        "matters": list(_matters(history)),
    }


def _answer(history: History) -> dict[str, str]:
    """Return the time of the config that was found, the reason of the end, and the config; empty if none was found."""
    end = history.end
    if end is None:
        return {"answer": "", "why": "", "config": ""}
    best, untuned = end.get("microseconds"), end.get("baseline_microseconds")
    gain = f", {untuned / best:.2f} times as fast as the seed ({untuned:.2f} µs)" if best and untuned else ""
    return {
        "answer": f"{best:.2f} µs{gain}" if best else "no time was measured",
        "why": str(end.get("why", "")),
        "config": str(end.get("decorator") or repr(Config.from_dict(end["config"]))),
    }


def _fastest(history: History) -> Iterator[tuple[str, ...]]:
    for step in sorted(history.working, key=lambda step: step.outcome.time)[:_FASTEST]:
        yield f"{step.outcome.time:.2f}", f"{step.seconds:.1f}", _changed(step.outcome.config, history)


def _changed(config: Mapping[str, Any], history: History) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in history.changed(config).items()) or "the seed"


def _matters(history: History) -> Iterator[tuple[str, ...]]:
    for each in history.matters():
        values = ", ".join(f"{value}: {ratio:.2f} ({count})" for value, ratio, count in each.values[:6])
        yield f"{each.ratio:.2f}", each.key, values
