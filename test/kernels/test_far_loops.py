"""Loops that end within a tile of 2**31: their counters and lanes have room for what goes beyond the end."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature

#: The end of a loop whose last tile of 16 elements or more reaches beyond 2**31.
END = 2**31 - 8


def row_sum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for i in hl.grid(x.size(0)):
        total = 0.0
        for tile in hl.tile(x.size(1)):
            total = total + x[i, tile].to(torch.float32).sum()
        out[i] = total
    return out


def whole_row(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].to(torch.float32).sum(1)
    return out


def column_sum(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(1)], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(1)):
        total = hl.zeros([tile])
        for rows in hl.tile(x.size(0)):
            total = total + x[rows, tile].to(torch.float32).sum(0)
        out[tile] = total
    return out


def stepped(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for i in hl.grid(x.size(0)):
        total = 0.0
        for j in hl.grid(0, x.size(1), 3):
            total = total + x[i, j].to(torch.float32)
        out[i] = total
    return out


def between(x: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    """How many lanes a loop has from ``begin`` to ``end``."""
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        count = 0
        for tile in hl.tile(begin, end):
            count = count + (tile.index >= begin).to(torch.int32).sum()
        out[i] = count
    return out


def until(x: torch.Tensor, begins: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        count = 0
        for tile in hl.tile(begins[i], ends[i]):
            count = count + (tile.index >= 0).to(torch.int32).sum()
        out[i] = count
    return out


def large(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int8, device="meta")


@pytest.mark.parametrize(
    ("function", "shape", "config", "static"),
    [
        pytest.param(row_sum, (1, END), {"block_sizes": [4096]}, True, id="tiles"),
        pytest.param(row_sum, (1, END), {"block_sizes": [4096]}, False, id="tiles of any number"),
        pytest.param(whole_row, (1, END), {"block_sizes": [1], "reduction_loops": [16384]}, True, id="chunks"),
        pytest.param(column_sum, (END, 1), {"block_sizes": [1, 4096]}, True, id="columns"),
        pytest.param(column_sum, (END, 1), {"block_sizes": [1, 4096], "split_k": 64}, True, id="parts"),
        pytest.param(stepped, (1, END), {}, True, id="steps"),
        pytest.param(row_sum, (1, 2**30), {"block_sizes": [4096]}, True, id="few enough"),
    ],
)
def test_counters_have_room(function: Callable[..., Any], shape: Any, config: Any, static: bool) -> None:
    bound = helion.kernel(function, static_shapes=static).bind((large(*shape),), target="sm_90")
    full = bound.config_spec.normalize(config)
    plan = bound._analysis.code(full).plan
    function = inspect.unwrap(bound.compile_config(full)).__globals__[plan.kernel_names[0]]
    text = str(compile_offline(function, **offline_signature(plan, bound.target)).asm["ttir"])
    bits = set(re.findall(r"scf\.for .*: (i\d+) +\{", text))
    assert bits == ({"i32"} if max(shape) == 2**30 else {"i64"})


@pytest.mark.parametrize("static", [True, False])
def test_lanes_beyond_the_end_are_masked(static: bool) -> None:
    kernel = helion.kernel(between, config=helion.Config(block_sizes=[1024]), static_shapes=static)
    x = torch.zeros(2, dtype=torch.int64)
    for begin, end in ((0, 3000), (END - 3001, END), (2**31 - 1 - 70, 2**31 - 1), (-(2**31) + 3, -(2**31) + 2051)):
        assert kernel(x, begin, end).tolist() == [end - begin] * 2


def test_far_loops_of_32_bits_are_refused() -> None:
    kernel = helion.kernel(between, index_dtype=torch.int32)
    with pytest.raises(exc.LoopBoundOutOfRangeForInt32, match=f"up to {END} .*index_dtype=torch.int64") as caught:
        kernel.bind((torch.zeros(1, dtype=torch.int64), 0, END))
    assert "hl.tile(begin, end)" in str(caught.value)


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_loops_over_data_end_near_2_31(index_dtype: torch.dtype) -> None:
    x, begins, ends = torch.zeros(1), *(torch.tensor([n], dtype=torch.int32) for n in (2**31 - 100, 2**31 - 8))
    kernel = helion.kernel(until, config=helion.Config(block_sizes=[64]), index_dtype=index_dtype)
    assert kernel(x, begins, ends).tolist() == [92]


def test_the_ends_of_parts_fit() -> None:
    """The last of 64 parts of 2**20 rows each would end beyond 2**31."""
    bound = helion.kernel(column_sum).bind((large(2**31 - 2**25, 1),), target="sm_90")
    assert bound.env.index_dtype == torch.int32
    for rows, parts in ((2**20, 32), (2**16, 64)):
        config = bound.config_spec.normalize({"block_sizes": [1, rows], "split_k": 64})
        assert (config["block_sizes"], config["split_k"]) == ([1, rows], parts)
