"""Source text of ops of the device IR in the kernel language."""

from __future__ import annotations

import builtins
import keyword
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..._names import LAUNCH_OPTIONS, SHARED_MODULES, identifier, is_reserved
from ..._shapes import Dim, Dims, Expr, Number, broadcast_dims, dtype_name, fixed_at, number_key
from ..ir.grammar import (
    Bound,
    DotAttrs,
    FoldAttrs,
    GatherAttrs,
    Index,
    IotaAttrs,
    LoopAxis,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    RandomAttrs,
    ReduceAttrs,
    ScanAttrs,
    SeedAttrs,
    TileAttrs,
    Value,
    ViewAttrs,
)
from ..ir.operands import accumulator_of
from ..ir.pointwise import POINTWISE, result_dtype
from .refusal import not_supported
from .statements import Cost

#: Names that have another meaning in the source text of kernels.
_TAKEN = frozenset((*dir(builtins), *SHARED_MODULES, *LAUNCH_OPTIONS, "hl", "helion", "self", "backward_kernel"))
_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "remainder": "%", "pow": "**",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip
_REDUCTIONS = {"sum": "sum", "prod": "prod", "max": "amax", "min": "amin", "argmax": "argmax", "argmin": "argmin"}


class Names:
    """A generator of unused names."""

    def __init__(self, taken: Sequence[str] = ()) -> None:
        self._taken = set(taken)

    def fresh(self, hint: str) -> str:
        """Return ``hint``, with a number appended if the name is taken."""
        base = identifier(hint)
        name, number = base, 0
        while name in self._taken or name in _TAKEN or is_reserved(name) or keyword.iskeyword(name):
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        return name


def dtype_text(dtype: torch.dtype) -> str:
    return f"torch.{dtype_name(dtype)}"


def literal(value: float) -> str:
    """Return a Python number as the text of an operand."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return f"({value!r})" if value < 0 else repr(value)


@dataclass
class Spelling:
    """The source text of one program's names, sizes and ops.

    ``tiles`` are the variables of loops by block, ``tensors`` the parameters by number of the tensor. ``numbers`` are
    the host numbers used so far. ``shared`` names the registered sizes that several blocks share.
    """

    program: Program
    names: Names
    tensors: Mapping[int, str]
    tiles: dict[int, str] = field(default_factory=dict)
    numbers: dict[str, None] = field(default_factory=dict)
    shared: dict[int, str] = field(default_factory=dict)

    def tile(self, block: int) -> str:
        """Return the variable of the loop over a block."""
        if block not in self.tiles:
            name = self.program.blocks[block].name
            self.tiles[block] = self.names.fresh(name if name.isidentifier() else f"tile_{block}")
        return self.tiles[block]

    # --- sizes and numbers --------------------------------------------------------------------------------------------

    def number(self, number: Number) -> str:
        if not isinstance(number, Expr):
            return literal(number)
        text = number.render(self._leaf, parent=True)
        return text

    def _leaf(self, expr: Expr) -> str:
        if expr.op == "block":
            if self.program.blocks[expr.args[0]].kind == "full":
                raise not_supported("the padded size of a whole dimension", "use the size of the tensor")
            return self._shared(expr.args[0]) or f"{self.tile(expr.args[0])}.block_size"
        if expr.op == "tunable":
            raise not_supported(f"hl.register_tunable (of {expr.args[0]!r})", "pass the number as an argument")
        self.numbers[expr.args[0]] = None
        return str(expr.args[0])

    def size_of(self, block: int) -> str | None:
        """Return the size of the tiles of a block that is not chosen for the block alone: a number, or a registered
        size that several blocks share. None if the config has a size for this block alone.
        """
        size = self.program.blocks[block].size
        return self._shared(block) or (None if size is None else self.number(size))

    def _shared(self, block: int) -> str | None:
        twin_of = self.program.blocks[block].twin_of
        whole = block if twin_of is None else twin_of
        twins = [b for b in self.program.blocks if b.twin_of == whole]
        if not self.program.blocks[whole].tunable or not twins:
            return None
        if whole not in self.shared:
            self.shared[whole] = self.names.fresh(f"block_{whole}")
        return self.shared[whole]

    def registered(self) -> list[str]:
        """Return the statements of host code that register the sizes which blocks share."""
        extents = {block: self.program.blocks[block].extent for block in self.shared}
        return [
            f"{self.shared[block]} = hl.register_block_size({self.number(1 if extent is None else extent)})"
            for block, extent in extents.items()
        ]

    def dim(self, dim: Dim) -> str:
        """Return one dimension as an entry of a shape."""
        if dim.block is not None:
            block = self.program.blocks[dim.block]
            return self.number(block.extent or 0) if block.kind == "full" else self.tile(dim.block)
        parts = [self._size(block) for block in dim.blocks]
        return " * ".join([*parts, *([str(dim.const)] if dim.const != 1 or not parts else [])])

    def _size(self, block: int) -> str:
        found = self.program.blocks[block]
        return self.number(found.extent or 0) if found.kind == "full" else f"{self.tile(block)}.block_size"

    def shape(self, dims: Dims) -> str:
        return f"[{', '.join(map(self.dim, dims))}]"

    # --- loops --------------------------------------------------------------------------------------------------------

    def bound(self, bound: Bound, op: Op | None, operand: Callable[[Operand], str]) -> str:
        if isinstance(bound, OperandRef):
            assert op is not None
            return operand(op.operands[bound.at])
        return self.number(bound)

    def header(
        self, axes: Sequence[LoopAxis], op: Op | None, operand: Callable[[Operand], str], sizes: Mapping[int, str] = {}
    ) -> str:
        """Return the header of a loop; ``sizes`` are expressions of block sizes, by block."""
        variables = ", ".join(self.tile(a.block) for a in axes)
        if op is not None and axes[0].jagged is not None:
            return f"for {variables} in hl.jagged_tile({operand(op.operands[axes[0].jagged.at])}):"
        begins = [self.bound(a.begin, op, operand) for a in axes]
        ends = [self.bound(a.end, op, operand) for a in axes]
        arguments = [_list(ends)] if all(b == "0" for b in begins) else [_list(begins), _list(ends)]
        function = "grid" if axes[0].scalar else "tile"
        if axes[0].scalar:
            steps = [self.number(a.step) for a in axes]
            if any(step != "1" for step in steps):
                arguments.append(f"step={_list(steps)}")
        else:
            fixed = [sizes.get(a.block) or self.size_of(a.block) or "None" for a in axes]
            if any(size != "None" for size in fixed):
                arguments.append(f"block_size={_list(fixed)}")
        return f"for {variables} in hl.{function}({', '.join(arguments)}):"

    # --- values -------------------------------------------------------------------------------------------------------

    def reshaped(self, text: str, before: Dims, after: Dims) -> str:
        """Reshape ``text`` from dimensions ``before`` to ``after``."""
        if before == after:
            return text
        if not any(d.is_one for d in before) and tuple(d for d in after if not d.is_one) == before and before:
            index = ", ".join("None" if d.is_one else ":" for d in after)
            return f"{text}[{index}]"
        return f"{text}.reshape({self.shape(after)})"

    def expanded(self, text: str, before: Dims, after: Dims) -> str:
        """Broadcast ``text`` to dimensions ``after``."""
        if before == after:
            return text
        aligned = (*(Dim() for _ in range(len(after) - len(before))), *before)
        return f"{self.reshaped(text, before, aligned)}.expand({self.shape(after)})"

    def converted(self, text: str, before: torch.dtype, after: torch.dtype) -> str:
        return text if before == after else f"{text}.to({dtype_text(after)})"

    def pointwise(self, name: str, operands: Sequence[str], value: Value, op: Op) -> str:
        if name == "cast":
            (operand,) = op.values()
            return self.converted(operands[0], operand.dtype, value.dtype)
        if name == "bitcast":
            return f"{operands[0]}.view({dtype_text(value.dtype)})"
        kinds = [(o.dtype, len(o.dims)) if isinstance(o, Value) else o for o in op.operands]
        text = _pointwise_text(name, operands, [isinstance(o, Value) for o in op.operands])
        return (
            self.converted(f"({text})", result_dtype(name, kinds), value.dtype)
            if (result_dtype(name, kinds) != value.dtype)
            else text
        )

    def index(self, op: Op, operand: Callable[[Operand], str], spread: bool = False) -> tuple[list[str], list[int]]:
        """Return the subscripts of an access, and the positions of the accessed tile that they vary over, in the order
        of the subscripts. ``spread``: each subscript is a value with all of these dimensions.
        """
        attrs = op.attributes(MemoryAttrs)
        tensors = [i for i in attrs.indices if i.kind == "tensor"]
        walked = _walked(attrs.indices, op)
        simple = not spread and len(tensors) <= 1 and walked == sorted(walked)
        texts = []
        for dim, index in enumerate(attrs.indices):
            match index.kind:
                case "scalar":
                    texts.append(self._scalar(index, op, operand))
                case "block" if simple:
                    texts.append(self._block(index, op, operand, dim))
                case "tensor" if simple:
                    assert index.operand is not None
                    texts.append(operand(op.operands[index.operand]))
                case _:
                    texts.append(self._spread(index, op, operand, sorted(walked)))
        return texts, sorted(walked)

    def _scalar(self, index: Index, op: Op, operand: Callable[[Operand], str]) -> str:
        if index.operand is None:
            return self.number(index.shift)
        text = operand(op.operands[index.operand])
        return text if fixed_at(index.shift, 0) else f"{text} + {self.number(index.shift)}"

    def _block(self, index: Index, op: Op, operand: Callable[[Operand], str], dim: int) -> str:
        assert index.block is not None
        block = self.program.blocks[index.block]
        if block.kind == "full" and index.operand is None:
            size = self.program.tensors[op.attributes(MemoryAttrs).tensor].shape[dim]
            if fixed_at(index.shift, 0) and number_key(size) == number_key(block.extent):
                return ":"
            begin, extent = self.number(index.shift), self.number(block.extent or 0)
            if fixed_at(index.shift, 0):
                return f":{extent}"
            total = index.shift + (block.extent or 0)
            return f"{begin}:{self.number(total)}"
        if index.operand is None and fixed_at(index.shift, 0):
            return self.tile(index.block)
        return self._lanes(index, op, operand)

    def _lanes(self, index: Index, op: Op, operand: Callable[[Operand], str]) -> str:
        """Return the positions that an index over a block varies over, as a value."""
        assert index.block is not None
        block = self.program.blocks[index.block]
        text = (
            f"hl.arange({self.number(block.extent or 0)})" if block.kind == "full" else f"{self.tile(block.id)}.index"
        )
        if index.operand is not None:
            text += f" + {operand(op.operands[index.operand])}"
        return text if fixed_at(index.shift, 0) else f"{text} + {self.number(index.shift)}"

    def _spread(self, index: Index, op: Op, operand: Callable[[Operand], str], walked: Sequence[int]) -> str:
        """Return an index as a value with one dimension for each position of ``walked``."""
        if index.kind == "block":
            text = f"({self._lanes(index, op, operand)})"
            return f"{text}[{', '.join(':' if at == index.positions[0] else 'None' for at in walked)}]"
        assert index.operand is not None
        value = op.operands[index.operand]
        assert isinstance(value, Value)
        places = index.positions[len(index.positions) - len(value.dims) :]
        dims = tuple(value.dims[places.index(at)] if at in places else Dim() for at in walked)
        return self.reshaped(operand(value), value.dims, dims)

    def expression(self, op: Op, operand: Callable[[Operand], str]) -> tuple[str, Cost]:
        """Return an op of one result, without effects and regions of the program, as an expression."""
        operands = [operand(o) for o in op.operands]
        value = op.results[0]
        match op.attrs:
            case NumberAttrs(expr):
                return self.number(expr), "cheap"
            case TileAttrs(block, "index"):
                return self.tile(block), "cheap"
            case TileAttrs(block, at):
                return f"{self.tile(block)}.{at}", "cheap"
            case IotaAttrs():
                return self._iota(op.attrs, value), "cheap"
            case PointwiseAttrs(name):
                return self.pointwise(name, operands, value, op), "cheap"
            case ReduceAttrs():
                return self._reduce(op.attrs, operands[0]), "costly"
            case DotAttrs():
                acc = accumulator_of(op)
                last = f"acc={operand(acc)}" if acc is not None else f"out_dtype={dtype_text(value.dtype)}"
                return f"hl.dot({operands[0]}, {operands[1]}, {last})", "costly"
            case ViewAttrs():
                return self._view(op.attrs, operands[0], op, value), "cheap"
            case GatherAttrs(dim=dim):
                return f"torch.gather({operands[0]}, {dim}, {operands[1]})", "costly"
            case ScanAttrs() | FoldAttrs():
                return self._combined(op, operands), "costly"
            case SeedAttrs(tensor, at):
                return f"{self.tensors[tensor]}[{at}]", "cheap"
            case RandomAttrs("uniform"):
                return f"hl.rand({self.shape(value.dims)}, {operands[0]}, offsets={operands[1]})", "cheap"
        match op.kind:
            case "full":
                fill = op.operands[0]
                return f"hl.full({self.shape(value.dims)}, {operand(fill)}, dtype={dtype_text(value.dtype)})", "cheap"
            case "join":
                return f"hl.join({operands[0]}, {operands[1]})", "cheap"
            case "mask":
                return operands[0], "cheap"
        raise not_supported(f"an op of kind {op.kind!r}", "keep it out of computations that have a gradient")

    def _iota(self, attrs: IotaAttrs, value: Value) -> str:
        block = self.program.blocks[attrs.block]
        whole = block.kind == "full"
        if not attrs.relative and not whole:
            return f"{self.tile(attrs.block)}.index"
        text = f"hl.arange({self.number(block.extent or 0) if whole else self._size(attrs.block)})"
        text = text if attrs.step == 1 else f"{text} * {attrs.step}"
        text = text if attrs.start == 0 else f"{text} + {literal(attrs.start)}"
        return text

    def _reduce(self, attrs: ReduceAttrs, text: str) -> str:
        if attrs.name in ("prod", "argmax", "argmin") or len(attrs.dims) == 1:
            for at in sorted(attrs.dims, reverse=True):
                text = f"torch.{_REDUCTIONS[attrs.name]}({text}, {at})"
            return text
        return f"torch.{_REDUCTIONS[attrs.name]}({text}, {attrs.dims})"

    def _view(self, attrs: ViewAttrs, text: str, op: Op, value: Value) -> str:
        (operand,) = op.values()
        match attrs.name:
            case "permute":
                return f"{text}.permute({list(attrs.order)})"
            case "broadcast":
                return self.expanded(text, operand.dims, value.dims)
        return self.reshaped(text, operand.dims, value.dims)

    def ranking(self, op: Op, operand: Callable[[Operand], str]) -> str:
        """Return the keys of a sort by the places in them, which are all that a program reads of them."""
        if len(op.operands) == 1:
            raise not_supported("torch.sort with stable=True", "call it without stable, or in host code")
        _, elements, descending = op.operands
        return f"torch.argsort({operand(elements)}, -1, {bool(descending)})"

    def _combined(self, op: Op, operands: Sequence[str]) -> str:
        name = combination(op)
        if isinstance(op.attrs, ScanAttrs) and name in ("add", "mul"):
            reverse = ", reverse=True" if op.attrs.reverse else ""
            return f"hl.{'cumsum' if name == 'add' else 'cumprod'}({operands[0]}, {op.attrs.dim}{reverse})"
        folded = {"add": "sum", "mul": "prod", "maximum": "amax", "minimum": "amin"}
        if isinstance(op.attrs, FoldAttrs) and name in folded:
            return f"torch.{folded[name]}({operands[0]}, {op.attrs.dim})"
        raise not_supported(
            "a scan or reduction with a combine function of more than one sum, product or extremum",
            "use torch.cumsum, torch.cumprod, torch.sum, torch.amax ...",
        )


def in_list(index: str) -> str:
    """Return a subscript as an item of a list."""
    if index == ":":
        return "slice(None)"
    begin, colon, end = index.partition(":")
    return f"slice({begin or 'None'}, {end})" if colon and not set("[(") & set(index) else index


def combination(op: Op) -> str | None:
    """Return the pointwise op of a scan or fold whose region is one op of its two params; None for other regions."""
    (region,) = op.regions
    if len(region.params) != 2 or len(region.ops) != 1 or region.results != region.ops[0].results:
        return None
    (only,) = region.ops
    if not isinstance(only.attrs, PointwiseAttrs) or set(only.operands) != set(region.params):
        return None
    return only.attrs.name


def _walked(indices: Sequence[Index], op: Op) -> list[int]:
    """Return positions of the accessed tile in the order in which the indices name them."""
    found: dict[int, None] = {}
    for index in indices:
        places = index.positions
        if index.kind == "tensor" and index.operand is not None:
            value = op.operands[index.operand]
            assert isinstance(value, Value)
            places = places[len(places) - len(value.dims) :]
        found.update(dict.fromkeys(places))
    return list(found)


def _list(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _pointwise_text(name: str, operands: Sequence[str], is_value: Sequence[bool]) -> str:
    if name in _OPERATORS:
        return f"{operands[0]} {_OPERATORS[name]} {operands[1]}"
    if name == "neg":
        return f"-{operands[0]}"
    if name in ("maximum", "minimum") and is_value != [True, True]:
        value, bound = (operands[0], operands[1]) if is_value[0] else (operands[1], operands[0])
        return f"torch.clamp({value}, {'min' if name == 'maximum' else 'max'}={bound})"
    call = POINTWISE[name].call
    return call.format(*operands) if call else f"torch.{name}({', '.join(operands)})"


def broadcast(*shapes: Dims) -> Dims:
    """Return the broadcast of shapes that are known to fit."""
    dims = broadcast_dims(shapes)
    assert dims is not None, shapes
    return dims
