"""``helion list``: the tables of the reference, for an installed package without its pages."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from .. import _compatibility, exc, knobs
from .._support.lazy import lazy
from ..config import KEYS
from ..settings import DOCS
from .command import Command

if TYPE_CHECKING:
    from .._compiler.frontend.torch import functions
else:
    # only one table needs the compiler
    functions = lazy("helion._compiler.frontend.torch.functions")

#: Owners of the public names of torch functions.
_OWNERS: tuple[tuple[str, Any], ...] = (
    ("torch", torch),
    ("torch.nn.functional", F),
    ("torch.special", torch.special),
    ("torch.linalg", torch.linalg),
    ("Tensor", torch.Tensor),
)


def torch_names(functions: Iterable[Any]) -> list[str]:
    """Return every public spelling of functions, sorted, without those of operators."""
    wanted = set(functions)
    found = set()
    for prefix, owner in _OWNERS:
        for name in dir(owner):
            value = getattr(owner, name, None)
            if not name.startswith("_") and isinstance(value, Hashable) and callable(value) and value in wanted:
                found.add(f"{prefix}.{name}")
    return sorted(found)


def is_refusal(rule: Any) -> bool:
    """Return whether a rule refuses its function by name."""
    return "_refusal" in rule.__qualname__


def _torch() -> list[str]:
    return torch_names(function for function, rule in functions.RULES.items() if not is_refusal(rule))


def _errors() -> list[str]:
    classes = [each for each in vars(exc).values() if isinstance(each, type) and issubclass(each, exc.Base)]
    raised = (each for each in classes if each.__name__ not in _compatibility.ERRORS)
    return [each.__name__ if each.template == "{0}" else f"{each.__name__}: {each.template}" for each in raised]


def _settings() -> list[str]:
    by_knob = [f"{name} ({knob.env}={knob.expected}): {knob.doc}" for name, knob in knobs.SETTINGS.items()]
    return [*by_knob, *(f"{name}: {doc}" for name, doc in DOCS.items())]


def _variables() -> list[str]:
    found = (each for each in vars(knobs).values() if isinstance(each, knobs.Knob))
    return [f"{each.env}: {each.doc}" for each in found]


def _configs() -> list[str]:
    return [f"{key}: {doc}" for key, doc in KEYS.items()]


TABLES: Mapping[str, Callable[[], list[str]]] = {
    "torch": _torch,
    "configs": _configs,
    "settings": _settings,
    "variables": _variables,
    "errors": _errors,
}


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=tuple(TABLES), help="torch: functions of device code; configs: keys of helion.Config"
    )
    parser.add_argument("word", nargs="?", default="", help="print only lines with this text, in any case")


def _run(options: argparse.Namespace) -> int:
    found = [line for line in TABLES[options.what]() if options.word.lower() in line.lower()]
    print("\n".join(found) if found else f"no line of {options.what} has {options.word!r} in it")
    return 0 if found else 1


COMMAND = Command(
    name="list",
    help="list torch functions of device code, config keys, settings, environment variables, or errors",
    configure=_configure,
    run=_run,
)
