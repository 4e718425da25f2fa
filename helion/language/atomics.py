"""Atomic read-modify-write operations on host tensors. Each returns the elements from before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import exc
from . import _reference_access as access
from ._registry import declare, reference


@declare("device")
def atomic_add(
    target: torch.Tensor, index: Sequence[Any], value: torch.Tensor | float, sem: str = "relaxed"
) -> torch.Tensor:
    """Add to elements of a host tensor: ``target[index] += value``.

    For integers of 32 and 64 bits, float32, float64, float16 and bfloat16.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        value: a number, or a tile that broadcasts to the selected shape; cast to the tensor's dtype. Lanes out of
            range do nothing.
        sem: memory ordering, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, of the whole program: all of its
            accesses before a release are done, by all threads, and those after an acquire see what others released.

    Returns:
        The elements from before, of the selected shape and the tensor's dtype. Elements that several lanes select are
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: GPUs have no such operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem``.
    """


@declare("device")
def atomic_max(
    target: torch.Tensor, index: Sequence[Any], value: torch.Tensor | float, sem: str = "relaxed"
) -> torch.Tensor:
    """Raise elements of a host tensor to a value: ``target[index] = max(target[index], value)``.

    For dtypes of 32 and 64 bits.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        value: a number, or a tile that broadcasts to the selected shape; cast to the tensor's dtype. Lanes out of
            range do nothing.
        sem: memory ordering, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, of the whole program: all of its
            accesses before a release are done, by all threads, and those after an acquire see what others released.

    Returns:
        The elements from before, of the selected shape and the tensor's dtype. Elements that several lanes select are
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: GPUs have no such operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem``.
    """


@declare("device")
def atomic_min(
    target: torch.Tensor, index: Sequence[Any], value: torch.Tensor | float, sem: str = "relaxed"
) -> torch.Tensor:
    """Lower elements of a host tensor to a value: ``target[index] = min(target[index], value)``.

    For dtypes of 32 and 64 bits.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        value: a number, or a tile that broadcasts to the selected shape; cast to the tensor's dtype. Lanes out of
            range do nothing.
        sem: memory ordering, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, of the whole program: all of its
            accesses before a release are done, by all threads, and those after an acquire see what others released.

    Returns:
        The elements from before, of the selected shape and the tensor's dtype. Elements that several lanes select are
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: GPUs have no such operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem``.
    """


@declare("device")
def atomic_and(
    target: torch.Tensor, index: Sequence[Any], value: torch.Tensor | int, sem: str = "relaxed"
) -> torch.Tensor:
    """Combine elements of a host tensor bitwise: ``target[index] &= value``.

    For integers of 32 and 64 bits.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        value: a number, or a tile that broadcasts to the selected shape; cast to the tensor's dtype. Lanes out of
            range do nothing.
        sem: memory ordering, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, of the whole program: all of its
            accesses before a release are done, by all threads, and those after an acquire see what others released.

    Returns:
        The elements from before, of the selected shape and the tensor's dtype. Elements that several lanes select are
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: GPUs have no such operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem``.
    """


@declare("device")
def atomic_or(
    target: torch.Tensor, index: Sequence[Any], value: torch.Tensor | int, sem: str = "relaxed"
) -> torch.Tensor:
    """Combine elements of a host tensor bitwise: ``target[index] |= value``.

    For integers of 32 and 64 bits.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        value: a number, or a tile that broadcasts to the selected shape; cast to the tensor's dtype. Lanes out of
            range do nothing.
        sem: memory ordering, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, of the whole program: all of its
            accesses before a release are done, by all threads, and those after an acquire see what others released.

    Returns:
        The elements from before, of the selected shape and the tensor's dtype. Elements that several lanes select are
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: GPUs have no such operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem``.
    """


@declare("device")
def atomic_xor(
    target: torch.Tensor, index: Sequence[Any], value: torch.Tensor | int, sem: str = "relaxed"
) -> torch.Tensor:
    """Combine elements of a host tensor bitwise: ``target[index] ^= value``.

    For integers of 32 and 64 bits.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        value: a number, or a tile that broadcasts to the selected shape; cast to the tensor's dtype. Lanes out of
            range do nothing.
        sem: memory ordering, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, of the whole program: all of its
            accesses before a release are done, by all threads, and those after an acquire see what others released.

    Returns:
        The elements from before, of the selected shape and the tensor's dtype. Elements that several lanes select are
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: GPUs have no such operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem``.
    """


@declare("device")
def atomic_xchg(
    target: torch.Tensor, index: Sequence[Any], value: torch.Tensor | float, sem: str = "relaxed"
) -> torch.Tensor:
    """Exchange elements of a host tensor: ``target[index] = value``.

    For dtypes of 32 and 64 bits.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        value: a number, or a tile that broadcasts to the selected shape; cast to the tensor's dtype. Lanes out of
            range do nothing.
        sem: memory ordering, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, of the whole program: all of its
            accesses before a release are done, by all threads, and those after an acquire see what others released.

    Returns:
        The elements from before, of the selected shape and the tensor's dtype. Elements that several lanes select are
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: GPUs have no such operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem``.
    """


@declare("device")
def atomic_cas(
    target: torch.Tensor,
    index: Sequence[Any],
    expected: torch.Tensor | float,
    value: torch.Tensor | float,
    sem: str = "relaxed",
) -> torch.Tensor:
    """Compare and swap: ``target[index] = value`` where ``target[index] == expected``.

    For dtypes of 16, 32 and 64 bits.

    Args:
        target: a host tensor.
        index: one entry per dimension, as in ``target[index]``.
        expected: what an element must be to be replaced: a number, or a tile that broadcasts to the selected shape.
        value: the new elements, in the same forms; cast to the tensor's dtype.
        sem: memory ordering, ``"relaxed"``, ``"acquire"``, ``"release"`` or ``"acq_rel"``, of the whole program: all of its
            accesses before a release are done, by all threads, and those after an acquire see what others released.

    Returns:
        The elements from before, of the selected shape and the tensor's dtype. Elements that several lanes select are
        updated once per lane, in no particular order.

    Raises:
        exc.AtomicOnDeviceTensor: ``target`` is a device value.
        exc.TypeInferenceError: GPUs have no such operation on the tensor's dtype.
        exc.InvalidAPIUsage: an unknown ``sem``.
    """


_BITS = ("and", "or", "xor")


def check_dtype(name: str, dtype: torch.dtype) -> None:
    """Raises ``exc.TypeInferenceError`` where no GPU has ``hl.atomic_<name>`` on elements of ``dtype``."""
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
    """``update(before, *operands)`` gives the new values; all have the tensor's dtype."""
    name = f"hl.{function.__name__}"

    @reference(function, "once")
    def call(target: Any, index: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        given = dict(zip((*operands, "sem"), args, strict=False)) | kwargs
        sem = given.get("sem", "relaxed")
        if sem not in ("relaxed", "acquire", "release", "acq_rel"):
            raise exc.InvalidAPIUsage(f"sem of {name} must be relaxed, acquire, release or acq_rel, got {sem!r}.")
        if not isinstance(target, torch.Tensor):
            raise exc.TypeInferenceError(f"{name} works on host tensors, got a {type(target).__name__}.")
        check_dtype(function.__name__.removeprefix("atomic_"), target.dtype)
        return _apply(update, target, index, [given[operand] for operand in operands])


def _apply(update: _Update, target: torch.Tensor, index: Any, operands: Sequence[Any]) -> torch.Tensor:
    """The lanes of an operation one after the other: gives for each what it found."""
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
    """Update elements by lanes that may share one: those lanes come in order."""
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
    """The offset of the last element."""
    return sum((size - 1) * stride for size, stride in zip(target.shape, target.stride(), strict=True))


def _is_apart(target: torch.Tensor) -> bool:
    """Whether different indices are different elements, in memory of any order with gaps or without."""
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
