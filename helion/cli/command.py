"""The record of a subcommand."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Command:
    """A subcommand: ``configure`` adds its options to a parser, ``run`` returns the exit status.

    A ValueError, TypeError, OSError, AssertionError or ``exc.Base`` from ``run`` is printed as ``error: ...``, with
    exit status 2. A keyboard interrupt is printed as ``interrupted``, with exit status 130.
    """

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
