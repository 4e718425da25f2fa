"""Assembled code as text: instructions by unit and accesses by width, outside of loops and in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...backends.assembly import Code, Instruction, by_unit, by_width
from ..specialization.compiled import Compiled
from .text import columns


def render_assembled(compiled: Compiled) -> str:
    """Format the counts of each kernel of the default config. Raises the errors of ``Toolchain.code``."""
    of = compiled.specialized
    config = of.analysis.default_config
    found, resources = compiled.assembled(config), compiled.resources(config, count_opcodes=False)
    lines = [
        f"{of.kernel.name} on {of.target.name} ({of.target.device})",
        f"  {of.decorator(config)}",
        f"  {resources.registers} registers and {resources.spill_bytes} spilled bytes of a thread,"
        f" {resources.threads} threads",
    ]
    for name, code in found.items():
        lines += ["", f"{name}: {sum(map(len, code.by_depth()))} instructions, loops: {len(code.loops)}"]
        lines += _lines(code)
    return "\n".join(lines)


def _lines(code: Code) -> Iterator[str]:
    parts = code.by_depth()
    names = ["outside of loops", "in a loop", *(f"in {depth} loops" for depth in range(2, len(parts)))]
    counts = [by_unit(part) for part in parts]
    units = sorted({unit for each in counts for unit in each}, key=lambda unit: -max(each[unit] for each in counts))
    rows = [["", *names[: len(parts)]], *([unit, *(str(each[unit]) for each in counts)] for unit in units)]
    rows.append(["all", *(str(each.total()) for each in counts)])
    yield from columns(rows)
    for name, part in zip(names, parts, strict=False):
        yield from _accesses(name, part)


def _accesses(name: str, part: Sequence[Instruction]) -> Iterator[str]:
    widths = sorted(by_width(part).items())
    if widths:
        each = ", ".join(f"{count} {unit}s of {width}" for (unit, width), count in widths)
        yield f"  bytes of a thread's accesses {name}: {each}"
