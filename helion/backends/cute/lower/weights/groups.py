"""Numbers that neighbors along K share: the scales of groups, where an operand of the dot is computed from them.

::

    scale = scales[tile_n, tile_k.index // 128]        scales[tile_n, tile_k.begin // 128]        scales[tile_n, tile_k.id]

The last two are the same for tiles that lie in one group.
"""

from __future__ import annotations

from ....._compiler.ir.grammar import Block, Index, IotaAttrs, MemoryAttrs, Op, Operand, PointwiseAttrs, TileAttrs
from ....._shapes import fixed_at
from ....._support.records import dataclass
from ...plan.refusal import Refusal
from ..frame import Frame, Place
from ..numbers import equal


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A ``place`` whose element along K is that of ``shared`` neighbors."""

    place: Place
    shared: int


def numbers_of_k(frame: Frame, op: Op, k: int) -> Shared | None:
    """Return the place of numbers that neighbors along block ``k`` share; None for other accesses. Raises ``Refusal`` for a
    tensor of another extent."""
    attrs, tensor = op.attributes(MemoryAttrs), frame.tensor(op)
    found = [(at, size) for at, index in enumerate(attrs.indices) if (size := _group(frame, op, index, k)) is not None]
    if len(found) != 1 or attrs.mask is not None:
        return None
    ((along, size),) = found
    blocks = list[int]()
    for at, index in enumerate(attrs.indices):
        plain = index.operand is None and fixed_at(index.shift, 0)
        if at == along:
            extent = frame.extent(k)
            if not isinstance(extent, int) or not equal(tensor.shape[at], -(-extent // size)):
                raise Refusal(f"{tensor.name} has {tensor.shape[at]} numbers of {size} elements along a K of {extent}")
            blocks.append(k)
        elif plain and index.kind == "block" and index.block is not None:
            if not equal(tensor.shape[at], frame.extent(frame.named(index.block))):
                raise Refusal(f"{tensor.name} is {tuple(tensor.shape)}, which tiles do not cover")
            blocks.append(frame.named(index.block))
        elif not (plain and index.kind == "scalar"):
            return None
    walked = (at for at, index in enumerate(attrs.indices) if at == along or index.kind == "block")
    strides = tuple(tensor.strides[at] for at in walked)
    return Shared(place=Place(tensor=tensor, blocks=tuple(blocks), strides=strides), shared=size)


def _group(frame: Frame, op: Op, index: Index, k: int) -> int | None:
    """Return the neighbors along K that an index is the same for; None for other indices."""
    if index.operand is None or not fixed_at(index.shift, 0) or index.kind == "block":
        return None
    value = op.operands[index.operand]
    made = frame.maker(value)
    if made is None:
        return None
    if isinstance(made.attrs, TileAttrs) and made.attrs.field == "id" and _is(frame, made.attrs.block, k):
        size = frame.program.blocks[made.attrs.block].size
        return size if isinstance(size, int) else None
    if made.attrs != PointwiseAttrs("floordiv") or not isinstance(made.operands[1], int):
        return None
    size = int(made.operands[1])
    return size if size > 0 and _is_position(frame, made.operands[0], k, size) else None


def _is_position(frame: Frame, value: Operand, k: int, size: int) -> bool:
    """Return whether a value is the index along K, or the begin of a tile that lies in one group of ``size``."""
    made = frame.maker(value)
    if made is None:
        return False
    if isinstance(made.attrs, IotaAttrs):
        return not made.attrs.relative and _is(frame, made.attrs.block, k)
    if not isinstance(made.attrs, TileAttrs) or made.attrs.field != "begin" or not _is(frame, made.attrs.block, k):
        return False
    return lies_in_groups(frame.program.blocks[made.attrs.block], size)


def lies_in_groups(block: Block, size: int) -> bool:
    """Return whether all tiles of a block lie in one group of ``size`` elements, whatever the config."""
    if block.size is not None:
        return isinstance(block.size, int) and size % block.size == 0
    # tiles of a config are powers of two
    return block.max_size is not None and size % (1 << block.max_size.bit_length() - 1) == 0


def _is(frame: Frame, block: int, k: int) -> bool:
    return frame.named(block) == k
