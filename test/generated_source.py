"""Modules made of source that tests generate."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

IMPORTS = "import torch\nimport helion\nimport helion.language as hl\n"


def load(source: str, directory: Path, name: str) -> ModuleType:
    """``source`` behind the usual imports, as a module in a file of its own."""
    path = directory / f"{name}.py"
    path.write_text(IMPORTS + source)
    spec = importlib.util.spec_from_file_location(f"{directory.name}_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
