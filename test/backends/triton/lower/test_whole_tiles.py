"""Runs of any length: right against fp64 to the last element, and vectors in all tiles but the last."""

from __future__ import annotations

import inspect

import pytest
import torch

import helion
import helion.language as hl
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature

FLAT = {"block_sizes": [8, 16], "flatten_loops": [True]}
APART = "    else:"


@helion.kernel()
def gated(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, gate = torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size()):
        v = torch.sigmoid(x[tile].to(torch.float32))
        gate[tile] = v.to(x.dtype)
        out[tile] = (v * y[tile]).to(x.dtype)
    return out, gate


@helion.kernel()
def doubled_in_place(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] * 2
    return x


@helion.kernel()
def with_columns(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows, columns in hl.tile(x.size()):
        out[rows, columns] = x[rows, columns] * w[columns]
    return out


@helion.kernel()
def counted(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(n, [0], 1)
        x[tile] = x[tile] + 1
    return x


@pytest.mark.parametrize("shape", [(63, 33), (1, 4097), (129, 8), (1000, 1)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_element_of_a_flattened_grid(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    x, y = (torch.randn(shape, generator=torch.Generator().manual_seed(s)).add(2).to(dtype) for s in (0, 1))
    bound = gated.bind((x, y))
    for pid_type in ("flat", "persistent_blocked"):
        found = bound.compile_config({**FLAT, "pid_type": pid_type})(x, y)
        gate = torch.sigmoid(x.double())
        eps = 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(found[1].double(), gate, rtol=eps, atol=eps)
        torch.testing.assert_close(found[0].double(), gate * y.double(), rtol=eps, atol=eps)


def test_a_view_that_begins_anywhere_in_place() -> None:
    whole = torch.randn(1030)
    expected = whole.clone()
    expected[3:1004] *= 2
    view = whole[3:1004]
    bound = doubled_in_place.bind((view,))
    assert APART not in bound.to_triton_code({"block_sizes": [512]})
    bound.compile_config({"block_sizes": [64]})(view)
    torch.testing.assert_close(whole, expected)


def test_which_grids_have_a_last_tile_apart() -> None:
    def is_apart(kernel: helion.Kernel, config: dict[str, object], *args: torch.Tensor) -> bool:
        return APART in kernel.bind(args).to_triton_code(config)

    odd, even = torch.empty(1001), torch.empty(1024)
    assert is_apart(doubled_in_place, {"block_sizes": [64]}, odd)
    assert not is_apart(doubled_in_place, {"block_sizes": [64]}, even)
    assert not is_apart(doubled_in_place, {"block_sizes": [512]}, odd), "two tiles"
    assert not is_apart(counted, {"block_sizes": [64]}, odd, torch.zeros(1)), "what every tile does once"
    rows, columns = torch.empty(63, 33), torch.empty(33)
    assert is_apart(with_columns, FLAT, rows, columns)
    assert not is_apart(with_columns, {**FLAT, "flatten_loops": [False]}, rows, columns)


def test_accesses_are_vectors() -> None:
    """Of 8 numbers of 16 bits, as the assembler sees them, however odd their count is."""
    x = torch.empty(8191, 4097, dtype=torch.bfloat16, device="meta")
    bound = gated.bind((x, x), target="h200")
    config = {"block_sizes": [1, 1024], "flatten_loops": [True], "num_warps": 4}
    plan = bound._analysis.code(bound.config_spec.normalize(config)).plan
    function = inspect.unwrap(bound.compile_config(config)).__globals__[plan.kernel_names[0]]
    text = compile_offline(function, **offline_signature(plan, bound.target)).asm["ptx"]
    assert text.count("ld.global.v4.b32") == text.count("st.global.v4.b32") == 2
