"""Printing, breakpoints, inline Triton, inline assembly, and Triton functions of the user's."""

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
        exc.InvalidAPIUsage: ``prefix`` is no string literal.
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
    """


@reference(breakpoint, "once")
def _breakpoint() -> None:
    builtins.breakpoint()


@declare("device")
def inline_triton(triton_source: str, args: Sequence[Any] | Mapping[str, Any], output_like: Any) -> Any:
    """Insert Triton statements of the user's into the kernel.

    Statements that do more than compute and load keep their place among all accesses to memory, and order them: what the
    program stored before is visible to them, and what they store to it afterwards.

    Args:
        triton_source: statements with ``{0}`` or ``{name}`` where arguments go; the last line is an expression, the result.
        args: values by place or by name; None is passed as it is. Host tensors are passed as pointers.
        output_like: a tile whose shape and dtype the result has, a tuple of tiles for several, or None for no result.

    Returns:
        What the last line gives, in the form of ``output_like``.

    Raises:
        exc.InvalidAPIUsage: another form of ``args`` or ``output_like``, or source that is no Triton.
    """


@declare("device", takes_function=True)
def triton_kernel(function: Any, args: Sequence[Any] | Mapping[str, Any], output_like: Any) -> Any:
    """Call a ``@triton.jit`` function of the user's in device code.

    Its text, and that of the functions and constants it names, in its module or others, is copied into the generated module.
    A function that does more than compute and load keeps its place among all accesses to memory, and orders them, as
    ``hl.inline_triton`` does.

    Args:
        function: the function, the name of a global of the kernel's module that holds one, or its source text.
        args: arguments by place or by parameter name; None is passed as it is. Host tensors are passed as pointers.
        output_like: as for ``hl.inline_triton``.

    Returns:
        What the function returns, in the form of ``output_like``.

    Raises:
        exc.InvalidAPIUsage: another form of ``args`` or ``output_like``, no function of Triton, or one that names what no
            generated module can have.
        exc.UndefinedVariable: there is no global of that name, or a name that the function reads is bound nowhere.
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
        is_pure: whether unused results may be dropped and equal calls merged. Assembly that is not pure keeps its place among
            all accesses to memory, and orders them.
        pack: elements that one run of the assembly takes; 4 bytes of them fill a register.

    Returns:
        A tile of the broadcast shape, or a tuple of them where ``dtype`` is a sequence.

    Raises:
        exc.ShapeMismatch: the arguments do not broadcast.
        exc.InvalidAPIUsage: ``dtype`` holds no dtypes.
    """
