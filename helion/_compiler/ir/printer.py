"""Text form of the device IR, for dumps, tests and people."""

from __future__ import annotations

from ..._shapes import Dim, dtype_name, fixed_at
from .grammar import (
    AddressAttrs,
    Bound,
    CheckAttrs,
    DotAttrs,
    FoldAttrs,
    ForAttrs,
    GatherAttrs,
    Index,
    IotaAttrs,
    LoopAxis,
    MaskAttrs,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    OperandRef,
    PointwiseAttrs,
    Program,
    RandomAttrs,
    ReduceAttrs,
    Region,
    ScanAttrs,
    SeedAttrs,
    TileAttrs,
    Value,
    Variables,
    ViewAttrs,
    WhileAttrs,
)


def print_program(program: Program) -> str:
    """Return the text of a program: one line per tensor, block and op; values are ``%number``, blocks ``bN``."""
    lines = [f"kernel {program.host.name}"]
    for tensor in program.tensors:
        shape = ", ".join(map(repr, tensor.shape))
        strides = ", ".join(map(repr, tensor.strides))
        lines.append(f"  tensor t{tensor.id} {tensor.name}: {dtype_name(tensor.dtype)}[{shape}] strides ({strides})")
    for block in program.blocks:
        size = "" if block.size is None else f" size {block.size!r}"
        lines.append(f"  block b{block.id} {block.name}: {block.kind} of {block.extent!r}{size}")
    for root in program.roots:
        axes = ", ".join(_axis(axis, None) for axis in root.axes)
        lines.append(f"  grid {axes}:")
        _region(root.body, program, "    ", lines)
    return "\n".join(lines)


def _region(region: Region, program: Program, indent: str, lines: list[str]) -> None:
    for op in region.ops:
        text = _op(op, program)
        if op.results:
            text = f"{', '.join(f'{_operand(v)}: {type_text(v)}' for v in op.results)} = {text}"
        lines.append(f"{indent}{text}")
        for i, inner in enumerate(op.regions):
            if i:
                lines.append(f"{indent}else:")
            _region(inner, program, f"{indent}  ", lines)
    if region.results:
        lines.append(f"{indent}yield {', '.join(map(_operand, region.results))}")


def _operand(operand: Operand) -> str:
    return f"%{operand.number}" if isinstance(operand, Value) else repr(operand)


def dim_text(dim: Dim) -> str:
    parts = [f"b{b}" for b in dim.blocks]
    if dim.const != 1 or not parts:
        parts.insert(0, str(dim.const))
    return "*".join(parts)


def type_text(value: Value) -> str:
    return f"{dtype_name(value.dtype)}[{', '.join(map(dim_text, value.dims))}]"


def _bound(bound: Bound, op: Op | None) -> str:
    if isinstance(bound, OperandRef):
        assert op is not None
        return _operand(op.operands[bound.at])
    return repr(bound)


def _axis(axis: LoopAxis, op: Op | None) -> str:
    kind = f"step {axis.step!r}" if axis.scalar else "tiles"
    part = "" if axis.split is None else f"part b{axis.split.block} of {axis.split.count} of "
    way = (" whole" if axis.whole else "") + (" backwards" if axis.backwards else "")
    return f"b{axis.block} in {part}{_bound(axis.begin, op)}..{_bound(axis.end, op)} {kind}{way}"


def _index(index: Index, op: Op) -> str:
    parts = []
    if index.kind == "block":
        parts.append(f"b{index.block}")
    if index.operand is not None:
        parts.append(_operand(op.operands[index.operand]))
    if not fixed_at(index.shift, 0) or not parts:
        parts.append(repr(index.shift))
    text = " + ".join(parts)
    return f"{text}@{','.join(map(str, index.positions))}" if index.kind == "tensor" else text


def _variables(variables: Variables | None) -> str:
    parts = () if variables is None else ("taken", "fresh", "updated")
    found = [(part, sorted(getattr(variables, part))) for part in parts]
    return "".join(f" {part} {', '.join(map(str, at))}" for part, at in found if at)


def _op(op: Op, program: Program) -> str:
    operands = ", ".join(map(_operand, op.operands))
    match op.attrs:
        case NumberAttrs(expr):
            return f"number {expr!r}"
        case TileAttrs(block, field):
            return f"tile b{block}.{field}"
        case IotaAttrs(block, relative, start, step):
            detail = f" relative {start}:{step}" if relative else ""
            return f"iota b{block}{detail}"
        case MemoryAttrs():
            where = ", ".join(_index(index, op) for index in op.attrs.indices)
            text = f"{op.kind} {program.tensors[op.attrs.tensor].name}[{where}] slot {op.attrs.slot}"
            if op.attrs.mask is not None:
                text += f" if {_operand(op.operands[op.attrs.mask])}"
            if op.attrs.lanes:
                text += f" lanes {op.attrs.lanes}"
            if op.attrs.mark is not None:
                text += f" marked {_operand(op.operands[op.attrs.mark])}"
            if op.kind == "atomic":
                unread = " unread" if op.attrs.unread else ""
                scope = "" if op.attrs.scope == "gpu" else f" {op.attrs.scope}"
                return f"{text} {op.attrs.atomic} {_operand(op.operands[0])} {op.attrs.sem}{scope}{unread}"
            return f"{text} <- {_operand(op.operands[0])}" if op.kind == "store" else text
        case PointwiseAttrs(name):
            return f"{name} {operands}"
        case ReduceAttrs(name, dims, kept):
            return f"reduce {name} {operands} over {', '.join(map(str, dims))}{' kept' if kept else ''}"
        case DotAttrs(precision, scaled, single):
            how = precision if scaled is None else f"scaled {scaled.lhs_format} {scaled.rhs_format}"
            return f"dot {operands} {how}{' single' if single else ''}"
        case ViewAttrs(name, order):
            return f"{name} {operands}" + (f" {list(order)}" if order else "")
        case MaskAttrs(dims, fill):
            return f"mask {operands} along {', '.join(map(str, dims))} with {fill!r}"
        case ForAttrs():
            axes = ", ".join(_axis(axis, op) for axis in op.attrs.axes)
            params = op.regions[0].params
            carried = ", ".join(f"{_operand(p)} = {_operand(i)}" for p, i in zip(params, op.operands, strict=False))
            chunked = " chunked" if op.attrs.chunked else ""
            return f"for {axes}{chunked} carrying ({carried}){_variables(op.attrs.variables)}:"
        case WhileAttrs(variables):
            return f"while {operands}{_variables(variables)}:"
        case ScanAttrs(dim, reverse, _):
            return f"scan {operands} along {dim}{' reversed' if reverse else ''}:"
        case FoldAttrs(dim, other):
            return f"fold {operands} along {dim} with {other!r} out of range:"
        case CheckAttrs():
            what = "written" if op.attrs.index is None else f"0 <= {_index(op.attrs.index, op)} < {op.attrs.size!r}"
            return f"check {what}"
        case GatherAttrs(dim=dim, doubled=doubled):
            return f"gather {operands} along {dim}" + (f" doubled {doubled}" if doubled else "")
        case SeedAttrs(tensor, at):
            return f"seed {at} of {tensor}"
        case AddressAttrs(dtype):
            return f"{op.kind} {dtype_name(dtype)} {operands}"
        case RandomAttrs(name):
            return f"random {name} {operands}"
    return f"{op.kind} {operands}".rstrip() + (":" if op.regions else "")
