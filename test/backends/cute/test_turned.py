"""Matmuls whose rows fill tiles better with A and B swapped: TMA stores their output in tiles that are contiguous along M."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from backends.cute import gemms, products

import helion
import helion.language as hl
from helion.backends.cute.lower.kernel import known_product
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.operands import fills_turned_tiles
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.resources.shape import ProductShape, shape_of

LINES = 4096


def arguments(m: int, device: str = "meta", dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
    x, w = torch.empty(m, LINES, dtype=dtype, device=device), torch.empty(LINES, LINES, dtype=dtype, device=device)
    if device != "meta":
        generator = torch.Generator().manual_seed(m)
        x.normal_(generator=generator).add_(0.25)
        w.normal_(generator=generator).mul_(LINES**-0.5)
    return x, w.t()


@helion.kernel(backend="cute", static_shapes=True)
def biased(
    x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = torch.relu(acc + bias[tile_n]) * scale[tile_m][:, None] + residual[tile_m, tile_n]
    return out


def test_rows_are_the_columns_of_tiles() -> None:
    x, y = arguments(150, "cpu")
    bias, scale = torch.randn(LINES), torch.rand(150)
    residual = torch.randn(150, LINES)
    given = (x, y, bias, scale, residual)
    bound = biased.bind(given, target="h200")
    problem = bound.plan().gemm.problem
    assert (problem.m, problem.n, problem.k) == (LINES, 150, LINES)
    assert [(each.kind, each.pitch, each.column_pitch) for each in problem.outputs] == [("exact", 1, LINES)]
    assert sorted(each.kind for each in problem.epilogue.operands) == ["column", "exact", "row"]
    shape = shape_of(bound.facts)
    assert isinstance(shape, ProductShape)
    assert shape.blocks == known_product(bound.plan().program).blocks
    assert [each.column_pitch for each in shape.problem.outputs] == [LINES]
    assert [each.column_pitch for each in shape.problem.epilogue.of_kind("exact")] == [LINES]
    exact = torch.relu(x.double() @ y.double() + bias.double()) * scale.double()[:, None] + residual.double()
    torch.testing.assert_close(bound(*given).double(), exact, rtol=1e-2, atol=1e-2)


def test_columns_of_a_tile_cover_the_rows() -> None:
    """300 rows are two tiles of 160 columns, which read lines of the weights together."""
    x, w = (torch.empty(lines, 8192, dtype=torch.bfloat16, device="meta") for lines in (300, 8192))
    bound = products.matmul.bind((x, w.t()), target="h200")
    config = bound.default_config()
    assert (config["block_sizes"][:2], config["wgmma_cluster_n"]) == ([160, 128], 2)
    text = bound.to_cute_code(config)
    assert "StMatrix8x8x16bOp(True" in text and "LayoutEnum.COL_MAJOR, (128, 16)" in text


def test_tiles_that_read_rows_together_share_them() -> None:
    x, w = (torch.empty(lines, 8192, dtype=torch.bfloat16, device="meta") for lines in (8192, 304))
    config = products.matmul.bind((x, w.t()), target="h200").default_config()
    assert (config["block_sizes"][:2], config["wgmma_cluster_n"]) == ([128, 160], 2)


@pytest.mark.parametrize("m", [128, 250, 384, 520])
def test_rows_that_fill_usual_tiles_stay_rows(m: int) -> None:
    assert products.matmul.bind(arguments(m), target="h200").plan().gemm.problem.n == LINES


@pytest.mark.parametrize(
    "changes",
    [
        {"operand_dtype": "float32"},
        {"output_dtype": "float32"},
        {"k": LINES - 8},
        {"m": 320, "n": 12288},
        {"n": LINES - 8},
        {"runtime": ("size_m",)},
        {"starts": (8, 0)},
        {"rounded": "bfloat16"},
        {"epilogue": gemms.swiglu(LINES)},
    ],
    ids=str,
)
def test_other_matmuls_keep_their_rows(changes: dict[str, object]) -> None:
    problem = gemms.product(300, LINES, LINES)
    assert fills_turned_tiles(problem)
    assert not fills_turned_tiles(dataclasses.replace(problem, **changes))  # type: ignore[arg-type]


def test_what_tma_does_not_store_along_m_is_refused() -> None:
    epilogue = gemms.along_m(LINES)
    (output,) = epilogue.outputs
    for changed, message in (
        (
            dataclasses.replace(output, dtype="float32"),
            "is contiguous along M, which is implemented for one matrix of 16 or 32 bits, as operands have",
        ),
        (dataclasses.replace(output, column_pitch=LINES - 8), "between lines of 4096: they overlap"),
        (dataclasses.replace(output, column_pitch=LINES + 4), "TMA needs a multiple of 16 bytes"),
    ):
        problem = gemms.product(LINES, 300, 512, epilogue=dataclasses.replace(epilogue, outputs=(changed,)))
        with pytest.raises(Refusal, match=message):
            plan_gemm(problem, Choice(tile=(128, 160, 64)), gemms.HOPPER)


def test_auto_takes_what_has_run() -> None:
    kernel = helion.kernel(products.matmul.fn, backend="auto", static_shapes=True)
    assert kernel.bind(arguments(300), target="h200").backend_on_gpu == "cute"
    assert kernel.bind(arguments(300), target="b200").backend_on_gpu == "triton"


def test_two_ctas_have_half_of_the_rows_each_where_one_would_have_many() -> None:
    x, w = (torch.empty(lines, 8192, dtype=torch.bfloat16, device="meta") for lines in (200, 8192))
    config = products.matmul.bind((x, w.t()), target="h200").default_config()
    assert (config["block_sizes"][:2], config["wgmma_cluster_n"]) == ([112, 128], 2)


@pytest.mark.parametrize(("m", "tile", "cluster"), [(320, [160, 256], 2), (200, [208, 128], 1)])
def test_most_of_two_waves_are_turned(m: int, tile: list[int], cluster: int) -> None:
    """Whole rows that fill the SMs are not halved."""
    x, w = (torch.empty(lines, 4096, dtype=torch.bfloat16, device="meta") for lines in (m, 14336))
    config = products.matmul.bind((x, w.t()), target="h200").default_config()
    assert (config["block_sizes"][:2], config["wgmma_cluster_n"]) == (tile, cluster)
