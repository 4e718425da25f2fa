"""NVIDIA's binary utilities: those that ship with Triton, or else those in PATH."""

from __future__ import annotations

import functools
import importlib.util
import shutil
from pathlib import Path

from .execution import CompileError


@functools.cache
def tool(name: str) -> str:
    """Return the path of ``nvdisasm`` or ``cuobjdump``. Raises ``CompileError``."""
    spec = importlib.util.find_spec("triton")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        path = Path(folder) / "backends" / "nvidia" / "bin" / name
        if path.is_file():
            return str(path)
    found = shutil.which(name)
    if found is None:
        raise CompileError(f"{name} is neither in Triton's folder nor in PATH; install CUDA's binary utilities")
    return found
