"""Scans along rows and columns: sums, products, maxima, recurrences of pairs; whole and in chunks with a carry."""

from __future__ import annotations

from ..cases import Case, Draft, Draw, Family, case_of, precision_of
from ..chains import ELEMENTWISE, chain
from ..inputs import Input

_HELPERS = (
    "def affine(a, b, c, d):\n    return a * c, b * c + d\n\n\ndef larger(a, b):\n    return torch.maximum(a, b)\n\n\n"
)
_REVERSED = ".flip(1)"

#: The scan in the kernel, in the reference, and the kind of data (decays are near 1).
FORMS = {
    "cumsum": ("torch.cumsum({v}, 1) * 0.1", "torch.cumsum({v}, 1) * 0.1"),
    "hl.cumsum": ("hl.cumsum({v}, dim=1) * 0.1", "torch.cumsum({v}, 1) * 0.1"),
    "reverse": ("hl.cumsum({v}, dim=1, reverse=True) * 0.1", "torch.cumsum({v}.flip(1), 1).flip(1) * 0.1"),
    "cumprod": ("torch.cumprod(torch.cos({v} * 0.01), 1)", "torch.cumprod(torch.cos({v} * 0.01), 1)"),
    "hl.cumprod": ("hl.cumprod(torch.cos({v} * 0.01), dim=1)", "torch.cumprod(torch.cos({v} * 0.01), 1)"),
    "maximum": ("hl.associative_scan(larger, {v}, dim=1)", "torch.cummax({v}, 1).values"),
    "reverse_maximum": ("hl.associative_scan(larger, {v}, dim=1, reverse=True)", "torch.cummax({v}.flip(1), 1).values.flip(1)"),
    "affine": ("hl.associative_scan(affine, (decay[t, :], {v}), dim=1)[1] * 0.1", "recurrence(decay, {v}) * 0.1"),
    "chunks": ("chunks", "torch.cumsum({v}, 1) * 0.1"),
    "chunks_affine": ("chunks", "recurrence(decay, {v}) * 0.1"),
}  # fmt: skip
_RECURRENCE = (
    "def recurrence(decay, v):\n    state, states = torch.zeros_like(v[:, 0]), []\n    for at in range(v.shape[1]):\n"
    "        state = state * decay[:, at] + v[:, at]\n        states.append(state)\n    return torch.stack(states, 1)\n\n\n"
)


def _draw(draw: Draw) -> Draft:
    sizes = {"m": draw.size(), "n": draw.size() if draw.rng.random() < 0.7 else draw.size(long=True)}
    options = {"dtype": draw.float(), "layout": draw.layout(), "form": draw.one(*FORMS), "out": draw.float()}
    return draw.draft(sizes, options, draw.steps(ELEMENTWISE, 0, 4))


def _render(draft: Draft) -> Case:
    m, n, o = draft.sizes["m"], draft.sizes["n"], draft.options
    inputs = [Input(name="x", shape=(m, n), dtype=o["dtype"], layout=o["layout"])]
    affine = o["form"].endswith("affine")
    if affine:
        inputs.append(Input(name="decay", shape=(m, n), dtype="float32", data="near_one"))
    lines, last = chain(draft.steps, ["a0"])
    ours, theirs = FORMS[o["form"]]
    head = [f"out = torch.empty(x.shape, dtype=torch.{o['out']}, device=x.device)", "for t in hl.tile(x.size(0)):"]
    if ours != "chunks":
        body = ["a0 = x[t, :].to(torch.float32)", *lines, f"out[t, :] = ({ours.format(v=f'({last})')}).to(out.dtype)"]
    else:
        step = f"scanned = hl.cumsum({last}, dim=1) + carry[:, None]"
        carried = f"carry = carry + ({last}).sum(1)"
        if affine:
            body = [
                "carry = hl.zeros([t], dtype=torch.float32)",
                "for c in hl.grid(x.size(1)):",
                "    a0 = x[t, c].to(torch.float32)",
                *(f"    {line}" for line in lines),
                f"    carry = carry * decay[t, c] + {last}",
                "    out[t, c] = (carry * 0.1).to(out.dtype)",
            ]
        else:
            body = [
                "carry = hl.zeros([t], dtype=torch.float32)",
                "for c in hl.tile(x.size(1)):",
                "    a0 = x[t, c].to(torch.float32)",
                *(f"    {line}" for line in lines),
                f"    {step}",
                "    out[t, c] = (scanned * 0.1).to(out.dtype)",
                f"    {carried}",
            ]
    case = case_of(
        draft,
        inputs,
        [*head, *(f"    {line}" for line in body), "return out"],
        ["a0 = x", *lines, f"return {theirs.format(v=f'({last})')}"],
        precision_of("float32"),
    )
    return Case(**{**vars(case), "kernel": _HELPERS + case.kernel, "reference": _RECURRENCE + case.reference})


FAMILY = Family(
    name="scans",
    draw=_draw,
    render=_render,
    simplest={"dtype": "float32", "layout": "contiguous", "form": "cumsum", "out": "float32", "shapes": "static"},
)
