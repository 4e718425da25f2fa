"""Pages that the documentation's build adds to ``docs/``: the reference, the examples with pictures, and CONTRIBUTING.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import gallery  # noqa: E402  (a module of this folder)
import pictures  # noqa: E402
import reference  # noqa: E402


def contributing() -> str:
    """Return CONTRIBUTING.md with links as seen from ``docs/``."""
    return re.sub(r"\]\(docs/", "](", (ROOT / "CONTRIBUTING.md").read_text())


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the version at the foot of each page."""
    (version,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    config.copyright = f"helion {version}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    drawn = pictures.pictures()
    images = {gallery.picture_path(name): image for name, image in drawn.items()}
    pages = {**reference.pages(), "examples.md": gallery.page(drawn), "contributing.md": contributing()}
    for path, text in {**pages, **images}.items():
        files.append(File.generated(config, path, content=text))
    return files
