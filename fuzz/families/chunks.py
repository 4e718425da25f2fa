"""Loops over chunks of rows inside the grid loop, with carried values; one pass or two."""

from __future__ import annotations

from ..cases import Case, Draft, Draw, Family, case_of, precision_of
from ..chains import ELEMENTWISE, chain
from ..inputs import Input

#: Carried values: code before the loop, in it (``v`` is the chunk), the resulting column, and the reference's column.
CARRIED = {
    "sum": (["s = hl.zeros([t], dtype=torch.float32)"], ["s = s + {v}.sum(1)"], "s * 0.01", "{v}.sum(1) * 0.01"),
    "tile": (["s = hl.zeros([t, c0], dtype=torch.float32)"], ["s = s + {v}"], "s.sum(1) * 0.01", "{v}.sum(1) * 0.01"),
    "max": (["s = hl.full([t], float('-inf'), dtype=torch.float32)"], ["s = torch.maximum(s, torch.amax({v}, 1))"], "s", "{v}.amax(1)"),
    "min": (["s = hl.full([t], 1000.0, dtype=torch.float32)"], ["s = torch.minimum(s, {v}.amin(-1))"], "s", "{v}.amin(1)"),
    "squares": (
        ["s = hl.zeros([t], dtype=torch.float32)", "q = hl.zeros([t], dtype=torch.float32)"],
        ["s = s + torch.sum({v}, 1)", "q = q + torch.sum({v} * {v}, 1)"],
        "torch.sqrt(q / x.size(1)) + s / x.size(1)",
        "torch.sqrt(({v} * {v}).mean(1)) + {v}.mean(1)",
    ),
    "online": (
        ["h = hl.full([t], float('-inf'), dtype=torch.float32)", "s = hl.zeros([t], dtype=torch.float32)"],
        ["raised = torch.maximum(h, torch.amax({v}, 1))", "s = s * torch.exp(h - raised) + torch.exp({v} - raised[:, None]).sum(1)", "h = raised"],
        "h + torch.log(s)",
        "torch.logsumexp({v}, 1)",
    ),
}  # fmt: skip


def _draw(draw: Draw) -> Draft:
    sizes = {"m": draw.size(), "n": draw.size(long=True)}
    options = {
        "dtype": draw.float(),
        "layout": draw.layout(),
        "carried": draw.one(*CARRIED),
        "second": draw.one("yes", "yes", "no"),
        "grid": draw.one("tile", "tile", "tile", "single"),
    }
    return draw.draft(sizes, options, draw.steps(ELEMENTWISE, 0, 5))


def _render(draft: Draft) -> Case:
    m, n, o = draft.sizes["m"], draft.sizes["n"], draft.options
    inputs = [Input(name="x", shape=(m, n), dtype=o["dtype"], layout=o["layout"])]
    before, inside, column, reference = CARRIED[o["carried"]]
    lines, last = chain(draft.steps, ["a0"])
    row = ["a0 = x[t, c].to(torch.float32)", *lines]
    before = [line.replace("[t, c0]", "[t, size]") for line in before]
    size = ["size = hl.register_block_size(x.size(1))"] if o["carried"] == "tile" else []
    tiled = "hl.tile(x.size(1), block_size=size)" if size else "hl.tile(x.size(1))"
    second = o["second"] == "yes"
    kernel = [
        *size,
        f"out = torch.empty({'x.shape' if second else '[x.size(0)]'}, dtype=torch.float32, device=x.device)",
        "for t in hl.tile(x.size(0)):",
        *(f"    {line}" for line in before),
        f"    for c in {tiled}:",
        *(f"        {line}" for line in [*row, *(each.format(v=last) for each in inside)]),
        f"    column = {column}",
    ]
    if second:
        stored = f"        out[t, c] = torch.tanh({last}) + column[:, None] * 0.5"
        kernel += ["    for c in hl.tile(x.size(1)):", *(f"        {line}" for line in row), stored]
    else:
        kernel.append("    out[t] = column")
    if o["grid"] == "single":
        kernel = [
            line.replace("for t in hl.tile(x.size(0)):", "for t in hl.tile(x.size(0), block_size=1):")
            for line in kernel
        ]
    result = f"column[:, None] * 0.5 + torch.tanh({last})" if second else "column"
    theirs = ["a0 = x", *lines, f"column = {reference.format(v=f'({last})')}", f"return {result}"]
    return case_of(draft, inputs, [*kernel, "return out"], theirs, precision_of("float32"))


FAMILY = Family(
    name="chunks",
    draw=_draw,
    render=_render,
    simplest={"dtype": "float32", "layout": "contiguous", "carried": "sum", "second": "no", "grid": "tile", "shapes": "static"},
    weight=2,
)  # fmt: skip
