"""Alternates with options of AMD's compiler."""

from __future__ import annotations

import pytest
import sample_kernels
import torch
from harness import tensor

import helion
from helion.backends.triton.heuristics.amd_options import with_amd_options
from helion.backends.triton.proposal import TritonProposal

matmul, attention = map(helion.kernel, (sample_kernels.matmul, sample_kernels.attention))
SQUARE = (tensor(4096, 4096), tensor(4096, 4096))
HEADS = (tensor(64, 4096, 64), tensor(64, 64, 4096), tensor(64, 4096, 64))


def options(bound: helion.BoundKernel) -> list[tuple[int, int]]:
    """The options of each seed: waves of a unit, and rows of matrix instructions."""
    keys = ("waves_per_eu", "matrix_instr_nonkdim")
    return [tuple(seed.config.get(key, 0) for key in keys) for seed in bound.seeds]  # type: ignore[misc]


@pytest.mark.parametrize(("kernel", "args"), [(matmul, SQUARE), (attention, HEADS)], ids=["matmul", "attention"])
@pytest.mark.parametrize("gpu", ["gfx942", "gfx950", "sm_90"])
def test_alternates_have_small_matrix_instructions(kernel: helion.Kernel, args: tuple[object, ...], gpu: str) -> None:
    bound = kernel.bind(args, target=gpu)
    found = options(bound)
    assert found[0] == (0, 0) and bound.default_config() == bound.seeds[0].config
    assert ((0, 16) in found) is gpu.startswith("gfx")


@pytest.mark.parametrize(
    ("tile", "warps", "stages", "expected"),
    [
        ((64, 256, 32), 4, 1, [{"matrix_instr_nonkdim": 16}, {"kpack": 2}, {"waves_per_eu": 4}]),
        (
            (64, 256, 32),
            4,
            2,
            [{"matrix_instr_nonkdim": 16}, {"kpack": 2}],
        ),  # shared memory has room for three programs
        ((128, 256, 32), 4, 1, [{"matrix_instr_nonkdim": 16}, {"kpack": 2}]),  # too many registers for three waves
        ((64, 64, 32), 4, 1, [{"matrix_instr_nonkdim": 16}, {"kpack": 2}]),  # enough waves
        ((16, 64, 32), 4, 1, [{"kpack": 2}]),  # Triton takes the small instructions
    ],
)
def test_one_more_wave_where_registers_almost_suffice(
    tile: tuple[int, int, int], warps: int, stages: int, expected: list[dict[str, object]]
) -> None:
    bound = matmul.bind(SQUARE, target="gfx942")
    first = TritonProposal(
        reason="a tile", block_sizes=dict(enumerate(tile)), num_warps=warps, num_stages=stages, launch={"split_k": 1}
    )
    same, *others = with_amd_options((first,), bound.facts, bound.target)
    expected = [{"xcd_remap": True}, *expected]
    assert same is first and [dict(each.launch) for each in others] == [{"split_k": 1, **each} for each in expected]
    for each in others:
        assert bound.config_spec.normalize({"block_sizes": [*tile], "num_warps": warps, **each.launch})


@pytest.mark.parametrize(
    ("gpu", "dtype", "packed"),
    [("gfx942", torch.bfloat16, True), ("gfx942", torch.float32, False), ("gfx950", torch.bfloat16, False)],
)
def test_operands_of_two_steps_are_read_at_once(gpu: str, dtype: torch.dtype, packed: bool) -> None:
    """Only CDNA 3 has instructions that read 8 bytes of each row."""
    bound = matmul.bind((tensor(4096, 4096, dtype=dtype), tensor(4096, 4096, dtype=dtype)), target=gpu)
    assert any(seed.config.get("kpack") == 2 for seed in bound.seeds) is packed
    assert bound.default_config().get("kpack") is None


def test_an_access_reads_operands_of_two_steps() -> None:
    args = (tensor(4096, 4096, dtype=torch.bfloat16), tensor(4096, 4096, dtype=torch.bfloat16))
    bound = matmul.bind(args, target="gfx942")
    taken = [
        bound.resources(helion.Config(block_sizes=[128, 128, 64], num_warps=4, num_stages=2, kpack=kpack))
        for kpack in (None, 2)
    ]
    assert taken[1].registers < taken[0].registers and taken[1].spill_bytes == 0
    with pytest.raises(helion.exc.InvalidConfig, match="kpack"):
        matmul.bind(args, target="gfx950").config_spec.normalize({"kpack": 2})


@pytest.mark.prove
def test_alternates_compile_without_spills() -> None:
    product, heads = matmul.bind(SQUARE, target="gfx942"), attention.bind(HEADS, target="gfx942")
    found = [(bound, seed.config) for bound in (product, heads) for seed in bound.seeds]
    found.append((product, helion.Config(block_sizes=[64, 256, 32], num_warps=4, num_stages=1, waves_per_eu=4)))
    for bound, config in found:
        if any(config.get(key) for key in ("waves_per_eu", "matrix_instr_nonkdim", "kpack")):
            assert bound.resources(config).spill_bytes == 0
