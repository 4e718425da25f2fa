"""Operands that warps copy: any stride, major mode and type, or computed from other tensors."""

from __future__ import annotations

import pytest
import torch
from backends.cute import products
from backends.cute.products import BF16, BOUNDS, E4M3, E5M2, FP16, FP32

import helion
import helion.language as hl
from helion import exc
from helion.backends import BACKENDS

HOPPER, BLACKWELL = "sm_90", "sm_100"
TARGETS = (HOPPER, BLACKWELL)


@helion.kernel(backend="cute")
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def numbers(*shape: int, dtype: torch.dtype = BF16, seed: int = 0) -> torch.Tensor:
    """Numbers with a mean, in rows without gaps."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.25
    return (made * 8).to(dtype) if not dtype.is_floating_point else made.to(dtype)


def check(result: torch.Tensor, x: torch.Tensor, y: torch.Tensor, bound: float = BOUNDS[FP32]) -> None:
    assert products.row_error(result, x.double() @ y.double()) < bound


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32, E4M3, E5M2])
def test_operands_of_any_pitch_and_major_mode(dtype: torch.dtype, target: str) -> None:
    for x, y in (
        (numbers(72, 79, dtype=dtype), numbers(79, 104, dtype=dtype, seed=1)),
        (numbers(79, 72, dtype=dtype).t(), numbers(104, 79, dtype=dtype, seed=1).t()),
        (numbers(72, 176, dtype=dtype)[:, ::2], numbers(88, 104, dtype=dtype, seed=1)),
    ):
        bound = matmul.bind((x, y), target=target)
        assert {each.operand for each in bound.plan().gemm.problem.copied} <= {"a", "b"}
        assert bound.plan().gemm.problem.copied
        check(bound(x, y), x.float(), y.float())


def test_tma_loads_what_it_can() -> None:
    x, y = numbers(72, 96), numbers(96, 100, seed=1)
    bound = matmul.bind((x, y), target=HOPPER)
    assert [each.operand for each in bound.plan().gemm.problem.copied] == ["b"]
    assert "producer of B: warps, by" in str(bound.plan()) and "producer of A" not in str(bound.plan())
    assert "; warps copy B" in bound.seeds[0].reason
    x, y = numbers(72, 96), numbers(96, 104, seed=1)
    assert not matmul.bind((x, y), target=HOPPER).plan().gemm.problem.copied


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, E4M3, E5M2, FP32])
def test_operands_of_other_types_are_converted(dtype: torch.dtype) -> None:
    @helion.kernel(backend="cute")
    def weights(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        (m, k), n = x.size(), y.size(1)
        out = torch.empty([m, n], dtype=torch.float32, device=x.device)
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n].to(x.dtype), acc=acc)
            out[tile_m, tile_n] = acc * scale[tile_n]
        return out

    scale = numbers(104, dtype=FP32, seed=2)
    for x, y in (
        (numbers(72, 80), numbers(80, 104, dtype=dtype)),
        (numbers(72, 79), numbers(104, 79, dtype=dtype).t()),
    ):
        bound = weights.bind((x, y, scale), target=HOPPER)
        assert "b" in [each.operand for each in bound.plan().gemm.problem.copied]
        check(bound(x, y, scale), x, y.to(BF16).double() * scale.double())


@pytest.mark.parametrize("target", TARGETS)
def test_operands_that_are_computed(target: str) -> None:
    @helion.kernel(backend="cute")
    def computed(
        x: torch.Tensor, y: torch.Tensor, row: torch.Tensor, depth: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        (m, k), n = x.size(), y.size(1)
        out = torch.empty([m, n], dtype=torch.float32, device=x.device)
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                left = torch.relu(x[tile_m, tile_k].to(torch.float32) * row[tile_m][:, None] + depth[tile_k][None, :])
                left = torch.where(mask[tile_m, tile_k], left, 0.5)
                left = torch.where(tile_m.index[:, None] >= tile_k.index[None, :], left, 2.0 * left)
                acc = hl.dot(left.to(x.dtype), y[tile_k, tile_n], acc=acc)
            out[tile_m, tile_n] = acc
        return out

    x, y, row, depth = numbers(72, 79), numbers(79, 104, seed=1), numbers(72, dtype=FP32, seed=2), numbers(79, seed=3)
    mask = numbers(72, 79, dtype=FP32, seed=4) > 0
    bound = computed.bind((x, y, row, depth, mask), target=target)
    left = torch.relu(x.float() * row[:, None] + depth)
    left = torch.where(mask, left, torch.tensor(0.5))
    left = torch.where(torch.arange(72)[:, None] >= torch.arange(79), left, 2.0 * left)
    check(bound(x, y, row, depth, mask), left.to(BF16), y)


def test_swiglu_of_operands_with_odd_pitches() -> None:
    @helion.kernel(backend="cute")
    def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        (m, k), n = x.size(), gate.size(1)
        out = torch.empty([m, n], dtype=torch.float32, device=x.device)
        for tile_m, tile_n in hl.tile([m, n]):
            left = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            right = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                rows = x[tile_m, tile_k]
                left = torch.addmm(left, rows, gate[tile_k, tile_n])
                right = torch.addmm(right, rows, up[tile_k, tile_n])
            out[tile_m, tile_n] = torch.nn.functional.silu(left) * right
        return out

    x, gate, up = numbers(72, 80), numbers(80, 100, seed=1)[:, :96], numbers(96, 80, seed=2).t()
    copied = [each.operand for each in swiglu.bind((x, gate, up), target=HOPPER).plan().gemm.problem.copied]
    assert copied == ["b"]
    wide = [x.double() @ each.double() for each in (gate, up)]
    assert products.row_error(swiglu(x, gate, up), torch.nn.functional.silu(wide[0]) * wide[1]) < BOUNDS[FP32]
    turned = up.contiguous()  # N-major, which a copied gate rules out
    sources = [
        each.sources[0].name for each in swiglu.bind((x, gate, turned), target=HOPPER).plan().gemm.problem.copied
    ]
    assert [name.split("_")[0] for name in sources] == ["gate", "up"]
    assert products.row_error(swiglu(x, gate, turned), torch.nn.functional.silu(wide[0]) * wide[1]) < BOUNDS[FP32]


def test_batches_with_odd_strides() -> None:
    @helion.kernel(backend="cute")
    def bmm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        b, m, k = x.size()
        n = y.size(2)
        out = torch.empty([b, m, n], dtype=torch.float32, device=x.device)
        for tile_b, tile_m, tile_n in hl.tile([b, m, n]):
            acc = hl.zeros([tile_b, tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.baddbmm(acc, x[tile_b, tile_m, tile_k], y[tile_b, tile_k, tile_n])
            out[tile_b, tile_m, tile_n] = acc
        return out

    x, y = numbers(3, 5, 79), numbers(3, 79, 24, seed=1)
    assert [each.operand for each in bmm.bind((x, y), target=HOPPER).plan().gemm.problem.copied] == ["a"]
    result = bmm(x, y)
    for at in range(3):
        check(result[at], x[at], y[at])


def test_rows_of_a_matmul_with_copies() -> None:
    @helion.kernel(backend="cute")
    def softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        (m, k), n = x.size(), y.size(1)
        out = torch.empty([m, n], dtype=torch.float32, device=x.device)
        for tile_m in hl.tile(m):
            acc = hl.zeros([tile_m, n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
            out[tile_m, :] = torch.softmax(acc, -1)
        return out

    for n in (104, 6000):
        x, y = numbers(72, 79, dtype=FP32), numbers(79, n, dtype=FP32, seed=1)
        bound = softmax.bind((x, y), target=HOPPER)
        assert bound.plan().gemm.problem.copied
        expected = torch.softmax(x.double() @ y.double(), -1)
        assert products.row_error(bound(x, y), expected) < BOUNDS[FP32] * 20


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [BF16, FP32, FP16])
def test_matrices_of_the_epilogue_have_any_strides(dtype: torch.dtype, target: str) -> None:
    @helion.kernel(backend="cute")
    def two(
        x: torch.Tensor, y: torch.Tensor, residual: torch.Tensor, gate: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        (m, k), n = x.size(), y.size(1)
        other = torch.empty([m, n], dtype=torch.float32, device=x.device)
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            acc = acc + residual[tile_m, tile_n]
            other[tile_m, tile_n] = acc
            out[tile_m, tile_n] = out[tile_m, tile_n] + (acc * gate[tile_m, tile_n]).to(out.dtype)
        return other

    x, y = numbers(37, 72), numbers(72, 75, seed=1)
    residual, gate = numbers(37, 150, seed=2, dtype=dtype)[:, ::2], numbers(37, 75, seed=3, dtype=dtype)
    for made in (
        numbers(37, 75, seed=4, dtype=dtype),
        numbers(75, 37, seed=4, dtype=dtype).t(),
        numbers(75, 37, 3, seed=4, dtype=dtype)[..., 1].t(),
    ):
        before, out = (
            made.double().clone(),
            made.clone()
            if made.is_contiguous()
            else torch.empty_strided(made.size(), made.stride(), dtype=dtype).copy_(made),
        )
        bound = two.bind((x, y, residual, gate, out), target=target)
        assert len(bound.plan().gemm.problem.outputs_of("strided")) == 2
        exact = x.double() @ y.double() + residual.double()
        check_rows(bound(x, y, residual, gate, out), exact, BOUNDS[FP32])
        check_rows(out, before + exact * gate.double(), BOUNDS[dtype])


def check_rows(result: torch.Tensor, exact: torch.Tensor, bound: float) -> None:
    assert products.row_error(result, exact) < bound


def test_rows_and_batches_with_odd_outputs() -> None:
    @helion.kernel(backend="cute")
    def norms(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        b, m, k = x.size()
        n = y.size(2)
        out = torch.empty([b, m, n], dtype=torch.float32, device=x.device)
        for tile_b, tile_m in hl.tile([b, m]):
            acc = hl.zeros([tile_b, tile_m, n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.baddbmm(acc, x[tile_b, tile_m, tile_k], y[tile_b, tile_k, :])
            out[tile_b, tile_m, :] = torch.nn.functional.layer_norm(acc, [n])
        return out

    x, y = numbers(3, 37, 72), numbers(3, 72, 75, seed=1)
    bound = norms.bind((x, y), target=HOPPER)
    assert bound.plan().gemm.problem.strided
    exact = torch.nn.functional.layer_norm(x.double() @ y.double(), [75])
    for at, result in enumerate(bound(x, y)):
        check_rows(result, exact[at], 2 * BOUNDS[FP32])


def test_outputs_that_store_two_results_at_one_place_are_refused() -> None:
    @helion.kernel(backend="cute")
    def given(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        (m, k), n = x.size(), y.size(1)
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            out[tile_m, tile_n] = acc
        return out

    x, y = numbers(37, 72), numbers(72, 75, seed=1)
    out = torch.empty(300).as_strided((37, 75), (3, 2))
    with pytest.raises(exc.BaseError, match="may store two results at one place|overlap"):
        given.bind((x, y, out), target=HOPPER)


def test_what_is_not_copied_is_refused_by_name() -> None:
    dynamic = helion.kernel(matmul.fn, backend="cute", static_shapes=False)
    with pytest.raises(exc.CuteUnsupported, match="x has a stride of 79 elements, 158 bytes|known only at run time"):
        dynamic.bind((numbers(72, 79), numbers(79, 104, seed=1)), target=HOPPER)
    huge = torch.empty_strided((72, 80), (2**26, 2), dtype=BF16, device="meta")
    with pytest.raises(exc.CuteUnsupported, match="x spans .* elements"):
        matmul.bind((huge, torch.empty(80, 104, dtype=BF16, device="meta")), target=HOPPER)


@pytest.mark.parametrize(
    ("dtype", "n", "target", "part"),
    [
        (BF16, 4100, BLACKWELL, "whose operand y is copied by warps"),
        (BF16, 4100, HOPPER, ""),
        (BF16, 4096, HOPPER, ""),
        (FP32, 4096, HOPPER, ""),
        (FP32, 4096, BLACKWELL, "whose operand y is copied by warps"),
    ],
)
def test_auto_leaves_copies_to_others(dtype: torch.dtype, n: int, target: str, part: str) -> None:
    x, y = (torch.empty(shape, dtype=dtype, device="meta") for shape in ((4096, 1000), (1000, n)))
    analysis = matmul.bind((x, y), target=target).variant.specialized.analysis
    reason = BACKENDS["cute"].on_request(analysis.program, analysis.facts, analysis.target)
    assert reason == (f"matmuls {part} run on request, with backend='cute'" if part else "")


@pytest.mark.parametrize(
    ("m", "n", "k", "backend"),
    [
        (4096, 1001, 1000, "triton"),
        (8192, 4095, 4096, "cute"),
        (4096, 1000, 4096, "cute"),
        (2048, 2049, 1000, "triton"),
    ],
)
def test_auto_leaves_short_products_whose_output_threads_store(m: int, n: int, k: int, backend: str) -> None:
    """No next tile hides the stores of the last one, nor do short mainloops. Long products have many tiles."""
    x, y = (torch.empty(shape, dtype=BF16, device="meta") for shape in ((m, k), (k, n)))
    assert helion.kernel(backend="auto")(matmul.fn).bind((x, y), target="h200").backend == backend
