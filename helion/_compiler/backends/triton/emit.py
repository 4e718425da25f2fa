"""Prints a plan as a Triton kernel. Decides nothing: every choice stands in the plan."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .... import exc
from ...._names import RESERVED, NameSpace
from ...._shapes import Dim, Dims, Expr, Number
from ...ir.grammar import (
    Bound,
    ForAttrs,
    IotaAttrs,
    LoopAxis,
    MaskAttrs,
    NumberAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    ReduceAttrs,
    Region,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ...ir.pointwise import POINTWISE, common_dtype
from ...plan.records import LaunchArguments, LoopPlan, Plan
from . import grid, ops_inline, ops_lanes, ops_matmul, ops_memory, ops_pointwise, ops_reduction
from .carries import changing_places
from .ops_pointwise import TRITON_DTYPES, literal
from .printer import Active, Lines, Names
from .ranges import range_text
from .running_sums import pinned_sums


@dataclass
class Scope:
    """Blocks with a loop around the current line."""

    active: dict[int, Active] = field(default_factory=dict)


def constexpr_parameters(plan: Plan, launch: LaunchArguments) -> list[str]:
    """Compile-time constants that the host computes at every call, in the order the launch passes them."""
    sizes = [block.symbol for block in launch.blocks if block.dynamic is not None]
    return [*sizes, *(["_NUM_SM"] if plan.launch.persistent else [])]


def render_kernel(plan: Plan, phase: int) -> list[str]:
    """The lines of the ``@triton.jit`` function of one phase, after the helpers it needs."""
    emitter = _Emitter(plan, phase)
    kernel = emitter.kernel()
    helpers = [
        line
        for text, name in emitter.helpers.items()
        for line in (*(text.replace("_combine(", f"{name}(", 1) if name else text).split("\n"), "", "")
    ]
    return [*helpers, *kernel]


class _Emitter:
    def __init__(self, plan: Plan, phase: int) -> None:
        self.plan = plan
        self.phase = phase
        self.program = plan.program
        taken = (
            {a.name for launch in plan.launches for a in launch.tensors}
            | {a.name for launch in plan.launches for a in launch.numbers}
            | {b.symbol for b in plan.blocks}
            | set(RESERVED)
        )
        self.names = Names(NameSpace(frozenset(taken)))
        self.lines = Lines(plan.origin_lines)
        self.launch = plan.launch_of(phase)
        self.tensor_names = {a.tensor.id: a.name for a in self.launch.tensors}
        self.number_names = {a.expr.key: a.name for a in self.launch.numbers}
        self.scope = Scope()
        self.local: set[int] = set()
        self.stored: set[int] = set()
        self.number_kinds: dict[int, type] = {}
        #: Tensor descriptors, by the expression that makes them.
        self.descriptors: dict[str, str] = {}
        #: Functions of scans and folds: text with a placeholder name, and the name.
        self.helpers: dict[str, str] = {}
        self.pinned = pinned_sums(self.program)
        self.uses = Counter(id(v) for op in self.program.walk() for v in _reads(op))
        self.index_dtype = TRITON_DTYPES[self.program.index_dtype]
        self.wide = self.program.index_dtype == torch.int64

    # --- the function ----------------------------------------------------------------------------------------------------

    def kernel(self) -> list[str]:
        parameters = [*(a.name for a in self.launch.tensors), *(a.name for a in self.launch.numbers)]
        parameters += [f"{name}: tl.constexpr" for name in constexpr_parameters(self.plan, self.launch)]
        self.lines.add("@triton.jit")
        self.lines.add(f"def {self.plan.kernel_names[self.phase]}({', '.join(parameters)}):")
        with self.lines.indent():
            self.full_blocks()
            top = len(self.lines.lines)
            grid.emit_roots(self)
        made = [f"    {name} = {text}" for text, name in self.descriptors.items()]
        return [*self.lines.lines[:top], *made, *self.lines.lines[top:]]

    def full_blocks(self) -> None:
        """Indices of whole dimensions that are held at once."""
        used = {b for op in self.program.walk() for v in op.results for d in v.dims for b in d.blocks}
        used &= {block.id for block in self.launch.blocks}
        for block in self.program.blocks:
            if block.kind != "full" or block.id not in used or self.plan.blocks[block.id].looped:
                continue
            self.scope.active[block.id] = self.vector(
                block.id, "", block.id in self.plan.full_masked, self.number(block.extent)
            )

    def vector(self, block: int, offset: str, masked: bool, end: str, begin: str = "0") -> Active:
        """Define ``indices`` and, if needed, ``mask`` of a block at ``offset``."""
        symbol = self.plan.blocks[block].symbol
        lanes = f"tl.arange(0, {symbol})" + (".to(tl.int64)" if self.wide else "")
        label = self.program.blocks[block].label
        index = self.names.fresh(f"indices_{label}")
        self.lines.add(f"{index} = {offset} + {lanes}" if offset else f"{index} = {lanes}")
        mask = ""
        if masked:
            mask = self.names.fresh(f"mask_{label}")
            self.lines.add(f"{mask} = {index} < {end}")
        return Active(offset or "0", index, mask, begin, end)

    def is_active(self, block: int) -> bool:
        """Whether there is a loop over a block, or over the block it is a part of, around the current line."""
        part = self.program.blocks[block].part
        return (block if part is None else part.block) in self.scope.active

    def active(self, block: int) -> Active:
        """The variables of the loop over a block around the current line; those of a subtile are defined where it is
        first used."""
        part = self.program.blocks[block].part
        if part is not None and block not in self.scope.active:
            whole = self.scope.active[part.block]
            offset = whole.offset
            if part.at:
                symbol = self.plan.blocks[block].symbol
                offset = self.names.fresh(f"offset_{self.program.blocks[block].label}")
                self.lines.add(f"{offset} = {whole.offset} + {symbol if part.at == 1 else f'{part.at} * {symbol}'}")
            self.scope.active[block] = self.vector(block, offset, bool(whole.mask), whole.end, whole.begin)
        return self.scope.active[block]

    # --- numbers and operands --------------------------------------------------------------------------------------------

    def number(self, number: Number | None) -> str:
        if not isinstance(number, Expr):
            return repr(number)
        if number.key in self.number_names:
            return self.number_names[number.key]
        if number.op == "block":
            return self.plan.blocks[number.args[0]].symbol
        if number.op == "tunable":
            return repr(self.plan.tunables[number.args[0]])
        return f"({number.combine(self.number)})"

    def operand(self, operand: Operand) -> str:
        return self.names.of(operand) if isinstance(operand, Value) else literal(operand)

    def bound(self, bound: Bound, op: Op | None) -> str:
        if isinstance(bound, OperandRef):
            assert op is not None
            text = self.operand(op.operands[bound.at])
            return text
        return self.number(bound)

    def size_text(self, dim: Dim) -> str:
        parts = [self.plan.blocks[b].symbol for b in dim.blocks]
        if dim.const != 1 or not parts:
            parts.insert(0, str(dim.const))
        return " * ".join(parts)

    def shape(self, dims: Dims) -> str:
        return f"[{', '.join(map(self.size_text, dims))}]"

    # --- regions and ops -------------------------------------------------------------------------------------------------

    def region(self, region: Region) -> None:
        outer = self.local
        self.local = {id(v) for v in region.params} | {id(r) for op in region.ops for r in op.results}
        for op in region.ops:
            self.lines.origin(op.location)
            if op.kind in _OPS:
                _OPS[op.kind](self, op)
            else:
                getattr(self, f"op_{op.kind}")(op)
        self.local = outer

    def assign(self, op: Op, base: str, text: str) -> None:
        self.lines.add(f"{self.names.define(op.result, base)} = {text}")

    def op_number(self, op: Op) -> None:
        assert isinstance(op.attrs, NumberAttrs)
        # an argument that equals 1 is a constexpr inside the kernel: make it a value either way
        self.number_kinds[id(op.result)] = op.attrs.expr.kind
        text = self.number(op.attrs.expr)
        self.assign(op, "number", f"tl.cast({text}, {TRITON_DTYPES[op.result.dtype]})")

    def op_tile(self, op: Op) -> None:
        assert isinstance(op.attrs, TileAttrs)
        loop = self.scope.active[op.attrs.block]
        size = self.plan.blocks[op.attrs.block].symbol or "1"
        text = {
            "index": loop.offset,
            "begin": loop.offset,
            "end": f"tl.minimum({loop.offset} + {size}, {loop.end})" if loop.mask else f"{loop.offset} + {size}",
            "id": f"{loop.offset} // {size}",
            "count": f"tl.cdiv({loop.end} - {loop.begin}, {size})",
        }[op.attrs.field]
        self.assign(op, f"tile_{op.attrs.field}", f"tl.cast({text}, {self.index_dtype})")

    def op_iota(self, op: Op) -> None:
        attrs = op.attrs
        assert isinstance(attrs, IotaAttrs)
        full = self.program.blocks[attrs.block].kind == "full"
        if full or not attrs.relative:
            text = self.active(attrs.block).index
        else:
            text = f"tl.arange(0, {self.plan.blocks[attrs.block].symbol})" + (".to(tl.int64)" if self.wide else "")
        if attrs.relative:
            text = f"{text} * {attrs.step}" if attrs.step != 1 else text
            text = f"{text} + {attrs.start}" if attrs.start else text
        if text.isidentifier():
            self.names.alias(op.result, text)
        else:
            self.assign(op, "index", text)

    def op_full(self, op: Op) -> None:
        (fill,) = op.operands
        text = literal(fill, op.result.dtype) if not isinstance(fill, Value) else self.operand(fill)
        negative_zero = isinstance(fill, float) and fill == 0 and math.copysign(1.0, fill) < 0
        # Triton makes +0.0 of every constant that equals zero
        made = f"tl.full({self.shape(op.result.dims)}, {'0.0' if negative_zero else text}, {TRITON_DTYPES[op.result.dtype]})"
        self.assign(op, "full", f"{made} * -1.0" if negative_zero else made)

    def op_pointwise(self, op: Op) -> None:
        assert isinstance(op.attrs, PointwiseAttrs)
        name, rank = op.attrs.name, len(op.result.dims)
        operands = [self.aligned(o, rank) for o in op.operands]
        kinds = [self.promotes_as(o) for o in op.operands]
        if name in ("cast", "bitcast"):
            dtypes = [o.dtype if isinstance(o, Value) else None for o in op.operands]
        else:
            dtypes = [k[0] if isinstance(k, tuple) else None for k in kinds]
        common = common_dtype(name, kinds) if POINTWISE[name].result == "bool" else None
        text = ops_pointwise.render(name, operands, dtypes, op.result.dtype, common_dtype=common)
        self.assign(op, name, text)

    def promotes_as(self, operand: Operand) -> Any:
        """How an operand takes part in promotion: dtype and rank of a value, the number, or the type of a number that
        is known at run time."""
        if not isinstance(operand, Value):
            return operand
        return self.number_kinds.get(id(operand), (operand.dtype, len(operand.dims)))

    def aligned(self, operand: Operand, rank: int) -> str:
        """An operand with leading dimensions of 1 up to ``rank``."""
        text = self.operand(operand)
        if isinstance(operand, Value) and 0 < len(operand.dims) < rank:
            subscript = ", ".join(["None"] * (rank - len(operand.dims)) + [":"] * len(operand.dims))
            name = self.names.fresh(text)
            self.lines.add(f"{name} = {text}[{subscript}]")
            return name
        return text

    def op_reduce(self, op: Op) -> None:
        attrs = op.attrs
        assert isinstance(attrs, ReduceAttrs)
        (value,) = op.values()
        text = self.names.of(value)
        if attrs.name in ("argmax", "argmin"):
            self.arg_reduce(op, value, attrs.dims[0])
            return
        if value.dtype in (torch.float16, torch.bfloat16):
            # the combine functions would give fp32 for half operands; extrema are exact in it
            text = f"{text}.to(tl.float32)"
        for axis in reversed(attrs.dims):
            text = ops_reduction.render(attrs.name, text, axis, value.dtype)
        narrow = not op.result.dtype.is_floating_point and op.result.dtype.itemsize < 4
        if narrow or op.result.dtype in (torch.float16, torch.bfloat16) or op.result.dtype != value.dtype:
            text = ops_reduction.cast(text, op.result.dtype)
        if id(op) in self.pinned:
            text = f"{text} + 0.0"
        self.assign(op, attrs.name, text)

    def arg_reduce(self, op: Op, value: Value, axis: int) -> None:
        attrs = op.attrs
        rank = len(value.dims)
        subscript = ", ".join(":" if i == axis else "None" for i in range(rank))
        lanes = f"tl.arange(0, {self.size_text(value.dims[axis])})"
        # positions within the value, not in the tensor: that is what argmax of a tile means
        index = f"tl.broadcast_to({lanes}[{subscript}], {self.shape(value.dims)})" if rank > 1 else lanes
        text = ops_reduction.render_arg(attrs.name, self.names.of(value), index, axis)
        self.assign(op, attrs.name, ops_reduction.cast(text, op.result.dtype))

    def size(self, dim: Dim) -> int:
        return math.prod(map(self.plan.size, dim.blocks), start=dim.const)

    def is_single(self, dim: Dim) -> bool:
        return self.size(dim) == 1

    def op_view(self, op: Op) -> None:
        attrs = op.attrs
        assert isinstance(attrs, ViewAttrs)
        (value,) = op.values()
        text = self.names.of(value)
        if attrs.name == "permute":
            self.assign(op, "permute", f"tl.permute({text}, {list(attrs.order)})")
        elif attrs.name == "broadcast" or not value.dims:
            self.assign(op, "expand", f"tl.broadcast_to({text}, {self.shape(op.result.dims)})")
        elif not op.result.dims:
            # a value of one element becomes a scalar
            flat = text if len(value.dims) == 1 else f"tl.reshape({text}, [1])"
            total = f"tl.max({flat}.to(tl.int32), 0)" if value.dtype == torch.bool else f"tl.sum({flat}, 0)"
            self.assign(op, "scalar", ops_reduction.cast(total, value.dtype))
        elif (subscript := _insertions(value.dims, op.result.dims)) is not None:
            self.assign(op, "view", f"{text}[{subscript}]")
        else:
            self.assign(op, "view", f"tl.reshape({text}, {self.shape(op.result.dims)})")

    def op_mask(self, op: Op) -> None:
        assert isinstance(op.attrs, MaskAttrs)
        value, *other = op.values()
        mask = self.mask_of(value.dims, op.attrs.dims)
        if not mask:
            self.names.alias(op.result, self.names.of(value))
            return
        fill = self.names.of(other[0]) if other else literal(op.attrs.fill, value.dtype)
        text = f"tl.where({mask}, {self.names.of(value)}, {fill})"
        if value.dtype != torch.float32 and not other:
            text = ops_reduction.cast(text, value.dtype)
        self.assign(op, "masked", text)

    def mask_of(self, dims: Dims, along: Sequence[int]) -> str:
        """The lanes in range along some dimensions of a value; empty when all are."""
        parts = []
        for position in along:
            block = dims[position].block
            loop = self.active(block) if block is not None and self.is_active(block) else None
            if loop is not None and loop.rows_mask:
                parts.append(self.jagged_mask(loop, dims, position))
            elif loop is not None and loop.mask:
                parts.append(self.spread(loop.mask, (position,), len(dims)))
        return " & ".join(parts)

    def jagged_mask(self, loop: Active, dims: Dims, position: int) -> str:
        """The lanes of a jagged loop that exist in their row; a value without the rows' dimensions has no such lanes."""
        rows = [i for block in loop.rows for i, d in enumerate(dims) if d.block == block]
        if len(rows) != len(loop.rows):
            raise exc.InvalidJaggedTileUsage(
                "a value has the jagged dimension but not that of the rows, so that it cannot be known which lanes exist."
            )
        wanted = [*rows, position]
        order = sorted(range(len(wanted)), key=wanted.__getitem__)
        text = loop.rows_mask if order == sorted(order) else f"tl.permute({loop.rows_mask}, {order})"
        return self.spread(text, sorted(wanted), len(dims))

    def spread(self, text: str, positions: Sequence[int], rank: int) -> str:
        """A value whose dimensions stand at ``positions`` of ``rank`` dimensions, with 1 elsewhere."""
        if rank == len(positions):
            return text
        return f"{text}[{', '.join(':' if i in positions else 'None' for i in range(rank))}]"

    # --- control flow ----------------------------------------------------------------------------------------------------

    def op_while(self, op: Op) -> None:
        condition, body = op.regions
        carried = self.carry_all(op.operands, body)
        for param, name in zip(condition.params, carried, strict=True):
            self.names.reuse(param, name)
        self.promise_updates(body, carried)
        again = self.names.fresh("again")
        self.region(condition)
        self.lines.add(f"{again} = {self.operand(condition.results[0])}")
        self.lines.add(f"while {again}:")
        with self.lines.indent():
            self.region(body)
            self.yield_values(body, carried)
            self.region(condition)
            self.lines.add(f"{again} = {self.operand(condition.results[0])}")
        for result, name in zip(op.results, carried, strict=True):
            self.names.reuse(result, name)

    def op_for(self, op: Op) -> None:
        attrs = op.attrs
        assert isinstance(attrs, ForAttrs)
        (region,) = op.regions
        plan = self.plan.loops[id(op)]
        carried = self.carry_all(op.operands, region)
        self.promise_updates(region, carried)
        outer = dict(self.scope.active)
        depth = self.lines.depth
        for at in plan.order:
            self.loop_header(op, attrs.axes[at], plan, at)
        self.region(region)
        self.yield_values(region, carried)
        self.lines.depth = depth
        self.scope.active = outer
        for result, name in zip(op.results, carried, strict=True):
            self.names.reuse(result, name)

    def carry_all(self, initial: Sequence[Operand], region: Region) -> list[str]:
        """The variables of a loop's carried values, with their initial values."""
        distinct = changing_places(region)
        names = []
        for at, (operand, param) in enumerate(zip(initial, region.params, strict=False)):
            names.append(self.carry(operand, param))
            if at in distinct and isinstance(operand, Value):
                self.lines.add(f"{names[at]} = tl.where(True, {names[at]}, {names[at]})")
        return names

    def carry(self, initial: Operand, param: Value) -> str:
        """The variable of a carried value: that of its initial value, when nothing else needs that one.

        An initial value from outside of the surrounding loop is needed again in its next iteration.
        """
        ours = isinstance(initial, Value) and id(initial) in self.local
        if ours and self.uses[id(initial)] == 1 and self.names.is_own(initial):  # type: ignore[arg-type]
            assert isinstance(initial, Value)
            name = self.names.of(initial)
            self.names.reuse(param, name)
            return name
        name = self.names.define(param, "carried")
        self.lines.add(f"{name} = {self.operand(initial)}")
        return name

    def promise_updates(self, region: Region, carried: list[str]) -> None:
        """``acc = tl.dot(a, b, acc=acc)`` instead of a new variable, where the old value is not needed any more."""
        for at, (param, after) in enumerate(zip(region.params, region.results, strict=True)):
            made = next((i for i, o in enumerate(region.ops) if any(r is after for r in o.results)), None)
            if made is None or region.ops[made].kind in ("for", "while", "if", "mask", "iota"):
                continue
            if any(o.kind in ("for", "while", "mask") and any(v is param for v in o.values()) for o in region.ops):
                continue  # another value may live in the same variable
            later = (v for o in region.ops[made + 1 :] for inner in o.walk() for v in _reads(inner))
            others = (v for i, v in enumerate(region.results) if i != at)
            if not any(v is param for v in later) and not any(v is param or v is after for v in others):
                self.names.promise(after, carried[at])  # type: ignore[arg-type]

    def loop_header(self, op: Op, axis: LoopAxis, plan: LoopPlan, at: int) -> None:
        begin, end = self.bound(axis.begin, op), self.bound(axis.end, op)
        chosen = plan.axes[at]
        block = self.plan.blocks[axis.block]
        step = self.number(axis.step) if axis.scalar else block.symbol
        offset = self.names.fresh(f"offset_{axis.block}")
        arguments = [begin, end, step]
        range_plan = plan.ranges[at]
        self.lines.add(f"for {offset} in {range_text(range_plan, arguments)}:")
        self.lines.depth += 1
        if self.wide and not range_plan.static:
            self.lines.add(f"{offset} = tl.cast({offset}, tl.int64)")
        self.activate(axis, offset, chosen.masked, begin, end)
        if axis.jagged is not None:
            self.jagged(axis, op)

    def jagged(self, axis: LoopAxis, op: Op) -> None:
        """The mask of a jagged loop: lanes within each row's own length."""
        assert axis.jagged is not None
        lengths = op.operands[axis.jagged.at]
        assert isinstance(lengths, Value)
        loop = self.scope.active[axis.block]
        rank = len(lengths.dims)
        lanes = f"{loop.index}[{', '.join(['None'] * rank)}, :]"
        rows = f"{self.names.of(lengths)}[{', '.join([':'] * rank)}, None]"
        loop.rows_mask = self.names.fresh(f"rows_mask_{axis.block}")
        loop.rows = tuple(d.blocks[0] for d in lengths.dims)
        self.lines.add(f"{loop.rows_mask} = {lanes} < {rows}")

    def activate(self, axis: LoopAxis, offset: str, masked: bool, begin: str, end: str) -> None:
        """Enter a loop over an axis whose current position is ``offset``."""
        if axis.scalar:
            self.scope.active[axis.block] = Active(offset, offset, "", begin, end)
        else:
            self.scope.active[axis.block] = self.vector(axis.block, offset, masked, end, begin)

    def yield_values(self, region: Region, carried: list[str]) -> None:
        afters = [self.operand(value) for value in region.results]
        # a value that is another carried variable must be read before that variable changes
        for at, text in enumerate(afters):
            if text in carried and text != carried[at]:
                afters[at] = self.names.fresh(f"{text}_before")
                self.lines.add(f"{afters[at]} = {text}")
        for name, text in zip(carried, afters, strict=True):
            if name != text:
                self.lines.add(f"{name} = {text}")
        if not region.ops and not carried:
            self.lines.add("pass")

    def op_if(self, op: Op) -> None:
        names = [self.names.define(result, "merged") for result in op.results]
        for at, (head, region) in enumerate(
            zip((f"if {self.operand(op.operands[0])}:", "else:"), op.regions, strict=True)
        ):
            if at and not region.ops and not region.results:
                continue
            self.lines.add(head)
            with self.lines.indent():
                before = len(self.lines.lines)
                self.region(region)
                for name, value in zip(names, region.results, strict=True):
                    self.lines.add(f"{name} = {self.operand(value)}")
                if len(self.lines.lines) == before:
                    self.lines.add("pass")


def _reads(op: Op) -> Iterator[Value]:
    """Values an op reads itself: its operands, and what its regions yield."""
    yield from op.values()
    for region in op.regions:
        yield from (v for v in region.results if isinstance(v, Value))


def _insertions(before: Dims, after: Dims) -> str | None:
    """The subscript that turns ``before`` into ``after`` by inserting dimensions of 1, if that is all it takes."""
    items, at = [], 0
    for position, dim in enumerate(after):
        remaining = len(after) - position
        if at < len(before) and dim == before[at] and (not dim.is_one or remaining == len(before) - at):
            items.append(":")
            at += 1
        elif dim.is_one:
            items.append("None")
        else:
            return None
    return ", ".join(items) if at == len(before) else None


#: Ops that print in a module of their own; the others are methods.
_OPS: Mapping[str, Callable[[_Emitter, Op], None]] = {
    **ops_memory.OPS,
    **ops_matmul.OPS,
    **ops_lanes.OPS,
    **ops_inline.OPS,
}
