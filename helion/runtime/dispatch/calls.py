"""The fast path of a kernel's calls: functions written for the signatures of earlier calls.

After a call has taken the slow path (key, variant, generated host function, launcher), a function is written for calls
like it. ``Kernel`` calls the function last written directly. If its guards fail, another function is looked up by key.
If none serves the call, it takes the slow path again.

Arguments that guards cannot check in a few hundred nanoseconds (containers, tensor subclasses) always take the slow
path.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ... import settings
from ..._support.locks import in_forked_process, new_lock
from ...backends import stub
from ..call.definition import Definition
from ..call.signature import Key
from ..call.size_buckets import SizeBuckets
from .entries import ABSENT, MISSED, Bound, DispatchEntry, write_entry

if TYPE_CHECKING:
    pass

#: Signatures kept per kernel, and functions written for one of them before it stays on the slow path.
MAX_SIGNATURES, MAX_VERSIONS = 256, 8
#: Functions whose guards a miss tries, 0.1 µs each, before it computes a key, which takes longer.
_PROBED = 6


class Calls:
    """The written functions of a kernel's calls. ``forget`` drops them if an assumption of theirs may have changed."""

    def __init__(self, kernel: Definition, slow_path: Callable[..., Any]) -> None:
        self._kernel = kernel
        self._slow_path = slow_path
        self._lock = new_lock()
        self._lines: dict[Key, DispatchEntry] = {}
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
            kept = {} if bound is None else {k: line for k, line in self._lines.items() if line.bound is not bound}
            self._versions = {k: self._versions[k] for k in kept}
            self._buckets = {k[:-1]: self._buckets[k[:-1]] for k in kept}
            self._lines, self._known = kept, set(kept.values())
            self._recent = tuple(line for line in self._recent if kept.get(line.key) is line)
            self._kernel.__call__ = self._recent[0].run if self._recent else self._slow_path

    def miss(self, *args: Any) -> Any:
        """Handle a call that the function last used does not accept."""
        for value in args:
            if value is ABSENT:  # for the TypeError that names it
                names = self._kernel.signature.parameters
                return self._slow_path(**{n: v for n, v in zip(names, args, strict=False) if v is not ABSENT})
        recent = self._recent
        for line in recent:
            result = line.probe(*args)
            if result is not MISSED:
                self._use(line)
                return result
        if len(self._lines) > len(recent) and len(args) == len(self._kernel.signature.parameters):
            key = signature_key(self._kernel.arguments_key(args), args)
            buckets = self._buckets.get(key)
            found = None if buckets is None else self._lines.get((*key, buckets.of(args)))
            result = MISSED if found is None else found.probe(*args)
            if found is not None and result is not MISSED:
                self._use(found)
                return result
        return self._slow_path(*args)

    def _use(self, line: DispatchEntry) -> None:
        """Make the next call try this one first, unless everything was forgotten meanwhile."""
        with self._lock:
            if line in self._known:
                self._kernel.__call__ = line.run
                if line not in self._recent:
                    self._recent = (line, *self._recent[: _PROBED - 1])

    def served(self) -> set[Bound]:
        """Return the bound kernels of the functions that were used last."""
        return {line.bound for line in self._recent}

    def _make_room(self) -> None:
        """Drop the oldest functions and counts, except the functions used last."""
        kept = {line.key for line in self._recent}
        spare = [key for key in self._lines if key not in kept][: len(self._lines) - MAX_SIGNATURES + 1]
        for key in spare:
            self._known.discard(self._lines.pop(key))
            self._versions.pop(key, None)
        if len(self._versions) > 4 * MAX_SIGNATURES:
            self._versions = {key: self._versions.get(key, 1) for key in self._lines}
            self._buckets = {key[:-1]: self._buckets[key[:-1]] for key in self._lines}

    def learn(self, bound: Bound, values: tuple[Any, ...], arguments: Key, generation: int) -> None:
        """Write a function for calls like this one, which has just taken the slow path with ``generation`` read before."""
        signature = signature_key(arguments, values)
        key = (*signature, bound.bucket)
        version = self._versions.get(key, 0)
        if version >= MAX_VERSIONS or generation != self.generation:
            return
        if self._kernel.arguments_key(values) != arguments:  # the kernel's host code changed its arguments' shapes
            return
        line = write_entry(key, bound, values, self.miss)
        with self._lock:
            if generation != self.generation:
                return
            self._make_room()
            self._versions[key] = MAX_VERSIONS if line is None else version + 1
            if line is not None:
                self._buckets[signature] = bound.compiled.specialized.buckets
                former = self._lines.pop(key, None)
                self._lines[key] = line
                self._known = set(self._lines.values())
                self._recent = (line, *[r for r in self._recent if r is not former][: _PROBED - 1])
                self._kernel.__call__ = line.run


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


__all__ = ["Calls", "dispatchable", "signature_key"]
