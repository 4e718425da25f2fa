"""Code of warps that copy operands by cp.async: granules of 4 to 16 bytes, zeros past the end of K."""

from __future__ import annotations

from ..plan.copied import CHUNK_BYTES, Copied
from ..plan.counts import GranuleWalk, granule_walk
from ..plan.records import SWIZZLE_BYTES, WARP_THREADS, GemmPlan
from ..roles import grammar as g

ROW_BITS = SWIZZLE_BYTES - CHUNK_BYTES
"""The bits of an address to which 128-byte swizzling adds the number of the line."""


def _places(plan: GemmPlan, copied: Copied, walk: GranuleWalk) -> tuple[str, str]:
    """Return the first line in the tile of walk number ``walk``, and its index along K."""
    size = plan.operand_bytes
    if copied.lines_are_contiguous:
        chunk = f"copy_thread // {WARP_THREADS} + walk * {walk.threads // WARP_THREADS}"
        elements = CHUNK_BYTES // size
        return f"copy_thread % {walk.step}", f"({chunk}) * {elements} + copy_thread % {WARP_THREADS} // {walk.step}"
    line = f"copy_thread // {walk.granules} * {walk.walks} + walk"
    return line, f"copy_thread % {walk.granules} * {copied.granule // size}"


def set_up(copied: Copied, shared: str) -> list[str]:
    """Define the address of the operand's first stage: without the swizzle, which copies add to their addresses."""
    address = f"cute.recast_ptr({shared}.iterator, dtype=cutlass.Uint8).toint().to(cutlass.Int32)"
    return [f"{copied.operand}_stages = {address}"]


def start(plan: GemmPlan, copied: Copied, source: str, layout: str, place: str, first_line: str) -> list[str]:
    """Return the code that starts the copies of a K tile.

    ``source`` is the tensor in global memory, ``layout`` that of the stages, and ``place`` the coordinate there of
    ``copy_line`` and ``copy_k``. Each walk of a thread goes to every ``step``-th line, which is at the same place in the
    pattern of the swizzle. Lines past the end of the operand are not read.
    """
    size, granule, walk = plan.operand_bytes, copied.granule, granule_walk(plan, copied)
    extent, k = (plan.problem.m if copied.operand == "a" else plan.problem.n), plan.problem.k
    line, along_k = _places(plan, copied, walk)
    batch = ", batch" if plan.problem.batch_pitch(copied.operand) else ""
    left = f"cutlass.Int32({granule})"
    if k % plan.tile[2]:
        left = f"cutlass.max(cutlass.min(({k} - k_tile * {plan.tile[2]} - copy_k) * {size}, {granule}), 0)"
    read = "bytes_left"
    if extent % walk.lines:
        read = f"cutlass.Int32(cutlass.select_(i * {walk.step} < lines_left, bytes_left, cutlass.Int32(0)))"
    pitch = copied.sources[0].pitch * walk.step * size
    text = f"cp.async.{'cg' if granule == 16 else 'ca'}.shared.global [{{$r0}}], [{{$r1}}], {granule}"
    return [
        f"for walk in cutlass.range_constexpr({walk.walks}):",
        f"    copy_line = {line}",
        f"    copy_k = {along_k}",
        f"    to_first = {copied.operand}_stages + cute.crd2idx(({place}), {layout}) * {size}",
        f"    to_first = to_first ^ ((to_first >> 3) & {ROW_BITS})",
        f"    from_first = {source}.iterator + cute.crd2idx(({first_line} + copy_line, k_tile * {plan.tile[2]} + copy_k"
        f"{batch}), {source}.layout)",
        f"    bytes_left = {left}",
        f"    lines_left = {extent} - {first_line} - copy_line",
        f"    for i in cutlass.range_constexpr({walk.lines // walk.step}):",
        "        cute.arch.inline_ptx(",
        f'            "{text}, {{$r2}};",',
        f"            read_only_args=[to_first + i * {walk.step * SWIZZLE_BYTES}, from_first.toint() + i * {pitch}, {read}],",
        "        )",
    ]


def arrive(step: g.ArriveAfterCopies) -> list[str]:
    """Return the code by which each thread arrives after all copies that it has started."""
    barrier = f"ab.producer_get_barrier({step.cursor}).toint().to(cutlass.Int32)"
    return [
        "cute.arch.inline_ptx(",
        '    "cp.async.mbarrier.arrive.noinc.shared.b64 [{$r0}];",',
        f"    read_only_args=[{barrier}],",
        ")",
    ]
