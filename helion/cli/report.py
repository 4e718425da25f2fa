"""``python -m helion report``: a tuning log as a page."""

from __future__ import annotations

import argparse
import pathlib

from ..autotuner.report import plots
from ..autotuner.report.history import histories
from ..autotuner.report.page import page
from .command import Command


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", help="a file that HELION_AUTOTUNE_LOG was set to")
    parser.add_argument("--out", default=None, help="the page; default: the log's name with .html")


def _run(options: argparse.Namespace) -> int:
    log = pathlib.Path(options.log)
    out = log.with_suffix(".html") if options.out is None else pathlib.Path(options.out)
    found = histories(log.read_text(encoding="utf-8").splitlines())
    pictures = []
    for at, history in enumerate(found):
        try:
            shown = {"trajectory": plots.trajectory(history), "keys": plots.matters(history)}
        except ModuleNotFoundError as error:
            raise ValueError(f"pictures need matplotlib ({error}); pip install 'helion-tiles[report]'") from error
        for name, png in shown.items():
            out.with_name(f"{out.stem}-{at}-{name}.png").write_bytes(png)
        pictures.append(shown)
    out.write_text(page(found, pictures), encoding="utf-8")
    print(f"{len(found)} searches: {out}")
    return 0


COMMAND = Command(name="report", help="a tuning log as a page with pictures", configure=_configure, run=_run)
