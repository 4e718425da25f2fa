"""The space of configs: lengths, ranges, defaults, normal forms and refusals, for kernels bound on meta tensors."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from harness import program_of, space_of, tensor
from hypothesis import example, given
from hypothesis import strategies as st
from sample_kernels import add, bmm, matmul, row_sum, softmax

import helion
import helion.language as hl
from helion import exc
from helion._compiler.ir.grammar import OperandRef, Program
from helion._compiler.rewrites.reduction_loops.roll import rollable_blocks
from helion._shapes import Expr
from helion.autotuner.space import ConfigSpace, build_space
from helion.autotuner.space.fields import adjacent, nearest, values_of
from helion.backends import BACKENDS
from helion.backends.triton.proposal import TritonProposal
from helion.config import Config
from helion.fields import (
    BooleanFragment,
    EnumFragment,
    IntegerFragment,
    MultipleFragment,
    PermutationFragment,
    PowerOfTwoFragment,
)
from helion.hardware import target
from helion.settings import Settings

# ---------------------------------------------------------------------------------------------------------------------
# Kernels


def matmul_rows(x, y):
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        out[tile_m, :] = torch.softmax(acc, dim=1)
    return out


def double_in_place(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] * 2
    return x


def two_loops(x, y):
    a, b = torch.empty_like(x), torch.empty_like(y)
    for tile in hl.tile(x.size(0)):
        a[tile] = x[tile] + 1
    for tile_m, tile_n in hl.tile(y.size()):
        b[tile_m, tile_n] = y[tile_m, tile_n] * 2
    return a, b


def halves(x):
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    block = hl.register_block_size(32)
    for outer in hl.tile(x.size(0), block_size=block):
        for inner in hl.tile(outer.begin, outer.end):
            out[inner] = x[inner].to(torch.float32)
    return out


def few_steps(x):
    out = torch.zeros([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        total = hl.zeros([tile], dtype=torch.float32)
        for step in hl.grid(3):
            total += x[tile, step]
        for part in hl.tile(64, block_size=16):
            total += x[tile, part].sum(1)
        for part in hl.tile(64, block_size=4):
            total += x[tile, part].sum(1)
        out[tile] = total
    return out


def fixed_tiles(x):
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size(), block_size=[64, None]):
        out[tile_m, tile_n] = x[tile_m, tile_n] + tile_n.index[None, :]
    return out


def scalar_grid(x):
    out = torch.empty_like(x)
    for i, j in hl.grid([x.size(0), x.size(1)]):
        out[i, j, :] = x[i, j, :] + 1
    return out


def whole_scan(x):
    out = torch.empty([x.size(0)], device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.cumsum(x[tile, :], dim=1, reverse=True).amax(1)
    return out


meta = functools.partial(tensor, dtype=torch.float16)
SOFTMAX = functools.partial(space_of, softmax)
MATMUL = functools.partial(space_of, matmul, meta(512, 256), meta(256, 128))

#: Every kernel, with sizes that are not powers of two.
KERNELS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "softmax": (softmax, (meta(100, 1000),)),
    "long softmax": (softmax, (meta(7, 70001),)),
    "matmul": (matmul, (meta(77, 130), meta(130, 63))),
    "bmm": (bmm, (meta(3, 77, 130), meta(3, 130, 63))),
    "matmul_rows": (matmul_rows, (meta(77, 130), meta(130, 300))),
    "add": (add, (meta(77, 33, 5), meta(77, 33, 5))),
    "double_in_place": (double_in_place, (meta(1001),)),
    "two_loops": (two_loops, (meta(1001), meta(33, 65))),
    "halves": (halves, (meta(1001),)),
    "few_steps": (few_steps, (meta(1001, 64),)),
    "fixed_tiles": (fixed_tiles, (meta(100, 70),)),
    "scalar_grid": (scalar_grid, (meta(5, 6, 50),)),
    "whole_scan": (whole_scan, (meta(100, 300),)),
}
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942", "xpu")


@functools.cache
def any_space(kernel: str, on: str) -> tuple[Program, ConfigSpace]:
    function, args = KERNELS[kernel]
    program = program_of(function, *args, on=on)
    return program, build_space(program, rollable_blocks(program)[0], target(on), Settings(), BACKENDS["triton"].keys)


# ---------------------------------------------------------------------------------------------------------------------
# Normal form


def test_full_config_of_a_row_reduction() -> None:
    space = SOFTMAX(meta(100, 1000))
    assert space.conservative().config == {
        "block_sizes": [1],
        "loop_orders": [],
        "flatten_loops": [],
        "l2_groupings": [],
        "reduction_loops": [None],
        "range_unroll_factors": [0],
        "range_num_stages": [0],
        "range_multi_buffers": [None],
        "range_flattens": [None],
        "static_ranges": [],
        "num_warps": 4,
        "num_stages": 1,
        "pid_type": "flat",
        "num_sm_multiplier": 1,
        "maxnreg": None,
        "indexing": ["pointer", "pointer"],
        "atomic_indexing": [],
        "load_eviction_policies": [""],
        "load_cache_modifiers": [""],
        "store_cache_modifiers": [""],
        "epilogue_subtile": None,
        "advanced_controls_file": None,
    }
    assert tuple(space.conservative()) == space.keys


def test_full_config_of_a_matmul() -> None:
    config = MATMUL().conservative()
    assert config["block_sizes"] == [16, 16, 16]
    assert config["loop_orders"] == [[0, 1]]
    assert config["flatten_loops"] == [False]
    assert config["l2_groupings"] == [1]
    assert config["reduction_loops"] == []
    assert config["range_num_stages"] == [0, 0]
    assert config["load_eviction_policies"] == ["", ""]
    assert config["indexing"] == ["pointer"] * 3


def test_keys_depend_on_the_target() -> None:
    assert "range_warp_specializes" in MATMUL(on="sm_100").keys
    assert "range_warp_specializes" not in MATMUL(on="sm_100", allow_warp_specialize=False).keys
    assert "waves_per_eu" not in MATMUL().keys
    amd = MATMUL(on="gfx942")
    assert {"waves_per_eu", "matrix_instr_nonkdim"} < set(amd.keys)
    config = amd.normalize(Config(waves_per_eu=2, matrix_instr_nonkdim=16))
    assert (config["waves_per_eu"], config["matrix_instr_nonkdim"]) == (2, 16)


@pytest.mark.parametrize(
    ("given", "key", "normal"),
    [
        ({"block_sizes": (64, 32, 16)}, "block_sizes", [64, 32, 16]),
        ({"block_sizes": [4096, 4096, 4096]}, "block_sizes", [512, 128, 256]),
        ({"block_sizes": [1, 2, 4]}, "block_sizes", [1, 2, 16]),
        ({"loop_order": [1, 0]}, "loop_orders", [[1, 0]]),
        ({"loop_orders": ((1, 0),)}, "loop_orders", [[1, 0]]),
        ({"l2_grouping": 8}, "l2_groupings", [8]),
        ({"l2_groupings": [8], "pid_type": "xyz"}, "l2_groupings", [1]),
        ({"range_num_stages": [2]}, "range_num_stages", [0, 0]),
        ({"range_num_stages": [2, 3]}, "range_num_stages", [0, 3]),
        ({"range_num_stages": [2, 3], "pid_type": "persistent_blocked"}, "range_num_stages", [2, 3]),
        ({"range_flattens": [True, False], "pid_type": "xyz"}, "range_flattens", [None, False]),
        ({"maxnreg": 128}, "maxnreg", None),
        ({"maxnreg": 128, "pid_type": "persistent_interleaved"}, "maxnreg", 128),
        ({"indexing": "pointer"}, "indexing", ["pointer"] * 3),
        ({"indexing": ["pointer"]}, "indexing", ["pointer"] * 3),
        ({"load_eviction_policies": ["first"]}, "load_eviction_policies", ["first", ""]),
        ({"load_eviction_policies": ["first", "last"]}, "load_eviction_policies", ["first", "last"]),
        ({"load_cache_modifiers": [".cg"]}, "load_cache_modifiers", [".cg", ""]),
        ({"store_cache_modifiers": [".wt"]}, "store_cache_modifiers", [".wt"]),
        ({"atomic_indexing": []}, "atomic_indexing", []),
        ({"flatten_loops": [False]}, "flatten_loops", [False]),
        ({"num_warps": 32}, "num_warps", 32),
        ({"num_stages": 8}, "num_stages", 8),
        ({"_triton_config_foo": {"a": 1}}, "_triton_config_foo", {"a": 1}),
    ],
)  # fmt: skip
def test_normal_form(given: dict[str, Any], key: str, normal: Any) -> None:
    space = MATMUL()
    config = space.normalize(given)
    assert config[key] == normal
    assert space.normalize(config) == config
    assert space.normalize(Config(**given)) == config


def test_normalize_works_on_a_copy() -> None:
    given = Config(block_sizes=[4096, 1, 1], range_num_stages=[2, 3])
    MATMUL().normalize(given)
    assert given.config == {"block_sizes": [4096, 1, 1], "range_num_stages": [2, 3]}


def test_defaults_are_not_shared() -> None:
    space = MATMUL()
    space.conservative()["loop_orders"][0].reverse()
    assert space.conservative()["loop_orders"] == [[0, 1]]


def test_keys_of_other_gpus_may_ask_for_nothing() -> None:
    config = MATMUL().normalize(Config(range_warp_specializes=[None, False], waves_per_eu=None, epilogue_subtile=None))
    assert config == MATMUL().conservative()


def test_minimize() -> None:
    space = MATMUL()
    assert space.normalize(Config(num_warps=8, l2_groupings=[4])).minimize(space) == Config(
        num_warps=8, l2_groupings=[4]
    )


def test_default_is_the_owners() -> None:
    space = MATMUL()
    assert space.default_config() == space.conservative()
    seed = space.normalize(Config(num_warps=8))
    assert dataclasses.replace(space, default=seed).default_config() == seed
    assert dataclasses.replace(space, default=seed).normalize(Config()) == space.conservative()


# ---------------------------------------------------------------------------------------------------------------------
# Refusals

REFUSED_BY_MATMUL = [
    ({"foo": 1, "bar": 2}, "Invalid config keys ['foo', 'bar'] for kernel 'matmul'; known are block_sizes, loop_orders, "),
    ({"block_sizes": [16, 16]}, "block_sizes has 2 entries, expected 3 (one per tiled dimension without a fixed size: tile_m, tile_n, tile_k); is a dimension of an hl.tile, or an hl.register_block_size, forgotten?"),
    ({"block_sizes": [16] * 4}, "block_sizes has 4 entries, expected 3 (one per tiled dimension"),
    ({"block_sizes": [16, 48, 16]}, "block_sizes[1] (tile_n) must be a power of two, got 48."),
    ({"block_sizes": [16, 16.0, 16]}, "block_sizes[1] (tile_n) must be an integer, got 16.0."),
    ({"block_sizes": [16, 16, True]}, "block_sizes[2] (tile_k) must be an integer, got True."),
    ({"block_sizes": [16, 16, 0]}, "block_sizes[2] (tile_k) must be a power of two, got 0."),
    ({"block_sizes": [16, 16, -16]}, "block_sizes[2] (tile_k) must be a power of two, got -16."),
    ({"block_sizes": 16}, "block_sizes has 1 entry, expected 3 (one per tiled dimension without a fixed size: tile_m, tile_n, tile_k); is a dimension of an hl.tile, or an hl.register_block_size, forgotten?"),
    ({"loop_orders": [[0, 0]]}, "loop_orders[0] (tile_m, tile_n) must be a permutation of [0, 1], got [0, 0]."),
    ({"loop_orders": [["a", 0]]}, "loop_orders[0] (tile_m, tile_n) must be a permutation of [0, 1], got ['a', 0]."),
    ({"loop_orders": [[True, False]]}, "loop_orders[0] (tile_m, tile_n) must be a permutation of [0, 1], got [True, False]."),
    ({"loop_orders": [1, 0]}, "loop_orders has 2 entries, expected 1 (one per loop over several dimensions: tile_m, tile_n)."),
    ({"l2_groupings": [3]}, "l2_groupings[0] (tile_m, tile_n) must be a power of two, got 3."),
    ({"l2_groupings": [128]}, "l2_groupings[0] (tile_m, tile_n) must be between 1 and 64, got 128."),
    ({"flatten_loops": [1]}, "flatten_loops[0] (tile_m, tile_n) must be one of False, got 1: a loop uses a merged dimension."),
    ({"reduction_loops": [None]}, "reduction_loops has 1 entry, expected 0 (one per whole dimension that can be a loop over chunks)."),
    ({"range_unroll_factors": [0, 5]}, "range_unroll_factors[1] (the loop over tile_k) must be between 0 and 4, got 5."),
    ({"range_num_stages": [0, 0, 1]}, "range_num_stages has 3 entries, expected 2 (one per grid loop and per dimension of a device loop: the grid over tile_m, tile_n, the loop over tile_k)."),
    ({"range_flattens": [0]}, "range_flattens[0] (the grid over tile_m, tile_n) must be one of None, True, False, got 0."),
    ({"range_warp_specializes": [None, 2]}, "range_warp_specializes must be one of None, True, False, got 2."),
    ({"prefetch_distance": 2}, "prefetch_distance cannot be 2: no loop over single indices loads data that it does not write, at addresses from its index; leave it out."),
    ({"fuse_loops": True}, "fuse_loops cannot be True: the kernel has no consecutive loops with matmuls that differ only in constants; leave it out."),
    ({"num_ctas": 2}, "num_ctas cannot be 2: it is a key of the tileir backend, which is not here; leave it out."),
    ({"num_warps": 3}, "num_warps must be a power of two, got 3."),
    ({"num_warps": 64}, "num_warps must be between 1 and 32, got 64."),
    ({"num_warps": None}, "num_warps must be an integer, got None."),
    ({"num_stages": 0}, "num_stages must be between 1 and 8, got 0."),
    ({"num_stages": 9}, "num_stages must be between 1 and 8, got 9."),
    ({"pid_type": "persistent"}, "pid_type must be one of 'flat', 'xyz', 'persistent_blocked', 'persistent_interleaved', got 'persistent'."),
    ({"num_sm_multiplier": 2}, "num_sm_multiplier=2 sizes a persistent grid, but pid_type is 'flat'; use 'persistent_blocked' or 'persistent_interleaved', or leave it out."),
    ({"num_sm_multiplier": 256, "pid_type": "persistent_blocked"}, "num_sm_multiplier must be between 1 and 128, got 256."),
    ({"maxnreg": 100}, "maxnreg must be one of None, 32, 64, 128, 256, got 100."),
    ({"maxnreg": 128, "num_warps": 32, "pid_type": "persistent_blocked"}, "maxnreg=128 with num_warps=32 takes 131072 registers a block, and sm_90 (H100 SXM) has 65536; use fewer warps, a smaller maxnreg, or leave it out."),
    ({"indexing": ["pointer"] * 3 + ["fast"]}, "indexing[3] must be one of 'pointer', 'block_ptr', 'tensor_descriptor', got 'fast'."),
    ({"indexing": ["pointer"] * 4}, "indexing has 4 entries, expected 3 (one per load and store: load of x, load of y, store of out)."),
    ({"load_eviction_policies": ["first", "last", ""]}, "load_eviction_policies has 3 entries, expected 2 (one per load without an eviction policy of its own: load of x, load of y)."),
    ({"store_cache_modifiers": [".wt", ""]}, "store_cache_modifiers has 2 entries, expected 1 (one per store: store of out)."),
    ({"indexing": "fast"}, "indexing must be one of 'pointer', 'block_ptr', 'tensor_descriptor', got 'fast'."),
    ({"indexing": [["pointer"]]}, "indexing[0] (load of x) must be one of 'pointer', 'block_ptr', 'tensor_descriptor', got ['pointer']."),
    ({"load_eviction_policies": ["", "evict_first"]}, "load_eviction_policies[1] (load of y) must be one of '', 'first', 'last', got 'evict_first'."),
    ({"load_eviction_policies": "first"}, "load_eviction_policies must be a list with one entry per load without an eviction policy of its own, got 'first'."),
    ({"load_cache_modifiers": [".ca"]}, "load_cache_modifiers[0] (load of x) must be one of '', '.cg', got '.ca'."),
    ({"store_cache_modifiers": [".cg"]}, "store_cache_modifiers[0] (store of out) must be one of '', '.cs', '.wt', got '.cg'."),
    ({"waves_per_eu": 2}, "waves_per_eu cannot be 2: it is an option of AMD GPUs, and the target is sm_90 (H100 SXM); leave it out."),
    ({"epilogue_subtile": 3}, "epilogue_subtile must be one of None, 2, 4, got 3."),
    ({"advanced_controls_file": 3}, "advanced_controls_file must be the path of a file, without spaces in it, got 3."),
    ({"advanced_controls_file": "my file.acf"}, "advanced_controls_file must be the path of a file, without spaces in it, got 'my file.acf'."),
    ({"block_size": 16, "block_sizes": [16]}, "Both 'block_size' and 'block_sizes' are given; keep one of them."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"), REFUSED_BY_MATMUL, ids=[str(given)[:50] for given, _ in REFUSED_BY_MATMUL]
)
def test_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(exc.InvalidConfig, match=re.escape(message)) as info:
        MATMUL().normalize(given)
    assert info.value.message == message or message.endswith((", ", "tiled dimension"))


@pytest.mark.parametrize(
    ("on", "given", "message"),
    [
        ("gfx942", {"num_warps": 32}, "num_warps must be between 1 and 16, got 32."),
        ("gfx942", {"maxnreg": 128}, "maxnreg must be one of None, got 128."),
        (
            "gfx942",
            {"advanced_controls_file": "a.acf"},
            "advanced_controls_file cannot be 'a.acf': it is an option of ptxas, and the target is gfx942 (MI300X); leave it out.",
        ),
        ("gfx942", {"waves_per_eu": 9}, "waves_per_eu must be one of 0, 1, 2, 3, 4, got 9."),
    ],
)
def test_refused_on_target(on: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(exc.InvalidConfig, match=re.escape(message)):
        MATMUL(on=on).normalize(given)


def test_setting_turns_warp_specialization_off() -> None:
    space = MATMUL(on="sm_100", allow_warp_specialize=False)
    asked = Config(range_warp_specializes=[True])
    assert space.normalize(asked) == space.conservative()
    assert list(map(str, space.adjusted(asked))) == ["range_warp_specializes=[True] is dropped: the setting allow_warp_specialize is off"]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Block sizes


@pytest.mark.parametrize(
    ("shape", "on", "conservative", "largest"),
    [
        ((512, 256, 128), "sm_90", [16, 16, 16], [512, 128, 256]),
        ((8, 256, 4), "sm_90", [8, 4, 16], [64, 64, 256]),
        ((8, 8, 4), "sm_90", [8, 4, 16], [64, 64, 16]),
        ((8, 256, 4), "gfx942", [16, 16, 16], [64, 64, 256]),
        ((1000, 100, 65), "sm_90", [16, 16, 16], [1024, 128, 128]),
    ],
)
def test_tiles_of_a_matmul(shape: tuple[int, ...], on: str, conservative: list[int], largest: list[int]) -> None:
    m, k, n = shape
    space = space_of(matmul, meta(m, k), meta(k, n), on=on)
    assert space.conservative()["block_sizes"] == conservative
    assert [values_of(slot.fragment)[-1] for slot in space.field("block_sizes").slots] == largest


def test_8_bit_operands_need_a_deeper_k() -> None:
    def fp8(x, y):
        out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
        for tile_m, tile_n in hl.tile(out.size()):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(x.size(1)):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            out[tile_m, tile_n] = acc
        return out

    args = meta(64, 64, dtype=torch.float8_e4m3fn), meta(64, 64, dtype=torch.float8_e4m3fn)
    assert space_of(fp8, *args).normalize(Config(block_sizes=[16, 16, 16]))["block_sizes"] == [16, 16, 32]


def test_batch_of_a_matmul_is_one_matrix() -> None:
    space = space_of(bmm, meta(32, 64, 64), meta(32, 64, 64))
    assert space.normalize(Config(block_sizes=[8, 64, 64, 32]))["block_sizes"] == [1, 64, 64, 32]


@pytest.mark.parametrize(
    ("kernel", "shape", "sizes"),
    [
        (softmax, (100, 1000), [1]),
        (softmax, (100, 256), [16]),
        (softmax, (100, 257), [1]),
        (softmax, (100, 128), [32]),
        (softmax, (100, 129), [16]),
        (softmax, (5, 128), [8]),
        (softmax, (100, 100000), [1]),
        (add, (1000,), [32]),
        (add, (1000, 20), [32, 32]),
        (add, (3, 1000, 20), [4, 16, 16]),
        (add, (20, 20, 20, 20), [8, 8, 8, 8]),
        (scalar_grid, (5, 6, 50), []),
    ],
)
def test_conservative_tiles(kernel: Callable[..., Any], shape: tuple[int, ...], sizes: list[int]) -> None:
    args = [meta(*shape)] * kernel.__code__.co_argcount
    assert space_of(kernel, *args).conservative()["block_sizes"] == sizes


def test_three_tiles_with_a_row_share_its_volume() -> None:
    def rows(x):
        out = torch.empty([x.size(0), x.size(1), x.size(2)], dtype=torch.float32, device=x.device)
        for a, b, c in hl.tile(out.size()):
            out[a, b, c] = x[a, b, c, :].sum(-1)
        return out

    # 8 * 8 * 8 * 64 = 2 * 2 * 2 * 4096 = 32768, and 4 * 4 * 4 * 128 is less
    for extent, size in ((64, 8), (100, 4), (4096, 2)):
        space = space_of(rows, meta(50, 50, 50, extent, dtype=torch.float32))
        assert space.conservative()["block_sizes"] == [size] * 3


def test_registered_sizes_keep_their_bounds() -> None:
    def bounded(x):
        out = torch.empty_like(x)
        block = hl.register_block_size(8, 64)
        for tile in hl.tile(x.size(0), block_size=block):
            out[tile] = x[tile] + 1
        return out

    space = space_of(bounded, meta(1001))
    assert space.conservative()["block_sizes"] == [32]
    assert space.normalize(Config(block_sizes=[1]))["block_sizes"] == [8]
    assert space.normalize(Config(block_sizes=[512]))["block_sizes"] == [64]


def test_tiles_with_a_fixed_size_have_no_entry() -> None:
    space = space_of(fixed_tiles, meta(100, 70))
    config = space.normalize(Config(block_sizes=[16]))
    assert space.tunable == (1,)
    assert space.sizes(config) == {0: 64, 1: 16}


def test_inner_tiles_stay_inside_the_outer_tile() -> None:
    space = space_of(halves, meta(1001))
    assert space.normalize(Config(block_sizes=[16, 1024]))["block_sizes"] == [16, 16]
    assert space.normalize(Config(block_sizes=[32, 8]))["block_sizes"] == [32, 8]
    assert values_of(space.field("block_sizes").slots[1].fragment)[-1] == 32


def test_sizes() -> None:
    space = space_of(scalar_grid, meta(5, 6, 50))
    config = space.conservative()
    assert space.sizes(config) == {0: 1, 1: 1, 2: 64}
    rows = space_of(matmul_rows, meta(77, 130), meta(130, 3), on="gfx942")
    assert rows.sizes(rows.conservative()) == {0: 32, 1: 16, 2: 32}  # N is raised to what a matrix product takes
    assert rows.rollable == ()


# ---------------------------------------------------------------------------------------------------------------------
# Reduction loops


@pytest.mark.parametrize(
    ("extent", "given", "chunk", "size"),
    [
        (1000, None, None, 1024),
        (1000, 1024, None, 1024),
        (1000, 2048, None, 1024),
        (1000, 512, 512, 512),
        (1024, 1024, None, 1024),
        (1025, 1024, 1024, 1024),
        (1000, 16, 16, 16),
        (1000, 8, 8, 8),
        (1000, 1, 8, 8),
        (1000, 0, 8, 8),
        (5, 1, None, 8),
    ],
)
def test_reduction_loops(extent: int, given: int | None, chunk: int | None, size: int) -> None:
    space = SOFTMAX(meta(10, extent))
    config = space.normalize(Config(reduction_loop=given))
    assert config["reduction_loops"] == [chunk]
    assert space.sizes(config)[1] == size
    assert space.rolled(config) == (frozenset() if chunk is None else frozenset([1]))


@pytest.mark.parametrize(("extent", "default"), [(4096, None), (4097, 4096), (5, None), (10**7, 4096)])
def test_long_rows_are_walked_in_chunks(extent: int, default: int | None) -> None:
    assert SOFTMAX(meta(10, extent)).conservative()["reduction_loops"] == [default]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (48, "reduction_loops[0] (r0 of 1000) must be a power of two, got 48 (or None to hold the row at once)."),
        (True, "reduction_loops[0] (r0 of 1000) must be an integer, got True (or None to hold the row at once)."),
        (-8, "reduction_loops[0] (r0 of 1000) must be a power of two, got -8 (or None to hold the row at once)."),
        ("8", "reduction_loops[0] (r0 of 1000) must be an integer, got '8' (or None to hold the row at once)."),
    ],
)
def test_reduction_loops_refused(given: Any, message: str) -> None:
    with pytest.raises(exc.InvalidConfig, match=re.escape(message)):
        SOFTMAX(meta(10, 1000)).normalize(Config(reduction_loops=[given]))


def test_dimensions_that_cannot_be_rolled_have_no_entry() -> None:
    space = space_of(whole_scan, meta(100, 300))
    assert space.conservative()["reduction_loops"] == []
    assert space.sizes(space.conservative()) == {0: 1, 1: 512}


# ---------------------------------------------------------------------------------------------------------------------
# Values too large for one tile


def test_explicit_sizes_too_large_are_an_error() -> None:
    space = SOFTMAX(meta(1000, 1000))
    assert space.normalize(Config(block_sizes=[1024]))["block_sizes"] == [1024]  # 2**20 elements, the limit
    wide, asked = SOFTMAX(meta(1000, 1025)), Config(block_sizes=[1024], reduction_loops=[None])
    assert wide.normalize(asked)["block_sizes"] == [1024] and wide.normalize(asked)["reduction_loops"] == [1024]
    assert [(each.what, each.asked, each.got) for each in wide.adjusted(asked)] == [("reduction_loops[0] (r0 of 1025)", None, 1024)]  # fmt: skip
    square = space_of(add, *[meta(2**14, 2**14)] * 2)  # tiles that are too large with any sizes
    with pytest.raises(exc.InvalidConfig, match=r"With these sizes .* has 4194304 elements \(tile_0=2048 x tile_1=2048\), more than the 1048576 of one tile; make block_sizes or reduction_loops smaller") as info:  # fmt: skip
        square.normalize(Config(block_sizes=[2048, 2048]))
    assert info.value.location is not None and info.value.location.function == "add"


def test_values_of_few_threads_are_refused() -> None:
    space = space_of(add, *[meta(2**14, 2**14)] * 2)
    text = "has 65536 elements .*, 512 for each thread of num_warps=4, .* 255 registers: 510 are the most.* use num_warps=8, or tiles of at most 32768"
    with pytest.raises(exc.InvalidConfig, match=text) as info:
        space.worth_compiling(Config(block_sizes=[256, 256], num_warps=4))
    assert info.value.location is not None
    assert space.worth_compiling(Config(block_sizes=[256, 256], num_warps=8))["num_warps"] == 8
    with pytest.raises(
        exc.InvalidConfig,
        match="has 1048576 elements .*, 1024 for each thread of num_warps=32, .* use tiles of at most",
    ):
        space.worth_compiling(Config(block_sizes=[1024, 1024]))
    bound = helion.kernel(add).bind((meta(2**14, 2**14), meta(2**14, 2**14)), target="sm_90")
    for text in (bound.to_triton_code, bound.to_code):  # printed, not compiled
        assert "tl.constexpr(1024)" in text(Config(block_sizes=[1024, 1024]))
    # warps that the config does not name, or that a search draws, follow the tiles
    open_warps = space.normalize(Config(block_sizes=[512, 256]))
    assert open_warps["num_warps"] == 16
    assert space.normalize(open_warps) == open_warps == space.normalize(open_warps.minimize(space))
    assert space.repair(Config(block_sizes=[256, 256], num_warps=1))["num_warps"] == 8


def test_random_configs_are_worth_compiling() -> None:
    """Also the widest: tiles are shrunk, and a whole dimension that alone is too much is walked in chunks."""
    square = space_of(add, *[meta(2**14, 2**14)] * 2)
    for seed in range(150):
        square.worth_compiling(square.random(Random(seed)))
    assert square.repair(Config(block_sizes=[1024, 1024]))["block_sizes"] == [512, 512]
    row = space_of(row_sum, meta(100, 2**20))
    repaired = row.repair(Config(block_sizes=[4], reduction_loops=[None]))
    assert row.worth_compiling(repaired) == repaired and repaired["reduction_loops"] != [None]


def test_warps_follow_whole_dimensions_that_are_longer_with_other_arguments() -> None:
    short, long = SOFTMAX(meta(64, 100)), SOFTMAX(meta(64, 8192))
    full = short.normalize(Config(block_sizes=[8], num_warps=1, reduction_loops=[None]))
    assert full["num_warps"] == 1 and long.worth_compiling(full)["num_warps"] == 8
    assert [(each.what, each.asked, each.got) for each in long.adjusted(full)] == [("num_warps", 1, 8)]
    chunked = Config(block_sizes=[8], num_warps=1, reduction_loops=[4096])  # chosen for this length
    with pytest.raises(exc.InvalidConfig, match="1024 for each thread of num_warps=1"):
        long.worth_compiling(chunked)


def test_a_default_of_more_warps_is_kept_when_keys_are_left_out() -> None:
    space = space_of(whole_scan, meta(100, 2**17))
    assert space.conservative()["num_warps"] == 16
    for warps in (16, 32):
        full = space.normalize(Config(num_warps=warps))
        assert space.normalize(full.minimize(space)) == full


def test_sizes_left_out_give_way() -> None:
    space = SOFTMAX(meta(1024, 2**20))
    assert space.normalize(Config(reduction_loops=[None]))["block_sizes"] == [1]
    config = space.normalize(Config(block_sizes=[1024]))
    assert (config["block_sizes"], config["reduction_loops"]) == ([1024], [1024])


def test_repair_halves_the_largest_tile_first() -> None:
    space = space_of(add, *[meta(2**14, 2**14)] * 2)
    assert space.repair(Config(block_sizes=[2**12, 2**10]))["block_sizes"] == [2**9, 2**9]
    assert space.repair(Config(block_sizes=[2**14, 2**4]))["block_sizes"] == [2**14, 2**4]


def test_rows_give_way_after_tiles() -> None:
    space = SOFTMAX(meta(64, 2**21))
    config = space.repair(Config(block_sizes=[64], reduction_loops=[None]))
    assert (config["block_sizes"], config["reduction_loops"]) == ([1], [2**18])


def test_nothing_fits() -> None:
    space = space_of(whole_scan, meta(100, 2**21))
    with pytest.raises(exc.NoFeasibleConfig) as info:
        space.conservative()
    assert info.value.message.startswith("No config of kernel 'whole_scan' fits sm_90 (H100 SXM): even in the smallest tiles ")  # fmt: skip
    assert info.value.message.endswith("has 2097152 elements (tile=1 x r0=2097152), more than the 1048576 of one tile; walk over r0 in an hl.tile loop")  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Loops and grids


def test_one_range_entry_per_grid_loop_and_loop_dimension() -> None:
    space = space_of(few_steps, meta(1001, 64))
    assert [slot.name for slot in space.field("range_flattens").slots] == [
        "the grid over tile",
        "the loop over step",
        "the loop over part",
        "the loop over part",
    ]
    # 3 steps and 4 tiles of 16 are few, 16 tiles of 4 are not
    assert space.conservative()["static_ranges"] == [False, False]


def test_static_ranges_reset_the_other_options_of_the_loop() -> None:
    space = space_of(few_steps, meta(1001, 64))
    config = space.normalize(
        Config(
            static_ranges=[False, True],
            range_unroll_factors=[0, 1, 2, 3],
            range_num_stages=[0, 1, 2, 3],
            range_multi_buffers=[None, True, True, True],
            range_flattens=[None, False, False, False],
        )
    )
    assert config["range_unroll_factors"] == [0, 1, 0, 3]
    assert config["range_num_stages"] == [0, 1, 0, 3]
    assert config["range_multi_buffers"] == [None, True, None, True]
    assert config["range_flattens"] == [None, False, None, False]


def test_one_loop_is_warp_specialized() -> None:
    config = MATMUL(on="sm_100").normalize(
        Config(
            pid_type="persistent_interleaved",
            range_warp_specializes=[True, True],
            range_unroll_factors=[2, 2],
            num_warps=2,
        )
    )
    assert config["range_warp_specializes"] == [True, None]
    assert config["range_unroll_factors"] == [0, 2]
    assert config["num_warps"] == 4


def test_grid_of_a_flat_launch_is_not_warp_specialized() -> None:
    config = MATMUL(on="sm_100").normalize(Config(range_warp_specializes=[True, True], num_warps=8))
    assert config["range_warp_specializes"] == [None, True]
    assert config["num_warps"] == 8


def test_loops_that_rewrite_a_tensor_are_not_prefetched() -> None:
    space = space_of(double_in_place, meta(1001))
    with pytest.raises(exc.InvalidConfig, match=re.escape("range_num_stages[0] (the grid over tile) must be one of 0, got 2: the loop loads and stores 'x', and prefetching could read it before it is written.")):  # fmt: skip
        space.normalize(Config(range_num_stages=[2], pid_type="persistent_blocked"))
    assert space_of(add, meta(8), meta(8)).normalize(Config(range_num_stages=[2]))["range_num_stages"] == [0]


def test_xyz_takes_one_grid_of_two_or_three_dimensions() -> None:
    for dims in (2, 3):
        space = space_of(add, *[meta(*[10] * dims)] * 2)
        assert space.normalize(Config(pid_type="xyz"))["pid_type"] == "xyz"
    with pytest.raises(
        exc.InvalidConfig, match="got 'xyz': it takes a grid over 2 or 3 dimensions, and this one has 4"
    ):
        space_of(add, *[meta(3, 3, 3, 3)] * 2).normalize(Config(pid_type="xyz"))
    with pytest.raises(exc.InvalidConfig, match="got 'xyz': it takes one grid loop, and the kernel has 2"):
        space_of(two_loops, meta(10), meta(10, 10)).normalize(Config(pid_type="xyz"))


def test_xyz_needs_short_y_and_z() -> None:
    space = space_of(add, *[meta(10, 2 * 65536)] * 2)
    flipped = Config(pid_type="xyz", block_sizes=[1, 1], loop_orders=[[1, 0]])
    assert space.normalize(flipped)["pid_type"] == "xyz"
    long = Config(pid_type="xyz", block_sizes=[1, 1])
    assert space.normalize(long)["pid_type"] == "flat"
    (said,) = space.adjusted(long)
    assert str(said) == "pid_type is 'flat', not 'xyz': a dimension of the grid is too long for the launch"


def test_grids_of_a_size_that_depends_on_data_are_persistent() -> None:
    program = program_of(add, *[meta(10, 10)] * 2)
    (root,) = program.roots
    first, second = root.axes
    axes = (first, dataclasses.replace(second, end=OperandRef(0)))
    program = dataclasses.replace(program, roots=(dataclasses.replace(root, axes=axes),))
    space = build_space(program, (), target("sm_90"), Settings(), BACKENDS["triton"].keys)
    assert space.conservative()["pid_type"] == "persistent_blocked"
    for pid_type in ("flat", "xyz"):
        with pytest.raises(exc.InvalidConfig, match="the size of the grid depends on data"):
            space.normalize(Config(pid_type=pid_type))


def test_flattenable_loops() -> None:
    assert space_of(two_loops, meta(10), meta(10, 10)).conservative()["flatten_loops"] == [False]
    assert space_of(fixed_tiles, meta(100, 70)).conservative()["flatten_loops"] == [False]  # it numbers elements
    assert space_of(scalar_grid, meta(5, 6, 50)).conservative()["flatten_loops"] == []


def test_lists_follow_the_order_of_the_loops() -> None:
    space = space_of(two_loops, meta(10), meta(10, 10))
    assert space.conservative()["loop_orders"] == [[0, 1]]
    assert space.conservative()["l2_groupings"] == [1]
    assert [slot.ids for slot in space.field("l2_groupings").slots] == [(1,)]
    assert [slot.name for slot in space.field("indexing").slots] == [
        "load of x", "store of a", "load of y", "store of b",
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Proposals


def test_encode() -> None:
    proposal = TritonProposal(
        reason="",
        block_sizes={0: 128, 2: 100, 1: 4096},
        l2_groupings={0: 8},
        loop_orders={0: (1, 0)},
        eviction={1: "last"},
        ranges={"range_num_stages": {2: 9}, "range_flattens": {1: True}},
        num_warps=7,
        num_stages=20,
        pid_type="persistent_interleaved",
        launch={"maxnreg": 128},
    )
    assert MATMUL().encode(proposal) == {
        "block_sizes": [128, 128, 64],
        "loop_orders": [[1, 0]],
        "l2_groupings": [8],
        "range_num_stages": [0, 4],
        "range_flattens": [True, None],
        "num_warps": 4,
        "num_stages": 8,
        "pid_type": "persistent_interleaved",
        "load_eviction_policies": ["", "last"],
        "maxnreg": 128,
    }


def test_encode_leaves_open_what_is_left_open() -> None:
    space = MATMUL()
    assert space.encode(TritonProposal(reason="")) == {}
    assert space.encode(TritonProposal(reason="", block_sizes={2: 64})) == {"block_sizes": [16, 16, 64]}
    assert space.encode(TritonProposal(reason="", pid_type="spiral")) == {"pid_type": "flat"}


@pytest.mark.parametrize(("wish", "chunk"), [(None, None), (512, 512), (700, 512), (4, 8), (2048, None)])
def test_encode_chunks(wish: int | None, chunk: int | None) -> None:
    assert SOFTMAX(meta(10, 1000)).encode(TritonProposal(reason="", reduction_loops={1: wish})) == {
        "reduction_loops": [chunk]
    }


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"block_sizes": {7: 16}}, "block_sizes has no entry for [7]; it has entries for [0, 1, 2]"),
        ({"reduction_loops": {0: 16}}, "reduction_loops has no entry for [0]; it has entries for []"),
        ({"l2_groupings": {1: 4}}, "l2_groupings has no entry for [1]; it has entries for [0]"),
        ({"eviction": {2: "last"}}, "load_eviction_policies has no entry for [2]; it has entries for [0, 1]"),
        (
            {"ranges": {"range_num_stages": {3: 2}}},
            "range_num_stages has no entry for [3]; it has entries for [0, 1, 2]",
        ),
    ],
)
def test_proposals_name_what_exists(wish: dict[str, Any], message: str) -> None:
    with pytest.raises(KeyError, match=re.escape(message)):
        MATMUL().encode(TritonProposal(reason="", **wish))


# ---------------------------------------------------------------------------------------------------------------------
# Moving in the space


@pytest.mark.parametrize(
    ("fragment", "values"),
    [
        (PowerOfTwoFragment(4, 32), (4, 8, 16, 32)),
        (PowerOfTwoFragment(1, 1), (1,)),
        (IntegerFragment(2, 4), (2, 3, 4)),
        (MultipleFragment(16, 32, 80), (32, 48, 64, 80)),
        (EnumFragment(("a", None)), ("a", None)),
        (BooleanFragment(), (False, True)),
        (PermutationFragment(2), ([0, 1], [1, 0])),
    ],
)
def test_values_of(fragment: Any, values: tuple[Any, ...]) -> None:
    assert values_of(fragment) == values
    assert all(fragment.why_not(value) is None for value in values)
    for value in values:
        assert nearest(fragment, value, None) == value
        assert all(other in values and other != value for other in adjacent(fragment, value))


def test_adjacent() -> None:
    assert adjacent(PowerOfTwoFragment(4, 32), 8) == [4, 16]
    assert adjacent(IntegerFragment(0, 4), 0) == [1]
    assert adjacent(MultipleFragment(16, 32, 256), 256) == [128, 240]
    assert adjacent(MultipleFragment(16, 32, 256), 80) == [64, 96, 128]
    assert adjacent(MultipleFragment(1, 1, 3), 1) == [2]
    assert adjacent(EnumFragment((None, True, False)), None) == [True, False]
    assert adjacent(PermutationFragment(2), [0, 1]) == [[1, 0]]


def test_numbers_out_of_range_are_next_to_the_nearest_in_it() -> None:
    """A seed may have a value that searches do not try, such as a split of K into more parts."""
    assert adjacent(PowerOfTwoFragment(1, 16), 64) == [16]
    assert adjacent(IntegerFragment(2, 4), 1) == [2]
    assert adjacent(MultipleFragment(16, 32, 256), 512) == [256]
    assert adjacent(EnumFragment((1, 2, 4)), 8) == [1, 2, 4]


def test_neighbours() -> None:
    space = SOFTMAX(meta(10, 1000))
    config = space.normalize(Config(block_sizes=[4], reduction_loops=[None]))
    assert space.field("block_sizes").neighbours(config["block_sizes"]) == [[2], [8]]
    assert space.field("reduction_loops").neighbours([None]) == [[512]]
    assert space.field("reduction_loops").neighbours([512]) == [[256], [None]]
    assert space.field("num_warps").neighbours(32) == [16]


@given(kernel=st.sampled_from(sorted(KERNELS)), on=st.sampled_from(TARGETS), seed=st.integers(0, 2**32))
def test_random_configs_are_legal(kernel: str, on: str, seed: int) -> None:
    program, space = any_space(kernel, on)
    config = space.random(Random(seed))
    assert tuple(config) == space.keys
    assert space.normalize(config) == config
    assert space.normalize(space.normalize(config)) == space.normalize(config)
    assert Config.from_json(config.to_json()) == config
    assert hash(Config.from_json(config.to_json())) == hash(config)
    assert space.normalize(config.minimize(space)) == config
    sizes = space.sizes(config)
    assert sizes.keys() == {block.id for block in program.blocks}
    assert all(volume.numel(sizes) <= space.target.max_tensor_numel for volume in space.shape.volumes)
    plan = BACKENDS["triton"].plan(program, space.decode(config), space.target, Settings())
    assert plan.launch.pid_type == config["pid_type"]


@pytest.mark.parametrize(
    ("num_warps", "maxnreg", "fitting"), [(8, 256, 256), (16, 256, 128), (32, 256, 64), (32, 64, 64), (32, None, None)]
)
def test_registers_of_a_block_fit(num_warps: int, maxnreg: int | None, fitting: int | None) -> None:
    given = {"maxnreg": maxnreg, "num_warps": num_warps, "pid_type": "persistent_blocked"}
    assert MATMUL().repair(given)["maxnreg"] == fitting
    if fitting == maxnreg:
        assert MATMUL().normalize(given)["maxnreg"] == maxnreg
    assert MATMUL().normalize({**given, "pid_type": "flat"})["maxnreg"] is None, "it has no effect there"


def test_matrix_instructions_are_not_tried_with_too_few_registers() -> None:
    for on, lowest in (("sm_90", 64), ("sm_80", 32)):
        space = space_of(matmul, meta(512, 256), meta(256, 128), on=on)
        tried = {space.field("maxnreg").random(Random(seed)) for seed in range(50)}
        assert min(n for n in tried if n) == lowest
        assert space.normalize({"maxnreg": 32, "pid_type": "persistent_blocked"})["maxnreg"] == 32


@given(kernel=st.sampled_from(sorted(KERNELS)), on=st.sampled_from(TARGETS), seed=st.integers(0, 2**32))
@example(kernel="long softmax", on="xpu", seed=664)  # the warps are raised for long rows, and warps are narrow
def test_neighbours_are_legal(kernel: str, on: str, seed: int) -> None:
    _, space = any_space(kernel, on)
    rng = Random(seed)
    config = space.random(rng)
    for field in space.fields:
        for other in field.neighbours(config[field.key]):
            assert field.read(other) == other
            assert other != config[field.key]


@given(
    kernel=st.sampled_from(sorted(KERNELS)),
    sizes=st.lists(st.integers(0, 20).map(lambda bit: 1 << bit), min_size=4, max_size=4),
    chunk=st.one_of(st.none(), st.integers(0, 20).map(lambda bit: 1 << bit)),
)
def test_repaired_configs_are_normal(kernel: str, sizes: list[int], chunk: int | None) -> None:
    _, space = any_space(kernel, "sm_90")
    given = Config(block_sizes=sizes[: len(space.tunable)], reduction_loops=[chunk] * len(space.rollable))
    config = space.repair(given)
    assert space.normalize(config) == config == space.repair(config)


# ---------------------------------------------------------------------------------------------------------------------
# Sizes that differ from call to call


def test_open_extents_do_not_bound_the_tiles() -> None:
    def dynamic(program: Program) -> Program:
        """The program as it is when the first extent is a run-time number."""
        blocks = tuple(
            dataclasses.replace(block, extent=Expr("host", (f"n{block.id}",), block.extent), max_size=None)
            for block in program.blocks
        )
        return dataclasses.replace(program, blocks=blocks)

    space = build_space(
        dynamic(program_of(softmax, meta(3, 100))), (1,), target("sm_90"), Settings(), BACKENDS["triton"].keys
    )
    config = space.normalize(Config(block_sizes=[64], reduction_loops=[1024]))
    assert (config["block_sizes"], config["reduction_loops"]) == ([64], [1024])
    assert space.conservative()["block_sizes"] == [32]
    assert space.sizes(space.conservative()) == {0: 32, 1: 128}


def test_configs_have_lists_of_their_own() -> None:
    _, space = any_space("matmul", "sm_90")
    one, other = space.conservative(), space.conservative()
    lists = [key for key in one if isinstance(one[key], list)]
    assert one == other and lists and all(one[key] is not other[key] for key in lists)


def test_a_space_is_data() -> None:
    _, space = any_space("matmul", "sm_90")
    again = pickle.loads(pickle.dumps(space))
    for seed in range(5):
        config = space.random(Random(seed))
        assert again.normalize(config) == config
        assert again.decode(config) == space.decode(config)


@pytest.mark.parametrize(
    "backend, key, owner", [("triton", "tcgen05_cluster_m", "cute"), ("triton", "wgmma_c_stages", "cute")]
)
def test_a_key_of_another_backend_is_refused_by_its_name(backend: str, key: str, owner: str) -> None:
    bound = helion.kernel(softmax, backend=backend).bind((meta(8, 16),))
    with pytest.raises(exc.InvalidConfig, match=rf"'{key}' belongs to the {owner} backend.*backend='{owner}'"):
        bound.to_code(Config(block_sizes=[1], **{key: 2}))
    with pytest.raises(exc.InvalidConfig, match="Invalid config keys"):
        bound.to_code(Config(block_sizes=[1], no_key=2))
