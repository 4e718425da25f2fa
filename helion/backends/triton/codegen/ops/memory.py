"""Loads, stores and atomics with their masks and options."""

from __future__ import annotations

import torch

from ....._compiler.ir.grammar import AddressAttrs, MemoryAttrs, Op, Value
from ....._shapes import Dims
from .. import boxes
from ..addresses import Run, pointer, run_of
from ..emission import Emission
from . import marked
from .bins import count
from .literals import TRITON_DTYPES


def _mask(e: Emission, op: Op, attrs: MemoryAttrs, dims: Dims, run: Run | None = None) -> str:
    if run is not None:
        return run.mask
    mask = "" if attrs.padded else e.mask_of(dims, range(len(dims)))
    if attrs.mask is not None:
        extra = e.operand(op.operands[attrs.mask])
        mask = f"{mask} & {extra}" if mask else extra
    return mask


def load(e: Emission, op: Op) -> None:
    attrs = op.attributes(MemoryAttrs)
    policy = attrs.eviction if attrs.load_slot is None else e.plan.evictions.get(attrs.load_slot, "")
    policy = (policy or "").removeprefix("evict_")
    options = [f"eviction_policy='evict_{policy}'"] if policy else []
    options += _cache_modifier(e, attrs)
    box = e.plan.boxes.get(op.number)
    if box is not None:
        e.assign(op, "load", boxes.load(e, op, attrs, box, options))
        return
    run = run_of(e, attrs, op.result.dims)
    arguments = [pointer(e, op, attrs, op.result.dims, run)]
    mask = _mask(e, op, attrs, op.result.dims, run)
    if attrs.mark is not None:
        e.assign(op, "received", marked.load(e, op, attrs, arguments[0], mask))
        return
    if mask:
        zero = "0.0" if op.result.dtype.is_floating_point else "0"
        arguments += [f"mask={mask}", f"other={zero}"]
    text = f"tl.load({', '.join((*arguments, *options))})"
    if op.result.dtype == torch.bool:
        # memory has bytes; any nonzero byte is true
        text = f"({text} != 0)"
    e.assign(op, "load", text if run is None else f"tl.reshape({text}, {e.shape(op.result.dims)})")


def store(e: Emission, op: Op) -> None:
    attrs = op.attributes(MemoryAttrs)
    dims = op.results[0].dims
    box = e.plan.boxes.get(op.number)
    if box is not None:
        e.lines.add(boxes.store(e, op, attrs, box, _cache_modifier(e, attrs)))
        return
    run, value = run_of(e, attrs, dims), e.operand(op.operands[0])
    if run is not None:
        value = f"tl.reshape({value}, {e.shape(run.dims)})"
    arguments = [pointer(e, op, attrs, dims, run), value]
    mask = _mask(e, op, attrs, dims, run)
    if mask:
        arguments.append(f"mask={mask}")
    e.lines.add(f"tl.store({', '.join((*arguments, *_cache_modifier(e, attrs)))})")


def _cache_modifier(e: Emission, attrs: MemoryAttrs) -> list[str]:
    modifier = e.plan.cache_modifiers.get(attrs.slot)
    return [f"cache_modifier={modifier!r}"] if modifier else []


def atomic(e: Emission, op: Op) -> None:
    attrs = op.attributes(MemoryAttrs)
    how = e.plan.counted.get(op.number)
    if how is None:
        _atomic(e, op, attrs)
    else:
        count(e, op, attrs, how, _mask(e, op, attrs, op.result.dims), lambda: _atomic(e, op, attrs))


def _prevailing(value: str, dtype: torch.dtype, atomic: str) -> str:
    """Return a number whose NaN an atomic maximum or minimum keeps, as torch's amax and amin do.

    Triton compares the bits of floating-point numbers. The NaN with the greatest positive bits prevails in maxima, and
    that with the greatest negative ones in minima; others are dropped.
    """
    bits = dtype.itemsize * 8
    nan = -1 if atomic == "min" else 2 ** (bits - 1) - 1
    kept = f"tl.where({value} == {value}, {value}.to(tl.int{bits}, bitcast=True), {nan})"
    return f"{kept}.to({TRITON_DTYPES[dtype]}, bitcast=True)"


def _atomic(e: Emission, op: Op, attrs: MemoryAttrs) -> None:
    dims = op.result.dims
    values = [e.operand(o) for o in op.operands[: 2 if attrs.atomic == "cas" else 1]]
    if attrs.atomic in ("max", "min") and op.result.dtype.is_floating_point and isinstance(op.operands[0], Value):
        values = [_prevailing(values[0], op.result.dtype, attrs.atomic)]
    arguments = [pointer(e, op, attrs, dims), *values]
    mask = _mask(e, op, attrs, dims)
    if mask and attrs.atomic == "cas":
        # cas takes no mask; a lane out of range replaces 0 by 0 in the first element
        places, expected, value = arguments
        first = e.tensor_names[attrs.tensor]
        arguments = [
            f"tl.where({mask}, {places}, {first})",
            f"tl.where({mask}, {expected}, 0)",
            f"tl.where({mask}, {value}, 0)",
        ]
    elif mask:
        arguments.append(f"mask={mask}")
    arguments.append(f"sem={attrs.sem!r}")
    if attrs.scope != "gpu":  # Triton's default
        arguments.append(f"scope={attrs.scope!r}")
    text = f"tl.atomic_{attrs.atomic}({', '.join(arguments)})"
    if attrs.unread:
        e.lines.add(text)
    else:
        e.assign(op, f"atomic_{attrs.atomic}", text)


def load_at(e: Emission, op: Op) -> None:
    attrs = op.attributes(AddressAttrs)
    pointers, offsets, mask = (e.operand(o) for o in op.operands)
    policy = (attrs.eviction or "").removeprefix("evict_")
    options = f", eviction_policy='evict_{policy}'" if policy else ""
    text = f"tl.load({_places(pointers, offsets, attrs)}, mask={mask}, other={'0.0' if attrs.dtype.is_floating_point else '0'}{options})"
    e.assign(op, "load", f"({text} != 0)" if attrs.dtype == torch.bool else text)


def store_at(e: Emission, op: Op) -> None:
    value, pointers, offsets, mask = (e.operand(o) for o in op.operands)
    e.lines.add(f"tl.store({_places(pointers, offsets, op.attributes(AddressAttrs))}, {value}, mask={mask})")


def _places(pointers: str, offsets: str, attrs: AddressAttrs) -> str:
    return f"{pointers}.to(tl.pointer_type({TRITON_DTYPES[attrs.dtype]})) + {offsets}"


def barrier(e: Emission, op: Op) -> None:
    e.lines.add("tl.debug_barrier()")


OPS = {"load": load, "store": store, "atomic": atomic, "load_at": load_at, "store_at": store_at, "barrier": barrier}
