"""One ``Target`` for each GPU.

Sources: the vendors' data sheets, the CUDA programming guide's table of compute capabilities, and AMD's CDNA ISA and
tuning guides. Rates are dense, without sparsity, with fp32 accumulation if the sheet distinguishes it.

Slices of the L2 cache: an A100 has 80, which read 64 bytes each of the 5120 in a cycle (its white paper), 16 for each stack of
memory. CDNA has 16 channels in each XCD. Of other GPUs no number is published: those with HBM have as many for each stack, those
with GDDR four for each channel of 32 bits. Those of the Max 1550 read the published rate of its cache by 64 bytes in a cycle.
"""

from __future__ import annotations

from .records import Link, Target

#: Measured on two H100s of a host. H200 has the same links.
NVLINK4 = Link(name="NVLink 4", stores_gb_per_s=360.0, full_programs=96, copies_gb_per_s=381.0, trip_us=2.3)
#: Those of an H200, for all GPUs with clusters. Of clusters of 4, 8 and 16 CTAs, 30, 15 and 7 run at once:
#: the fewest that times of blocks with sums over rows show on several dies.
GPC_SMS = (18, 18, 18, 18, 18, 16, 16, 10)
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
    l2_slices: int,
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
        l2_slices=l2_slices,
        bandwidth_gb_per_s=bandwidth_gb_per_s,
        fp32_tflops=fp32_tflops,
        matrix_tflops=matrix_tflops,
        features=features,
        min_dot_mn=(1, 1),
        fp8_partial_sum=128 if "wgmma" in features else 0,
        link=NVLINK4 if capability == 90 else None,
        gpc_sms=GPC_SMS if "clusters" in features else (),
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
        l2_slices=16,
        bandwidth_gb_per_s=bandwidth_gb_per_s,
        fp32_tflops=fp32_tflops,
        matrix_tflops=matrix_tflops,
        features=features,
        min_dot_mn=(16, 16),
        xcds=8,
    )


_AMPERE = frozenset({"cp_async"})
_ADA = frozenset({"cp_async", "fp8"})
_HOPPER = frozenset({"cp_async", "fp8", "tensor_descriptor", "clusters", "wgmma", "matrix_store", "vector_atomics"})
_BLACKWELL = _HOPPER - {"wgmma"} | {"tcgen05", "warp_specialize", "scaled_mma"}
_BLACKWELL_CONSUMER = _BLACKWELL - {"tcgen05"}

# The names that select a row, then the row. The name of an architecture selects its first row.
ROWS: tuple[tuple[tuple[str, ...], Target], ...] = (
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
            l2_slices=80,
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
            l2_slices=48,
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
            l2_slices=48,
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
            l2_slices=48,
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
            l2_slices=48,
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
            l2_slices=80,
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
            l2_slices=96,
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
            l2_slices=128,
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
            l2_slices=128,
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
            l2_slices=64,
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
            l2_slices=128,
            bandwidth_gb_per_s=3277,
            fp32_tflops=52,
            matrix_tflops=_rates(half=832, tf32=419, int8=1664, fp64=52),
            features=frozenset(),
            min_dot_mn=(8, 16),
        ),
    ),
)
