"""The primitive steps that rules are made of: each emits one op and gives its value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from ... import exc
from ..._shapes import LEAVES, ONE, Dim, Dims, Expr, Number, broadcast_dims, hint_of
from ..ir.grammar import (
    DotAttrs,
    FoldAttrs,
    GatherAttrs,
    IotaAttrs,
    NumberAttrs,
    Operand,
    PointwiseAttrs,
    RandomAttrs,
    ReduceAttrs,
    ReduceName,
    Region,
    Scaled,
    ScanAttrs,
    TileAttrs,
    TileField,
    Value,
    ViewAttrs,
)
from ..ir.pointwise import identity, result_dtype
from .runtime_values import is_runtime
from .state import Affine, TraceState
from .values import DeviceValue, HostTensorValue, Tile, describe

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
_AMD_FLOATS = (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)
_UNSIGNED = (torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool)
#: What a value of device code can be.
_DTYPES = frozenset((*_FLOATS, *_AMD_FLOATS, *_SIGNED, *_UNSIGNED))


def check_dtype(dtype: torch.dtype) -> None:
    """Raises ``exc.TypeInferenceError`` for what no value of device code can have."""
    if dtype in _DTYPES:
        return
    remedy = "use an integer type of 8 bits, as tensor.view(torch.uint8) gives"
    if dtype.is_complex:
        remedy = "pass torch.view_as_real(tensor), whose last dimension has the real and the imaginary part"
    raise exc.TypeInferenceError(f"{dtype} is not supported in device code: {remedy}.")


class Primitives(TraceState):
    """Values, shapes, reductions, products and combinations."""

    # --- values ----------------------------------------------------------------------------------------------------------

    def wrap(self, value: Value) -> DeviceValue:
        return DeviceValue(self, value)

    def emit(
        self, kind: Any, operands: Sequence[Operand], dtype: torch.dtype, dims: Dims, attrs: Any = None
    ) -> DeviceValue:
        check_dtype(dtype)
        return self.wrap(self.builder.emit(kind, operands, dtype, dims, attrs))

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
        dtype = torch.bool if kind is bool else torch.float32 if kind is float else self._integer_dtype(expr)
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
        if name == "add" and not dims:
            self._track_sum(operands, result)
        return result

    def _track_sum(self, operands: Sequence[Any], result: DeviceValue) -> None:
        """Scalars that are another scalar plus a number, which may be the bounds of a slice."""
        for base, other in (operands, operands[::-1]):
            number = other.number if isinstance(other, DeviceValue) else other
            if isinstance(base, DeviceValue) and isinstance(number, (int, Expr)):
                self._sums[result.value] = (base.value, number)
                return

    def distance(self, start: DeviceValue, stop: DeviceValue) -> Number | None:
        """By how much ``stop`` is greater, if it was made as ``start`` plus a number."""
        base, number = self._sums.get(stop.value, (None, None))
        return number if base is start.value else None

    def _exact(self, operands: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
        """Where fp64 meets a float that would be rounded on its way, it becomes a compile-time constant instead."""
        passed = self.context.limits.float_arguments
        if dtype != torch.float64 or passed == torch.float64:
            return operands
        numbers = [o.number if isinstance(o, DeviceValue) else o for o in operands]
        for n in numbers:
            if isinstance(n, Expr) and n.kind is float and is_runtime(self, n) and not self.changes(n):
                name = str(passed).removeprefix("torch.")
                why = f" (numbers are passed in {name}; put one that a float64 value takes into a tensor)"
                raise exc.KnownAtRunTime(what=f"`{n!r}`", because=why)
        return tuple(
            self.specialize(n) if isinstance(n, Expr) and n.kind is float else o
            for o, n in zip(operands, numbers, strict=True)
        )

    def promote(self, name: str, operands: Sequence[Any]) -> torch.dtype:
        kinds: list[Any] = []
        for operand in operands:
            if isinstance(operand, DeviceValue) and operand.number is None:
                kinds.append((operand.dtype, operand.ndim))
            else:
                number = operand.number if isinstance(operand, DeviceValue) else operand
                kinds.append(hint_of(number))  # type: ignore[arg-type]
        try:
            result = result_dtype(name, kinds)
        except (TypeError, RuntimeError) as error:
            raise exc.TorchOpTracingError(name=name, reason=str(error)) from error
        if result.is_floating_point and not any(type(k) is tuple and k[0].is_floating_point for k in kinds):
            self.default_dtype()
        return result

    def cast(self, value: Any, dtype: torch.dtype) -> DeviceValue:
        if isinstance(value, DeviceValue) and value.dtype == dtype:
            return value
        check_dtype(dtype)
        return self.pointwise("cast", value, dtype=dtype)

    def full(self, dims: Dims, fill: Any, dtype: torch.dtype) -> DeviceValue:
        check_dtype(dtype)
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
            return self._product_iota(dim, start, step, dtype)
        attrs = IotaAttrs(dim.block, True, start, step)
        result = self.emit("iota", (), self.context.index_dtype, (dim,), attrs)
        return self.cast(result, dtype) if dtype is not None else result

    def _product_iota(self, dim: Dim, start: int, step: int, dtype: torch.dtype | None) -> DeviceValue:
        """0, 1, 2 ... along a product of block sizes and a constant: counted digit by digit, then merged."""
        factors = [Dim(blocks=(b,)) for b in dim.blocks] + ([self.dim_of(dim.const)] if dim.const != 1 else [])
        total: DeviceValue | None = None
        for at, factor in enumerate(factors):
            size = self.size_of(factor)
            dims = tuple(factor if i == at else ONE for i in range(len(factors)))
            digit = self.reshape(self.iota(size), dims)
            total = digit if total is None else self.pointwise("add", self.pointwise("mul", total, size), digit)
        assert total is not None
        result = self.reshape(total, (dim,))
        if step != 1:
            result = self.pointwise("mul", result, step)
        if start:
            result = self.pointwise("add", result, start)
        return self.cast(result, dtype or self.context.index_dtype)

    def tile_index(self, tile: Tile) -> DeviceValue:
        dims = (Dim(blocks=(tile.block.id,)),)
        result = self.emit("iota", (), self.context.index_dtype, dims, IotaAttrs(tile.block.id, False))
        self._affine[result.value] = Affine(tile.block)
        return result

    def tile_field(self, tile: Tile, field: TileField) -> DeviceValue:
        attrs = TileAttrs(tile.block.id, field)
        result = self.emit("tile", (), self.context.index_dtype, (), attrs)
        self._fields[result.value] = attrs
        return result

    def field_of(self, value: DeviceValue) -> TileAttrs | None:
        """What a value reads off a tile, if it was made so."""
        return self._fields.get(value.value)

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
        self._check_reducible(name, value, positions)
        for position in positions:
            dim = value.dims[position]
            if dim.block is None and not dim.is_one and any(self.blocks[b].kind == "tile" for b in dim.blocks):
                inside = None if name in ("argmax", "argmin") else self._inside_merged(dim)
                if inside is not None:
                    shape = tuple(d if i == position else ONE for i, d in enumerate(value.dims))
                    fill = identity(name, value.dtype)
                    value = self.pointwise("where", self.reshape(inside, shape), value, fill, dtype=value.dtype)
                    continue
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

    def _check_reducible(self, name: ReduceName, value: DeviceValue, positions: Sequence[int]) -> None:
        blocks = [self.blocks[b] for position in positions for b in value.dims[position].blocks]
        if blocks:
            self._refuse_float8(f"A reduction ({name})", value)

    def _inside_merged(self, dim: Dim) -> DeviceValue | None:
        """Which lanes of a dimension that merges tiles are in range; None where the order of the tiles is not known."""
        factors = self.merged.get(dim)
        if factors is None:
            return None
        result = self.full((ONE,) * len(factors), True, torch.bool)
        for at, factor in enumerate(factors):
            tile = None if factor.block is None else self.active_blocks.get(factor.block)
            if tile is None and any(self.blocks[b].kind == "tile" for b in factor.blocks):
                return None
            if tile is not None:
                shape = tuple(factor if i == at else ONE for i in range(len(factors)))
                within = self.pointwise("lt", self.tile_index(tile), self.tile_field(tile, "end"))
                result = self.pointwise("logical_and", result, self.reshape(within, shape))
        return self.reshape(self.broadcast(result, factors), (dim,))

    def dot(
        self, lhs: DeviceValue, rhs: DeviceValue, acc: DeviceValue | None, dtype: torch.dtype, precision: str
    ) -> DeviceValue:
        """``lhs @ rhs (+ acc)`` with the result in ``dtype``; operands have the same rank, 2 or 3."""
        operands = [lhs.value, rhs.value, *([acc.value] if acc is not None else [])]
        dims = (*lhs.dims[:-1], rhs.dims[-1])
        return self.emit("dot", operands, dtype, dims, DotAttrs(precision))

    def dot_scaled(
        self,
        lhs: DeviceValue,
        rhs: DeviceValue,
        acc: DeviceValue | None,
        scales: tuple[DeviceValue | None, DeviceValue | None],
        formats: tuple[str, str],
    ) -> DeviceValue:
        """``lhs @ rhs (+ acc)`` in fp32 of matrices in microscaling formats."""
        operands = [lhs.value, rhs.value, *([acc.value] if acc is not None else [])]
        places: list[int | None] = []
        for scale in scales:
            places.append(None if scale is None else len(operands))
            operands += [scale.value] if scale is not None else []
        attrs = DotAttrs("ieee", Scaled(*formats, *places))
        return self.emit("dot", operands, torch.float32, (lhs.dims[0], rhs.dims[1]), attrs)

    def combine(self, function: Any, inputs: Sequence[DeviceValue]) -> Region:
        """A user's function of two sets of scalars as a region; results take the dtypes of the inputs."""
        params = [
            self.builder.value(v.dtype, (), f"{side}_{i}") for side in ("left", "right") for i, v in enumerate(inputs)
        ]
        wrapped = [self.wrap(p) for p in params]
        count = len(inputs)
        with self.builder.region() as ops:
            results = self.combined(function, wrapped[:count], wrapped[count:])
        for op in ops:
            if op.kind not in ("pointwise", "full"):
                raise exc.NotAllowedInHelperFunction(what=f"A {op.kind}", location=op.location)
        return Region(tuple(params), tuple(ops), tuple(r.value for r in results))

    def combined(
        self, function: Any, left: Sequence[DeviceValue], right: Sequence[DeviceValue]
    ) -> tuple[DeviceValue, ...]:
        """A user's function of two values, of two tuples, or of the values of both; results take the dtypes of ``left``."""
        count = len(left)
        flat = count == 1 or _takes(function, 2 * count)
        result = self.call(function, (*left, *right) if flat else (tuple(left), tuple(right)))
        results = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        if len(results) != count:
            raise exc.TypeInferenceError(
                f"The combine function of {count} values must give {count}, got {len(results)}."
            )
        return tuple(self.cast(self.as_device(r), v.dtype) for r, v in zip(results, left, strict=True))

    def _refuse_float8(self, what: str, *values: DeviceValue) -> None:
        for value in values:
            if value.dtype.is_floating_point and value.dtype.itemsize == 1:
                raise exc.TypeInferenceError(
                    f"{what} of {value.dtype} is not supported: there is no arithmetic on 8-bit floats; convert to "
                    "torch.float32 first."
                )

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
        self._refuse_float8(f"A {kind}", *inputs)
        operands = tuple(v.value for v in inputs)
        self.builder.append(kind, operands, results, attrs, (region,))
        return tuple(map(self.wrap, results))

    def gather(self, value: DeviceValue, index: DeviceValue, dim: int, given: bool = False) -> DeviceValue:
        """``result[.., i, ..] = value[.., index[.., i, ..], ..]`` along ``dim``; the other dimensions are equal.
        ``given``: the index is the user's."""
        return self.emit("gather", (value.value, index.value), value.dtype, index.dims, GatherAttrs(dim, given))

    def lanes(self, size: Any, rank: int, at: int) -> DeviceValue:
        """0, 1, 2 ... along dimension ``at`` of ``rank`` dimensions."""
        index = self.iota(size)
        return self.reshape(index, tuple(index.dims[0] if i == at else ONE for i in range(rank)))

    def pick(self, value: DeviceValue, at: int, index: DeviceValue) -> DeviceValue:
        """Elements of a whole dimension, by an index of the same rank whose other dimensions are 1. Lanes of the index
        that are out of range read the first or last element."""
        size = self.size_of(value.dims[at])
        assert isinstance(size, int)
        if size == 1:
            return self.broadcast(value, (*value.dims[:at], index.dims[at], *value.dims[at + 1 :]))
        index = self.pointwise("minimum", self.pointwise("maximum", index, 0), size - 1)
        return self.gather(value, self.broadcast(index, (*value.dims[:at], index.dims[at], *value.dims[at + 1 :])), at)

    def join(self, first: DeviceValue, second: DeviceValue) -> DeviceValue:
        dims = (*first.dims, self.dim_of(2))
        return self.emit("join", (first.value, second.value), first.dtype, dims)

    def split(self, value: DeviceValue) -> tuple[DeviceValue, DeviceValue]:
        results = tuple(self.builder.value(value.dtype, value.dims[:-1]) for _ in range(2))
        self.builder.append("split", (value.value,), results)
        return self.wrap(results[0]), self.wrap(results[1])

    def _integer_dtype(self, expr: Expr) -> torch.dtype:
        """int32 for arguments that fit it (the specialization key tells), int64 for others, for arithmetic on them, and
        for what only the run of the host code knows."""
        plain = expr.op in LEAVES and expr.args[0] not in self.drawn
        return torch.int32 if plain and -(2**31) <= expr.hint < 2**31 else torch.int64

    def random(self, name: Any, seed: DeviceValue, offset: DeviceValue) -> DeviceValue:
        dtype = torch.float32 if name == "uniform" else torch.int32
        return self.emit("random", (seed.value, offset.value), dtype, offset.dims, RandomAttrs(name))


def _takes(function: Any, count: int) -> bool:
    """Whether a plain function has exactly ``count`` positional parameters."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_argcount == count
