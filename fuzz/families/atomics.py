"""Atomic additions and extrema into memory that several programs share."""

from __future__ import annotations

from ..cases import Case, Draft, Draw, Family, case_of, precision_of
from ..chains import ELEMENTWISE, chain
from ..inputs import Input

#: The allocation of the result, the loop, the atomic operation, and the reference, both of the chain's value ``{v}``.
FORMS = {
    "rows": ("torch.zeros([x.size(0)], dtype=torch.float32, device=x.device)", "t, u in hl.tile(x.shape)", "hl.atomic_add(out, [t], ({v} * 0.05).sum(1))", "({v} * 0.05).sum(1)"),
    "columns": ("torch.zeros([x.size(1)], dtype=torch.float32, device=x.device)", "t, u in hl.tile(x.shape)", "hl.atomic_add(out, [u], ({v} * 0.05).sum(0))", "({v} * 0.05).sum(0)"),
    "whole": ("torch.zeros([x.size(1)], dtype=torch.float32, device=x.device)", "t in hl.tile(x.size(0))", "hl.atomic_add(out, [slice(None)], ({v} * 0.05).sum(0))", "({v} * 0.05).sum(0)"),
    "segments": ("torch.zeros([x.size(0), x.size(1)], dtype=torch.float32, device=x.device)", "t, u in hl.tile(x.shape)", "hl.atomic_add(out, [index[t], u], {v})", "torch.zeros_like({v}).index_add(0, index, {v})"),
    "counts": ("torch.zeros([x.size(0)], dtype=torch.int32, device=x.device)", "t, u in hl.tile(x.shape)", "hl.atomic_add(out, [index[t]], (x[t, u] > 0.5).to(torch.int32).sum(1))", "torch.zeros(x.shape[0], dtype=torch.int64).index_add(0, index, (x > 0.5).long().sum(1))"),
    "max": ("torch.full([x.size(0)], -1000, dtype=torch.int32, device=x.device)", "t, u in hl.tile(x.shape)", "hl.atomic_max(out, [t], torch.amax(marks[t, u], 1))", "marks.amax(1)"),
    "min": ("torch.full([x.size(1)], 1000, dtype=torch.int32, device=x.device)", "t, u in hl.tile(x.shape)", "hl.atomic_min(out, [u], torch.amin(marks[t, u], 0))", "marks.amin(0)"),
    "scalar": ("torch.zeros([1], dtype=torch.float32, device=x.device)", "t, u in hl.tile(x.shape)", "hl.atomic_add(out, [0], ({v} * 0.01).sum())", "({v} * 0.01).sum()[None]"),
}  # fmt: skip


def _draw(draw: Draw) -> Draft:
    options = {"dtype": draw.float(), "layout": draw.layout(), "form": draw.one(*FORMS)}
    return draw.draft({"m": draw.size(), "n": draw.size()}, options, draw.steps(ELEMENTWISE, 0, 3))


def _render(draft: Draft) -> Case:
    o, (m, n) = draft.options, (draft.sizes["m"], draft.sizes["n"])
    made, loop, atomic, theirs = FORMS[o["form"]]
    inputs = [
        Input(name="x", shape=(m, n), dtype=o["dtype"], layout=o["layout"]),
        Input(name="index", shape=(m,), dtype="int64", data=f"index:{m}"),
        Input(name="marks", shape=(m, n), dtype="int32", data="ints"),
    ]
    lines, last = chain(draft.steps, ["a0"])
    columns = ":" if loop.startswith("t in") else "u"
    kernel = [
        f"out = {made}",
        f"for {loop}:",
        f"    a0 = x[t, {columns}].to(torch.float32)",
        *(f"    {line}" for line in lines),
        f"    {atomic.format(v=f'({last})')}",
        "return out",
    ]
    reference = ["a0 = x", *lines, f"return {theirs.format(v=f'({last})')}"]
    return case_of(draft, inputs, kernel, reference, precision_of("float32"))


FAMILY = Family(
    name="atomics",
    draw=_draw,
    render=_render,
    simplest={"dtype": "float32", "layout": "contiguous", "form": "rows", "shapes": "static"},
)
