"""An explanation as one self-contained page of HTML."""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup

from ..._compiler.ir.printer import print_program
from ..._compiler.source import parse_kernel
from ..._support.pages import rendered
from ...config import Config
from ..specialization.binary_check import verdict_of
from ..specialization.compiled import Compiled
from .pictures import accesses, roofline_picture
from .roofline import roofline
from .text import HEADINGS, declined, overview, row

#: A line of code, and the line of the kernel that it is from, if it is known.
Line = tuple[str, int | None]


def page(compiled: Compiled, data: Mapping[str, Any]) -> str:
    """Format the page of ``collect``'s data, for the default config."""
    analysis = compiled.specialized.analysis
    config: Config = verdict_of(compiled).config
    decisions = analysis.space.decode(config)
    bounds = roofline(analysis.facts, analysis.predict(config), analysis.target)
    kernel_lines, generated_lines = _code(compiled, config)
    return rendered(
        "runtime/explanation/page.html",
        data=data,
        overview=overview(data),
        roofline=Markup(roofline_picture(bounds)),
        headings=HEADINGS,
        seeds=list(_seeds(data)),
        accesses=[(text, Markup(picture)) for text, picture in accesses(analysis.facts, decisions)],
        kernel_lines=kernel_lines,
        generated_lines=generated_lines,
        program=print_program(analysis.program),
        declined=declined(data),
    )


def _seeds(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield of each seed the cells of its row, its reason and its decorator."""
    for at, seed in enumerate(data["seeds"], 1):
        missing = "" if seed["measured"] else f" Not measured: {seed['not_measured_because']}."
        yield tuple(row(data, seed, at)), f"{seed['reason']}.{missing}", seed["decorator"]


def _code(compiled: Compiled, config: Config) -> tuple[list[Line], list[Line]]:
    """Return the lines of the kernel, and of the code of a config."""
    analysis = compiled.specialized.analysis
    source = parse_kernel(compiled.specialized.kernel.fn)
    first = min((node.lineno for node in getattr(source.node, "decorator_list", ())), default=source.node.lineno)
    last = source.node.end_lineno or first
    lines = textwrap.dedent("".join(linecache.getline(source.file, at) for at in range(first, last + 1)))
    generated: list[Line] = []
    module = analysis.code(config).module
    for at, text in enumerate(module.text.splitlines(), 1):
        origin = module.origin(at)
        generated.append((text, origin.line if origin is not None and origin.file == source.file else None))
    return [(text, at) for at, text in enumerate(lines.splitlines(), first)], generated


__all__ = ["page"]
