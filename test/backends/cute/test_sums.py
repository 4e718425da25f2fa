"""Sums along K next to a matmul: vectors that a kernel before it writes, and the epilogue reads."""

from __future__ import annotations

import math
import types
from dataclasses import replace
from typing import Any

import pytest
import torch
from backends.cute import cubins, products
from backends.cute.products import BF16, BOUNDS

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen import prepare
from helion.backends.cute.codegen.copied import source_names
from helion.backends.cute.plan.operands import split
from helion.backends.cute.resources.predict import timing
from helion.backends.cute.resources.shape import shape_of
from helion.backends.cute.shapes import MATMUL

M, N, K = 203, 136, 72


@helion.kernel(backend="cute")
def cosines(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (m, k), n = x.size(), y.size(0)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        left = hl.full([tile_m], 1e-3, dtype=torch.float32)
        right = hl.zeros([tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            a, b = x[tile_m, tile_k].to(torch.float32), y[tile_n, tile_k].to(torch.float32)
            acc = hl.dot(x[tile_m, tile_k], y[tile_n, tile_k].T, acc=acc)
            left += (a * a).sum(-1)
            right += (b * b).sum(-1)
        out[tile_m, tile_n] = acc * torch.rsqrt(left)[:, None] * torch.rsqrt(right + 1e-3)[None, :]
    return out


@helion.kernel(backend="cute")
def gradients(x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a weight and a bias; the bias is repeated in all rows."""
    (k, m), n = x.size(), grad.size(1)
    weight = torch.empty([m, n], dtype=torch.float32, device=x.device)
    bias = torch.empty_like(weight)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        total = hl.zeros([tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            g = grad[tile_k, tile_n]
            acc = hl.dot(x[tile_k, tile_m].T, g, acc=acc)
            total = total + g.to(torch.float32).sum(0)
        weight[tile_m, tile_n] = acc
        bias[tile_m, tile_n] = acc * 0.0 + total[None, :]
    return weight, bias


@helion.kernel(backend="cute")
def weighted(x: torch.Tensor, y: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """The sum is of two tensors, of which one has a number for each element along K."""
    (m, k), n = x.size(), y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_k in hl.tile(k):
            a = x[tile_m, tile_k]
            acc = hl.dot(a, y[tile_k, tile_n], acc=acc)
            total += (torch.exp(a.to(torch.float32)) * decay[tile_k][None, :]).sum(-1)
        out[tile_m, tile_n] = (acc / total[:, None]).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def running(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The product of each tile is multiplied by a sum of those before."""
    (m, k), n = x.size(), y.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_k in hl.tile(k):
            a = x[tile_m, tile_k]
            acc = acc + hl.dot(a, y[tile_k, tile_n]) * total[:, None]
            total = total + a.to(torch.float32).sum(-1)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel(backend="cute")
def batched(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (b, m, k), n = x.size(), y.size(2)
    out = torch.empty([b, m, n], dtype=torch.float32, device=x.device)
    for i, tile_m, tile_n in hl.tile([b, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_k in hl.tile(k):
            a = x[i.begin, tile_m, tile_k]
            acc = hl.dot(a, y[i.begin, tile_k, tile_n], acc=acc)
            total = total + a.to(torch.float32).sum(-1)
        out[i.begin, tile_m, tile_n] = acc * total[:, None]
    return out


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return products.values(*shape, dtype=dtype, device="cpu", seed=seed)


def squares(x: torch.Tensor) -> torch.Tensor:
    return (x.double() ** 2).sum(1) + 1e-3


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_norms_of_rows_and_of_columns(dtype: torch.dtype) -> None:
    x, y = tensor(M, K, dtype=dtype), tensor(N, K, seed=1, dtype=dtype)
    wanted = (x.double() @ y.double().t()) * squares(x).rsqrt()[:, None] * squares(y).rsqrt()
    assert products.row_error(cosines(x, y), wanted) < 1e-5
    problem = cosines.bind((x, y), target="sm_90").plan().gemm.whole
    assert [each.kind for each in problem.epilogue.operands] == ["column", "row"] and len(problem.summed) == 2


def test_sums_of_a_tensor_that_is_contiguous_across_k() -> None:
    x, grad = tensor(K, M), tensor(K, N, seed=1)
    weight, bias = gradients(x, grad)
    assert products.row_error(weight, x.double().t() @ grad.double()) < 1e-5
    assert products.row_error(bias, grad.double().sum(0).expand(M, N)) < 1e-5


def test_sums_of_several_tensors() -> None:
    x, y, decay = tensor(M, K), tensor(K, N, seed=1), torch.rand(K) + 0.5
    total = (x.double().exp() * decay.double()).sum(1)
    assert products.row_error(weighted(x, y, decay), x.double() @ y.double() / total[:, None]) < BOUNDS[BF16]


# The kernel, thread by thread ------------------------------------------------------------------------------------------------


class Number(float):
    """A number of the DSL."""

    def to(self, kind: object) -> Number:
        return self


class Memory:
    """A tensor whose elements are numbers."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def __getitem__(self, at: tuple[int, ...]) -> Number:
        assert all(0 <= index < extent for index, extent in zip(at, self.values.shape, strict=True))
        return Number(self.values[at])

    def __setitem__(self, at: tuple[int, ...], value: float) -> None:
        assert torch.isnan(self.values[at]), "an element is written once"
        self.values[at] = value


def summed(shape: prepare.Shape, sources: list[torch.Tensor]) -> torch.Tensor:
    """Return the vector after all threads of all CTAs have run."""
    copied = shape.prepared.copied
    found = Memory(torch.full((shape.prepared.rows, 1, 1), float("nan"), dtype=torch.float64))
    tensors: dict[str, Any] = {f"to_{copied.operand}": found}
    tensors |= {name: Memory(each[..., None]) for name, each in zip(source_names(copied), sources, strict=True)}
    phases = [
        compile(part, "sums", "exec") for part in "\n".join(prepare.body(shape)).split("cute.arch.sync_threads()")
    ]
    for cta in range(shape.ctas):
        partials = Memory(torch.full((shape.lines, prepare.THREADS // shape.lines), float("nan"), dtype=torch.float64))
        threads = []
        for thread in range(shape.threads):
            cutlass = types.SimpleNamespace(
                min=min,
                range=lambda count, unroll: range(count),
                range_constexpr=range,
                Float32=Number,
                select_=lambda condition, yes, no: yes if condition else no,
                memory=types.SimpleNamespace(
                    SmemAllocator=lambda shared=partials: types.SimpleNamespace(allocate_tensor=lambda *given: shared)
                ),
            )
            arch = types.SimpleNamespace(thread_idx=lambda at=thread: (at, 0, 0), block_idx=lambda at=cta: (at, 0, 0))
            cute = types.SimpleNamespace(arch=arch, make_layout=lambda *given, **more: None)
            threads.append(tensors | {"cutlass": cutlass, "cute": cute})
        for phase in phases:
            for each in threads:
                exec(phase, each)
    return found.values[:, 0, 0]


@pytest.mark.parametrize("kernel", [cosines, gradients], ids=lambda kernel: kernel.name)
def test_every_line_is_summed_once(kernel: helion.Kernel) -> None:
    first, second = (
        (tensor(M, 45), tensor(N, 45, seed=1)) if kernel is cosines else (tensor(45, M), tensor(45, N, seed=1))
    )
    plan = kernel.bind((first, second), target="sm_90").plan().gemm
    lines = [first, second] if kernel is cosines else [second.t()]
    for prepared, given in zip(plan.prepare.operands, lines, strict=False):
        terms = given.double() ** 2 if kernel is cosines else given.double()
        found = summed(prepare.shape_of(prepared, plan.whole), [given.double()])
        assert torch.allclose(found, terms.sum(1), rtol=1e-5)


# Decisions --------------------------------------------------------------------------------------------------------------------


@pytest.mark.prove
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize("kernel", [cosines, gradients, weighted], ids=lambda kernel: kernel.name)
def test_kernels_compile_without_spills(kernel: helion.Kernel, target: str) -> None:
    shapes = {"cosines": ((1024, 512), (2048, 512)), "gradients": ((512, 1024), (512, 2048))}
    given = [
        torch.empty(shape, dtype=BF16, device="meta") for shape in shapes.get(kernel.name, ((1024, 512), (512, 2048)))
    ]
    given += [torch.empty(512, device="meta")] if kernel is weighted else []
    found = cubins.measure(kernel.bind(tuple(given), target=target).plan().gemm)
    assert found["stack_bytes"] == 0 and not found["misplaced_barriers"]


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_sums_run_on_request_on_blackwell(target: str) -> None:
    bound = cosines.bind((tensor(M, K), tensor(N, K)), target=target)
    said = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    assert ("next to sums along K" in said) == (target == "sm_100")
    assert "a kernel before sums 203 lines along K" in str(bound.plan())


@pytest.mark.parametrize("kernel", [cosines, gradients], ids=lambda kernel: kernel.name)
def test_predictions_count_the_kernels_before(kernel: helion.Kernel) -> None:
    shapes = ((8192, 1024), (4096, 1024)) if kernel is cosines else ((8192, 4096), (8192, 4096))
    bound = kernel.bind(tuple(torch.empty(shape, dtype=BF16, device="meta") for shape in shapes), target="h200")
    target, gemm = bound.env.target, bound.plan().gemm
    described = shape_of(bound.facts)
    assert not isinstance(described, str)
    sums = [each.sources[0].k_pitch for each in described.problem.summed]
    assert sums == ([1, 1] if kernel is cosines else [4096])
    stored = split(described.problem, copies=False)[1]
    found, predicted = (
        timing(replace(gemm, prepare=each), described, target).prepare_us for each in (gemm.prepare, stored)
    )
    assert found == pytest.approx(predicted)
    read = sum(math.prod(each) for each in (shapes if kernel is cosines else shapes[1:])) * BF16.itemsize
    assert found > read / (target.bandwidth_gb_per_s * 1e3)


def test_other_sums_are_refused() -> None:
    with pytest.raises(exc.CuteUnsupported, match="a loop over K"):
        running.bind((tensor(M, K), tensor(K, N)), target="sm_90")
    with pytest.raises(exc.CuteUnsupported, match="sums along K next to a matmul are implemented without batches"):
        batched.bind((tensor(3, M, K), tensor(3, K, N)), target="sm_90")
    dynamic = helion.kernel(cosines.fn, backend="cute", static_shapes=False)
    with pytest.raises(exc.CuteUnsupported, match="is known only at run time"):
        dynamic.bind((tensor(M, K), tensor(N, K)), target="sm_90")
