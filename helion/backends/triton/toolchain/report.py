"""Resources of a compiled kernel: registers, spills, shared memory, tensor memory."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...._support.lazy import lazy
from ...._support.locks import new_lock
from ....hardware import Target
from ...execution import Resources
from .offline import ptxas_architecture, ptxas_path

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

    from ..resources import predict
else:
    # the compiler, which a process that finds its kernels' code does not need
    predict = lazy("helion.backends.triton.resources.predict")


def measure(compiled: CompiledKernel, target: Target) -> Resources:
    """Return the resources of `compiled`, which was compiled for `target`.

    Exceeding a limit is a result, not an error. ``cuobjdump`` reads registers and stack from the binary (2-4 ms). Only
    if the stack is not empty, spills come from a second run of ``ptxas -v`` (30-150 ms). On AMD both come from the
    assembly. Results are cached by the binary's hash. Any number of threads may measure at once.

    Raises ``ValueError`` if there is no binary for `target` in `compiled`, ``subprocess.CalledProcessError`` if a tool
    of Triton's fails on it.
    """
    kind = compiled.metadata.target.backend
    if kind != target.kind or kind not in ("cuda", "hip"):
        raise ValueError(f"kernel {compiled.name!r} was compiled for {kind} and cannot be measured for {target}.")
    registers, spill_bytes = _usage(compiled, target)
    metadata = compiled.metadata
    threads = metadata.num_warps * target.warp_size
    shared_bytes = metadata.shared
    columns = getattr(metadata, "tmem_size", None) or 0
    demands = (
        ("bytes of shared memory per block", shared_bytes, target.smem_per_block_bytes),
        ("columns of tensor memory", columns, target.tensor_memory_columns),
        ("threads per block", threads, target.max_threads_per_block),
    )
    return Resources(
        registers=registers,
        registers_limit=_registers_limit(threads, target),
        spill_bytes=spill_bytes,
        shared_bytes=shared_bytes,
        limit_bytes=target.smem_per_block_bytes,
        tensor_memory_columns=columns,
        threads=threads,
        overflow=tuple(f"{need} {what}, {target} has {limit}" for what, need, limit in demands if need > limit),
        source="ptxas" if kind == "cuda" else "amdgcn",
    )


def checked_residents(found: Resources, programs: int, target: Target) -> Resources:
    """Return the resources of a kernel whose programs wait for each other, ``programs`` of them on each SM."""
    warps = found.threads // target.warp_size
    held = predict.occupancy_of(found.registers, found.shared_bytes, found.tensor_memory_columns, warps, target)
    if held >= programs:
        return found
    why = f"{programs} programs that wait for each other on each SM, {target} holds {held} of them"
    return replace(found, overflow=(*found.overflow, why))


def _registers_limit(threads: int, target: Target) -> int:
    per_thread = min(target.max_registers_per_thread + 1, target.registers_per_sm // threads)
    rounded = per_thread // target.register_granularity * target.register_granularity
    return min(rounded, target.max_registers_per_thread)


# (registers, spill bytes) by (sha256 of the binary, name of the target).
_cache: dict[tuple[str, str], tuple[int, int]] = {}
_cache_lock = new_lock()


def _usage(compiled: CompiledKernel, target: Target) -> tuple[int, int]:
    key = (hashlib.sha256(compiled.kernel).hexdigest(), target.name)
    with _cache_lock:
        known = _cache.get(key)
    if known is None:
        known = _cuda_usage(compiled, target) if target.kind == "cuda" else _hip_usage(compiled.asm["amdgcn"])
        with _cache_lock:
            _cache[key] = known
    return known


def _cuda_usage(compiled: CompiledKernel, target: Target) -> tuple[int, int]:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.kernel)
        cubin.flush()
        listing = _run(knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin.name).stdout
    # One line for each function of the binary; a kernel's own registers cover the functions that it calls.
    usage = re.findall(r"REG:(\d+) STACK:(\d+)", listing)
    if not usage:
        raise ValueError(f"cuobjdump reports no resource usage for kernel {compiled.name!r}; it says {listing!r}.")
    registers, stack = (max(int(line[i]) for line in usage) for i in range(2))
    return registers, _spill_bytes(compiled, target, registers, stack) if stack else 0


def _spill_bytes(compiled: CompiledKernel, target: Target, registers: int, stack: int) -> int:
    """Return spill stores and loads in bytes, from ``ptxas -v`` on the kernel's own PTX.

    Triton does not report the flags it passed to ptxas. The flags that its versions differ in are tried until the stack
    and the registers match those of the binary. A stack without spills, of local arrays, counts as none.
    """
    ptx = compiled.asm.get("ptx")
    if ptx is None:
        raise ValueError(
            f"kernel {compiled.name!r} has a stack but no PTX to measure its spills on; unset TRITON_STORE_BINARY_ONLY."
        )
    metadata = compiled.metadata
    flags = [f"--gpu-name={ptxas_architecture(target)}", "-lineinfo"]
    flags += [] if metadata.enable_fp_fusion else ["--fmad=false"]
    flags += (getattr(metadata, "ptx_options", None) or "").split()
    spills = 0
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as source:
        source.write(ptx)
        source.flush()
        for version_flags in (["--regAllocOptLevel=2"], []):
            log = _run(ptxas_path(target), "-v", *flags, *version_flags, source.name, "-o", os.devnull).stderr
            spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", log))
            frames = [int(n) for n in re.findall(r"(\d+) bytes stack frame", log)]
            used = [int(n) for n in re.findall(r"Used (\d+) registers", log)]
            if max(frames, default=0) == stack and max(used, default=0) == registers:
                break
    return spills


def _hip_usage(assembly: str) -> tuple[int, int]:
    def field(name: str) -> int:
        match = re.search(rf"\.{name}:\s*(\d+)", assembly)
        if match is None:
            raise ValueError(
                f"the AMD assembly has no .{name} line; this version of Triton's LLVM writes other metadata."
            )
        return int(match[1])

    return field("vgpr_count"), 4 * field("vgpr_spill_count")


def _run(*command: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True)
