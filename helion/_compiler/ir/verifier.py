"""Verifier of programs. It runs after every step in tests, and with ``HELION_VERIFY=1``."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ... import exc
from ..._shapes import broadcast_dims
from .effects import storages_of
from .grammar import (
    Block,
    DotAttrs,
    ForAttrs,
    GatherAttrs,
    IotaAttrs,
    MaskAttrs,
    MemoryAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    Program,
    ReduceAttrs,
    Region,
    TileAttrs,
    Value,
    Variables,
    ViewAttrs,
    WhileAttrs,
)
from .operands import accumulator_of
from .ops import OPS
from .pointwise import POINTWISE
from .printer import type_text
from .rewrite import Makers


def verify(program: Program, after: str) -> Program:
    """Raise ``exc.VerifierError`` with the step ``after`` if the program is malformed; else return the program."""
    _Verifier(program, after).run()
    return program


class _Verifier:
    def __init__(self, program: Program, after: str) -> None:
        self.program = program
        self.after = after
        self.slots: dict[tuple[bool, int], str] = {}
        self.ops: set[int] = set()
        self.values: set[int] = set()

    def fail(self, reason: str) -> None:
        raise exc.VerifierError(step=self.after, reason=reason)

    def check(self, condition: bool, reason: str) -> None:
        if not condition:
            self.fail(reason)

    def run(self) -> None:
        for at, block in enumerate(self.program.blocks):
            self.check(block.id == at, f"block {block.id} is at position {at}")
        for at, tensor in enumerate(self.program.tensors):
            self.check(tensor.id == at, f"tensor {tensor.name} is at position {at}")
        for root in self.program.roots:
            active = frozenset(axis.block for axis in root.axes)
            self.check(not root.body.params and not root.body.results, "the body of a root has params or results")
            self.region(root.body, {}, active)
        self.launches()

    def launches(self) -> None:
        """Check that each read of memory that steps allocate follows the launch that writes it."""
        made = {tensor.storage: tensor.name for tensor in self.program.tensors if tensor.made}
        touched = [(root.phase, *storages_of(self.program, root)) for root in self.program.roots] if made else []
        for storage, name in made.items():
            first = min((phase for phase, _, written in touched if storage in written), default=None)
            for phase, read, written in touched:
                there = storage in written or (first is not None and first < phase)
                self.check(storage not in read or there, f"phase {phase} reads {name}, which no earlier phase writes")

    def define(self, value: Value) -> Value:
        self.check(value.number not in self.values, f"%{value.number} is defined twice")
        self.values.add(value.number)
        return value

    def region(self, region: Region, outer: Mapping[int, Value], active: frozenset[int]) -> None:
        known = {**outer, **{p.number: self.define(p) for p in region.params}}
        for op in region.ops:
            self.check(op.number not in self.ops, f"{op.kind} has the number of another op")
            self.ops.add(op.number)
            for value in op.values():
                self.check(known.get(value.number) is value, f"{op.kind} uses %{value.number} before it is defined")
            self.op(op, active)
            inner = active
            if isinstance(op.attrs, ForAttrs):
                parts = {axis.split.block for axis in op.attrs.axes if axis.split is not None}
                self.check(parts <= active, "a loop is over a part of an axis that no loop around it gives")
                inner = active | {axis.block for axis in op.attrs.axes}
            for child in op.regions:
                self.region(child, known, inner)
            known.update((result.number, self.define(result)) for result in op.results)
        for operand in region.results:
            defined = not isinstance(operand, Value) or known.get(operand.number) is operand
            self.check(defined, "a region yields an undefined value")

    def op(self, op: Op, active: frozenset[int]) -> None:
        spec = OPS.get(op.kind)
        self.check(spec is not None, f"{op.kind} is no op")
        assert spec is not None
        self.check(isinstance(op.attrs, spec.attrs), f"{op.kind} has attributes of another op")
        self.check(len(op.regions) == spec.regions, f"{op.kind} has {len(op.regions)} regions")
        if spec.per_lane:
            self._lanes(op)
        method = getattr(self, f"op_{op.kind}", None)
        if method is not None:
            method(op, active)

    def _blocks(self, op: Op) -> list[Block]:
        return [self.program.blocks[b] for r in op.results for d in r.dims for b in d.blocks]

    def op_tile(self, op: Op, active: frozenset[int]) -> None:
        attrs = op.attributes(TileAttrs)
        self.check(attrs.block in active, f"tile property of block {attrs.block} outside of its loop")

    def op_iota(self, op: Op, active: frozenset[int]) -> None:
        attrs = op.attributes(IotaAttrs)
        full = self.program.blocks[attrs.block].kind == "full"
        part = self.program.blocks[attrs.block].part
        merged = any(attrs.block in self.program.blocks[block].merged for block in active)
        self.check(
            attrs.relative or full or merged or (attrs.block if part is None else part.block) in active,
            f"indices of block {attrs.block} outside of its loop",
        )

    def op_load(self, op: Op, active: frozenset[int]) -> None:
        self._memory(op, op.results[0])

    def op_store(self, op: Op, active: frozenset[int]) -> None:
        value = op.operands[0]
        assert isinstance(value, Value)
        self.check(
            value.dims == op.results[0].dims,
            f"store of {type_text(value)} where the subscript selects {type_text(op.results[0])}",
        )
        self._memory(op, op.results[0])

    def op_atomic(self, op: Op, active: frozenset[int]) -> None:
        self._memory(op, op.results[0])

    def op_barrier(self, op: Op, active: frozenset[int]) -> None:
        self.check(not op.operands and not op.results and not op.regions, "a barrier has operands, results or regions")

    def op_fold(self, op: Op, active: frozenset[int]) -> None:
        self._combine(op, 1)

    def op_scan(self, op: Op, active: frozenset[int]) -> None:
        self._combine(op, 0)

    def _combine(self, op: Op, dropped: int) -> None:
        values = list(op.values())
        (region,) = op.regions
        self.check(len(values) == len(op.results), f"a {op.kind} of {len(values)} values gives {len(op.results)}")
        self.check(
            len(region.params) == 2 * len(values) == 2 * len(region.results),
            f"the function of a {op.kind} has another arity",
        )
        for value, result in zip(values, op.results, strict=True):
            self.check(
                len(value.dims) - dropped == len(result.dims),
                f"a {op.kind} gives {type_text(result)} of {type_text(value)}",
            )

    def op_gather(self, op: Op, active: frozenset[int]) -> None:
        attrs = op.attributes(GatherAttrs)
        value, index = op.values()
        self.check(
            op.result.dims == index.dims and len(value.dims) == len(index.dims),
            f"a gather from {type_text(value)} by {type_text(index)} gives {type_text(op.result)}",
        )
        self.check(0 <= attrs.dim < len(value.dims) and attrs.doubled >= 0, "a gather along no dimension")

    def _variables(self, op: Op, variables: Variables | None) -> None:
        """Check that positions are those of carried values, and that the body computes each ``updated`` value."""
        if variables is None:
            return
        body = op.regions[-1]
        places = frozenset(range(len(body.params)))
        known = variables.taken | variables.fresh | variables.updated <= places
        self.check(known, "a loop has variables of values that it does not carry")
        makers = Makers.among(body.ops)
        self.check(
            all(makers.of(body.results[at]) is not None for at in variables.updated & places),
            "a loop updates a variable with a value that its body does not compute",
        )

    def op_while(self, op: Op, active: frozenset[int]) -> None:
        attrs = op.attributes(WhileAttrs)
        self._variables(op, attrs.variables)
        condition, body = op.regions
        self.check(len(condition.results) == 1, "a while loop has one condition")
        self.check(
            len(condition.params) == len(body.params) == len(body.results) == len(op.results) == len(op.operands),
            "a while loop carries different numbers of values in and out",
        )

    def _memory(self, op: Op, selected: Value) -> None:
        attrs = op.attributes(MemoryAttrs)
        tensor = self.program.tensors[attrs.tensor]
        self.check(
            len(attrs.indices) == tensor.ndim, f"{len(attrs.indices)} indices for {tensor.name} of rank {tensor.ndim}"
        )
        self.check(attrs.rank == len(selected.dims), "the rank of an access differs from its tile")
        known = self.slots.setdefault((op.kind == "atomic", attrs.slot), f"{op.kind} {tensor.name}")
        self.check(known == f"{op.kind} {tensor.name}", f"slot {attrs.slot} is taken by {known}")
        for index in attrs.indices:
            for position in index.positions:
                self.check(position < attrs.rank, "an index covers a dimension that the tile does not have")
        if attrs.mask is not None:
            mask = op.operands[attrs.mask]
            ok = isinstance(mask, Value) and mask.dtype == torch.bool and mask.dims == selected.dims
            self.check(ok, "the extra mask of an access has another shape or dtype")
        if attrs.mark is not None:
            last = attrs.mark + (2 if op.kind == "load" else 0)
            self.check(op.kind != "atomic" and last < len(op.operands), "a marked access has no mark")

    def op_pointwise(self, op: Op, active: frozenset[int]) -> None:
        attrs = op.attributes(PointwiseAttrs)
        row = POINTWISE.get(attrs.name)
        self.check(row is not None, f"unknown pointwise operation {attrs.name}")
        assert row is not None
        self.check(row.arity[0] <= len(op.operands) <= row.arity[1], f"{attrs.name} of {len(op.operands)} operands")

    def _lanes(self, op: Op) -> None:
        dims = broadcast_dims([v.dims for v in op.values()])
        name = op.attrs.name if isinstance(op.attrs, PointwiseAttrs) else op.kind
        self.check(dims == op.result.dims, f"{name} gives {type_text(op.result)}, its operands broadcast to {dims}")

    def op_reduce(self, op: Op, active: frozenset[int]) -> None:
        attrs = op.attributes(ReduceAttrs)
        (value,) = op.values()
        kept = tuple(d for i, d in enumerate(value.dims) if i not in attrs.dims)
        self.check(
            kept == op.result.dims, f"reduce of {type_text(value)} over {attrs.dims} gives {type_text(op.result)}"
        )

    def op_dot(self, op: Op, active: frozenset[int]) -> None:
        lhs, rhs = op.operands[:2]
        assert isinstance(lhs, Value) and isinstance(rhs, Value)
        scaled = op.attrs.scaled if isinstance(op.attrs, DotAttrs) else None
        if scaled is None:
            self.check(lhs.dims[-1] == rhs.dims[-2], f"dot of {type_text(lhs)} and {type_text(rhs)}")
        else:
            for at, rows in ((scaled.lhs_scale, lhs.dims[0]), (scaled.rhs_scale, rhs.dims[1])):
                scale = op.operands[at] if at is not None else None
                ok = at is None or (isinstance(scale, Value) and scale.dims[0] == rows and len(scale.dims) == 2)
                self.check(ok, "a scale of a dot has other rows than its operand")
        acc = accumulator_of(op)
        self.check(op.result.dims == (*lhs.dims[:-1], rhs.dims[-1]), f"dot gives {type_text(op.result)}")
        self.check(acc is None or acc.dims == op.result.dims, "the accumulator of a dot has another shape")

    def op_view(self, op: Op, active: frozenset[int]) -> None:
        attrs = op.attributes(ViewAttrs)
        (value,) = op.values()
        if attrs.name == "permute":
            expected = tuple(value.dims[i] for i in attrs.order)
            self.check(op.result.dims == expected, f"permute of {type_text(value)} gives {type_text(op.result)}")
        if attrs.name == "broadcast":
            same = broadcast_dims((value.dims, op.result.dims)) == op.result.dims and len(value.dims) == len(
                op.result.dims
            )
            self.check(same, f"broadcast of {type_text(value)} to {type_text(op.result)}")

    def op_mask(self, op: Op, active: frozenset[int]) -> None:
        attrs = op.attributes(MaskAttrs)
        value = next(op.values())
        self.check(value.dims == op.result.dims, "a mask changes the shape")
        self.check(
            all(value.dims[d].block is not None for d in attrs.dims), "a mask along a dimension that is not a block"
        )

    def op_for(self, op: Op, active: frozenset[int]) -> None:
        attrs = op.attributes(ForAttrs)
        self._variables(op, attrs.variables)
        (region,) = op.regions
        carried = op.operands[: attrs.carried]
        self.check(
            len(region.params) == len(region.results) == len(op.results) == len(carried),
            "a loop carries different numbers of values in and out",
        )
        for initial, param, after, result in zip(carried, region.params, region.results, op.results, strict=True):
            carried_values: tuple[Operand, ...] = (initial, after, result)
            for value in carried_values:
                if isinstance(value, Value):
                    self.check(
                        (value.dtype, value.dims) == (param.dtype, param.dims),
                        f"a loop carries {type_text(param)} and {type_text(value)}",
                    )

    def op_if(self, op: Op, active: frozenset[int]) -> None:
        for region in op.regions:
            self.check(len(region.results) == len(op.results), "a branch yields another number of values")
            for value, result in zip(region.results, op.results, strict=True):
                if isinstance(value, Value):
                    self.check(
                        (value.dtype, value.dims) == (result.dtype, result.dims), "branches yield different types"
                    )
