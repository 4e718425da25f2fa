"""Every config key beside a small kernel in which it shows: what ``scripts/replay.py`` keeps generated code of.

An entry is one value of one key. Its text is what the key changes, for each target, in the module without it; those
modules stand whole in a file of their own. Where nothing changes the entry shows nothing, which it has to announce. A
value that a target or the kernel cannot have gives the refusal instead.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import sample_kernels
import torch

import helion
import helion.language as hl
from helion import exc

TARGETS = ("sm_90", "sm_100", "gfx942")
#: Name of the file with the modules that entries are compared with.
PLAIN = "plain"
REFUSED, SAME = "refused: ", "the same without it"


def tile_sums(x):
    """A device loop of four iterations, known when compiling."""
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        acc = hl.zeros([tile], dtype=torch.float32)
        for part in hl.tile(0, 64, block_size=16):
            acc += x[tile, part].sum(-1)
        out[tile] = acc
    return out


def three_taps(x, w):
    """A convolution along rows: a product for each tap."""
    rows, n = x.size(0) - 2, w.size(2)
    out = torch.empty([rows, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tap in hl.static_range(3):
            for tile_k in hl.tile(x.size(1)):
                acc = torch.addmm(acc, x[tile_m.index + tap, tile_k], w[tap, tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def attention(q, k, v):
    """Weights without a softmax, which look back."""
    out = torch.empty_like(q)
    for tile_m in hl.tile(q.size(0)):
        acc = hl.zeros([tile_m, q.size(1)], dtype=torch.float32)
        for tile_n in hl.tile(0, tile_m.end):
            scores = hl.dot(q[tile_m, :], k[tile_n, :].T)
            scores = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], scores, 0.0)
            acc = hl.dot(scores.to(v.dtype), v[tile_n, :], acc=acc)
        out[tile_m, :] = acc.to(out.dtype)
    return out


def narrow_weights(x, w):
    """A product of weights of 8 bits, which are widened in the loop."""
    out = torch.empty([x.size(0), w.size(0)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = hl.dot(x[tile_m, tile_k], w[tile_n, tile_k].T.to(x.dtype), acc=acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def row_products(x, y):
    """Products whose rows are reduced."""
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :] @ y[:, :], -1)
    return out


def running_rows(x):
    """Rows that add up, with what came before faded."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(1)):
        acc = hl.zeros([tile], dtype=torch.float32)
        for step in hl.grid(x.size(0)):
            acc = acc * 0.5 + x[step, tile]
            out[step, tile] = acc
    return out


def scaled(x):
    out = torch.empty_like(x)
    factor = hl.register_tunable("factor", helion.autotuner.IntegerFragment(1, 8, 1))
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * factor
    return out


def count(x):
    out = torch.zeros([8], dtype=torch.int32, device=x.device)
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(out, [x[tile]], 1)
    return out


def two_grids(x):
    low, high = torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        low[tile] = x[tile] - 1
    for tile in hl.tile(x.size(0)):
        high[tile] = x[tile] + 1
    return low, high


def two_phases(x):
    """Sums of columns, which a barrier makes visible to the rows."""
    sums = torch.empty([x.size(1)], dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(1)):
        sums[tile] = x[:, tile].sum(0)
    hl.barrier()
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] - sums[:]
    return out


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A kernel with its arguments, and a config that fixes its tiles."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    config: Mapping[str, Any]


_MATRICES = _meta(128, 64, dtype=torch.float16), _meta(64, 256, dtype=torch.float16)
SAMPLES = {
    "add": Sample(
        fn=sample_kernels.add, args=(_meta(60, 100), _meta(60, 100)), config={"block_sizes": [16, 32], "num_warps": 1}
    ),
    "add_3d": Sample(
        fn=sample_kernels.add, args=(_meta(8, 10, 16), _meta(8, 10, 16)), config={"block_sizes": [1, 2, 16]}
    ),
    "matmul": Sample(fn=sample_kernels.matmul, args=_MATRICES, config={"block_sizes": [64, 64, 16]}),
    "matmul_fp32": Sample(
        fn=sample_kernels.matmul, args=(_meta(128, 64), _meta(64, 256)), config={"block_sizes": [64, 64, 16]}
    ),
    "matmul_odd": Sample(
        fn=sample_kernels.matmul, args=(_meta(128, 63), _meta(63, 256)), config={"block_sizes": [64, 64, 16]}
    ),
    "attention": Sample(
        fn=attention,
        args=tuple(_meta(250, 64, dtype=torch.float16) for _ in range(3)),
        config={"block_sizes": [64, 32]},
    ),
    "narrow_weights": Sample(
        fn=narrow_weights,
        args=(_MATRICES[0], _meta(250, 64, dtype=torch.int8)),
        config={"block_sizes": [64, 64, 32]},
    ),
    "row_products": Sample(fn=row_products, args=_MATRICES, config={"block_sizes": [2], "num_warps": 4}),
    "three_taps": Sample(
        fn=three_taps,
        args=(_meta(130, 64, dtype=torch.float16), _meta(3, 64, 256, dtype=torch.float16)),
        config={"block_sizes": [64, 64, 32, 32, 32]},
    ),
    "running_rows": Sample(fn=running_rows, args=(_meta(48, 300),), config={"block_sizes": [128]}),
    "row_sum": Sample(fn=sample_kernels.row_sum, args=(_meta(48, 300),), config={"block_sizes": [2]}),
    "tile_sums": Sample(fn=tile_sums, args=(_meta(48, 64),), config={"block_sizes": [2]}),
    "scaled": Sample(fn=scaled, args=(_meta(1000),), config={"block_sizes": [128]}),
    "count": Sample(fn=count, args=(_meta(1000, dtype=torch.int32),), config={"block_sizes": [128]}),
    "two_phases": Sample(fn=two_phases, args=(_meta(48, 60),), config={"block_sizes": [16, 2]}),
    "two_grids": Sample(fn=two_grids, args=(_meta(1000),), config={"block_sizes": [128, 128]}),
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """``key`` set to ``value`` in the config of ``sample`` and ``beside``; ``same`` are the targets where that gives
    the code of the config without it."""

    key: str
    value: Any
    sample: str
    beside: Mapping[str, Any] = field(default_factory=dict)
    same: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return _label(self.sample, (*self.beside.items(), (self.key, self.value)))


def _label(sample: str, keys: Iterable[tuple[str, Any]]) -> str:
    return " ".join((sample, *(f"{key}={value!r}" for key, value in keys)))


def entry(key: str, sample: str, value: Any, same: tuple[str, ...] = (), **beside: Any) -> Entry:
    return Entry(key=key, value=value, sample=sample, beside=beside, same=same)


_PERSISTENT = {"pid_type": "persistent_interleaved"}
ENTRIES = (
    entry("block_sizes", "add", [8, 64]),
    entry("block_sizes", "matmul", [32, 128, 64]),
    entry("loop_orders", "add", [[1, 0]]),
    entry("loop_orders", "add_3d", [[2, 0, 1]]),
    entry("flatten_loops", "add", [True]),
    entry("l2_groupings", "add", [8]),
    entry("l2_groupings", "matmul", [4], **_PERSISTENT),
    entry("reduction_loops", "row_sum", [128]),
    # range_*: the loop of a product, and the one over a persistent grid
    entry("range_unroll_factors", "matmul", [0, 2]),
    entry("range_unroll_factors", "add", [3], **_PERSISTENT),
    entry("range_warp_specializes", "matmul", [None, True], same=("sm_90", "gfx942")),
    entry("range_warp_specializes", "matmul", [None, False], same=("sm_90", "gfx942")),
    entry("range_warp_specializes", "add", [True], same=("sm_90", "gfx942"), **_PERSISTENT),
    entry("range_num_stages", "matmul", [0, 3]),
    entry("range_num_stages", "add", [2], **_PERSISTENT),
    entry("range_multi_buffers", "matmul", [None, True]),
    entry("range_multi_buffers", "matmul", [None, False]),
    entry("range_flattens", "matmul", [None, True]),
    entry("range_flattens", "matmul", [None, False]),
    entry("range_flattens", "add", [True], **_PERSISTENT),
    entry("static_ranges", "tile_sums", [True]),
    entry("num_warps", "add", 8),
    entry("num_stages", "matmul", 4),
    entry("pid_type", "add", "xyz"),
    entry("pid_type", "add_3d", "xyz"),
    entry("pid_type", "add", "persistent_blocked"),
    entry("pid_type", "add", "persistent_interleaved"),
    entry("pid_type", "two_grids", "persistent_blocked"),
    entry("pid_type", "two_grids", "persistent_interleaved"),
    entry("pid_type", "two_grids", "xyz"),
    entry("num_sm_multiplier", "add", 4, **_PERSISTENT),
    entry("cooperative_launch", "two_phases", True, **_PERSISTENT),
    entry("maxnreg", "add", 64, **_PERSISTENT),
    entry("waves_per_eu", "matmul", 2),
    entry("matrix_instr_nonkdim", "matmul", 16),
    entry("kpack", "matmul", 2),
    entry("advanced_controls_file", "add", "/tmp/options.acf"),
    entry("indexing", "add", "block_ptr"),
    entry("indexing", "add", "tensor_descriptor", same=("gfx942",)),
    entry("indexing", "matmul", "tensor_descriptor", same=("gfx942",)),
    entry("indexing", "matmul", ["block_ptr", "tensor_descriptor", "pointer"]),
    # there is one mechanism for atomic operations
    entry("atomic_indexing", "count", ["pointer"], same=TARGETS),
    entry("load_eviction_policies", "add", ["first", "last"]),
    entry("load_cache_modifiers", "add", [".cg", ""]),
    entry("store_cache_modifiers", "add", [".cs"]),
    entry("store_cache_modifiers", "add", [".wt"]),
    entry("epilogue_subtile", "matmul", 2),
    entry("epilogue_subtile", "matmul", 4),
    entry("epilogue_subtile", "add", 2, same=TARGETS),
    entry("split_k", "matmul", 4),
    entry("split_k", "add", 2),
    entry("swap_ab", "matmul_fp32", True, same=("sm_100", "gfx942")),
    entry("swap_ab", "matmul", True, same=TARGETS),
    entry("unfuse_matmul", "row_products", [32, 64, 32]),
    entry("unfuse_matmul", "matmul", [32, 64, 32]),
    entry("matmul_num_warps", "row_products", 2, unfuse_matmul=(32, 64, 32)),
    entry("matmul_num_stages", "row_products", 3, unfuse_matmul=(32, 64, 32)),
    entry("pack_operands", "matmul_odd", True),
    entry("pack_operands", "matmul", True, same=TARGETS),
    entry("transpose_operands", "matmul_fp32", True, same=("sm_100", "gfx942")),
    entry("transpose_operands", "matmul", True, same=TARGETS),
    entry("precompute_operands", "narrow_weights", True),
    entry("precompute_operands", "matmul", True),
    entry("peel_masks", "attention", True),
    entry("peel_masks", "matmul", True),
    entry("prefetch_distance", "running_rows", 2),
    entry("prefetch_distance", "matmul", 2),
    entry("fuse_loops", "three_taps", True),
    entry("fuse_loops", "matmul", True),
    entry("factor", "scaled", 3),
    entry("_triton_config_enable_fp_fusion", "add", False),
    entry("num_ctas", "matmul", 2),
    entry("occupancy", "matmul", 2),
    entry("xcd_remap", "matmul", True),
    entry("xcd_remap", "add", True, **_PERSISTENT),
)
KEYS = tuple(dict.fromkeys(each.key for each in ENTRIES))


@functools.cache
def bound(sample: str, target: str) -> helion.BoundKernel:
    chosen = SAMPLES[sample]
    return helion.kernel(chosen.fn).bind(chosen.args, target=target)


def module(sample: str, target: str, config: Mapping[str, Any]) -> str:
    """The generated module, or what is said instead."""
    full = {**SAMPLES[sample].config, **config}
    try:
        return bound(sample, target).to_triton_code(full, output_origin_lines=False)
    except exc.InvalidConfig as refusal:
        return f"{REFUSED}{refusal.message}\n"


def without(each: Entry, target: str) -> str:
    """The module without the entry's key."""
    return module(each.sample, target, each.beside)


def with_key(each: Entry, target: str) -> str:
    """The module with the entry's key, or the refusal."""
    return module(each.sample, target, {**each.beside, each.key: each.value})


def shown(each: Entry, target: str) -> str:
    """What the file of the key says: what the key changes in the module without it, or the refusal."""
    plain, text = without(each, target), with_key(each, target)
    if text.startswith(REFUSED):
        return text
    changes = difflib.unified_diff(plain.splitlines(), text.splitlines(), lineterm="", n=1)
    return "\n".join([*changes][2:]) or SAME


def modules(key: str) -> Iterator[tuple[str, str]]:
    """Labels and texts of one file: the entries of a key, or all that they are compared with for ``PLAIN``."""
    if key == PLAIN:
        plain = dict.fromkeys((each.sample, tuple(each.beside.items())) for each in ENTRIES)
        for sample, beside in plain:
            for target in TARGETS:
                yield f"{_label(sample, beside)}: {target}", module(sample, target, dict(beside))
        return
    for each in ENTRIES:
        for target in TARGETS:
            if each.key == key:
                yield f"{each.label}: {target}", shown(each, target)
