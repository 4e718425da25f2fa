"""Loads and stores through index tensors and through arithmetic on indices."""

from __future__ import annotations

from ..cases import Case, Draft, Draw, Family, case_of, precision_of
from ..chains import ELEMENTWISE, chain
from ..inputs import Input

#: Loops and their tiles, lines of the kernel up to ``a0``, store, and the reference's ``a0`` and result ``{v}``.
FORMS = {
    "rows": ("t, u in hl.tile([index.size(0), table.size(1)])", ["at = index[t]", "a0 = table[at, u].to(torch.float32)"], "out[t, u]", "table[index]", "{v}"),
    "whole_rows": ("t in hl.tile(index.size(0))", ["at = index[t]", "a0 = table[at, :].to(torch.float32)"], "out[t, :]", "table[index]", "{v}"),
    "load": ("t, u in hl.tile([index.size(0), table.size(1)])", ["a0 = hl.load(table, [index[t], u]).to(torch.float32)"], "out[t, u]", "table[index]", "{v}"),
    "elements": ("t, u in hl.tile([index.size(0), table.size(1)])", ["a0 = table[index[t][:, None], columns[u][None, :]].to(torch.float32)"], "out[t, u]", "table[index][:, columns]", "{v}"),
    "scatter": ("t, u in hl.tile([index.size(0), table.size(1)])", ["a0 = table[index[t], u].to(torch.float32)"], "out[order[t], u]", "table[index]", "torch.zeros_like({v}).index_copy(0, order, {v})"),
    "shifted": ("t, u in hl.tile([index.size(0), table.size(1)])", ["before = hl.load(table, [index[t], u.index - 1], extra_mask=(u.index > 0)[None, :]).to(torch.float32)", "a0 = table[index[t], u].to(torch.float32) - before * 0.5"], "out[t, u]", "table[index] - 0.5 * torch.nn.functional.pad(table[index][:, :-1], (1, 0))", "{v}"),
    "backwards": ("t, u in hl.tile([index.size(0), table.size(1)])", ["a0 = table[index[t], table.size(1) - 1 - u.index].to(torch.float32)"], "out[t, u]", "table[index].flip(1)", "{v}"),
    "bag": ("t, u in hl.tile([index.size(0), table.size(1)])", ["a0 = hl.zeros([t, u], dtype=torch.float32)", "for j in hl.grid(bag.size(1)):", "    a0 = a0 + table[bag[t, j], u].to(torch.float32) * 0.25"], "out[t, u]", "table[bag].sum(1) * 0.25", "{v}"),
    "chunked_bag": ("t, u in hl.tile([index.size(0), table.size(1)])", ["a0 = hl.zeros([t, u], dtype=torch.float32)", "for j in hl.tile(bag.size(1)):", "    a0 = a0 + (table[bag[t, j], u].to(torch.float32) * 0.25).sum(1)"], "out[t, u]", "table[bag].sum(1) * 0.25", "{v}"),
}  # fmt: skip


def _draw(draw: Draw) -> Draft:
    sizes = {"rows": draw.size(), "n": draw.size(), "m": draw.size(), "bag": draw.rng.choice((1, 3, 8))}
    options = {
        "dtype": draw.float(),
        "layout": draw.layout(),
        "form": draw.one(*FORMS),
        "index": draw.one("int32", "int64"),
        "out": draw.float(),
    }
    return draw.draft(sizes, options, draw.steps(ELEMENTWISE, 0, 4))


def _render(draft: Draft) -> Case:
    o, size = draft.options, draft.sizes
    loop, loads, store, theirs, gives = FORMS[o["form"]]
    rows, n, m = size["rows"], size["n"], size["m"]
    inputs = [
        Input(name="table", shape=(rows, n), dtype=o["dtype"], layout=o["layout"]),
        Input(name="index", shape=(m,), dtype=o["index"], data=f"index:{rows}"),
        Input(name="columns", shape=(n,), dtype=o["index"], data=f"index:{n}"),
        Input(name="order", shape=(m,), dtype="int64", data="permutation"),
        Input(name="bag", shape=(m, size["bag"]), dtype=o["index"], data=f"index:{rows}"),
    ]
    lines, last = chain(draft.steps, ["a0"])
    kernel = [
        f"out = torch.empty([index.size(0), table.size(1)], dtype=torch.{o['out']}, device=table.device)",
        f"for {loop}:",
        *(f"    {line}" for line in [*loads, *lines]),
        f"    {store} = ({last}).to(out.dtype)",
        "return out",
    ]
    reference = [f"a0 = {theirs}", *lines, f"return {gives.format(v=f'({last})')}"]
    return case_of(draft, inputs, kernel, reference, precision_of("float32"))


FAMILY = Family(
    name="indexed",
    draw=_draw,
    render=_render,
    simplest={
        "dtype": "float32",
        "layout": "contiguous",
        "form": "rows",
        "index": "int64",
        "out": "float32",
        "shapes": "static",
    },
)
