"""Sizes and strides that only launches know: one kernel for all of them, and what it cannot take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends.cute import products
from backends.cute.products import BF16
from backends.cute.row_kernels import scaled_norm

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.execute import launcher, seen
from helion.backends.cute.plan.build import check_problem
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.plan.runtime import filled

SIZES = ((1000, 264, 136), (63, 8, 8), (4097, 24, 72))


@helion.kernel(backend="cute", static_shapes=False)
def bias_residual(
    x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, residual: torch.Tensor
) -> torch.Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        value = torch.relu(acc * scale[tile_m, None] + bias[None, tile_n])
        out[tile_m, tile_n] = (value + residual[tile_m, tile_n]).to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=False)
def for_any_m(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = hl.specialize(weight.size(0))
    k = hl.specialize(k)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], weight[tile_n, tile_k].T)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=False)
def softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        out[tile_m, :] = torch.softmax(acc, dim=-1).to(x.dtype)
    return out


def values(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) + 0.3).to(dtype)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.double() - expected).norm() <= 5e-3 * expected.norm()


def fused_arguments(m: int, n: int, k: int) -> tuple[torch.Tensor, ...]:
    return values(m, k), values(k, n), values(n), values(m, dtype=torch.float32), values(m, n)


def sources(kernel: Any, config: dict[str, Any], *calls: tuple[Any, ...], target: str = "sm_90") -> set[str]:
    """The texts of the kernels that calls lead to."""
    found = set()
    for arguments in calls:
        loaded = inspect.unwrap(kernel.bind(arguments, target=target).compile_config(config)).__globals__
        found.add(loaded[f"_helion_{kernel.name}"].source)
    return found


def dynamic(kernel: Any) -> Any:
    return helion.kernel(kernel.fn, backend="cute", static_shapes=False)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_of_any_size(m: int, n: int, k: int) -> None:
    x, y, bias, scale, residual = fused_arguments(m, n, k)
    expected = torch.relu(x.double() @ y.double() * scale[:, None].double() + bias.double()) + residual.double()
    close(bias_residual(x, y, bias, scale, residual), expected)
    close(for_any_m(x, y.t().contiguous()), x.double() @ y.double())
    close(softmax(x, y), torch.softmax(x.double() @ y.double(), dim=-1))


def test_batches_of_any_size() -> None:
    for b, m, n, k in ((4, 100, 96, 64), (3, 33, 40, 72)):
        x, y = values(b, m, k), values(b, k, n)
        close(dynamic(products.bmm)(x, y), x.double() @ y.double())
        close(dynamic(products.bmm_shared)(x, y[0]), x.double() @ y[0].double())


def test_lines_that_lie_apart() -> None:
    x, y = values(100, 96)[:, 8:72], values(64, 80)[:, :40]
    close(dynamic(products.matmul)(x, y), x.double() @ y.double())


CONFIG = {"block_sizes": [128, 128, 64], "wgmma_cluster_m": 2}
ONE = {"block_sizes": [1, 128, 64, 64]}


def pair(m: int, n: int, k: int) -> tuple[torch.Tensor, ...]:
    return values(m, k), values(k, n)


@pytest.mark.parametrize(
    ("kernel", "config", "arguments"),
    [
        (bias_residual, CONFIG, fused_arguments),
        (products.swiglu, CONFIG, lambda m, n, k: (*pair(m, n, k), values(k, n))),
        (products.matmul, {**CONFIG, "wgmma_pingpong": True, "wgmma_cluster_n": 2}, pair),
        (products.bmm, ONE, lambda m, n, k: (values(5, m, k), values(5, k, n))),
        (products.bmm, ONE, lambda m, n, k: (values(m % 7 + 2, m, k), values(m % 7 + 2, k, n))),
    ],
)  # fmt: skip
def test_the_text_has_no_sizes(
    kernel: Any, config: dict[str, Any], arguments: Callable[..., tuple[torch.Tensor, ...]]
) -> None:
    """None of the numbers that it was bound for, so that one binary is right for all that it takes."""
    assert len(sources(dynamic(kernel), config, *(arguments(*sizes) for sizes in SIZES))) == 1


def test_sizes_that_are_specialized_are_numbers_of_the_text() -> None:
    calls = [(values(m, 136), values(264, 136)) for m in (64, 1000, 4097)]
    kernel = dynamic(for_any_m)
    config = {"block_sizes": [64, 64, 64], "wgmma_k_splits": 2}
    (text,) = sources(kernel, config, *calls)
    assert "k_begin = 3 * place[3] // 2" in text and "size_k" not in text and "size_m: cutlass.Int32" in text
    assert len(sources(kernel, {"block_sizes": [64, 64, 64]}, *calls, (values(64, 72), values(8, 72)))) == 2


def test_whole_rows_of_any_number() -> None:
    calls = [(values(m, k), values(k, 1000)) for m, k in ((64, 72), (1008, 136))]
    assert len(sources(dynamic(softmax), {"block_sizes": [64, 64]}, *calls)) == 1
    with pytest.raises(exc.CuteUnsupported, match=r"number of columns that is known when the kernel is compiled"):
        helion.kernel(tiled_rows.fn, backend="cute", static_shapes=False).bind(pair(64, 96, 64))


@helion.kernel(backend="cute", static_shapes=True)
def tiled_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    peaks = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        most = hl.full([tile_m], float("-inf"))
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            most = torch.maximum(most, acc.amax(-1))
            out[tile_m, tile_n] = acc.to(x.dtype)
        peaks[tile_m] = most
    return out


def test_numbers_of_a_call_come_before_sizes() -> None:
    x, y, weight = values(100, 64), values(64, 96), values(96)
    kernel = helion.kernel(scaled_norm.fn, backend="cute", static_shapes=False)
    loaded = inspect.unwrap(kernel.bind((x, y, weight, 1e-6, 1.0)).compile_config()).__globals__["_helion_scaled_norm"]
    kinds = [kind for kind in loaded.pointers if kind in ("number", "size", "pitch")]
    assert kinds == sorted(kinds, key=("number", "size", "pitch").index) and {*kinds} >= {"number", "size"}
    expected = scaled_norm(x, y, weight, 1e-6, 1.0)
    torch.testing.assert_close(kernel(x, y, weight, 1e-6, 1.0), expected)


# What is refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "n", "k", "message"),
    [
        (64, 96, 100, "x has a stride of 100 elements, 200 bytes; TMA needs a multiple of 16 bytes"),
        (64, 100, 96, "y has a stride of 100 elements, 200 bytes; TMA needs a multiple of 16 bytes"),
    ],
)
def test_strides_are_looked_at_when_a_call_comes(m: int, n: int, k: int, message: str) -> None:
    kernel = dynamic(products.matmul)
    close(kernel(*pair(64, 96, 72)), values(64, 72).double() @ values(72, 96).double())
    with pytest.raises(exc.CuteUnsupported, match=message):
        kernel(*pair(m, n, k))
    bound = kernel.bind(pair(64, 96, 72))
    with pytest.raises(exc.BoundToOtherArguments, match="% 8 == 0"):
        bound(*pair(m, n, k))


@pytest.mark.parametrize("first", [0, 1])
def test_auto_takes_each_stride_where_it_can_go(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Whichever comes first, and between two calls that the other one serves."""
    monkeypatch.setattr(type(helion.backends.BACKENDS["cute"]), "is_installed", property(lambda backend: True))
    kernel = helion.kernel(products.matmul.fn, backend="auto", static_shapes=False)
    sizes = [(1000, 264, 136), (1000, 264, 135), (992, 272, 144), (992, 272, 142)]
    sizes = sizes[first:] + sizes[:first]
    for m, n, k in sizes:
        bound = kernel.bind(pair(m, n, k), target="h200")
        assert bound.variant.specialized.analysis.backend.name == ("triton" if k % 8 else "cute"), (m, n, k)
    assert len({id(kernel.bind(pair(*each), target="h200")) for each in sizes}) == 2


def test_lines_that_are_the_same_are_refused_when_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a class of their own, whichever call comes first."""
    x, y = pair(64, 96, 72)
    for left, right, name in ((x[:1].expand(64, 72), y, "x"), (x, y[:1].expand(72, 96), "y")):
        kernel = dynamic(products.matmul)
        for _ in range(2):
            with pytest.raises(
                exc.CuteUnsupported, match=f"{name} has a stride of 0 elements .*overlap.*backend='auto'"
            ):
                kernel(left, right)
            close(kernel(x, y), x.double() @ y.double())


def test_k_is_split_where_it_is_known() -> None:
    bound = dynamic(products.matmul).bind(pair(64, 96, 1000), target="sm_90")
    for key in ("wgmma_k_splits", "wgmma_grid_splits"):
        with pytest.raises(exc.InvalidConfig, match=r"K can be split .*known when the kernel is compiled"):
            bound.to_code({"block_sizes": [64, 64, 64], key: 2})


def test_seeds_are_those_of_a_bucket() -> None:
    kernel = dynamic(products.matmul)
    wide, few = (kernel.bind(pair(m, 4096, 4096), target="h200") for m in (4000, 16))
    assert "tiles of 128x256x64" in wide.seeds[0].reason
    assert wide.default_config()["block_sizes"] != few.default_config()["block_sizes"]
    assert all("splits" not in seed.reason and "K in" not in seed.reason for seed in few.seeds)


def test_numbers_of_a_launch_take_their_places() -> None:
    bound = dynamic(bias_residual).bind(fused_arguments(1000, 264, 136), target="sm_90")
    plan = bound.plan()
    problem = plan.gemm.problem
    assert [name for name, _ in plan.runtime] == list(problem.runtime)
    numbers = {name: 1000 + 8 * at for at, name in enumerate(problem.runtime)}
    found = filled(problem, numbers)
    assert (found.m, found.n, found.k) == tuple(numbers[f"size_{side}"] for side in "mnk")
    assert (found.a_pitch, found.b_pitch, found.d_pitch) == tuple(numbers[f"pitch_{at}"] for at in "abd")
    exact = next(each for each in found.epilogue.operands if each.kind == "exact")
    assert exact.pitch == numbers[f"pitch_{exact.label}"] and not found.runtime
    with pytest.raises(Refusal, match="stride of 1001 elements"):
        check_problem(filled(problem, {**numbers, "pitch_a": 1001}))
    with pytest.raises(Refusal, match="overlap"):
        check_problem(filled(problem, {**numbers, "pitch_d": 8}))
    assert "x_size_0 x y_size_1 x x_size_1, bfloat16" in str(plan)


def test_a_module_by_itself_checks_its_launches() -> None:
    """Called without the guards of a kernel."""
    launch = dynamic(products.matmul).bind(pair(64, 96, 72)).compile_config()
    described = inspect.unwrap(launch).__globals__["_helion_matmul"]
    x, y = pair(64, 96, 70)
    out = torch.empty(64, 96, dtype=BF16)
    with pytest.raises(launcher.LaunchFailed, match="x has a stride of 70 elements"):
        launcher.launch_gemm(described, (1,), x, y, out, 64, 96, 70, 70, 96, 96)


def test_a_call_goes_straight_to_its_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that were launched before pass with one look; others go to the launcher once."""
    asked: list[str] = []
    for module in (launcher, seen):
        monkeypatch.setattr(module, "folder", lambda kernel: asked.append(kernel.name))
    kernel = dynamic(products.matmul)
    with helion.runtime.stub_driver() as stub:
        for m in (64, 64, 64, 128, 128, 192, 64, 128):
            kernel(*pair(m, 96, 72))
        assert len(stub.launches) == 8
        gemm = kernel.bind(pair(64, 96, 72)).plan().gemm
        height = gemm.tile[0] * gemm.cluster_tiles[0]
        assert [launch.grid[0] for launch in stub.launches[-3:]] == [
            -(-m // height) * gemm.work[1] for m in (192, 64, 128)
        ]
    assert len(asked) < 8


# On a GPU ------------------------------------------------------------------------------------------------------------------

GPU_SIZES = (*SIZES, (130, 1000, 520), (2, 64, 64), (8191, 520, 2056), (300, 4096, 4096))


@pytest.mark.gpu
def test_all_sizes_on_a_gpu() -> None:
    """In turn and again, so that calls that were written out meet sizes that they have not seen."""
    kernel, batched = dynamic(bias_residual), dynamic(products.bmm)
    for m, n, k in (*GPU_SIZES, *GPU_SIZES[::-1]):
        x, y, bias, scale, residual = (each.cuda() for each in fused_arguments(m, n, k))
        expected = torch.relu(x.double() @ y.double() * scale[:, None].double() + bias.double()) + residual.double()
        close(kernel(x, y, bias, scale, residual), expected)
        close(for_any_m(x, y.t().contiguous()), x.double() @ y.double())
        left, right = values(3, m % 500 + 2, k).cuda(), values(3, k, n).cuda()
        close(batched(left, right), left.double() @ right.double())


@pytest.mark.gpu
def test_what_cute_cannot_take_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """With the backend left open: strides, addresses and empty tensors, between calls that it takes."""
    for static in (True, False):
        kernel = helion.kernel(products.matmul.fn, backend="auto", static_shapes=static)
        for m, n, k in ((512, 264, 136), (512, 264, 135), (512, 264, 136), (0, 264, 136)):
            x, y = (each.cuda() for each in pair(m, n, k))
            close(kernel(x, y), x.double() @ y.double())
            apart = torch.empty(x.numel() + 1, dtype=BF16, device="cuda")[1:].view(x.shape).copy_(x)
            close(kernel(apart, y), x.double() @ y.double())
    assert "failed" not in capsys.readouterr().err
