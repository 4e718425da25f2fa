"""The version of the DSL that is installed, without importing it or the toolchain."""

from __future__ import annotations

import functools
import importlib.metadata

DISTRIBUTION = "nvidia-cutlass-dsl"


@functools.cache
def installed_version() -> str:
    """Return the DSL's version from pip's metadata, in a millisecond; "" if it is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""


__all__ = ["DISTRIBUTION", "installed_version"]
