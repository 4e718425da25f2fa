"""Self-contained pages of HTML: no scripts, fonts or pictures from other files.

Jinja2, which torch brings, fills in the templates and escapes each text. ``page.html`` next to this file is the frame of
all pages; a page is a template next to its module.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).resolve().parents[1]),
    autoescape=True,
    lstrip_blocks=True,
    trim_blocks=True,
    undefined=jinja2.StrictUndefined,
)


def rendered(template: str, **values: Any) -> str:
    """Return the page of a template, a path from the package's folder, with these values.

    Texts are escaped, except for ``markupsafe.Markup``.
    """
    return _TEMPLATES.get_template(template).render(**values)


__all__ = ["rendered"]
