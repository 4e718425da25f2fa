"""Generated modules of a former process, whose functions read their source when something is compiled.

Triton reads the source of each function by tokens, and hashes its tree, before it looks for a binary. A later
process that finds the binary needs neither: the text of a module and the versions determine the hash, which is kept
with its code.
"""

from __future__ import annotations

import ast
import linecache
import marshal
import sys
import types
from collections.abc import Mapping
from typing import Any

from triton.runtime.jit import JITFunction

from ...._support.records import dataclass
from ...._support.syntax import parse
from ...execution import KeptModule

#: The decorator of kept code, in place of ``triton.jit``.
_DECORATOR = "_helion_deferred"
#: Attributes that Triton reads from the source of a function.
_SOURCE = ("raw_src", "starting_line_number", "_src")
#: Attributes that it sets together with the hash.
_HASHED = ("hash", "used_global_vals")
_ABSENT = object()


@dataclass(frozen=True)
class Hashed:
    """Triton's hash of a function, with the globals that it depends on: their module (None: its own), name and text."""

    digest: str
    used: tuple[tuple[str | None, str, str], ...]


def kept_module(text: str, names: Mapping[str, Any]) -> KeptModule | None:
    """Return the module of ``text``, loaded with the globals ``names``, for later processes.

    It has hashes of the functions that were compiled. Returns None where Triton's functions lack the attributes that
    are deferred.
    """
    functions = {n: f for n, f in names.items() if type(f) is JITFunction and f.fn.__globals__ is names}
    if not functions or not all(vars(f).keys() >= {*_SOURCE, *_HASHED} for f in functions.values()):
        return None
    tree = parse(text)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and [ast.unparse(each) for each in node.decorator_list] == ["triton.jit"]:
            node.decorator_list = [ast.copy_location(ast.Name(_DECORATOR, ast.Load()), node.decorator_list[0])]
    code = compile(tree, names["__file__"], "exec")
    found = {name: _hashed(function) for name, function in functions.items()}
    return KeptModule(code=marshal.dumps(code), known={name: each for name, each in found.items() if each is not None})


def globals_of(kept: KeptModule, text: str) -> dict[str, Any]:
    """Return the globals that the code of a kept module runs with."""
    return {_DECORATOR: lambda fn: DeferredFunction(fn, text, kept.known.get(fn.__name__))}


def _hashed(function: JITFunction[Any]) -> Hashed | None:
    """Return the hash of a function; None before its compilation, or if it uses globals of no module."""
    used = []
    for (name, _), (value, namespace) in function.used_global_vals.items():
        module = None if namespace is function.fn.__globals__ else str(namespace.get("__name__"))
        if module is not None and getattr(sys.modules.get(module), "__dict__", None) is not namespace:
            return None
        used.append((module, name, repr(value)))
    digest = function.hash
    return Hashed(digest, tuple(used)) if isinstance(digest, str) and not digest.startswith("recursion:") else None


class DeferredFunction(JITFunction[Any]):
    """A function of Triton whose source is read, and whose hash is recalled, on first use."""

    def __init__(self, fn: types.FunctionType, text: str, hashed: Hashed | None) -> None:
        self._deferred = (text, hashed)
        super().__init__(_with_source(fn, f"<helion {fn.__name__}>", [f"def {fn.__name__}():\n", "    pass\n"], 1))
        self.fn = fn
        for name in (*_SOURCE, *_HASHED):
            self.__dict__.pop(name)

    def __getattr__(self, name: str) -> Any:
        if name in _SOURCE:
            self._read_source()
        elif name in _HASHED:
            self._recall_hash()
        else:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return vars(self)[name]

    def _read_source(self) -> None:
        text, _ = self._deferred
        at = self.fn.__code__.co_firstlineno
        whole = JITFunction(_with_source(self.fn, f"<helion source of {self.fn.__code__.co_filename}>", text, at))
        self.__dict__.update({name: vars(whole)[name] for name in _SOURCE})

    def _recall_hash(self) -> None:
        """Take the kept hash, if the globals that it depends on are the same; else None, and Triton makes one."""
        _, hashed = self._deferred
        used: dict[tuple[str, int], tuple[Any, dict[str, Any]]] = {}
        for module, name, text in () if hashed is None else hashed.used:
            namespace = self.fn.__globals__ if module is None else vars(sys.modules.get(module, types))
            value = namespace.get(name, _ABSENT)
            if value is _ABSENT or repr(value) != text:
                hashed, used = None, {}
                break
            used[name, id(namespace)] = (value, namespace)
        self.__dict__.update(hash=None if hashed is None else hashed.digest, used_global_vals=used)


def _with_source(fn: types.FunctionType, file: str, text: str | list[str], line: int) -> types.FunctionType:
    """Return a function like ``fn`` whose source is at a line of ``text``, under a name that no other text has."""
    lines = text.splitlines(keepends=True) if isinstance(text, str) else text
    linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
    code = fn.__code__.replace(co_filename=file, co_firstlineno=line)
    made = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    for name in ("__kwdefaults__", "__annotations__", "__module__", "__qualname__", "__doc__"):
        setattr(made, name, getattr(fn, name))
    return made


__all__ = ["DeferredFunction", "Hashed", "globals_of", "kept_module"]
