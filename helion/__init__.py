"""Kernels as PyTorch with tiles, compiled with a config that is near its best at the first call."""

from . import autotuner as autotuner
from . import config as _config
from . import distributed as distributed
from . import exc as exc
from . import experimental as experimental
from . import hardware as hardware
from . import language as language
from ._shapes import cdiv as cdiv
from ._shapes import next_power_of_2 as next_power_of_2
from ._support.lazy import lazy as _lazy
from .autotuner.searches import from_cache as from_cache
from .config import Config as Config
from .runtime.kernel import Kernel as Kernel
from .runtime.kernel import aot_kernel as aot_kernel
from .runtime.kernel import kernel as kernel
from .runtime.tuning.loaded import load_configs as load_configs
from .runtime.views import OutputCodeOptions as OutputCodeOptions
from .settings import RefMode as RefMode
from .settings import Settings as Settings

_rewrites = _lazy("helion._compiler.rewrites")
_config.declared_by(lambda: _rewrites.__path__)  # a module has that from the beginning of its import on
jit = kernel
__version__ = "1.0.0"
