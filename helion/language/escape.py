"""Printing, breakpoints, inline Triton, inline assembly, and calls of Triton functions."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .. import exc
from ._registry import declare, reference


@declare("device")
def device_print(prefix: str, *values: Any) -> None:
    """Print values from every program, as ``triton.language.device_print``; ``print`` in device code does the same.

    Args:
        prefix: a string literal, printed before each value.
        values: tiles and numbers.

    Raises:
        exc.InvalidAPIUsage: ``prefix`` is not a string literal.

    Example::

        @helion.kernel
        def show_total(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty([1], dtype=x.dtype, device=x.device)
            for _ in hl.grid(1):
                total = x[:].sum(-1)
                hl.device_print("total", total)
                out[0] = total
            return out

        show_total(torch.ones(10))
    """


@reference(device_print, "once")
def _device_print(prefix: str, *values: Any) -> None:
    if not isinstance(prefix, str):
        raise exc.InvalidAPIUsage(f"The first argument of hl.device_print must be a string literal, got {prefix!r}.")
    print(prefix, *values)


@declare("device")
def breakpoint() -> None:
    """Stop in the debugger in device code, where the kernel runs eagerly.

    Raises:
        exc.BreakpointInDeviceLoopRequiresInterpret: the kernel is compiled.

    Example::

        @helion.kernel(ref_mode=helion.RefMode.EAGER)
        def double(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                hl.breakpoint()
                out[tile] = x[tile] * 2
            return out
    """


@reference(breakpoint, "once")
def _breakpoint() -> None:
    builtins.breakpoint()


@declare("device")
def inline_triton(triton_source: str, args: Sequence[Any] | Mapping[str, Any], output_like: Any) -> Any:
    """Insert Triton statements into the kernel.

    Statements with side effects keep their order with all memory accesses of the kernel. They see earlier stores of
    the program, and later loads of the program see their stores.

    Args:
        triton_source: statements with ``{0}`` or ``{name}`` where arguments go; the last line is an expression, the
            result.
        args: values by position or by name; None is passed as it is. Host tensors are passed as pointers.
        output_like: a tile with the shape and dtype of the result, a tuple of tiles for several, or None for no result.

    Returns:
        The value of the last line, in the form of ``output_like``.

    Raises:
        exc.InvalidAPIUsage: another form of ``args`` or ``output_like``, or source that is not Triton.

    Example::

        @helion.kernel
        def fused(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                a, b = x[tile], y[tile]
                out[tile] = hl.inline_triton("tl.fma({0}, {1}, {0})", [a, b], a)
            return out
    """


@declare("device", takes_function=True)
def triton_kernel(function: Any, args: Sequence[Any] | Mapping[str, Any], output_like: Any) -> Any:
    """Call a ``@triton.jit`` function of the user's in device code.

    The generated module contains a copy of its source, and of the functions and constants that it names. A function
    with side effects keeps its order with all memory accesses, as for ``hl.inline_triton``.

    Args:
        function: the function, the name of a global of the kernel's module that holds one, or its source text.
        args: arguments by position or by parameter name; None is passed as it is. Host tensors are passed as pointers.
        output_like: as for ``hl.inline_triton``.

    Returns:
        The function's result, in the form of ``output_like``.

    Raises:
        exc.InvalidAPIUsage: another form of ``args`` or ``output_like``, not a Triton function, or one that names an
            object that a generated module cannot contain.
        exc.UndefinedVariable: there is no global of that name, or a name that the function reads is not bound.

    Example::

        import triton
        import triton.language as tl

        @triton.jit
        def scale_and_shift(x, factor):
            return tl.fma(x, factor, 1.0)

        @helion.kernel
        def apply(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                value = x[tile]
                out[tile] = hl.triton_kernel(scale_and_shift, [value, factor[tile]], value)
            return out
    """


@declare("device")
def inline_asm_elementwise(
    asm: str,
    constraints: str,
    args: Sequence[Any],
    dtype: torch.dtype | Sequence[torch.dtype],
    is_pure: bool,
    pack: int,
) -> Any:
    """Apply inline assembly to the elements of tiles, as ``triton.language.inline_asm_elementwise``.

    Args:
        asm: PTX, or the target's assembly, with ``$0`` for the first output register.
        constraints: LLVM's constraints, the outputs first, as ``"=r,r"``.
        args: tiles and numbers, broadcast together.
        dtype: dtype of the result, or one per result.
        is_pure: whether unused results may be dropped and equal calls merged. Assembly that is not pure keeps its
            place among all accesses to memory, and orders them.
        pack: elements that one run of the assembly takes; 4 bytes of them fill a register.

    Returns:
        A tile of the broadcast shape, or a tuple of them where ``dtype`` is a sequence.

    Raises:
        exc.ShapeMismatch: the arguments do not broadcast.
        exc.InvalidAPIUsage: ``dtype`` holds no dtypes.

    Example::

        @helion.kernel
        def approximate_reciprocal(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                out[tile] = hl.inline_asm_elementwise(
                    "rcp.approx.f32 $0, $1;", "=f,f", [x[tile]], torch.float32, is_pure=True, pack=1
                )
            return out
    """
