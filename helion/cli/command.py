"""What a subcommand is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Command:
    """A subcommand: ``configure`` adds its options to a parser, ``run`` gives the exit status.

    What ``run`` raises of ValueError, TypeError, OSError, AssertionError and ``exc.Base`` is printed as ``error: ...``,
    with exit status 2, and an interrupt from the keyboard as ``interrupted``, with exit status 130.
    """

    name: str
    help: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
