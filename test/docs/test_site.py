"""The documentation site in headless Chromium: all pages, at two widths, light and dark, its search and its versions."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helion._testing import import_path

ROOT = Path(__file__).resolve().parents[2]
publish = import_path(ROOT / "scripts" / "publish.py")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
#: A desktop's window and a phone's, in CSS pixels.
WIDTHS = (1280, 390)
#: Least contrast of text to its background, of WCAG's level AA.
CONTRAST = 4.5
#: Measures a page and sends what it found to the page around it.
MEASURE = """<script>
addEventListener("load", async () => {
  const numbers = c => c.match(/[\\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = numbers(c).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if ((numbers(c)[3] ?? 1) > 0.9) return c; } return "rgb(255, 255, 255)"; };
  const pale = [];
  for (const e of document.querySelectorAll(".md-content p, .md-content code, .md-content a, .md-content td, .md-content h1, .md-content h2, .md-content pre span")) {
    const style = getComputedStyle(e);
    if (!e.innerText || !e.innerText.trim() || e.closest(".headerlink") || (numbers(style.color)[3] ?? 1) < 0.3) continue;
    const alpha = numbers(style.color)[3] ?? 1, back = behind(e), mixed = numbers(style.color).slice(0, 3).map((v, i) => v * alpha + numbers(back)[i] * (1 - alpha));
    const [a, b] = [light(`rgb(${mixed})`), light(back)], ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < CONTRAST - 0.01) pale.push([e.tagName, e.className, e.innerText.slice(0, 30), Math.round(ratio * 100) / 100]);
  }
  const found = {
    width: document.documentElement.scrollWidth, window: innerWidth, title: document.title,
    background: getComputedStyle(document.body).backgroundColor, pale: pale.slice(0, 5),
    broken: [...document.images].filter(e => e.complete && !e.naturalWidth).map(e => e.src),
    fetched: performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith("file:")),
    text: document.querySelector(".md-content").innerText.length, results: null,
    versions: [...document.querySelectorAll(".helion-versions option")].map(e => [e.text, e.selected]),
  };
  if (location.search == "?search") {
    const query = document.querySelector("[data-md-component=search-query]");
    query.focus(); query.value = "softmax"; query.dispatchEvent(new InputEvent("input", {bubbles: true})); query.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
    for (let i = 0; i < 100 && !found.results; ++i) { await new Promise(r => setTimeout(r, 100)); found.results = document.querySelectorAll(".md-search-result__item").length; }
  }
  if (location.search == "?former") {
    const menu = document.querySelector(".helion-versions");
    menu.value = "1.9"; menu.dispatchEvent(new Event("change"));
    return;
  }
  parent.postMessage(JSON.stringify({...found, page: location.pathname}), "*");
});
</script></body>"""
#: Shows pages in a frame, one after another, and replaces itself by what they sent.
FRAMES = """<!doctype html><body><script>
(async () => {
  const found = [];
  for (const [page, width] of WANTED) {
    const frame = document.createElement("iframe");
    frame.width = width; frame.height = 900; frame.src = page;
    const got = new Promise((resolve, reject) => { addEventListener("message", e => resolve(JSON.parse(e.data)), {once: true}); setTimeout(() => resolve(null), 20000); });
    document.body.append(frame);
    found.push([page, width, await got]);
    frame.remove();
  }
  document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = JSON.stringify(found);
})();
</script></body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, with the measurement in each page."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "-d", folder]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    for page in folder.rglob("*.html"):
        measure = MEASURE.replace("CONTRAST", str(CONTRAST))
        page.write_text(page.read_text().replace("</body>", measure))
    return folder


def shown(site: Path, scheme: str, wanted: list[tuple[str, int]]) -> list[tuple[str, int, dict[str, Any]]]:
    """Return what was measured of pages, each at a width, with the colors of a scheme."""
    browser = next(filter(None, map(shutil.which, BROWSERS)))
    frames = site / f"frames-{scheme}.htm"
    frames.write_text(FRAMES.replace("WANTED", json.dumps(wanted)))
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={site.parent / scheme}")
    colors = f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"
    budget = f"--virtual-time-budget={1000 * 25 * len(wanted)}"
    command = [browser, *options, colors, budget, "--window-size=1400,1000", "--dump-dom", frames.as_uri()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    match = re.search(r'<pre id="found">(.*?)</pre>', run.stdout, re.DOTALL)
    assert match is not None, run.stderr
    return [(page, width, found) for page, width, found in json.loads(html.unescape(match[1]))]


def problems(found: dict[str, Any] | None, scheme: str, width: int) -> Iterator[str]:
    """Return what is wrong with a page that was measured."""
    if found is None:
        yield "does not load"
        return
    sum_of_colors = sum(map(int, re.findall(r"\d+", found["background"])[:3]))
    if (sum_of_colors < 3 * 128) != (scheme == "dark"):
        yield f"has the background {found['background']}"
    if found["window"] != width or found["width"] > width:
        yield f"is {found['width']} pixels wide"
    if not found["text"] or not found["title"]:
        yield "is empty"
    for name in ("pale", "broken", "fetched"):
        if found[name]:
            yield f"{name}: {found[name]}"


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_at_two_widths(site: Path, scheme: str) -> None:
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html") if path.name != "404.html")
    wrong = []
    for page, width, found in shown(site, scheme, [(page, width) for page in pages for width in WIDTHS]):
        wrong += [f"{page} at {width} pixels: {what}" for what in problems(found, scheme, width)]
    assert len(pages) > 30
    assert not wrong, "\n".join(wrong)


@pytest.mark.browser
@pytest.mark.parametrize("width", WIDTHS)
def test_search(site: Path, width: int) -> None:
    for page in ("index.html", "guide/ops.html"):
        ((_, _, found),) = shown(site, "light", [(f"{page}?search", width)])
        assert found["results"] >= 3, page


@pytest.mark.browser
def test_menu_of_versions(site: Path, tmp_path: Path) -> None:
    for version in ("1.9", "1.10"):
        publish.publish(site, tmp_path, version)
    for page in ("guide/gradients.html", "guide/ops.html"):
        ((_, _, found),) = shown(tmp_path, "light", [(f"1.10/{page}", WIDTHS[1])])
        assert found["versions"] == [["1.10", True], ["1.9", False]]
        assert found["width"] <= WIDTHS[1]
    (tmp_path / "versions.js").write_text((tmp_path / "versions.js").read_text().replace('"guide/ops.html", ', "", 2))
    for page, expected in (("guide/gradients.html", "guide/gradients.html"), ("guide/ops.html", "index.html")):
        ((_, _, found),) = shown(tmp_path, "light", [(f"1.10/{page}?former", WIDTHS[0])])
        assert found["page"].endswith(f"/1.9/{expected}")


def test_versions_in_order(tmp_path: Path) -> None:
    built = tmp_path / "built"
    built.mkdir()
    with pytest.raises(SystemExit, match=r"has no index\.html; run `make docs`"):
        publish.publish(built, tmp_path, "1.0")
    (built / "index.html").touch()
    (tmp_path / "notes").mkdir()
    for version in ("1.9", "1.10", "1.10rc1"):
        names = publish.publish(built, tmp_path, version)
    assert names == ["1.10", "1.10rc1", "1.9"]
    assert publish.publish(built, tmp_path, "1.9") == names
    listed = json.loads((tmp_path / "versions.js").read_text().removeprefix("window.helionVersions = "))
    assert listed == [{"version": name, "pages": ["index.html"]} for name in names]
    assert "url=1.10/index.html" in (tmp_path / "index.html").read_text()
