"""Calling kernels, and what generated modules import."""

from .inputs import overwrites as overwrites
from .launcher import default_launcher as default_launcher
from .launcher import get_num_sm as get_num_sm
from .launcher import random_seed as random_seed
from .launcher import set_triton_allocator as set_triton_allocator
from .launcher import source_module as source_module
from .modelled import mismatch as mismatch
from .modelled import modelled as modelled
from .stub import stub_driver as stub_driver
