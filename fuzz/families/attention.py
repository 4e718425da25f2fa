"""Attention-like kernels: scores, a softmax in one pass or two, and the matmul with values."""

from __future__ import annotations

from ..cases import Case, Draft, Draw, Family, case_of, precision_of
from ..inputs import Input


def _draw(draw: Draw) -> Draft:
    heads, features = ((1, 2), (8, 16, 24)) if draw.small else ((1, 3), (16, 32, 64, 64, 64, 40, 128))
    few = (1, 8, 17, 24) if draw.small else (1, 33, 64, 128, 129, 200, 256, 320)
    sizes = {
        "b": draw.rng.choice(heads),
        "m": draw.rng.choice(few),
        "n": draw.rng.choice(few),
        "d": draw.rng.choice(features),
    }
    options = {
        "dtype": draw.one("float16", "float16", "bfloat16", "float32"),
        "scale": draw.one("q_in_loop", "q_in_loop", "q_before", "scores", "none"),
        "softmax": draw.one("online", "online", "online2", "whole", "relu"),
        "mask": draw.one("none", "none", "causal", "bias", "window", "hidden"),
        "keys": draw.one("transposed_view", "transposed_view", "plain"),
        "k_layout": draw.one("contiguous", "contiguous", "transposed", "padded"),
        "batch_tile": draw.one("tile", "tile", "grid"),
    }
    if draw.rng.random() < 0.4:  # forms that the cute backend supports
        options |= {"batch_tile": "grid", "keys": "plain", "k_layout": "contiguous"}
        options |= {"dtype": draw.one("float16", "bfloat16"), "softmax": draw.one("online", "online2")}
        sizes["d"] = 16 if draw.small else draw.rng.choice((32, 64, 128))
    return draw.draft(sizes, options)


def _scores(o: dict[str, str], keys: str) -> list[str]:
    """Return the lines that compute a tile of scores from ``q``."""
    operand = {"q_in_loop": "(q * 0.25)", "q_before": "q"}.get(o["scale"], "q")
    lines = [
        f"scores = {'torch.matmul' if o['batch_tile'] == 'grid' else 'torch.bmm'}({operand}, {keys}).to(torch.float32)"
    ]
    if o["scale"] == "scores":
        lines.append("scores = scores * 0.25")
    return lines


def _seen(o: dict[str, str], m: str, n: str) -> str:
    """Return the condition under which a query attends to a key, from the texts of their indices; the first queries see no
    key that is not ``hidden``."""
    return {
        "causal": f"{m}[:, None] >= {n}[None, :]",
        "hidden": f"({m}[:, None] - {n}[None, :] >= 9) & ({m}[:, None] - {n}[None, :] < 70)",
    }.get(o["mask"], f"({m}[:, None] // 2 >= {n}[None, :] // 2 - 8)")


def _low(o: dict[str, str]) -> str:
    """Return the score of a key that a query does not attend to: all keys count if a query sees none."""
    return "-1.0e30" if o["mask"] == "hidden" else "-20.0"


def _masked(o: dict[str, str], lead: str) -> list[str]:
    if o["mask"] == "bias":
        return [f"scores = scores + bias[{lead}t, c].to(torch.float32)"]
    if o["mask"] == "none":
        return []
    extra = "" if o["batch_tile"] == "grid" else "[None, :, :]"
    return [f"scores = torch.where(({_seen(o, 't.index', 'c.index')}){extra}, scores, {_low(o)})"]


def _kernel(o: dict[str, str]) -> list[str]:
    grid = o["batch_tile"] == "grid"
    lead, shape, column = ("i, ", "t", "[:, None]") if grid else ("i, ", "i, t", "[:, :, None]")
    keys = (
        f"k[{lead}:, c]" if o["keys"] == "transposed_view" else f"k[{lead}c, :].transpose({'0, 1' if grid else '1, 2'})"
    )
    whole = o["softmax"] == "whole"
    exp = "torch.exp2" if o["softmax"] == "online2" else "torch.exp"
    scores = [*_scores(o, keys), *_masked(o, lead)]
    accumulate = "torch.addmm(ACC, P, V)" if grid else "torch.baddbmm(ACC, P, V)"

    def gemm(acc: str, weights: str) -> str:
        return accumulate.replace("ACC", acc).replace("P", f"{weights}.to(v.dtype)").replace("V", f"v[{lead}c, :]")

    start = [
        f"q = queries[{lead}t, :]{' * 0.25' if o['scale'] == 'q_before' else ''}",
        f"acc = hl.zeros([{shape}, d], dtype=torch.float32)",
    ]
    if o["softmax"] == "relu":
        body = [
            *start,
            "for c in hl.tile(n):",
            *(f"    {line}" for line in [*scores, f"acc = {gemm('acc', 'torch.relu(scores)')}"]),
        ]
        return [*body, f"out[{lead}t, :] = acc"]
    start += [
        f"high = hl.full([{shape}], float('-inf'), dtype=torch.float32)",
        f"total = hl.zeros([{shape}], dtype=torch.float32)",
    ]
    raised = [
        "raised = torch.maximum(high, torch.amax(scores, -1))",
        f"weights = {exp}(scores - raised{column})",
        f"shrink = {exp}(high - raised)",
        "total = total * shrink + weights.sum(-1)",
    ]
    if whole:  # maxima and denominators first, then the matmul
        first = ["for c in hl.tile(n):", *(f"    {line}" for line in [*scores, *raised, "high = raised"])]
        second = [
            "for c in hl.tile(n):",
            *(
                f"    {line}"
                for line in [
                    *scores,
                    f"weights = torch.exp(scores - high{column}) / total{column}",
                    f"acc = {gemm('acc', 'weights')}",
                ]
            ),
        ]
        return [*start, *first, *second, f"out[{lead}t, :] = acc"]
    loop = [*scores, *raised, f"acc = {gemm(f'acc * shrink{column}', 'weights')}", "high = raised"]
    return [*start, "for c in hl.tile(n):", *(f"    {line}" for line in loop), f"out[{lead}t, :] = acc / total{column}"]


def _reference(o: dict[str, str]) -> list[str]:
    keys = "k" if o["keys"] == "transposed_view" else "k.transpose(1, 2)"
    lines = [f"scores = torch.bmm(queries{'' if o['scale'] in ('none', 'scores') else ' * 0.25'}, {keys})"]
    if o["scale"] == "scores":
        lines.append("scores = scores * 0.25")
    if o["mask"] == "bias":
        lines.append("scores = scores + bias")
    elif o["mask"] != "none":
        seen = _seen(o, "torch.arange(queries.shape[1])", "torch.arange(v.shape[1])")
        lines.append(f"scores = torch.where(({seen})[None], scores, {_low(o)})")
    if o["softmax"] == "relu":
        return [*lines, "return torch.bmm(torch.relu(scores), v)"]
    if o["softmax"] == "whole":  # as the kernel: gradients of scores are operands of products twice, and partly cancel
        first = [line.replace("scores", "first") for line in lines]
        first += [
            "high = torch.max(first, -1, keepdim=True).values",
            "total = torch.exp(first - high).sum(-1, keepdim=True)",
        ]
        return [*first, *lines, "return torch.bmm(torch.exp(scores - high) / total, v)"]
    base = " * 0.6931471805599453" if o["softmax"] == "online2" else ""
    return [*lines, f"return torch.bmm(torch.softmax(scores{base}, -1), v)"]


def _render(draft: Draft) -> Case:
    o = dict(draft.options)
    b, m, n, d = (draft.sizes[key] for key in "bmnd")
    keys = (b, d, n) if o["keys"] == "transposed_view" else (b, n, d)
    inputs = [
        Input(name="queries", shape=(b, m, d), dtype=o["dtype"]),
        Input(name="k", shape=keys, dtype=o["dtype"], layout=o["k_layout"], data="small"),
        Input(name="v", shape=(b, n, d), dtype=o["dtype"]),
    ]
    if o["mask"] == "bias":
        inputs.append(Input(name="bias", shape=(b, m, n), dtype=o["dtype"]))
    tiled = (
        "for i, t in hl.tile([b, m])"
        if o["batch_tile"] == "tile"
        else "for i, t in hl.tile([b, m], block_size=[1, None])"
    )
    body = _kernel(o)
    if o["batch_tile"] == "grid":
        body = [line.replace("[i, ", "[i.begin, ") for line in body]
    kernel = [
        "b, m, d = queries.shape",
        "d = hl.specialize(d)",
        "n = v.size(1)",
        "out = torch.empty([b, m, d], dtype=torch.float32, device=v.device)",
        f"{tiled}:",
        *(f"    {line}" for line in body),
        "return out",
    ]
    operand = "tf32" if o["dtype"] == "float32" else o["dtype"]
    # torch.bmm rounds scores to the type of its operands, and their exponentials have the absolute error of that
    precision = precision_of("float32", o["dtype"], operands=operand)
    return case_of(draft, inputs, kernel, _reference(o), precision, ("triton", "cute"))


FAMILY = Family(
    name="attention",
    draw=_draw,
    render=_render,
    simplest={"dtype": "float16", "scale": "none", "softmax": "relu", "mask": "none", "keys": "transposed_view", "k_layout": "contiguous", "batch_tile": "tile", "shapes": "static"},
    weight=2,
)  # fmt: skip
