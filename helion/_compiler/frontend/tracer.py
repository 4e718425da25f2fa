"""State of one trace, and the primitive steps that rules are made of: each emits one op and gives its value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ... import exc
from ..._shapes import LEAVES, ONE, Dim, Dims, Expr, Number, broadcast_dims, hint_of, is_power_of_2, number_key
from ...fields import Fragment
from ..context import CompileContext
from ..ir.builder import Builder
from ..ir.grammar import (
    Block,
    BlockKind,
    DotAttrs,
    FoldAttrs,
    GatherAttrs,
    HostTensor,
    Index,
    IotaAttrs,
    MemoryAttrs,
    NumberAttrs,
    Op,
    Operand,
    PointwiseAttrs,
    RandomAttrs,
    ReduceAttrs,
    ReduceName,
    Region,
    ScanAttrs,
    TileAttrs,
    TileField,
    Value,
    ViewAttrs,
)
from ..ir.pointwise import result_dtype
from . import host_tensors, subscripts
from .arguments import Symbol
from .guards import Guard, guard
from .values import DeviceValue, HostTensorValue, Tile, describe

Scalar = int | float | bool


@dataclass(frozen=True)
class Affine:
    """An integer value that is the indices of ``block`` plus ``shift`` plus the scalar ``operand``."""

    block: Block
    shift: Number = 0
    operand: DeviceValue | None = None


@dataclass(frozen=True)
class Snapshot:
    blocks: list[Block]
    full: dict[Any, Block]
    slots: int
    load_slots: int
    tensors: list[HostTensor]


class Tracer:
    """Records the device program while the walker executes the kernel's source on abstract values."""

    def __init__(self, context: CompileContext, rules: dict[Any, Any]) -> None:
        self.context = context
        self.device = context.device
        self.builder = Builder()
        self.blocks: list[Block] = []
        self.tensors: list[HostTensor] = []
        self.used_tensors: list[HostTensorValue] = []
        self.active_blocks: dict[int, Tile | None] = {}
        self.specialized: dict[str, Any] = {}
        self.symbols: dict[str, Symbol] = {}
        #: Sizes and strides of tensors that the host code makes, by symbol: the tensor and how to ask it.
        self.late: dict[str, tuple[HostTensorValue, str]] = {}
        #: Lists made in device code, with the depth of regions they were made at.
        self.lists: dict[int, tuple[Any, int]] = {}
        #: What was read through globals, by where.
        self.guards: dict[tuple[Any, ...], Guard] = {}
        self.warnings: list[exc.Base] = []
        self._rules = rules
        self._full: dict[Any, Block] = {}
        self._affine: dict[Value, Affine] = {}
        self._slots = 0
        self._load_slots = 0
        self._atomic_slots = 0
        #: Calls a function of the user's on abstract values; set by whoever walks the kernel.
        self.call: Callable[[Any, tuple[Any, ...]], Any] = lambda function, args: function(*args)
        self.phase = 0
        self._storages = 0
        self._storage_ids: dict[int, int] = {}
        self.lifted: dict[tuple[int, str], HostTensorValue] = {}
        self.function_sources: dict[int, str] = {}
        self.registered: dict[tuple[int, int], int] = {}
        self.specialized_calls: set[tuple[int, int]] = set()
        self.tunables: dict[str, Fragment] = {}
        self.tunable_calls: dict[tuple[int, int], str] = {}

    def snapshot(self) -> Snapshot:
        """What ``restore`` needs to forget everything recorded from here on."""
        return Snapshot(list(self.blocks), dict(self._full), self._slots, self._load_slots, list(self.tensors))

    def restore(self, snapshot: Snapshot) -> None:
        self.blocks[:] = snapshot.blocks
        self._full = dict(snapshot.full)
        self._slots, self._load_slots = snapshot.slots, snapshot.load_slots
        self.tensors[:] = snapshot.tensors
        del self.used_tensors[len(snapshot.tensors) :]

    def assume(self, kind: Any, owner: Any, key: Any, value: Any) -> None:
        """Something outside of the arguments was read: the compiled code depends on it."""
        made = guard(kind, owner, key, value)
        if made is None or (kind, id(owner), key) in self.guards:
            return
        self.guards[(kind, id(owner), key)] = made
        # a container is the same object when its contents have changed
        if isinstance(value, dict):
            for inner, content in value.items():
                self.assume("item", value, inner, content)
        elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            for inner, content in enumerate(value):
                self.assume("item", value, inner, content)

    # --- blocks and sizes ------------------------------------------------------------------------------------------------

    @property
    def on_device(self) -> bool:
        return self.builder.active

    def new_block(self, kind: BlockKind, extent: Number | None, **fields: Any) -> Block:
        block = Block(id=len(self.blocks), kind=kind, extent=extent, **fields)
        self.blocks.append(block)
        return block

    def update_block(self, block: int, **fields: Any) -> None:
        self.blocks[block] = replace(self.blocks[block], **fields)

    def known(self, number: Any) -> Any:
        """A number whose symbols were all specialized is the integer seen when binding."""
        if isinstance(number, Expr) and all(leaf.args[0] in self.specialized for leaf in number.leaves()):
            return number.hint
        return number

    def full_block(self, extent: Number) -> Block:
        """The block of whole dimensions of ``extent`` elements; equal extents share one."""
        extent = self.known(extent)
        key = number_key(extent)
        if key not in self._full:
            self._full[key] = self.new_block("full", extent, name=f"r{len(self._full)}")
        return self._full[key]

    def may_be_padded(self, dim: Dim) -> bool:
        """Whether some lanes of a dimension may lie out of range."""
        for block in dim.blocks:
            extent = self.blocks[block].extent
            known = self.blocks[block].kind == "full" and isinstance(extent, int) and is_power_of_2(extent)
            if not known and self.block_size(self.blocks[block]) != 1:
                return True
        return False

    def block_size(self, block: Block) -> Number:
        block = self.blocks[block.id]
        if block.kind == "full":
            assert block.extent is not None
            return block.extent
        if block.size is not None:
            return block.size
        return Expr("block", (block.id,), 64)

    def dim_text(self, dim: Dim) -> str:
        parts = [
            self.blocks[b].name if self.blocks[b].kind != "full" else str(self.blocks[b].extent) for b in dim.blocks
        ]
        return "*".join([*([str(dim.const)] if dim.const != 1 or not parts else []), *parts])

    def dims_text(self, dims: Dims) -> str:
        return f"[{', '.join(map(self.dim_text, dims))}]"

    def size_of(self, dim: Dim) -> Number:
        size: Number = dim.const
        for block in dim.blocks:
            size = self.block_size(self.blocks[block]) * size
        return size

    def dim_of(self, size: Any) -> Dim:
        """The dimension a size in device code stands for: a tile, a block size, a constant, or a product of them."""
        if isinstance(size, Tile):
            return Dim(blocks=(size.block.id,))
        size = self.known(size)
        if isinstance(size, bool) or not isinstance(size, (int, Expr)):
            raise exc.ShapeSpecializingAllocation(size=describe(size))
        if isinstance(size, int):
            return ONE if size == 1 else Dim(blocks=(self.full_block(size).id,))
        if size.op == "block":
            return Dim(blocks=size.args)
        if size.op == "mul":
            return self.dim_of(size.args[0]) * self.dim_of(size.args[1])
        if number_key(size) in self._full:
            return Dim(blocks=(self._full[number_key(size)].id,))
        raise exc.ShapeSpecializingAllocation(size=repr(size))

    def dims_of(self, shape: Any) -> Dims:
        if isinstance(shape, (Tile, int, Expr)):
            shape = (shape,)
        if not isinstance(shape, (tuple, list)):
            raise exc.ShapeSpecializingAllocation(size=describe(shape))
        return tuple(self.dim_of(size) for size in shape)

    # --- values ----------------------------------------------------------------------------------------------------------

    def wrap(self, value: Value) -> DeviceValue:
        return DeviceValue(self, value)

    def emit(
        self, kind: Any, operands: Sequence[Operand], dtype: torch.dtype, dims: Dims, attrs: Any = None
    ) -> DeviceValue:
        return DeviceValue(self, self.builder.emit(kind, operands, dtype, dims, attrs))

    def number(self, expr: Number) -> DeviceValue:
        """A host number as a scalar device value."""
        if not isinstance(expr, Expr):
            dtype = (
                torch.bool
                if isinstance(expr, bool)
                else torch.float32
                if isinstance(expr, float)
                else self.context.index_dtype
            )
            return self.emit("full", (expr,), dtype, ())
        kind = expr.kind
        dtype = torch.bool if kind is bool else torch.float32 if kind is float else _integer_dtype(expr)
        value = self.emit("number", (), dtype, (), NumberAttrs(expr))
        value.number = expr
        return value

    def as_device(self, value: Any, how: str = "as an operand") -> DeviceValue:
        """Any number or device value as a device value; host tensors and tiles are refused."""
        if isinstance(value, DeviceValue):
            return value
        if isinstance(value, (int, float, Expr)):
            return self.number(value)
        self.refuse_operand(value, how)
        raise exc.UnsupportedPythonType(got=describe(value), where="device")

    def refuse_operand(self, value: Any, how: str) -> None:
        if isinstance(value, HostTensorValue):
            raise exc.HostTensorDirectUsage(name=self.source_name(value), how=how)
        if isinstance(value, Tile):
            raise exc.IncorrectTileUsage(how="as a number")

    def source_name(self, tensor: HostTensorValue) -> str:
        return tensor.source or "tensor"

    def operand(self, value: Any) -> Operand:
        if isinstance(value, (bool, int, float)):
            return value
        return self.as_device(value).value

    def pointwise(self, name: str, *operands: Any, dtype: torch.dtype | None = None) -> DeviceValue:
        """An elementwise op with broadcasting; ``dtype`` overrides torch's promotion (of ``cast`` and its like)."""
        for operand in operands:
            self.refuse_operand(operand, f"in {name}")
        shapes = [o.dims for o in operands if isinstance(o, DeviceValue)]
        dims = broadcast_dims(shapes)
        if dims is None:
            texts = [self.dims_text(s) for s in shapes]
            raise exc.ShapeMismatch(lhs=texts[0], rhs=" and ".join(texts[1:]), detail=f" in {name}")
        if dtype is None:
            dtype = self.promote(name, operands)
        operands = self._exact(operands, dtype)
        result = self.emit("pointwise", [self.operand(o) for o in operands], dtype, dims, PointwiseAttrs(name))
        if name in ("add", "sub"):
            self._track_affine(name, operands, result)
        return result

    def _exact(self, operands: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
        """Triton passes Python floats in fp32; where fp64 meets one, it becomes a compile-time constant instead."""
        if dtype != torch.float64:
            return operands
        numbers = [o.number if isinstance(o, DeviceValue) else o for o in operands]
        return tuple(
            self.specialize(n) if isinstance(n, Expr) and n.kind is float else o
            for o, n in zip(operands, numbers, strict=True)
        )

    def specialize(self, value: Expr) -> Any:
        """The number seen when binding; the arguments it depends on become part of the specialization key."""
        for leaf in value.leaves():
            if leaf.op != "host" or leaf.args[0] not in self.symbols:
                raise exc.SpecializeArgType(got=repr(value))
            self.specialized[leaf.args[0]] = self.symbols[leaf.args[0]].origin
        return value.hint

    def promote(self, name: str, operands: Sequence[Any]) -> torch.dtype:
        kinds: list[Any] = []
        for operand in operands:
            if isinstance(operand, DeviceValue) and operand.number is None:
                kinds.append((operand.dtype, operand.ndim))
            else:
                number = operand.number if isinstance(operand, DeviceValue) else operand
                kinds.append(hint_of(number))  # type: ignore[arg-type]
        try:
            return result_dtype(name, kinds)
        except (TypeError, RuntimeError) as error:
            raise exc.TorchOpTracingError(name=name, reason=str(error)) from error

    def cast(self, value: Any, dtype: torch.dtype) -> DeviceValue:
        if isinstance(value, DeviceValue) and value.dtype == dtype:
            return value
        return self.pointwise("cast", value, dtype=dtype)

    def full(self, dims: Dims, fill: Any, dtype: torch.dtype) -> DeviceValue:
        if isinstance(fill, DeviceValue):
            if fill.dims:
                raise exc.ShapeMismatch(
                    lhs=self.dims_text(fill.dims), rhs="[]", detail=": the fill value must be a scalar"
                )
            return self.emit("full", (self.cast(fill, dtype).value,), dtype, dims)
        if isinstance(fill, Expr):
            return self.emit("full", (self.cast(self.number(fill), dtype).value,), dtype, dims)
        if not isinstance(fill, (int, float)):
            self.refuse_operand(fill, "as a fill value")
            raise exc.UnsupportedPythonType(got=describe(fill), where="device")
        if dtype.is_floating_point:
            fill = float(fill)
        elif dtype == torch.bool:
            fill = bool(fill)
        else:
            fill = int(fill)
        return self.emit("full", (fill,), dtype, dims)

    def iota(self, dim_size: Any, start: int = 0, step: int = 1, dtype: torch.dtype | None = None) -> DeviceValue:
        """0, 1, 2 ... (times ``step`` plus ``start``) along the dimension ``dim_size`` stands for."""
        dim = self.dim_of(dim_size)
        if dim.is_one:
            return self.full((ONE,), start, dtype or self.context.index_dtype)
        if dim.block is None:
            raise exc.ShapeSpecializingCall(what="arange over a product of sizes")
        attrs = IotaAttrs(dim.block, True, start, step)
        result = self.emit("iota", (), self.context.index_dtype, (dim,), attrs)
        return self.cast(result, dtype) if dtype is not None else result

    def tile_index(self, tile: Tile) -> DeviceValue:
        dims = (Dim(blocks=(tile.block.id,)),)
        result = self.emit("iota", (), self.context.index_dtype, dims, IotaAttrs(tile.block.id, False))
        self._affine[result.value] = Affine(tile.block)
        return result

    def tile_field(self, tile: Tile, field: TileField) -> DeviceValue:
        return self.emit("tile", (), self.context.index_dtype, (), TileAttrs(tile.block.id, field))

    def affine(self, value: DeviceValue) -> Affine | None:
        return self._affine.get(value.value)

    def _track_affine(self, name: str, operands: Sequence[Any], result: DeviceValue) -> None:
        base, other = operands
        if name == "add" and not (isinstance(base, DeviceValue) and base.value in self._affine):
            base, other = other, base
        known = self._affine.get(base.value) if isinstance(base, DeviceValue) else None
        if known is None:
            return
        if isinstance(other, DeviceValue) and other.number is not None:
            other = other.number
        if isinstance(other, (int, Expr)):
            shift = known.shift + other if name == "add" else known.shift - other
            self._affine[result.value] = replace(known, shift=shift)
        elif isinstance(other, DeviceValue) and not other.dims and known.operand is None and name == "add":
            self._affine[result.value] = replace(known, operand=other)

    # --- shapes ----------------------------------------------------------------------------------------------------------

    def reshape(self, value: DeviceValue, dims: Dims) -> DeviceValue:
        if dims == value.dims:
            return value
        result = self.emit("view", (value.value,), value.dtype, dims, ViewAttrs("reshape"))
        result.number = value.number if not dims else None
        return result

    def permute(self, value: DeviceValue, order: Sequence[int]) -> DeviceValue:
        if list(order) == list(range(value.ndim)):
            return value
        dims = tuple(value.dims[i] for i in order)
        return self.emit("view", (value.value,), value.dtype, dims, ViewAttrs("permute", tuple(order)))

    def broadcast(self, value: DeviceValue, dims: Dims) -> DeviceValue:
        if dims == value.dims:
            return value
        if broadcast_dims((value.dims, dims)) != dims:
            raise exc.ShapeMismatch(
                lhs=self.dims_text(value.dims),
                rhs=self.dims_text(dims),
                detail=": the first cannot be expanded to the second",
            )
        if len(value.dims) < len(dims):
            value = self.reshape(value, (ONE,) * (len(dims) - len(value.dims)) + value.dims)
        if dims == value.dims:
            return value
        return self.emit("view", (value.value,), value.dtype, dims, ViewAttrs("broadcast"))

    # --- reductions and products -----------------------------------------------------------------------------------------

    def reduce(self, name: ReduceName, value: DeviceValue, positions: Sequence[int], dtype: torch.dtype) -> DeviceValue:
        """Reduce over the dimensions at ``positions``, which disappear."""
        positions = tuple(sorted(positions))
        for position in positions:
            dim = value.dims[position]
            if dim.block is None and not dim.is_one and any(self.blocks[b].kind == "tile" for b in dim.blocks):
                raise exc.ShapeMismatch(
                    lhs=self.dims_text(value.dims),
                    rhs="a reduction",
                    detail=f": dimension {position} merges tiles, whose lanes out of range cannot be told apart; reduce before reshaping",
                )
        kept = tuple(d for i, d in enumerate(value.dims) if i not in positions)
        walked = tuple(p for p in positions if not value.dims[p].is_one)
        if len(walked) < len(positions) and name not in ("argmax", "argmin"):
            value = self.reshape(value, tuple(d for i, d in enumerate(value.dims) if i not in positions or i in walked))
            walked = tuple(p - sum(q < p and q not in walked for q in positions) for p in walked)
            if not walked:
                return self.cast(value, dtype)
            positions = walked
        return self.emit("reduce", (value.value,), dtype, kept, ReduceAttrs(name, tuple(positions)))

    def dot(
        self, lhs: DeviceValue, rhs: DeviceValue, acc: DeviceValue | None, dtype: torch.dtype, precision: str
    ) -> DeviceValue:
        """``lhs @ rhs (+ acc)`` with the result in ``dtype``; operands have the same rank, 2 or 3."""
        operands = [lhs.value, rhs.value, *([acc.value] if acc is not None else [])]
        dims = (*lhs.dims[:-1], rhs.dims[-1])
        return self.emit("dot", operands, dtype, dims, DotAttrs(precision))

    # --- memory ----------------------------------------------------------------------------------------------------------

    def new_storage(self) -> int:
        self._storages += 1
        return self._storages

    def storage_of(self, tensor: torch.Tensor) -> int:
        """One number per memory: arguments that are views of one tensor share it."""
        try:
            key = tensor.untyped_storage()._cdata
        except (RuntimeError, NotImplementedError):  # wrapper subclasses may have no storage
            key = id(tensor)
        if key not in self._storage_ids:
            self._storage_ids[key] = self.new_storage()
        return self._storage_ids[key]

    def tensor_id(self, tensor: HostTensorValue) -> int:
        """The number of a host tensor in the program; the first use adds it."""
        for at, known in enumerate(self.used_tensors):
            if known is tensor:
                return at
        if not tensor.source:
            raise exc.InvalidAPIUsage(
                "This host tensor has no name that the launch could pass it by; assign it to a variable first."
            )
        self._check_offsets(tensor)
        self.used_tensors.append(tensor)
        self.tensors.append(
            HostTensor(
                id=len(self.tensors),
                name=tensor.source,
                source=tensor.source,
                dtype=tensor.dtype,
                shape=tuple(map(self.known, tensor.shape)),
                strides=tuple(map(self.known, tensor.strides)),
                storage=tensor.storage,
                aligned=tensor.aligned,
            )
        )
        return len(self.tensors) - 1

    def _check_offsets(self, tensor: HostTensorValue) -> None:
        """Offsets into a tensor must fit the index dtype."""
        if self.context.index_dtype != torch.int32:
            return
        last = sum((hint_of(s) - 1) * hint_of(st) for s, st in zip(tensor.shape, tensor.strides, strict=True))
        if last >= 2**31:
            raise exc.IndexOffsetOutOfRangeForInt32(name=tensor.source, offset=last)

    def load(self, tensor: HostTensorValue, index: Any, mask: Any = None, eviction: str | None = None) -> DeviceValue:
        plan = subscripts.plan(self, tensor, index, checked=mask is not None)
        operands: list[Operand] = list(plan.operands)
        mask_at = self._mask(plan, mask, operands)
        load_slot = None
        if eviction is None:
            load_slot, self._load_slots = self._load_slots, self._load_slots + 1
        attrs = MemoryAttrs(
            tensor=self.tensor_id(tensor),
            indices=plan.indices,
            slot=self._next_slot(),
            rank=len(plan.dims),
            load_slot=load_slot,
            mask=mask_at,
            eviction=eviction,
        )
        return self.emit("load", operands, tensor.dtype, plan.dims, attrs)

    def store(self, tensor: HostTensorValue, index: Any, value: Any, mask: Any = None) -> None:
        if not isinstance(value, (DeviceValue, int, float, Expr)):
            self.refuse_operand(value, "as the stored value")
            raise exc.RequiresTensorInAssignment(got=describe(value))
        plan = subscripts.plan(self, tensor, index, shift=1, checked=mask is not None)
        stored = self._stored(tensor, plan.dims, value)
        operands: list[Operand] = [stored.value, *plan.operands]
        mask_at = self._mask(plan, mask, operands)
        attrs = MemoryAttrs(
            tensor=self.tensor_id(tensor),
            indices=plan.indices,
            slot=self._next_slot(),
            rank=len(plan.dims),
            mask=mask_at,
        )
        self.builder.emit("store", operands, tensor.dtype, plan.dims, attrs)

    def atomic(self, name: str, tensor: HostTensorValue, index: Any, values: Sequence[Any], sem: str) -> DeviceValue:
        """A read-modify-write of ``tensor[index]``; gives what was there before."""
        plan = subscripts.plan(self, tensor, index, shift=len(values))
        stored = [self._stored(tensor, plan.dims, value).value for value in values]
        attrs = MemoryAttrs(
            tensor=self.tensor_id(tensor),
            indices=plan.indices,
            slot=self._atomic_slots,
            rank=len(plan.dims),
            atomic=name,
            sem=sem,
        )
        self._atomic_slots += 1
        return self.emit("atomic", [*stored, *plan.operands], tensor.dtype, plan.dims, attrs)

    def combine(self, function: Any, inputs: Sequence[DeviceValue]) -> Region:
        """A user's function of two sets of scalars as a region; results take the dtypes of the inputs."""
        params = [
            self.builder.value(v.dtype, (), f"{side}_{i}") for side in ("left", "right") for i, v in enumerate(inputs)
        ]
        wrapped = [self.wrap(p) for p in params]
        count = len(inputs)
        with self.builder.region() as ops:
            arguments = (
                wrapped
                if count == 1 or _takes(function, 2 * count)
                else [tuple(wrapped[:count]), tuple(wrapped[count:])]
            )
            result = self.call(function, tuple(arguments))
            results = list(result) if isinstance(result, (tuple, list)) else [result]
            if len(results) != count:
                raise exc.TypeInferenceError(
                    f"The combine function of {count} values must give {count}, got {len(results)}."
                )
            results = [self.cast(self.as_device(r), v.dtype) for r, v in zip(results, inputs, strict=True)]
        for op in ops:
            if op.kind not in ("pointwise", "full"):
                raise exc.NotAllowedInHelperFunction(what=f"A {op.kind}", location=op.location)
        return Region(tuple(params), tuple(ops), tuple(r.value for r in results))

    def fold(
        self, inputs: Sequence[DeviceValue], region: Region, dim: int, other: tuple[Any, ...]
    ) -> tuple[DeviceValue, ...]:
        results = [self.builder.value(v.dtype, tuple(d for i, d in enumerate(v.dims) if i != dim)) for v in inputs]
        return self._combined("fold", inputs, region, results, FoldAttrs(dim, other))

    def scan(
        self,
        inputs: Sequence[DeviceValue],
        region: Region,
        dim: int,
        reverse: bool,
        identity: tuple[Any, ...] | None = None,
    ) -> tuple[DeviceValue, ...]:
        results = [self.builder.value(v.dtype, v.dims) for v in inputs]
        return self._combined("scan", inputs, region, results, ScanAttrs(dim, reverse, identity))

    def _combined(
        self, kind: Any, inputs: Sequence[DeviceValue], region: Region, results: list[Value], attrs: Any
    ) -> tuple[DeviceValue, ...]:
        operands = tuple(v.value for v in inputs)
        self.builder.append(Op(kind, operands, tuple(results), attrs, (region,), self.builder.location))
        return tuple(map(self.wrap, results))

    def gather(self, value: DeviceValue, index: DeviceValue, dim: int) -> DeviceValue:
        """``result[.., i, ..] = value[.., index[.., i, ..], ..]`` along ``dim``; the other dimensions are equal."""
        return self.emit("gather", (value.value, index.value), value.dtype, index.dims, GatherAttrs(dim))

    def join(self, first: DeviceValue, second: DeviceValue) -> DeviceValue:
        dims = (*first.dims, self.dim_of(2))
        return self.emit("join", (first.value, second.value), first.dtype, dims)

    def split(self, value: DeviceValue) -> tuple[DeviceValue, DeviceValue]:
        results = tuple(self.builder.value(value.dtype, value.dims[:-1]) for _ in range(2))
        self.builder.append(Op("split", (value.value,), results, None, (), self.builder.location))
        return self.wrap(results[0]), self.wrap(results[1])

    def random(self, name: Any, seed: DeviceValue, offset: DeviceValue) -> DeviceValue:
        dtype = torch.float32 if name == "uniform" else torch.int32
        return self.emit("random", (seed.value, offset.value), dtype, offset.dims, RandomAttrs(name))

    def _next_slot(self) -> int:
        self._slots += 1
        return self._slots - 1

    def _mask(self, plan: subscripts.SubscriptPlan, mask: Any, operands: list[Operand]) -> int | None:
        if mask is None:
            return None
        mask = self.as_device(mask, "as a mask")
        if mask.dtype != torch.bool:
            raise exc.TypeInferenceError(f"extra_mask must be a boolean tile, got {mask!r}.")
        if broadcast_dims((plan.dims, mask.dims)) != plan.dims:
            raise exc.ShapeMismatch(
                lhs=self.dims_text(plan.dims),
                rhs=self.dims_text(mask.dims),
                detail=": extra_mask must broadcast to the accessed tile",
            )
        operands.append(self.broadcast(mask, plan.dims).value)
        return len(operands) - 1

    def _stored(self, tensor: HostTensorValue, dims: Dims, value: Any) -> DeviceValue:
        if not isinstance(value, DeviceValue):
            if isinstance(value, (int, float)):
                return self.full(dims, value, tensor.dtype)
            value = self.number(value)
        given = value.dims
        while len(given) > len(dims) and given[0].is_one:
            given = given[1:]
        if len(given) > len(dims):
            raise exc.RankMismatch(
                expected=len(given),
                got=len(dims),
                what=f"a value of shape {self.dims_text(value.dims)} stored into {self.source_name(tensor)!r}",
                remedy="the value has more dimensions than the subscript selects",
            )
        value = self.reshape(value, given)
        if broadcast_dims((given, dims)) != dims:
            raise exc.ShapeMismatch(
                lhs=self.dims_text(given),
                rhs=self.dims_text(dims),
                detail=f": the first is stored into {self.source_name(tensor)!r} where the subscript selects the second",
            )
        return self.broadcast(self.cast(value, tensor.dtype), dims)

    # --- calls from abstract values ---------------------------------------------------------------------------------------

    def torch_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A torch function or method on abstract values, by the rule for where it is called."""
        if not self.on_device:
            return host_tensors.call(self, func, args, kwargs)
        rule = self._rules.get(func)
        if rule is None:
            raise exc.UnsupportedTorchFunction(name=torch_name(func), remedy="")
        try:
            return rule(self, *args, **kwargs)
        except TypeError as error:
            # a rule's own signature refuses the arguments: say so in the user's terms
            raise exc.TypeInferenceError(f"{torch_name(func)}: {error}") from error

    def has_rule(self, func: Any) -> bool:
        try:
            return func in self._rules
        except TypeError:  # unhashable callables have no rule
            return False

    def load_or_view(self, tensor: HostTensorValue, index: Any) -> Any:
        return self.load(tensor, index) if self.on_device else host_tensors.view(self, tensor, index)

    def store_or_assign(self, tensor: HostTensorValue, index: Any, value: Any) -> None:
        if self.on_device:
            self.store(tensor, index, value)

    def subscript_device(self, value: DeviceValue, index: Any) -> DeviceValue:
        return subscripts.subscript_device(self, value, index)

    def warn(self, warning: exc.Base) -> None:
        if type(warning).__name__ not in self.context.settings.ignore_warnings:
            self.warnings.append(warning)


def _integer_dtype(expr: Expr) -> torch.dtype:
    """int32 for arguments that fit it (the specialization key tells), int64 for others and for arithmetic on them."""
    plain = expr.op in LEAVES
    return torch.int32 if plain and -(2**31) <= expr.hint < 2**31 else torch.int64


def _takes(function: Any, count: int) -> bool:
    """Whether a plain function has exactly ``count`` positional parameters."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_argcount == count


def torch_name(func: Any) -> str:
    """``torch.flip`` or ``Tensor.flip``, as the user wrote it."""
    name = getattr(func, "__name__", str(func)).removeprefix("_")
    if isinstance(func, (type(torch.Tensor.exp), type(torch.Tensor.__add__))):
        return f"Tensor.{name}"
    module = getattr(func, "__module__", None) or "torch"
    module = "torch" if module.startswith("torch._") else module
    return f"{module}.{name}"


def index_of(indices: Sequence[Index], position: int) -> Index | None:
    """The index that covers result dimension ``position``."""
    return next((i for i in indices if position in i.positions), None)
