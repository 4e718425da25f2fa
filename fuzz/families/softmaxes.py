"""Attention of 16-bit heads, for both backends: layouts, shared heads, masks, biases, weights and loops over the keys."""

from __future__ import annotations

from ..cases import Case, Draft, Draw, Family, case_of, precision_of
from ..inputs import Input


def _draw(draw: Draw) -> Draft:
    lengths = (1, 8, 17, 24) if draw.small else (1, 33, 64, 129, 200, 320, 577)
    features = (16, 32) if draw.small else (16, 32, 64, 64, 80, 96, 128, 128, 256)
    m, features_of_k = draw.rng.choice(lengths), draw.rng.choice(features)
    mask = draw.one("none", "causal", "causal", "window", "documents", "lengths")
    sizes = {
        "b": draw.rng.choice((1, 2)),
        "groups": draw.rng.choice((1, 2)),
        "shared": draw.rng.choice((1, 1, 2, 4)),
        "m": m,
        "n": m if mask in ("window", "documents") else draw.rng.choice((m, m, *lengths)),
        "d": features_of_k,
        "wide": draw.rng.choice((features_of_k, features_of_k, *features)),
    }
    options = {
        "dtype": draw.one("float16", "bfloat16"),
        "layout": draw.one("heads", "rows"),
        "scale": draw.one("scores", "q", "q_in_loop"),
        "formula": draw.one("none", "none", "cap", "slope", "dense", "keys"),
        "mask": mask,
        "weights": draw.one("exp", "exp", "exp2", "sink", "one", "relu", "sigmoid", "silu", "plain"),
        "loop": draw.one("all", "tile", "two"),
        "more": draw.one("none", "sums"),
    }
    return draw.draft(sizes, options)


def _hidden(o: dict[str, str]) -> str:
    """Return the score of a hidden key. It is finite where the first keys of a loop may all be hidden from a query."""
    return "float('-inf')" if o["mask"] == "causal" or o["weights"] in ("sink", "one") else "-1e30"


def _is_softmax(o: dict[str, str]) -> bool:
    return o["weights"] in ("exp", "exp2", "sink", "one")


def _seen(o: dict[str, str], of_device: bool) -> str:
    """Return the condition under which a query sees a key, or an empty string."""
    at, to = ("t.index[:, None]", "c.index[None, :]") if of_device else ("at", "to")
    documents = "documents[t][:, None] == documents[c][None, :]" if of_device else "documents[at] == documents[to]"
    lengths = f"{to} <= lengths[{'i.begin' if of_device else ':, None, None, None'}]"
    return {
        "none": "",
        "causal": f"{at} >= {to}",
        "window": f"({at} - {to}).abs() <= 40",
        "documents": documents,
        "lengths": lengths,
    }[o["mask"]]


def _scores(o: dict[str, str]) -> list[str]:
    """Return the lines that compute a tile of scores, without its mask."""
    keys = "k[i.begin, group, c, :]" if o["layout"] == "heads" else "k[i.begin, c, group, :]"
    query = "query * 0.25" if o["scale"] == "q_in_loop" else "query"
    lines = [f"scores = hl.dot({query}, {keys}.T)" + (" * 0.25" if o["scale"] == "scores" else "")]
    return (
        lines
        + {
            "none": [],
            "cap": ["scores = 5 * torch.tanh(scores / 5)"],
            "slope": ["scores = scores - slopes[h.begin] * (t.index[:, None] - c.index[None, :]).abs()"],
            "dense": ["scores = scores + bias[h.begin, t, c]"],
            "keys": ["scores = scores + penalties[i.begin, c][None, :]"],
        }[o["formula"]]
    )


def _step(o: dict[str, str], masked: bool) -> list[str]:
    """Return the lines of one block of keys."""
    values = "v[i.begin, group, c, :]" if o["layout"] == "heads" else "v[i.begin, c, group, :]"
    seen, lines = _seen(o, of_device=True) if masked else "", _scores(o)
    if not _is_softmax(o):
        lines.append(f"weights = {_weights(o['weights'])}")
        lines += [f"weights = torch.where({seen}, weights, 0.0)"] * bool(seen)
        lines += ["total = total + weights.sum(-1)"] * (o["more"] == "sums")
        return [*lines, f"acc = hl.dot(weights.to(v.dtype), {values}, acc=acc)"]
    exp = "torch.exp2" if o["weights"] == "exp2" else "torch.exp"
    lines += [f"scores = torch.where({seen}, scores, {_hidden(o)})"] * bool(seen)
    return [
        *lines,
        "raised = torch.maximum(high, torch.amax(scores, -1))",
        f"weights = {exp}(scores - raised[:, None])",
        f"shrink = {exp}(high - raised)",
        "total = total * shrink + weights.sum(-1)",
        f"acc = hl.dot(weights.to(v.dtype), {values}, acc=acc * shrink[:, None])",
        "high = raised",
    ]


def _weights(kind: str) -> str:
    """Return the weights of ``scores`` where no softmax computes them."""
    return {
        "relu": "torch.relu(scores)",
        "sigmoid": "torch.sigmoid(scores)",
        "silu": "torch.nn.functional.silu(scores) / 8",
        "plain": "scores * 0.5",
    }[kind]


def _ends(draft: Draft) -> str:
    """Return the way of the loop over keys: only a causal mask over as many keys as queries allows all of them."""
    o = draft.options
    return o["loop"] if o["mask"] == "causal" and draft.sizes["m"] == draft.sizes["n"] else "all"


def _kernel(draft: Draft) -> list[str]:
    o, softmax = dict(draft.options), _is_softmax(dict(draft.options))
    rows = "t, h.begin" if o["layout"] == "rows" else "h.begin, t"
    start = {
        "sink": "hl.zeros([t], dtype=torch.float32) + slopes[h.begin]",
        "one": "hl.zeros([t], dtype=torch.float32)",
    }
    first = start.get(o["weights"], "hl.full([t], float('-inf'), dtype=torch.float32)")
    total = f"hl.full([t], {1.0 if o['weights'] in start else 0.0}, dtype=torch.float32)"
    sums = softmax or o["more"] == "sums"
    log = {"exp2": "torch.log2"}.get(o["weights"], "torch.log")
    found = f"high + {log}(total)" if softmax else "total"
    loops = {
        "all": (("c in hl.tile(n)", True),),
        "tile": (("c in hl.tile(t.end)", True),),
        "two": (("c in hl.tile(0, t.begin)", False), ("c in hl.tile(t.begin, t.end)", True)),
    }[_ends(draft)]
    body = [
        "group = h.begin // shared",
        *([f"high = {first}"] if softmax else []),
        *([f"total = {total}"] if sums else []),
        "acc = hl.zeros([t, wide], dtype=torch.float32)",
        f"query = q[i.begin, {rows}, :]" + (" * 0.25" if o["scale"] == "q" else ""),
        *(line for each, masked in loops for line in [f"for {each}:", *(f"    {x}" for x in _step(o, masked))]),
        f"out[i.begin, {rows}, :] = acc" + (" / total[:, None]" if softmax else ""),
        *([f"more[i.begin, h.begin, t] = {found}"] if o["more"] == "sums" else []),
    ]
    order = "b, m, heads, d" if o["layout"] == "rows" else "b, heads, m, d"
    out = "b, m, heads, wide" if o["layout"] == "rows" else "b, heads, m, wide"
    groups, n = ("k.size(2)", "k.size(1)") if o["layout"] == "rows" else ("k.size(1)", "k.size(2)")
    return [
        f"{order} = q.shape",
        "d, wide = hl.specialize(d), hl.specialize(v.size(3))",
        f"n, shared = {n}, hl.specialize(heads // {groups})",
        f"out = torch.empty([{out}], dtype=q.dtype, device=q.device)",
        *(["more = torch.empty([b, heads, m], dtype=torch.float32, device=q.device)"] * (o["more"] == "sums")),
        "for i, h, t in hl.tile([b, heads, m], block_size=[1, 1, None]):",
        *(f"    {line}" for line in body),
        "return out, more" if o["more"] == "sums" else "return out",
    ]


def _reference(draft: Draft) -> list[str]:
    o = dict(draft.options)
    turn = ".transpose(1, 2)" if o["layout"] == "rows" else ""
    seen, sums = _seen(o, of_device=False), o["more"] == "sums"
    lines = [
        f"q, k, v = q{turn}, k{turn}, v{turn}",
        "shared = q.shape[1] // k.shape[1]",
        "k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)",
        "at, to = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]",
        "scores = torch.matmul(q * 0.25, k.transpose(2, 3))",
        *{
            "none": [],
            "cap": ["scores = 5 * torch.tanh(scores / 5)"],
            "slope": ["scores = scores - slopes[:, None, None] * (at - to).abs()"],
            "dense": ["scores = scores + bias"],
            "keys": ["scores = scores + penalties[:, None, None, :]"],
        }[o["formula"]],
    ]
    if not _is_softmax(o):
        lines.append(f"weights = {_weights(o['weights'])}")
        lines += [f"weights = torch.where({seen}, weights, 0.0)"] * bool(seen)
        lines.append(f"out = torch.matmul(weights, v){turn}")
        return [*lines, "return out, weights.sum(-1)" if sums else "return out"]
    lines += ["scores = scores * 0.6931471805599453"] * (o["weights"] == "exp2")
    lines += [f"scores = torch.where({seen}, scores, float('-inf'))"] * bool(seen)
    first = {"sink": "slopes[:, None]", "one": "torch.zeros_like(scores[..., 0])"}.get(o["weights"])
    lines.append("high = scores.amax(-1)" if first is None else f"high = torch.maximum(scores.amax(-1), {first})")
    lines.append("weights = torch.exp(scores - high[..., None])")
    lines.append("total = weights.sum(-1)" + (f" + torch.exp({first} - high)" if first else ""))
    lines.append(f"out = (torch.matmul(weights, v) / total[..., None]){turn}")
    log = "high + torch.log(total)"
    if o["weights"] == "exp2":
        log = f"({log}) / 0.6931471805599453"
    return [*lines, f"return out, {log}" if sums else "return out"]


def _render(draft: Draft) -> Case:
    o, z = dict(draft.options), draft.sizes
    heads = z["groups"] * z["shared"]

    def shape(heads: int, rows: int, columns: int) -> tuple[int, ...]:
        return (z["b"], rows, heads, columns) if o["layout"] == "rows" else (z["b"], heads, rows, columns)

    rows = max(z["m"], z["n"])
    inputs = [
        Input(name="q", shape=shape(heads, z["m"], z["d"]), dtype=o["dtype"]),
        Input(name="k", shape=shape(z["groups"], z["n"], z["d"]), dtype=o["dtype"], data="small"),
        Input(name="v", shape=shape(z["groups"], z["n"], z["wide"]), dtype=o["dtype"]),
        Input(name="slopes", shape=(heads,), dtype="float32", data="small"),
        Input(name="bias", shape=(heads, z["m"], z["n"]), dtype=o["dtype"]),
        Input(name="penalties", shape=(z["b"], z["n"]), dtype="float32"),
        Input(name="documents", shape=(rows,), dtype="int32", data="index:3"),
        Input(name="lengths", shape=(z["b"],), dtype="int64", data=f"index:{z['n']}"),
    ]
    return case_of(
        draft,
        inputs,
        _kernel(draft),
        _reference(draft),
        precision_of("float32", operands=o["dtype"]),
        backends=("triton", "cute"),
    )


FAMILY = Family(
    name="softmaxes",
    draw=_draw,
    render=_render,
    simplest={"dtype": "float16", "layout": "heads", "scale": "scores", "formula": "none", "mask": "none", "weights": "exp", "loop": "all", "more": "none", "shapes": "static"},
    weight=2,
)  # fmt: skip
