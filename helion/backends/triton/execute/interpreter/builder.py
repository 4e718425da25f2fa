"""The operations of ``triton.language``, on numpy arrays.

Triton's semantic layer (type promotion, broadcasting, argument checks) is used unchanged. It calls a *builder* for each
operation; :class:`Builder` is that object for interpreted kernels. Method names and arguments are Triton's (3.6 to
3.9); ``*_`` ignores trailing arguments that only affect a compiler, such as cache hints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import ir

from ..... import exc
from ....._shapes import dtype_name
from ...codegen.ops.bytes import PTX as BYTES_PTX
from ...codegen.ops.literals import RENEW_PTX, ROUND_PTX, SETTLE_PTX, ZERO_PTX
from ...codegen.ops.marked import CLOCK_MARK, MORE_MARK
from ...lower.float_reads import FLOAT_READ_PTX
from ...remote import WAIT_MARK
from . import numerics
from .access import Access
from .elementwise import Elementwise, signed, unsigned
from .memory import Memory
from .numerics import FP8, HELD, NARROW
from .ranks import RankWatch
from .values import Block, Handle, block, scalar


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the target that Triton's semantic layer reads."""

    debug: bool = True  # makes tl.device_assert check
    sanitize_overflow: bool = False
    arch: str = "cpu"
    supported_fp8_dtypes: tuple[str, ...] = tuple(sorted(FP8))
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("tf32", "tf32x3", "ieee", "bf16x3", "bf16x6")
    max_num_imprecise_acc_default: int = 0
    instrumentation_mode: str = ""
    backend_name: str = "interpreter"


_TYPES = {
    "int1": "int1",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "half": "fp16",
    "bf16": "bf16",
    "float": "fp32",
    "double": "fp64",
} | {name: name for name in FP8}


def _type_getter(name: str) -> Callable[[object], tl.dtype]:
    found = scalar(tl.dtype(name))
    return lambda self: found


def _constant_getter(name: str) -> Callable[[object, Any], Handle]:
    dtype, held = scalar(tl.dtype(name)), HELD[name]

    def get(self: object, value: Any) -> Handle:
        if name == "bf16" or name in FP8:
            data = numerics.float_to_float(np.array([value], np.float64), "fp64", name)
        elif name == "fp16":
            data = np.array([value], np.float16).astype(np.float32)
        elif held.kind in "iu":
            data = np.array([value]).astype(held)  # wraps, where np.array([-1], np.uint8) raises
        else:
            data = np.array([value], held)
        return Handle(data, dtype, ())

    return get


def _scaled_operand(value: Handle, scale: Handle | None, format: Any, unpack_axis: int) -> np.ndarray:
    """Return an operand of ``tl.dot_scaled``, K last, as float32: decoded and multiplied by its block scales."""
    data = value.full()
    if format == ir.ScaleDotElemTypeTY.E2M1:
        # Two 4-bit numbers per byte, the low half first.
        pair = np.stack([data & 0xF, data >> 4], axis=-1)
        data = numerics.E2M1_TABLE.take(pair)
        if unpack_axis == -1:
            data = data.reshape((*data.shape[:-2], -1))
        else:
            data = np.moveaxis(data, -1, -2).reshape((*data.shape[:-3], -1, data.shape[-2]))
    if scale is None:
        return data
    factors = scale.full()
    if factors.dtype.kind in "iu":
        factors = numerics.decode_e8m0(factors)
    return data * np.repeat(factors, data.shape[-1] // factors.shape[-1], axis=-1)


@dataclasses.dataclass(frozen=True)
class AssemblyResults:
    """The results object of ``tl.inline_asm_elementwise``, for its only result."""

    only: Handle

    def get_result(self, _at: int) -> Handle:
        return self.only


class Builder(Elementwise, Access):
    """Builder of one launch at a time: :meth:`begin` sets its memory and grid, ``program`` is the running
    program's id.
    """

    def __init__(self) -> None:
        self.options = Options()
        self.codegen_fns = {"min_dot_size": lambda lhs, rhs: (1, 1, 1)}
        self.begin("", Memory((), lambda: self.place), (1, 1, 1))

    def begin(self, kernel: str, memory: Memory, grid: tuple[int, int, int]) -> None:
        self.kernel, self.memory, self.grid, self.program = kernel, memory, grid, (0, 0, 0)

    @property
    def place(self) -> str:
        return f"kernel {self.kernel!r}, program {self.program}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("create_"):
            raise NotImplementedError(
                f"{self.place}: the Triton operation {name.removeprefix('create_')!r} does not run on CPU tensors. "
                "Run this kernel on a GPU."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # Types: the triton.language types themselves.

    def get_void_ty(self) -> tl.dtype:
        return tl.void

    def get_ptr_ty(self, element: tl.dtype, *_: Any) -> tl.dtype:
        return scalar(tl.pointer_type(element))

    def get_block_ty(self, element: tl.dtype, shape: Sequence[int]) -> Block:
        return block(element, shape)

    def get_null_value(self, type: tl.dtype) -> Handle:
        return Handle(np.zeros(1, HELD.get(type.scalar.name, np.uint64)), type.scalar, ())

    def get_all_ones_value(self, type: tl.dtype) -> Handle:
        return Handle(np.invert(np.zeros(1, HELD[type.scalar.name])), type.scalar, ())

    def get_cache_policy(self, *_: Any, **__: Any) -> None:
        return None

    # Programming model.

    def create_get_program_id(self, axis: int) -> Handle:
        return Handle(np.array([self.program[axis]], np.int32), tl.int32, ())

    def create_get_num_programs(self, axis: int) -> Handle:
        return Handle(np.array([self.grid[axis]], np.int32), tl.int32, ())

    # Shapes.

    def create_splat(self, type: Block, value: Handle) -> Handle:
        return Handle(value.data, value.dtype, type.dims)

    def create_unsplat(self, value: Handle) -> Handle:
        return Handle(value.data.reshape(-1)[:1], value.dtype, ())

    def create_broadcast(self, value: Handle, shape: Sequence[int]) -> Handle:
        return Handle(value.data, value.dtype, tuple(int(s) for s in shape))

    def create_expand_dims(self, value: Handle, axis: int) -> Handle:
        data, shape = value.data, value.shape
        if data.ndim == len(shape):
            data = data.reshape((*data.shape[:axis], 1, *data.shape[axis:]))
        elif data.size > 1:
            data = value.full().reshape((*shape[:axis], 1, *shape[axis:]))
        return Handle(data, value.dtype, (*shape[:axis], 1, *shape[axis:]))

    def create_reshape(self, value: Handle, shape: Sequence[int], *_: Any) -> Handle:
        new = tuple(int(s) for s in shape)
        # a single element represents the whole block: its data must not keep a rank that the new shape does not have
        data = value.data.reshape(1) if value.data.size == 1 else value.full().reshape(new)
        return Handle(data, value.dtype, new)

    def create_trans(self, value: Handle, order: Sequence[int]) -> Handle:
        order = [int(d) for d in order]
        data = value.data if value.data.ndim == len(order) else value.full()
        return Handle(data.transpose(order), value.dtype, tuple(value.shape[d] for d in order))

    def create_cat(self, left: Handle, right: Handle) -> Handle:
        return Handle(np.concatenate([left.full(), right.full()]), left.dtype)

    def create_join(self, left: Handle, right: Handle) -> Handle:
        return Handle(np.stack([left.full(), right.full()], axis=-1), left.dtype)

    def create_split(self, value: Handle) -> tuple[Handle, Handle]:
        data = value.full()
        shape = data.shape[:-1]
        left, right = (data[..., i].reshape(shape or (1,)) for i in (0, 1))
        return Handle(left, value.dtype, shape), Handle(right, value.dtype, shape)

    def create_make_range(self, type: Block, start: int, stop: int) -> Handle:
        return Handle(np.arange(start, stop, dtype=np.int32), tl.int32)

    def create_gather(self, source: Handle, index: Handle, axis: int) -> Handle:
        return Handle(np.take_along_axis(source.full(), index.full(), axis=axis), source.dtype)

    def create_histogram(self, value: Handle, bins: int, mask: Handle | None) -> Handle:
        data = value.full()
        counted = (data >= 0) & (data < bins)  # the device drops all others
        if mask is not None:
            counted &= mask.full()
        return Handle(np.bincount(data[counted].astype(np.int64), minlength=bins).astype(np.int32), tl.int32)

    # Matmuls. fp32 operands are multiplied in fp32 for every input_precision.

    def create_dot(self, a: Handle, b: Handle, acc: Handle, *_: Any) -> Handle:
        left, right = a.full(), b.full()
        if left.dtype.kind in "iu":
            # float64 is exact here (|sum| < 2^53), and BLAS is far faster than numpy's integer loops.
            product = np.matmul(left.astype(np.float64), right.astype(np.float64)).astype(np.int64).astype(np.int32)
        else:
            product = np.matmul(left, right)
        return self._accumulate(product, acc)

    def _accumulate(self, product: np.ndarray, acc: Handle) -> Handle:
        if self.races is not None:
            self.races.multiply()
        result = np.add(product, acc.data)
        if acc.dtype.name in NARROW:
            result = numerics.round_narrow(result, acc.dtype.name)
        return Handle(result, acc.dtype, acc.shape)

    def create_dot_scaled(
        self,
        lhs: Handle,
        lhs_scale: Handle | None,
        lhs_format: Any,
        rhs: Handle,
        rhs_scale: Handle | None,
        rhs_format: Any,
        _fast_math: bool,
        lhs_k_pack: bool,
        rhs_k_pack: bool,
        acc: Handle,
    ) -> Handle:
        left = _scaled_operand(lhs, lhs_scale, lhs_format, -1 if lhs_k_pack else -2)
        transposed = Handle(rhs.full().swapaxes(-1, -2), rhs.dtype)
        right = _scaled_operand(transposed, rhs_scale, rhs_format, -1 if rhs_k_pack else -2)
        return self._accumulate(np.matmul(left, right.swapaxes(-1, -2)), acc)

    # Debugging and hints.

    def create_inline_asm(self, text: str, _constraints: Any, values: Sequence[Handle], *_: Any) -> AssemblyResults:
        if text in (SETTLE_PTX, RENEW_PTX, FLOAT_READ_PTX):
            return AssemblyResults(values[0])
        if text == ZERO_PTX:
            (value,) = values
            return AssemblyResults(Handle(np.zeros_like(value.data), value.dtype, value.shape))
        if text == ROUND_PTX:
            (value,) = values
            return AssemblyResults(Handle(numerics.round_narrow(value.data, "bf16"), value.dtype, value.shape))
        if text in BYTES_PTX:
            (value,), (source, to) = values, BYTES_PTX[text]
            numbers = (signed if source is torch.int8 else unsigned)(value.data)
            dtype = getattr(tl, dtype_name(to))
            return AssemblyResults(Handle(numbers.astype(HELD[dtype.name]), dtype, value.shape))
        if text.startswith(WAIT_MARK):
            return self._wait(*values)
        if text.startswith(CLOCK_MARK):
            return AssemblyResults(Handle(np.zeros(1, np.int64), tl.int64, ()))
        if text.startswith(MORE_MARK):
            return self._poll_again(*values)
        raise NotImplementedError(
            f"{self.place}: tl.inline_asm_elementwise does not run on CPU tensors (assembly {str(text).strip()!r}). "
            "Write the operation with triton.language, or run this kernel on a GPU."
        )

    def _wait(self, word: Handle, want: Handle, _first: Handle, _note: Handle, peer: Handle) -> AssemblyResults:
        """Wait for messages of another rank."""
        at, count, note = (int(each.data.reshape(-1)[0]) for each in (word, want, peer))
        self._ranks("hl.wait").wait(at, count, note)
        return AssemblyResults(Handle(np.zeros(1, np.int32), tl.int32, ()))

    def _poll_again(self, late: Handle, _polls: Handle, _notes: Handle, note: Handle, *_: Handle) -> AssemblyResults:
        """Hand over if marked words have not come, and return whether to poll them again."""
        again, sender = (int(each.data.reshape(-1)[0]) for each in (late, note))
        ranks = self._ranks("mail.receive")
        if again:
            ranks.await_marked(sender)
        else:
            ranks.received()
        return AssemblyResults(Handle(np.full(1, again, np.int32), tl.int32, ()))

    def _ranks(self, name: str) -> RankWatch:
        if not isinstance(self.races, RankWatch):
            raise exc.SeveralGpusUnsupported(
                name=f"{name} on CPU tensors outside of simulated ranks",
                remedy="; call the kernel in a function that helion.distributed.run runs on each rank",
            )
        return self.races

    def create_print(self, prefix: str, hexadecimal: bool, values: Sequence[Handle], _signs: Any) -> None:
        head = f"pid {self.program}{prefix}"
        if not values:
            print(head)
        for value in values:
            data = value.full() if value.shape else value.data[0]
            if hexadecimal and value.data.dtype.kind in "iu":
                data = np.array2string(np.asarray(data), formatter={"int": lambda x: f"{int(x):#x}"})
            print(f"{head}{data}")

    def create_assert(self, condition: Handle, message: str) -> None:
        if not condition.data.all():
            raise AssertionError(f"{self.place}: tl.device_assert failed: {message}")

    def create_assume(self, condition: Handle) -> None:
        if not condition.data.all():
            raise AssertionError(f"{self.place}: tl.assume does not hold")

    def create_barrier(self, *_: Any) -> None:
        if self.races is not None:
            self.races.barrier()

    def create_grid_dependency_wait(self, *_: Any) -> None:
        return None

    create_grid_dependency_launch_dependents = create_grid_dependency_wait


for _name, _format in _TYPES.items():
    setattr(Builder, f"get_{_name}_ty", _type_getter(_format))
for _format in HELD:
    setattr(Builder, f"get_{_format}", _constant_getter(_format))
