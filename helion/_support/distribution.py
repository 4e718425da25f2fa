"""The distribution that this package is installed from, and another one of the same import name."""

from __future__ import annotations

import functools
import importlib.metadata

#: Name of the distribution on PyPI. The import name belongs to a distribution of another project as well.
NAME = "helion-tiles"
OTHER = "helion"


@functools.cache
def clash() -> str:
    """Describe the conflict if the other distribution is installed too; "" if it is not.

    Both write into one folder, so that an installation or an upgrade of one replaces files of the other.
    """
    try:
        other = importlib.metadata.distribution(OTHER)
    except importlib.metadata.PackageNotFoundError:
        return ""
    if not any(file.as_posix() == "helion/__init__.py" for file in other.files or ()):
        return ""
    return (
        f"the distribution {OTHER!r} {other.version} is another project's and has the same import name; "
        f"pip uninstall {OTHER} {NAME}, then install {NAME} again"
    )
