"""Matmuls: spellings, layouts, batches, prologues, epilogues of elements and of whole rows."""

from __future__ import annotations

from collections.abc import Mapping

from ..cases import Case, Draft, Draw, Family, case_of, precision_of
from ..chains import UNARY, chain
from ..inputs import Input
from ..judge import Precision

#: The accumulation of the matmul of ``x`` and ``y`` tiles.
SPELLINGS = {
    "addmm": "{acc} = torch.addmm({acc}, {x}, {y})",
    "dot": "{acc} = hl.dot({x}, {y}, acc={acc})",
    "matmul": "{acc} = {acc} + torch.matmul({x}, {y})",
    "at": "{acc} += {x} @ {y}",
}
BATCHED = {
    "addmm": "{acc} = torch.baddbmm({acc}, {x}, {y})",
    "dot": "{acc} = hl.dot({x}, {y}, acc={acc})",
    "matmul": "{acc} = {acc} + torch.bmm({x}, {y})",
    "at": "{acc} = {acc} + torch.matmul({x}, {y})",
}
#: After the matmul, over whole rows of it.
ROW_EPILOGUES = {
    "none": "acc",
    "rms": "acc * torch.rsqrt((acc * acc).mean(1, keepdim=True) + 0.5)",
    "softmax": "torch.softmax(acc, 1)",
    "norm": "(acc - acc.mean(1)[:, None]) * torch.rsqrt(acc.var(1, correction=0)[:, None] + 0.5)",
    "lse": "acc - torch.logsumexp(acc, 1, keepdim=True)",
}


def _draw(draw: Draw) -> Draft:
    sizes = {"m": draw.size(), "k": draw.size(), "n": draw.size()}
    dtype = draw.one("float32", "float16", "float16", "bfloat16", "bfloat16", "float8_e4m3fn")
    fp8 = dtype.startswith("float8")
    options = {
        "dtype": dtype,
        "spelling": "dot" if fp8 else draw.one(*SPELLINGS),
        "x_layout": draw.one("contiguous", "contiguous", "transposed", "padded", "offset"),
        "y_layout": draw.one("contiguous", "contiguous", "transposed", "padded", "strided"),
        "batch": draw.one("no", "no", "no", "yes"),
        "whole_k": draw.one("no", "no", "no", "yes"),
        "prologue": "none" if fp8 else draw.one("none", "none", "none", "scale", "relu", "rows"),
        "bias": draw.one("none", "row", "column", "residual"),
        "rows": draw.one("none", "none", "none", *ROW_EPILOGUES),
        "out": draw.float(),
        "twice": draw.one("no", "no", "no", "yes"),
    }
    if draw.rng.random() < 0.3:  # forms that the cute backend supports
        options |= {"batch": "no", "whole_k": "no", "prologue": "none", "twice": "no", "spelling": "dot"}
        options |= {"x_layout": draw.one("contiguous", "transposed"), "y_layout": draw.one("contiguous", "transposed")}
        sizes = {key: max(16, size // 16 * 16) for key, size in sizes.items()}
    elif draw.rng.random() < 0.3:
        sizes = {key: max(16, size // 16 * 16) for key, size in sizes.items()}
    return draw.draft(sizes, options, draw.steps(tuple(UNARY), 0, 3))


def _inputs(draft: Draft, batched: bool) -> list[Input]:
    o, (m, k, n) = draft.options, (draft.sizes[key] for key in "mkn")
    lead = (3,) if batched else ()
    inputs = [
        Input(name="x", shape=(*lead, m, k), dtype=o["dtype"], layout=o["x_layout"], data="small"),
        Input(name="y", shape=(*lead, k, n), dtype=o["dtype"], layout=o["y_layout"], data="small"),
    ]
    if o["prologue"] == "rows":
        inputs.append(Input(name="s", shape=(m,), dtype="float32", data="positive"))
    if o["bias"] != "none":
        shape = {"row": (n,), "column": (m,), "residual": (*lead, m, n)}[o["bias"]]
        of = "float32" if o["dtype"].startswith("float8") else o["dtype"]
        inputs.append(Input(name="b", shape=shape, dtype=of))
    if o["twice"] == "yes":
        inputs.append(Input(name="z", shape=(*lead, k, n), dtype=o["dtype"], layout=o["y_layout"], data="small"))
    return inputs


def _prologue(draft: Draft, load: str, rows: str) -> tuple[str, str]:
    """Return the first operand in the kernel and in the reference."""
    dtype = draft.options["dtype"]
    cast = f".to(torch.{dtype})"
    return {
        "none": (load, "x"),
        "scale": (f"({load} * 0.5){cast}", "(x * 0.5)"),
        "relu": (f"torch.relu({load})", "torch.relu(x)"),
        "rows": (f"({load}.to(torch.float32) * {rows}){cast}", "(x * s[:, None])"),
    }[draft.options["prologue"]]


def _render(draft: Draft) -> Case:
    o = draft.options
    batched, rowwise = o["batch"] == "yes", o["rows"] != "none" and o["batch"] == "no"
    lead, inputs = ("b0, " if batched else ""), _inputs(draft, batched)
    spelling, u = (BATCHED if batched else SPELLINGS)[o["spelling"]], ":" if rowwise else "u"
    k = ":" if o["whole_k"] == "yes" else "c"
    x, their_x = _prologue(draft, f"x[{lead}t, {k}]", "s[t][None, :, None]" if batched else "s[t][:, None]")
    operands = {"acc": "y", "other": "z"} if o["twice"] == "yes" else {"acc": "y"}
    accs = list(operands)
    products = [spelling.format(acc=acc, x=x, y=f"{y}[{lead}{k}, {u}]") for acc, y in operands.items()]
    side = "y.size(-1)" if rowwise else "u"
    loop = f"{lead}t{'' if rowwise else ', u'}"
    extents = "x.size(0)" if rowwise else f"[{'x.size(0), ' if batched else ''}x.size(-2), y.size(-1)]"
    zeros = [f"{name} = hl.zeros([{lead}t, {side}], dtype=torch.float32)" for name in accs]
    walk = ["for c in hl.tile(x.size(-1)):", *(f"    {each}" for each in products)] if k == "c" else products
    after, theirs_after = ([], []) if len(accs) == 1 else (["acc = acc * torch.sigmoid(other)"],) * 2
    row = f"acc = {ROW_EPILOGUES[o['rows'] if rowwise else 'none']}"
    lines, last = chain(draft.steps, ["acc"])
    bias = {
        "none": ("", ""),
        "row": (f" + b[{u}]", " + b"),
        "column": (" + b[t][:, None]", " + b[:, None]"),
        "residual": (f" + b[{lead}t, {u}]", " + b"),
    }[o["bias"]]
    shape = f"[{'x.size(0), ' if batched else ''}x.size(-2), y.size(-1)]"
    tail = [*after, row, *lines, f"out[{lead}t, {u}] = ({last}{bias[0]}).to(out.dtype)"]
    kernel = [
        *(["hl.specialize(y.size(-1))"] if rowwise else []),
        f"out = torch.empty({shape}, dtype=torch.{o['out']}, device=x.device)",
        f"for {loop} in hl.tile({extents}):",
        *(f"    {each}" for each in [*zeros, *walk, *tail]),
        "return out",
    ]
    theirs = [f"{acc} = torch.matmul({their_x}, {y})" for acc, y in operands.items()]
    theirs += [*theirs_after, row, *lines, f"return {last}{bias[1]}"]
    return case_of(draft, inputs, kernel, theirs, _precision(o), ("triton", "cute"))


def _precision(o: Mapping[str, str]) -> Precision:
    """Return the sources of rounding: operands that a prologue computes, and partial sums in the dtype of torch.matmul.

    Tensor cores of Hopper accumulate fp8 matmuls in about 14 bits, which is less precise than TF32.
    """
    rounded = o["dtype"] if o["dtype"] in ("float16", "bfloat16") else "float32"
    operands = (
        "tf32" if o["dtype"] in ("float32", "float8_e4m3fn") else rounded if o["prologue"] != "none" else "float32"
    )
    return precision_of(rounded if o["spelling"] in ("matmul", "at") else "float32", operands=operands)


FAMILY = Family(
    name="products",
    draw=_draw,
    render=_render,
    simplest={"dtype": "float16", "spelling": "dot", "x_layout": "contiguous", "y_layout": "contiguous", "batch": "no", "whole_k": "no", "prologue": "none", "bias": "none", "rows": "none", "out": "float32", "twice": "no", "shapes": "static"},
    weight=3,
)  # fmt: skip
