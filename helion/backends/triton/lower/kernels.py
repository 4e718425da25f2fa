"""The kernels of a plan as they are printed: one per phase, with all data that the printer needs."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ...._compiler.ir.grammar import Block, HostTensor, IotaAttrs, MemoryAttrs, Program, Root
from ...._support.records import dataclass
from ..plan.records import GridPlan, LaunchArguments, Plan, RangePlan


@dataclass(frozen=True, kw_only=True)
class KernelRoot:
    """One grid loop, the mapping of program ids to its tiles, and the options of the tile loop in persistent
    kernels.
    """

    root: Root
    grid: GridPlan
    range: RangePlan


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel. ``tensors`` and ``blocks`` are those of the whole program, by number.

    ``whole``: unchunked dimensions whose indices the kernel needs. ``indexed``: blocks in the indices of accesses, or whose elements
    are numbered.
    """

    name: str
    roots: tuple[KernelRoot, ...]
    launch: LaunchArguments
    tensors: tuple[HostTensor, ...]
    blocks: tuple[Block, ...]
    index_dtype: torch.dtype
    whole: tuple[Block, ...]
    indexed: frozenset[int]


def kernels_of(plan: Plan) -> list[Kernel]:
    """Return the kernels, by phase."""
    program = plan.program
    held = frozenset(_held(program))
    indexed = frozenset(_indexed(program))
    planned = list(zip(program.roots, plan.grids, plan.root_ranges, strict=True))
    found = []
    for phase, name in enumerate(plan.kernel_names):
        launch = plan.launch_of(phase)
        used = held & {block.id for block in launch.blocks}
        found.append(
            Kernel(
                name=name,
                roots=tuple(KernelRoot(root=r, grid=g, range=each) for r, g, each in planned if r.phase == phase),
                launch=launch,
                tensors=program.tensors,
                blocks=program.blocks,
                index_dtype=program.index_dtype,
                whole=tuple(
                    b for b in program.blocks if b.kind == "full" and b.id in used and not plan.blocks[b.id].looped
                ),
                indexed=indexed,
            )
        )
    return found


def _held(program: Program) -> Iterator[int]:
    """Yield the blocks that values have lanes along."""
    for op in program.walk():
        for value in op.results:
            for dim in value.dims:
                yield from dim.blocks


def _indexed(program: Program) -> Iterator[int]:
    for op in program.walk():
        if isinstance(op.attrs, MemoryAttrs):
            yield from (index.block for index in op.attrs.indices if index.block is not None)
        elif isinstance(op.attrs, IotaAttrs):
            yield op.attrs.block
