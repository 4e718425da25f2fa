"""Programs numbered so that neighbors run on one die (``xcd_remap``), for GPUs that deal programs to several dies."""

from __future__ import annotations

import types
from typing import Any

import pytest
import sample_kernels
import torch
from harness import tensor

import helion
import helion.language as hl
from helion import exc
from helion.hardware import from_driver, target

matmul = helion.kernel(sample_kernels.matmul)


@helion.kernel()
def scaled_and_sums(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale a matrix, and add up the columns of another, in grid loops of one kernel."""
    scaled, sums = torch.empty_like(x), torch.empty([y.size(0)], device=y.device)
    for rows, columns in hl.tile([x.size(0), x.size(1)]):
        scaled[rows, columns] = x[rows, columns] * 2
    for rows in hl.tile(y.size(0)):
        sums[rows] = y[rows, :].sum(-1)
    return scaled, sums


def on_amd(kernel: helion.Kernel, args: tuple[torch.Tensor, ...], **config: object) -> tuple[str, object]:
    """Return the code for gfx942, and what the interpreter computes by it."""
    bound = kernel.bind(args, target="gfx942")
    full = bound.config_spec.normalize({"xcd_remap": True, **config})
    return bound.to_triton_code(full), bound.compile_config(full)(*args)


@pytest.mark.parametrize("pid_type", ["flat", "persistent_blocked", "persistent_interleaved"])
@pytest.mark.parametrize(("m", "n"), [(70, 45), (16, 16), (130, 300)])
def test_each_tile_is_computed_once(pid_type: str, m: int, n: int) -> None:
    x, y = torch.randn(m, 37) + 0.5, torch.randn(37, n) + 0.5
    code, found = on_amd(matmul, (x, y), block_sizes=[16, 16, 16], l2_groupings=[2], pid_type=pid_type)
    assert "% 8" in code and "tl.num_programs(0) // 8" in code
    torch.testing.assert_close(found, (x.double() @ y.double()).float(), atol=1e-4, rtol=1e-4)


def test_all_grid_loops_of_a_kernel_are_numbered_together() -> None:
    x, y = torch.randn(33, 70) + 0.5, torch.randn(45, 19) + 0.5
    code, found = on_amd(scaled_and_sums, (x, y), block_sizes=[8, 16, 4])
    assert code.count("tl.num_programs(0) // 8") == 1
    assert isinstance(found, tuple)
    torch.testing.assert_close(found, (x * 2, y.sum(-1)))


@pytest.mark.parametrize("programs", [1, 7, 8, 9, 23, 64, 67])
def test_programs_of_one_die_have_consecutive_numbers(programs: int) -> None:
    """The formula of the code: of programs dealt to dies in turn, each die has one interval, and they follow each other."""
    code, _ = on_amd(ramp, (torch.zeros(programs * 4),), block_sizes=[4])
    lines = [text.strip() for text in code.splitlines() if text.strip().startswith(("pid =", "pid_die ="))]
    order = []
    for program in range(programs):
        ids = {"program_id": lambda _, own=program: own, "num_programs": lambda _: programs, "minimum": min}
        names: dict[str, Any] = {"tl": types.SimpleNamespace(**ids)}
        exec("\n".join(lines), names)
        order.append(names["pid"])
    assert sorted(order) == list(range(programs))
    assert [number for die in range(8) for number in order[die::8]] == list(range(programs))


@helion.kernel()
def ramp(x: torch.Tensor) -> torch.Tensor:
    """Store the index of each element."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = tile.index.to(torch.float32)
    return out


def test_a_grid_of_several_dimensions_keeps_its_numbers() -> None:
    bound = matmul.bind((tensor(512, 512), tensor(512, 512)), target="gfx942")
    assert bound.config_spec.normalize({"xcd_remap": True, "pid_type": "xyz"})["xcd_remap"] is False
    assert bound.config_spec.normalize({"xcd_remap": True})["xcd_remap"] is True


def test_gpus_of_one_die_refuse_it() -> None:
    bound = matmul.bind((tensor(512, 512), tensor(512, 512)), target="sm_90")
    with pytest.raises(exc.InvalidConfig, match="xcd_remap cannot be True: it is an option of GPUs with several dies"):
        bound.config_spec.normalize({"xcd_remap": True})
    assert "xcd_remap" not in bound.config_spec.normalize({"xcd_remap": False})


def test_alternates_have_it_where_programs_share_more_than_the_cache_of_a_die() -> None:
    large = matmul.bind((tensor(4096, 4096), tensor(4096, 4096)), target="gfx942")
    small = matmul.bind((tensor(256, 256), tensor(256, 256)), target="gfx942")
    assert [seed.config["xcd_remap"] for seed in large.seeds].count(True) == 1
    assert large.default_config()["xcd_remap"] is False
    assert not any(seed.config["xcd_remap"] for seed in small.seeds)


def test_a_part_of_a_gpu_has_a_part_of_its_dies() -> None:
    properties = types.SimpleNamespace(name="AMD Instinct MI300A", gcnArchName="gfx942", multi_processor_count=228)
    assert from_driver(properties).xcds == 6 and target("gfx942").xcds == target("gfx950").xcds == 8
    assert from_driver(types.SimpleNamespace(name="", gcnArchName="gfx942", multi_processor_count=38)).xcds == 1
    assert target("h200").xcds == 1


def test_it_compiles_for_an_amd_gpu() -> None:
    bound = matmul.bind((tensor(512, 512), tensor(512, 512)), target="gfx942")
    assert bound.resources(helion.Config(block_sizes=[64, 64, 32], xcd_remap=True)).spill_bytes == 0
