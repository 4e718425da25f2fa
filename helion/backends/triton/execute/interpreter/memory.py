"""Memory of a launch: the addresses that its tensors own, and loads, stores and atomics on them.

A kernel computes with real addresses. Each access finds the tensor storage that contains its addresses and uses a numpy
view of it. The lookup is the bounds check as well. Triton's own interpreter copies element by element, which is slower
(measurement ``interpreted_loads``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from triton._C.libtriton import interpreter as _raw_memory


class _Bytes:
    """Exposes ``size`` bytes at ``address`` to numpy."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Region:
    """One tensor storage: ``size`` bytes from ``start``. ``owner`` is the argument it belongs to, as text."""

    start: int
    size: int
    owner: str
    views: dict[np.dtype, np.ndarray] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def end(self) -> int:
        return self.start + self.size

    def holds(self, address: int) -> bool:
        return self.start <= address < self.end

    def view(self, dtype: np.dtype) -> np.ndarray:
        """Return the whole storage as an array of ``dtype``."""
        found = self.views.get(dtype)
        if found is None:
            whole = self.size // dtype.itemsize * dtype.itemsize
            found = np.asarray(_Bytes(self.start, whole)).view(dtype)
            self.views[dtype] = found
        return found


def _shift(dtype: np.dtype) -> int:
    return dtype.itemsize.bit_length() - 1


class Memory:
    """The storages of one launch.

    ``checked`` is true until the kernel makes a pointer out of an integer, which may point anywhere. From then on
    addresses outside every argument are accessed without a check, if ``elsewhere`` allows it.
    """

    def __init__(self, regions: Sequence[Region], place: Callable[[], str], elsewhere: bool = True) -> None:
        self.regions = tuple(regions)
        self.checked = True
        self._elsewhere = elsewhere
        self._place = place

    def made_pointers(self) -> None:
        """Record that the kernel makes pointers out of integers."""
        self.checked = not self._elsewhere

    def _region_of(self, low: int, high: int) -> Region | None:
        for region in self.regions:
            if region.start <= low and high <= region.end:
                return region
        return None

    def _locate(self, pointers: np.ndarray, itemsize: int) -> Region | None:
        """Return the region that contains every access, or None without a single one or for misaligned addresses."""
        low, high = int(pointers.min()), int(pointers.max())
        region = self._region_of(low, high + itemsize)
        if region is None or (low - region.start) % itemsize:
            return None
        return region

    def _outside(self, pointers: np.ndarray, itemsize: int, verb: str) -> IndexError:
        """Return the error for the first of ``pointers`` outside of all regions."""
        inside = np.zeros(pointers.shape, bool)
        for region in self.regions:
            inside |= (pointers >= region.start) & (pointers + itemsize <= region.end)
        bad = int(pointers[~inside].flat[0])

        def distance(region: Region) -> int:
            return max(region.start - bad, bad + itemsize - region.end)

        what = f"{verb} {itemsize} byte{'s' if itemsize > 1 else ''} at address {bad:#x}"
        if self.regions:
            near = min(self.regions, key=distance)
            past = f"{bad - near.end} bytes past the end of {near.owner}"
            side = past if bad >= near.start else f"{near.start - bad} bytes before {near.owner}"
            what = f"{what}, {side} ({near.size} bytes)"
        return IndexError(
            f"{self._place()}: out-of-bounds access: {what}. Mask the access, or correct the grid or the offsets."
        )

    def _parts(self, pointers: np.ndarray, itemsize: int, verb: str) -> list[tuple[Region | None, np.ndarray]]:
        """Split 1-D ``pointers`` into (region, positions); region None means an access without a view."""
        left = np.ones(pointers.shape, bool)
        parts: list[tuple[Region | None, np.ndarray]] = []
        for region in self.regions:
            inside = (pointers >= region.start) & (pointers + itemsize <= region.end) & left
            if not inside.any():
                continue
            left &= ~inside
            aligned = (pointers - np.uint64(region.start)) % np.uint64(itemsize) == 0
            for chosen, holder in ((inside & aligned, region), (inside & ~aligned, None)):
                if chosen.any():
                    parts.append((holder, np.flatnonzero(chosen)))
        if left.any():
            if self.checked:
                raise self._outside(pointers, itemsize, verb)
            parts.append((None, np.flatnonzero(left)))
        return parts

    def load(
        self, pointers: np.ndarray, mask: np.ndarray | None, other: np.ndarray | None, dtype: np.dtype
    ) -> np.ndarray:
        """Return bits of type ``dtype`` at ``pointers`` (uint64) where ``mask``, else ``other`` (bits too, default 0).

        The three broadcast against each other. Raises IndexError for an unmasked address outside every argument.
        """
        region = self._locate(pointers, dtype.itemsize)
        if region is not None:
            index = ((pointers - np.uint64(region.start)) >> np.uint64(_shift(dtype))).view(np.int64)
            values = region.view(dtype).take(index)
            if mask is None:
                return values
            return np.where(mask, values, dtype.type(0) if other is None else other)
        shape = np.broadcast_shapes(pointers.shape, () if mask is None else mask.shape)
        if other is not None:
            shape = np.broadcast_shapes(shape, other.shape)
        pointers = np.broadcast_to(pointers, shape)
        result = np.zeros(shape, dtype)
        if other is not None:
            result[...] = other
        active = np.ones(shape, bool) if mask is None else np.broadcast_to(mask, shape)
        if active.any():
            result[active] = self._load_flat(pointers[active], dtype)
        return result

    def _load_flat(self, pointers: np.ndarray, dtype: np.dtype) -> np.ndarray:
        result = np.empty(pointers.shape, dtype)
        region = self._locate(pointers, dtype.itemsize)
        parts = [(region, slice(None))] if region else self._parts(pointers, dtype.itemsize, "reads")
        for holder, where in parts:
            chosen = pointers[where]
            if holder is None:
                every = np.ones(chosen.shape, bool)
                result[where] = _raw_memory.load(chosen, every, np.zeros(chosen.shape, dtype), dtype)
            else:
                index = ((chosen - np.uint64(holder.start)) >> np.uint64(_shift(dtype))).view(np.int64)
                result[where] = holder.view(dtype).take(index)
        return result

    def store(self, pointers: np.ndarray, values: np.ndarray, mask: np.ndarray | None) -> None:
        """Write ``values`` (bits) at ``pointers`` where ``mask``; the three broadcast against each other.

        Of several lanes that write one element the first wins; on a GPU any may.

        Raises IndexError, before writing anything, for an unmasked address outside every argument.
        """
        dtype = values.dtype
        region = self._locate(pointers, dtype.itemsize)
        if region is not None and values.shape == pointers.shape and (mask is None or mask.shape == pointers.shape):
            if mask is not None and not mask.all():
                pointers, values = pointers[mask], values[mask]
            index = ((pointers - np.uint64(region.start)) >> np.uint64(_shift(dtype))).view(np.int64)
            # numpy keeps the last assignment, and the first of several lanes on one element must win: kernels redirect
            # unused lanes to the element of their first lane, with its old value
            region.view(dtype)[index.reshape(-1)[::-1]] = values.reshape(-1)[::-1]
            return
        shape = np.broadcast_shapes(pointers.shape, values.shape, () if mask is None else mask.shape)
        pointers, values = np.broadcast_to(pointers, shape), np.broadcast_to(values, shape)
        if mask is None:
            pointers, values = pointers.ravel(), values.ravel()
        else:
            active = np.broadcast_to(mask, shape)
            pointers, values = pointers[active], values[active]
        if pointers.size:
            self._store_flat(pointers, values)

    def _store_flat(self, pointers: np.ndarray, values: np.ndarray) -> None:
        dtype = values.dtype
        region = self._locate(pointers, dtype.itemsize)
        parts = [(region, slice(None))] if region else self._parts(pointers, dtype.itemsize, "writes")
        for holder, where in parts:
            chosen = pointers[where]
            if holder is None:
                _raw_memory.store(chosen, np.ascontiguousarray(values[where]), np.ones(chosen.shape, bool))
            else:
                index = ((chosen - np.uint64(holder.start)) >> np.uint64(_shift(dtype))).view(np.int64)
                holder.view(dtype)[index[::-1]] = values[where][::-1]

    def update(
        self,
        pointers: np.ndarray,
        mask: np.ndarray,
        dtype: np.dtype,
        change: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ) -> np.ndarray:
        """Update each address atomically to ``change(old, positions)`` and return the old bits.

        ``pointers`` and ``mask`` have one shape. ``positions`` are flat lane numbers, in increasing order; lanes that
        hit one address are applied in order, lowest lane first. Inactive lanes return 0.
        """
        old = np.zeros(pointers.shape, dtype)
        lanes = np.flatnonzero(mask)
        if not lanes.size:
            return old
        flat, flat_old = pointers.reshape(-1), old.reshape(-1)
        chosen = flat[lanes]
        order = np.argsort(chosen, kind="stable")
        ordered = chosen[order]
        first = np.r_[True, ordered[1:] != ordered[:-1]]
        # Turn of a lane: the number of earlier lanes with the same address.
        begin = np.maximum.accumulate(np.where(first, np.arange(first.size), 0))
        turn = np.empty(first.size, np.int64)
        turn[order] = np.arange(first.size) - begin
        for now in range(int(turn.max()) + 1):
            positions = lanes[turn == now]
            addresses = flat[positions]
            before = self._load_flat(addresses, dtype)
            flat_old[positions] = before
            self._store_flat(addresses, change(before, positions))
        return old
