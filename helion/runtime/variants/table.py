"""The table of a kernel's variants: the one that serves a call, and the one that leads each bucket of a class."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any

from ... import exc, hardware, knobs
from ..._support import collecting, ranks
from ..._support.locks import new_lock, recover
from ..._support.records import dataclass
from ..call.definition import Definition
from ..call.signature import Key, class_of, has_small_sizes, target_of, token
from ..dispatch import Calls
from .variant import CallKey, Variant

_TICKS = itertools.count()
#: The kernel that a thread is binding, if any.
_THREAD = threading.local()


@dataclass(eq=False)
class _Entry:
    """An entry with ``used``, the tick of its last use; ``borrowed`` if it was compiled for another key."""

    variant: Variant
    used: int
    borrowed: bool = False


class _LruTable:
    """Variants by key; those of one key differ in numbers that their compilation depends on.

    ``find`` may run in any thread; ``add`` runs under the lock of the kernel. ``HELION_MAX_SPECIALIZATIONS`` is the
    maximum of entries, of which the least recently used are evicted.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[_Entry, ...]] = {}
        self._count = 0

    def mend(self) -> None:
        """Count the entries again, after a thread that was adding one is gone."""
        self._count = sum(map(len, self._entries.values()))

    def __len__(self) -> int:
        return self._count

    def find(self, key: Hashable, values: tuple[Any, ...]) -> Variant | None:
        """Return the variant of a key for these arguments, and mark it as used now."""
        for entry in self._entries.get(key, ()):
            variant = entry.variant
            fits = variant.has_numbers_of(values) and variant.is_current()
            if fits and (not entry.borrowed or variant.serves(values)):
                entry.used = next(_TICKS)
                return variant
        return None

    def of(self, key: Hashable) -> list[Variant]:
        """List all variants of one key."""
        return [entry.variant for entry in self._entries.get(key, ())]

    def add(
        self, key: Hashable, variant: Variant, in_use: Callable[[], Collection[object]], *, borrowed: bool = False
    ) -> list[Variant]:
        """Add a variant, and return the evicted ones: never the new one, and others before those ``in_use``."""
        newest = _Entry(variant, next(_TICKS), borrowed)
        self._entries[key] = (*self._entries.get(key, ()), newest)
        self._count += 1
        excess = self._count - max(1, knobs.MAX_SPECIALIZATIONS.read())
        return self._drop(excess, newest, in_use()) if excess > 0 else []

    def _drop(self, excess: int, newest: _Entry, in_use: Collection[object]) -> list[Variant]:
        entries = [(e.variant in in_use, e.used, key, e) for key, each in self._entries.items() for e in each]
        entries = sorted((each for each in entries if each[3] is not newest), key=lambda each: each[:2])[:excess]
        for _, _, key, gone in entries:
            left = tuple(entry for entry in self._entries[key] if entry is not gone)
            if left:
                self._entries[key] = left
            else:
                del self._entries[key]
        self._count -= len(entries)
        return [gone.variant for *_, gone in entries]


class Variants:
    """The table of a kernel's variants.

    A call finds the variant of its strides; ``bind`` finds the one that leads its class and bucket, whose config the
    others use. ``face`` makes the public object of a variant.
    """

    def __init__(self, kernel: Definition, calls: Calls, face: Callable[[Variant], Any]) -> None:
        self._kernel = kernel
        self._calls = calls
        self._face = face
        self._exact = _LruTable()
        self._leaders = _LruTable()
        self._lock = new_lock()
        recover(self._lock, self._mend)

    def __len__(self) -> int:
        return len(self._exact)

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
        kernel, settings = self._kernel, self._kernel.settings
        chosen = target_of(kernel.name, values) if target is None else hardware.target(target)
        extra = None if kernel.key is None else kernel.key(*values)
        rest = (extra, token(chosen), settings.checked, ranks.assumed_size())
        if getattr(_THREAD, "binding", None) is not None:  # its host code runs while it is compiled
            raise exc.NestedKernelCallsNotSupported(name=kernel.name)
        if of_class and not settings.static_shapes:
            table, key = self._leaders, (class_of(arguments), *rest)
        else:
            table, key = self._exact, (arguments, *rest)
        found = table.find(key, values)
        if found is None:
            with self._binding():
                found = table.find(key, values) or self._made(values, CallKey(arguments, rest), chosen)
        return found

    def exact(self, values: tuple[Any, ...], target: hardware.Target) -> Variant:
        """Return the variant for arguments on a target."""
        return self.find(values, self._kernel.arguments_key(values), target)

    def class_key(self, values: tuple[Any, ...]) -> Hashable:
        """Return the key of the class of arguments, with the numbers that its known variants were specialized on."""
        kernel, arguments = self._kernel, self._kernel.arguments_key(values)
        family, extra = class_of(arguments), None if kernel.key is None else kernel.key(*values)
        rest = (extra, token(target_of(kernel.name, values)), kernel.settings.checked, ranks.assumed_size())
        table, key = (self._exact, arguments) if kernel.settings.static_shapes else (self._leaders, family)
        numbers = {pair for variant in table.of((key, *rest)) for pair in variant.numbers_in(values)}
        return (family, extra, tuple(sorted(numbers, key=repr)))

    def changed(self, variant: Variant) -> None:
        """Forget the written functions of calls that a variant serves."""
        self._calls.forget(variant)

    def _made(self, values: tuple[Any, ...], key: CallKey, target: hardware.Target) -> Variant:
        """Make a variant, or let an existing one lead its class from now on; under the lock."""
        strides = (key.strides, *key.rest)
        found = self._exact.find(strides, values)
        if found is None:
            other = None if self._kernel.settings.static_shapes else self._for_any_batch(values, key)
            found = other or Variant(self._kernel, values, key, target, self)
            found.face = found.face or self._face(found)
            for gone in self._exact.add(strides, found, self._calls.recent_variants, borrowed=found is other):
                self._calls.forget(gone)
        if not self._kernel.settings.static_shapes:
            leader = self._leaders.find(key.family, values)
            if leader is None:
                found.lead(self._leaders.of(key.family))
                self._leaders.add(key.family, found, self._calls.recent_variants)
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
        with self._lock, collecting.paused():
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
            self._exact, self._leaders = _LruTable(), _LruTable()


__all__ = ["Variants"]
