"""The subcommands, in the order of ``--help``."""

from __future__ import annotations

from . import doctor, explain
from .command import Command

COMMANDS: tuple[Command, ...] = (explain.COMMAND, doctor.COMMAND)
