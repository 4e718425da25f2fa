"""Matmuls whose operands are computed, transposed, shared or read again by other ops, in several consecutive loops."""

from __future__ import annotations

from ..cases import Case, Draft, Draw, Family, case_of, precision_of
from ..chains import UNARY, chain
from ..inputs import Input

_TILES = "for t, u in hl.tile([x.size(0), y.size(1)]):"
_ZEROS = "    acc = hl.zeros([t, u], dtype=torch.float32)"
_LOOP = "    for c in hl.tile(x.size(1)):"
_SQUARE = "out = torch.empty([x.size(0), x.size(0)], dtype=torch.float32, device=x.device)"
_OUT = "out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)"


def _one(*operands: str) -> list[str]:
    """Return a kernel of one loop that adds up the products of ``operands``."""
    return [_OUT, _TILES, _ZEROS, _LOOP, *(f"        acc = hl.dot({each}, acc=acc)" for each in operands)]


#: Lines of the kernel up to ``acc``, and ``acc`` of the reference. DTYPE is replaced by the dtype of operands.
FORMS = {
    "int8": (_one("x[t, c], small[c, u].to(x.dtype) * 0.0625"), "x @ (small.double() * 0.0625)"),
    "int8_scaled": (_one("x[t, c], (small[c, u].to(torch.float32) * s[u][None, :] * 0.03125).to(x.dtype)"), "x @ (small.double() * s * 0.03125)"),
    "int8_by_rows": (_one("x[t, c], small_rows[u, c].t().to(x.dtype)"), "x @ small_rows.double().t()"),
    "int8_columns": ([*_one("x[t, c], small_rows[u, c].t().to(x.dtype)"), "    acc = acc * s[u][None, :] * 0.0625"], "x @ small_rows.double().t() * s * 0.0625"),
    "fp8": (_one("x[t, c], eight[c, u].to(x.dtype)"), "x @ eight.double()"),
    "fp8_by_rows": (_one("x[t, c], eight_rows[u, c].t().to(x.dtype)"), "x @ eight_rows.double().t()"),
    "two_products": (_one("x[t, c], y[c, u]", "second[t, c], other[u, c].t()"), "x @ y + second @ other.t()"),
    "rows_scaled": (_one("x[t, c], (y[c, u].to(torch.float32) * g[c][:, None]).to(x.dtype)"), "x @ (y * g[:, None])"),
    "activated": (_one("torch.relu(x[t, c]), torch.tanh(y[c, u].to(torch.float32)).to(x.dtype)"), "torch.relu(x) @ torch.tanh(y)"),
    "transposed": (_one("transposed[c, t].transpose(0, 1), y[c, u]"), "transposed.t() @ y"),
    "transposed_scaled": (_one("(transposed[c, t].to(torch.float32) * g[c][:, None]).transpose(0, 1).to(x.dtype), y[c, u]"), "(transposed * g[:, None]).t() @ y"),
    "both_transposed": (_one("transposed[c, t].t(), other[u, c].t()"), "transposed.t() @ other.t()"),
    "gram": ([_SQUARE, "for t, u in hl.tile([x.size(0), x.size(0)]):", _ZEROS, _LOOP, "        acc = hl.dot(x[t, c], x[u, c].transpose(0, 1), acc=acc)"], "x @ x.t()"),
    "gram_shared": ([_SQUARE, "size = hl.register_block_size(x.size(0))", "for t, u in hl.tile([x.size(0), x.size(0)], block_size=[size, size]):", _ZEROS, _LOOP, "        acc = hl.dot(x[t, c], x[u, c].transpose(0, 1), acc=acc)"], "x @ x.t()"),
    "two_loops": ([*_one("x[t, c], y[c, u]"), _LOOP, "        acc = hl.dot(transposed[c, t].transpose(0, 1), (y[c, u] * 0.5).to(x.dtype), acc=acc)"], "x @ y + transposed.t() @ (y * 0.5)"),
    "low_rank": ([_OUT, "r = hl.specialize(low.size(1))", _TILES, _ZEROS, "    narrow = hl.zeros([t, r], dtype=torch.float32)", _LOOP, "        acc = hl.dot(x[t, c], y[c, u], acc=acc)", "        narrow = hl.dot(x[t, c], low[c, :], acc=narrow)", "    acc = hl.dot(narrow.to(x.dtype), high[:, u], acc=acc)"], "x @ y + (x @ low) @ high"),
    "taps": ([_OUT, _TILES, _ZEROS, "    for j in range(3):", "        for c in hl.tile(x.size(1)):", "            acc = hl.dot(long[t.index + j, c], taps[j, c, u], acc=acc)"], "sum(long[j : j + x.shape[0]] @ taps[j] for j in range(3))"),
    "rows_again": ([_OUT, _TILES, _ZEROS, "    total = hl.zeros([t], dtype=torch.float32)", _LOOP, "        a = x[t, c]", "        acc = hl.dot(a, y[c, u], acc=acc)", "        total += a.to(torch.float32).sum(1)", "    acc = acc + total[:, None]"], "x @ y + x.sum(1)[:, None]"),
    "columns_again": ([_OUT, _TILES, _ZEROS, "    total = hl.zeros([u], dtype=torch.float32)", _LOOP, "        b = y[c, u]", "        total += b.to(torch.float32).sum(0)", "        acc = hl.dot(x[t, c], b, acc=acc)", "    acc = acc + total[None, :]"], "x @ y + y.sum(0)"),
    "changed_again": ([_OUT, _TILES, _ZEROS, "    more = hl.zeros([t, u], dtype=torch.float32)", _LOOP, "        a = x[t, c]", "        b = y[c, u]", "        acc = hl.dot(a, b, acc=acc)", "        more = hl.dot(torch.relu(a), b.abs(), acc=more)", "    acc = acc + more"], "x @ y + torch.relu(x) @ y.abs()"),
    "second": (["k, n = hl.specialize((x.size(1), y.size(1)))", "out = torch.empty([x.size(0), k], dtype=torch.float32, device=x.device)", "for t in hl.tile(x.size(0)):", "    hidden = torch.relu(hl.dot(x[t, :], y[:, :], out_dtype=torch.float32)).to(x.dtype)", "    acc = hl.dot(hidden, other[:, :], out_dtype=torch.float32)"], "torch.relu(x @ y) @ other"),
    "loop_then_second": (["k, n = hl.specialize((x.size(1), y.size(1)))", "out = torch.empty([x.size(0), k], dtype=torch.float32, device=x.device)", "for t in hl.tile(x.size(0)):", "    hidden = hl.zeros([t, n], dtype=torch.float32)", _LOOP, "        hidden = hl.dot(transposed[c, t].transpose(0, 1), y[c, :], acc=hidden)", _LOOP, "        hidden = hl.dot(x[t, c], y[c, :], acc=hidden)", "    acc = hl.dot(torch.tanh(hidden).to(x.dtype), other[:, :], out_dtype=torch.float32)"], "torch.tanh(transposed.t() @ y + x @ y) @ other"),
}  # fmt: skip
BACKENDS = ("triton", "cute")
#: The index of what is stored, by form; others store ``out[t, u]``.
_ROWS = ("second", "loop_then_second")


def _draw(draw: Draw) -> Draft:
    sizes = {"m": draw.size(), "k": draw.size(), "n": draw.size()}
    if draw.rng.random() < 0.4:
        sizes = {key: max(16, size // 16 * 16) for key, size in sizes.items()}
    options = {"dtype": draw.one("float16", "bfloat16", "float32"), "form": draw.one(*FORMS)}
    options |= {"layout": draw.one("contiguous", "contiguous", "transposed", "padded", "offset")}
    return draw.draft(sizes, options, draw.steps(tuple(UNARY), 0, 2))


def _render(draft: Draft) -> Case:
    o, (m, k, n) = draft.options, (draft.sizes[key] for key in "mkn")
    ours, theirs = FORMS[o["form"]]
    shapes = {"x": (m, k), "y": (k, n), "transposed": (k, m), "other": (n, k), "long": (m + 2, k), "taps": (3, k, n)}
    shapes |= {"second": (m, k), "low": (k, 16), "high": (16, n)}
    inputs = [
        Input(name=name, shape=shape, dtype=o["dtype"], layout=o["layout"], data="small")
        for name, shape in shapes.items()
    ]
    inputs += [
        Input(name="small", shape=(k, n), dtype="int8", layout=o["layout"], data="ints"),
        Input(name="small_rows", shape=(n, k), dtype="int8", layout=o["layout"], data="ints"),
        Input(name="eight", shape=(k, n), dtype="float8_e4m3fn", layout=o["layout"]),
        Input(name="eight_rows", shape=(n, k), dtype="float8_e4m3fn", layout=o["layout"]),
        Input(name="s", shape=(n,), dtype="float32", data="positive"),
        Input(name="g", shape=(k,), dtype="float32", data="positive"),
    ]
    lines, last = chain(draft.steps, ["acc"])
    store = "out[t, :]" if o["form"] in _ROWS else "out[t, u]"
    kernel = [*ours, *(f"    {line}" for line in lines), f"    {store} = {last}", "return out"]
    operands = "tf32" if o["dtype"] == "float32" else o["dtype"]
    precision = precision_of("float32", operands=operands)
    return case_of(draft, inputs, kernel, [f"acc = {theirs}", *lines, f"return {last}"], precision, BACKENDS)


FAMILY = Family(
    name="operands",
    draw=_draw,
    render=_render,
    simplest={"dtype": "float16", "form": "transposed", "layout": "contiguous", "shapes": "static"},
    weight=2,
)
