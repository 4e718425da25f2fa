"""The subcommands, in the order of ``--help``."""

from __future__ import annotations

from . import bench, cache, calibrate, doctor, explain, listing, report, tune
from .command import Command

COMMANDS: tuple[Command, ...] = (
    explain.COMMAND,
    bench.COMMAND,
    listing.COMMAND,
    doctor.COMMAND,
    cache.COMMAND,
    report.COMMAND,
    tune.COMMAND,
    calibrate.COMMAND,
)
