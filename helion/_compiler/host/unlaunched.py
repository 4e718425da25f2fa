"""The host function without its launches, which shows what a call allocates, returns and writes without a device."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..ir.grammar import InlineAttrs, MemoryAttrs, Program
from .analysis import overwritten
from .build import SOURCE_NAME, HostBuilder
from .program import Import

#: Replacement of a launch: called with the tensors that the kernels access, and the caller-visible ones that they may
#: write.
LAUNCHED = "_launched"


@dataclass(frozen=True, kw_only=True)
class Unlaunched:
    """Source text of a function of all arguments, and the modules it needs.

    ``reads_source``: it reads globals of the user's module, under the name ``SOURCE_NAME``.
    """

    text: str
    imports: tuple[Import, ...]
    reads_source: bool


def unlaunched(program: Program, size: Callable[[int], int], tunables: Mapping[str, Any]) -> Unlaunched:
    """Return the user's statements with calls of ``LAUNCHED`` in place of device loops. ``size`` gives the elements of
    a block.
    """
    builder = HostBuilder(replace(program.host, checks=(), reaches=(), narrow=(), argument_checks=()), size, tunables)
    for place in range(1 + max((root.launch for root in program.roots), default=-1)):
        part = replace(program, roots=tuple(root for root in program.roots if root.launch == place))
        accessed = [program.tensors[at].source for at in _accessed(part)]
        written = [tensor.source for tensor in overwritten(program, part)]
        given = (f"({''.join(f'{builder.source(text)}, ' for text in texts)})" for texts in (accessed, written))
        builder.launch([f"{LAUNCHED}({', '.join(given)})"], ())
    host = builder.program(None)
    arguments = ast.arguments(posonlyargs=[], args=host.arguments.args, kwonlyargs=[], kw_defaults=[], defaults=[])
    function = ast.FunctionDef(host.name, arguments, host.statements(), [], lineno=0)
    return Unlaunched(text=ast.unparse(function), imports=host.imports, reads_source=host.reads_source)


def _accessed(program: Program) -> list[int]:
    found: dict[int, None] = {}
    for op in program.walk():
        if isinstance(op.attrs, MemoryAttrs):
            found[op.attrs.tensor] = None
        elif isinstance(op.attrs, InlineAttrs):
            found.update(dict.fromkeys(op.attrs.tensors))
    return list(found)


__all__ = ["LAUNCHED", "SOURCE_NAME", "Unlaunched", "unlaunched"]
