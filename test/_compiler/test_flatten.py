"""Grids over several dimensions as one: generated text, equality with eager PyTorch, and what is refused."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import helion
import helion.language as hl
from helion._compiler.ir.printer import print_program
from helion._compiler.ir.verifier import verify
from helion._compiler.rewrites.flatten_loops import can_flatten, flatten
from helion._testing import map_tensors
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def kernel_text(bound: Any, **config: Any) -> str:
    """The device function of the generated module, without comments."""
    code = bound.to_triton_code(helion.Config(**config))
    lines = code[code.index("@triton.jit") : code.index("\n\n\ndef ")].split("\n")
    return "\n".join(line for line in lines if "# src" not in line)


# --- kernels ------------------------------------------------------------------------------------------------------------


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = torch.broadcast_tensors(x, y)
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] + y[tile]
    return out


def row_and_column(x: torch.Tensor, row: torch.Tensor, column: torch.Tensor, scale: float) -> torch.Tensor:
    """Values of some dimensions only, one that lies in another order, a number, and one element of a tensor."""
    out = torch.empty([x.size(1), x.size(0)])
    for a, b in hl.tile(x.size()):
        factor = torch.sigmoid(column[a]) * scale + row[0]
        out[b, a] = row[b][:, None] + factor[None, :]
    return out


def in_place(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size()):
        x[tile] = torch.where(x[tile] > 0, x[tile] * 2, x[tile])
    return x


def gather(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.empty([index.size(0), x.size(1)])
    for a, b in hl.tile(out.size()):
        out[a, b] = hl.load(x, [index[a], b], extra_mask=(index[a] > 1)[:, None])
    return out


def scatter(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([9, x.size(1)])
    for a, b in hl.tile(x.size()):
        hl.atomic_add(out, [index[a], b], x[a, b])
    return out


def beside_a_sum(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A reduction that has nothing to do with the merged dimensions."""
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size()):
        total = weight[:].sum()
        out[a, b] = x[a, b] * total
    return out


def two_grids(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = torch.empty_like(x), torch.empty([y.size(0)])
    for a, b in hl.tile(x.size()):
        first[a, b] = x[a, b] * 2
    for a in hl.tile(y.size(0)):
        second[a] = y[a, :].amax(-1)
    return first, second


def zeros(x: torch.Tensor) -> torch.Tensor:
    for a, b in hl.tile(x.size()):
        x[a, b] = 3.0
    return x


def upper(x: torch.Tensor) -> torch.Tensor:
    """Elements numbered along both dimensions."""
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size()):
        out[a, b] = torch.where(a.index[:, None] <= b.index[None, :], x[a, b], 0.0)
    return out


def enlarged(x: torch.Tensor) -> torch.Tensor:
    """Gathers by the numbers of elements, and a mask of them."""
    out = torch.empty([2 * x.size(0), 2 * x.size(1)])
    for a, b in hl.tile(out.size()):
        kept = (a.index > 0)[:, None] & (b.index > 0)[None, :]
        out[a, b] = x[a.index // 2, b.index // 2] + hl.load(
            x, [(a.index - 1) // 2, (b.index - 1) // 2], extra_mask=kept
        )
    return out


def planes(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Tiles of one element, of which the position selects numbers, planes and what is added."""
    out = torch.zeros_like(x)
    for a, b, c in hl.tile(x.size(), block_size=[1, None, None]):
        kept = c.index[None, :] < lengths[a.begin]
        value = torch.where(kept, x[a.begin, b, c], a.id * 0.5)
        hl.atomic_add(out, [x.size(0) - 1 - a.begin, b, c], value)
    return out


def resized(x: torch.Tensor, rows: int) -> torch.Tensor:
    """Elements along a number of rows that the caller chooses."""
    out = torch.empty([x.size(0), rows, x.size(1)])
    for a, b, c in hl.tile(out.size(), block_size=[1, None, None]):
        out[a.begin, b, c] = x[a.begin, c][None, :] * b.index[:, None]
    return out


def plain_and_upper(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A grid whose elements are numbered before one whose are not."""
    first, second = torch.empty_like(x), torch.empty_like(y)
    for a, b in hl.tile(x.size()):
        first[a, b] = x[a, b] + a.index[:, None]
    for c, d in hl.tile(y.size()):
        second[c, d] = y[c, d] * 2
    return first, second


# --- text ---------------------------------------------------------------------------------------------------------------


def test_elements_in_memory_order_need_no_division() -> None:
    bound = helion.kernel(add).bind((tensor(5, 7), tensor(5, 7)))
    assert (
        kernel_text(bound, block_sizes=[4, 8], flatten_loops=[True])
        == """\
@triton.jit
def _helion_add(x, y, out):
    pid = tl.program_id(0)
    offset_0_1 = pid * _BLOCK_SIZE_0_1
    indices_0_1 = offset_0_1 + tl.arange(0, _BLOCK_SIZE_0_1)
    mask_0_1 = indices_0_1 < 35
    load = tl.load(x + indices_0_1, mask=mask_0_1, other=0.0)
    load_1 = tl.load(y + indices_0_1, mask=mask_0_1, other=0.0)
    add = load + load_1
    tl.store(out + indices_0_1, add, mask=mask_0_1)"""
    )
    code = bound.to_triton_code(helion.Config(block_sizes=[4, 8], flatten_loops=[True]))
    assert "_BLOCK_SIZE_0_1 = tl.constexpr(32)\n" in code
    assert "_BLOCK_SIZE_0 =" not in code
    assert "_launcher(_helion_add, (2,), x, y, out," in code


def test_broadcast_operands_and_order() -> None:
    bound = helion.kernel(add).bind((tensor(3, 4, 8), tensor(4, 1)))
    config = {"block_sizes": [1, 4, 8], "flatten_loops": [True]}
    assert (
        kernel_text(bound, **config)
        == """\
@triton.jit
def _helion_add(x, y, out):
    pid = tl.program_id(0)
    offset_0_1_2 = pid * _BLOCK_SIZE_0_1_2
    indices_0_1_2 = offset_0_1_2 + tl.arange(0, _BLOCK_SIZE_0_1_2)
    indices_2 = (indices_0_1_2.to(tl.uint32) % 8).to(tl.int32)
    indices_1 = (indices_0_1_2.to(tl.uint32) // 8 % 4).to(tl.int32)
    indices_0 = (indices_0_1_2.to(tl.uint32) // 8 // 4).to(tl.int32)
    load = tl.load(x + indices_0_1_2)
    load_1 = tl.load(y + (indices_0 * 0 + indices_1 + indices_2 * 0))
    add = load + load_1
    tl.store(out + indices_0_1_2, add)"""
    )
    # the last of the order varies fastest
    text = kernel_text(bound, **config, loop_orders=[[2, 0, 1]])
    assert (
        "indices_1 = (indices_2_0_1.to(tl.uint32) % 4).to(tl.int32)\n    indices_0 = (indices_2_0_1.to(tl.uint32) // 4 % 3).to(tl.int32)\n    indices_2 = (indices_2_0_1.to(tl.uint32) // 4 // 3).to(tl.int32)"
        in text
    )
    assert "tl.load(x + (indices_0 * 32 + indices_1 * 8 + indices_2))" in text


def test_numbers_of_elements() -> None:
    bound = helion.kernel(upper).bind((tensor(5, 7),))
    text = kernel_text(bound, block_sizes=[4, 8], flatten_loops=[True])
    assert (
        "indices_1 = (indices_0_1.to(tl.uint32) % 7).to(tl.int32)\n    indices_0 = (indices_0_1.to(tl.uint32) // 7).to(tl.int32)\n    le = indices_0 <= indices_1\n"
        in text
    )
    assert "tl.load(x + indices_0_1, mask=mask_0_1, other=0.0)" in text


def test_columns_in_memory_order() -> None:
    """A column-major tensor is read by number when the first dimension varies fastest."""
    x = tensor(6, 5).t()
    bound = helion.kernel(in_place).bind((x,))
    text = kernel_text(bound, block_sizes=[4, 8], flatten_loops=[True], loop_orders=[[1, 0]])
    assert "tl.load(x + indices_1_0, " in text
    assert "%" not in text


def test_sizes_known_at_run_time() -> None:
    bound = helion.kernel(add, static_shapes=False).bind((tensor(5, 7), tensor(5, 1)))
    text = kernel_text(bound, block_sizes=[4, 8], flatten_loops=[True])
    assert "mask_0_1 = indices_0_1 < number" in text and "tl.store(out + indices_0_1, " in text
    digits = r"indices_1 = \(indices_0_1.to\(tl.uint32\) % tl.cast\(\w+_size_1, tl.uint32\)\).to\(tl.int32\)\n"
    assert re.search(digits + digits.replace("indices_1 =", "    indices_0 =").replace("%", "//"), text)


def test_program() -> None:
    program = helion.kernel(add).bind((tensor(5, 7), tensor(7)))._analysis.program
    text = print_program(verify(flatten(program, 0), "flatten"))
    assert "grid b2 in 0..35 tiles:" in text
    assert re.search(r"%\d+: float32\[b2\] = load x\[0, b2\] slot 0", text)
    assert re.search(r"%\d+: float32\[b2\] = load y\[b0, b1\] slot 1", text)


def test_other_ways_of_indexing_fall_back_to_pointers() -> None:
    bound = helion.kernel(add).bind((meta(64, 64), meta(64, 64)), target="sm_90")
    config = {"block_sizes": [16, 16], "flatten_loops": [True]}
    for mechanism in ("block_ptr", "tensor_descriptor"):
        assert kernel_text(bound, **config, indexing=mechanism) == kernel_text(bound, **config)


def test_normal_form() -> None:
    """A flattened grid has one dimension."""
    spec = helion.kernel(add).bind((meta(64, 64), meta(64, 64)), target="sm_90").config_spec
    config = spec.normalize({"flatten_loops": [True], "l2_groupings": [8], "pid_type": "xyz"})
    assert (config["flatten_loops"], config["l2_groupings"], config["pid_type"]) == ([True], [1], "flat")
    assert spec.normalize({"l2_groupings": [8], "flatten_loops": [False]})["l2_groupings"] == [8]
    assert spec.field("flatten_loops").neighbours([False]) == [[True]]


# --- values -------------------------------------------------------------------------------------------------------------

INDEX = torch.tensor([3, 0, 8, 8, 1, 4, 2])


def _enlarged(x: torch.Tensor) -> torch.Tensor:
    large = x.repeat_interleave(2, 0).repeat_interleave(2, 1)
    return large + torch.nn.functional.pad(large[:-1, :-1], (1, 0, 1, 0))


CASES: dict[str, tuple[Callable[..., Any], Callable[[int, int], tuple[Any, ...]], Callable[..., Any]]] = {
    "add": (add, lambda m, n: (tensor(m, n), tensor(m, n)), lambda x, y: x + y),
    "row": (add, lambda m, n: (tensor(m, n), tensor(n)), lambda x, y: x + y),
    "three dimensions": (add, lambda m, n: (tensor(m, 1, n), tensor(3, 1)), lambda x, y: x + y),
    "columns": (add, lambda m, n: (tensor(n, m).t(), tensor(m, n)), lambda x, y: x + y),
    "every other": (add, lambda m, n: (tensor(2 * m, 2 * n)[::2, ::2], tensor(m, 1)), lambda x, y: x + y),
    "in place": (in_place, lambda m, n: (tensor(m, n),), lambda x: torch.where(x > 0, x * 2, x)),
    "gather": (gather, lambda m, n: (tensor(9, n), INDEX), lambda x, i: torch.where((i > 1)[:, None], x[i], 0.0)),
    "scatter": (scatter, lambda m, n: (tensor(7, n), INDEX), lambda x, i: torch.zeros(9, x.size(1)).index_add(0, i, x)),
    "beside": (beside_a_sum, lambda m, n: (tensor(m, n), tensor(5)), lambda x, w: x * w.sum()),
    "two grids": (two_grids, lambda m, n: (tensor(m, n), tensor(n, m)), lambda x, y: (x * 2, y.amax(-1))),
    "part of the dimensions": (
        row_and_column,
        lambda m, n: (tensor(m, n), tensor(n), tensor(m), 0.5),
        lambda x, row, column, scale: row[:, None] + torch.sigmoid(column) * scale + row[0],
    ),
    "numbered": (upper, lambda m, n: (tensor(m, n),), torch.triu),
    "enlarged": (enlarged, lambda m, n: (tensor(m, n),), _enlarged),
    "planes": (
        planes,
        lambda m, n: (tensor(3, m, n), torch.tensor([n, 0, 2])),
        lambda x, lengths: torch.where(
            torch.arange(x.size(2)) < lengths[:, None, None], x, torch.arange(3)[:, None, None] * 0.5
        ).flip(0),
    ),
    "resized": (resized, lambda m, n: (tensor(m, n), 5), lambda x, rows: x[:, None] * torch.arange(rows)[:, None]),
    "constant": (zeros, lambda m, n: (tensor(m, n),), lambda x: torch.full_like(x, 3.0)),
}  # fmt: skip
KERNELS = {
    (name, static): helion.kernel(function, static_shapes=static)
    for name, (function, _, _) in CASES.items()
    for static in (True, False)
}


@given(
    name=st.sampled_from(sorted(CASES)),
    shape=st.tuples(st.integers(1, 19), st.integers(1, 19)),
    data=st.data(),
    static=st.booleans(),
)
def test_equals_eager(name: str, shape: tuple[int, int], data: st.DataObject, static: bool) -> None:
    _, make, reference = CASES[name]
    args = make(*shape)
    bound = KERNELS[name, static].bind(args)
    base = bound.conservative_config()
    (rank,) = (len(order) for order in base["loop_orders"])
    config = {
        "block_sizes": [data.draw(st.sampled_from((1, 2, 8, 16))) for _ in base["block_sizes"]],
        "loop_orders": [data.draw(st.permutations(range(rank)))],
        "pid_type": data.draw(st.sampled_from(("flat", "persistent_blocked", "persistent_interleaved"))),
        "flatten_loops": [True],
    }
    expected = reference(*(a.clone() if isinstance(a, torch.Tensor) else a for a in args))
    torch.testing.assert_close(bound.compile_config(config)(*args), expected)


def test_no_elements() -> None:
    for static in (True, False):
        for shape in ((0, 5), (5, 0)):
            bound = KERNELS["row", static].bind((tensor(*shape), tensor(shape[1])))
            out = bound.compile_config({"block_sizes": [1, 1], "flatten_loops": [True]})(
                tensor(*shape), tensor(shape[1])
            )
            assert out.shape == shape


def ptx(bound: Any, config: dict[str, Any]) -> str:
    full = bound.config_spec.normalize(config)
    plan = bound._analysis.code(full).plan
    kernel = inspect.unwrap(bound.compile_config(full)).__globals__[plan.kernel_names[0]]
    return compile_offline(kernel, **offline_signature(plan, bound.target)).asm["ptx"]


@pytest.mark.parametrize("name", sorted(CASES))
def test_compiles(name: str) -> None:
    function, make, _ = CASES[name]
    args = map_tensors(make(37, 21), lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta"))
    bound = helion.kernel(function).bind(args, target="sm_90")
    sizes = [8] * len(bound.conservative_config()["block_sizes"])
    assert bound.resources({"block_sizes": sizes, "flatten_loops": [True]}).spill_bytes == 0


def test_rows_of_odd_size_are_vectorized() -> None:
    """Rows of 1023 elements begin anywhere, numbered or not; a flattened tile begins at a multiple of 16 bytes, and only the last one,
    all of whose lanes go through the same mask, reaches past the end."""
    bound = helion.kernel(add).bind((meta(1024, 1023), meta(1024, 1023)), target="sm_90")
    flat, nested = (
        ptx(bound, {"block_sizes": [1, 1024], "flatten_loops": [flag], "num_warps": 4}) for flag in (True, False)
    )
    assert flat.count("ld.global.v4") == 4
    assert "ld.global.v4" not in nested
    bound = helion.kernel(upper).bind((meta(1024, 1023),), target="sm_90")
    assert ptx(bound, {"block_sizes": [1, 1024], "flatten_loops": [True], "num_warps": 4}).count("ld.global.v4") == 2


# --- refusals -----------------------------------------------------------------------------------------------------------


def reduces(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] - x[a, b].sum(-1)[:, None]


def loops(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size()):
        total = hl.zeros([a, b])
        for _ in range(3):
            total = total * 2 + x[a, b]
        out[a, b] = total


def multiplies(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, :] @ x[:, b]


def transposes(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size()):
        out[b, a] = x[a, b].t()


def merges(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size()):
        out[a, b] = (x[a, b].reshape(-1) * 2).reshape(a.block_size, b.block_size)


def mixes(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size()):
        out[a, b] = (x[a, b][:, :, None] * x[0, :][None, None, :]).sum(-1)


def stores_a_part(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b]
        out[a, 0] = x[a, 0]


def adds_a_position(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size(), block_size=[1, None]):
        out[a.begin, b] = x[a.begin, b.index + a.begin]


def sums_for_one(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size(), block_size=[1, None]):
        out[a.begin, b] = x[a.begin, b] + (x[0, :] * a.begin).sum(-1)


def counts_tiles(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size()):
        hl.atomic_add(out, [0, 0], 1.0)
        out[a, b] = x[a, b]


def prints(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size()):
        print("x", x[a, b])
        out[a, b] = x[a, b]


def twice(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] + hl.cumsum(x[a, b], -1)


def branches(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size()):
        value = x[a, b]
        if x[0, 0] > 0:
            value = value * 2
        out[a, b] = value


def numbers_lanes(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] + hl.arange(a.block_size)[:, None]


def random_numbers(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] + hl.rand([a, b], seed=7)


DECLINED: list[tuple[Callable[..., None], str]] = [
    (reduces, "a reduction uses a merged dimension"),
    (multiplies, "a value has another dimension besides the merged ones"),
    (loops, "a loop uses a merged dimension"),
    (transposes, "a permute uses a merged dimension"),
    (merges, "a reshape merges a dimension with another"),
    (mixes, "a value has another dimension besides the merged ones"),
    (stores_a_part, "a store does not span all of the dimensions"),
    (counts_tiles, "an atomic does not span all of the dimensions"),
    (prints, "the body has a print, which would see other tiles"),
    (twice, "a scan uses a merged dimension"),
    (branches, "a branch uses a merged dimension"),
    (numbers_lanes, "the position of a tile is read"),
]


@pytest.mark.parametrize(("function", "reason"), DECLINED, ids=[f.__name__ for f, _ in DECLINED])
def test_declined(function: Callable[..., None], reason: str) -> None:
    bound = helion.kernel(function).bind((meta(64, 64), meta(64, 64)), target="sm_90")
    assert can_flatten(bound._analysis.program, 0) == reason
    asked = {"flatten_loops": [True]}
    assert bound.config_spec.normalize(asked)["flatten_loops"] == [False]
    (change,) = bound.config_spec.adjusted(asked)
    assert str(change) == f"flatten_loops[0] (a, b) is False, not True: {reason}"


def reads_a_position(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] + a.begin


def reads_a_chosen_position(x: torch.Tensor, out: torch.Tensor) -> None:
    rows = hl.register_tunable("rows", helion.autotuner.PowerOfTwoFragment(1, 16))
    for a, b in hl.tile(x.size(), block_size=[helion.cdiv(rows, 2), None]):
        out[a, b] = x[a, b] + a.begin


def reads_an_end(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile(x.size(), block_size=[1, None]):
        out[a.begin, b] = x[a.end - 1, b]


def begins_later(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.tile([1, 0], [x.size(0), x.size(1)]):
        out[a, b] = x[a, b]


def one_by_one(x: torch.Tensor, out: torch.Tensor) -> None:
    for a, b in hl.grid(x.size()):
        out[a, b] = x[a, b]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (reads_a_position, "the position of a tile is read"),
        (reads_a_chosen_position, "the position of a tile is read"),
        (adds_a_position, "a subscript adds the position of a tile to another index"),
        (sums_for_one, "a value of other dimensions is used with the merged ones"),
        (random_numbers, "a random uses a merged dimension"),
        (reads_an_end, "the position of a tile is read"),
        (begins_later, "a dimension does not begin at 0"),
        (one_by_one, "a dimension does not begin at 0"),
    ],
)
def test_without_an_entry(function: Callable[..., None], reason: str) -> None:
    bound = helion.kernel(function).bind((meta(64, 64), meta(64, 64)), target="sm_90")
    assert can_flatten(bound._analysis.program, 0) == reason
    assert bound.conservative_config()["flatten_loops"] == []


def test_entries_of_numbered_grids_are_the_last() -> None:
    bound = helion.kernel(plain_and_upper).bind((meta(64, 64), meta(64, 64)), target="sm_90")
    text = bound.to_triton_code(helion.Config(block_sizes=[8] * 4, flatten_loops=[True]))
    assert "indices_2_3 =" in text and "indices_0_1 =" not in text
    text = bound.to_triton_code(helion.Config(block_sizes=[8] * 4, flatten_loops=[False, True]))
    assert "indices_2_3 =" not in text and "indices_0_1 =" in text


def inner_nest(x: torch.Tensor, out: torch.Tensor) -> None:
    for a in hl.tile(x.size(0)):
        first = x[a, 0, 0]
        for b, c in hl.tile([x.size(1), x.size(2)]):
            out[a, b, c] = x[a, b, c] * first[:, None, None] + x[0, 0, c]


def test_nests_of_more_than_a_run_are_not_flattened() -> None:
    bound = helion.kernel(inner_nest).bind((meta(8, 8, 8), meta(8, 8, 8)), target="sm_90")
    assert can_flatten(bound._analysis.program, 0) == "the grid has one dimension"
    (change,) = bound.config_spec.adjusted({"flatten_loops": [True]})
    assert change.why == "a tensor has the elements in another order"


def test_more_elements_than_32_bits_can_number() -> None:
    """The last tile would reach past 2**31, although every element of the tensor has an offset below it."""
    x = torch.empty(46340, 46340, dtype=torch.int8, device="meta")
    bound = helion.kernel(in_place).bind((x,), target="sm_90")
    program = bound._analysis.program
    assert program.index_dtype == torch.int64 and can_flatten(program, 0) is None
    narrow = dataclasses.replace(program, index_dtype=torch.int32)
    assert can_flatten(narrow, 0) == "2147395600 elements cannot be numbered with 32-bit indices"
