"""Ways out of the language: printing, inline Triton, inline assembly, Triton functions of one's own."""

from __future__ import annotations

import builtins
from typing import Any

import torch

from .. import exc
from ._registry import declare, reference


@declare("device")
def device_print(prefix: str, *values: Any) -> None:
    """Print ``prefix`` (a string literal) and values from every program, as ``triton.language.device_print``."""


@reference(device_print, "once")
def _device_print(prefix: str, *values: Any) -> None:
    if not isinstance(prefix, str):
        raise exc.InvalidAPIUsage(f"The first argument of hl.device_print must be a string literal, got {prefix!r}.")
    print(prefix, *values)


@declare("device")
def breakpoint() -> None:
    """Stop in the debugger. Only for kernels that run eagerly; raises
    ``exc.BreakpointInDeviceLoopRequiresInterpret`` in compiled ones."""


@reference(breakpoint, "once")
def _breakpoint() -> None:
    builtins.breakpoint()


@declare("device")
def inline_triton(triton_source: str, args: Any, output_like: Any) -> Any:
    """Triton statements written out, with ``{0}`` or ``{name}`` where arguments go; the last line is an expression.

    ``args`` is a list or a dict of values, of which host tensors are passed as pointers; ``output_like`` a tile, a tuple of tiles, or None for no result, whose shapes
    and dtypes the expression must have.
    """


@declare("device", takes_function=True)
def triton_kernel(function: Any, args: Any, output_like: Any) -> Any:
    """Call a ``@triton.jit`` function of the user's, or the one that a global of the user's module has the name of, or
    one whose source is given. Its text, and that of the functions and constants it names, is copied into the generated
    module.

    ``args`` is a list or a dict by parameter name; ``output_like`` as for ``inline_triton``.
    """


@declare("device")
def inline_asm_elementwise(
    asm: str, constraints: str, args: list[Any], dtype: torch.dtype | list[torch.dtype], is_pure: bool, pack: int
) -> Any:
    """Inline assembly on the elements of tiles, as ``triton.language.inline_asm_elementwise``."""
