"""Matrix products that a kernel in front computes: which, what that gives, and what each of the two kernels takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import program_of, space_of, tensor

import helion
import helion.language as hl
from helion import exc
from helion._compiler.ir.grammar import DotAttrs
from helion._compiler.ir.rewrite import Declined
from helion._compiler.rewrites.unfuse_matmul.loops import unfuse_matmul
from helion.backends.triton.execute.interpreter.races import detect_races


def rows(x, y, bias):
    """Whole rows, with a bias, a mask and two results."""
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    top = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        shown = torch.where((tile_m.index[:, None] + hl.arange(n)[None, :]) % 3 != 0, acc + bias[:], -1.0)
        top[tile_m] = shown.amax(-1)
        out[tile_m, :] = shown - shown.mean(-1, keepdim=True)
    return out, top


def _rows(x, y, bias):
    value = x @ y + bias
    m, n = value.shape
    shown = torch.where((torch.arange(m)[:, None] + torch.arange(n)) % 3 != 0, value, -1.0)
    return shown - shown.mean(-1, keepdim=True), shown.amax(-1)


def scaled(x, y, s):
    """Factors that are computed in the loop, of which one holds for a row; the sum begins with numbers."""
    m, k = x.size()
    n = hl.specialize(y.size(0))
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.full([tile_m, n], 0.5, dtype=torch.float32)
        for tile_k in hl.tile(k):
            left = x[tile_m, tile_k].to(torch.float32) * s[tile_m][:, None] + 1.0
            acc += torch.matmul(left, y[:, tile_k].to(torch.float32).t())
        out[tile_m] = torch.logsumexp(acc, -1)
    return out


def _scaled(x, y, s):
    return torch.logsumexp((x * s[:, None] + 1) @ y.t() + 0.5, -1)


def at_once(x, y):
    """No loop over K, whose sums are rounded to the dtype of the operands."""
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(x.size(0)):
        out[tile_m, :] = torch.softmax(x[tile_m, :] @ y[:, :], -1)
    return out


def passes(x, y):
    """The product is computed again for another pass over its rows."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            total += (acc * acc).sum(-1)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            out[tile_m, tile_n] = acc * torch.rsqrt(total + 1)[:, None]
    return out


def _passes(x, y):
    return (x @ y) * torch.rsqrt((x @ y).square().sum(-1, keepdim=True) + 1)


def gated(x, y, z):
    """Two products of one loop, beside a sum that stays in it."""
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        gate, up = hl.zeros([tile_m, n], dtype=torch.float32), hl.zeros([tile_m, n], dtype=torch.float32)
        norm = hl.zeros([tile_m], dtype=torch.float32)
        for tile_k in hl.tile(k):
            part = x[tile_m, tile_k]
            gate = torch.addmm(gate, part, y[tile_k, :])
            up = torch.addmm(up, part, z[tile_k, :])
            norm += part.to(torch.float32).abs().sum(-1)
        out[tile_m] = (torch.sigmoid(gate) * up).sum(-1) + norm
    return out


def _gated(x, y, z):
    return (torch.sigmoid(x @ y) * (x @ z)).sum(-1) + x.abs().sum(-1)


def batched(x, y):
    """A product for each index of a batch, and for each of a group that is no dimension of it."""
    b, g, m, k = x.size()
    n = hl.specialize(y.size(3))
    out = torch.empty([b, g, m], dtype=torch.float32, device=x.device)
    for tile_b, index, tile_m in hl.tile([b, g, m], block_size=[1, 1, None]):
        acc = hl.zeros([tile_b, tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.baddbmm(acc, x[tile_b, index.begin, tile_m, tile_k], y[tile_b, index.begin, tile_k, :])
        out[tile_b, index.begin, tile_m] = torch.logsumexp(acc, -1)
    return out


def _batched(x, y):
    return torch.logsumexp(x @ y, -1)


def heads(x, y):
    """The same with ``hl.grid``."""
    h, m, k = x.size()
    n = hl.specialize(y.size(2))
    out = torch.empty([h, m, n], dtype=torch.float32, device=x.device)
    for head in hl.grid(h):
        for tile_m in hl.tile(m):
            acc = hl.zeros([tile_m, n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[head, tile_m, tile_k], y[head, tile_k, :])
            out[head, tile_m, :] = acc - acc.amax(-1, keepdim=True)
    return out


def _heads(x, y):
    return x @ y - (x @ y).amax(-1, keepdim=True)


def operands(dtype: torch.dtype, *shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple((torch.randn(shape) + 0.25).to(dtype) for shape in shapes)


F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[torch.Tensor, ...], list[int]]] = {
    "rows": (rows, _rows, operands(F32, (33, 77), (77, 65), (65,)), [4, 16]),
    "rows of bf16": (rows, _rows, operands(BF16, (1, 63), (63, 130), (130,)), [1, 16]),
    "few columns": (rows, _rows, operands(F16, (33, 16), (16, 3), (3,)), [8, 16]),
    "no loop": (rows, _rows, operands(F32, (33, 0), (0, 20), (20,)), [8, 16]),
    "factors": (scaled, _scaled, operands(BF16, (40, 65), (30, 65), (40,)), [8, 32]),
    "at once": (at_once, lambda x, y: torch.softmax(x @ y, -1), operands(F32, (35, 33), (33, 33)), [4]),
    "passes": (passes, _passes, operands(F32, (33, 77), (77, 65)), [8, 32, 16, 16, 16]),
    "two products": (gated, _gated, operands(F32, (33, 40), (40, 20), (40, 20)), [8, 16]),
    "batched": (batched, _batched, operands(F32, (2, 2, 17, 20), (2, 2, 20, 33)), [4, 16]),
    "heads": (heads, _heads, operands(F32, (3, 17, 20), (3, 20, 33)), [4, 16]),
}


def _results(given: Any) -> tuple[torch.Tensor, ...]:
    return given if isinstance(given, tuple) else (given,)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_products_that_are_computed_first_give_the_same(name: str, dynamic: bool) -> None:
    fn, reference, args, sizes = CASES[name]
    config = helion.Config(block_sizes=sizes, unfuse_matmul=[32, 16, 32], matmul_num_warps=2)
    kernel = helion.kernel(fn, static_shapes=not dynamic, config=config)
    assert "_helion_products_0 = " in kernel.bind(args).to_triton_code()
    with detect_races():
        found = _results(kernel(*args))
    for result, expected in zip(found, _results(reference(*(arg.double() for arg in args))), strict=True):
        assert result.shape == expected.shape
        # products of fp32 are taken in TF32
        error = 2**-7 if BF16 in (result.dtype, args[0].dtype) else 2**-9
        scale = expected.abs().max().clamp(min=1)
        assert (result.double() - expected).abs().max() <= error * scale


@pytest.mark.parametrize(("m", "k", "n"), [(33, 77, 65), (64, 64, 64), (100, 130, 67)])
@pytest.mark.parametrize("fn", [passes, rows])
def test_operands_of_products_that_are_computed_first_are_copied_along_k(
    fn: Callable[..., Any], m: int, k: int, n: int
) -> None:
    args = operands(F32, (m, k), (k, n), *([(n,)] if fn is rows else []))
    sizes = [8, 32, 16, 16, 16] if fn is passes else [4, 16]
    config = helion.Config(block_sizes=sizes, unfuse_matmul=[32, 16, 32], transpose_operands=True)
    kernel = helion.kernel(fn, static_shapes=True, config=config)
    code = kernel.bind(args).to_triton_code()
    assert "_helion_packed_" in code and code.count("_launcher(_helion_") == 3
    with detect_races():
        found = _results(kernel(*args))
    expected = _results((_passes if fn is passes else _rows)(*(arg.double() for arg in args)))
    for result, wanted in zip(found, expected, strict=True):
        assert (result.double() - wanted).abs().max() <= 2**-9 * wanted.abs().max().clamp(min=1)


@pytest.mark.parametrize("name", ["rows of bf16", "two products", "batched"])
def test_operands_that_cannot_be_copied_stay_where_they_are(name: str) -> None:
    fn, _, args, sizes = CASES[name]
    kernel = helion.kernel(fn, static_shapes=True).bind(args, target="h200")
    try:
        config = helion.Config(block_sizes=sizes, unfuse_matmul=[32, 16, 32], transpose_operands=True)
        assert "_helion_packed_" not in kernel.to_triton_code(config)
    except exc.InvalidConfig as refused:
        assert "transpose_operands" in str(refused)


def test_one_bound_kernel_serves_other_sizes() -> None:
    config = helion.Config(block_sizes=[8, 32, 16, 16, 16], unfuse_matmul=[16, 16, 16])
    kernel = helion.kernel(passes, static_shapes=False, config=config)
    code = kernel.bind(operands(F32, (33, 20), (20, 40))).to_triton_code()
    assert ".to(tl.int64)" in code  # as many elements as 32 bits count, or more
    for shapes in (((33, 20), (20, 40)), ((65, 17), (17, 3))):
        args = operands(F32, *shapes)
        expected = _passes(*(arg.double() for arg in args))
        torch.testing.assert_close(kernel(*args).double(), expected, rtol=1e-2, atol=1e-2)


def test_equal_products_are_computed_once() -> None:
    program = program_of(passes, tensor(64, 64), tensor(64, 96), static_shapes=True)
    made = unfuse_matmul(program, (16, 16, 16))
    assert sum(isinstance(op.attrs, DotAttrs) for op in made.walk()) == 1
    assert sum(isinstance(op.attrs, DotAttrs) for op in program.walk()) == 2
    others = program_of(gated, tensor(64, 64), tensor(64, 96), tensor(64, 96), static_shapes=True)
    assert len(unfuse_matmul(others, (16, 16, 16)).roots) == 3


def test_what_is_stored_is_as_wide_as_what_is_read() -> None:
    args = tensor(64, 64), tensor(64, 96)
    made = unfuse_matmul(program_of(at_once, *args, static_shapes=True), (16, 16, 16))
    assert made.tensors[-1].dtype == BF16 and made.tensors[-1].made
    made = unfuse_matmul(program_of(passes, *args, static_shapes=True), (16, 16, 16))
    assert made.tensors[-1].dtype == F32


def plain(x, y):
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile(out.size()):
        out[tile_m, tile_n] = x[tile_m, :] @ y[:, tile_n]
    return out


def in_place(x, y):
    for tile_m in hl.tile(x.size(0)):
        x[tile_m, :] = torch.softmax(x[tile_m, :] @ y[:, :], -1)
    return x


def chained(x, y):
    for tile_m in hl.tile(x.size(0)):
        first = x[tile_m, :] @ y[:, :]
        y[0, 0] += 0
        second = (first - first.amax(-1, keepdim=True)) @ y[:, :]
        x[tile_m, :] = second.sum(-1, keepdim=True) + second
    return x


def conditional(x, y, counts):
    out = torch.zeros([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for row in hl.grid(x.size(0)):
        if counts[row] > 0:
            for tile_m in hl.tile(x.size(0)):
                out[tile_m, :] = torch.softmax(x[tile_m, :] @ y[:, :], -1)
    return out


def partial(x, y, counts):
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(x.size(0), block_size=1):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(counts[tile_m.begin]):
            acc += (x[tile_m, :] @ y[:, tile_n]).sum(-1)
        out[tile_m] = acc
    return out


def largest(x, y):
    """The loop over K keeps more than a sum."""
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(x.size(0)):
        acc = hl.zeros([tile_m, y.size(1)], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.maximum(acc, x[tile_m, tile_k] @ y[tile_k, :])
        out[tile_m] = acc.sum(-1)
    return out


def two_grids(x, y):
    out, other = torch.empty_like(x), torch.empty_like(x)
    for tile_m in hl.tile(x.size(0)):
        out[tile_m, :] = torch.softmax(x[tile_m, :] @ y[:, :], -1)
    for tile_m in hl.tile(x.size(0)):
        other[tile_m, :] = x[tile_m, :] + 1
    return out, other


COUNTS = torch.ones(64, dtype=torch.int32, device="meta")
SQUARE = tensor(64, 64), tensor(64, 64)


@pytest.mark.parametrize(
    ("fn", "args", "why"),
    [
        (plain, SQUARE, "each program computes one tile"),
        (in_place, SQUARE, "reads x, which the kernel writes"),
        (chained, SQUARE, "the kernel writes"),
        (conditional, (*SQUARE, COUNTS), r"data-dependent control flow \(if\)"),
        (partial, (*SQUARE, COUNTS), "its end depends on data"),
        (largest, SQUARE, "does more with a matmul than accumulate it"),
        (two_grids, SQUARE, "2 grid loops"),
    ],
)
def test_products_that_stay_where_they_are(fn: Callable[..., Any], args: tuple[torch.Tensor, ...], why: str) -> None:
    with pytest.raises(Declined, match=why):
        unfuse_matmul(program_of(fn, *args, static_shapes=True), (16, 16, 16))
    with pytest.raises(exc.InvalidConfig, match=why):
        space_of(fn, *args, static_shapes=True).normalize(helion.Config(unfuse_matmul=[16, 16, 16]))


def test_products_beyond_32_bits_stay_where_they_are() -> None:
    space = space_of(gated, tensor(2**20, 16), tensor(16, 4096), tensor(16, 4096), static_shapes=True)
    full = space.normalize(helion.Config(block_sizes=[1, 16], unfuse_matmul=[16, 16, 16], matmul_num_warps=8))
    assert full["unfuse_matmul"] is None and full["matmul_num_warps"] is None


def test_the_key_is_read() -> None:
    space = space_of(rows, *(tensor(*shape) for shape in ((64, 64), (64, 64), (64,))), static_shapes=True)
    assert space.default_config()["unfuse_matmul"] is None
    full = space.normalize(helion.Config(unfuse_matmul=(8, 1024, 32)))
    assert full["unfuse_matmul"] == [16, 256, 32]
    for wrong, why in (
        ([128, 128], "rows, columns, elements along K"),
        (128, "must be None or a list"),
        ([128, 24, 32], r"\[1\] \(columns\) must be a power of two"),
        ([128, 128, True], r"\[2\].*must be an integer"),
    ):
        with pytest.raises(exc.InvalidConfig, match=why):
            space.normalize(helion.Config(unfuse_matmul=wrong))


@pytest.mark.parametrize("beside", [{"pid_type": "persistent_blocked"}, {"num_stages": 3, "matmul_num_stages": 1}])
def test_it_goes_with_other_keys(beside: dict[str, Any]) -> None:
    args = operands(F32, (33, 40), (40, 20), (40, 20))
    config = helion.Config(block_sizes=[8, 16], unfuse_matmul=[16, 16, 16], range_num_stages=[0, 2], **beside)
    kernel = helion.kernel(gated, static_shapes=True, config=config)
    torch.testing.assert_close(kernel(*args).double(), _gated(*(arg.double() for arg in args)), rtol=1e-2, atol=2e-2)


def test_each_kernel_has_its_own_launch() -> None:
    args = tensor(256, 256, dtype=F32), tensor(256, 512, dtype=F32)
    bound = helion.kernel(at_once, static_shapes=True).bind(args, target="sm_90")
    wish = {"block_sizes": [1], "num_warps": 2, "num_stages": 1, "unfuse_matmul": [128, 64, 32]}
    config = bound.config_spec.normalize(
        helion.Config(**wish, matmul_num_warps=4, matmul_num_stages=3, swap_ab=True, epilogue_subtile=2)
    )
    assert config["swap_ab"] and config["epilogue_subtile"] is None
    first, second = (line for line in bound.to_triton_code(config).splitlines() if "_launcher(" in line)
    assert first.endswith("num_warps=4, num_stages=3)") and second.endswith("num_warps=2, num_stages=1)")
    narrow = bound.config_spec.normalize({**config, "unfuse_matmul": [128, 32, 32]})
    assert not narrow["swap_ab"]  # 16 columns for each of 4 warps
    many = bound.config_spec.normalize({**config, "block_sizes": [128], "num_warps": 1})
    assert many["num_warps"] == 2  # 128 whole rows of 512 columns, of which the second kernel holds all


def test_what_both_kernels_take_is_predicted() -> None:
    bound = helion.kernel(passes, static_shapes=True).bind((tensor(512, 512), tensor(512, 512)), target="h200")
    wish = {"block_sizes": [1, 512, 16, 512, 16], "num_warps": 2, "unfuse_matmul": [64, 64, 64]}
    config = bound.config_spec.normalize(helion.Config(**wish, matmul_num_warps=4, matmul_num_stages=4))
    bound.set_config(config)
    taken, predicted = bound.resources(), bound._analysis.predict(config)
    assert taken.spill_bytes == 0 and predicted.fits and not predicted.spills
    assert taken.shared_bytes <= predicted.shared_bytes <= 1.10 * taken.shared_bytes + 2048


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("accumulator", [torch.float32, torch.float64])
def test_partial_products_that_are_rounded_leave_the_accumulator_as_it_is(
    dtype: torch.dtype, accumulator: torch.dtype
) -> None:
    """``torch.matmul`` gives the dtype of its operands; a wider accumulator adds that up."""

    @helion.kernel(ignore_warnings=[exc.TiledKMatmulAccumulationWarning])
    def kernel(x, y, kind: hl.constexpr):
        n = hl.specialize(y.size(1))
        out = torch.empty([x.size(0), n], dtype=torch.float32, device=x.device)
        for tile_m in hl.tile(x.size(0)):
            acc = hl.zeros([tile_m, n], dtype=kind)
            for tile_k in hl.tile(x.size(1)):
                acc += x[tile_m, tile_k] @ y[tile_k, :]
            out[tile_m, :] = (acc - acc.mean(-1, keepdim=True)).to(torch.float32)
        return out

    # Multiples of 1/32, whose products fp32 adds up exactly in any order: the rounding is that of the dtype alone.
    x = ((torch.randn(37, 65, generator=torch.Generator().manual_seed(0)) + 0.5).mul(32).round() / 32).to(dtype)
    y = ((torch.randn(65, 100, generator=torch.Generator().manual_seed(1)) + 0.25).mul(32).round() / 32).to(dtype)
    rounded = [x[:, at : at + 16].float() @ y[at : at + 16].float() for at in range(0, 65, 16)]
    total = sum(each.to(dtype).double() for each in rounded)
    assert not torch.equal(total, sum(each.double() for each in rounded))
    bound = kernel.bind((x, y, accumulator))
    config = {"block_sizes": [16, 16], "unfuse_matmul": [32, 32, 16]}
    assert accumulator == torch.float64 or "acc.to" not in bound.to_code(config)
    assert torch.allclose(
        bound.compile_config(config)(x, y, accumulator).double(), total - total.mean(1, keepdim=True), atol=1e-4
    )
