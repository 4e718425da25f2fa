"""Operands of matmuls are loaded before an earlier matmul whose operands have another swizzle."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from helion.backends.triton.toolchain.descriptors import clash
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature

FP16 = torch.float16


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    m, d = q.size(0), hl.specialize(q.size(1))
    out = torch.empty([m, hl.specialize(v.size(1))], dtype=torch.float32, device=q.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, v.size(1)], dtype=torch.float32)
        rows = q[tile_m, :] * (d**-0.5)
        for tile_n in hl.tile(k.size(1)):
            weights = torch.relu(hl.dot(rows.to(q.dtype), k[:, tile_n]))
            acc = hl.dot(weights.to(v.dtype), v[tile_n, :], acc=acc)
        out[tile_m, :] = acc
    return out


def written_between(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The values are written after the first matmul."""
    out = torch.empty([q.size(0), hl.specialize(v.size(1))], dtype=torch.float32, device=q.device)
    for tile_m, tile_n in hl.tile([q.size(0), k.size(1)]):
        weights = torch.relu(hl.dot(q[tile_m, :], k[:, tile_n]))
        v[tile_n, :] = v[tile_n, :] * 2.0
        out[tile_m, :] = hl.dot(weights.to(v.dtype), v[tile_n, :])
    return out


def bound(function: Callable[..., Any], q: tuple, k: tuple, v: tuple, on: str = "sm_90", dtype: Any = FP16) -> Any:
    args = tuple(tensor(*shape, dtype=dtype) for shape in (q, k, v))
    return helion.kernel(function, backend="triton", static_shapes=True).bind(args, target=on)


def config(rows: int = 64, columns: int = 64, warps: int = 4) -> helion.Config:
    return helion.Config(block_sizes=[rows, columns], num_warps=warps, num_stages=2)


def is_early(kernel: Any, chosen: helion.Config) -> bool:
    """Return whether the generated code loads the values before it multiplies queries by keys."""
    code = kernel.to_triton_code(chosen)
    return code.index("tl.load(v +") < code.index("tl.dot(")


SHAPES = ((200, 32), (32, 97), (97, 32))


@pytest.mark.parametrize(("width", "early"), [(16, True), (32, True), (64, False), (128, False)])
def test_values_of_narrower_rows_are_loaded_first(width: int, early: bool) -> None:
    kernel = bound(attention, (200, 32), (32, 97), (97, width))
    assert is_early(kernel, config()) == early
    assert not is_early(kernel, config(columns=32))  # two steps along K
    assert not is_early(bound(attention, (200, 32), (32, 97), (97, width), "sm_80"), config())


def test_short_keys_and_other_dtypes_stay() -> None:
    assert not is_early(bound(attention, (200, 16), (16, 97), (97, 32)), config())  # one step along K
    assert not is_early(bound(attention, *SHAPES, dtype=torch.float32), config())  # K-major, with as many columns
    keys = tensor(97, 32, dtype=FP16).T
    rows = helion.kernel(attention, static_shapes=True).bind(
        (tensor(200, 32, dtype=FP16), keys, tensor(97, 32, dtype=FP16)), target="sm_90"
    )
    assert not is_early(rows, config())


def test_loads_stay_after_the_store_that_they_read() -> None:
    code = bound(written_between, (64, 32), (32, 64), (64, 32)).to_triton_code(config())
    assert code.index("tl.store(v +") > code.index("tl.dot(") and code.rindex("tl.load(v +") > code.index(
        "tl.store(v +"
    )


@pytest.mark.parametrize(("rows", "columns", "warps"), [(64, 64, 4), (128, 128, 4), (128, 64, 8)])
def test_no_descriptors_clash(rows: int, columns: int, warps: int) -> None:
    kernel = bound(attention, *SHAPES)
    full = kernel.config_spec.normalize(config(rows, columns, warps))
    plan = kernel._analysis.code(full).plan
    function = inspect.unwrap(kernel.compile_config(full)).__globals__[plan.kernel_names[0]]
    compiled = compile_offline(function, **offline_signature(plan, kernel.target))
    assert "wgmma" in compiled.asm["ptx"] and clash(compiled.asm["ptx"]) is None


def test_early_operands_are_right() -> None:
    torch.manual_seed(0)
    q, k, v = ((torch.randn(*shape) + 0.25).half() for shape in SHAPES)
    kernel = helion.kernel(attention, backend="triton", config=config())
    weights = torch.relu((q * 32**-0.5).double() @ k.double()).half().double()
    torch.testing.assert_close(kernel(q, k, v).double(), weights @ v.double(), rtol=2e-3, atol=2e-3)
