"""Arguments, grid and errors of one interpreted launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.jit import JITFunction, TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from ....._support import ranks as _ranks
from ....._support.locks import TRITON_LOCK, recover
from .....hardware import WARP_THREADS
from ...codegen.together import called_between_barriers
from .memory import Memory, Region
from .races import RaceDetector, WatchedTensor, is_detecting
from .ranks import RankWatch, programs_of
from .rewrite import Interpreted, adapt, interpreted
from .semantic import SEMANTIC
from .values import Descriptor, Handle, Tensor, own, scalar

_ELEMENTS: dict[torch.dtype, tl.dtype] = {
    torch.bool: tl.int1,
    torch.int8: tl.int8,
    torch.uint8: tl.uint8,
    torch.int16: tl.int16,
    torch.uint16: tl.uint16,
    torch.int32: tl.int32,
    torch.uint32: tl.uint32,
    torch.int64: tl.int64,
    torch.uint64: tl.uint64,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
    torch.float8_e4m3fn: tl.float8e4nv,
    torch.float8_e4m3fnuz: tl.float8e4b8,
    torch.float8_e5m2: tl.float8e5,
    torch.float8_e5m2fnuz: tl.float8e5b16,
}

_POINTERS = {element.name: scalar(tl.pointer_type(element)) for element in _ELEMENTS.values()}


def _pointer(address: int, element: tl.dtype) -> Tensor:
    return Tensor(Handle(np.array([address], np.uint64), _POINTERS[element.name], ()), _POINTERS[element.name])


def _number(value: Any, dtype: tl.dtype) -> Tensor:
    # Not scalar_constant, which loses the sign of -0.0.
    return Tensor(getattr(SEMANTIC.builder, f"get_{dtype.name}")(value), dtype)


class _Arguments:
    """Converts a launch's arguments to interpreter values and records the memory they own."""

    def __init__(self, kernel: str, *, watching: bool = False) -> None:
        self.kernel, self.watching = kernel, watching or is_detecting()
        self.storages: dict[int, tuple[int, list[str]]] = {}
        self.watched: list[WatchedTensor] = []
        self.held: list[torch.UntypedStorage] = []

    def regions(self) -> Iterator[Region]:
        for start, (size, names) in self.storages.items():
            yield Region(start=start, size=size, owner="argument " + " and ".join(repr(n) for n in names))

    def all(self, fn: JITFunction, bound: Mapping[str, object]) -> dict[str, Any]:
        """Return every argument of ``fn`` by name."""
        values = {}
        for parameter in fn.params:
            name = parameter.name
            if parameter.is_constexpr:
                values[name] = adapt(bound[name])
            else:
                value = self.value(name, bound[name], specialize=not parameter.do_not_specialize)
                values[name] = _annotated(value, parameter.annotation_type)
        return values

    def tensor(self, name: str, value: torch.Tensor, element: tl.dtype | None = None) -> Tensor:
        """Return a pointer to ``value``'s first element."""
        if value.device.type != "cpu":
            raise ValueError(
                f"kernel {self.kernel!r}: argument {name!r} is on {value.device}, but the interpreter runs on CPU "
                "tensors only. Move every argument to the CPU, or launch the kernel on the GPU."
            )
        element = element or _ELEMENTS.get(value.dtype)
        if element is None:
            raise TypeError(f"kernel {self.kernel!r}: argument {name!r} has dtype {value.dtype}, which Triton lacks.")
        storage = value.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
        if size:
            known = self.storages.setdefault(start, (size, []))
            if name not in known[1]:
                known[1].append(name)
                if self.watching:
                    self.held.append(storage)
                    self.watched.append(WatchedTensor.of(name, value))
        return _pointer(value.data_ptr(), element)

    def value(self, name: str, value: Any, *, specialize: bool = True) -> Any:
        """Return ``value`` as a kernel receives it for a parameter that is not constexpr."""
        if isinstance(value, torch.Tensor):
            return self.tensor(name, value)
        if isinstance(value, bool):
            return _number(value, tl.int1)
        if isinstance(value, int):
            if value == 1 and specialize:
                return 1  # Triton compiles the number 1 into the kernel
            if -(2**31) <= value < 2**31:
                return _number(value, tl.int32)
            if -(2**63) <= value < 2**64:  # seeds of torch have 64 bits without a sign
                return _number(value, tl.int64 if value < 2**63 else tl.uint64)
            raise OverflowError(f"kernel {self.kernel!r}: argument {name!r} = {value} does not fit 64 bits.")
        if isinstance(value, float):
            return _number(value, tl.float32)
        if value is None:
            return None
        if isinstance(value, (tuple, list)):
            parts = [self.value(f"{name}[{i}]", part) for i, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else tl.tuple(parts) if parts else ()
        if isinstance(value, TensorWrapper):
            return self.tensor(name, value.base, _wrapped_element(value.dtype))
        if isinstance(value, TensorDescriptor):
            return self.descriptor(name, value)
        if isinstance(value, (tl.constexpr, JITFunction, tl.dtype)):
            return adapt(value)
        raise TypeError(
            f"kernel {self.kernel!r}: argument {name!r} is a {type(value).__name__}; pass a tensor, a number, a tuple "
            "of those or a TensorDescriptor, or declare the parameter tl.constexpr."
        )

    def descriptor(self, name: str, value: TensorDescriptor) -> Descriptor:
        strides = [_number(int(s), tl.int64) for s in value.strides[:-1]]
        return own(
            SEMANTIC.make_tensor_descriptor(
                self.value(name, value.base),
                [_number(int(s), tl.int32) for s in value.shape],
                [*strides, tl.constexpr(1)],
                [int(b) for b in value.block_shape],
                value.padding,
            )
        )


def _wrapped_element(dtype: Any) -> tl.dtype:
    """Return the element type of a ``triton.reinterpret`` wrapper, whose dtype is Triton's or torch's."""
    return _ELEMENTS[dtype] if isinstance(dtype, torch.dtype) else scalar(dtype)


def _annotated(value: Any, annotation: str) -> Any:
    """Return a scalar argument in the type of its parameter's annotation (``x: tl.int64``)."""
    if not annotation or annotation.startswith("*") or not isinstance(value, (Tensor, int)):
        return value
    dtype = scalar(tl.str_to_ty(annotation, None))
    if not isinstance(value, Tensor):
        return _number(value, dtype)
    return value if value.dtype.is_ptr() else SEMANTIC.cast(value, dtype)


def _bound(fn: JITFunction, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
    own_kwargs = {name: value for name, value in kwargs.items() if name in fn.signature.parameters}
    try:
        bound = fn.signature.bind(*args, **own_kwargs)
    except TypeError as error:
        raise TypeError(f"kernel {fn.__name__!r}: {error}") from None
    bound.apply_defaults()
    return bound.arguments


def _no_launch() -> None:
    """Reset the launch that another thread was running when this process was forked."""
    builder = SEMANTIC.builder
    builder.races = None
    builder.begin("", Memory((), lambda: builder.place), (1, 1, 1))


recover(TRITON_LOCK, _no_launch)


def _checked_grid(fn: JITFunction, grid: tuple[int, ...]) -> tuple[int, int, int]:
    if not 1 <= len(grid) <= 3 or any(not isinstance(g, int) or g < 0 for g in grid):
        raise ValueError(
            f"kernel {fn.__name__!r}: the grid must be one to three integers that are not negative, got {grid!r}."
        )
    x, y, z = (*grid, 1, 1)[:3]
    return x, y, z


def _annotate(error: BaseException, place: str) -> None:
    """Add the place to an exception that does not name it (Python 3.11 on)."""
    if place not in str(error) and hasattr(error, "add_note"):
        error.add_note(f"while interpreting {place} on CPU tensors")


def _detector(
    fn: JITFunction, memory: Memory, watched: Sequence[WatchedTensor], options: Mapping[str, object]
) -> RaceDetector:
    warps = options.get("num_warps", 4)
    assert isinstance(warps, int)
    file = fn.fn.__code__.co_filename
    return RaceDetector(fn.__name__, file, memory.regions, watched, threads=warps * WARP_THREADS)


def interpret(
    fn: JITFunction,
    grid: tuple[int, ...],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    elsewhere: bool = True,
) -> None:
    """Run a ``@triton.jit`` kernel on CPU tensors, in this process and thread.

    No environment variable is needed, and Triton's own modules stay unchanged. So kernels may be compiled for a GPU
    before, after and (from another thread, once the lock is free) between launches.

    Args:
        fn: the kernel. It and the ``@triton.jit`` functions it calls must have source in a file.
        grid: one to three program counts. Programs run one after the other, the first axis fastest.
        args: positional arguments: CPU tensors of any strides, numbers, tuples, ``TensorDescriptor``, constexpr values.
        kwargs: further arguments by name; other names are launch options (``num_warps`` ...) and are ignored.
        elsewhere: allow pointers that the kernel makes of integers to access memory outside of the arguments.

    Numerics are the device's: bf16, fp16 and fp8 results are rounded to nearest even after every operation, casts to
    fp8 saturate, integer division truncates. fp32 ``tl.dot`` computes in fp32 for every ``input_precision``, and sums
    accumulate in fp64 with one final rounding.

    Raises:
        IndexError: an access that no mask turns off lies outside every argument's storage.
        exc.DataRace: within ``races.detect_races()``, a result depends on the order of threads.
        AssertionError: a ``tl.device_assert``, ``assert``, ``tl.static_assert`` or ``tl.assume`` does not hold.
        NotImplementedError: the kernel uses inline assembly, or a device function that has no CPU counterpart.
        ValueError, TypeError: an argument or the grid is unsuitable, or Triton's own checks reject an operation.

    Tensors written before an error keep what was written.
    """
    sizes = _checked_grid(fn, grid)
    here = _ranks.current()
    if here is not None:
        _interpret_rank(*here, fn, sizes, args, kwargs, elsewhere)
        return
    with TRITON_LOCK, np.errstate(all="ignore"):
        builder = SEMANTIC.builder
        outer = (builder.kernel, builder.memory, builder.grid, builder.program, builder.races)
        Interpreted.launch += 1
        builder.begin(fn.__name__, Memory((), lambda: builder.place), sizes)
        try:
            arguments = _Arguments(fn.__name__.removeprefix("_helion_"))
            values = arguments.all(fn, _bound(fn, args, kwargs))
            builder.memory = Memory(tuple(arguments.regions()), lambda: builder.place, elsewhere)
            for function, given in _phases(fn, values):
                builder.races = _detector(fn, builder.memory, arguments.watched, kwargs) if is_detecting() else None
                for z in range(sizes[2]):
                    for y in range(sizes[1]):
                        for x in range(sizes[0]):
                            builder.program = (x, y, z)
                            if builder.races is not None:
                                builder.races.begin_program(builder.program)
                            function(*given)
        except Exception as error:
            _annotate(error, builder.place)
            raise
        finally:
            builder.kernel, builder.memory, builder.grid, builder.program, builder.races = outer


def _phases(fn: JITFunction, values: Mapping[str, Any]) -> Iterator[tuple[Callable[..., Any], list[Any]]]:
    """Yield the functions that all programs run one after the other, with their arguments.

    A kernel without a barrier of its grid is the only one.
    """
    called = called_between_barriers(fn.src)
    if not called:
        yield interpreted(fn).refresh(), [values[parameter.name] for parameter in fn.params]
    for name, given in called:
        yield interpreted(fn.fn.__globals__[name]).refresh(), [values[argument] for argument in given]


def _interpret_rank(
    world: _ranks.World,
    host: _ranks.Task,
    fn: JITFunction,
    sizes: tuple[int, int, int],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    elsewhere: bool,
) -> None:
    """Run a kernel on a simulated rank, whose programs take turns with those of the other ranks."""
    builder = SEMANTIC.builder
    with TRITON_LOCK, np.errstate(all="ignore"):
        outer = (builder.kernel, builder.memory, builder.grid, builder.program, builder.races)
        Interpreted.launch += 1
        builder.begin(fn.__name__, Memory((), lambda: builder.place), sizes)
        try:
            arguments = _Arguments(fn.__name__.removeprefix("_helion_"), watching=True)
            values = arguments.all(fn, _bound(fn, args, kwargs))
            memory = Memory(tuple(arguments.regions()), lambda: builder.place, elsewhere)
            file = fn.fn.__code__.co_filename
            watch = RankWatch(world, arguments.kernel, file, builder, memory.regions, arguments.watched, arguments.held)
            function = interpreted(fn).refresh()
        finally:
            builder.kernel, builder.memory, builder.grid, builder.program, builder.races = outer

    def run(program: tuple[int, int, int]) -> None:
        with TRITON_LOCK, np.errstate(all="ignore"):
            outer = (builder.kernel, builder.memory, builder.grid, builder.program, builder.races)
            builder.begin(fn.__name__, memory, sizes)
            builder.program, builder.races = program, watch
            try:
                function(**values)
            except Exception as error:
                _annotate(error, builder.place)
                raise
            finally:
                builder.kernel, builder.memory, builder.grid, builder.program, builder.races = outer

    world.launch(host, f"kernel {arguments.kernel!r}", tuple(programs_of(sizes, run)))
