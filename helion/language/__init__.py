"""The language of kernels: ``import helion.language as hl``."""

from .constants import ConstExpr as ConstExpr
from .constants import constexpr as constexpr
from .constants import register_block_size as register_block_size
from .constants import specialize as specialize
from .creation import arange as arange
from .creation import full as full
from .creation import subscript as subscript
from .creation import zeros as zeros
from .loops import grid as grid
from .loops import static_range as static_range
from .loops import tile as tile
from .matmul import dot as dot
from .memory import load as load
from .memory import store as store
from .tiles import Tile as Tile
from .tiles import tile_begin as tile_begin
from .tiles import tile_block_size as tile_block_size
from .tiles import tile_count as tile_count
from .tiles import tile_end as tile_end
from .tiles import tile_id as tile_id
from .tiles import tile_index as tile_index
