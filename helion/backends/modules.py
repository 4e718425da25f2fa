"""The names that generated modules import from ``helion.runtime``, for all backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._support.lazy import lazy
from .triton.execute.launcher import arrived_programs as arrived_programs
from .triton.execute.launcher import default_launcher as default_launcher
from .triton.execute.launcher import get_num_sm as get_num_sm
from .triton.execute.launcher import random_seeds as random_seeds
from .triton.execute.launcher import set_triton_allocator as set_triton_allocator

if TYPE_CHECKING:
    from .cute.execute import launcher
    from .cute.toolchain import kernel as described
else:
    # `import helion` needs none of these
    launcher = lazy("helion.backends.cute.execute.launcher")
    described = lazy("helion.backends.cute.toolchain.kernel")


def gemm_kernel(source: str, **description: object) -> described.GemmKernel:
    """Build the kernel that a module of the cute backend describes."""
    return described.gemm_kernel(source, **description)


def launch_gemm(kernel: Any, grid: tuple[int, ...], *tensors: Any) -> None:
    """Launch a GEMM of the cute backend."""
    launcher.launch_gemm(kernel, grid, *tensors)
