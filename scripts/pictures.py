"""Pictures of the examples: the tensors that a kernel accesses, with the tiles of its default config on an H200.

A picture follows from the facts of an example's largest case. Examples over several GPUs show the first kernel that a
simulated rank calls. Each tensor is a rectangle with its first tile filled, and
the part that the program of this tile walks shaded. Loads are blue, stores are green, atomics are red.
"""

from __future__ import annotations

import contextlib
import html
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import helion.distributed as dist
from helion import exc
from helion._support.nested import tensors_in
from helion._testing import as_meta, import_path
from helion.runtime.explanation.pictures import Side, caption, drawn, sides
from helion.runtime.variants.variant import Variant

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
TARGET = "h200"
#: The most tensors of a picture; pixels of one, with its space; the most lines between tiles in it.
_TENSORS, _WIDTH, _HEIGHT, _STEP, _LINES = 5, 72.0, 56.0, 88.0, 24
_STYLE = (
    "text{font:9px system-ui,sans-serif;fill:#555}.tensor{fill:none;stroke:#777}line{stroke:#8886;stroke-width:.5}"
    ".load{fill:#36c}.store{fill:#284}.atomic{fill:#c33}.walked{fill-opacity:.25}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}.tensor{stroke:#aaa}.load{fill:#69f}.store{fill:#4b6}.atomic{fill:#f66}}"
)


class _Called(Exception):
    """A rank has called a kernel."""


def pictures() -> dict[str, str]:
    """Return the SVG of each example with a kernel that accesses several tensors, by the name of its file."""
    found = {}
    for path in sorted(EXAMPLES.rglob("*.py")):
        bound = largest_case(path)
        if bound is not None and len(bound.facts.memory_ops) > 1:
            found[path.relative_to(EXAMPLES).as_posix()] = picture(bound)
    return found


def largest_case(path: Path) -> Any:
    """Return the kernel of the case with the most elements, bound to the target; None if there is none on the target."""
    sys.path.insert(0, str(path.parent))  # some import a module next to them
    try:
        module = import_path(path)
        cases = list(module.cases()) if hasattr(module, "cases") else []
        if cases:
            *_, kernel, args = max(cases, key=lambda case: sum(tensor.numel() for tensor in tensors_in(case[-1])))
            return kernel.bind(as_meta(args), target=TARGET)
        return first_called(module) if hasattr(module, "on_rank") else None
    except exc.BackendUnsupported:
        return None
    finally:
        sys.path.remove(str(path.parent))


def first_called(module: ModuleType) -> Any:
    """Return the kernel that a simulated rank of an example calls first, bound to the target; nothing is run."""
    found: list[Any] = []

    def run(variant: Variant, *args: Any) -> Any:
        if not found:
            found.append(variant.face.kernel.bind(args, target=TARGET))
        raise _Called

    with mock.patch.object(Variant, "run", run), contextlib.suppress(_Called):
        dist.run(module.on_rank)
    return found[0] if found else None


def picture(bound: Any) -> str:
    """Draw the different accesses of a bound kernel in a row, in program order."""
    decisions = bound.config_spec.decode(bound.default_config())
    shown: dict[tuple[Any, ...], tuple[str, str, list[Side]]] = {}
    for op in bound.facts.memory_ops:
        each = sides(op, bound.facts, decisions)
        shown.setdefault((op.kind, op.name), (op.kind, caption(op, each), each))
    found = list(shown.items())[:_TENSORS]
    parts = [
        f'<g transform="translate({_STEP * at:.0f} 0)"><title>{html.escape(title)}</title>{"".join(_tensor(key[1], kind, each))}</g>'
        for at, (key, (kind, title, each)) in enumerate(found)
    ]
    more = (
        f'<text x="{_STEP * len(found):.0f}" y="30">+{len(shown) - len(found)}</text>'
        if len(shown) > len(found)
        else ""
    )
    width = _STEP * len(found) + (20 if more else 0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-2 -2 {width:.0f} {_HEIGHT + 30:.0f}" width="{width:.0f}" '
        f'height="{_HEIGHT + 30:.0f}"><style>{_STYLE}</style>{"".join(parts)}{more}</svg>\n'
    )


def _tensor(name: str, kind: str, each: list[Side]) -> Iterator[str]:
    """Draw a tensor by its two longest dimensions, the tiles in it, and its name with their sizes."""
    rows, columns = drawn(each)
    ratio = math.sqrt(max(columns.extent, 1) / max(rows.extent, 1))
    width = _WIDTH * min(1.0, max(ratio, 0.2))
    height = 8.0 if rows.extent == 1 else _HEIGHT * min(1.0, max(1 / ratio, 0.2))
    wide, high = (
        max(length * min((side.tile or 1) / max(side.extent, 1), 1.0), 2.0)
        for length, side in ((width, columns), (height, rows))
    )
    yield f'<rect class="tensor" width="{width:.1f}" height="{height:.1f}"/>'
    for at in range(1, math.ceil(width / wide - 1e-6)) if width / wide <= _LINES else ():
        yield f'<line x1="{at * wide:.1f}" y1="0" x2="{at * wide:.1f}" y2="{height:.1f}"/>'
    for at in range(1, math.ceil(height / high - 1e-6)) if height / high <= _LINES else ():
        yield f'<line x1="0" y1="{at * high:.1f}" x2="{width:.1f}" y2="{at * high:.1f}"/>'
    if rows.walked or columns.walked:
        size = f'width="{width if columns.walked else wide:.1f}" height="{height if rows.walked else high:.1f}"'
        yield f'<rect class="{kind} walked" {size}/>'
    yield f'<rect class="{kind}" width="{wide:.1f}" height="{high:.1f}"/>'
    sizes = " × ".join(str(side.extent) for side in (rows, columns) if side.name)
    yield f'<text y="{_HEIGHT + 13:.0f}">{html.escape(name)}</text><text y="{_HEIGHT + 24:.0f}">{sizes}</text>'


__all__ = ["largest_case", "picture", "pictures"]
