"""``python -m helion explain``: what the compiler makes of a kernel."""

from __future__ import annotations

import argparse

from ..runtime.kernel import Kernel
from ..settings import Settings
from .arguments import HELP, find_kernel, parse_arguments
from .command import Command


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kernel", help="FILE.py::KERNEL")
    parser.add_argument("--args", nargs="*", default=[], help=HELP)
    parser.add_argument("--dynamic", action="store_true", help="bind with static_shapes=False")
    parser.add_argument("--target", default=None, help="sm_80, sm_90, sm_100, gfx942 ...")
    parser.add_argument("--code", action="store_true", help="also print the generated module")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _run(options: argparse.Namespace) -> int:
    kernel = find_kernel(options.kernel)
    if options.dynamic:
        kernel = with_dynamic_shapes(kernel)
    positional, keywords = parse_arguments(options.args)
    bound = kernel.bind(kernel.normalize_args(*positional, **keywords), target=options.target)
    print(bound.explain("json" if options.json else "text"))
    if options.code:
        print(f"\n{bound.to_triton_code()}")
    return 0


def with_dynamic_shapes(kernel: Kernel) -> Kernel:
    """The same function as a kernel with ``static_shapes=False``."""
    settings = Settings(**{**kernel.settings.to_dict(), "static_shapes": False})
    return Kernel(kernel.fn, configs=kernel.configs, settings=settings, key=kernel.key)


COMMAND = Command(
    name="explain",
    help="what a kernel is, what bounds it, and its seeds with reasons, predicted beside measured",
    configure=_configure,
    run=_run,
)
