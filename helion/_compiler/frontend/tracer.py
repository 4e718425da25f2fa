"""Records the program during the walk over the kernel's source with abstract values."""

from __future__ import annotations

import re
from typing import Any

import torch

from ... import exc
from ..._shapes import Dim, Expr, Number
from ..ir.grammar import Block, TileField
from . import memory, ops, subscripts
from .host import tensors as host_tensors
from .host_uses import used_by, written_by
from .state import TraceState
from .values import DeviceValue, HostTensorValue, Tile

#: Other names that torch's functions have for their arguments.
_NAMES = {"axis": "dim", "keepdims": "keepdim", "self": "input"}


class Tracer(TraceState):
    """The recorder of a trace, which abstract values call; see ``Recorder``."""

    def made(self, tensor: HostTensorValue) -> None:
        self.tensors.made.append(tensor)

    # --- numbers ------------------------------------------------------------------------------------------------------

    def specialize(self, value: Expr) -> Any:
        return self.numbers.specialize(value)

    def size_of(self, dim: Dim) -> Number:
        return self.blocks.size_of(dim)

    def block_size(self, block: Block) -> Number:
        return self.blocks.block_size(block)

    def dim_text(self, dim: Dim) -> str:
        return self.blocks.dim_text(dim)

    # --- device values and tiles --------------------------------------------------------------------------------------

    def tile_index(self, tile: Tile) -> DeviceValue:
        return ops.tile_index(self, tile)

    def tile_field(self, tile: Tile, field: TileField) -> DeviceValue:
        return ops.tile_field(self, tile, field)

    def subscript_device(self, value: DeviceValue, index: Any) -> DeviceValue:
        return subscripts.subscript_device(self, value, index)

    # --- calls from abstract values -----------------------------------------------------------------------------------

    def torch_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a torch function or method on abstract values, by the rule for host or device code."""
        if not self.on_device:
            return host_tensors.call(self, func, args, kwargs)
        rule = self.rules.get(func)
        if rule is None:
            raise exc.UnsupportedTorchFunction(name=torch_name(func), remedy=_remedy(torch_name(func), args))
        named = {_NAMES.get(name, name): value for name, value in kwargs.items()} if kwargs else kwargs
        try:
            return rule(self, *args, **named)
        except TypeError as error:
            # the rule's signature refuses the arguments: name the user's function
            raise exc.TypeInferenceError(f"{torch_name(func)}: {_refused(error)}") from error
        except AttributeError as error:
            # the rule reads an attribute of a host tensor that only device values have
            host = next((value for value in (*args, *kwargs.values()) if isinstance(value, HostTensorValue)), None)
            if host is None:
                raise
            raise used_by(host, torch_name(func)) from error

    def is_contiguous(self, value: HostTensorValue, memory_format: torch.memory_format) -> Any:
        return host_tensors.is_contiguous(self, value, memory_format)

    def read_tensor(self, value: HostTensorValue, method: str, hint: Any) -> Any:
        return host_tensors.read_tensor(self, value, method, hint)

    def update(self, value: HostTensorValue, name: str, other: Any) -> Any:
        """Evaluate ``value += other`` and the like in host code."""
        self.tensors.changed.add(value.storage)
        return host_tensors.update(self, value, name, other)

    def load_or_view(self, tensor: HostTensorValue, index: Any) -> Any:
        return memory.load(self, tensor, index) if self.on_device else host_tensors.view(self, tensor, index)

    def store_or_assign(self, tensor: HostTensorValue, index: Any, value: Any) -> None:
        if self.on_device:
            memory.store(self, tensor, index, value)
        else:
            self.tensors.changed.add(tensor.storage)


def _refused(error: TypeError) -> str:
    """Return the reason why a rule's signature refuses arguments, without the name of the rule."""
    text = re.sub(r"^[\w.<>]+\(\) ", "", str(error))
    unknown = re.fullmatch(r"got an unexpected keyword argument ('\w+').*", text)
    return (
        text
        if unknown is None
        else f"device code has no argument {unknown[1]}; compute that part with other functions."
    )


def _remedy(name: str, args: tuple[Any, ...]) -> str:
    """Return the remedy for a function that device code does not have."""
    plain = name.split(".")[-1]
    if plain.endswith("_") and not plain.endswith("__"):
        if args and isinstance(args[0], HostTensorValue):
            return written_by(args[0], plain)
        return f"; device values are immutable: assign the result, as in x = x.{plain.rstrip('_')}(...)"
    return "; call it in the host code, before or after the loop, or write it with operations on tiles"


def torch_name(func: Any) -> str:
    """Return the user's name of a function, such as ``torch.flip`` or ``Tensor.flip``."""
    name = getattr(func, "__name__", str(func)).removeprefix("_")
    if isinstance(func, (type(torch.Tensor.exp), type(torch.Tensor.__add__))):
        return f"Tensor.{name}"
    module = getattr(func, "__module__", None) or "torch"
    module = "torch" if module.startswith("torch._") else module
    prefix, _, rest = name.partition("_")  # torch.fft.fft has the name fft_fft
    if module == "torch" and getattr(getattr(torch, prefix, None), rest or "_", None) is func:
        return f"torch.{prefix}.{rest}"
    return f"{module}.{name}"
