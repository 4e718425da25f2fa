"""The fast path of a kernel's calls: straight-line code per call signature, with no look-ups.

After a call has taken the slow path (key, variant, generated host function, launcher), a function is written for calls
like it. Its guards check that a call would lead to the same binary. Then it runs the statements of the generated host
function, with the compiled kernel's launch function in place of ``_launcher(...)``. ``Kernel`` calls the function last
written directly. If its guards fail, another function is looked up by key. If none serves the call, it takes the slow
path again.

Arguments that guards cannot check in a few hundred nanoseconds (containers, tensor subclasses) always take the slow
path. Data pointers are checked for their alignment, never stored.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import linecache
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from .. import settings
from .._support.locks import in_forked_process, new_lock
from ..backends import stub
from ..config import Config
from ..language.constants import ConstExpr
from .call.definition import Definition
from .call.guards import PREFIX, Guards, add_memory
from .call.signature import Key
from .call.size_buckets import Bucket, SizeBuckets
from .specialization.compiled import Compiled
from .specialization.specialized import Specialized

if TYPE_CHECKING:
    from .._compiler.host.code import Code

#: Signatures kept per kernel, and functions written for one of them before it stays on the slow path.
MAX_SIGNATURES, MAX_VERSIONS = 256, 8
#: Placeholder for an argument that a call left out.
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "<absent>"})()
MISSED: Any = type("Missed", (), {"__repr__": lambda self: "<missed>"})()
#: Functions whose guards a miss tries before it computes a key, which takes longer (measurement ``host_calls``).
_PROBED = 6
#: Returns whether torch's profiler records what runs.
_profiled: Callable[[], bool] = torch.autograd._profiler_enabled


def leave_untraced(function: Any) -> None:
    """Let ``function`` and its callees run untraced between the graphs of torch.compile, without importing it."""
    function._torchdynamo_disable = True
    frames = getattr(torch._C._dynamo, "eval_frame", None)
    set_strategy = getattr(frames, "set_code_exec_strategy", None)
    strategy, action = getattr(frames, "_FrameExecStrategy", None), getattr(frames, "_FrameAction", None)
    if set_strategy is not None and strategy is not None and action is not None:
        set_strategy(function.__code__, strategy(action.SKIP, action.SKIP))


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


class Calls:
    """The written functions of a kernel's calls. ``forget`` drops them if an assumption of theirs may have changed."""

    def __init__(self, kernel: Definition, slow_path: Callable[..., Any]) -> None:
        self._kernel = kernel
        self._slow_path = slow_path
        self._lock = new_lock()
        self._entries: dict[Key, DispatchEntry] = {}
        # the same as a set, which is tested without hashing the keys
        self._known: set[DispatchEntry] = set()
        self._recent: tuple[DispatchEntry, ...] = ()
        self._versions: dict[Key, int] = {}
        # the sizes that select functions with different configs, by the rest of the signature
        self._buckets: dict[Key, SizeBuckets] = {}
        self.generation = 0
        with _LIVE_LOCK:
            _LIVE.add(self)

    def forget(self, bound: Bound | None = None) -> None:
        """Send the next call to the slow path, or only calls that ``bound`` serves."""
        with self._lock:
            self.generation += 1
            kept = {} if bound is None else {k: entry for k, entry in self._entries.items() if entry.bound is not bound}
            self._versions = {k: self._versions[k] for k in kept}
            self._buckets = {k[:-1]: self._buckets[k[:-1]] for k in kept}
            self._entries, self._known = kept, set(kept.values())
            self._recent = tuple(entry for entry in self._recent if kept.get(entry.key) is entry)
            self._kernel.__call__ = self._recent[0].run if self._recent else self._slow_path

    def miss(self, *args: Any) -> Any:
        """Handle a call that the function last used does not accept, or that torch's profiler records."""
        if not _profiled():
            return self._served(*args)
        with torch.autograd.profiler.record_function(f"helion::{self._kernel.name}"):
            return self._served(*args)

    def _served(self, *args: Any) -> Any:
        """Handle a call by the functions used last, then by its key, then by the slow path."""
        for value in args:
            if value is ABSENT:  # for the TypeError that names it
                names = self._kernel.signature.parameters
                return self._slow_path(**{n: v for n, v in zip(names, args, strict=False) if v is not ABSENT})
        recent = self._recent
        for entry in recent:
            result = entry.probe(*args)
            if result is not MISSED:
                self._use(entry)
                return result
        if len(self._entries) > len(recent) and len(args) == len(self._kernel.signature.parameters):
            key = signature_key(self._kernel.arguments_key(args), args)
            buckets = self._buckets.get(key)
            found = None if buckets is None else self._entries.get((*key, buckets.of(args)))
            result = MISSED if found is None else found.probe(*args)
            if found is not None and result is not MISSED:
                self._use(found)
                return result
        return self._slow_path(*args)

    def _use(self, entry: DispatchEntry) -> None:
        """Make the next call try this one first, unless everything was forgotten meanwhile."""
        with self._lock:
            if entry in self._known:
                self._kernel.__call__ = entry.run
                if entry not in self._recent:
                    self._recent = (entry, *self._recent[: _PROBED - 1])

    def recent_variants(self) -> set[Bound]:
        """Return the bound kernels of the functions that were used last."""
        return {entry.bound for entry in self._recent}

    def _make_room(self) -> None:
        """Drop the oldest functions and counts, except the functions used last."""
        kept = {entry.key for entry in self._recent}
        spare = [key for key in self._entries if key not in kept][: len(self._entries) - MAX_SIGNATURES + 1]
        for key in spare:
            self._known.discard(self._entries.pop(key))
            self._versions.pop(key, None)
        if len(self._versions) > 4 * MAX_SIGNATURES:
            self._versions = {key: self._versions.get(key, 1) for key in self._entries}
            self._buckets = {key[:-1]: self._buckets[key[:-1]] for key in self._entries}

    def learn(self, bound: Bound, values: tuple[Any, ...], arguments: Key, generation: int) -> None:
        """Write a function for calls like this one, which has just taken the slow path with ``generation`` read before."""
        signature = signature_key(arguments, values)
        key = (*signature, bound.bucket)
        version = self._versions.get(key, 0)
        if version >= MAX_VERSIONS or generation != self.generation:
            return
        if self._kernel.arguments_key(values) != arguments:  # the kernel's host code changed its arguments' shapes
            return
        entry = write_entry(key, bound, values, self.miss)
        with self._lock:
            if generation != self.generation:
                return
            self._make_room()
            self._versions[key] = MAX_VERSIONS if entry is None else version + 1
            if entry is not None:
                self._buckets[signature] = bound.compiled.specialized.buckets
                former = self._entries.pop(key, None)
                self._entries[key] = entry
                self._known = set(self._entries.values())
                self._recent = (entry, *[r for r in self._recent if r is not former][: _PROBED - 1])
                self._kernel.__call__ = entry.run


_LIVE: weakref.WeakSet[Calls] = weakref.WeakSet()
_LIVE_LOCK = new_lock()


def _forget_all() -> None:
    with _LIVE_LOCK:
        live = list(_LIVE)
    for calls in live:
        calls.forget()


stub.on_change(_forget_all)
in_forked_process(_forget_all)  # CUDA does not work there, which the slow path says
settings.on_change(_forget_all)  # written functions look at no settings


def signature_key(arguments: Key, values: Sequence[Any]) -> Key:
    """Return the key of a written function.

    It is finer than that of a bound kernel, since guards compare all of a tensor.
    """
    grads = tuple([(v.get_device(), v.requires_grad) for v in values if isinstance(v, torch.Tensor)])
    return (arguments, grads, torch.is_inference_mode_enabled())


def dispatchable(values: Sequence[Any]) -> bool:
    """Return whether a fast path exists for arguments on this device: a GPU, or the stub of one."""
    return stub.active() or any(map(stub.on_gpu, values))


# --- writing -----------------------------------------------------------------------------------------------------------


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
    condition = " and ".join((f"not {PREFIX}profiled()", f"not {PREFIX}more", *guards.first, *guards.conditions))
    make = _maker(of.kernel, host, condition, {**guards.cells, **body.cells}, body.statements)
    others = ((miss, _profiled), (_missed, bool))  # `bool()` is False
    functions = [make(**{f"{PREFIX}slow": slow, f"{PREFIX}profiled": profiled}) for slow, profiled in others]
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
        or not guards.numbers(traced.specialized, names, values)
        or not guards.all_tensors(static, ranges)
        or not guards.world(traced.guards)
    ):
        return False
    add_memory(guards, code.host.may_write_arguments, of.depends_on_alignment(code), static)
    guards.autograd(kernel.warned_no_gradient)
    return True


def _maker(
    kernel: Definition,
    host: types.FunctionType,
    condition: str,
    cells: dict[str, Any],
    statements: Sequence[ast.stmt],
) -> Callable[..., Callable[..., Any]]:
    """Return a function that makes the written one, given the function for calls that ``condition`` rejects, and the
    function that says whether a profiler records.

    ``cells`` are the objects that the condition and ``statements`` name.
    """
    names, defaults = list(kernel.signature.parameters), host.__defaults__ or ()
    given = {**dict.fromkeys(names, ABSENT), **dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))}
    cells = {**cells, **{f"{PREFIX}default_{name}": given[name] for name in names}}
    only = [n for n, p in kernel.signature.parameters.items() if p.kind is p.POSITIONAL_ONLY]
    parameters = [f"{n}={PREFIX}default_{n}" for n in names]
    parameters[len(only) : len(only)] = ["/"] if only else []
    head = (
        f"def {PREFIX}make({', '.join(cells)}, {PREFIX}slow, {PREFIX}profiled):",
        f"    def {kernel.name}({', '.join(parameters)}, *{PREFIX}more):",
        f"        if {condition}:",
    )
    tail = (
        f"        return {PREFIX}slow({', '.join(names)}, *{PREFIX}more)",
        f"    return {kernel.name}",
    )
    text = "\n".join((*head, *_indented(statements), *tail))
    found: dict[str, Any] = {}
    exec(_compiled(text, kernel.name), host.__globals__, found)
    return functools.partial(found[f"{PREFIX}make"], **cells)


def _indented(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the lines of statements, three blocks deep. They end with a return."""
    body = [*statements, *([] if isinstance(statements[-1], ast.Return) else [ast.Return()])]
    inner: list[ast.stmt] = [ast.If(test=ast.Name("_"), body=body, orelse=[])]
    for _ in range(2):
        inner = [ast.If(test=ast.Name("_"), body=inner, orelse=[])]
    yield from ast.unparse(inner[0]).split("\n")[3:]


def _missed(*args: Any) -> Any:
    return MISSED


_FILES: collections.deque[str] = collections.deque()


@functools.lru_cache(maxsize=256)
def _compiled(text: str, name: str) -> types.CodeType:
    """Compile a written function. Tracebacks and debuggers find its source under a name in angle brackets."""
    file = f"<helion dispatch of {name} {abs(hash(text)):x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    _FILES.append(file)
    if len(_FILES) > 2 * MAX_SIGNATURES:
        linecache.cache.pop(_FILES.popleft(), None)
    return compile(text, file, "exec")


__all__ = [
    "ABSENT",
    "MISSED",
    "Calls",
    "DispatchEntry",
    "dispatchable",
    "leave_untraced",
    "signature_key",
    "write_entry",
]
