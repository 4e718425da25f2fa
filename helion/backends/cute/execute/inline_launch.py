"""The statements of a generated host function with their launches written out.

``_launcher(kernel, grid, x, y, out)`` becomes: read the addresses, check that they are multiples of 16, and call the
function of the kernel's shared object. Anything else is left to the launcher.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...._compiler.host.program import LAUNCHER, OTHERWISE, HostProgram, KernelLaunch
from ...._syntax import parse
from ...execution import InlineBody
from ..plan.dtypes import NUMBER
from .launcher import ALIGNMENT_BYTES, Entry
from .seen import SeenLauncher


def body(host: HostProgram, function: types.FunctionType, prefix: str, seen: Callable[..., Any]) -> InlineBody | None:
    """The statements of ``host``, loaded as ``function``, with the launches written out that ``seen`` has made.

    None for a function whose statements do something else elsewhere, or that has names which begin with ``prefix``.
    """
    if not host.is_plain or any(name.startswith(prefix) for name in host.names) or not isinstance(seen, SeenLauncher):
        return None
    given = function.__kwdefaults__ or {}
    writer = _Launches(seen, function.__globals__, prefix, {f"{prefix}launcher": given[LAUNCHER]})
    statements = host.statements(writer.launch)
    if OTHERWISE in given:
        writer.cells[OTHERWISE] = given[OTHERWISE]
    return InlineBody(statements=statements, cells=writer.cells)


class _Launches:
    def __init__(self, seen: SeenLauncher, namespace: Mapping[str, Any], prefix: str, cells: dict[str, Any]) -> None:
        self.seen = seen
        self.namespace = namespace
        self.prefix = prefix
        self.cells = cells
        self.count = 0

    def launch(self, launch: KernelLaunch) -> list[ast.stmt]:
        kernel = self.namespace.get(launch.kernel)
        entry = self.seen.last(kernel)
        if (
            kernel is None
            or entry is None
            or not all(isinstance(node, ast.Constant) and node.value for node in launch.grid)
        ):
            return [launch.call(f"{self.prefix}launcher")]
        self.count += 1
        numbers = [dtype == NUMBER for dtype in kernel.pointers[: len(launch.arguments)]]
        return self.written(launch, entry, numbers, f"{self.prefix}{self.count}")

    def written(self, launch: KernelLaunch, entry: Entry, numbers: Sequence[bool], prefix: str) -> list[ast.stmt]:
        cells = {"launch": entry.launch, "stream": entry.current_stream, "current": entry.current_device}
        self.cells.update({f"{prefix}{name}": value for name, value in cells.items()})
        names = [ast.unparse(node) for node in launch.arguments]
        pointers = [f"{prefix}p{at}" for at in range(len(names))]
        before = [
            f"{pointer} = {name}" + ("" if number else ".data_ptr()")
            for pointer, name, number in zip(pointers, names, numbers, strict=True)
        ]
        addresses = [pointer for pointer, number in zip(pointers, numbers, strict=True) if not number]
        unusual = [f"({' | '.join(addresses)}) & {ALIGNMENT_BYTES - 1}"]
        if entry.current_device is not None:
            unusual.append(f"{prefix}current() != {entry.device}")
        stream = f"{prefix}stream({entry.device})"
        if entry.workspace is not None:
            self.cells[f"{prefix}workspace"] = entry.workspace
            pointers.append(f"{prefix}workspace({stream})")
        given = f"{', '.join(pointers)}, {entry.clusters}, {stream}"
        unusual.append(f"{prefix}launch({given})")
        slow = ast.unparse(launch.call(f"{self.prefix}launcher"))
        return parse("\n".join([*before, f"if {' or '.join(unusual)}:", f"    {slow}"])).body
