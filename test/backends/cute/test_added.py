"""Matmuls that are added to memory: by each program once, or by programs that have a part of K each."""

from __future__ import annotations

import pytest
import torch
from backends.cute import products
from backends.cute.products import BF16, BOUNDS

import helion
import helion.language as hl
from helion import exc
from helion.autotuner import PowerOfTwoFragment
from helion.backends.cute.resources.shape import shape_of
from helion.backends.cute.shapes import MATMUL

M, N, K = 150, 104, 1000
TARGETS = ("sm_90", "sm_100")


@helion.kernel(backend="cute")
def gradient(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``out + x.T @ y`` of ``x[K, M]``, in parts of 256 rows."""
    k, m = x.size()
    n = y.size(1)
    for i, j, part in hl.tile([m, n, k], block_size=[None, None, 256]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(part.begin, part.end):
            acc = torch.addmm(acc, x[d, i].T, y[d, j])
        hl.atomic_add(out, [i, j], acc)
    return out


@helion.kernel(backend="cute")
def scaled(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Parts of a size that a config has, and a factor of each row."""
    m, k = x.size()
    n = y.size(1)
    out = torch.zeros([m, n], dtype=torch.float32, device=x.device)
    for i, j, part in hl.tile([m, n, k]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(part.begin, part.end):
            acc = torch.addmm(acc, x[i, d], y[d, j])
        hl.atomic_add(out, [i, j], -acc * weight[i][:, None] / 2.0)
    return out


@helion.kernel(backend="cute")
def biased(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, every: hl.constexpr) -> torch.Tensor:
    """Parts of which the first one has a bias, or ``every`` one."""
    m, k = x.size()
    n = y.size(1)
    out = torch.zeros([m, n], dtype=torch.float32, device=x.device)
    for i, j, part in hl.tile([m, n, k], block_size=[None, None, 256]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(part.begin, part.end):
            acc = torch.addmm(acc, x[i, d], y[d, j])
        if every:
            acc = acc + bias[j][None, :]
        elif part.begin == 0:
            acc = acc + bias[j][None, :]
        hl.atomic_add(out, [i, j], acc * 0.5)
    return out


@helion.kernel(backend="cute")
def tuned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Parts whose number is a tunable."""
    m, k = x.size()
    n = y.size(1)
    out = torch.zeros([m, n], dtype=torch.float32, device=x.device)
    parts = hl.register_tunable("parts", PowerOfTwoFragment(1, 64))
    span = helion.next_power_of_2(helion.cdiv(k, parts))
    for i, j, part in hl.tile([m, n, k], block_size=[None, None, span]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(part.begin, part.end):
            acc = torch.addmm(acc, x[i, d], y[d, j])
        hl.atomic_add(out, [i, j], acc)
    return out


@helion.kernel(backend="cute")
def once(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = torch.addmm(acc, x[i, d], y[d, j])
        hl.atomic_add(out, [i, j], (torch.relu(acc) + bias[j]).to(out.dtype))
    return out


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return products.values(*shape, dtype=dtype, device="cpu", seed=seed)


@pytest.mark.parametrize("target", TARGETS)
def test_parts_of_k_are_one_matmul(target: str) -> None:
    x, y, weight = tensor(K, M), tensor(K, N, seed=1), torch.rand(M) + 0.5
    product, left = x.double().t() @ y.double(), x.t().contiguous()
    bound = gradient.bind((x, y, torch.ones(M, N)), target=target)
    assert products.row_error(bound(x, y, torch.ones(M, N)), 1 + product) < 1e-5
    assert bound.plan().gemm.problem.k == K
    assert products.row_error(scaled(left, y, weight), -product * weight.double()[:, None] / 2) < 1e-5
    bound = tuned.bind((left, y), target=target)
    for parts in (1, 8):
        bound.set_config({**bound.default_config().to_dict(), "parts": parts})
        assert products.row_error(bound(left, y), product) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BF16])
def test_an_epilogue_is_added_in_the_type_of_the_output(dtype: torch.dtype) -> None:
    x, y, bias = tensor(M, 72), tensor(72, N, seed=1), tensor(N, seed=2)
    wanted = 3 + torch.relu(x.double() @ y.double()) + bias.double()
    assert products.row_error(once(x, y, torch.full((M, N), 3.0, dtype=dtype), bias), wanted) < BOUNDS[BF16]
    plan = once.bind((x, y, torch.full((M, N), 3.0, dtype=dtype), bias), target="sm_90").plan()
    assert [output.adds for output in plan.gemm.problem.outputs] == [True]


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_split_k_again(target: str) -> None:
    x, y = (torch.empty(100000, size, dtype=BF16, device="meta") for size in (256, 512))
    bound = gradient.bind((x, y, torch.empty(256, 512, device="meta")), target=target)
    shape = shape_of(bound.facts)
    assert not isinstance(shape, str) and shape.problem.k == 100000 and shape.problem.outputs[0].adds
    gemm = bound.plan().gemm
    assert gemm.parts > 1
    assert "CopyReduceBulkTensorTileS2GOp" in bound.to_cute_code()
    assert bool(MATMUL.on_request(bound.plan().program, bound.facts, bound.target)) == (target == "sm_100")


@helion.kernel(backend="cute")
def activated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """An activation of each part, which is not that of the sum."""
    m, k = x.size()
    n = y.size(1)
    out = torch.zeros([m, n], dtype=torch.float32, device=x.device)
    for i, j, part in hl.tile([m, n, k]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(part.begin, part.end):
            acc = torch.addmm(acc, x[i, d], y[d, j])
        hl.atomic_add(out, [i, j], torch.relu(acc))
    return out


@helion.kernel(backend="cute")
def offset(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A bias that each part adds again."""
    m, k = x.size()
    n = y.size(1)
    out = torch.zeros([m, n], dtype=torch.float32, device=x.device)
    for i, j, part in hl.tile([m, n, k]):
        acc = bias[j][None, :].to(torch.float32) + hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(part.begin, part.end):
            acc = torch.addmm(acc, x[i, d], y[d, j])
        hl.atomic_add(out, [i, j], acc)
    return out


@helion.kernel(backend="cute")
def read(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, sem: hl.constexpr) -> torch.Tensor:
    """What was there is stored as well."""
    m, k = x.size()
    n = y.size(1)
    other = torch.empty_like(out)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            acc = torch.addmm(acc, x[i, d], y[d, j])
        before = hl.atomic_add(out, [i, j], acc, sem=sem)
        other[i, j] = before if sem == "relaxed" else acc
    return other


def test_what_is_not_the_sum_of_all_parts_is_refused() -> None:
    x, y, out = tensor(M, K), tensor(K, N, seed=1), torch.zeros(M, N)
    for kernel, args in ((activated, ()), (offset, (tensor(N),))):
        with pytest.raises(exc.CuteUnsupported, match="the end of a tile of the batch"):
            kernel.bind((x, y, *args))
    for sem in ("relaxed", "release"):
        with pytest.raises(exc.CuteUnsupported, match=f"an atomic add to out in {sem} order, for gpu"):
            read.bind((x, y, out, sem))


def test_the_first_part_has_a_bias() -> None:
    x, y = (products.values(*shape, dtype=BF16, device="cpu") for shape in ((M, K), (K, N)))
    bias = torch.linspace(-50, 50, N)
    wanted = (x.double() @ y.double() + bias.double()) / 2
    assert (biased(x, y, bias, False).double() - wanted).norm() < 1e-4 * wanted.norm()
    with pytest.raises(exc.CuteUnsupported, match="has tiles of more than one matmul"):
        biased.bind((x, y, bias, True), target="sm_90")


@pytest.mark.parametrize(("target", "dtype"), [("sm_90", torch.float16), ("sm_90", BF16), ("sm_100", BF16)])
def test_rows_of_any_pitch_are_added_in_pairs(target: str, dtype: torch.dtype) -> None:
    """Alone only the ends of rows are added, in 16 bits."""
    x, y, bias, out = tensor(M, 72), tensor(72, 103), tensor(103), torch.zeros(M, 103, dtype=dtype)
    bound = once.bind((x, y, out, bias), target=target)
    kind = "bf16" if dtype == BF16 else "f16"
    code = bound.to_cute_code()
    pairs = code.count(f"add.noftz.{kind}x2 [")
    assert pairs > 0 and 3 * code.count(f"add.noftz.{kind} [") == 2 * pairs
    assert "cute.arch.red(" not in code
    wide = once.bind((x, y, out.float(), bias), target=target).to_cute_code()
    assert "cute.arch.red(" in wide and "noftz" not in wide
    assert bound.resources().spill_bytes == 0
