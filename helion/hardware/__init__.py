"""GPUs as data: one ``Target`` per GPU, and the only folder with device numbers."""

from .lookup import DEFAULT_TARGET as DEFAULT_TARGET
from .lookup import UnknownTargetName as UnknownTargetName
from .lookup import from_device_properties as from_device_properties
from .lookup import from_driver as from_driver
from .lookup import known_targets as known_targets
from .lookup import target as target
from .records import DESCRIPTOR_RANKS as DESCRIPTOR_RANKS
from .records import FEATURES as FEATURES
from .records import GROUP_WARPS as GROUP_WARPS
from .records import MEMORY_LATENCY_US as MEMORY_LATENCY_US
from .records import REGISTER_BYTES as REGISTER_BYTES
from .records import RESERVED_SHARED_BYTES as RESERVED_SHARED_BYTES
from .records import TMA_ALIGNMENT_BYTES as TMA_ALIGNMENT_BYTES
from .records import VECTOR_BYTES as VECTOR_BYTES
from .records import WARP_ROWS as WARP_ROWS
from .records import WARP_THREADS as WARP_THREADS
from .records import Link as Link
from .records import Target as Target
from .rows import NVLINK4 as NVLINK4
