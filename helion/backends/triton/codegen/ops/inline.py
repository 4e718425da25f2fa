"""Ops that users write in the target's own language: prints, Triton source and PTX."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ....._compiler.ir.grammar import AsmAttrs, Definition, InlineAttrs, Op, PrintAttrs
from ..emission import Emission
from .literals import TRITON_DTYPES

_WORD = re.compile(r"\w+")


def device_print(e: Emission, op: Op) -> None:
    attrs = op.attributes(PrintAttrs)
    if attrs.stops:
        e.lines.add("breakpoint()")
        return
    values = [e.operand(o) for o in op.operands]
    e.lines.add(f"tl.device_print({', '.join([repr(attrs.prefix), *values])})")


def inline(e: Emission, op: Op) -> None:
    attrs = op.attributes(InlineAttrs)
    operands = [e.operand(o) for o in op.operands] + [e.tensor_names[at] for at in attrs.tensors]
    operands += [_defined(e, definition) for definition in attrs.definitions]
    lines = [line.format(*operands) for line in attrs.lines]
    _mention(e, lines)
    for line in lines[:-1]:
        e.lines.add(line)
    names = [e.names.define(r, "inline") for r in op.results]
    e.lines.add(f"{', '.join(names)} = {lines[-1]}" if names else lines[-1])


def _defined(e: Emission, definition: Definition) -> str:
    """Return the name of a definition, which is printed before the kernel, after those that it uses."""
    uses = [_defined(e, each) for each in definition.uses]
    name = e.plan.definitions[definition]
    text = definition.text.format(name, *uses)
    e.functions[text] = ""
    _mention(e, (text,))
    return name


def _mention(e: Emission, sources: Iterable[str]) -> None:
    """Add the names in the user's source to the needs of the module: it may use all that the module can provide."""
    words = {word for source in sources for word in _WORD.findall(source)} - {*e.plan.definitions.values()}
    e.needs |= words
    e.symbols |= words


def asm(e: Emission, op: Op) -> None:
    attrs = op.attributes(AsmAttrs)
    dtypes = [TRITON_DTYPES[d] for d in attrs.dtypes]
    kind = dtypes[0] if len(dtypes) == 1 else f"({', '.join(dtypes)})"
    operands = attrs.places.format(*(e.operand(o) for o in op.operands))
    names = [e.names.define(r, "asm") for r in op.results]
    e.lines.add(
        f"{', '.join(names)} = tl.inline_asm_elementwise({attrs.asm!r}, {attrs.constraints!r}, [{operands}], dtype={kind}, is_pure={attrs.is_pure}, pack={attrs.pack})"
    )


OPS = {"print": device_print, "inline": inline, "asm": asm}
