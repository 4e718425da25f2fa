"""Reference mode: a kernel runs eagerly, as the Python function it is, without being compiled.

``print``, ``breakpoint`` and debuggers work inside of its loops. Its results are the reference for compiled configs. A
torch function mode intercepts torch calls: in device code subscripts read and write tiles, and matmuls follow the dtype
rules of compiled kernels. Values made in partial tiles keep their padding up to date (see ``language._reference``).
"""

from __future__ import annotations

import dis
import functools
import itertools
import operator
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from .. import exc
from .._support import logs as _logging
from .._support.lazy import lazy
from .._support.nested import kinds, tensors_in
from ..language._reference import access
from ..language._reference import random as _reference_random
from ..language._reference.axes import elementwise, note_axes
from ..language._reference.session import ACTIVE, Session, axes_of, set_axes
from ..language.constants import ConstExpr
from ..language.creation import lanes_axes
from ..language.loops import jagged_tile
from ..language.matmul import FLOAT8, accumulator_dtype, product
from .call.definition import Definition
from .call.signature import target_of
from .checked import checking

if TYPE_CHECKING:
    from .. import pipeline
    from .._compiler.frontend import trace
else:
    pipeline = lazy("helion.pipeline")
    trace = lazy("helion._compiler.frontend.trace")


def run_reference(kernel: Definition, args: Sequence[Any], block_sizes: Sequence[int] | None = None) -> Any:
    """Run a kernel eagerly on all of its arguments, in the order of its parameters, and return its result.

    Tiles cover whole dimensions, or take ``block_sizes`` as a config lists them. Arguments are mutated as the compiled
    kernel would. Nothing is recorded for autograd. Raises ``exc.NestedKernelCallsNotSupported`` inside another eager
    kernel and ``exc.NoTensorArgs``.
    """
    if ACTIVE.get() is not None:
        raise exc.NestedKernelCallsNotSupported(name=kernel.name)
    device = next((t.device for t in tensors_in(args)), None)
    if device is None:
        raise exc.NoTensorArgs(kernel=kernel.name, got=kinds(args))
    named = dict(zip(kernel.signature.parameters, args, strict=True))
    trace.index_dtype(kernel.settings.index_dtype_name, named)  # raises for tensors beyond the dtype
    session = Session(
        device=device,
        index_dtype=torch.int64,  # compiled arithmetic on indices wraps around nowhere either
        settings=kernel.settings,
        config=kernel.configs[0] if len(kernel.configs) == 1 else None,
        block_sizes=None if block_sizes is None else tuple(block_sizes),
        launches=functools.partial(_draws, kernel, named) if device.type != "cpu" else lambda: iter(()),
        single_rows=jagged_tile.__name__ in kernel.fn.__code__.co_names,
    )
    token = ACTIVE.set(session)
    try:
        given = (value.value if isinstance(value, ConstExpr) else value for value in args)
        if not kernel.settings.checked:
            with torch.no_grad(), _Eager(session):
                return kernel.fn(*given)
        with torch.no_grad(), checking(kernel) as finish, _Eager(session):
            result = kernel.fn(*given)
        return finish(result)
    finally:
        ACTIVE.reset(token)


def _draws(kernel: Definition, arguments: Mapping[str, Any]) -> Iterator[int]:
    """Yield the number of seeds that each launch of a kernel draws.

    Drawing them one by one differs from drawing all at once.
    """
    try:
        target = target_of(kernel.name, tuple(arguments.values()))
        analysis = pipeline.analyse(kernel.fn, kernel.name, arguments, kernel.settings, target, kernel.constants)
    except exc.BaseError:  # a kernel need not compile to run eagerly
        return
    yield from itertools.cycle(analysis.traced.seeds)


def call_eagerly(kernel: Definition, args: Sequence[Any]) -> Any:
    """Run a call of a kernel whose ``ref_mode`` is EAGER.

    The block sizes of its only config matter if the kernel reads positions or ids of its tiles. Otherwise they are
    ignored, with a warning, as whole dimensions are faster. Raises ``exc.RefEagerModeCodePrintError`` if generated code
    should be printed, as there is none.
    """
    if kernel.settings.print_output_code:
        raise exc.RefEagerModeCodePrintError()
    sizes = next((c["block_sizes"] for c in kernel.configs if "block_sizes" in c), None)
    if len(kernel.configs) == 1 and _TILE_FIELDS.intersection(kernel.fn.__code__.co_names):
        return run_reference(kernel, args, sizes)
    if sizes is not None and not kernel.default_printed:
        kernel.default_printed = True
        warning = exc.BlockSizeIgnoredInInterpretMode(kernel=kernel.name, sizes=list(sizes))
        if type(warning).__name__ not in kernel.settings.ignore_warnings:
            _logging.say(f"WARNING[{type(warning).__name__}]: {warning}")
    return run_reference(kernel, args)


#: Names in the code of a kernel whose results may depend on block sizes.
_TILE_FIELDS = frozenset(
    name for field in ("begin", "end", "id", "count", "block_size") for name in (field, f"tile_{field}")
)


class _Eager(TorchFunctionMode):
    """Mode that intercepts torch calls of one session. Host code runs unchanged."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        session = self.session
        if not session.on_device:
            return func(*args, **kwargs)
        if func is torch.Tensor.__setitem__:
            return session.call_once(access.store, args, kwargs)
        if func in _FACTORIES:
            kwargs = {"device": session.device, **kwargs}
            return session.call(functools.partial(_factory, func), args, kwargs, takes_sizes=True)
        if func in _reference_random.RULES:
            return session.call(_reference_random.RULES[func], args, kwargs, takes_sizes=True)
        if func in _IN_PLACE and _is_augmented_assignment():
            return session.call(functools.partial(_rebound, _IN_PLACE[func]), args, kwargs, elementwise=True)
        if func in _ELEMENTWISE:
            result = session.call(functools.partial(elementwise, func), args, kwargs, elementwise=True)
        else:
            result = session.call(_RULES.get(func, func), args, kwargs, takes_sizes=func in _SIZED)
        return note_axes(func, result, args, kwargs)


def _named(*names: str) -> frozenset[Any]:
    """Return the functions of torch and the methods of tensors that have these names."""
    return frozenset(getattr(owner, name) for owner in (torch, torch.Tensor) for name in names if hasattr(owner, name))


#: Functions with sizes as separate arguments.
_SIZED = _named("view", "reshape", "expand", "new_zeros", "new_ones", "new_empty", "repeat", "unflatten")
#: Functions whose tensor arguments broadcast.
_ELEMENTWISE = _named(
    "expand_as",     "add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "floor_divide", "remainder", "fmod", "pow",
    "atan2", "copysign", "hypot", "logaddexp", "maximum", "minimum", "fmax", "fmin", "max", "min", "where", "clamp", "clip",
    "lerp", "addcmul", "addcdiv", "masked_fill", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or",
    "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "broadcast_tensors", "__rsub__", "__pow__", "__rpow__", "__rdiv__",
    "__rtruediv__", "__rfloordiv__", "__rmod__", "__floordiv__", "__and__", "__or__", "__xor__", "__rand__", "__ror__",
    "__rxor__", "__lshift__", "__rshift__", "__rlshift__", "__rrshift__", "__eq__", "__ne__",
)  # fmt: skip


# --- factories: on the kernel's device, with tiles as sizes -------------------------------------------------------------

_FACTORIES = frozenset((torch.zeros, torch.ones, torch.full, torch.empty, torch.arange, torch.randint, torch.eye))


def _factory(func: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
    result = func(*args, **kwargs)
    return set_axes(result, lanes_axes(args[0] if args else kwargs.get("size")))


# --- in-place operators -------------------------------------------------------------------------------------------------


def _in_place_methods() -> dict[Any, Callable[..., Any]]:
    operators = {
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "truediv": operator.truediv,
        "floordiv": operator.floordiv,
        "mod": operator.mod,
        "pow": operator.pow,
        "and": operator.and_,
        "or": operator.or_,
        "xor": operator.xor,
        "lshift": operator.lshift,
        "rshift": operator.rshift,
    }
    methods = {"truediv": "div_", "floordiv": "floor_divide_", "mod": "remainder_"}
    found = {}
    for name, function in operators.items():
        for method in (f"__i{name}__", methods.get(name, f"{name}_")):
            if hasattr(torch.Tensor, method):
                found[getattr(torch.Tensor, method)] = function
    return found


#: ``a += b`` rebinds ``a`` in device code, and other names of the old value keep it. torch reports it as ``a.add_(b)``,
#: which does not.
_IN_PLACE = _in_place_methods()
_TORCH = str(pathlib.Path(torch.__file__).parent)
#: Arguments of BINARY_OP from NB_INPLACE_ADD to NB_INPLACE_XOR (Python 3.11 to 3.14).
_AUGMENTED = range(13, 26)


def _is_augmented_assignment() -> bool:
    """Return whether the intercepted torch call is an operator such as ``+=`` in the source, not a method call."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename.startswith(_TORCH) and frame.f_back is not None:
        frame = frame.f_back
    code, at = frame.f_code.co_code, frame.f_lasti
    name = dis.opname[code[at]]
    return name.startswith("INPLACE_") or (name == "BINARY_OP" and code[at + 1] in _AUGMENTED)


def _rebound(function: Callable[..., Any], value: torch.Tensor, other: Any) -> torch.Tensor:
    """Return the new value of ``value op= other``, which keeps its dtype and its shape."""
    result = elementwise(function, value, other)
    if not torch.can_cast(result.dtype, value.dtype):
        raise exc.TypeInferenceError(
            f"An in-place operation gives {result.dtype}, which cannot be stored back into a value of {value.dtype}; convert one of them."
        )
    if result.shape != value.shape:
        raise exc.ShapeMismatch(
            lhs=list(value.shape),
            rhs=list(result.shape),
            detail=": an in-place operation cannot change the shape",
        )
    return set_axes(result.to(value.dtype), axes_of(result))


# --- matmuls: rounded once, with compiled kernels' dtypes
# ---------------------------------------------------------------


def _result(lhs: torch.Tensor, rhs: torch.Tensor, name: str) -> torch.dtype:
    if lhs.dtype in FLOAT8 or rhs.dtype in FLOAT8:
        raise exc.UnsupportedTorchFunction(name=f"torch.{name} of 8-bit floats", remedy="; use hl.dot")
    return torch.promote_types(lhs.dtype, rhs.dtype)


def _ranks(lhs: torch.Tensor, rhs: torch.Tensor, name: str, ranks: tuple[int, ...]) -> None:
    if lhs.ndim not in ranks or rhs.ndim not in ranks:
        takes = f": torch.{name} takes operands of rank {' or '.join(map(str, ranks))}"
        raise exc.ShapeMismatch(lhs=list(lhs.shape), rhs=list(rhs.shape), detail=takes)


def _mm(input: torch.Tensor, mat2: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    _ranks(input, mat2, "mm", (2,))
    return product(input, mat2, None, out_dtype or _result(input, mat2, "mm"))


def _bmm(input: torch.Tensor, mat2: torch.Tensor, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    _ranks(input, mat2, "bmm", (3,))
    return product(input, mat2, None, out_dtype or _result(input, mat2, "bmm"))


def _matmul(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    _ranks(input, other, "matmul", (2, 3))
    rank = max(input.ndim, other.ndim)
    lhs, rhs = (t if t.ndim == rank else t[None] for t in (input, other))
    return product(lhs, rhs, None, _result(input, other, "matmul"))


def _rmatmul(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return _matmul(other, input)


def _addmm(
    input: Any,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    acc = input if isinstance(input, torch.Tensor) else torch.tensor(input, device=mat1.device)
    dtype = out_dtype or torch.promote_types(acc.dtype, _result(mat1, mat2, "addmm"))
    if beta == 1 and alpha == 1:
        return product(mat1, mat2, acc, dtype)
    wide = accumulator_dtype(mat1.dtype, mat2.dtype)
    return (acc.to(wide) * beta + product(mat1, mat2, None, wide) * alpha).to(dtype)


# --- reductions of half precision: accumulated in fp32 and rounded once -------------------------------------------------

_HALF = (torch.float16, torch.bfloat16)


def _widened(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(input: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(input, torch.Tensor) or input.dtype not in _HALF or kwargs.get("dtype") is not None:
            return function(input, *args, **kwargs)
        result = function(input.to(torch.float32), *args, **kwargs)
        return tuple(r.to(input.dtype) for r in result) if isinstance(result, tuple) else result.to(input.dtype)

    return call


_REDUCTIONS = {
    getattr(owner, name): _widened(getattr(owner, name))
    for owner in (torch, torch.Tensor)
    for name in ("sum", "prod", "mean", "var", "std", "var_mean", "norm", "logsumexp", "cumsum", "cumprod")
    if hasattr(owner, name)
}

_RULES: dict[Any, Callable[..., Any]] = {
    **_REDUCTIONS,
    torch.Tensor.__getitem__: access.load,
    torch.Tensor.__matmul__: _matmul,
    torch.Tensor.__rmatmul__: _rmatmul,
    torch.mm: _mm,
    torch.Tensor.mm: _mm,
    torch.bmm: _bmm,
    torch.Tensor.bmm: _bmm,
    torch.matmul: _matmul,
    torch.Tensor.matmul: _matmul,
    torch.addmm: _addmm,
    torch.Tensor.addmm: _addmm,
    torch.baddbmm: _addmm,
    torch.Tensor.baddbmm: _addmm,
}
