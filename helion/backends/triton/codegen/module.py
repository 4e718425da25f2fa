"""The text of a generated module: imports, block sizes, helpers, the kernels, and the user's function around their
launches.
"""

from __future__ import annotations

from collections.abc import Sequence

from .... import exc
from ...._compiler.host.print import (
    LAUNCHER_IMPORT,
    SOURCE_IMPORT,
    print_comparisons,
    print_host,
    print_source,
)
from ...._compiler.host.program import Form, HostProgram, Import, Module
from ...._compiler.source import Location
from ..lower.kernels import Kernel
from ..plan.records import Plan
from . import together
from .combine import Function
from .emit import render_kernel
from .expressions import LIBDEVICE
from .ops import bytes as ops_bytes
from .ops import lanes as ops_lanes
from .ops import marked as ops_marked
from .ops import reduction as ops_reduction
from .ops.literals import HELPERS
from .standalone import without_helion

_FUTURE = "from __future__ import annotations"
_TRITON = (Import(module="triton"), Import(module="triton.language", alias="tl"))
_LIBDEVICE = Import(module="triton.language.extra", name=LIBDEVICE)
#: Every function that an expression may call by name.
_HELPERS = {**HELPERS, **ops_reduction.HELPERS, **ops_lanes.HELPERS, **ops_marked.HELPERS, **ops_bytes.HELPERS}


def render_module(plan: Plan, kernels: Sequence[Kernel], host: HostProgram, form: Form) -> Module:
    """Return a plan as a Python module whose function of the kernel's name runs it."""
    known: dict[Function | str, str] = {}
    texts = [render_kernel(plan, kernel, known) for kernel in kernels]
    needs = {name for text in texts for name in text.needs}
    symbols = {name for text in texts for name in text.symbols}
    sizes = [b for b in plan.blocks if b.symbol in symbols and b.dynamic is None]
    # subtiles of one tile share a symbol
    constants = dict.fromkeys(f"{b.symbol} = tl.constexpr({b.size})" for b in sizes)
    helpers = [helper for name, helper in _HELPERS.items() if name in needs]
    libdevice = LIBDEVICE in needs or any(f"{LIBDEVICE}." in helper for helper in helpers)
    lines = [_FUTURE, "", *_imports(host, libdevice, form), ""]
    for part in (constants, print_comparisons(host)):
        lines += [*part, ""] if part else []
    for helper in helpers:
        lines += ["", helper.rstrip(), ""]
    joined = [
        (name, plan.launch_of(phase)) for name, phase in plan.launched if plan.are_together(plan.launch_of(phase))
    ]
    if joined:
        lines += ["", together.HELPERS[together.GRID_BARRIER].rstrip(), ""]
    lines = "\n".join(lines).split("\n")
    origins: list[tuple[int, Location | None]] = []
    for text in texts:
        lines.append("")
        origins += [(len(lines) + at + 1, location) for at, location in text.origins]
        lines += [*text.lines, ""]
        origins.append((len(lines), None))
    for name, launch in joined:
        lines += ["", *together.render_together(plan, launch, name), ""]
    host_text = print_host(host)
    if form.alone and "_helion_runtime.own_words(" in host_text:
        raise exc.InvalidAPIUsage(
            "A kernel with hl.remote_barrier or hl.make_async_remote_copy uses helion's runtime; keep allow_helion_deps=True."
        )
    return Module(text="\n".join([*lines, "", host_text, ""]), host=host, origins=tuple(origins))


def _imports(host: HostProgram, libdevice: bool, form: Form) -> list[str]:
    """Return the lines up to the import of the launcher. Replacements of imports come directly after Triton's
    imports.
    """
    imports = [*host.imports, *([_LIBDEVICE] if libdevice else [])]
    behind = [*([SOURCE_IMPORT] if host.reads_source else []), LAUNCHER_IMPORT]
    definitions: list[str] = []
    if form.alone:
        imports, definitions = without_helion([*imports, *behind])
        behind = []
    first, second = [*imports, *behind[:-1]], behind[-1:]
    return [
        *(each.line for each in _TRITON),
        *definitions,
        *(each.line for each in first),
        *print_source(host, form),
        *(each.line for each in second),
    ]
