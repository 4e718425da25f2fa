"""Reductions of whole rows: chains with sums, extrema, variances, softmax forms; planes of two dimensions."""

from __future__ import annotations

from ..cases import Case, Draft, Draw, Family, case_of, precision_of
from ..chains import ELEMENTWISE, REDUCING, ROWS, chain
from ..inputs import Input


def _draw(draw: Draw) -> Draft:
    sizes = {"m": draw.size(), "n": draw.size(long=True)}
    options = {
        "dtype": draw.float(),
        "out": draw.float(),
        "compute": draw.one("float32", "float32", "native"),
        "layout": draw.layout(),
        "weight": draw.one("no", "row", "column"),
        "gives": draw.one("rows", "rows", "sums"),
    }
    ops = (*ELEMENTWISE, *REDUCING, *REDUCING, *ROWS, *ROWS)
    return draw.draft(sizes, options, draw.steps(ops, 2, 7))


def _render(draft: Draft) -> Case:
    m, n, o = draft.sizes["m"], draft.sizes["n"], draft.options
    inputs = [Input(name="x", shape=(m, n), dtype=o["dtype"], layout=o["layout"])]
    kernel, reference, values = ["a0 = x[t, :]"], ["a0 = x"], ["a0"]
    native = o["compute"] == "native"
    if not native:
        kernel = ["a0 = x[t, :].to(torch.float32)"]
    if o["weight"] == "row":
        inputs.append(Input(name="w", shape=(n,), dtype=o["dtype"], data="positive"))
        kernel.append("a1 = a0 * w[:][None, :]" if native else "a1 = a0 * w[:].to(torch.float32)[None, :]")
        reference.append("a1 = a0 * w[None, :]")
    elif o["weight"] == "column":
        inputs.append(Input(name="w", shape=(m,), dtype="float32", data="positive"))
        kernel.append("a1 = a0 * w[t][:, None]")
        reference.append("a1 = a0 * w[:, None]")
    if o["weight"] != "no":
        values.append("a1")
    lines, last = chain(draft.steps, values)
    sums = o["gives"] == "sums"
    result = f"({last}).mean(1)" if sums else last
    kernel = [
        f"out = torch.empty({'[x.size(0)]' if sums else 'x.shape'}, dtype=torch.{o['out']}, device=x.device)",
        "for t in hl.tile(x.size(0)):",
        *(f"    {line}" for line in [*kernel, *lines]),
        f"    out[{'t' if sums else 't, :'}] = ({result}).to(out.dtype)",
        "return out",
    ]
    precision = precision_of(o["dtype"] if native else "float32")
    return case_of(draft, inputs, kernel, [*reference, *lines, f"return {result}"], precision, ("triton", "cute"))


FAMILY = Family(
    name="rows",
    draw=_draw,
    render=_render,
    simplest={"dtype": "float32", "out": "float32", "compute": "float32", "layout": "contiguous", "weight": "no", "gives": "rows", "shapes": "static"},
    weight=2,
)  # fmt: skip
