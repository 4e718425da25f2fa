"""``python -m helion explain``: a report on a kernel's IR, limits, seeds and code."""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import sys
from typing import TYPE_CHECKING

from .._support.lazy import lazy
from ..runtime.bound import BoundKernel
from ..runtime.kernel import Kernel
from ..settings import Settings
from .arguments import HELP, find_kernel, parse_arguments
from .command import Command

if TYPE_CHECKING:
    from ..runtime.explanation import table
else:
    table = lazy("helion.runtime.explanation.table")


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kernel", help="FILE.py::KERNEL")
    parser.add_argument("--args", nargs="*", default=[], help=HELP)
    parser.add_argument("--dynamic", action="store_true", help="bind with static_shapes=False")
    parser.add_argument("--target", default=None, help="sm_80, sm_90, sm_100, gfx942 ...")
    parser.add_argument("--code", action="store_true", help="also print the generated module")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--facts", action="store_true", help="print every record that was read off the kernel")
    forms.add_argument(
        "--assembly", action="store_true", help="print the instructions of the default config's loops by unit"
    )
    forms.add_argument("--json", action="store_true", help="print JSON")
    forms.add_argument(
        "--html", metavar="FILE", help="write a self-contained page: IR, a picture of each access, roofline, code"
    )


def _run(options: argparse.Namespace) -> int:
    kernel = find_kernel(options.kernel)
    if options.dynamic:
        kernel = with_dynamic_shapes(kernel)
    positional, keywords = parse_arguments(options.args)
    bound = kernel.bind(kernel.normalize_args(*positional, **keywords), target=options.target)
    _show(bound, options)
    if options.code:
        print(f"\n{bound.to_code()}")
    return 0


def _show(bound: BoundKernel, options: argparse.Namespace) -> None:
    if options.html:
        pathlib.Path(options.html).write_text(bound.explain("html"), encoding="utf-8")
        print(f"written to {options.html}")
    elif form := next((each for each in ("json", "facts", "assembly") if getattr(options, each)), None):
        print(bound.explain(form))
    elif sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        table.print_table(json.loads(bound.explain("json")))
    else:
        print(bound.explain())


def with_dynamic_shapes(kernel: Kernel) -> Kernel:
    """Return a kernel of the same function with ``static_shapes=False``."""
    settings = Settings(**{**kernel.settings.to_dict(), "static_shapes": False})
    return Kernel(kernel.fn, configs=kernel.configs, settings=settings, key=kernel.key)


COMMAND = Command(
    name="explain",
    help="show a kernel's operations, its limiting resource, and its seeds with reasons, predicted and measured times",
    configure=_configure,
    run=_run,
)
