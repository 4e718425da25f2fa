"""The optional native half of a call: its guard and its launch in C++, enabled by ``HELION_NATIVE_LAUNCH=1``.

The host's time of operators with few rows falls by a tenth to a half (measurement ``native_launch``).
``dispatch`` and ``inline_launch`` get functions from here for the code they write. Each may be None: the knob is off,
no compiler, a kernel with an unusual launch. Then they write the same in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton

from ....._support.records import dataclass
from ....execution import SizeTable
from . import build

#: The driver's library, as Triton opens it.
DRIVER = "libcuda.so.1"
#: Supported versions of Triton, by their launch convention: scratch pointers last, attributes as set here.
TRITONS = ("3.6", "3.7", "3.8", "3.9")
_KINDS = {"pointer": 0, "i32": 1, "i64": 2, "u64": 3, "fp32": 4, "fp64": 5, "u1": 6, "i1": 6, None: 7}


@dataclass(frozen=True, kw_only=True)
class Binary:
    """A loaded kernel as the driver launches it. ``shared`` is in bytes; ``record`` replaces the driver in a stub."""

    function: int
    num_warps: int
    num_ctas: int
    shared: int
    cooperative: bool
    pdl: bool
    types: tuple[str, ...]
    record: Callable[..., Any] | None


def wanted() -> bool:
    """Return whether the extension is available; a build, if needed, takes a second or two."""
    return build.module() is not None


def guard(
    tensors: Sequence[torch.Tensor],
    sizes: Sequence[Sequence[int | None]],
    strides: Sequence[Sequence[int | None]],
    table: SizeTable | None = None,
) -> Callable[..., bool] | None:
    """Return a native ``TensorGuards(...).check``: a function of as many tensors that compares them with these.

    It compares type, dispatch keys, dtype, device, ``requires_grad``, sizes and strides (None: any), and rejects a
    tensor given twice.

    With ``table``, numbers that may be any must be of the classes in it.
    """
    module = build.module()
    if module is None:
        return None
    numbers = None if table is None else (table.classes, table.wide, table.symbolic, table.limit)
    try:
        return module.guard(tuple(tensors), tuple(map(tuple, sizes)), tuple(map(tuple, strides)), numbers)
    except ValueError:  # a torch mode is active
        return None


def sharing(first: Sequence[int]) -> Callable[..., bool] | None:
    """Return a function of as many tensors that checks that exactly the same ones share memory.

    ``first`` has for each tensor the position of the first tensor on the same storage. The function returns False for
    memory that torch has not allocated.
    """
    module = build.module()
    return None if module is None else module.sharing(tuple(first))


def binary(compiled: Any, run: Any, function: int) -> Binary | None:
    """Return the data for the driver to launch ``compiled``, a ``CompiledKernel`` whose ``run`` launches ``function``.

    Return None where Triton's own launcher does more: scratch memory, sanitizers, and unsupported versions.
    """
    packed, signature = (
        getattr(compiled, "packed_metadata", None),
        getattr(getattr(compiled, "src", None), "signature", None),
    )
    version = ".".join(triton.__version__.split(".")[:2])
    if version not in TRITONS or type(run).__name__ != "CudaLauncher" or not isinstance(function, int):
        return None
    if run.global_scratch_size or run.profile_scratch_size or getattr(run, "gsan_enabled", False):
        return None
    if not (isinstance(packed, tuple) and len(packed) == 3 and isinstance(signature, dict)):
        return None
    types = tuple(signature.values())
    if not all(isinstance(each, str) for each in types):
        return None
    warps, ctas, shared = packed
    return Binary(
        function=function,
        num_warps=warps,
        num_ctas=ctas,
        shared=shared,
        cooperative=bool(run.launch_cooperative_grid),
        pdl=bool(run.launch_pdl),
        types=types,
        record=None,
    )


def stub_binary(compiled: Any, record: Callable[..., Any]) -> Binary:
    """Return a ``Binary`` for a kernel that is not loaded: ``record`` is called with the grid instead."""
    warps, ctas, shared = compiled.packed_metadata
    return Binary(
        function=0,
        num_warps=warps,
        num_ctas=ctas,
        shared=shared,
        cooperative=False,
        pdl=False,
        types=tuple(compiled.src.signature.values()),
        record=record,
    )


@dataclass(frozen=True, kw_only=True)
class Argument:
    """An argument that a launch passes to the kernel, or that is compiled in. ``tl.constexpr`` arguments have none.

    ``part`` is its part of ``Site.key``.
    """

    part: Any
    specialized: bool


def launch(
    what: Binary,
    arguments: Sequence[Argument | None],
    empty: Sequence[Mapping[str, Any] | Sequence[Any]],
    stream: Callable[[int], int],
    device: int,
) -> Callable[..., bool] | None:
    """Return a function of the grid's three counts and the arguments that launches the kernel and returns True.

    It returns False and does nothing if an argument needs another binary, a count is 0, or one of ``empty`` is not
    empty. The same holds if the thread has not used the GPU before. It raises RuntimeError like Triton where the driver
    reports an error.

    Args:
        arguments: requirements on each parameter's argument; None for a ``tl.constexpr``, which is not passed.
        stream: returns the stream to launch on, for ``device``.
    """
    module = build.module()
    if module is None:
        return None
    described = [None if each is None else _described(each) for each in arguments]
    if any(each is None and given is not None for each, given in zip(described, arguments, strict=True)):
        return None
    if not _agree(what.types, described):
        return None
    parameters = tuple([each for each in described if each is not None])
    driver = DRIVER if what.record is None else None
    numbers = (what.function, what.num_warps, what.num_ctas, what.shared, what.cooperative, what.pdl)
    try:
        return module.launch(driver, *numbers, parameters, tuple(empty), stream, device, what.record)
    except (ValueError, TypeError, OSError):  # such as clusters of 16
        return None


def _described(argument: Argument) -> tuple[int, bool, bool, bool, bool] | None:
    """Return (kind, passed, specialized, one, divisible): for an integer its class, for a pointer its alignment."""
    part = argument.part
    if isinstance(part, tuple) and isinstance(part[0], torch.dtype):
        return (_KINDS["pointer"], True, False, False, bool(part[1]))
    if isinstance(part, tuple):
        width, one, divisible = part
        return (_KINDS[width], not one, argument.specialized, one, divisible)
    kinds: dict[Any, str | None] = {float: "fp32", bool: "u1", type(None): None}
    if part not in kinds:
        return None
    return (_KINDS[kinds[part]], part is not type(None), False, False, False)


def _agree(types: Sequence[str], described: Sequence[tuple[int, bool, bool, bool, bool] | None]) -> bool:
    """Return whether the binary was compiled for the types that the arguments are packed as."""
    if len(types) != len(described):
        return False
    for text, each in zip(types, described, strict=True):
        if each is None or not each[1]:
            if text != "constexpr":
                return False
        elif _KINDS.get("pointer" if text.startswith("*") else text) != each[0]:
            return False
    return True


__all__ = ["Argument", "Binary", "binary", "guard", "launch", "sharing", "stub_binary", "wanted"]
