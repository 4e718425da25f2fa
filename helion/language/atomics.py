"""Atomic read-modify-write operations on host tensors. Each returns the previous elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import exc
from ._reference import access
from ._registry import declare, reference

#: Memory orders, and the programs that see them.
SEMANTICS, SCOPES = ("relaxed", "acquire", "release", "acq_rel"), ("gpu", "sys")


@declare("device")
def atomic_add(
    target: torch.Tensor, index: Sequence[Any], value: torch.Tensor | float, sem: str = "relaxed", scope: str = "gpu"
) -> torch.Tensor:
    """Add to elements of a host tensor: ``target[index] += value``.

    For integers of 32 and 64 bits, float32, float64, float16 and bfloat16.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        value: a number, or a tile that broadcasts to the selected shape; cast to the tensor's dtype. Lanes out of
            range are skipped.
        sem: memory order, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, for the whole program:
            all threads' earlier accesses happen before a release, and their later ones after an acquire.
        scope: the programs that see this order: ``"gpu"``, those of this GPU, or ``"sys"``, also those of other GPUs that
            access the same memory.

    Returns:
        The previous elements, of the selected shape and the tensor's dtype. An element that several lanes select is
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: no GPU has the operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem`` or ``scope``.

    Example::

        @helion.kernel
        def histogram(bins: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
            for tile in hl.tile(bins.size(0)):
                hl.atomic_add(counts, [bins[tile]], 1)
            return counts

        histogram(torch.tensor([0, 2, 2]), torch.zeros(3, dtype=torch.int32))
    """


@declare("device")
def atomic_max(
    target: torch.Tensor, index: Sequence[Any], value: torch.Tensor | float, sem: str = "relaxed", scope: str = "gpu"
) -> torch.Tensor:
    """Store the maximum into elements of a host tensor: ``target[index] = max(target[index], value)``.

    For dtypes of 32 and 64 bits. A ``value`` that is NaN stays, as in ``torch.amax``.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        value: a number, or a tile that broadcasts to the selected shape; cast to the tensor's dtype. Lanes out of
            range are skipped.
        sem: memory order, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, for the whole program:
            all threads' earlier accesses happen before a release, and their later ones after an acquire.
        scope: the programs that see this order: ``"gpu"``, those of this GPU, or ``"sys"``, also those of other GPUs that
            access the same memory.

    Returns:
        The previous elements, of the selected shape and the tensor's dtype. An element that several lanes select is
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: no GPU has the operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem`` or ``scope``.

    Example::

        @helion.kernel
        def largest(x: torch.Tensor) -> torch.Tensor:
            result = torch.full([1], -float("inf"), device=x.device)
            for tile in hl.tile(x.size(0)):
                hl.atomic_max(result, [0], torch.amax(x[tile]))
            return result

        largest(torch.randn(100))
    """


@declare("device")
def atomic_min(
    target: torch.Tensor, index: Sequence[Any], value: torch.Tensor | float, sem: str = "relaxed", scope: str = "gpu"
) -> torch.Tensor:
    """Store the minimum into elements of a host tensor: ``target[index] = min(target[index], value)``.

    For dtypes of 32 and 64 bits. A ``value`` that is NaN stays, as in ``torch.amin``.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        value: a number, or a tile that broadcasts to the selected shape; cast to the tensor's dtype. Lanes out of
            range are skipped.
        sem: memory order, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, for the whole program:
            all threads' earlier accesses happen before a release, and their later ones after an acquire.
        scope: the programs that see this order: ``"gpu"``, those of this GPU, or ``"sys"``, also those of other GPUs that
            access the same memory.

    Returns:
        The previous elements, of the selected shape and the tensor's dtype. An element that several lanes select is
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: no GPU has the operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem`` or ``scope``.

    Example::

        @helion.kernel
        def smallest(x: torch.Tensor) -> torch.Tensor:
            result = torch.full([1], float("inf"), device=x.device)
            for tile in hl.tile(x.size(0)):
                hl.atomic_min(result, [0], torch.amin(x[tile]))
            return result

        smallest(torch.randn(100))
    """


@declare("device")
def atomic_and(
    target: torch.Tensor, index: Sequence[Any], value: torch.Tensor | int, sem: str = "relaxed", scope: str = "gpu"
) -> torch.Tensor:
    """Combine elements of a host tensor by bitwise and: ``target[index] &= value``.

    For integers of 32 and 64 bits.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        value: a number, or a tile that broadcasts to the selected shape; cast to the tensor's dtype. Lanes out of
            range are skipped.
        sem: memory order, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, for the whole program:
            all threads' earlier accesses happen before a release, and their later ones after an acquire.
        scope: the programs that see this order: ``"gpu"``, those of this GPU, or ``"sys"``, also those of other GPUs that
            access the same memory.

    Returns:
        The previous elements, of the selected shape and the tensor's dtype. An element that several lanes select is
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: no GPU has the operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem`` or ``scope``.

    Example::

        @helion.kernel
        def common_bits(x: torch.Tensor) -> torch.Tensor:
            result = torch.full([1], -1, dtype=torch.int32, device=x.device)
            for tile in hl.tile(x.size(0)):
                hl.atomic_and(result, [hl.zeros([tile], dtype=torch.int32)], x[tile])
            return result

        common_bits(torch.tensor([6, 7, 14], dtype=torch.int32))
    """


@declare("device")
def atomic_or(
    target: torch.Tensor, index: Sequence[Any], value: torch.Tensor | int, sem: str = "relaxed", scope: str = "gpu"
) -> torch.Tensor:
    """Combine elements of a host tensor by bitwise or: ``target[index] |= value``.

    For integers of 32 and 64 bits.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        value: a number, or a tile that broadcasts to the selected shape; cast to the tensor's dtype. Lanes out of
            range are skipped.
        sem: memory order, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, for the whole program:
            all threads' earlier accesses happen before a release, and their later ones after an acquire.
        scope: the programs that see this order: ``"gpu"``, those of this GPU, or ``"sys"``, also those of other GPUs that
            access the same memory.

    Returns:
        The previous elements, of the selected shape and the tensor's dtype. An element that several lanes select is
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: no GPU has the operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem`` or ``scope``.

    Example::

        @helion.kernel
        def any_bits(x: torch.Tensor) -> torch.Tensor:
            result = torch.zeros([1], dtype=torch.int32, device=x.device)
            for tile in hl.tile(x.size(0)):
                hl.atomic_or(result, [hl.zeros([tile], dtype=torch.int32)], x[tile])
            return result

        any_bits(torch.tensor([1, 2, 8], dtype=torch.int32))
    """


@declare("device")
def atomic_xor(
    target: torch.Tensor, index: Sequence[Any], value: torch.Tensor | int, sem: str = "relaxed", scope: str = "gpu"
) -> torch.Tensor:
    """Combine elements of a host tensor by bitwise exclusive or: ``target[index] ^= value``.

    For integers of 32 and 64 bits.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        value: a number, or a tile that broadcasts to the selected shape; cast to the tensor's dtype. Lanes out of
            range are skipped.
        sem: memory order, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, for the whole program:
            all threads' earlier accesses happen before a release, and their later ones after an acquire.
        scope: the programs that see this order: ``"gpu"``, those of this GPU, or ``"sys"``, also those of other GPUs that
            access the same memory.

    Returns:
        The previous elements, of the selected shape and the tensor's dtype. An element that several lanes select is
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: no GPU has the operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem`` or ``scope``.

    Example::

        @helion.kernel
        def parity(x: torch.Tensor) -> torch.Tensor:
            result = torch.zeros([1], dtype=torch.int32, device=x.device)
            for tile in hl.tile(x.size(0)):
                hl.atomic_xor(result, [hl.zeros([tile], dtype=torch.int32)], x[tile])
            return result

        parity(torch.tensor([1, 3, 8], dtype=torch.int32))
    """


@declare("device")
def atomic_xchg(
    target: torch.Tensor, index: Sequence[Any], value: torch.Tensor | float, sem: str = "relaxed", scope: str = "gpu"
) -> torch.Tensor:
    """Exchange elements of a host tensor: ``target[index] = value``.

    For dtypes of 32 and 64 bits.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        value: a number, or a tile that broadcasts to the selected shape; cast to the tensor's dtype. Lanes out of
            range are skipped.
        sem: memory order, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, for the whole program:
            all threads' earlier accesses happen before a release, and their later ones after an acquire.
        scope: the programs that see this order: ``"gpu"``, those of this GPU, or ``"sys"``, also those of other GPUs that
            access the same memory.

    Returns:
        The previous elements, of the selected shape and the tensor's dtype. An element that several lanes select is
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: no GPU has the operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem`` or ``scope``.

    Example::

        @helion.kernel
        def replace(x: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
            old = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                old[tile] = hl.atomic_xchg(x, [tile], new[tile])
            return old

        replace(torch.zeros(10), torch.ones(10))
    """


@declare("device")
def atomic_cas(
    target: torch.Tensor,
    index: Sequence[Any],
    expected: torch.Tensor | float,
    value: torch.Tensor | float,
    sem: str = "relaxed",
    scope: str = "gpu",
) -> torch.Tensor:
    """Compare and swap: ``target[index] = value`` where ``target[index] == expected``.

    For dtypes of 16, 32 and 64 bits.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        expected: the value that an element is compared with: a number, or a tile that broadcasts to the selected shape.
        value: the new elements, in the same forms; cast to the tensor's dtype.
        sem: memory order, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, for the whole program:
            all threads' earlier accesses happen before a release, and their later ones after an acquire.
        scope: the programs that see this order: ``"gpu"``, those of this GPU, or ``"sys"``, also those of other GPUs that
            access the same memory.

    Returns:
        The previous elements, of the selected shape and the tensor's dtype. An element that several lanes select is
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: no GPU has the operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem`` or ``scope``.

    Example::

        @helion.kernel
        def claim(owner: torch.Tensor) -> torch.Tensor:
            before = torch.empty_like(owner)
            for tile in hl.tile(owner.size(0)):
                before[tile] = hl.atomic_cas(owner, [tile], -1, 7)
            return before

        claim(torch.tensor([-1, 3], dtype=torch.int32))
    """


_BITS = ("and", "or", "xor")


def check_order(function: str, sem: Any, scope: Any) -> None:
    """Raise ``exc.InvalidAPIUsage`` for an unknown memory order or scope."""
    for what, given, known in (("sem", sem, SEMANTICS), ("scope", scope, SCOPES)):
        if given not in known:
            raise exc.InvalidAPIUsage(f"{what} of {function} must be one of {', '.join(known)}, got {given!r}.")


def check_dtype(name: str, dtype: torch.dtype) -> None:
    """Raise ``exc.TypeInferenceError`` if no GPU has ``hl.atomic_<name>`` on elements of ``dtype``."""
    if name in _BITS and (dtype.is_floating_point or dtype.is_complex):
        raise exc.TypeInferenceError(f"hl.atomic_{name} works on integers of 32 and 64 bits, got {dtype}.")
    legal = dtype.itemsize >= 4 and not dtype.is_complex
    legal = legal or (name == "add" and dtype in (torch.float16, torch.bfloat16))
    legal = legal or (name == "cas" and dtype.itemsize == 2)
    if not legal:
        wide = "float32" if dtype.is_floating_point else "int32"
        raise exc.TypeInferenceError(
            f"hl.atomic_{name} of {dtype} is not supported: GPUs have no such operation; use a tensor of {wide} and convert it"
        )


# --- eager references ---------------------------------------------------------------------------------------------------

_Update = Callable[..., torch.Tensor]


def _register(function: Any, update: _Update, operands: tuple[str, ...] = ("value",)) -> None:
    """Register an eager reference. ``update(before, *operands)`` returns the new values; all have the tensor's
    dtype."""
    name = f"hl.{function.__name__}"

    @reference(function, "once")
    def call(target: Any, index: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        given = dict(zip((*operands, "sem", "scope"), args, strict=False)) | kwargs
        check_order(name, given.get("sem", "relaxed"), given.get("scope", "gpu"))
        if not isinstance(target, torch.Tensor):
            raise exc.TypeInferenceError(f"{name} works on host tensors, got a {type(target).__name__}.")
        check_dtype(function.__name__.removeprefix("atomic_"), target.dtype)
        return _apply(update, target, index, [given[operand] for operand in operands])


def _apply(update: _Update, target: torch.Tensor, index: Any, operands: Sequence[Any]) -> torch.Tensor:
    """Update lane by lane, and return the element that each lane found."""
    selection = access.select(target, index)
    access.check_range(selection, "updates")
    values = [access.stored_value(target, value, selection.shape) for value in operands]
    if selection.basic is not None and _is_apart(target):  # every lane has an element of its own
        before = target[selection.basic].clone()
        access.check_written(target, before, "updates")
        target[selection.basic] = update(before, *values).to(target.dtype)
        return before
    chosen = selection.chosen()
    lanes = [lane.expand(selection.shape) for lane in selection.lanes]
    if chosen is None:
        chosen = torch.ones(selection.shape, dtype=torch.bool, device=target.device)
    found = target.new_zeros(selection.shape)
    access.check_written(target, target[tuple(lane[chosen] for lane in lanes)], "updates")
    found[chosen] = _in_turn(update, target, [lane[chosen] for lane in lanes], [value[chosen] for value in values])
    return found


def _in_turn(
    update: _Update, target: torch.Tensor, lanes: list[torch.Tensor], values: list[torch.Tensor]
) -> torch.Tensor:
    """Update elements by lanes that may share one; such lanes are applied in order."""
    place = torch.zeros_like(values[0], dtype=torch.int64)
    for lane, stride in zip(lanes, target.stride(), strict=True):
        place = place + lane * stride
    # indices of an expanded dimension are one element
    memory = target.as_strided((1 + _last(target),), (1,))
    order = torch.argsort(place, stable=True)
    elements, counts = torch.unique_consecutive(place[order], return_counts=True)
    first = torch.cumsum(counts, 0) - counts
    values = [value[order] for value in values]
    found = torch.empty_like(values[0])
    if update is torch.add and target.dtype != torch.bool:
        # sums of many lanes are formed at once, and rounded once
        wide = torch.float64 if target.dtype.is_floating_point else torch.int64
        upto = torch.cumsum(values[0].to(wide), 0)
        start = (upto - values[0].to(wide))[first]
        before = (upto - values[0].to(wide)) - start.repeat_interleave(counts)
        old = memory[elements].to(wide)
        found = (old.repeat_interleave(counts) + before).to(target.dtype)
        totals = torch.zeros(len(elements), dtype=wide, device=target.device)
        owner = torch.arange(len(elements), device=target.device).repeat_interleave(counts)
        memory[elements] = (old + totals.index_add_(0, owner, values[0].to(wide))).to(target.dtype)
    else:
        turns = torch.arange(len(order), device=target.device) - first.repeat_interleave(counts)
        for turn in range(int(counts.max()) if len(counts) else 0):
            now = turns == turn
            where = place[order][now]
            found[now] = memory[where]
            memory[where] = update(found[now], *(value[now] for value in values)).to(target.dtype)
    result = torch.empty_like(found)
    result[order] = found
    return result


def _last(target: torch.Tensor) -> int:
    """Return the offset of the last element."""
    return sum((size - 1) * stride for size, stride in zip(target.shape, target.stride(), strict=True))


def _is_apart(target: torch.Tensor) -> bool:
    """Return whether different indices are different elements, for any order of strides, with gaps or without."""
    reach = 0
    for stride, size in sorted(zip(target.stride(), target.shape, strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += (size - 1) * stride if size > 1 else 0
    return True


def _exchange(before: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return value


def _compare_and_swap(before: torch.Tensor, expected: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.where(before == expected, value, before)


_register(atomic_add, torch.add)
_register(atomic_max, torch.maximum)
_register(atomic_min, torch.minimum)
_register(atomic_and, torch.bitwise_and)
_register(atomic_or, torch.bitwise_or)
_register(atomic_xor, torch.bitwise_xor)
_register(atomic_xchg, _exchange)
_register(atomic_cas, _compare_and_swap, ("expected", "value"))
