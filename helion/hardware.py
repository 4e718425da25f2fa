"""GPUs as data: one ``Target`` per GPU, and the only module with device numbers.

Sources: the vendors' data sheets, the CUDA programming guide's table of compute capabilities, and AMD's CDNA ISA and
tuning guides. Rates are dense, without sparsity, with fp32 accumulation if the sheet distinguishes it. On a live
device, ``from_device_properties`` prefers the driver's values.
"""

from __future__ import annotations

import dataclasses
import functools
import re

from . import exc

FEATURES = frozenset(
    {
        "cp_async",
        "tensor_descriptor",
        "wgmma",
        "tcgen05",
        "warp_specialize",
        "fp8",
        "clusters",
        "mfma",
        "scaled_mma",
        "lds_copy",
        "packed_k",
        "matrix_store",
    }
)
"""Every name that ``Target.features`` may contain."""
DESCRIPTOR_RANKS = range(2, 6)
"""Ranks of the tensors that a tensor descriptor describes; CUDA's tensor maps support up to 5 dimensions."""

# Numbers of the architecture that no row of the table changes. No other module defines one of these names.
#: Bytes of the widest load or store of one thread.
VECTOR_BYTES = 16
REGISTER_BYTES = 4
#: Threads of a warp of CUDA.
WARP_THREADS = 32
#: Rows of an accumulator that one warp of a matrix unit holds.
WARP_ROWS = 16
#: Warps of a warpgroup, which share a wgmma or tcgen05 instruction.
GROUP_WARPS = 4
#: Alignment of the base and of every pitch in a TMA descriptor (CUDA driver API, ``cuTensorMapEncodeTiled``).
TMA_ALIGNMENT_BYTES = 16
#: Shared memory of an SM that a CUDA driver reserves for each resident block (CUDA programming guide).
RESERVED_SHARED_BYTES = 1024


class UnknownTargetName(exc.UnknownTarget, ValueError):
    """Error for a name of no GPU in the table, nor of a later relative of one."""


#: Microseconds from a load to its data while memory is busy, rounded up, for all GPUs of the table.
MEMORY_LATENCY_US = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """The connection to another GPU of the host, in each direction (measurement ``nvlink4``)."""

    name: str
    stores_gb_per_s: float
    """Bandwidth of stores, of ``full_programs`` programs of 256 threads or more."""
    full_programs: int
    copies_gb_per_s: float
    """Bandwidth of the copy engine."""
    trip_us: float
    """Microseconds from a signal of one program to its wait in another GPU's."""


#: Measured on two H100s of a host. H200 has the same links.
NVLINK4 = Link(name="NVLink 4", stores_gb_per_s=360.0, full_programs=96, copies_gb_per_s=381.0, trip_us=2.3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """One GPU. Immutable and hashable. "SM" also means AMD's compute unit and Intel's Xe core.

    Registers are 32-bit registers per thread (per lane on AMD and Intel). Rates are in 10**12 operations per second,
    bandwidth in 10**9 bytes per second; other units are in the names.
    """

    name: str
    """Architecture, such as ``sm_90`` or ``gfx942``; several devices may share it."""
    device: str
    """Device that the numbers belong to, such as ``H100 SXM``."""
    kind: str
    """``cuda``, ``hip`` or ``xpu``."""
    capability: int
    """CUDA compute capability, 10 * major + minor; 0 elsewhere."""
    arch: int | str
    """What Triton's ``GPUTarget`` calls ``arch``: the capability on CUDA, the architecture's name elsewhere."""
    warp_size: int
    num_sms: int
    registers_per_sm: int
    max_registers_per_thread: int
    register_granularity: int
    """Registers per thread are rounded up to a multiple of this."""
    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    """The most that one block can opt in to. CUDA adds 1024 bytes of its own to every resident block."""
    tensor_memory_bytes_per_sm: int
    tensor_memory_columns: int
    """Columns of 128 lanes x 4 bytes; 0 without tensor memory."""
    max_warps_per_sm: int
    max_blocks_per_sm: int
    max_threads_per_block: int
    l2_bytes: int
    """Cache that one SM accesses: on AMD that of one XCD, without the last-level cache."""
    bandwidth_gb_per_s: float
    fp32_tflops: float
    """Fused multiply-adds outside of the matrix units, counted as two operations."""
    matrix_tflops: tuple[tuple[str, float], ...]
    """Dense matrix rates by dtype name (torch's names, and ``tf32`` for fp32 operands rounded to TF32)."""
    features: frozenset[str]
    min_dot_mn: tuple[int, int]
    """Smallest M and N of a dot; see ``min_dot``."""
    max_grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    """Largest grid in x, y, z (CUDA programming guide; AMD and Intel are kept to the same)."""
    fp8_partial_sum: int = 0
    """Products of 8-bit floats along K that the asynchronous matrix unit adds up before their sum is added to an fp32
    accumulator outside of it; 0 where it adds in fp32 itself. Within the unit of Hopper sums keep about 14 bits: over a
    K of 8192 some 5 % are lost. 128 is what CUTLASS promotes by, four of the unit's instructions."""
    link: Link | None = None
    """None where it was not measured."""
    max_tensor_numel: int = 2**20
    """Elements that one tile may have (``triton.language.core.TRITON_MAX_TENSOR_NUMEL``)."""

    def __str__(self) -> str:
        return f"{self.name} ({self.device})"

    @property
    def in_flight_bytes(self) -> float:
        """Bytes that each SM keeps in flight at the full bandwidth of memory: latency times bandwidth per SM."""
        return MEMORY_LATENCY_US * 1e3 * self.bandwidth_gb_per_s / self.num_sms

    def has(self, feature: str) -> bool:
        """Return whether the GPU has `feature`, one of ``FEATURES``; ``ValueError`` for any other name."""
        if feature not in FEATURES:
            raise ValueError(f"{feature!r} is no feature of a GPU; the features are {', '.join(sorted(FEATURES))}")
        return feature in self.features

    def min_dot(self, itemsize: int) -> tuple[int, int, int]:
        """Return the smallest (M, N, K) of a matmul on matrix units, for operands of `itemsize` bytes.

        CUDA: Triton pads M and N, and requires K >= 16, or 32 for 8-bit operands. AMD: the MFMA shapes 16x16x16 and
        16x16x32; smaller matmuls are legal there and run outside of the matrix units. Intel: the DPAS shapes 8x16x16
        and 8x16x32.
        """
        m, n = self.min_dot_mn
        return m, n, 32 if itemsize == 1 else 16

    def matrix_tflops_for(self, dtype_name: str) -> float:
        """Return the dense rate of a matmul of `dtype_name` operands (``bfloat16``, ``float8_e4m3fn``, ``tf32`` ...).

        A float of 8 or 4 bits that the matrix units lack is widened to 16 bits first, so it runs at that rate; any
        other type they lack runs outside of them, at ``fp32_tflops``.
        """
        rates = dict(self.matrix_tflops)
        if dtype_name in rates:
            return rates[dtype_name]
        return rates["float16"] if dtype_name.startswith(("float8", "float4")) else self.fp32_tflops


_MIB = 2**20


def _rates(
    *,
    half: float,
    int8: float,
    fp64: float,
    tf32: float | None = None,
    fp8: float | None = None,
    fp8_names: tuple[str, ...] = ("float8_e4m3fn", "float8_e5m2"),
    fp4: float | None = None,
) -> tuple[tuple[str, float], ...]:
    """Make ``Target.matrix_tflops`` from a data sheet's lines; None if the matrix units lack the type."""
    rates: dict[str, float] = {"float16": half, "bfloat16": half, "int8": int8, "float64": fp64}
    if tf32 is not None:
        rates["tf32"] = tf32
    if fp8 is not None:
        rates.update(dict.fromkeys(fp8_names, fp8))
    if fp4 is not None:
        rates["float4_e2m1fn_x2"] = fp4
    return tuple(sorted(rates.items()))


def _cuda(
    capability: int,
    device: str,
    *,
    num_sms: int,
    smem_per_sm_bytes: int,
    max_warps_per_sm: int,
    max_blocks_per_sm: int,
    l2_mib: int,
    bandwidth_gb_per_s: float,
    fp32_tflops: float,
    matrix_tflops: tuple[tuple[str, float], ...],
    features: frozenset[str],
) -> Target:
    """Make a CUDA row, with the limits that all compute capabilities from 8.0 to 12.1 share."""
    tensor_memory_columns = 512 if "tcgen05" in features else 0
    return Target(
        name=f"sm_{capability}",
        device=device,
        kind="cuda",
        capability=capability,
        arch=capability,
        warp_size=32,
        num_sms=num_sms,
        registers_per_sm=65536,
        max_registers_per_thread=255,
        register_granularity=8,
        smem_per_sm_bytes=smem_per_sm_bytes,
        smem_per_block_bytes=smem_per_sm_bytes - 1024,
        tensor_memory_bytes_per_sm=128 * 4 * tensor_memory_columns,
        tensor_memory_columns=tensor_memory_columns,
        max_warps_per_sm=max_warps_per_sm,
        max_blocks_per_sm=max_blocks_per_sm,
        max_threads_per_block=1024,
        l2_bytes=l2_mib * _MIB,
        bandwidth_gb_per_s=bandwidth_gb_per_s,
        fp32_tflops=fp32_tflops,
        matrix_tflops=matrix_tflops,
        features=features,
        min_dot_mn=(1, 1),
        fp8_partial_sum=128 if "wgmma" in features else 0,
        link=NVLINK4 if capability == 90 else None,
    )


def _cdna(
    name: str,
    device: str,
    *,
    num_sms: int,
    smem_per_sm_bytes: int,
    bandwidth_gb_per_s: float,
    fp32_tflops: float,
    matrix_tflops: tuple[tuple[str, float], ...],
    features: frozenset[str] = frozenset({"fp8", "mfma", "packed_k"}),
) -> Target:
    """Make a CDNA 3 or 4 row: per compute unit 4 SIMDs x 512 registers x 64 lanes, and 8 waves per SIMD."""
    return Target(
        name=name,
        device=device,
        kind="hip",
        capability=0,
        arch=name,
        warp_size=64,
        num_sms=num_sms,
        registers_per_sm=4 * 512 * 64,
        max_registers_per_thread=512,
        register_granularity=8,
        smem_per_sm_bytes=smem_per_sm_bytes,
        smem_per_block_bytes=smem_per_sm_bytes,
        tensor_memory_bytes_per_sm=0,
        tensor_memory_columns=0,
        max_warps_per_sm=32,
        max_blocks_per_sm=32,
        max_threads_per_block=1024,
        l2_bytes=4 * _MIB,
        bandwidth_gb_per_s=bandwidth_gb_per_s,
        fp32_tflops=fp32_tflops,
        matrix_tflops=matrix_tflops,
        features=features,
        min_dot_mn=(16, 16),
    )


_AMPERE = frozenset({"cp_async"})
_ADA = frozenset({"cp_async", "fp8"})
_HOPPER = frozenset({"cp_async", "fp8", "tensor_descriptor", "clusters", "wgmma", "matrix_store"})
_BLACKWELL = _HOPPER - {"wgmma"} | {"tcgen05", "warp_specialize", "scaled_mma"}
_BLACKWELL_CONSUMER = _BLACKWELL - {"tcgen05"}

# The names that select a row, then the row. The name of an architecture selects its first row.
_ROWS: tuple[tuple[tuple[str, ...], Target], ...] = (
    (
        ("sm_80", "a100"),
        _cuda(
            80,
            "A100 SXM 80 GB",
            num_sms=108,
            smem_per_sm_bytes=167936,
            max_warps_per_sm=64,
            max_blocks_per_sm=32,
            l2_mib=40,
            bandwidth_gb_per_s=2039,
            fp32_tflops=19.5,
            matrix_tflops=_rates(half=312, tf32=156, int8=624, fp64=19.5),
            features=_AMPERE,
        ),
    ),
    (
        ("sm_86", "a10"),
        _cuda(
            86,
            "A10",
            num_sms=72,
            smem_per_sm_bytes=102400,
            max_warps_per_sm=48,
            max_blocks_per_sm=16,
            l2_mib=6,
            bandwidth_gb_per_s=600,
            fp32_tflops=31.2,
            matrix_tflops=_rates(half=125, tf32=62.5, int8=250, fp64=0.49),
            features=_AMPERE,
        ),
    ),
    (
        ("rtx3090",),
        _cuda(
            86,
            "RTX 3090",
            num_sms=82,
            smem_per_sm_bytes=102400,
            max_warps_per_sm=48,
            max_blocks_per_sm=16,
            l2_mib=6,
            bandwidth_gb_per_s=936,
            fp32_tflops=35.6,
            matrix_tflops=_rates(half=71, tf32=35.6, int8=284, fp64=0.56),
            features=_AMPERE,
        ),
    ),
    (
        ("sm_89", "l40s", "l40"),
        _cuda(
            89,
            "L40S",
            num_sms=142,
            smem_per_sm_bytes=102400,
            max_warps_per_sm=48,
            max_blocks_per_sm=24,
            l2_mib=96,
            bandwidth_gb_per_s=864,
            fp32_tflops=91.6,
            matrix_tflops=_rates(half=362, tf32=183, fp8=733, int8=733, fp64=1.4),
            features=_ADA,
        ),
    ),
    (
        ("rtx4090",),
        _cuda(
            89,
            "RTX 4090",
            num_sms=128,
            smem_per_sm_bytes=102400,
            max_warps_per_sm=48,
            max_blocks_per_sm=24,
            l2_mib=72,
            bandwidth_gb_per_s=1008,
            fp32_tflops=82.6,
            matrix_tflops=_rates(half=165, tf32=82.6, fp8=330, int8=661, fp64=1.3),
            features=_ADA,
        ),
    ),
    (
        ("sm_90", "h100"),
        _cuda(
            90,
            "H100 SXM",
            num_sms=132,
            smem_per_sm_bytes=233472,
            max_warps_per_sm=64,
            max_blocks_per_sm=32,
            l2_mib=50,
            bandwidth_gb_per_s=3350,
            fp32_tflops=67,
            matrix_tflops=_rates(half=989, tf32=495, fp8=1979, int8=1979, fp64=67),
            features=_HOPPER,
        ),
    ),
    (
        ("h200",),
        _cuda(
            90,
            "H200",
            num_sms=132,
            smem_per_sm_bytes=233472,
            max_warps_per_sm=64,
            max_blocks_per_sm=32,
            l2_mib=60,
            bandwidth_gb_per_s=4800,
            fp32_tflops=67,
            matrix_tflops=_rates(half=989, tf32=495, fp8=1979, int8=1979, fp64=67),
            features=_HOPPER,
        ),
    ),
    (
        ("sm_100", "b200"),
        _cuda(
            100,
            "B200",
            num_sms=148,
            smem_per_sm_bytes=233472,
            max_warps_per_sm=64,
            max_blocks_per_sm=32,
            l2_mib=126,
            bandwidth_gb_per_s=8000,
            fp32_tflops=80,
            matrix_tflops=_rates(half=2250, tf32=1100, fp8=4500, fp4=9000, int8=4500, fp64=37),
            features=_BLACKWELL,
        ),
    ),
    (
        ("sm_103", "b300"),
        _cuda(
            103,
            "B300",
            num_sms=148,
            smem_per_sm_bytes=233472,
            max_warps_per_sm=64,
            max_blocks_per_sm=32,
            l2_mib=126,
            bandwidth_gb_per_s=8000,
            fp32_tflops=80,
            matrix_tflops=_rates(half=2250, tf32=1100, fp8=4500, fp4=13500, int8=165, fp64=1.25),
            features=_BLACKWELL,
        ),
    ),
    (
        ("sm_120", "rtx5090"),
        _cuda(
            120,
            "RTX 5090",
            num_sms=170,
            smem_per_sm_bytes=102400,
            max_warps_per_sm=48,
            max_blocks_per_sm=24,
            l2_mib=96,
            bandwidth_gb_per_s=1792,
            fp32_tflops=105,
            matrix_tflops=_rates(half=210, tf32=105, fp8=419, fp4=1676, int8=838, fp64=1.6),
            features=_BLACKWELL_CONSUMER,
        ),
    ),
    (
        ("gfx942", "mi300x"),
        _cdna(
            "gfx942",
            "MI300X",
            num_sms=304,
            smem_per_sm_bytes=65536,
            bandwidth_gb_per_s=5300,
            fp32_tflops=163,
            # Its matrix units read the FNUZ encodings of fp8, not the OCP ones.
            matrix_tflops=_rates(
                half=1307, tf32=654, fp8=2615, fp8_names=("float8_e4m3fnuz", "float8_e5m2fnuz"), int8=2615, fp64=163
            ),
        ),
    ),
    (
        ("gfx950", "mi355x"),
        _cdna(
            "gfx950",
            "MI355X",
            num_sms=256,
            smem_per_sm_bytes=163840,
            bandwidth_gb_per_s=8000,
            fp32_tflops=157,
            matrix_tflops=_rates(half=2500, fp8=5000, fp4=10000, int8=5000, fp64=78.6),
            # copies of up to 16 bytes a lane from memory to shared memory
            features=frozenset({"fp8", "mfma", "lds_copy"}),
        ),
    ),
    (
        ("xpu", "pvc", "max1550"),
        # Xe cores of both stacks: 8 vector engines x 8 threads x 128 GRFs of 64 bytes each. A thread may take 256 GRFs,
        # which are 256 registers per lane at 16 lanes.
        Target(
            name="xpu",
            device="Data Center GPU Max 1550",
            kind="xpu",
            capability=0,
            arch="pvc",
            warp_size=16,
            num_sms=128,
            registers_per_sm=8 * 8 * 128 * 16,
            max_registers_per_thread=256,
            register_granularity=128,
            smem_per_sm_bytes=131072,
            smem_per_block_bytes=131072,
            tensor_memory_bytes_per_sm=0,
            tensor_memory_columns=0,
            max_warps_per_sm=64,
            max_blocks_per_sm=64,
            max_threads_per_block=1024,
            l2_bytes=408 * _MIB,
            bandwidth_gb_per_s=3277,
            fp32_tflops=52,
            matrix_tflops=_rates(half=832, tf32=419, int8=1664, fp64=52),
            features=frozenset(),
            min_dot_mn=(8, 16),
        ),
    ),
)


def _squeeze(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


_BY_NAME: dict[str, Target] = {_squeeze(name): row for names, row in _ROWS for name in names}


def known_targets() -> tuple[str, ...]:
    """List one name for each row of the table, in its order, each accepted by ``target``."""
    return tuple(names[0] for names, _ in _ROWS)


def _age(name: str) -> tuple[str, int] | None:
    """Parse a well-formed architecture name without punctuation into (family, age); None for anything else.

    A later member of a family runs what an earlier one does: ``sm_*`` is one family, ``gfx9*`` another, and so on.
    """
    if match := re.fullmatch(r"sm(\d{2,3})", name):
        return "sm", int(match[1])
    if match := re.fullmatch(r"gfx(\d{1,2})([0-9a-f]{2})", name):
        return f"gfx{match[1]}", int(match[2], 16)
    return None


@functools.lru_cache(maxsize=256)
def _lookup(name: str) -> Target:
    plain = _squeeze(name.split(":")[0])
    plain = re.sub(r"^(sm\d{2,3})[af]$", r"\1", plain)  # sm_90a and sm_100f name code for sm_90 and sm_100 alone
    if plain in _BY_NAME:
        return _BY_NAME[plain]
    age = _age(plain)
    if age is not None:
        older = [(a, row) for _, row in _ROWS if (a := _age(_squeeze(row.name))) and a[0] == age[0] and a < age]
        if older:
            relative = max(older, key=lambda pair: pair[0])[1]
            return _renamed(relative, plain, age[1])
    known = ", ".join(name for names, _ in _ROWS for name in names)
    reason = "has no older relative in the table" if age is not None else "names no GPU"
    raise UnknownTargetName(f"{name!r} {reason}; use one of {known}, or a later member of one of these families.")


def _renamed(relative: Target, plain: str, age: int) -> Target:
    if relative.kind == "cuda":
        name = f"sm_{age}"
        return dataclasses.replace(relative, name=name, device=f"as {relative.device}", capability=age, arch=age)
    return dataclasses.replace(relative, name=plain, device=f"as {relative.device}", arch=plain)


#: Target of kernels on tensors that are not on a GPU, unless ``HELION_TARGET`` is set.
DEFAULT_TARGET = "sm_90"


def target(name: str | Target) -> Target:
    """Look up a GPU by name; a ``Target`` is returned as it is. Needs no GPU.

    `name` is an architecture (``sm_90``, ``sm90``, ``sm_90a``, ``gfx942:sramecc+:xnack-``, ``xpu``) or a device
    (``h100``, ``h200``, ``mi300x`` ...). Case and punctuation do not matter. An architecture gives its most common
    device. An unknown architecture that is later than a known one (``sm_121``) gets the numbers of its nearest older
    relative, under its own name.

    Raises:
        exc.UnknownTarget: the name is none of these; it is a ``ValueError`` too.
    """
    if isinstance(name, Target):
        return name
    if not isinstance(name, str):
        raise UnknownTargetName(f"a target is a name such as 'sm_90' or a helion.hardware.Target, got {name!r}.")
    return _lookup(name)


def from_driver(properties: object) -> Target:
    """Return the target for a GPU; `properties` are those of ``torch.cuda.get_device_properties(i)``.

    The row is chosen by architecture and, among devices that share it, by the device's name. The driver's counts of SMs
    and registers, its shared memory, L2 and memory clock then replace the row's; matrix and fp32 rates are scaled by
    the number of SMs. Attributes that are absent or 0 leave the row's number unchanged.
    """

    def number(attribute: str, otherwise: int) -> int:
        value = getattr(properties, attribute, 0)
        return int(value) if value else otherwise

    device = str(getattr(properties, "name", ""))
    architecture = str(getattr(properties, "gcnArchName", ""))
    if not architecture.startswith("gfx"):
        architecture = f"sm_{number('major', 0)}{number('minor', 0)}"
    row = target(architecture)
    relatives = [(name, r) for names, r in _ROWS for name in names if r.name == row.name and name in _squeeze(device)]
    if relatives:
        row = max(relatives, key=lambda pair: len(pair[0]))[1]

    num_sms = number("multi_processor_count", row.num_sms)
    speed = num_sms / row.num_sms
    warp_size = number("warp_size", row.warp_size)
    row = dataclasses.replace(
        row,
        device=device or row.device,
        num_sms=num_sms,
        warp_size=warp_size,
        l2_bytes=number("L2_cache_size", row.l2_bytes),
        fp32_tflops=row.fp32_tflops * speed,
        matrix_tflops=tuple((name, rate * speed) for name, rate in row.matrix_tflops),
    )
    if row.kind != "cuda":
        # HIP reports shared memory, registers and the memory clock by rules of its own (half of MI300X's data rate).
        return row
    # Two transfers per clock; kHz and bits.
    bandwidth = 2 * number("memory_clock_rate", 0) * 1e3 * number("memory_bus_width", 0) / 8 / 1e9
    return dataclasses.replace(
        row,
        registers_per_sm=number("regs_per_multiprocessor", row.registers_per_sm),
        smem_per_sm_bytes=number("shared_memory_per_multiprocessor", row.smem_per_sm_bytes),
        smem_per_block_bytes=number("shared_memory_per_block_optin", row.smem_per_block_bytes),
        max_warps_per_sm=number("max_threads_per_multi_processor", row.max_warps_per_sm * warp_size) // warp_size,
        bandwidth_gb_per_s=bandwidth or row.bandwidth_gb_per_s,
    )


@functools.cache
def from_device_properties(index: int) -> Target:
    """Return the live GPU with CUDA (or HIP) device number `index`; see ``from_driver``.

    Raises torch's error if absent.
    """
    import torch  # 1.5 s, and this module must work without it

    return from_driver(torch.cuda.get_device_properties(index))
