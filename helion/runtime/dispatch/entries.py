"""Straight-line code for the calls of one signature: guards, host code and launch, with no look-ups.

The guards check that a call would lead to the same binary. Then the function runs the statements of the generated
host function, with the compiled kernel's launch function in place of ``_launcher(...)``.

Data pointers are checked for their alignment, never stored.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import linecache
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..._support.syntax import parse
from ...config import Config
from ...language.constants import ConstExpr
from ..call.definition import Definition
from ..call.signature import Key
from ..call.size_buckets import Bucket
from ..specialization.compiled import Compiled
from ..specialization.specialized import Specialized
from .guards import PREFIX, Guards, add_memory

if TYPE_CHECKING:
    from ...pipeline import Code

#: Placeholder for an argument that a call left out.
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "<absent>"})()
MISSED: Any = type("Missed", (), {"__repr__": lambda self: "<missed>"})()
#: Source texts of written functions that ``linecache`` keeps.
_SOURCES_KEPT = 512


class Bound(Protocol):
    """A variant that serves calls, with the config that it runs."""

    @property
    def compiled(self) -> Compiled: ...
    @property
    def config(self) -> Config | None: ...
    @property
    def bucket(self) -> tuple[Bucket, ...]:
        """The size hints that select the config."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DispatchEntry:
    """The function of one signature. If its guard fails, ``run`` looks for another one, ``probe`` returns ``MISSED``."""

    key: Key
    bound: Bound
    run: Callable[..., Any]
    probe: Callable[..., Any]


def leave_untraced(function: Any) -> None:
    """Let ``function`` and its callees run untraced between the graphs of torch.compile, without importing it."""
    function._torchdynamo_disable = True
    frames = getattr(torch._C._dynamo, "eval_frame", None)
    set_strategy = getattr(frames, "set_code_exec_strategy", None)
    strategy, action = getattr(frames, "_FrameExecStrategy", None), getattr(frames, "_FrameAction", None)
    if set_strategy is not None and strategy is not None and action is not None:
        set_strategy(function.__code__, strategy(action.SKIP, action.SKIP))


def write_entry(key: Key, bound: Bound, values: tuple[Any, ...], miss: Callable[..., Any]) -> DispatchEntry | None:
    """Write the function for calls like one that ``bound`` has just served; None if they cannot be guarded."""
    of, config = bound.compiled.specialized, bound.config
    host = None if config is None else bound.compiled.loaded(config)
    inlining = of.executor.inlining
    if config is None or not isinstance(host, types.FunctionType) or inlining is None:
        return None
    guards = Guards(inlining)
    code = of.analysis.code(config)
    if not _add_guards(guards, of, code, values):
        return None
    launcher = (host.__kwdefaults__ or {})["_launcher"]
    body = inlining.body(code.host, host, PREFIX, launcher.inner)
    if body is None:
        return None
    condition = " and ".join((f"not {PREFIX}more", *guards.first, *guards.conditions))
    make = _maker(of.kernel, host, condition, {**guards.cells, **body.cells}, body.statements)
    functions = [make(**{f"{PREFIX}slow": slow}) for slow in (miss, _missed)]
    for function in functions:
        function.__qualname__ = of.kernel.fn.__qualname__  # named by the TypeError of an unknown keyword
        leave_untraced(function)
    return DispatchEntry(key=key, bound=bound, run=functions[0], probe=functions[1])


def _add_guards(guards: Guards, of: Specialized, code: Code, values: tuple[Any, ...]) -> bool:
    """Add all conditions for a call to lead to ``code``; return False if one cannot be written."""
    kernel, traced = of.kernel, of.analysis.traced
    names, static = list(kernel.signature.parameters), kernel.settings.static_shapes
    for name, value, constant in zip(names, values, kernel.constant_at, strict=True):
        if isinstance(value, ConstExpr) or not guards.argument(name, value, constant):
            return False
    ranges = guards.ranges(of.buckets.by_name(of.bucket), names)
    if (
        ranges is None
        or not guards.all_tensors(static, ranges)
        or not guards.numbers(traced.specialized, names, values)
        or not guards.world(traced.guards)
    ):
        return False
    add_memory(guards, code.host.may_write_arguments, of.tells_alignment(code.plan), static)
    guards.autograd(kernel.told_about_gradients)
    return True


def _maker(
    kernel: Definition,
    host: types.FunctionType,
    condition: str,
    cells: dict[str, Any],
    statements: Sequence[ast.stmt],
) -> Callable[..., Callable[..., Any]]:
    """Return a function that makes the written one, given the function for calls that ``condition`` rejects.

    ``cells`` are the objects that the condition and ``statements`` name.
    """
    names, defaults = list(kernel.signature.parameters), host.__defaults__ or ()
    given = {**dict.fromkeys(names, ABSENT), **dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))}
    cells = {**cells, **{f"{PREFIX}default_{name}": given[name] for name in names}}
    only = [n for n, p in kernel.signature.parameters.items() if p.kind is p.POSITIONAL_ONLY]
    parameters = [f"{n}={PREFIX}default_{n}" for n in names]
    parameters[len(only) : len(only)] = ["/"] if only else []
    around = "\n".join(
        (
            f"def {PREFIX}make({', '.join(cells)}, {PREFIX}slow):",
            f"    def {kernel.name}({', '.join(parameters)}, *{PREFIX}more):",
            f"        if {condition}:",
            "            pass",
            f"        return {PREFIX}slow({', '.join(names)}, *{PREFIX}more)",
            f"    return {kernel.name}",
        )
    )
    tree = parse(around)
    branch = next(node for node in ast.walk(tree) if isinstance(node, ast.If))
    branch.body = [*statements, *([] if isinstance(statements[-1], ast.Return) else [ast.Return()])]
    found: dict[str, Any] = {}
    exec(_compiled(ast.unparse(tree), kernel.name), host.__globals__, found)
    return functools.partial(found[f"{PREFIX}make"], **cells)


def _missed(*args: Any) -> Any:
    return MISSED


_FILES: collections.deque[str] = collections.deque()


@functools.lru_cache(maxsize=256)
def _compiled(text: str, name: str) -> types.CodeType:
    """Compile a written function. Tracebacks and debuggers find its source under a name in angle brackets."""
    file = f"<helion dispatch of {name} {abs(hash(text)):x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    _FILES.append(file)
    if len(_FILES) > _SOURCES_KEPT:
        linecache.cache.pop(_FILES.popleft(), None)
    return compile(text, file, "exec")


__all__ = ["ABSENT", "MISSED", "Bound", "DispatchEntry", "leave_untraced", "write_entry"]
