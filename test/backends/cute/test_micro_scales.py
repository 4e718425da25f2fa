"""``hl.dot_scaled`` on Blackwell: scales that the matrix unit multiplies by, in tensor memory."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from backends.cute import products

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.module import build
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.copied import E2M1
from helion.backends.cute.plan.counts import counts
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.scales import BlockScales
from helion.backends.cute.resources.shape import shape_of
from helion.backends.cute.roles.edits import edit_role
from helion.backends.cute.roles.grammar import ArriveAfterCopies, CopyAcquire, KernelProgram, OrderCopies, Step, Wait
from helion.backends.cute.roles.micro import MoveScales, StartScales
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.shapes import MATMUL
from helion.backends.cute.toolchain.offline import compile_text
from helion.backends.cute.verify.state import Fault
from helion.backends.cute.verify.verify import verify
from helion.hardware import target as target_of

E4M3, E5M2, BF16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16
FORMATS = {E4M3: "e4m3", E5M2: "e5m2"}
PACKED = torch.uint8
"""Stands for e2m1, of which a byte has two."""
M, N, K = 203, 264, 384


@helion.kernel(backend="cute")
def scaled(
    x: torch.Tensor, x_scale: torch.Tensor, y: torch.Tensor, y_scale: torch.Tensor, name: hl.constexpr
) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.bfloat16, device=x.device)
    for i, j in hl.tile(out.size()):
        out[i, j] = hl.dot_scaled(x[i, :], x_scale[i, :], name, y[:, j], y_scale[j, :], name).to(out.dtype)
    return out


@helion.kernel(backend="cute")
def scaled_with_bias(
    x: torch.Tensor, x_scale: torch.Tensor, y: torch.Tensor, y_scale: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """The transposed result, whose columns are the rows of the left operand."""
    out = torch.empty([y.size(1), x.size(0)], dtype=torch.bfloat16, device=x.device)
    for i, j in hl.tile([x.size(0), y.size(1)]):
        sums = hl.dot_scaled(x[i, :], x_scale[i, :], "e4m3", y[:, j], y_scale[j, :], "e4m3")
        out[j, i] = torch.relu(sums + bias[i][:, None]).T.to(out.dtype)
    return out


@helion.kernel(backend="cute")
def mixed(x: torch.Tensor, x_scale: torch.Tensor, y: torch.Tensor, y_scale: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.bfloat16, device=x.device)
    for i, j in hl.tile(out.size()):
        out[i, j] = hl.dot_scaled(x[i, :], x_scale[i, :], "e2m1", y[:, j], y_scale[j, :], "e4m3").to(out.dtype)
    return out


@helion.kernel(backend="cute")
def of_groups(x: torch.Tensor, x_scale: torch.Tensor, y: torch.Tensor, y_scale: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.bfloat16, device=x.device)
    for i, j in hl.tile(out.size()):
        acc = hl.zeros([i, j])
        for d in hl.tile(x.size(1), block_size=128):
            group = d.begin // 32 + hl.arange(4)
            acc = hl.dot_scaled(
                x[i, d],
                hl.load(x_scale, [i, group]),
                "e4m3",
                y[d, j],
                hl.load(y_scale, [j, group]),
                "e4m3",
                acc=acc,
            )
        out[i, j] = acc.to(out.dtype)
    return out


Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def given(m: int = M, n: int = N, k: int = K, dtype: torch.dtype = E4M3) -> Given:
    if dtype == PACKED:
        bits = (torch.Generator().manual_seed(2 + at) for at in range(2))
        x, y = (torch.randint(256, (size, k // 2), dtype=PACKED, generator=next(bits)) for size in (m, n))
    else:
        x, y = (products.values(size, k, dtype=dtype, device="cpu", seed=at) for at, size in enumerate((m, n)))
    scales = (
        torch.randint(118, 134, (size, k // 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(at))
        for at, size in enumerate((m, n))
    )
    x_scale, y_scale = scales
    return x, x_scale, y.t(), y_scale


def unpacked(held: torch.Tensor) -> torch.Tensor:
    """Return the numbers of bytes of which the low half is the first; those of other types as they are."""
    if held.dtype != PACKED:
        return held.double()
    bits = torch.stack((held & 15, held >> 4), dim=2).flatten(1).long()
    return torch.tensor(E2M1, dtype=torch.float64)[bits & 7] * torch.where(bits < 8, 1.0, -1.0)


def exact(x: torch.Tensor, x_scale: torch.Tensor, y: torch.Tensor, y_scale: torch.Tensor) -> torch.Tensor:
    left, right = (
        unpacked(each) * torch.exp2(scale.double() - 127).repeat_interleave(32, 1)
        for each, scale in ((x, x_scale), (y.t(), y_scale))
    )
    return left @ right.t()


@pytest.mark.parametrize("dtype", FORMATS)
def test_scales_multiply_blocks_of_k(dtype: torch.dtype) -> None:
    args = given(dtype=dtype)
    found = scaled.bind((*args, FORMATS[dtype]), target="sm_100")(*args, FORMATS[dtype])
    assert products.row_error(found, exact(*args)) < products.BOUNDS[BF16]


def test_two_numbers_of_a_byte_are_multiplied() -> None:
    """A K tile of 128 bytes has 256 numbers in e2m1, of which each line has two atoms of scales."""
    args = given(k=768, dtype=PACKED)
    bound = scaled.bind((*args, "e2m1"), target="sm_100")
    assert products.row_error(bound(*args, "e2m1"), exact(*args)) < products.BOUNDS[BF16]
    problem, shape = bound.plan().gemm.problem, shape_of(bound.facts)
    assert not isinstance(shape, str) and shape.problem.scales is not None and shape.problem.scales.k == 16
    assert problem.operand_dtype == shape.problem.operand_dtype == "float4_e2m1fn_x2" and bound.seeds
    gemm = plan_gemm(problem, Choice(tile=(128, 192, 128), ab_stages=3), target_of("sm_100"))
    verify(kernel_program(gemm))
    text = build(gemm)
    for part in (
        "cute.recast_ptr(a, dtype=cutlass.Float4E2M1FN), cute.make_layout((cutlass.Int32(203), 768), stride=(768, 1))",
        "tiles_b = cute.local_tile(tensor_b, (192, 256), (None, None))",
        "line = tile_n * 192 + atom // 2 * 128 + word * 32 + lane",
        "cute.crd2idx((line, k_tile * 8 + atom % 2 * 4), y_scale_3_scale.layout)",
        "blackwell.make_smem_layout_b(tiled_mma, (128, 192, 256), cutlass.Float4E2M1FN, 3)",
    ):
        assert part in text, part


def small_blocks(k: int = 768) -> Given:
    """Return operands in e2m1 with scales of 16 numbers in e4m3."""
    x, _, y, _ = given(k=k, dtype=PACKED)
    bits = torch.Generator().manual_seed(5)
    left, right = ((torch.rand(size, k // 16, generator=bits) * 4 + 0.25).to(E4M3) for size in (M, N))
    return x, left, y, right


def test_scales_in_e4m3_are_of_16_numbers() -> None:
    """A K tile has four atoms of scales for each line (NVFP4)."""
    args = small_blocks()
    bound = scaled.bind((*args, "e2m1"), target="sm_100")
    left, right = (
        unpacked(each) * scale.double().repeat_interleave(16, 1) for each, scale in (args[:2], (args[2].t(), args[3]))
    )
    assert products.row_error(bound(*args, "e2m1"), left @ right.t()) < products.BOUNDS[BF16]
    problem, shape = bound.plan().gemm.problem, shape_of(bound.facts)
    assert not isinstance(shape, str) and shape.problem.scales is not None and shape.problem.scales.k == 8
    gemm = plan_gemm(problem, Choice(tile=(128, 192, 128), ab_stages=3), target_of("sm_100"))
    verify(kernel_program(gemm))
    text = build(gemm)
    assert "cutlass.Float8E4M3FN, 16, tcgen05.CtaGroup.ONE, (128, 192))" in text
    assert "cute.crd2idx((line, k_tile * 16 + atom % 4 * 4), x_scale_1_scale.layout)" in text
    with pytest.raises(
        exc.CuteUnsupported, match="y_scale is of uint8 .* scales of both sides in uint8, or float8_e4m3fn"
    ):
        scaled.bind((*args[:3], given(k=768, dtype=PACKED)[3], "e2m1"), target="sm_100")


def test_a_transposed_result_has_scales_of_the_other_side() -> None:
    args, bias = given(), products.values(M, dtype=BF16, device="cpu")
    bound = scaled_with_bias.bind((*args, bias), target="sm_100")
    wanted = torch.relu(exact(*args) + bias.double()[:, None]).t()
    assert products.row_error(bound(*args, bias), wanted) < products.BOUNDS[BF16]
    scales = bound.plan().gemm.problem.scales
    assert scales is not None and [each.side for each in scales.factors] == ["row", "column"]
    assert scales.factors[0].name.startswith("y_scale")


def test_scales_have_places_in_shared_and_tensor_memory() -> None:
    """A stage has an atom of 512 bytes for each 128 rows or columns, and four columns of tensor memory."""
    bound = scaled.bind((*given(), "e4m3"), target="sm_100")
    shape, program = shape_of(bound.facts), bound._analysis.program
    assert not isinstance(shape, str) and shape.problem.scales is not None and shape.problem.scales.micro
    assert bound.seeds and all(seed.config["block_sizes"][0] == 128 for seed in bound.seeds)
    gemm = plan_gemm(bound.plan().gemm.problem, Choice(tile=(128, 192, 128), ab_stages=3), target_of("sm_100"))
    numbers = counts(gemm)
    assert numbers.ab.full_arrivals == 33 and numbers.tensor_memory_columns == 512
    text = build(gemm)
    assert "shared_scales_a = memory.allocate_tensor(cutlass.Uint8, cute.make_layout(1536), 128)" in text
    assert "shared_scales_b = memory.allocate_tensor(cutlass.Uint8, cute.make_layout(3072), 128)" in text
    assert f"ab_read.index * 12 + {gemm.accumulator_stages * 192})" in text
    asked = MATMUL.on_request(program, bound.facts, bound.env.target)
    assert asked.startswith("matmuls in a microscaling format")


def _without(kind: type[Step], role: str, program: KernelProgram) -> KernelProgram:
    return edit_role(program, role, lambda step: () if isinstance(step, kind) else (step,))


@pytest.mark.parametrize(
    ("kind", "role", "fault"),
    [
        (MoveScales, "multiply", "is multiplied by the scales of"),
        (OrderCopies, "multiply", "before a fence orders the copies"),
        (Wait, "multiply", "stale scales"),
        (StartScales, "scale", "stale scales"),
        (CopyAcquire, "scale", "arrivals in one phase"),
        (ArriveAfterCopies, "scale", "deadlock"),
    ],
)
def test_steps_that_are_missing_are_faults(kind: type[Step], role: str, fault: str) -> None:
    gemm = scaled.bind((*given(k=1024), "e4m3"), target="sm_100").plan().gemm
    program = kernel_program(dataclasses.replace(gemm, ab_stages=3))
    verify(program)
    with pytest.raises(Fault, match=fault):
        verify(_without(kind, role, program))


def test_other_scales_are_refused() -> None:
    args = given()
    for kernel, values, target, reason in (
        (scaled, (*args, "e4m3"), "sm_90", "implemented for tcgen05"),
        (of_groups, args, "sm_100", r"with all of K is implemented"),
        (scaled, (*given(k=320), "e4m3"), "sm_100", "K = 320 in a microscaling format"),
    ):
        with pytest.raises(exc.CuteUnsupported, match=reason):
            kernel.bind(values, target=target)
    packed = given(k=K, dtype=PACKED)
    with pytest.raises(
        exc.CuteUnsupported, match="K = 384 in a microscaling format of float4_e2m1fn_x2; multiples of 256"
    ):
        scaled.bind((*packed, "e2m1"), target="sm_100")
    with pytest.raises(exc.CuteUnsupported, match="hl.dot_scaled of e2m1 and e4m3"):
        mixed.bind((*packed[:2], *args[2:]), target="sm_100")
    problem = scaled.bind((*args, "e4m3"), target="sm_100").plan().gemm.problem
    scales = problem.scales
    assert scales is not None
    rows, columns = scales.factors
    for changed, reason in (
        ((columns,), "scales of rows and of columns"),
        ((dataclasses.replace(rows, pitch=13), columns), "rows that are multiples of 4 apart"),
    ):
        wrong = dataclasses.replace(problem, scales=BlockScales(k=32, factors=changed))
        with pytest.raises(Refusal, match=reason):
            plan_gemm(wrong, Choice(tile=(128, 128, 128)), target_of("sm_100"))
    for tile, cluster in (((64, 128, 128), (1, 1)), ((128, 128, 128), (2, 1))):
        with pytest.raises(Refusal, match="128 rows by K tiles of 128 bytes"):
            plan_gemm(problem, Choice(tile=tile, cluster=cluster), target_of("sm_100"))


@pytest.mark.prove
@pytest.mark.parametrize("target", ["sm_100", "sm_103"])
@pytest.mark.parametrize(
    ("dtype", "columns", "block"),
    [
        (E4M3, 256, 32),
        (E4M3, 64, 32),
        (E5M2, 144, 32),
        (PACKED, 256, 32),
        (PACKED, 192, 32),
        (PACKED, 256, 16),
        (PACKED, 64, 16),
    ],
)
def test_kernels_compile_without_spills(dtype: torch.dtype, columns: int, block: int, target: str) -> None:
    args = given(k=768, dtype=dtype) if block == 32 else small_blocks()
    bound = scaled.bind((*args, FORMATS.get(dtype, "e2m1")), target=target)
    gemm = plan_gemm(
        bound.plan().gemm.problem,
        Choice(tile=(128, columns, 128), epilogue_n=16, store_stages=columns // 16),
        target_of(target),
    )
    ptx = compile_text(build(gemm), gemm).ptx
    assert ".local" not in ptx
    along_k = (1 + (dtype == PACKED)) * 32 // block
    assert len(re.findall(r"tcgen05\.cp\.cta_group::1\.32x128b\.warpx4", ptx)) == along_k * (1 + -(-columns // 128))
    kind = rf"mxf4nvf4\.block_scale\.block{block}" if dtype == PACKED else r"mxf8f6f4\.block_scale"
    assert len(re.findall(rf"tcgen05\.mma\.cta_group::1\.kind::{kind}", ptx)) == 4
