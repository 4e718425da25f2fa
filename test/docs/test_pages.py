"""Every code block of the documentation runs, prints what the page shows, and every page is in the site's index."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from doc_pages import ROOT, Block, Runner, blocks, commands, outputs

DOCS = ROOT / "docs"
#: Pages by the name their tests have.
PAGES = {str(path.relative_to(DOCS).with_suffix("")): path for path in sorted(DOCS.rglob("*.md"))} | {
    "README": ROOT / "README.md",
    "CONTRIBUTING": ROOT / "CONTRIBUTING.md",
}
#: What a page may hold beside text.
LANGUAGES = {"python", "text", "console"}


@pytest.mark.parametrize("name", PAGES)
def test_blocks_of_a_page(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    module = "docs_page_" + re.sub(r"\W", "_", name)
    try:
        Runner(module, PAGES[name].read_text(), tmp_path).run()
    finally:
        sys.modules.pop(module, None)


@pytest.mark.parametrize("name", PAGES)
def test_languages_of_a_page(name: str) -> None:
    assert {block.language for block in blocks(PAGES[name].read_text())} <= LANGUAGES


PAGE = """
```python
x = 1
print(x)
```

```text
1
```

<!-- gpu -->

```python
raise ValueError
```

```console
$ python -m helion --version
helion 0.1.0
...
```
"""


def test_blocks_are_found() -> None:
    assert blocks(PAGE)[0] == Block("python", "x = 1\nprint(x)", 3)
    assert [block.mark for block in blocks(PAGE)] == ["", "", "gpu", ""]
    assert outputs(PAGE) == {3: "1"}
    assert commands(blocks(PAGE)[3].text) == [("python -m helion --version", ["helion 0.1.0"])]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("```python\nx = \n```", SyntaxError),
        ("<!-- gpu -->\n\n```python\nx = \n```", SyntaxError),
        ("```python\nraise ValueError\n```", ValueError),
        ("```python\nprint(2)\n```\n\n```text\n3\n```", AssertionError),
        ("```console\n$ make nothing\n```", AssertionError),
        ("```console\n$ unknown\n```", AssertionError),
        ("```console\n$ python -m helion explain nothing.py::f\n```", AssertionError),
    ],
)
def test_wrong_blocks_are_reported(wrong: str, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error):
        Runner("docs_page_wrong", wrong, tmp_path).run()
    sys.modules.pop("docs_page_wrong", None)


def test_all_pages_are_in_the_index() -> None:
    listed = set(re.findall(r"([\w/-]+)\.md$", (ROOT / "mkdocs.yml").read_text(), re.M))
    assert set(PAGES) - {"README", "CONTRIBUTING"} <= listed


def test_the_site_is_searched_without_a_server_or_the_net() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    assert re.search(r"^plugins: \[search, offline\]$", text, re.M)
    (shim,) = re.findall(r"^  polyfills: \[([\w/.-]+)\]", text, re.M)
    # the plugin would add one of another site without this name
    assert "iframe-worker" in shim and (DOCS / shim).is_file()
