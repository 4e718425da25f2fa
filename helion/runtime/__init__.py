"""Calling kernels, and what generated modules import."""

from ..backends.triton.execute.launcher import default_launcher as default_launcher
from ..backends.triton.execute.launcher import get_num_sm as get_num_sm
from ..backends.triton.execute.launcher import random_seed as random_seed
from ..backends.triton.execute.launcher import set_triton_allocator as set_triton_allocator
from ..backends.triton.execute.launcher import source_module as source_module
from .inputs import overwrites as overwrites
from .modelled import mismatch as mismatch
from .modelled import modelled as modelled
from .stub import stub_driver as stub_driver
