"""The page of a log: one self-contained file."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...config import Config
from .history import History

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: .2rem .8rem; border-bottom: 1px solid #ddd; }
th { text-align: left; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; } img { max-width: 100%; }
"""
#: Number of configs in the table of the fastest.
_FASTEST = 10


def page(histories: Sequence[History], pictures: Sequence[Mapping[str, bytes]]) -> str:
    """Format the HTML of searches, with pictures (PNGs by caption) of each."""
    parts = [_search(history, shown) for history, shown in zip(histories, pictures, strict=True)]
    body = "\n".join(parts) or "<p>The log has no search.</p>"
    return (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>Tuning</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>Tuning</h1>\n{body}\n</body>\n</html>\n"
    )


def _search(history: History, pictures: Mapping[str, bytes]) -> str:
    figures = (
        f'<figure><img alt="{html.escape(caption)}" src="data:image/png;base64,{base64.b64encode(png).decode()}"></figure>'
        for caption, png in pictures.items()
    )
    return "\n".join(
        (
            f"<section><h2>{html.escape(history.name)}, effort {html.escape(history.effort)}</h2>",
            _answer(history),
            *figures,
            "<h3>The fastest</h3>",
            _fastest(history),
            "<h3>Which keys mattered</h3>",
            _matters(history),
            "</section>",
        )
    )


def _answer(history: History) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in history.counts().items()) or "none"
    tried = f"<p>{len(history.steps)} configs: {counts}.</p>"
    end = history.end
    if end is None:
        return f"<p>The search did not end.</p>{tried}"
    best, untuned = end.get("microseconds"), end.get("baseline_microseconds")
    gain = f", {untuned / best:.2f} times as fast as the seed ({untuned:.2f} µs)" if best and untuned else ""
    time = f"{best:.2f} µs{gain}" if best else "no time was measured"
    config = html.escape(str(end.get("decorator") or repr(Config.from_dict(end["config"]))))
    return f"<p><strong>{time}</strong>; {html.escape(str(end.get('why', '')))}.</p>{tried}<p><code>{config}</code></p>"


def _fastest(history: History) -> str:
    fastest = sorted(history.working, key=lambda step: step.outcome.time)[:_FASTEST]
    rows = (
        (
            f"{step.outcome.time:.2f}",
            f"{step.seconds:.1f}",
            f"<code>{html.escape(_changed(step.outcome.config, history))}</code>",
        )
        for step in fastest
    )
    return _table(("µs", "at s", "changed from the seed"), rows, numbers=2)


def _changed(config: Mapping[str, Any], history: History) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in history.changed(config).items()) or "the seed"


def _matters(history: History) -> str:
    rows = (
        (
            f"{each.ratio:.2f}",
            html.escape(each.key),
            html.escape(", ".join(f"{value}: {ratio:.2f} ({count})" for value, ratio, count in each.values[:6])),
        )
        for each in history.matters()
    )
    return _table(("worst / best", "key", "mean time over that of the best value (configs)"), rows, numbers=1)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> str:
    """Format a table whose first ``numbers`` columns are aligned as numbers."""
    head = "".join(f"<th>{each}</th>" for each in heads)
    lines = (
        "<tr>"
        + "".join(f"<td{' class=n' if at < numbers else ''}>{cell}</td>" for at, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>\n" + "\n".join(lines) + "</table>"
