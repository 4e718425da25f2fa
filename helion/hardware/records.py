"""Records of a GPU and of its links, the names of features, and the numbers that all GPUs of the table share."""

from __future__ import annotations

import dataclasses

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
        "vector_atomics",
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
    """The ``arch`` of Triton's ``GPUTarget``: the capability on CUDA, the architecture's name elsewhere."""
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
    l2_slices: int
    """Parts of that cache, over which its lines are spread. Each serves the atomics of its lines one after the other."""
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
    gpc_sms: tuple[int, ...] = ()
    """SMs of each graphics processing cluster (GPC), the part of the GPU that a cluster of blocks does not cross; empty
    without clusters. They differ from die to die, and their sum may differ from ``num_sms``."""
    xcds: int = 1
    """Dies with an L2 cache each, to which consecutive programs of a launch go in turn (AMD's accelerator complex dies)."""
    max_tensor_numel: int = 2**20
    """Elements that one tile may have (``triton.language.core.TRITON_MAX_TENSOR_NUMEL``)."""

    def __str__(self) -> str:
        return f"{self.name} ({self.device})"

    def __hash__(self) -> int:
        # caches of predictions look targets up often, and few of them are equal in these
        return hash((self.name, self.device, self.num_sms))

    @property
    def text(self) -> str:
        """All fields, as text that is the same in all processes: a set has no order of its own."""
        each = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return repr([(name, sorted(value) if isinstance(value, frozenset) else value) for name, value in each])

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
