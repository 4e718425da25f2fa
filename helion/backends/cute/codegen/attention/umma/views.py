"""Views of tensor memory that the warps of attention, and of its gradients, share."""

from __future__ import annotations

from ....roles.attention.grammar import ScoreProgram


def accumulators(name: str, mma: str, offset: str, columns: int, groups: int) -> str:
    """Return the accumulators of all groups, at an offset from the first column."""
    shape = f"cute.append({mma}.partition_shape_C((128, {columns})), {groups})"
    return f"{name} = cute.make_tensor(sums_pointer{offset}, {mma}.make_fragment_C({shape}).layout)"


def tile(name: str, place: str, columns: int) -> str:
    """Return the view of a group's columns of tensor memory, by lane and column."""
    return f"{name} = cute.make_tensor(sums_pointer + {place}, cute.make_layout((128, {columns}), stride=(65536, 1)))"


def copy_of(name: str, op: str, columns: int, tile: str) -> list[str]:
    """Return the copy of a number of columns between tensor memory and registers."""
    return [
        f"{name} = tcgen05.make_tmem_copy(",
        f"    cute.make_copy_atom(tcgen05.{op}(tcgen05.Repetition.x{columns}), cutlass.Float32), {tile}",
        ")",
    ]


def fences() -> list[list[str]]:
    """Print the fences between accesses of tensor memory and barriers of threads (PTX ISA, ``tcgen05.fence``)."""
    return [
        [f"def fence_{when}():", f'    cute.arch.inline_ptx("tcgen05.fence::{when}_thread_sync;")']
        for when in ("before", "after")
    ]


def allocator(program: ScoreProgram) -> tuple[str, ...]:
    """Return the lines of the kernel that make the allocator of tensor memory."""
    found = next(barrier for barrier in program.barriers if barrier.name == "tensor_memory")
    return (
        "tensor_memory = cutlass.memory.TmemAllocator(",
        "    tensor_memory_address,",
        f"    barrier_for_retrieve=pipeline.NamedBarrier(barrier_id={found.number}, num_threads={found.threads}),",
        "    allocator_warp_id=0,",
        ")",
    )
