"""What ``explain`` shows to people: text, tables in a terminal, and a page."""

from __future__ import annotations

import html.parser
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import helion
import helion.language as hl
from helion import exc, hardware
from helion.runtime.explanation import text as texts
from helion.runtime.explanation.pictures import accesses, sides
from helion.runtime.explanation.table import print_table


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@helion.kernel
def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :].float(), dim=-1).to(x.dtype)
    return out


@helion.kernel
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel
def gather(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    out = torch.empty([rows.size(0), table.size(1)], dtype=table.dtype, device=table.device)
    for tile in hl.tile(rows.size(0)):
        out[tile, :] = table[rows[tile], :]
    return out


@helion.kernel
def per_row(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.grid(x.size(0)):
        out[row, :] = x[row, :] + 1
    return out


@helion.kernel
def nothing_to_read(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = 0.0
    return x


BOUND = {
    "softmax": lambda: softmax.bind((meta(4096, 8192),), target="h200"),
    "matmul": lambda: matmul.bind((meta(4096, 4096), meta(2048, 4096).t()), target="h200"),
    "gather": lambda: gather.bind((meta(1000, 63), meta(500, dtype=torch.int64)), target="sm_80"),
    "per_row": lambda: per_row.bind((meta(100, 1000),), target="sm_90"),
    "small": lambda: nothing_to_read.bind((meta(1),), target="sm_90"),
    "dynamic": lambda: helion.kernel(softmax.fn, static_shapes=False).bind((meta(63, 100),), target="sm_90"),
}


def test_what_bounds_a_kernel() -> None:
    target = hardware.target("h200")
    bounds = json.loads(BOUND["softmax"]().explain("json"))["roofline"]
    assert bounds["bytes_moved"] == 2 * 4096 * 8192 * 2 and bounds["bound_by"] == "memory"
    assert bounds["memory_us"] == pytest.approx(bounds["bytes_moved"] / target.bandwidth_gb_per_s / 1e3)
    bounds = json.loads(BOUND["matmul"]().explain("json"))["roofline"]
    assert bounds["bound_by"] == "matrix units, bfloat16"
    least = 2 * 4096 * 4096 * 2048 / target.matrix_tflops_for("bfloat16") / 1e6
    assert bounds["arithmetic_us"] == pytest.approx(least, rel=0.01)
    assert json.loads(BOUND["small"]().explain("json"))["roofline"]["bound_by"] == "launch overhead"


@helion.kernel
def darker_neighbors(x: torch.Tensor) -> torch.Tensor:
    h, w = x.size()
    out = torch.empty([h, w], dtype=torch.int32, device=x.device)
    for rows, columns in hl.tile([h, w]):
        count = hl.zeros([rows, columns], dtype=torch.int32)
        for i in hl.static_range(5):
            for j in hl.static_range(5):
                at, place = rows.index + (i - 2), columns.index + (j - 2)
                inside = ((at >= 0) & (at < h))[:, None] & ((place >= 0) & (place < w))[None, :]
                near = hl.load(x, [at, place], extra_mask=inside)
                count += (near < x[rows, columns]).to(torch.int32)
        out[rows, columns] = count
    return out


def test_taps_of_a_window_move_their_tensor_once() -> None:
    x = torch.empty(2048, 2048, device="meta")
    bounds = json.loads(darker_neighbors.bind((x,), target="h200").explain("json"))["roofline"]
    assert bounds["bytes_moved"] == 2 * 2048 * 2048 * 4


@helion.kernel
def maxima_above(x: torch.Tensor) -> torch.Tensor:
    b, h, w = x.size()
    out = torch.empty_like(x)
    for one, rows, columns in hl.tile([b, h, w], block_size=[1, None, None]):
        i = one.begin
        up, left = torch.clamp(rows.index - 1, min=0), torch.clamp(columns.index - 1, min=0)
        near = torch.maximum(x[i, up, columns], torch.maximum(x[i, rows, left], x[i, up, left]))
        out[i, rows, columns] = torch.maximum(x[i, rows, columns], near)
    return out


def test_clamped_windows_of_images_move_their_tensor_once() -> None:
    x = torch.empty(8, 1024, 1024, device="meta")
    bounds = json.loads(maxima_above.bind((x,), target="h200").explain("json"))["roofline"]
    assert bounds["bytes_moved"] == 2 * x.numel() * 4


@helion.kernel
def mixed_labels(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    flat, out = x.view(-1), torch.empty([m], device=x.device)
    for rows in hl.tile(m):
        own = flat[rows.index * n + first[rows]] + flat[rows.index * n + second[rows]]
        out[rows] = torch.logsumexp(x[rows, :], -1) - own
    return out


def test_elements_gathered_from_a_view_do_not_hide_its_rows() -> None:
    labels = torch.empty(4096, dtype=torch.int64, device="meta")
    bound = mixed_labels.bind((torch.empty(4096, 1000, device="meta"), labels, labels), target="h200")
    bounds = json.loads(bound.explain("json"))["roofline"]
    assert 4096 * 1000 * 4 < bounds["bytes_moved"] < 1.01 * (4096 * 1000 * 4 + 4096 * (2 * 8 + 2 * 4 + 4))


def test_units_say_where_the_time_goes() -> None:
    for name, slowest in (("softmax", "memory"), ("matmul", "latency")):
        bounds = json.loads(BOUND[name]().explain("json"))["roofline"]
        names, times = zip(*bounds["units"], strict=True)
        assert names[0] == slowest and list(times) == sorted(times, reverse=True)
        assert times[0] <= bounds["predicted_us"] * 1.3
        assert re.search(rf"\n  units      {slowest} [\d.]+ µs \(\d+%\), ", BOUND[name]().explain())


def test_text_begins_with_what_people_look_for() -> None:
    bound = BOUND["matmul"]()
    text = bound.explain()
    head, _, rest = text.partition("\n\nseeds (predicted / measured; * runs when nothing was tuned):\n")
    assert head.startswith("matmul on sm_90 (H200)\n")
    assert "kind       matmul" in head and "bound by   matrix units, bfloat16; predicted" in head
    assert "axes       tile_m 4096 (tiled), tile_n 2048 (tiled), tile_k 4096 (tiled)" in head
    table = rest.splitlines()[1 : 1 + len(bound.seeds)]
    measured = bound.resources(bound.seeds[0].config)
    assert re.match(r"  1\*? +TritonMatmulHeuristic ", table[0])
    assert f"{bound.seeds[0].predicted.registers_per_thread} / {measured.registers} " in table[0]
    assert "memory_ops" not in text and "memory_ops" in bound.explain("facts")
    assert max(map(len, head.splitlines())) <= 120


def test_kinds() -> None:
    kinds = {name: json.loads(bind().explain("json"))["kind"] for name, bind in BOUND.items()}
    assert kinds["softmax"] == "reduction (max, sum) over r0, 8192 elements"
    assert kinds["matmul"] == "matmul"
    assert kinds["small"] == "elementwise, 1 elements"


def test_a_terminal_gets_tables() -> None:
    written = io.StringIO()
    console = Console(file=written, width=160, force_terminal=True)
    print_table(json.loads(BOUND["softmax"]().explain("json")), console)
    text = written.getvalue()
    assert "predicted / measured" in text and "bound by" in text and "1*" in text and "\x1b[" in text


def test_tiles_of_accesses() -> None:
    def shown(name: str) -> list[list[tuple[str, int, int | None, int, bool]]]:
        bound = BOUND[name]()
        decisions = bound.config_spec.decode(bound.default_config())
        found = [sides(op, bound.facts, decisions) for op in bound.facts.memory_ops]
        return [[(s.name, s.extent, s.tile, s.stride, s.walked) for s in each] for each in found]

    bound = BOUND["matmul"]()
    m, n, k = bound.default_config()["block_sizes"]
    assert shown("matmul") == [
        [("tile_m", 4096, m, 4096, False), ("tile_k", 4096, k, 1, True)],
        [("tile_k", 4096, k, 1, True), ("tile_n", 2048, n, 4096, False)],
        [("tile_m", 4096, m, 2048, False), ("tile_n", 2048, n, 1, False)],
    ]
    rows, table, out = shown("gather")
    assert table[0][0] == "data" and table[0][2] is None and table[1][1:4] == (63, 63, 1)
    assert rows[0][1] == out[0][1] == 500
    assert shown("per_row")[0][0][1:4] == (100, 1, 1000)


class _Page(html.parser.HTMLParser):
    """Collects elements that stay open, and what an element would fetch."""

    VOID = frozenset(("meta", "br"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.fetched += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag


@pytest.mark.parametrize("name", BOUND)
def test_the_page_stands_alone(name: str) -> None:
    bound = BOUND[name]()
    text = bound.explain("html")
    page = _Page()
    page.feed(text)
    assert page.open == [] and page.fetched == [] and "://" not in text.replace("http://www", "")
    assert text.count('<svg class="access"') == len(bound.facts.memory_ops)
    for caption, _ in accesses(bound.facts, bound.config_spec.decode(bound.default_config())):
        assert html.escape(caption) in text


def test_unknown_forms_are_refused() -> None:
    with pytest.raises(exc.InvalidAPIUsage, match="'text', 'facts', 'json', 'assembly', 'html'; got 'yaml'"):
        BOUND["small"]().explain("yaml")


# --- a browser ----------------------------------------------------------------------------------------------------------

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
#: Measures the page as it is laid out, and what happens under the pointer; the results replace the page.
_MEASURE = """<script>
const box = e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom].map(Math.round); };
const all = q => [...document.querySelectorAll(q)];
const outside = [];
for (const svg of all("svg")) {
  const [l, t, r, b] = box(svg);
  for (const text of svg.querySelectorAll("text")) {
    const [x, y, u, v] = box(text);
    if (x < l - 1 || y < t - 1 || u > r + 1 || v > b + 1) outside.push(text.textContent);
  }
}
const generated = all(".code pre")[1], line = generated.querySelector("span[data-line]");
let lit = -1;
if (line) { line.dispatchEvent(new MouseEvent("mouseenter")); lit = all("span.same").map(e => e.parentElement).filter((e, i, a) => a.indexOf(e) === i).length; }
const found = {
  width: document.documentElement.scrollWidth, window: window.innerWidth, outside, lit,
  tiles: all("svg .tile").map(e => box(e)).every(([l, t, r, b]) => r > l && b > t),
  accesses: all("svg.access").length, requests: performance.getEntriesByType("resource").length,
};
document.body.innerHTML = "<pre id=found>" + JSON.stringify(found) + "</pre>";
</script></body>"""


@pytest.mark.browser
@pytest.mark.parametrize("name", BOUND)
def test_the_page_in_a_browser(name: str, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, _BROWSERS)))
    bound = BOUND[name]()
    page = tmp_path / "page.html"
    page.write_text(bound.explain("html").replace("</body>", _MEASURE), encoding="utf-8")
    options = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1280,2000",
        f"--user-data-dir={tmp_path}/b",
    )
    run = subprocess.run(
        [browser, *options, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=600, check=True
    )
    match = re.search(r'<pre id="found">(.*?)</pre>', run.stdout, re.DOTALL)
    assert match is not None, run.stderr
    found: dict[str, Any] = json.loads(html.unescape(match[1]))
    assert found["outside"] == [] and found["tiles"] and found["requests"] == 0
    assert found["width"] <= found["window"], "the page is wider than its window"
    assert found["accesses"] == len(bound.facts.memory_ops)
    assert found["lit"] == 2  # the line of the kernel, and those made of it


def test_assembled_code_by_unit_and_width() -> None:
    bound = matmul.bind((meta(512, 4096), meta(4096, 512)), target="sm_90")
    heading, table = bound.explain("assembly").split("outside of loops  in a loop\n")
    rows = re.findall(r"^  (\S.*?) +(\d+) +(\d+)$", table, re.MULTILINE)
    counts = {unit: (int(outside), int(inside)) for unit, outside, inside in rows}
    whole = counts.pop("all")
    assert whole == tuple(map(sum, zip(*counts.values(), strict=True)))
    assert f"_helion_matmul: {sum(whole)} instructions, loops: 1" in heading
    assert counts["matrix"][1] > 0, "it multiplies in the loop"
    assert re.search("accesses outside of loops: .*stores? of 16", table)


def test_assembled_code_of_another_vendor_is_refused() -> None:
    with pytest.raises(exc.InvalidAPIUsage, match="NVIDIA's GPUs, and gfx942"):
        matmul.bind((meta(512, 512), meta(512, 512)), target="gfx942").explain("assembly")


def test_time_that_no_unit_explains_is_shown() -> None:
    few = {"predicted_us": 755.0, "units": [("L2", 215.0), ("instructions", 133.0), ("memory", 60.0)]}
    assert texts.units(few) == "L2 215 µs (28%), instructions 133 µs (18%), 540 µs beyond the slowest of them"
    assert texts.units({"predicted_us": 20.0, "units": [("memory", 15.0)]}) == "memory 15 µs (75%)"
    assert texts.units({"predicted_us": 20.0, "units": [("memory", 1.0)]}) == "19 µs beyond the slowest of them"
