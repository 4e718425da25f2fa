"""Several loops in one kernel, loops over hl.grid, loops whose bounds are data."""

from __future__ import annotations

from ..cases import Case, Draft, Draw, Family, case_of, precision_of
from ..chains import ELEMENTWISE, chain
from ..inputs import Input

#: Lines of the kernel and of the reference. CHAIN is replaced by the chain from ``a0`` to LAST.
FORMS = {
    "independent": (
        ["out = torch.empty_like(x, dtype=torch.float32)", "sums = torch.empty([y.size(0)], dtype=torch.float32, device=x.device)",
         "for t, u in hl.tile(x.shape):", "    a0 = x[t, u].to(torch.float32)", "    CHAIN", "    out[t, u] = LAST",
         "for t in hl.tile(y.size(0)):", "    sums[t] = y[t, :].to(torch.float32).mean(1)", "return out, sums"],
        ["a0 = x", "CHAIN", "return LAST, y.mean(1)"],
    ),
    "barrier": (
        ["sums = torch.empty([x.size(1)], dtype=torch.float32, device=x.device)", "out = torch.empty_like(x, dtype=torch.float32)",
         "for u in hl.tile(x.size(1)):", "    sums[u] = x[:, u].to(torch.float32).mean(0)", "hl.barrier()",
         "for t, u in hl.tile(x.shape):", "    a0 = x[t, u].to(torch.float32) - sums[u][None, :]", "    CHAIN", "    out[t, u] = LAST", "return out"],
        ["a0 = x - x.mean(0)[None, :]", "CHAIN", "return LAST"],
    ),
    "own_rows": (
        ["middle = torch.empty_like(x, dtype=torch.float32)", "out = torch.empty_like(x, dtype=torch.float32)", "for t in hl.tile(x.size(0)):",
         "    total = hl.zeros([t], dtype=torch.float32)", "    for c in hl.tile(x.size(1)):", "        a0 = x[t, c].to(torch.float32)", "        CHAIN",
         "        middle[t, c] = LAST", "        total = total + (LAST).sum(1)",
         "    for c in hl.tile(x.size(1)):", "        out[t, c] = middle[t, c] + total[:, None] * 0.01", "return out"],
        ["a0 = x", "CHAIN", "return LAST + (LAST).sum(1, keepdim=True) * 0.01"],
    ),
    "grid": (
        ["out = torch.empty_like(x, dtype=torch.float32)", "for i in hl.grid(x.size(0)):", "    for u in hl.tile(x.size(1)):",
         "        a0 = x[i, u].to(torch.float32)", "        CHAIN", "        out[i, u] = LAST + y[i, 0]", "return out"],
        ["a0 = x", "CHAIN", "return LAST + y[:, 0][:, None]"],
    ),
    "grid_inside": (
        ["out = torch.empty_like(x, dtype=torch.float32)", "for u in hl.tile(x.size(1)):", "    state = hl.zeros([u], dtype=torch.float32)",
         "    for i in hl.grid(x.size(0)):", "        a0 = x[i, u].to(torch.float32)", "        CHAIN", "        state = state * 0.5 + LAST",
         "        out[i, u] = state", "return out"],
        ["a0 = x", "CHAIN", "full = (LAST) + 0.0 * x", "state, states = torch.zeros_like(x[0]), []", "for at in range(x.shape[0]):",
         "    state = state * 0.5 + full[at]", "    states.append(state)", "return torch.stack(states)"],
    ),
    "static": (
        ["out = torch.empty_like(x, dtype=torch.float32)", "for t, u in hl.tile(x.shape):", "    a0 = x[t, u].to(torch.float32)",
         "    for j in hl.static_range(3):", "        a0 = a0 * 0.5 + y[t, 0][:, None] * (j + 1)", "    CHAIN", "    out[t, u] = LAST", "return out"],
        ["a0 = x", "for j in range(3):", "    a0 = a0 * 0.5 + y[:, 0][:, None] * (j + 1)", "CHAIN", "return LAST"],
    ),
    "jagged": (
        ["out = torch.empty([offsets.size(0) - 1], dtype=torch.float32, device=x.device)", "for i in hl.grid(offsets.size(0) - 1):",
         "    total = hl.zeros([1], dtype=torch.float32)", "    for c in hl.tile(offsets[i], offsets[i + 1]):", "        a0 = flat[c].to(torch.float32)",
         "        CHAIN", "        total = total + (LAST).sum(0) * 0.05", "    out[i] = total.sum(0)", "return out"],
        ["a0 = flat", "CHAIN", "sums = torch.cat([torch.zeros(1, dtype=torch.float64), torch.cumsum((LAST) * 0.05, 0)])", "return sums[offsets[1:]] - sums[offsets[:-1]]"],
    ),
    "jagged_rows": (
        ["out = torch.empty([offsets.size(0) - 1, x.size(1)], dtype=torch.float32, device=x.device)", "for i in hl.grid(offsets.size(0) - 1):",
         "    begin, end = offsets[i], offsets[i + 1]", "    for u in hl.tile(x.size(1)):", "        total = hl.zeros([u], dtype=torch.float32)",
         "        for c in hl.tile(begin, end):", "            a0 = pile[c, u].to(torch.float32)", "            CHAIN", "            total = total + (LAST).sum(0) * 0.05",
         "        out[i, u] = total", "return out"],
        ["a0 = pile", "CHAIN", "zero = torch.zeros(1, x.shape[1], dtype=torch.float64)", "sums = torch.cat([zero, torch.cumsum((LAST) * 0.05, 0)])",
         "return sums[offsets[1:]] - sums[offsets[:-1]]"],
    ),
    "triangle": (
        ["out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)", "for t in hl.tile(x.size(0)):", "    total = hl.zeros([t], dtype=torch.float32)",
         "    for c in hl.tile(min(x.size(1), x.size(0))):", "        a0 = x[t, c].to(torch.float32)", "        CHAIN",
         "        total = total + torch.where(c.index[None, :] <= t.index[:, None], LAST, 0.0).sum(1) * 0.1", "    out[t] = total", "return out"],
        ["side = min(x.shape)", "a0 = x[:, :side]", "CHAIN", "seen = torch.arange(side)[None, :] <= torch.arange(x.shape[0])[:, None]",
         "return torch.where(seen, LAST, 0.0).sum(1) * 0.1"],
    ),
}  # fmt: skip


def _draw(draw: Draw) -> Draft:
    sizes = {"m": draw.size(), "n": draw.size(), "pieces": draw.rng.choice((1, 3, 7))}
    options = {"dtype": draw.float(), "layout": draw.layout(), "form": draw.one(*FORMS)}
    return draw.draft(sizes, options, draw.steps(ELEMENTWISE, 0, 4))


def _filled(template: list[str], lines: list[str], last: str) -> list[str]:
    filled = []
    for line in template:
        indent = line[: len(line) - len(line.lstrip())]
        filled += [indent + each for each in lines] if line.strip() == "CHAIN" else [line.replace("LAST", last)]
    return filled


def _render(draft: Draft) -> Case:
    o, (m, n) = draft.options, (draft.sizes["m"], draft.sizes["n"])
    inputs = [
        Input(name="x", shape=(m, n), dtype=o["dtype"], layout=o["layout"]),
        Input(name="y", shape=(m, 3), dtype="float32"),
        Input(name="offsets", shape=(draft.sizes["pieces"] + 1,), dtype="int64", data=f"offsets:{m}"),
        Input(name="flat", shape=(m,), dtype=o["dtype"]),
        Input(name="pile", shape=(m, n), dtype=o["dtype"]),
    ]
    lines, last = chain(draft.steps, ["a0"])
    ours, theirs = FORMS[o["form"]]
    return case_of(
        draft, inputs, _filled(ours, lines, last), _filled(theirs, lines, f"({last})"), precision_of("float32")
    )


FAMILY = Family(
    name="loops",
    draw=_draw,
    render=_render,
    simplest={"dtype": "float32", "layout": "contiguous", "form": "independent", "shapes": "static"},
    weight=2,
)
