"""Chains of integer and boolean operations, whose results are exact."""

from __future__ import annotations

from ..cases import Case, Draft, Draw, Family, Step, case_of
from ..inputs import Input
from ..judge import Precision

OPERATIONS = {
    "add": "{a} + {b}",
    "sub": "{a} - {b}",
    "mul": "{a} * 3",
    "and": "{a} & {b}",
    "or": "{a} | {b}",
    "xor": "{a} ^ {b}",
    "not": "~{a}",
    "shift_right": "{a} >> 2",
    "floordiv": "{a} // 7",
    "remainder": "{a} % 5",
    "maximum": "torch.maximum({a}, {b})",
    "minimum": "torch.minimum({a}, {b})",
    "clamp": "torch.clamp({a}, -20, 30)",
    "where": "torch.where({a} > {b}, {a}, {b} - 1)",
    "equal": "torch.where(({a} == {b}) | ({a} < 3), {a}, 7)",
    "abs": "torch.abs({a})",
    "more": "{a} + 117",
    "less": "{a} - 101",
}
REDUCTIONS = {
    "none": "{a}",
    "sum": "torch.sum({a}, 1)",
    "max": "torch.amax({a}, 1)",
    "min": "torch.amin({a}, 1)",
    "any": "({a} > 3).to(torch.int64).sum(1)",
    "argmax": "torch.argmax(first, 1)",
    "argmin": "torch.argmin(first, 1)",
    "cumsum": "torch.cumsum({a}, 1)",
    "prod": "torch.prod({a}, 1)",
}
#: Integers that wrap within a few operations, also in lanes out of range, which begin with 0.
NARROW = ("int8", "uint8", "int16")


def _draw(draw: Draw) -> Draft:
    sizes = {"m": draw.size(), "n": draw.size(long=True)}
    options = {"dtype": draw.one("int32", "int64", *NARROW), "layout": draw.layout(), "reduce": draw.one(*REDUCTIONS)}
    return draw.draft(sizes, options, draw.steps(tuple(OPERATIONS), 1, 7))


def _lines(steps: tuple[Step, ...], narrow: bool) -> tuple[list[str], str]:
    names, lines = ["a0", "a1"], []
    for number, step in enumerate(steps):
        a, b = names[step.a % len(names)], names[step.b % len(names)]
        value = OPERATIONS[step.op].format(a=a, b=b)
        # wide values stay far from the ends of 32 bits: the reference has 64; narrow ones wrap in both
        lines.append(f"v{number} = {value}" if narrow else f"v{number} = torch.clamp({value}, -1000, 1000)")
        names.append(f"v{number}")
    return lines, names[-1]


def _render(draft: Draft) -> Case:
    m, n, o = draft.sizes["m"], draft.sizes["n"], draft.options
    inputs = [
        Input(name="x", shape=(m, n), dtype=o["dtype"], layout=o["layout"], data="ints"),
        Input(name="y", shape=(n,), dtype=o["dtype"], data="ints"),
        Input(name="z", shape=(m, n), dtype="float32", data="distinct"),
    ]
    narrow = o["dtype"] in NARROW
    lines, last = _lines(draft.steps, narrow)
    reduce, rows = REDUCTIONS[o["reduce"]].format(a=last), o["reduce"] not in ("none", "cumsum")
    shape, to = ("[x.size(0)]", "t") if rows else ("x.shape", "t, :")
    kernel = [
        f"out = torch.empty({shape}, dtype=torch.int64, device=x.device)",
        "for t in hl.tile(x.size(0)):",
        "    a0, a1, first = x[t, :], y[:][None, :], z[t, :]",
        *(f"    {line}" for line in lines),
        f"    out[{to}] = ({reduce}).to(torch.int64)",
        "return out",
    ]
    whole = "" if rows else " + torch.zeros(x.shape, dtype=torch.int64)"
    reference = [
        *([f"x, y = x.to(torch.{o['dtype']}), y.to(torch.{o['dtype']})"] if narrow else []),
        "a0, a1, first = x, y[None, :].expand(x.shape), z",
        *lines,
        f"return ({reduce}).to(torch.int64){whole}",
    ]
    return case_of(draft, inputs, kernel, reference, Precision())


FAMILY = Family(
    name="integers",
    draw=_draw,
    render=_render,
    simplest={"dtype": "int32", "layout": "contiguous", "reduce": "none", "shapes": "static"},
)
