"""Calling kernels, and what generated modules import."""

from typing import TYPE_CHECKING, Any

from .._support.lazy import lazy
from .._support.symmetric import own_words as own_words
from .._support.symmetric import remote_tensor as remote_tensor
from .._support.symmetric import remote_words as remote_words
from .._support.symmetric import seen_words as seen_words
from ..backends.stub import stub_driver as stub_driver
from ..language._words import flat_bytes as flat_bytes
from ..language._words import flat_words as flat_words
from .call.argument_checks import overwrites as overwrites
from .generated.result_guards import expected_tensors as expected_tensors
from .generated.result_guards import mismatch as mismatch
from .generated.result_guards import out_of_range as out_of_range
from .generated.result_guards import past_the_end as past_the_end
from .generated.sources import KernelFallback as KernelFallback
from .generated.sources import register_source as register_source
from .generated.sources import source_module as source_module

if TYPE_CHECKING:
    from ..backends.modules import arrived_programs as arrived_programs
    from ..backends.modules import default_launcher as default_launcher
    from ..backends.modules import gemm_kernel as gemm_kernel
    from ..backends.modules import get_num_sm as get_num_sm
    from ..backends.modules import launch_gemm as launch_gemm
    from ..backends.modules import random_seeds as random_seeds
    from ..backends.modules import set_triton_allocator as set_triton_allocator

#: Names that generated modules import from a module which imports Triton: it takes as long as `import helion`.
_OF_BACKENDS = (
    "arrived_programs",
    "default_launcher",
    "gemm_kernel",
    "get_num_sm",
    "launch_gemm",
    "random_seeds",
    "set_triton_allocator",
)
_modules = lazy("helion.backends.modules")


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _OF_BACKENDS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, getattr(_modules, name))
