"""``without_totals``: take the sums over all blocks of rows, of a grid loop of their own, from a program.

::

    for block in hl.tile(m, block_size=size):
        ...
        parts[block.id, :] = acc
    hl.barrier()
    for columns in hl.tile(n):
        total = hl.zeros([columns])                          total[:] = the sum of the lines of parts
        for lines in hl.tile(parts.size(0)):            →
            total += parts[lines, columns].sum(0)
        out[columns] = total

So do sums over all images of numbers of channels: ``parts[tile_b, tile_g, :].sum(0)``, in a loop over groups of channels.
"""

from __future__ import annotations

import torch

from ....._compiler.ir.grammar import ForAttrs, HostTensor, MemoryAttrs, Op, PointwiseAttrs, Program, Root
from ....._compiler.ir.operands import is_block
from ....._shapes import Expr, fixed_at
from ....._support.records import dataclass, replace
from ...plan.refusal import Refusal
from ..numbers import Number, equal, size
from ..product import check_axis
from .hidden import is_hidden
from .sums import SumReader


@dataclass(frozen=True, kw_only=True)
class Total:
    """The sums of the columns of tensor ``parts``, by its number, that ``store`` writes, rounded to its type.

    A line of ``parts`` has the numbers of channels of so many ``rows``, or the sums of a block if these are 0.
    """

    parts: int
    store: Op
    rows: int = 0


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The totals of a program, and the blocks of the loops that compute them."""

    totals: tuple[Total, ...] = ()
    blocks: tuple[int, ...] = ()
    hidden: bool = False
    """True if nothing else reads what is added up."""


def without_totals(program: Program) -> tuple[Program, Totals]:
    """Return the program of the first of two grid loops, and the totals of the second one. Raises ``Refusal`` for other
    second loops."""
    if len(program.roots) == 1:
        return program, Totals()
    if len(program.roots) > 2 or len({root.launch for root in program.roots}) > 1:
        raise Refusal("row kernels over one grid of tiles of rows, and one that adds up their sums, are implemented")
    first, second = program.roots
    found = (_Channels if _loads_channels(second) else _Reader)(program, second).totals()
    blocks = tuple(block for block in program.blocks if block.id not in found.blocks)
    if [block.id for block in blocks] != [*range(len(blocks))]:
        raise Refusal("the loops that add up sums have blocks of their own, after those of the rows")
    return replace(program, roots=(first,), blocks=blocks), found


def _is_count(program: Program, lines: object) -> bool:
    """Return whether a number of lines is the number of tiles of the first grid loop: that of rows, divided and rounded up."""
    block = program.blocks[program.roots[0].axes[0].block]
    if isinstance(block.size, int):
        return isinstance(block.extent, int | Expr) and equal(lines, -(-size(block.extent) // block.size))
    if not isinstance(lines, Expr) or lines.op != "neg" or not isinstance(quotient := lines.args[0], Expr):
        return False
    divisor = quotient.args[-1] if quotient.op == "floordiv" else None
    of_block = isinstance(divisor, Expr) and (divisor.op, divisor.args) == ("block", (block.id,))
    return of_block and block.extent is not None and equal(quotient.args[0], -block.extent)


class _Reader(SumReader):
    """The reader of a grid loop over columns, with a loop over the lines of what it adds up."""

    def __init__(self, program: Program, root: Root) -> None:
        loops = [op for op in root.body.ops if op.kind == "for"]
        if len(loops) != 1 or len(root.axes) != 1 or len(loops[0].attributes(ForAttrs).axes) != 1:
            raise Refusal("a second grid loop that adds up sums over rows has one loop over their lines")
        super().__init__(program, root, loops[0])
        check_axis(root.axes[0], program)
        check_axis(self.axis, program)

    def totals(self) -> Totals:
        """Return the totals. Raises ``Refusal`` for other work."""
        stores = [op for op in self.root.body.ops if op.kind == "store"]
        known = ("full", "for", "store", "view", "pointwise")
        others = [op.kind for op in self.root.body.ops if op.kind not in known]
        others += [op.kind for op in self.region.ops if op.kind not in ("load", "reduce", "mask", "pointwise", "view")]
        if others:
            raise Refusal(f"{others[0]} in a loop that adds up sums over rows is not implemented")
        totals = tuple(self._total(store) for store in stores)
        loads = [op for op in self.region.ops if op.kind == "load"]
        if len(totals) != len(self.region.params) or len(loads) != len(totals):
            raise Refusal("a loop that adds up sums over rows stores each of them once")
        return Totals(
            totals=totals,
            blocks=(self.root.axes[0].block, self.axis.block),
            hidden=all(is_hidden(self.program, self.program.tensors[total.parts]) for total in totals),
        )

    def _total(self, store: Op) -> Total:
        """Return the total that ``store`` writes."""
        tensor, columns = self.program.tensors[store.attributes(MemoryAttrs).tensor], self.root.axes[0].block
        self._check_access(store, (columns,))
        load = self._loaded(store, tensor)
        self._check_access(load, (self.axis.block, columns))
        parts = self.program.tensors[load.attributes(MemoryAttrs).tensor]
        if not equal(tensor.shape[0], parts.shape[1]) or not equal(tensor.strides[0], 1):
            raise Refusal(f"{tensor.name} is no contiguous vector with an element for each column of {parts.name}")
        if not _is_count(self.program, parts.shape[0]):
            raise Refusal(f"{parts.name} has not one line for each block of rows, so that its sum has others as well")
        return Total(parts=parts.id, store=store)

    def _loaded(self, store: Op, tensor: HostTensor) -> Op:
        """Return the load of the lines whose sum ``store`` writes."""
        (value,) = store.operands
        made = self._made(value)
        if made is not None and made.attrs == PointwiseAttrs("cast") and made.result.dtype == tensor.dtype:
            value = made.operands[0]
        if any(result.dtype != torch.float32 for result in self.loop.results):
            raise Refusal(f"{tensor.name} is a sum that is not added up in float32")
        term = self._summed(value, tensor.name)
        made = self._made(term)
        if made is not None and made.kind == "mask":
            made = self._made(made.operands[0])
        if made is None or made.kind != "load":
            raise Refusal(f"{tensor.name} is no sum of what another loop has stored")
        return made

    def _check_access(self, op: Op, blocks: tuple[int, ...]) -> None:
        """Check that an access is of whole tiles of ``blocks`` from the beginning, which cover its tensor."""
        attrs = op.attributes(MemoryAttrs)
        tensor, axes = self.program.tensors[attrs.tensor], (self.root.axes[0], self.axis)
        if (
            attrs.mask is not None
            or not all(map(is_block, attrs.indices))
            or tuple(index.block for index in attrs.indices) != blocks
        ):
            raise Refusal(f"{tensor.name} is not read or written in whole tiles of a loop that adds up sums over rows")
        ends = {axis.block: axis.end for axis in axes}
        covered = (equal(size(ends[block]), extent) for block, extent in zip(blocks, tensor.shape, strict=True))
        if not all(fixed_at(axis.begin, 0) for axis in axes) or not all(covered):
            raise Refusal(f"a loop that adds up sums over rows does not cover {tensor.name}")


class _Channels(_Reader):
    """The reader of a grid loop over groups of channels, with a loop over images."""

    def _total(self, store: Op) -> Total:
        tensor, groups = self.program.tensors[store.attributes(MemoryAttrs).tensor], self.root.axes[0].block
        load = self._loaded(store, tensor)
        parts = self.program.tensors[load.attributes(MemoryAttrs).tensor]
        self._check_channels(load, parts, (self.axis.block, groups))
        self._check_channels(store, tensor, (groups,))
        rows = parts.shape[1]
        if not isinstance(rows, int) or not all(map(equal, tensor.shape, parts.shape[1:])):
            raise Refusal(f"{tensor.name} is {tuple(tensor.shape)}, of sums over images of {tuple(parts.shape)}")
        return Total(parts=parts.id, store=store, rows=rows)

    def _check_channels(self, op: Op, tensor: HostTensor, walked: tuple[int, ...]) -> None:
        """Check that an access is of whole tiles of ``walked``, and of all channels, of a contiguous tensor."""
        attrs = op.attributes(MemoryAttrs)
        *blocks, last = (index.block for index in attrs.indices)
        plain = all((index.kind, index.shift, index.operand) == ("block", 0, None) for index in attrs.indices)
        channels = self.program.blocks[last] if last is not None else None
        whole = channels is not None and channels.kind == "full" and channels.extent == tensor.shape[-1]
        if attrs.mask is not None or not plain or not whole or (*blocks,) != walked:
            raise Refusal(
                f"{tensor.name} is not read or written in whole tiles of a loop that adds up sums over images"
            )
        axes = (self.root.axes[0], self.axis)
        ends = {axis.block: axis.end for axis in axes}
        covered = all(equal(size(ends[block]), extent) for block, extent in zip(walked, tensor.shape, strict=False))
        steps: list[Number] = [1]
        for extent in tensor.shape[:0:-1]:
            steps.insert(0, steps[0] * extent)
        if {axis.begin for axis in axes} != {0} or not covered or not all(map(equal, tensor.strides, steps)):
            raise Refusal(f"a loop that adds up sums over images does not cover {tensor.name}, or it has gaps")


def _loads_channels(root: Root) -> bool:
    """Return whether a grid loop loads numbers of channels: of images, groups of channels, and channels of a group."""
    loads = [op for op in root.body.walk() if op.kind == "load"]
    return bool(loads) and all(len(op.attributes(MemoryAttrs).indices) == 3 for op in loads)
