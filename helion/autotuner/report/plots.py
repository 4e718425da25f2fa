"""Pictures of a search, as PNGs. Needs matplotlib (the extra ``plot``)."""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from typing import Any

from ..outcome import Status
from .history import History

#: Keys that are shown.
_KEYS = 8
#: Ratio of the largest to the least time up to which the scale is linear.
_LINEAR = 4.0


def _axes(title: str, x: str, y: str, height: float) -> tuple[Any, Any]:
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(8.0, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=x, ylabel=y)
    return figure, axes


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def trajectory(history: History) -> bytes:
    """Plot times of all configs over the seconds of the search, the best so far, and the seed."""
    figure, axes = _axes(history.name, "seconds", "microseconds", 4.0)
    working = history.working
    axes.plot([s.seconds for s in working], [s.outcome.time for s in working], ".", color="tab:gray", label="tried")
    best = history.trajectory()
    if best:
        last = max(step.seconds for step in history.steps)
        axes.step(
            [*(x for x, _ in best), last], [*(y for _, y in best), best[-1][1]], where="post", label="best so far"
        )
        _scaled(axes, [step.outcome.time for step in working])
    failed = [s.seconds for s in history.steps if s.outcome.status not in (Status.OK, Status.PRUNED)]
    if failed:
        top = axes.get_ylim()[1]
        axes.plot(failed, [top] * len(failed), "x", color="tab:red", label="failed", clip_on=False)
    untuned = None if history.end is None else history.end.get("baseline_microseconds")
    if untuned is not None:
        axes.axhline(untuned, color="tab:orange", linestyle="--", label="seed")
    axes.legend()
    return _png(figure)


def _scaled(axes: Any, times: Sequence[float]) -> None:
    """Set a logarithmic scale with plain numbers if times differ much."""
    if max(times) > _LINEAR * min(times):
        ticker = importlib.import_module("matplotlib.ticker")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")


def matters(history: History) -> bytes:
    """Plot the effect of each key on times."""
    shown = history.matters()[:_KEYS][::-1]
    figure, axes = _axes("Worst value over best value", "ratio of mean times", "", 1.5 + 0.35 * len(shown))
    axes.barh([each.key for each in shown], [each.ratio - 1 for each in shown], left=1.0)
    return _png(figure)
