"""Accumulators of wgmma are read by a float instruction before integer instructions and selects read them."""

from __future__ import annotations

import inspect
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from triton import knobs

import helion
import helion.language as hl
from helion import hardware
from helion.backends.triton.lower.float_reads import FLOAT_READ_PTX
from helion.backends.triton.toolchain.offline import compile_offline, ptxas_version
from helion.backends.triton.toolchain.signature import offline_signature

TARGETS = ("h100", "sm_80", "sm_100", "gfx942")


def product(
    x: torch.Tensor, y: torch.Tensor, epilogue: Callable[[torch.Tensor, hl.Tile], torch.Tensor]
) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for t, u in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([t, u], dtype=torch.float32)
        for c in hl.tile(x.size(1)):
            acc = hl.dot(x[t, c], y[c, u], acc=acc)
        out[t, u] = epilogue(acc, u)
    return out


def magnitude(acc: torch.Tensor, u: hl.Tile) -> torch.Tensor:
    return torch.rsqrt(torch.abs(acc) + 1.0)


def negated(acc: torch.Tensor, u: hl.Tile) -> torch.Tensor:
    return torch.maximum(acc, -acc)


def bits(acc: torch.Tensor, u: hl.Tile) -> torch.Tensor:
    return (acc.view(torch.int32) & 0x7FFFFF00).view(torch.float32)


def selected(acc: torch.Tensor, u: hl.Tile) -> torch.Tensor:
    return torch.where(u.index[None, :] < 7, acc, 0.0)


def scaled(acc: torch.Tensor, u: hl.Tile) -> torch.Tensor:
    return torch.where(u.index[None, :] < 7, acc * 2.0, 0.0)


READ_AS_BITS = (magnitude, negated, bits, selected)


def bound(epilogue: Callable[[torch.Tensor, hl.Tile], torch.Tensor], target: str) -> Any:
    x, y = (torch.empty(256, 256, dtype=torch.float16, device="meta") for _ in range(2))
    return helion.kernel(product, backend="triton", static_shapes=True).bind((x, y, epilogue), target=target)


CONFIG = helion.Config(block_sizes=[64, 64, 64], num_warps=4, num_stages=4)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("epilogue", READ_AS_BITS)
def test_bits_of_accumulators_are_read_after_a_float_read(epilogue: Callable, target: str) -> None:
    code = bound(epilogue, target).to_triton_code(CONFIG)
    assert (FLOAT_READ_PTX in code) == (target == "h100")


def test_what_a_float_instruction_reads_first_stays() -> None:
    assert FLOAT_READ_PTX not in bound(scaled, "h100").to_triton_code(CONFIG)


@pytest.mark.parametrize("epilogue", [*READ_AS_BITS, scaled])
def test_values_are_the_same(epilogue: Callable) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(65, 130).half() + 0.25, torch.randn(130, 33).half()
    found = helion.kernel(product, backend="triton", config=CONFIG)(x, y, epilogue)
    columns = type("Columns", (), {"index": torch.arange(33)})
    exact = x.double() @ y.double()
    expected = epilogue(exact.float(), columns)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-3)


@helion.kernel(backend="triton", static_shapes=True)
def integers(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.int32, device=x.device)
    for t, u in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([t, u], dtype=torch.int32)
        for c in hl.tile(x.size(1)):
            acc = hl.dot(x[t, c], y[c, u], acc=acc)
        out[t, u] = torch.abs(acc) >> 1
    return out


def accumulators(epilogue: Callable, folder: Path, *, without: bool = False) -> tuple[list[str], int]:
    """Return the accumulators of the binary's wgmma instructions, and the number of those in PTX."""
    return of_kernel(bound(epilogue, "h100"), folder, without=without)


def of_kernel(kernel: Any, folder: Path, *, without: bool = False) -> tuple[list[str], int]:
    plan = kernel._analysis.code(kernel.config_spec.normalize(CONFIG)).plan
    function = inspect.unwrap(kernel.compile_config(CONFIG)).__globals__[plan.kernel_names[0]]
    if without:
        function._unsafe_update_src(
            re.sub(r"tl\.inline_asm_elementwise\('add\.f32[^\[]*\[(\w+)\].*\)", r"\1", function.src)
        )
        assert FLOAT_READ_PTX not in function.src
    compiled = compile_offline(function, **offline_signature(plan, kernel.target))
    binary = folder / "kernel.cubin"
    binary.write_bytes(compiled.asm["cubin"])
    run = subprocess.run([knobs.nvidia.nvdisasm.path, "-c", str(binary)], capture_output=True, text=True, check=True)
    return re.findall(r"[HI]GMMA\S* (\w+),", run.stdout), compiled.asm["ptx"].count("wgmma.mma_async")


@pytest.mark.parametrize("epilogue", READ_AS_BITS)
def test_the_assembler_keeps_the_matmul(epilogue: Callable, tmp_path: Path) -> None:
    found, written = accumulators(epilogue, tmp_path)
    assert len(found) >= written > 0 and "RZ" not in found


def test_the_assembler_keeps_a_matmul_of_integers(tmp_path: Path) -> None:
    """ptxas drops none whose accumulators are integers."""
    x, y = (torch.empty(256, 256, dtype=torch.int8, device="meta") for _ in range(2))
    found, written = of_kernel(integers.bind((x, y.T), target="h100"), tmp_path)
    assert len(found) >= written > 0 and "RZ" not in found


def test_the_assembler_drops_a_matmul_whose_bits_are_read(tmp_path: Path) -> None:
    """ptxas 12.8 does, without the float read; a later one may not."""
    found, _ = accumulators(magnitude, tmp_path, without=True)
    assert ("RZ" in found) == ptxas_version(hardware.target("h100")).startswith("12.8")
