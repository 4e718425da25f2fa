"""Triton functions that synchronize programs of several GPUs, under the names of the public API.

They use words in the *signal pad* of each GPU, which torch's symmetric memory allocates: a word is 0, or 1 while a
signal is on its way. ``hl.signal`` and ``hl.wait`` need no such round trips.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def symm_mem_sync(  # type: ignore[no-untyped-def]
    signal_pad_ptrs,
    block_id,
    rank: tl.constexpr,
    world_size: tl.constexpr,
    hasPreviousMemAccess: tl.constexpr = False,
    hasSubsequentMemAccess: tl.constexpr = False,
):
    """Wait until the program ``block_id`` of every GPU is here; None is the number of this program.

    ``hasPreviousMemAccess``: the other programs see all earlier accesses of this one. ``hasSubsequentMemAccess``: later
    accesses of this program see what theirs have written.
    """
    if block_id is None:
        program = (tl.program_id(2) * tl.num_programs(1) + tl.program_id(1)) * tl.num_programs(0) + tl.program_id(0)
    else:
        program = block_id
    if hasPreviousMemAccess:
        tl.debug_barrier()
    pads = signal_pad_ptrs.to(tl.pointer_type(tl.uint64))
    own = tl.load(pads + rank).to(tl.pointer_type(tl.int32)) + program * world_size
    for peer in tl.static_range(world_size):
        word = tl.load(pads + peer).to(tl.pointer_type(tl.int32)) + program * world_size + rank
        if hasPreviousMemAccess:
            while tl.atomic_cas(word, 0, 1, sem="release", scope="sys") != 0:
                pass
        else:
            while tl.atomic_cas(word, 0, 1, sem="relaxed", scope="sys") != 0:
                pass
    for peer in tl.static_range(world_size):
        if hasSubsequentMemAccess:
            while tl.atomic_cas(own + peer, 1, 0, sem="acquire", scope="sys") != 1:
                pass
        else:
            while tl.atomic_cas(own + peer, 1, 0, sem="relaxed", scope="sys") != 1:
                pass
    if hasSubsequentMemAccess:
        tl.debug_barrier()


@triton.jit
def triton_wait_signal(  # type: ignore[no-untyped-def]
    addr,
    expect: tl.constexpr,
    update: tl.constexpr,
    sem: tl.constexpr,
    scope: tl.constexpr,
    op: tl.constexpr,
    skip_sync: tl.constexpr,
    sync_before: tl.constexpr = False,
):
    """Wait until the 32-bit word at ``addr`` is ``expect``.

    ``op``: ``ld`` leaves the word, ``atomic_cas`` replaces it by ``update``. ``sem`` and ``scope`` are those of
    ``tl.atomic_cas``. ``skip_sync`` leaves out the barrier after the wait, ``sync_before`` adds one before it.
    """
    tl.static_assert(op == "ld" or op == "atomic_cas", "op of triton_wait_signal must be ld or atomic_cas")
    if sync_before:
        tl.debug_barrier()
    word = addr.to(tl.pointer_type(tl.int32))
    if op == "ld":
        while tl.atomic_add(word, 0, sem=sem, scope=scope) != expect:
            pass
    else:
        while tl.atomic_cas(word, expect, update, sem=sem, scope=scope) != expect:
            pass
    if not skip_sync:
        tl.debug_barrier()
