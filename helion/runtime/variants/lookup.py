"""The variants of a kernel, by the key of a call, and the variant that leads each bucket of a class."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ... import exc, hardware
from ..._support import ranks
from ..._support.locks import new_lock, recover
from ..call.definition import Definition
from ..call.signature import Key, class_of, has_small_sizes, target_of, token
from ..dispatch.calls import Calls
from .lru import Held, Table
from .variant import CallKey, Variant

#: The kernel that a thread is binding, if any.
_THREAD = threading.local()


class Variants:
    """The table of a kernel's variants.

    A call finds the variant of its strides; ``bind`` finds the one that leads its class and bucket, whose config the
    others use. ``face`` makes the public object of a variant.
    """

    def __init__(self, kernel: Definition, calls: Calls, face: Callable[[Variant], Any]) -> None:
        self._kernel = kernel
        self._calls = calls
        self._face = face
        self._exact: Table[Variant] = Table()
        self._leaders: Table[Variant] = Table()
        self._lock = new_lock()
        recover(self._lock, self._mend)

    def __len__(self) -> int:
        return len(self._exact)

    def count_leaders(self) -> int:
        """Return the number of classes and buckets."""
        return len(self._leaders)

    def find(
        self,
        values: tuple[Any, ...],
        arguments: Key,
        target: str | hardware.Target | None = None,
        of_class: bool = False,
    ) -> Variant:
        """Return the variant for arguments with the key ``arguments``, and make it if there is none.

        With ``of_class`` it is the one that leads their class and bucket. Raises every error of compilation.
        """
        kernel = self._kernel
        chosen = target_of(kernel.name, values) if target is None else hardware.target(target)
        extra = None if kernel.key is None else kernel.key(*values)
        rest = (extra, token(chosen), kernel.settings.checked, ranks.assumed_size())
        if getattr(_THREAD, "binding", None) is not None:  # its host code runs while it is compiled
            raise exc.NestedKernelCallsNotSupported(name=kernel.name)
        if of_class and not kernel.settings.static_shapes:
            table, key = self._leaders, (class_of(arguments), *rest)
        else:
            table, key = self._exact, (arguments, *rest)
        found = _fitting(table.held(key), values)
        if found is None:
            with self._binding():
                found = _fitting(table.held(key), values) or self._made(values, CallKey(arguments, rest), chosen)
        return found

    def exact(self, values: tuple[Any, ...], target: hardware.Target) -> Variant:
        """Return the variant for arguments on a target."""
        return self.find(values, self._kernel.arguments_key(values), target)

    def numbers_of(self, values: tuple[Any, ...], arguments: Key, extra: Any) -> set[tuple[str, Any]]:
        """Return the numbers in arguments that the known variants of their class were specialized on."""
        kernel, static = self._kernel, self._kernel.settings.static_shapes
        rest = (extra, token(target_of(kernel.name, values)), kernel.settings.checked, ranks.assumed_size())
        found = self._exact.of((arguments, *rest)) if static else self._leaders.of((class_of(arguments), *rest))
        return {pair for variant in found for pair in variant.numbers_in(values)}

    def changed(self, variant: Variant) -> None:
        """Forget the written functions of calls that a variant serves."""
        self._calls.forget(variant)

    def _made(self, values: tuple[Any, ...], key: CallKey, target: hardware.Target) -> Variant:
        """Make a variant, or let an existing one lead its class from now on; under the lock."""
        strides = (key.strides, *key.rest)
        found = _fitting(self._exact.held(strides), values)
        if found is None:
            other = None if self._kernel.settings.static_shapes else self._for_any_batch(values, key)
            found = other or Variant(self._kernel, values, key, target, self)
            found.face = found.face or self._face(found)
            for gone in self._exact.add(strides, found, self._calls.served, borrowed=found is other):
                self._calls.forget(gone)
        if not self._kernel.settings.static_shapes:
            leader = _fitting(self._leaders.held(key.family), values)
            if leader is None:
                found.lead(self._leaders.of(key.family))
                self._leaders.add(key.family, found, self._calls.served)
            elif leader is not found:
                found.follow(leader)
        return found

    def _for_any_batch(self, values: tuple[Any, ...], key: CallKey) -> Variant | None:
        """Return a variant of the class for other sizes, 0 or 1 here or there, whose code is right for these."""
        small = has_small_sizes(key.strides)
        for variant in (each for leader in self._leaders.of(key.family) for each in (leader, *leader.followers)):
            fits = (small or variant.has_small_sizes) and variant.has_numbers_of(values) and variant.is_current()
            if fits and variant.serves(values):
                return variant
        return None

    @contextlib.contextmanager
    def _binding(self) -> Iterator[None]:
        """Hold the lock of the table. A thread never holds that of two kernels, which prevents deadlock."""
        with self._lock:
            _THREAD.binding = self
            try:
                yield
            finally:
                _THREAD.binding = None

    def _mend(self) -> None:
        """Repair the tables in a forked process whose parent was filling them in another thread."""
        self._exact.mend()
        self._leaders.mend()

    def clear(self) -> None:
        """Drop all variants."""
        with self._lock:
            self._exact, self._leaders = Table(), Table()


def _fitting(each: Sequence[Held[Variant]], values: tuple[Any, ...]) -> Variant | None:
    """Return the variant of a key for these arguments, and mark it as used now."""
    for held in each:
        fits = held.entry.has_numbers_of(values) and held.entry.is_current()
        if fits and (not held.borrowed or held.entry.serves(values)):
            return held.use()
    return None


__all__ = ["Variants"]
