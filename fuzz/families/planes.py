"""Reductions over two dimensions, over a middle one, and over the rows of a column."""

from __future__ import annotations

from ..cases import Case, Draft, Draw, Family, case_of, precision_of
from ..chains import ELEMENTWISE, chain
from ..inputs import Input

#: The load of the kernel, and the reduction of ``v`` in the kernel and in the reference.
FORMS = {
    "both_at_once": ("x[t, :, :]", "torch.sum(torch.sum({v}, 2), 1) * 0.01", "({v}).sum((1, 2)) * 0.01"),
    "pair": ("x[t, :, :]", "torch.sum({v}, (1, 2)) * 0.01", "({v}).sum((1, 2)) * 0.01"),
    "mean_of_max": ("x[t, :, :]", "torch.amax({v}, 2).mean(1)", "({v}).amax(2).mean(1)"),
    "max_of_mean": ("x[t, :, :]", "{v}.mean(1).amax(-1)", "({v}).mean(1).amax(-1)"),
    "extrema": ("x[t, :, :]", "torch.amax({v}, (1, 2)) - torch.amin({v}, (1, 2))", "({v}).amax((1, 2)) - ({v}).amin((1, 2))"),
    "middle": ("x[t, :, u]", "torch.sum({v}, 1) * 0.1", "({v}).sum(1) * 0.1"),
    "middle_lse": ("x[t, :, u]", "torch.logsumexp({v}, 1)", "({v}).logsumexp(1)"),
    "first": ("x[:, t, u]", "{v}.mean(0)", "({v}).mean(0)"),
}  # fmt: skip


def _draw(draw: Draw) -> Draft:
    few = (1, 3, 8, 13) if draw.small else (1, 3, 16, 31, 33, 64)
    sizes = {"a": draw.rng.choice(few), "b": draw.rng.choice(few), "c": draw.size()}
    options = {"dtype": draw.float(), "layout": draw.layout(), "form": draw.one(*FORMS), "out": draw.float()}
    return draw.draft(sizes, options, draw.steps(ELEMENTWISE, 0, 4))


def _render(draft: Draft) -> Case:
    o = draft.options
    load, ours, theirs = FORMS[o["form"]]
    inputs = [Input(name="x", shape=tuple(draft.sizes.values()), dtype=o["dtype"], layout=o["layout"])]
    lines, last = chain(draft.steps, ["a0"])
    whole = {"first": ("t, u", "1, 2"), "middle": ("t, u", "0, 2")}.get(o["form"].split("_")[0], ("t", "0"))
    extents = ", ".join(f"x.size({axis})" for axis in whole[1].split(", "))
    kernel = [
        f"out = torch.empty([{extents}], dtype=torch.{o['out']}, device=x.device)",
        f"for {whole[0]} in hl.tile({f'[{extents}]' if ',' in extents else extents}):",
        f"    a0 = {load}.to(torch.float32)",
        *(f"    {line}" for line in lines),
        f"    out[{whole[0]}] = ({ours.format(v=last)}).to(out.dtype)",
        "return out",
    ]
    return case_of(
        draft, inputs, kernel, ["a0 = x", *lines, f"return {theirs.format(v=last)}"], precision_of("float32")
    )


FAMILY = Family(
    name="planes",
    draw=_draw,
    render=_render,
    simplest={"dtype": "float32", "out": "float32", "layout": "contiguous", "form": "both_at_once", "shapes": "static"},
)
