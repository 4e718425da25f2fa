"""The statements of a generated host function with inlined launches.

``_launcher(kernel, grid, x, y, out)`` becomes a few statements. They read the addresses, check that they are multiples
of 16, and check that launch-time sizes and strides are those of an earlier launch. Then they call the function of the
kernel's shared object. Other cases go to the launcher.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...._compiler.host.program import LAUNCHER, OTHERWISE, HostProgram, KernelLaunch
from ...._support.syntax import parse
from ...execution import InlineBody
from ..plan.dtypes import NUMBER, PITCH, SEED, SIZE
from ..toolchain.kernel import GemmKernel
from .alignment import ALIGNMENT_BYTES
from .launcher import Entry
from .seen import SeenLauncher


def body(host: HostProgram, function: types.FunctionType, prefix: str, seen: Callable[..., Any]) -> InlineBody | None:
    """Return the statements of ``host``, loaded as ``function``, with inlined launches that ``seen`` has made.

    Returns None for a function that may behave differently elsewhere, or that has names beginning with ``prefix``.
    """
    if not host.is_plain or any(name.startswith(prefix) for name in host.names) or not isinstance(seen, SeenLauncher):
        return None
    given = function.__kwdefaults__ or {}
    writer = _Launches(seen, function.__globals__, prefix, {f"{prefix}launcher": given[LAUNCHER]})
    statements = host.statements(writer.launch)
    if OTHERWISE in given:
        writer.cells[OTHERWISE] = given[OTHERWISE]
    return InlineBody(statements=statements, cells=writer.cells)


INTEGERS = (SIZE, PITCH)
SCALARS = (NUMBER, SEED, *INTEGERS)


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
        if kernel is None or entry is None or not _launches_something(kernel, launch.grid):
            return [launch.call(f"{self.prefix}launcher")]
        self.count += 1
        return self.written(launch, entry, kernel.pointers[: len(launch.arguments)], f"{self.prefix}{self.count}")

    def written(self, launch: KernelLaunch, entry: Entry, kinds: Sequence[str], prefix: str) -> list[ast.stmt]:
        cells = {"launch": entry.launch, "stream": entry.current_stream, "current": entry.current_device}
        self.cells.update({f"{prefix}{name}": value for name, value in cells.items()})
        names = [ast.unparse(node) for node in launch.arguments]
        pointers = [f"{prefix}p{at}" for at in range(len(names))]
        before = [
            f"{pointer} = {name}" + ("" if kind in SCALARS else ".data_ptr()")
            for pointer, name, kind in zip(pointers, names, kinds, strict=True)
        ]
        addresses = [pointer for pointer, kind in zip(pointers, kinds, strict=True) if kind not in SCALARS]
        integers = [pointer for pointer, kind in zip(pointers, kinds, strict=True) if kind in INTEGERS]
        unusual = [f"({' | '.join(addresses)}) & {ALIGNMENT_BYTES - 1}"]
        if integers:
            self.cells[f"{prefix}checked"] = entry.checked
            unusual.append(f"({', '.join(integers)},) not in {prefix}checked")
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


def _launches_something(kernel: GemmKernel, grid: Sequence[ast.expr]) -> bool:
    """Return whether a grid launches a kernel. Launch-time sizes are compared with those of an earlier launch, of which
    none was zero."""
    varying = any(kind in INTEGERS for kind in kernel.pointers)
    return all(node.value if isinstance(node, ast.Constant) else varying for node in grid)
