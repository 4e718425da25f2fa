"""Placeholders for functions of kernels over several GPUs."""

from __future__ import annotations

from typing import Any, NoReturn

from ... import exc
from ...language.several_gpus import WITH_CHANNELS


class OverSeveralGpus:
    """A function whose module can be imported and that cannot be called."""

    def __init__(self, module: str, name: str) -> None:
        self.__module__ = module
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise exc.SeveralGpusUnsupported(name=f"{self.__module__}.{self.__name__}", remedy=WITH_CHANNELS)


def function_of(module: str, name: str) -> OverSeveralGpus:
    """Return the placeholder for a function of a module.

    Raises:
        AttributeError: the name is one of Python's own, which the module does not have.
    """
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return OverSeveralGpus(module, name)
