"""An explanation as one self-contained page of HTML: no scripts, fonts or pictures from other files."""

from __future__ import annotations

import html
import linecache
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..._compiler.ir.printer import print_program
from ..._compiler.source import parse_kernel
from ...config import Config
from ..specialization.binary_check import verdict_of
from ..specialization.compiled import Compiled
from .pictures import accesses, roofline_picture
from .roofline import roofline
from .text import HEADINGS, overview, row

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --strong: #2266cc; --soft: #2266cc33; --code: #8881; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1280px; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .25rem .75rem .25rem 0; vertical-align: top; }
th { font-weight: 600; } table.seeds td, table.seeds th { border-bottom: 1px solid var(--line); }
.scroll { overflow-x: auto; }
pre { margin: 0; background: var(--code); padding: .75rem; overflow: auto; max-height: 70vh; font: 12px/1.5 ui-monospace, monospace; }
pre span { display: block; white-space: pre; min-height: 1.5em; } pre span.same { background: var(--soft); }
.code { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: 1rem; }
figure { margin: 0 0 1.25rem; } figcaption { font-size: 13px; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; } svg .tick { font-size: 10px; }
svg .tensor, svg .frame { fill: none; stroke: currentColor; } svg line { stroke: var(--line); }
svg .tile { fill: var(--strong); fill-opacity: .75; } svg .walked { fill: var(--soft); }
svg .arrow { fill: none; stroke: currentColor; } svg .roof { fill: none; stroke: var(--strong); stroke-width: 2; }
svg .point { fill: #d33; }
.accesses { display: flex; flex-wrap: wrap; gap: 1rem 2rem; } .accesses figure { max-width: 420px; }
small { opacity: .75; }
"""

_SCRIPT = """
for (const line of document.querySelectorAll("pre span[data-line]")) {
  line.addEventListener("mouseenter", () => mark(line.dataset.line, true));
  line.addEventListener("mouseleave", () => mark(line.dataset.line, false));
}
function mark(number, on) {
  for (const line of document.querySelectorAll(`pre span[data-line="${number}"]`)) line.classList.toggle("same", on);
}
"""


def page(compiled: Compiled, data: Mapping[str, Any]) -> str:
    """Format the page of ``collect``'s data, for the default config."""
    analysis = compiled.specialized.analysis
    config: Config = verdict_of(compiled).config
    decisions = analysis.space.decode(config)
    bounds = roofline(analysis.facts, analysis.predict(config), analysis.target)
    name = html.escape(data["kernel"])
    parts = [
        f"<h1>{name} <small>on {html.escape(data['target'])} ({html.escape(data['device'])})</small></h1>",
        _pairs(overview(data)),
        f"<h2>Roofline</h2><figure>{roofline_picture(bounds)}<figcaption>Where the line is, the target cannot go; the point is what the default config is predicted to reach.</figcaption></figure>",
        f"<h2>Seeds</h2><p>Predicted / measured offline. * runs when nothing was tuned.</p>{_seeds(data)}",
        f"<h2>Accesses</h2><p>Tiles of the default config. Filled: the first tile; shaded: the part that its program iterates over; the arrow: consecutive elements.</p>{_accesses(accesses(analysis.facts, decisions))}",
        f"<h2>Code</h2><p>The kernel, and what the default config makes of it; lines of one origin light up together.</p>{_code(compiled, config)}",
        f"<h2>Device IR</h2><pre>{html.escape(print_program(analysis.program))}</pre>",
        f"<h2>Declined</h2>{_pairs((e['heuristic'], e['reason']) for e in data['declined'])}",
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body>{''.join(parts)}<script>{_SCRIPT}</script></body></html>\n"
    )


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    rows = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in pairs)
    return f"<table>{''.join(rows)}</table>"


def _seeds(data: Mapping[str, Any]) -> str:
    if not data["seeds"]:
        return "<p>None.</p>"
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in HEADINGS)
    body = []
    for at, seed in enumerate(data["seeds"], 1):
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in row(data, seed, at))
        missing = "" if seed["measured"] else f" Not measured: {seed['not_measured_because']}."
        why = html.escape(f"{seed['reason']}.{missing}")
        more = f"<td></td><td colspan={len(HEADINGS) - 1}><small>{why}<br><code>{html.escape(seed['decorator'])}</code></small></td>"
        body.append(f"<tr>{cells}</tr><tr>{more}</tr>")
    return f'<div class="scroll"><table class="seeds"><tr>{head}</tr>{"".join(body)}</table></div>'


def _accesses(each: Sequence[tuple[str, str]]) -> str:
    figures = (f"<figure>{picture}<figcaption>{html.escape(text)}</figcaption></figure>" for text, picture in each)
    return f'<div class="accesses">{"".join(figures)}</div>'


def _code(compiled: Compiled, config: Config) -> str:
    analysis = compiled.specialized.analysis
    source = parse_kernel(compiled.specialized.kernel.fn)
    first = min((node.lineno for node in getattr(source.node, "decorator_list", ())), default=source.node.lineno)
    last = source.node.end_lineno or first
    lines = textwrap.dedent("".join(linecache.getline(source.file, at) for at in range(first, last + 1)))
    user = [_line(text, at) for at, text in enumerate(lines.splitlines(), first)]
    module = analysis.code(config).module
    generated = []
    for at, text in enumerate(module.text.splitlines(), 1):
        origin = module.origin(at)
        generated.append(_line(text, origin.line if origin is not None and origin.file == source.file else None))
    return f'<div class="code"><pre>{"".join(user)}</pre><pre>{"".join(generated)}</pre></div>'


def _line(text: str, origin: int | None) -> str:
    known = "" if origin is None else f' data-line="{origin}"'
    return f"<span{known}>{html.escape(text)}</span>"


__all__ = ["page"]
