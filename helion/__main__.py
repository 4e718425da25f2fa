"""``helion``, which is also ``python -m helion``: the subcommands of ``helion.cli.commands``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import helion

from . import exc
from .cli.commands import COMMANDS


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="python -m helion", description="Look at kernels, and at what works here.")
    root.add_argument("--version", action="version", version=f"helion {helion.__version__}")
    commands = root.add_subparsers(dest="command", required=True)
    for command in COMMANDS:
        each = commands.add_parser(command.name, help=command.help, description=command.help)
        command.configure(each)
        each.set_defaults(run=command.run)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        return options.run(options)
    except (ValueError, exc.Base, AssertionError, TypeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
