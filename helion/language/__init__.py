"""The language of kernels: ``import helion.language as hl``."""

from types import ModuleType as _Module

from .atomics import atomic_add as atomic_add
from .atomics import atomic_and as atomic_and
from .atomics import atomic_cas as atomic_cas
from .atomics import atomic_max as atomic_max
from .atomics import atomic_min as atomic_min
from .atomics import atomic_or as atomic_or
from .atomics import atomic_xchg as atomic_xchg
from .atomics import atomic_xor as atomic_xor
from .constants import ConstExpr as ConstExpr
from .constants import ProcessGroupName as ProcessGroupName
from .constants import constexpr as constexpr
from .constants import register_block_size as register_block_size
from .constants import specialize as specialize
from .creation import arange as arange
from .creation import full as full
from .creation import subscript as subscript
from .creation import zeros as zeros
from .escape import breakpoint as breakpoint
from .escape import device_print as device_print
from .escape import inline_asm_elementwise as inline_asm_elementwise
from .escape import inline_triton as inline_triton
from .escape import triton_kernel as triton_kernel
from .loops import grid as grid
from .loops import jagged_tile as jagged_tile
from .loops import static_range as static_range
from .loops import tile as tile
from .matmul import dot as dot
from .matmul import dot_scaled as dot_scaled
from .memory import load as load
from .memory import store as store
from .phases import barrier as barrier
from .quantized import float4_e2m1fn_x2_to_float32 as float4_e2m1fn_x2_to_float32
from .quantized import load_bfloat16_x16_to_float16 as load_bfloat16_x16_to_float16
from .quantized import load_float4_e2m1fn_x16_to_float16 as load_float4_e2m1fn_x16_to_float16
from .random_ops import rand as rand
from .random_ops import rand4x as rand4x
from .random_ops import randint as randint
from .scans import associative_scan as associative_scan
from .scans import cumprod as cumprod
from .scans import cumsum as cumsum
from .scans import reduce as reduce
from .several_gpus import Channel as Channel
from .several_gpus import Mailbox as Mailbox
from .several_gpus import RemoteCopy as RemoteCopy
from .several_gpus import make_async_remote_copy as make_async_remote_copy
from .several_gpus import remote_barrier as remote_barrier
from .several_gpus import signal as signal
from .several_gpus import wait as wait
from .stack_tensor import StackTensor as StackTensor
from .stack_tensor import stacktensor_like as stacktensor_like
from .tiles import Tile as Tile
from .tiles import tile_begin as tile_begin
from .tiles import tile_block_size as tile_block_size
from .tiles import tile_count as tile_count
from .tiles import tile_end as tile_end
from .tiles import tile_id as tile_id
from .tiles import tile_index as tile_index
from .tunables import register_tunable as register_tunable
from .views import join as join
from .views import split as split


def __dir__() -> list[str]:
    """List the public names, without the modules that define them."""
    return sorted(
        name for name, value in globals().items() if not name.startswith("_") and not isinstance(value, _Module)
    )
