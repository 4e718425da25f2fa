"""Abstract values: the values of names in a kernel during the walk over its source.

Plain Python objects represent themselves. ``HostTensorValue`` represents a tensor of the host code, ``Expr`` a number
that is known only at run time. ``DeviceValue`` represents a tile on the device, ``Tile`` a loop variable. A use that
has no meaning raises an error with the remedy.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch

from ... import exc
from ..._shapes import Dim, Dims, Expr, Number, hint_of, number_key
from ..._support.records import dataclass, field
from ..ir.grammar import Block, TileField, Value
from ..ir.host_module import Member
from ..ir.printer import dim_text


class Recorder(Protocol):
    """Interface that abstract values call to record operations."""

    @property
    def device(self) -> torch.device: ...
    def made(self, tensor: HostTensorValue) -> None:
        """Register a new host tensor."""
        ...

    def torch_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a torch function or method on abstract values."""
        ...

    # host tensors
    def is_contiguous(self, value: HostTensorValue, memory_format: torch.memory_format) -> Any: ...
    def read_tensor(self, value: HostTensorValue, method: str, hint: Any) -> Any: ...
    def update(self, value: HostTensorValue, name: str, other: Any) -> Any: ...
    def load_or_view(self, tensor: HostTensorValue, index: Any) -> Any: ...
    def store_or_assign(self, tensor: HostTensorValue, index: Any, value: Any) -> None: ...

    # device values and tiles
    def subscript_device(self, value: DeviceValue, index: Any) -> DeviceValue: ...
    def tile_index(self, tile: Tile) -> DeviceValue: ...
    def tile_field(self, tile: Tile, field: TileField) -> DeviceValue: ...

    # numbers
    def specialize(self, value: Expr) -> Any: ...
    def size_of(self, dim: Dim) -> Number: ...
    def block_size(self, block: Block) -> Number: ...
    def dim_text(self, dim: Dim) -> str: ...


class _Operators:
    """Python operators on tensors, made from the tables below; declared here for type checkers."""

    if TYPE_CHECKING:

        def __add__(self, other: Any) -> Any: ...
        def __radd__(self, other: Any) -> Any: ...
        def __sub__(self, other: Any) -> Any: ...
        def __rsub__(self, other: Any) -> Any: ...
        def __mul__(self, other: Any) -> Any: ...
        def __rmul__(self, other: Any) -> Any: ...
        def __truediv__(self, other: Any) -> Any: ...
        def __rtruediv__(self, other: Any) -> Any: ...
        def __floordiv__(self, other: Any) -> Any: ...
        def __rfloordiv__(self, other: Any) -> Any: ...
        def __mod__(self, other: Any) -> Any: ...
        def __rmod__(self, other: Any) -> Any: ...
        def __pow__(self, other: Any) -> Any: ...
        def __rpow__(self, other: Any) -> Any: ...
        def __matmul__(self, other: Any) -> Any: ...
        def __rmatmul__(self, other: Any) -> Any: ...
        def __and__(self, other: Any) -> Any: ...
        def __rand__(self, other: Any) -> Any: ...
        def __or__(self, other: Any) -> Any: ...
        def __ror__(self, other: Any) -> Any: ...
        def __xor__(self, other: Any) -> Any: ...
        def __rxor__(self, other: Any) -> Any: ...
        def __lshift__(self, other: Any) -> Any: ...
        def __rshift__(self, other: Any) -> Any: ...
        def __rlshift__(self, other: Any) -> Any: ...
        def __rrshift__(self, other: Any) -> Any: ...
        def __lt__(self, other: Any) -> Any: ...
        def __le__(self, other: Any) -> Any: ...
        def __gt__(self, other: Any) -> Any: ...
        def __ge__(self, other: Any) -> Any: ...
        def __eq__(self, other: Any) -> Any: ...
        def __ne__(self, other: Any) -> Any: ...
        def __neg__(self) -> Any: ...
        def __invert__(self) -> Any: ...
        def __abs__(self) -> Any: ...


class Shape(tuple[Number, ...]):
    """Sizes, with the methods of ``torch.Size``."""

    def numel(self) -> Number:
        total: Number = 1
        for size in self:
            total = total * size
        return total

    def __getitem__(self, at: Any) -> Any:
        if type(at) is int and not -len(self) <= at < len(self):
            raise exc.InvalidAPIUsage(f"Dimension {at} is out of range for a tensor of {len(self)} dimensions.")
        item = super().__getitem__(at)
        return Shape(item) if isinstance(at, slice) else item

    def __eq__(self, other: Any) -> Any:
        """Return whether the sizes are equal: a symbolic number if some are known at run time only."""
        if not isinstance(other, tuple) or len(other) != len(self):
            return False
        result: Any = True
        for a, b in zip(self, other, strict=True):
            if number_key(a) == number_key(b):
                continue
            if not isinstance(a, Expr) and not isinstance(b, Expr):
                return False
            result = a == b if result is True else result * (a == b)
        return result

    def __ne__(self, other: Any) -> Any:
        same = self == other
        return not same if isinstance(same, bool) else same == 0

    __hash__ = tuple.__hash__


@dataclass(eq=False)
class HostTensorValue(_Operators):
    """A tensor in host code: sizes and strides in elements, no data.

    ``source`` is a host expression for it, or empty until a name is bound to it. ``storage`` is shared by views.
    """

    tracer: Recorder
    shape: tuple[Number, ...]
    strides: tuple[Number, ...]
    dtype: torch.dtype
    device: torch.device
    storage: int
    source: str = ""
    #: It begins at a multiple of 16 bytes, provided that the arguments do.
    aligned: bool = True
    #: Bytes after a multiple of 16 at which it begins, seen when binding.
    place: int = 0
    #: Bytes from the begin of its memory, seen when binding; None if they are not known.
    begin: int | None = 0
    #: The tensor that it is a part of, and the bytes between their begins, where they are certain.
    part: tuple[HostTensorValue, int] | None = None
    #: A call in place may have changed its sizes and its begin.
    moved: bool = False
    #: A host expression for it that is independent of its variables, if it was made by an expression of the host code.
    made: str = ""
    #: The class of the tensor.
    python_type: type = torch.Tensor
    #: It may differ at run time: launches compare it before they rely on it.
    checked: bool = False
    #: It is one of several tensors; the choice is known at run time only.
    chosen: bool = False
    #: The path to it in the arguments, if it is one.
    origin: tuple[Any, ...] = ()
    #: Its storage offset at bind time, in elements, if it comes from outside of the kernel.
    offset: int = 0
    #: Its place among the tensors of all peers, if it is one.
    member: Member | None = None
    _meta: torch.Tensor | None = field(init=False, default=None, repr=False)

    def __post_init__(self) -> None:
        self.tracer.made(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("shape", "strides", "dtype"):
            super().__setattr__("_meta", None)
        super().__setattr__(name, Shape(value) if name == "shape" else value)

    @property
    def meta(self) -> torch.Tensor:
        """A meta tensor with its sizes (hints for symbols) and strides, for calls of torch. It is created once, so that
        results can be matched to it by identity.
        """
        if self._meta is None:
            shape, strides = ([hint_of(n) for n in numbers] for numbers in (self.shape, self.strides))
            self._meta = torch.empty_strided(shape, strides, dtype=self.dtype, device="meta")
        return self._meta

    def become(self, meta: torch.Tensor) -> None:
        """Take the sizes, strides and dtype of ``meta`` after a call, and keep it."""
        self.shape, self.strides, self.dtype = tuple(meta.shape), tuple(meta.stride()), meta.dtype
        self._meta = meta

    def forget_meta(self) -> None:
        """Drop the meta tensor, which calls may have changed in place."""
        self._meta = None

    # -- metadata --

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    ndimension = dim

    def __len__(self) -> Any:
        return self.shape[0]

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[self._known(dim)]

    def stride(self, dim: int | None = None) -> Any:
        return self.strides if dim is None else self.strides[self._known(dim)]

    def _known(self, dim: Any) -> int:
        return self.tracer.specialize(dim) if isinstance(dim, Expr) else dim

    def numel(self) -> Number:
        return Shape(self.shape).numel()

    nelement = numel

    @property
    def nbytes(self) -> Number:
        return self.numel() * self.dtype.itemsize

    def element_size(self) -> int:
        return self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    @property
    def is_cpu(self) -> bool:
        return self.device.type == "cpu"

    @property
    def requires_grad(self) -> Any:
        return self.tracer.read_tensor(self, "requires_grad", False)

    @property
    def layout(self) -> torch.layout:
        return torch.strided

    def is_complex(self) -> bool:
        return self.dtype.is_complex

    def is_signed(self) -> bool:
        return self.dtype.is_signed

    def is_contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> Any:
        return self.tracer.is_contiguous(self, memory_format)

    def storage_offset(self) -> Any:
        return self.tracer.read_tensor(self, "storage_offset", self.offset)

    def data_ptr(self) -> Any:
        return self.tracer.read_tensor(self, "data_ptr", 0)

    # -- all other calls are torch calls --

    @property
    def T(self) -> Any:
        return self.tracer.torch_call(
            torch.Tensor.t if self.ndim == 2 else torch.Tensor.permute,
            (self, *(() if self.ndim == 2 else range(self.ndim)[::-1])),
            {},
        )

    @property
    def mT(self) -> Any:
        return self.tracer.torch_call(torch.transpose, (self, -1, -2), {})

    @property
    def data(self) -> Any:
        return self.tracer.torch_call(torch.Tensor.detach, (self,), {})

    def __getattr__(self, name: str) -> Any:
        return _method(self, name, "a host tensor")

    def __getitem__(self, index: Any) -> Any:
        return self.tracer.load_or_view(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.store_or_assign(self, index, value)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return find_tracer(args, kwargs).torch_call(func, tuple(args), kwargs or {})

    def __repr__(self) -> str:
        shape = ", ".join(map(repr, self.shape))
        return f"{self.source or 'tensor'}: {str(self.dtype).removeprefix('torch.')}[{shape}]"

    def __bool__(self) -> NoReturn:
        raise exc.TypeInferenceError(
            f"The value of {describe(self)} is not known when the kernel is compiled; pass the condition as an argument, or branch outside of the kernel."
        )


@dataclass(eq=False)
class DeviceValue(_Operators):
    """A tile on the device, or a scalar when ``dims`` is empty."""

    tracer: Recorder
    value: Value
    #: Set when the value is a host number, so that promotion treats it as a Python scalar.
    number: Expr | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype

    @property
    def dims(self) -> Dims:
        return self.value.dims

    @property
    def ndim(self) -> int:
        return len(self.value.dims)

    def dim(self) -> int:
        return len(self.value.dims)

    @property
    def shape(self) -> Shape:
        return Shape(self.tracer.size_of(dim) for dim in self.value.dims)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def numel(self) -> Number:
        return self.shape.numel()

    @property
    def device(self) -> torch.device:
        return self.tracer.device

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    @property
    def T(self) -> Any:
        return self.tracer.torch_call(torch.Tensor.permute, (self, *range(self.ndim)[::-1]), {})

    @property
    def mT(self) -> Any:
        return self.tracer.torch_call(torch.transpose, (self, -1, -2), {})

    def __getattr__(self, name: str) -> Any:
        return _method(self, name, "a device value")

    def __getitem__(self, index: Any) -> Any:
        return self.tracer.subscript_device(self, index)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return find_tracer(args, kwargs).torch_call(func, tuple(args), kwargs or {})

    def __bool__(self) -> NoReturn:
        raise exc.TypeInferenceError(
            "The value of a device value is not known when the kernel is compiled; write the condition as an `if` statement on a scalar, or use torch.where."
        )

    def __repr__(self) -> str:
        shape = ", ".join(map(self.tracer.dim_text, self.dims))
        return f"{str(self.dtype).removeprefix('torch.')}[{shape}]"


def _method(value: HostTensorValue | DeviceValue, name: str, what: str) -> Callable[..., Any]:
    method = getattr(torch.Tensor, name, None)
    if method is None or name.startswith("__"):
        raise AttributeError(f"{what} has no attribute {name!r}")
    if not callable(method) and what == "a host tensor":
        raise exc.TypeInferenceError(
            f"Tensor.{name} of a host tensor is not supported in a kernel; read it before the call and pass it as an argument."
        )
    if not callable(method):
        raise exc.UnsupportedTorchFunction(name=f"Tensor.{name}", remedy="")

    def call(*args: Any, **kwargs: Any) -> Any:
        return value.tracer.torch_call(method, (value, *args), kwargs)

    return call


#: Python operators on tensors, by the torch.Tensor method that means the same.
_OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip
_IN_PLACE = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_REFLECTED = frozenset(
    ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
)


def _binary(name: str) -> Callable[..., Any]:
    method = getattr(torch.Tensor, name)

    def call(self: Any, other: Any) -> Any:
        return self.tracer.torch_call(method, (self, other), {})

    return call


def _unary(name: str) -> Callable[..., Any]:
    method = getattr(torch.Tensor, f"__{name}__")

    def call(self: Any) -> Any:
        return self.tracer.torch_call(method, (self,), {})

    return call


for _class in (HostTensorValue, DeviceValue):
    for _name in _OPERATORS:
        setattr(_class, f"__{_name}__", _binary(f"__{_name}__"))
        if _name in _REFLECTED:
            setattr(_class, f"__r{_name}__", _binary(f"__r{_name}__"))
    for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(_class, f"__{_name}__", _binary(_name))
    for _name in ("neg", "invert", "abs", "pos"):
        setattr(_class, f"__{_name}__", _unary(_name))
    _class.__hash__ = object.__hash__  # type: ignore[method-assign]


def _in_place(name: str) -> Callable[..., Any]:
    def call(self: HostTensorValue, other: Any) -> Any:
        return self.tracer.update(self, name, other)

    return call


for _name in _IN_PLACE:
    setattr(HostTensorValue, f"__i{_name}__", _in_place(_name))


@dataclass(eq=False)
class Tile:
    """The variable of an ``hl.tile`` loop: a block of consecutive indices."""

    tracer: Recorder
    block: Block
    #: The begin and the end of its loop, if they are constants.
    first: int | None = None
    last: int | None = None
    #: The row lengths of a jagged loop.
    jagged: DeviceValue | None = None
    #: The first index and the one after the last, if they are numbers of the host.
    range: tuple[Number, Number] | None = None

    @property
    def index(self) -> DeviceValue:
        return self.tracer.tile_index(self)

    @property
    def begin(self) -> DeviceValue:
        return self.tracer.tile_field(self, "begin")

    @property
    def end(self) -> DeviceValue:
        return self.tracer.tile_field(self, "end")

    @property
    def id(self) -> DeviceValue:
        return self.tracer.tile_field(self, "id")

    @property
    def count(self) -> DeviceValue:
        return self.tracer.tile_field(self, "count")

    @property
    def block_size(self) -> Number:
        return self.tracer.block_size(self.block)

    def _shifted(self, other: Any, sign: int) -> Any:
        if isinstance(other, (int, Expr)) or (isinstance(other, DeviceValue) and not other.dims):
            return self.index + other if sign > 0 else self.index - other
        raise exc.IncorrectTileUsage(how="as a number")

    def __add__(self, other: Any) -> Any:
        return self._shifted(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._shifted(other, -1)

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise exc.IncorrectTileUsage(how="as a number")

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        raise exc.IncorrectTileUsage(how="as a tensor")

    def __getattr__(self, name: str) -> NoReturn:
        raise exc.IncorrectTileUsage(how=f"for its attribute .{name}")

    def __repr__(self) -> str:
        return f"tile {self.block.name}"


for _name in (
    "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "rsub", "pow", "rpow", "lt", "le",
    "gt", "ge", "eq", "ne", "neg", "invert", "bool", "int", "float", "index", "and", "or", "xor", "getitem", "iter", "len",
):  # fmt: skip
    setattr(Tile, f"__{_name}__", Tile._refuse)
Tile.__hash__ = object.__hash__  # type: ignore[method-assign]


class TileTuple(tuple[Tile, ...]):
    """The variable of a multi-dimensional ``hl.tile`` loop that was not unpacked; it spreads in subscripts."""


@dataclass(frozen=True)
class LoopSpec:
    """An ``hl.tile``/``hl.grid``/``range`` call in a for header."""

    name: str
    scalar: bool
    begins: tuple[Any, ...]
    ends: tuple[Any, ...]
    sizes: tuple[Any, ...]
    sequence: bool
    jagged: DeviceValue | None = None


@dataclass(frozen=True)
class Missing:
    """A name that has no value here, with the reason; a read raises it."""

    error: Callable[[], exc.Base] = field(repr=False)


def find_tracer(args: Any, kwargs: Any = None) -> Recorder:
    """Return the tracer of the first abstract value among the arguments."""
    stack = [args, kwargs or {}]
    while stack:
        item = stack.pop()
        if isinstance(item, (HostTensorValue, DeviceValue, Tile)):
            return item.tracer
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, (tuple, list)):
            stack.extend(item)
    raise exc.InternalError(step="trace", reason="a torch function was called without an abstract value")


def source_name(tensor: HostTensorValue) -> str:
    """Return the name of a host tensor in messages."""
    return tensor.source or "tensor"


def describe(value: Any) -> str:
    """Return a description of a value for an error message."""
    if isinstance(value, DeviceValue):
        return f"a device value {value!r}"
    if isinstance(value, HostTensorValue):
        return f"a host tensor {value!r}"
    if isinstance(value, Tile):
        return f"a tile ({value!r})"
    if isinstance(value, Expr):
        return f"a number ({value!r})"
    if isinstance(value, (int, float, bool, str)) or value is None:
        return repr(value)
    if isinstance(value, types.ModuleType):
        return f"the module {value.__name__}"
    return f"a {type(value).__name__}"


def dims_text(dims: Dims, text: Callable[[Dim], str] = dim_text) -> str:
    return f"[{', '.join(map(text, dims))}]"
