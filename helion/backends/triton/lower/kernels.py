"""The kernels of a plan as they are printed: one per phase, with all data that the printer needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from ...._compiler.ir.grammar import Block, HostTensor, IotaAttrs, LoopAxis, MemoryAttrs, Program, Root
from ...._support.records import dataclass
from ..plan.merged_runs import inner_run
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
    are numbered. ``runs``: outermost of the dimensions of a flattened grid that are one run of an access.
    """

    name: str
    roots: tuple[KernelRoot, ...]
    launch: LaunchArguments
    tensors: tuple[HostTensor, ...]
    blocks: tuple[Block, ...]
    index_dtype: torch.dtype
    whole: tuple[Block, ...]
    indexed: frozenset[int]
    runs: frozenset[int]


def kernels_of(plan: Plan) -> list[Kernel]:
    """Return the kernels, by phase."""
    program = plan.program
    held = frozenset(_held(program))
    inner = dict(_inner_runs(program))
    indexed = frozenset(_indexed(program, inner))
    runs = frozenset(axes[0].block for axes in inner.values())
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
                runs=runs,
            )
        )
    return found


def _held(program: Program) -> Iterator[int]:
    """Yield the blocks that values have lanes along."""
    for op in program.walk():
        for value in op.results:
            for dim in value.dims:
                yield from dim.blocks


def _indexed(program: Program, inner: Mapping[int, tuple[LoopAxis, ...]]) -> Iterator[int]:
    """Yield the blocks of which accesses need the index of a lane. ``inner`` are the runs of accesses, by their number."""
    for op in program.walk():
        if isinstance(op.attrs, MemoryAttrs):
            within = {axis.block for axis in inner.get(op.number, ())}
            yield from (b for index in op.attrs.indices if (b := index.block) is not None and b not in within)
        elif isinstance(op.attrs, IotaAttrs):
            yield op.attrs.block


def _inner_runs(program: Program) -> Iterator[tuple[int, tuple[LoopAxis, ...]]]:
    """Yield the accesses by number with the dimensions of a flattened grid that are one run of them."""
    for merged in [axis.merged for root in program.roots for axis in root.axes if axis.merged]:
        for op in program.walk():
            if isinstance(op.attrs, MemoryAttrs):
                taken, _ = inner_run(op.attrs, program.tensors, merged)
                if taken:
                    yield op.number, merged[-taken:]
