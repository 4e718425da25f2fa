"""Dataflow: the reductions, dots and stores that each value reaches.

There is one bit per reduced axis of each reduction, per dot and per store. Bits flow from uses to definitions in one
backward pass (loops iterate to a fixpoint). They stop at reductions, stores and addresses.
"""

from __future__ import annotations

from ..._support.records import dataclass, field
from ..ir.grammar import MemoryAttrs, Op, Operand, ReduceAttrs, Region, Value
from .walk import Walk


@dataclass(slots=True)
class Flow:
    """Result of the analysis. ``reached[value.number]`` is the set of bits that the value reaches.

    ``reduce_bits`` are ``(op, axis, bit)`` in program order. ``dot_bits`` and ``store_bits`` have ``op.number`` as key;
    atomics count as stores.
    """

    reached: dict[int, int] = field(default_factory=dict)
    reduce_bits: list[tuple[Op, int, int]] = field(default_factory=list)
    reduce_bit: dict[int, int] = field(default_factory=dict)
    dot_bits: dict[int, int] = field(default_factory=dict)
    store_bits: dict[int, int] = field(default_factory=dict)
    stores: int = 0

    def of(self, value: Operand) -> int:
        return self.reached.get(value.number, 0) if isinstance(value, Value) else 0


def trace_flow(walk: Walk) -> Flow:
    flow = Flow()
    bit = 1
    for op in walk.reduces:
        (value,) = op.values()
        for dim in op.attributes(ReduceAttrs).dims:
            for axis in value.dims[dim].blocks:
                flow.reduce_bits.append((op, axis, bit))
                flow.reduce_bit[op.number] = flow.reduce_bit.get(op.number, 0) | bit
                bit <<= 1
    for op in walk.dots:
        flow.dot_bits[op.number] = bit
        bit <<= 1
    for op in (*walk.stores, *walk.atomics):
        flow.store_bits[op.number] = bit
        flow.stores |= bit
        bit <<= 1
    for root in walk.program.roots:
        _region(root.body, flow)
    return flow


def _region(region: Region, flow: Flow) -> None:
    reached = flow.reached
    for op in reversed(region.ops):
        kind = op.kind
        if kind == "pointwise" or kind == "view" or kind == "mask":
            bits = reached.get(op.results[0].number, 0)
            if bits:
                _add(reached, op.operands, bits)
        elif kind == "load":
            continue
        elif kind == "store":
            attrs = op.attributes(MemoryAttrs)
            bits = flow.store_bits[op.number]
            _add(reached, op.operands[:1], bits)
            if attrs.mask is not None:
                _add(reached, (op.operands[attrs.mask],), bits)
        elif kind == "reduce":
            _add(reached, op.operands, flow.reduce_bit.get(op.number, 0))
        elif kind == "dot":
            bits = reached.get(op.results[0].number, 0)
            _add(reached, op.operands[:2], bits | flow.dot_bits[op.number])
            _add(reached, op.operands[2:], bits)
        elif kind == "atomic":
            _atomic(op, flow)
        elif kind == "for" or kind == "while":
            _loop(op, flow)
        elif kind == "if":
            for inner in op.regions:
                for after, result in zip(inner.results, op.results, strict=False):
                    _add(reached, (after,), reached.get(result.number, 0))
                _region(inner, flow)
        else:
            bits = 0
            for result in op.results:
                bits |= reached.get(result.number, 0)
            _add(reached, op.operands, bits)


def _atomic(op: Op, flow: Flow) -> None:
    attrs = op.attributes(MemoryAttrs)
    addresses = {index.operand for index in attrs.indices}
    values = [operand for at, operand in enumerate(op.operands) if at not in addresses]
    _add(flow.reached, tuple(values), flow.store_bits[op.number])


def _loop(op: Op, flow: Flow) -> None:
    reached = flow.reached
    region = op.regions[-1]
    before: list[int] | None = None
    while True:
        params = [reached.get(param.number, 0) for param in region.params]
        if params == before:
            break
        before = params
        for bits, after, result in zip(params, region.results, op.results, strict=True):
            _add(reached, (after,), bits | reached.get(result.number, 0))
        _region(region, flow)
    for initial, bits, result in zip(op.operands, params, op.results, strict=False):
        _add(reached, (initial,), bits | reached.get(result.number, 0))


def _add(reached: dict[int, int], operands: tuple[Operand, ...], bits: int) -> None:
    for operand in operands:
        if isinstance(operand, Value):
            key = operand.number
            reached[key] = reached.get(key, 0) | bits
