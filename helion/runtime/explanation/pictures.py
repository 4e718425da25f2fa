"""Pictures for the page, as SVG: the tile of each access in its tensor, and the roofline."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..._compiler.decisions import Decisions
from ..._compiler.facts.records import AxisFact, KernelFacts, MemoryOpFact
from ..._shapes import dtype_name
from .roofline import Roofline

#: Sides of a tensor's picture in pixels, and the most grid lines drawn in it.
_LONG, _SHORT, _LINES = 260.0, 60.0, 40


@dataclass(frozen=True)
class Side:
    """One dimension of an access.

    It has the elements of the tensor and of a tile in it (None if an index from data selects one), and its stride.
    ``walked`` means that programs or a loop iterate over it.
    """

    name: str
    extent: int
    tile: int | None
    stride: int
    walked: bool


def sides(op: MemoryOpFact, facts: KernelFacts, decisions: Decisions) -> list[Side]:
    """List the dimensions of an access with the tiles of a config."""
    axes = {axis.block_id: axis for axis in facts.axes}
    made = []
    for at, extent in enumerate(op.extents):
        block = op.subscript_axes[at]
        axis = None if block is None else axes[block]
        if axis is None:
            made.append(Side(":" if not op.gathered else "data", extent, None, op.strides[at], False))
            continue
        size = min(_elements(axis, decisions) * op.scales[at], max(extent, 1))
        walked = not axis.on_grid and size < extent
        made.append(Side(axis.name, extent, size, op.strides[at], walked))
    return made


def _elements(axis: AxisFact, decisions: Decisions) -> int:
    if axis.kind == "scalar":
        return 1
    if axis.block_id in decisions.chunked:
        chunk = decisions.at("reduction_loops", axis.block_id)
        return int(chunk or decisions.sizes[axis.block_id])
    return decisions.sizes.get(axis.block_id, axis.padded)


def caption(op: MemoryOpFact, each: Sequence[Side]) -> str:
    """Describe an access: kind, tensor, tile, and the length in bytes of its contiguous runs."""
    shape = ", ".join(str(side.extent) for side in each)
    tile = " × ".join("?" if side.tile is None else str(side.tile) for side in each)
    text = f"{op.kind} {op.name}: {dtype_name(op.dtype)}[{shape}], strides ({', '.join(str(s.stride) for s in each)}); tile {tile or 'of one element'}"
    run = next((side for side in each if side.stride == 1 and side.tile is not None), None)
    if op.gathered:
        return f"{text}; addresses from data"
    return (
        f"{text}; {run.tile * op.itemsize} bytes in a row" if run and run.tile else f"{text}; no two elements in a row"
    )


def access_picture(each: Sequence[Side]) -> str:
    """Draw a tensor as a rectangle with a grid of tiles.

    The first tile is filled. An arrow marks consecutive elements, and a hatch the part that a loop inside of the
    program covers.
    """
    rows, columns = drawn(each)
    width, height = _proportions(rows.extent, columns.extent)
    x_step = width * min((columns.tile or 1) / max(columns.extent, 1), 1.0)
    y_step = height * min((rows.tile or 1) / max(rows.extent, 1), 1.0)
    parts = [f'<rect class="tensor" width="{width:.1f}" height="{height:.1f}"/>']
    parts += _lines(width, x_step, lambda x: f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height:.1f}"/>')
    parts += _lines(height, y_step, lambda y: f'<line x1="0" y1="{y:.1f}" x2="{width:.1f}" y2="{y:.1f}"/>')
    if rows.walked or columns.walked:
        wide, high = (width if columns.walked else x_step), (height if rows.walked else y_step)
        parts.append(f'<rect class="walked" width="{max(wide, 2):.1f}" height="{max(high, 2):.1f}"/>')
    parts.append(f'<rect class="tile" width="{max(x_step, 2):.1f}" height="{max(y_step, 2):.1f}"/>')
    parts += _arrow(rows, columns, width, height)
    labels = (
        f'<text x="{width / 2:.1f}" y="-6" text-anchor="middle">{_label(columns)}</text>'
        f'<text x="{width + 8:.1f}" y="{height / 2 + 4:.1f}">{_label(rows)}</text>'
    )
    box = f"-14 -22 {width + 150:.0f} {height + 40:.0f}"
    return f'<svg class="access" viewBox="{box}" width="{width + 150:.0f}" height="{height + 40:.0f}">{"".join(parts)}{labels}</svg>'


def drawn(each: Sequence[Side]) -> tuple[Side, Side]:
    """Return the two dimensions with the most elements, in the order of the tensor; a row of one if there are fewer."""
    one = Side("", 1, 1, 0, False)
    largest = sorted(range(len(each)), key=lambda at: -each[at].extent)[:2]
    found = [each[at] for at in sorted(largest)]
    return (one, one) if not found else (one, found[0]) if len(found) == 1 else (found[0], found[1])


def _proportions(rows: int, columns: int) -> tuple[float, float]:
    """Return width and height in pixels; long tensors are drawn shorter than they are."""
    ratio = math.sqrt(max(columns, 1) / max(rows, 1))
    if rows == 1:
        return _LONG, 16.0
    return (_LONG, max(_LONG / ratio, _SHORT)) if ratio >= 1 else (max(_LONG * ratio, _SHORT), _LONG)


def _lines(length: float, step: float, draw: Callable[[float], str]) -> list[str]:
    if step <= 0 or length / step > _LINES:
        return []
    return [draw(at * step) for at in range(1, math.ceil(length / step - 1e-6))]


def _arrow(rows: Side, columns: Side, width: float, height: float) -> list[str]:
    if columns.stride == 1:
        y = height + 8
        return [f'<path class="arrow" d="M0 {y:.1f} h{min(width, 60):.1f} l-5 -3 m5 3 l-5 3"/>']
    if rows.stride == 1:
        return [f'<path class="arrow" d="M-8 0 v{min(height, 60):.1f} l-3 -5 m3 5 l3 -5"/>']
    return []


def _label(side: Side) -> str:
    if not side.name:
        return ""
    tile = "" if side.tile is None else f" by {side.tile}"
    return html.escape(f"{side.name}: {side.extent}{tile}")


# --- roofline ---------------------------------------------------------------------------------------------------------


def roofline_picture(bounds: Roofline) -> str:
    """Draw operations per second over operations per byte, both in powers of ten, with the kernel as a point."""
    width, height = 420.0, 220.0
    reached = bounds.flops / max(bounds.predicted_us, 1e-9) / 1e6
    left = math.floor(math.log10(max(min(bounds.intensity, bounds.ridge), 1e-3))) - 0.5
    right = math.ceil(math.log10(max(bounds.intensity, bounds.ridge, 1e-3))) + 0.5
    top = math.log10(bounds.tflops) + 0.4
    bottom = min(math.log10(max(reached, 1e-6)), top - 3) - 0.4

    def x(value: float) -> float:
        return width * (math.log10(max(value, 1e-9)) - left) / (right - left)

    def y(value: float) -> float:
        return height * (top - math.log10(max(value, 1e-12))) / (top - bottom)

    start = 10**left
    roof = f"M{x(start):.1f} {y(start * bounds.gb_per_s / 1e3):.1f} L{x(bounds.ridge):.1f} {y(bounds.tflops):.1f} H{width:.1f}"
    point_x, point_y = min(max(x(bounds.intensity), 0.0), width), y(reached)
    note_x, anchor = (point_x - 8, "end") if point_x > width / 2 else (point_x + 8, "start")
    note_y = min(max(point_y, 0) + 22, height - 4)
    ticks = [
        f'<text class="tick" x="{x(10.0**at):.1f}" y="{height + 14:.0f}" text-anchor="middle">{10.0**at:g}</text>'
        for at in range(math.ceil(left), math.floor(right) + 1)
    ]
    return (
        f'<svg class="roofline" viewBox="-10 -24 {width + 30:.0f} {height + 64:.0f}" width="{width + 30:.0f}" height="{height + 64:.0f}">'
        f'<clipPath id="inside"><rect width="{width}" height="{height}"/></clipPath>'
        f'<rect class="frame" width="{width}" height="{height}"/>'
        f'<path class="roof" clip-path="url(#inside)" d="{roof}"/>'
        f'<circle class="point" cx="{point_x:.1f}" cy="{min(max(point_y, 0), height):.1f}" r="5"/>'
        f'<text x="{note_x:.1f}" y="{note_y:.1f}" text-anchor="{anchor}">{reached:.3g} TFLOP/s predicted</text>'
        f'<text x="{width - 6:.0f}" y="{y(bounds.tflops) - 6:.1f}" text-anchor="end">{bounds.tflops:g} TFLOP/s, {html.escape(bounds.unit)}</text>'
        f'{"".join(ticks)}<text x="{width / 2:.0f}" y="{height + 34:.0f}" text-anchor="middle">operations per byte (memory: {bounds.gb_per_s:g} GB/s)</text>'
        "</svg>"
    )


def accesses(facts: KernelFacts, decisions: Decisions) -> list[tuple[str, str]]:
    """List caption and picture of each access."""
    each = ((op, sides(op, facts, decisions)) for op in facts.memory_ops)
    return [(caption(op, dims), access_picture(dims)) for op, dims in each]
