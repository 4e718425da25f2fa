"""Tables of configs next to the source of a kernel: ``_helion_aot_<module>_<device>.py``.

``<module>`` is the name of the source file without its suffix. ``<device>`` is ``cuda_sm90`` for compute capability
9.0, or ``rocm_gfx942``. An NVIDIA GPU with no table of its own uses that of the nearest older capability. A table has
up to two functions for each kernel of the file, which take the kernel's arguments:

- ``autotune_<kernel>(*args)``: the config for these arguments, as a dict or a ``helion.Config``;
- ``key_<kernel>(*args)`` (optional): a hashable value that is equal if the config is equal. With
  ``static_shapes=False``, where one compilation serves many sizes, it separates sizes that have different configs.

If a table is missing, fails to load, or returns an invalid config, a warning is printed
(``exc.NoAOTHeuristicWarning``). The call then runs the kernel's default config. ``HELION_AOT_MODE=disabled`` ignores
tables. With ``HELION_AOT_MODE=collect`` the config of every called specialization is tuned (``BoundKernel.autotune``).
It is written into the table, with a lookup of the nearest measured sizes.
"""

from __future__ import annotations

import functools
import importlib.util
import pathlib
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ... import exc, hardware, knobs
from ..._support import files as _files
from ..._support import logs as _logging
from ..._support.locks import new_lock
from ..._support.nested import tensors_in
from ...config import Config, as_config
from ..call.signature import target_of, token

if TYPE_CHECKING:
    from ..call.definition import Definition

_LOCK = new_lock()


# --- reading tables -----------------------------------------------------------------------------------------------------


def device_name(target: hardware.Target) -> str:
    """Return the suffix of the names of a target's tables."""
    return f"cuda_sm{target.capability}" if target.kind == "cuda" else f"rocm_{target.name}"


def table_path(file: str, device: str) -> pathlib.Path:
    """Return the path of the table of the kernels in a source file."""
    source = pathlib.Path(file)
    return source.with_name(f"_helion_aot_{source.stem}_{device}.py")


def _candidates(file: str, target: hardware.Target) -> list[pathlib.Path]:
    """List the tables that apply to a target, the best first."""
    own = table_path(file, device_name(target))
    if target.kind != "cuda":
        return [own]
    prefix = own.name.removesuffix(f"{target.capability}.py")
    found = []
    for path in own.parent.glob(f"{prefix}*.py"):
        digits = path.name.removeprefix(prefix).removesuffix(".py")
        if digits.isdigit() and int(digits) <= target.capability:
            found.append((int(digits), path))
    return [path for _, path in sorted(found, reverse=True)]


@functools.lru_cache(maxsize=256)
def _loaded(path: pathlib.Path, changed: int) -> types.ModuleType:
    """Load a table as a module.

    ``changed`` is the file's time of change, for the cache. Raises whatever its code raises.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _find(kernel: Definition, target: hardware.Target, function: str) -> tuple[Callable[..., Any] | None, str]:
    """Return a function of the kernel's table, or None and the reason why there is none."""
    file = kernel.fn.__code__.co_filename
    why = f": there is no {table_path(file, device_name(target)).name} next to {pathlib.Path(file).name}"
    for path in _candidates(file, target):
        try:
            module = _loaded(path, path.stat().st_mtime_ns)
        except Exception as error:  # the table is the user's code
            return None, f": {path} cannot be loaded ({type(error).__name__}: {error})"
        found = getattr(module, f"{function}_{kernel.name}", None)
        if callable(found):
            return found, ""
        why = f": {path} has no function {function}_{kernel.name}"
    return None, why


def _warn(kernel: Definition, why: str) -> None:
    warning = exc.NoAOTHeuristicWarning(kernel=kernel.name, because=why)
    text = f"WARNING[{type(warning).__name__}]: {warning}"
    if type(warning).__name__ not in kernel.settings.ignore_warnings and text not in kernel.printed_warnings:
        kernel.printed_warnings.add(text)
        _logging.say(text)


def config_of(
    kernel: Definition, target: hardware.Target, args: Sequence[Any], full_config: Callable[[Config], Config]
) -> Config | None:
    """Return the full config of a kernel's table for arguments, None if it has no usable one.

    ``full_config`` raises an ``exc.Base`` for an invalid config of the kernel.
    """
    if knobs.AOT_MODE.read() == "disabled" or collecting(kernel):
        return None
    function, why = _find(kernel, target, "autotune")
    if function is None:
        _warn(kernel, why)
        return None
    try:
        return full_config(as_config(function(*args)))
    except exc.BaseError as error:
        _warn(kernel, f" for these arguments: its table returns an invalid config ({error})")
    except Exception as error:  # the table is the user's code
        _warn(kernel, f" for these arguments: its table fails ({type(error).__name__}: {error})")
    return None


class TableKey:
    """Key of arguments by the config in the table of the kernel, and by the user's own ``key``."""

    def __init__(self, kernel: Definition, own: Callable[..., Hashable] | None) -> None:
        self._kernel = kernel
        self._own = own
        self._functions: dict[int, Callable[..., Any] | None] = {}  # by target

    def __call__(self, *values: Any) -> Hashable:
        own = None if self._own is None else self._own(*values)
        if collecting(self._kernel):
            return (own, repr(_features(values)))
        target = target_of(self._kernel.name, values)
        known = token(target)
        if known not in self._functions:
            enabled = knobs.AOT_MODE.read() != "disabled"
            self._functions[known] = _find(self._kernel, target, "key")[0] if enabled else None
        function = self._functions[known]
        try:
            key = None if function is None else function(*values)
            hash(key)
        except Exception:  # the table is the user's code, and its other function says what is wrong
            key = None
        return (own, key)


# --- writing tables -----------------------------------------------------------------------------------------------------

_TEXT = '''"""Configs of the kernels in {source} on {device}, by the sizes they were measured at.

``autotune_<kernel>`` gives the config of the nearest sizes, ``key_<kernel>`` which one that is.
"""

import math

#: Dtypes and sizes of the tensor arguments, and the fastest config, by kernel.
TABLES = {tables}


def _features(args):
    dtypes, sizes, left = [], [], list(args)
    while left:
        value = left.pop(0)
        if isinstance(value, dict):
            value = tuple(value.values())
        if isinstance(value, (tuple, list)):
            left[:0] = value
        elif hasattr(value, "shape") and hasattr(value, "dtype"):
            dtypes.append(str(value.dtype))
            sizes.extend(map(int, value.shape))
    return dtypes, sizes


def _nearest(table, args):
    dtypes, sizes = _features(args)

    def distance(entry):
        other = entry["sizes"]
        if len(other) != len(sizes):
            return math.inf
        apart = sum(abs(math.log2((a + 1) / (b + 1))) for a, b in zip(sizes, other))
        return apart + (0.0 if entry["dtypes"] == dtypes else 1e6)

    return min(range(len(table)), key=lambda at: distance(table[at]))
'''
_FUNCTIONS = """

def key_{name}(*args):
    return _nearest(TABLES[{name!r}], args)


def autotune_{name}(*args):
    return dict(TABLES[{name!r}][key_{name}(*args)]["config"])
"""


def _features(values: Sequence[Any]) -> dict[str, Any]:
    tensors = list(tensors_in(values))
    return {"dtypes": [str(t.dtype) for t in tensors], "sizes": [int(n) for t in tensors for n in t.shape]}


def table_text(source: str, device: str, tables: Mapping[str, list[dict[str, Any]]]) -> str:
    """Format a table file: ``tables`` has for each kernel entries of ``dtypes``, ``sizes`` and ``config``."""
    rows = ["{"]
    for name, entries in sorted(tables.items()):
        rows += [f"    {name!r}: [", *(f"        {entry!r}," for entry in entries), "    ],"]
    text = _TEXT.replace("{source}", source).replace("{device}", device).replace("{tables}", "\n".join([*rows, "}"]))
    return text + "".join(_FUNCTIONS.format(name=name) for name in sorted(tables))


def record(kernel: Definition, target: hardware.Target, values: Sequence[Any], config: Mapping[str, Any]) -> None:
    """Write a tuned config into the table next to the kernel's source.

    A file that this function did not write is left alone.
    """
    file = kernel.fn.__code__.co_filename
    path = table_path(file, device_name(target))
    entry = {**_features(values), "config": dict(config)}
    with _LOCK:
        try:
            known = dict(_loaded(path, path.stat().st_mtime_ns).TABLES) if path.exists() else {}
        except Exception:  # the user's own code
            _warn(kernel, f": {path} was written by hand, and what was measured is not put into it")
            return
        same = ("dtypes", "sizes")
        others = [e for e in known.get(kernel.name, ()) if any(e[k] != entry[k] for k in same)]
        known[kernel.name] = [*others, entry]
        try:
            _files.write_whole(path, table_text(pathlib.Path(file).name, device_name(target), known))
        except OSError as error:
            _warn(kernel, f": {path} cannot be written ({error})")


def collecting(kernel: Definition) -> bool:
    """Return whether calls of a kernel are tuned and recorded."""
    return kernel.aot is not None and knobs.AOT_MODE.read() in ("collect", "measure")


def others(kernel: Definition) -> Iterator[tuple[Any, ...]]:
    """Yield further arguments to tune a kernel for, from its own functions, but only once."""
    options = kernel.aot
    if options is None or kernel.collected:
        return
    kernel.collected = True
    for function in (options.collect_fn, options.measure_fn):
        yield from (tuple(args) for args in (function() if function is not None else ()))
