"""Records the device program while the walker executes the kernel's source on abstract values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ... import exc
from ..._shapes import ONE, Dims, Expr, broadcast_dims, hint_of
from ..ir.grammar import HostTensor, MemoryAttrs, Operand
from . import host_tensors, subscripts
from .primitives import Primitives, check_dtype
from .values import DeviceValue, HostTensorValue, describe


class Tracer(Primitives):
    """Memory accesses, and calls from abstract values."""

    # --- memory ----------------------------------------------------------------------------------------------------------

    def tensor_id(self, tensor: HostTensorValue) -> int:
        """The number of a host tensor in the program; the first use adds it."""
        known = self.number_of(tensor)
        if known is not None:
            return known
        source = tensor.source or tensor.made
        if not source:
            raise exc.InvalidAPIUsage(
                "This host tensor has no name that the launch could pass it by; assign it to a variable first."
            )
        check_dtype(tensor.dtype)
        self._check_offsets(tensor)
        if tensor.device.type == "cpu" and self.device.type == "cuda":
            raise exc.InvalidAPIUsage(
                f"The host tensor {source!r} is on the CPU, but the kernel runs on {self.device}; give it device=, or move it there."
            )
        self.check(tensor)
        self.used_tensors.append(tensor)
        self.tensors.append(
            HostTensor(
                id=len(self.tensors),
                name=source,
                source=source,
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
        if mask_at is not None:
            return self.emit("load", operands, tensor.dtype, plan.dims, attrs)
        once = tuple(ONE if at in plan.repeated else dim for at, dim in enumerate(plan.dims))
        return self.broadcast(self.emit("load", operands, tensor.dtype, once, attrs), plan.dims)

    def store(self, tensor: HostTensorValue, index: Any, value: Any, mask: Any = None) -> None:
        if not isinstance(value, (DeviceValue, int, float, Expr)):
            self.refuse_operand(value, "as the stored value")
            raise exc.RequiresTensorInAssignment(got=describe(value))
        plan = subscripts.plan(self, tensor, index, shift=1, checked=mask is not None)
        self._check_repeated(tensor, plan, value)
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
        if plan.inside is not None:
            raise exc.InvalidIndexingType(got="A slice with bounds of the device's own, in an atomic operation,")
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

    def _next_slot(self) -> int:
        self._slots += 1
        return self._slots - 1

    def _mask(self, plan: subscripts.SubscriptPlan, mask: Any, operands: list[Operand]) -> int | None:
        if mask is None and plan.inside is None:
            return None
        if mask is None:
            operands.append(plan.inside.value)  # type: ignore[union-attr]
            return len(operands) - 1
        mask = self.as_device(mask, "as a mask")
        if mask.dtype != torch.bool:
            raise exc.TypeInferenceError(f"extra_mask must be a boolean tile, got {mask!r}.")
        if broadcast_dims((plan.dims, mask.dims)) != plan.dims:
            raise exc.ShapeMismatch(
                lhs=self.dims_text(plan.dims),
                rhs=self.dims_text(mask.dims),
                detail=": extra_mask must broadcast to the accessed tile",
            )
        mask = self.broadcast(mask, plan.dims)
        if plan.inside is not None:
            mask = self.pointwise("logical_and", mask, plan.inside)
        operands.append(mask.value)
        return len(operands) - 1

    def _check_repeated(self, tensor: HostTensorValue, plan: subscripts.SubscriptPlan, value: Any) -> None:
        """Lanes that all write one element, since its dimension has no other, must write one value."""
        dims = value.dims if isinstance(value, DeviceValue) else ()
        own = {len(plan.dims) - back: dim for back, dim in enumerate(reversed(dims), 1)}
        for at in plan.repeated:
            dim = own.get(at, ONE)
            size = self.size_of(dim)
            if not (isinstance(size, int) and size == 1):
                raise exc.ShapeMismatch(
                    lhs=self.dims_text(dims),
                    rhs=f"a dimension of 1 of {self.source_name(tensor)!r}",
                    detail=f": all of {self.dims_text((dim,))} would be stored into one element; reduce it, or use an atomic",
                )

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

    def is_contiguous(self, value: HostTensorValue, memory_format: torch.memory_format) -> Any:
        return host_tensors.is_contiguous(self, value, memory_format)

    def read_tensor(self, value: HostTensorValue, method: str, hint: Any) -> Any:
        return host_tensors.read_tensor(self, value, method, hint)

    def update(self, value: HostTensorValue, name: str, other: Any) -> Any:
        """``value += other`` and its like in host code."""
        return host_tensors.update(self, value, name, other)

    def load_or_view(self, tensor: HostTensorValue, index: Any) -> Any:
        return self.load(tensor, index) if self.on_device else host_tensors.view(self, tensor, index)

    def store_or_assign(self, tensor: HostTensorValue, index: Any, value: Any) -> None:
        if self.on_device:
            self.store(tensor, index, value)

    def subscript_device(self, value: DeviceValue, index: Any) -> DeviceValue:
        return subscripts.subscript_device(self, value, index)


def torch_name(func: Any) -> str:
    """``torch.flip`` or ``Tensor.flip``, as the user wrote it."""
    name = getattr(func, "__name__", str(func)).removeprefix("_")
    if isinstance(func, (type(torch.Tensor.exp), type(torch.Tensor.__add__))):
        return f"Tensor.{name}"
    module = getattr(func, "__module__", None) or "torch"
    module = "torch" if module.startswith("torch._") else module
    return f"{module}.{name}"
