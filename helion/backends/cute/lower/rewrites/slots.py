"""Rows of groups in slots of as many rows each, as rows of one matrix.

::

    for tile_m in hl.tile(counts[g]):                      for tile_m in hl.tile(groups * span):
        x[g, tile_m, tile_k]                      →            x[tile_m, tile_k]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ....._compiler.ir.grammar import HostTensor, Index, MemoryAttrs, Op, Program
from ....._shapes import fixed_at
from ...plan.refusal import Refusal
from ..numbers import equal


class Joiner:
    """A rewrite of accesses by a group and by rows of it to those of one dimension, of the rows of all groups.

    ``group_of`` returns whether an index of an op is the number of the group. ``span`` are the rows of each group.
    """

    def __init__(self, program: Program, group_of: Callable[[Op, Index], bool], block: int) -> None:
        self.program, self.group_of, self.block = program, group_of, block
        self.places: dict[int, tuple[int, int]] = {}
        """The dimensions of groups and of their rows, by tensor."""
        self.span: int | None = None
        self.groups = 0

    def joined(self, op: Op) -> Op:
        """Return an op, and those within, with one index of rows. Raises ``Refusal`` for a tensor with other dimensions."""
        regions = tuple(dataclasses.replace(region, ops=tuple(map(self.joined, region.ops))) for region in op.regions)
        op = dataclasses.replace(op, regions=regions) if regions else op
        attrs = op.attrs
        if not isinstance(attrs, MemoryAttrs):
            return op
        walked = [at for at, index in enumerate(attrs.indices) if index.block == self.block]
        picked = [at for at, index in enumerate(attrs.indices) if self.group_of(op, index)]
        tensor = self.program.tensors[attrs.tensor]
        if not walked:
            if self.places.get(tensor.id):
                raise Refusal(f"{tensor.name} is read for more than the rows of a group")
            return op
        plain = len(walked) == len(picked) == 1 and attrs.indices[walked[0]].operand is None
        if not plain or not fixed_at(attrs.indices[walked[0]].shift, 0):
            raise Refusal(f"{tensor.name} is not indexed by a group and by the rows of it")
        (row,), (group,) = walked, picked
        groups, span = tensor.shape[group], tensor.shape[row]
        apart = equal(tensor.strides[group], tensor.strides[row] * span)
        if not isinstance(groups, int) or not isinstance(span, int) or not apart or self.span not in (None, span):
            raise Refusal(
                f"{tensor.name} has {groups} groups of {span} rows, which are implemented one after the other, as many in each"
                " tensor, of sizes that are known when the kernel is compiled"
            )
        if self.places.setdefault(tensor.id, (group, row)) != (group, row):
            raise Refusal(f"{tensor.name} is addressed by groups in different ways")
        self.span, self.groups = span, groups
        kept = tuple(index for at, index in enumerate(attrs.indices) if at != group)
        return dataclasses.replace(op, attrs=dataclasses.replace(attrs, indices=kept))

    def tensor(self, tensor: HostTensor) -> HostTensor:
        """Return a tensor whose rows are those of all groups, if programs access them."""
        if tensor.id not in self.places:
            return tensor
        group, row = self.places[tensor.id]
        shape = [self.groups * (self.span or 1) if at == row else n for at, n in enumerate(tensor.shape)]
        strides = [*tensor.strides]
        del shape[group], strides[group]
        return dataclasses.replace(tensor, shape=tuple(shape), strides=tuple(strides))
