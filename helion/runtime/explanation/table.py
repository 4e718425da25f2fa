"""An explanation as tables in a terminal, with rich."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .text import HEADINGS, declined, overview, row


def print_table(data: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the kind of the kernel, its seeds, and the rules that declined."""
    out = console or Console()
    out.print(Text.assemble((data["kernel"], "bold"), f" on {data['target']} ({data['device']})"))
    facts = Table(show_header=False, box=None, padding=(0, 2))
    for name, value in overview(data):
        facts.add_row(Text(name, "cyan"), Text(value))
    out.print(facts)
    out.print(_seeds(data))
    for at, seed in enumerate(data["seeds"], 1):
        out.print(Text.assemble((f"{at}. {seed['heuristic']}", "bold"), f": {seed['reason']}"))
        out.print(Text(f"   {seed['decorator']}", "dim"))
        if seed["measured"] is None:
            out.print(Text(f"   not measured: {seed['not_measured_because']}", "dim"))
    rules = Table(show_header=False, box=None, padding=(0, 2), title="declined", title_justify="left")
    for reason, names in declined(data):
        rules.add_row(Text(reason, "dim"), Text(names, "dim"))
    out.print(rules)
    for change in data["adjusted"]:
        out.print(Text(f"adjusted: {change}", "yellow"))
    if data["refusal"]:
        out.print(Text(f"refused on a GPU: {data['refusal']}", "red"))


def _seeds(data: Mapping[str, Any]) -> Table:
    table = Table(title="seeds: predicted / measured; * runs when nothing was tuned", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for at, seed in enumerate(data["seeds"], 1):
        spills = seed["measured"] is not None and seed["measured"]["spill_bytes"] > 0
        table.add_row(*map(Text, row(data, seed, at)), style="red" if spills else None)
    return table
