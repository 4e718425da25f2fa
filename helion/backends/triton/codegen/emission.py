"""State of a kernel during printing, and helpers for the printers of all ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from ...._compiler.ir.grammar import Bound, LoopAxis, Op, Operand, OperandRef, Region, Value
from ...._names import RESERVED, NameSpace
from ...._shapes import Dim, Dims, Expr, Number
from ...._support.records import dataclass, field
from ..lower.kernels import Kernel
from ..plan.records import Plan
from .combine import Function
from .expressions import Expression
from .ops.literals import TRITON_DTYPES, literal
from .printer import Active, Lines, Names
from .roundings import Roundings, roundings


@dataclass
class Scope:
    """Blocks with a loop around the current line."""

    active: dict[int, Active] = field(default_factory=dict)
    #: Flattened grids, of which each block is a dimension.
    merged: list[LoopAxis] = field(default_factory=list)


class Emission:
    """The kernel being printed. ``ops`` has a printer per kind of op.

    The output is in ``lines``, ``descriptors`` and ``functions``, and its requirements are in ``needs`` and
    ``symbols``.
    """

    def __init__(
        self, plan: Plan, kernel: Kernel, ops: Mapping[str, Printer], known: Mapping[Function | str, str]
    ) -> None:
        self.plan = plan
        self.kernel = kernel
        self.ops = ops
        taken = (
            {a.name for launch in plan.launches for a in launch.tensors}
            | {a.name for launch in plan.launches for a in launch.numbers}
            | {b.symbol for b in plan.blocks}
            | set(plan.definitions.values())
            | set(known.values())
            | set(RESERVED)
        )
        self.names = Names(NameSpace(frozenset(taken)))
        self.lines = Lines(plan.origin_lines)
        self.tensor_names = {a.tensor.id: a.name for a in kernel.launch.tensors}
        self.number_names = {a.expr.key: a.name for a in kernel.launch.numbers}
        self.scope = Scope()
        self.number_kinds: dict[int, type] = {}
        #: Tensor descriptors, by the expression that creates them.
        self.descriptors: dict[str, str] = {}
        #: Functions before the kernel: those of scans and folds with their names, and sources from users.
        self.functions: dict[Function | str, str] = dict(known)
        #: Requirements on the module: ``libdevice``, and helpers by name.
        self.needs: set[str] = set()
        self.roundings: Roundings = roundings([each.root.body for each in kernel.roots] if plan.rounds_in_fp32 else ())
        #: Variables of fp32 that contain values of bf16, by number of the value.
        self.wide_names: dict[int, str] = {}
        #: Names of block sizes that were used.
        self.symbols: set[str] = set()
        self.index_dtype = TRITON_DTYPES[kernel.index_dtype]
        self.wide = kernel.index_dtype == torch.int64

    def vector(self, block: int, offset: str, masked: bool, end: str, begin: str = "0", first: str = "") -> Active:
        """Define ``indices`` and, if needed, ``mask`` of a block at ``offset``, which may be before ``first``."""
        lanes = f"tl.arange(0, {self.symbol(block)})" + (".to(tl.int64)" if self.wide else "")
        label = self.kernel.blocks[block].label
        index = self.names.fresh(f"indices_{label}")
        self.lines.add(f"{index} = {offset} + {lanes}" if offset else f"{index} = {lanes}")
        mask = ""
        if masked:
            mask = self.names.fresh(f"mask_{label}")
            below = f"{index} < {end}"
            self.lines.add(f"{mask} = ({index} >= {first}) & ({below})" if first else f"{mask} = {below}")
        return Active(offset or "0", index, mask, begin, end)

    def is_active(self, block: int) -> bool:
        """Return whether there is a loop over a block, or over the block it is a part of, around the current line."""
        part = self.kernel.blocks[block].part
        return (block if part is None else part.block) in self.scope.active

    def active(self, block: int) -> Active:
        """Return the variables of the loop over a block around the current line, defining those of a subtile at its
        first use.
        """
        part = self.kernel.blocks[block].part
        if part is not None and block not in self.scope.active:
            whole = self.scope.active[part.block]
            offset = whole.offset
            if part.at:
                symbol = self.symbol(block)
                offset = self.names.fresh(f"offset_{self.kernel.blocks[block].label}")
                self.lines.add(f"{offset} = {whole.offset} + {symbol if part.at == 1 else f'{part.at} * {symbol}'}")
            self.scope.active[block] = self.vector(block, offset, bool(whole.mask), whole.end, whole.begin)
        return self.scope.active[block]

    def number(self, number: Number | None) -> str:
        if not isinstance(number, Expr):
            return repr(number)
        if number.key in self.number_names:
            return self.number_names[number.key]
        if number.op == "block":
            return self.symbol(number.args[0])
        if number.op == "tunable":
            return repr(self.plan.tunables[number.args[0]])
        text = number.combine(self.number)
        if number.op in ("floordiv", "mod") and not number.leaves_are("block", "tunable"):
            return self.rounded_down(number.op, text, *map(self.number, number.args))
        return f"({text})"

    @staticmethod
    def rounded_down(op: str, text: str, dividend: str, divisor: str) -> str:
        """Correct ``text``, which Triton rounds toward zero, as Python has quotients and remainders."""
        rest = f"{dividend} % {divisor}"
        inexact = f"({rest} != 0) & (({dividend} < 0) != ({divisor} < 0))"
        return f"({text} {'-' if op == 'floordiv' else '+'} tl.where({inexact}, {'1' if op == 'floordiv' else divisor}, 0))"

    def operand(self, operand: Operand) -> str:
        return self.names.of(operand) if isinstance(operand, Value) else literal(operand)

    def bound(self, bound: Bound, op: Op | None) -> str:
        if isinstance(bound, OperandRef):
            assert op is not None
            text = self.operand(op.operands[bound.at])
            return text
        return self.number(bound)

    def size_text(self, dim: Dim) -> str:
        parts = [self.symbol(b) for b in dim.blocks]
        if dim.const != 1 or not parts:
            parts.insert(0, str(dim.const))
        return " * ".join(parts)

    def shape(self, dims: Dims) -> str:
        return f"[{', '.join(map(self.size_text, dims))}]"

    def size(self, dim: Dim) -> int:
        return math.prod(map(self.plan.size, dim.blocks), start=dim.const)

    def region(self, region: Region) -> None:
        for op in region.ops:
            self.lines.origin(op.location)
            self.ops[op.kind](self, op)

    def symbol(self, block: int) -> str:
        """Return the name of a block's size."""
        symbol = self.plan.blocks[block].symbol
        self.symbols.add(symbol)
        return symbol

    def assign(self, op: Op, base: str, value: str | Expression) -> None:
        if isinstance(value, Expression):
            self.needs |= value.needs
            value = value.text
        self.lines.add(f"{self.names.define(op.result, base)} = {value}")

    def is_wide(self, value: Value) -> bool:
        """Return whether a value of bf16 has a variable of fp32."""
        return value.number in self.roundings.wide

    def in_fp32(self, value: Value) -> str:
        """Return the variable of fp32 for a value, if there is one, else its own."""
        return self.wide_names.get(value.number) or self.names.of(value)

    def assign_wide(self, op: Op, base: str, value: str | Expression) -> None:
        """Assign the fp32 expression ``value`` to the bf16 result; also to a bf16 variable where that is read."""
        if op.result.number not in self.roundings.narrow:
            self.assign(op, base, value)
            self.wide_names[op.result.number] = self.names.of(op.result)
            return
        if isinstance(value, Expression):
            self.needs |= value.needs
            value = value.text
        wide = self.names.fresh(f"{op.result.name or base}_fp32")
        self.lines.add(f"{wide} = {value}")
        self.wide_names[op.result.number] = wide
        self.assign(op, base, f"{wide}.to(tl.bfloat16)")

    def alias_wide(self, result: Value, value: Value) -> None:
        """Make ``result`` an alias of ``value``, in its variables of either dtype."""
        self.wide_names[result.number] = self.in_fp32(value)
        self.names.alias(result, self.names.of(value))

    def mask_of(self, dims: Dims, along: Sequence[int]) -> str:
        """Return the mask of the lanes in range along some dimensions of a value; empty when all are."""
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
        """Return the mask of the lanes of a jagged loop that exist in their row."""
        rows = [i for block in loop.rows for i, d in enumerate(dims) if d.block == block]
        wanted = [*rows, position]
        order = sorted(range(len(wanted)), key=wanted.__getitem__)
        text = loop.rows_mask if order == sorted(order) else f"tl.permute({loop.rows_mask}, {order})"
        return self.spread(text, sorted(wanted), len(dims))

    def spread(self, text: str, positions: Sequence[int], rank: int) -> str:
        """Return a value with its dimensions at ``positions`` of ``rank`` dimensions, and 1 elsewhere."""
        if rank == len(positions):
            return text
        return f"{text}[{', '.join(':' if i in positions else 'None' for i in range(rank))}]"

    def activate(self, axis: LoopAxis, offset: str, masked: bool, begin: str, end: str) -> None:
        """Enter a loop over an axis whose current position is ``offset``."""
        if axis.scalar:
            self.scope.active[axis.block] = Active(offset, offset, "", begin, end)
        else:
            self.scope.active[axis.block] = self.vector(axis.block, offset, masked, end, begin)


#: Prints an op of one kind.
Printer = Callable[[Emission, Op], None]
