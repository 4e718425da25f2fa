"""What modules of some backend import from ``helion.runtime``."""

from .triton.execute.launcher import default_launcher as default_launcher
from .triton.execute.launcher import get_num_sm as get_num_sm
from .triton.execute.launcher import random_seed as random_seed
from .triton.execute.launcher import set_triton_allocator as set_triton_allocator
