"""Calling kernels, and what generated modules import."""

from .._support.symmetric import own_words as own_words
from .._support.symmetric import remote_tensor as remote_tensor
from .._support.symmetric import remote_words as remote_words
from .._support.symmetric import seen_words as seen_words
from ..backends.modules import arrived_programs as arrived_programs
from ..backends.modules import default_launcher as default_launcher
from ..backends.modules import gemm_kernel as gemm_kernel
from ..backends.modules import get_num_sm as get_num_sm
from ..backends.modules import launch_gemm as launch_gemm
from ..backends.modules import random_seeds as random_seeds
from ..backends.modules import set_triton_allocator as set_triton_allocator
from ..backends.stub import stub_driver as stub_driver
from ..language._words import flat_bytes as flat_bytes
from ..language._words import flat_words as flat_words
from .call.argument_checks import overwrites as overwrites
from .generated.result_guards import expected_tensors as expected_tensors
from .generated.result_guards import mismatch as mismatch
from .generated.sources import KernelFallback as KernelFallback
from .generated.sources import register_source as register_source
from .generated.sources import source_module as source_module
