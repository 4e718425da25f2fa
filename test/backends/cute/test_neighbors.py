"""Products with the even and with the odd columns of one matrix, which are one product with all columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from backends.cute import gemms, lockstep

import helion
import helion.language as hl
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.epilogue import JOINED, PARTNER, Epilogue, EpilogueOperand, EpilogueOutput, Instruction
from helion.backends.cute.plan.kernel import CutePlan
from helion.backends.cute.plan.records import Choice, GemmPlan

M, K, N, HEAD = 97, 72, 192, 32


@helion.kernel(backend="cute", static_shapes=True)
def by_indices(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, res: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> torch.Tensor:
    """Columns that indices select, known before the loop; a bias, a residual, and tables that heads share."""
    (m, k), n, half = x.size(), w.size(1), cos.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, pair in hl.tile([m, n // 2]):
        first = 2 * pair.index
        of_head = pair.index % half
        even = hl.zeros([tile_m, pair], dtype=torch.float32)
        odd = hl.zeros([tile_m, pair], dtype=torch.float32)
        for tile_k in hl.tile(k):
            odd = torch.addmm(odd, x[tile_m, tile_k], w[tile_k, first + 1])
            even = torch.addmm(even, x[tile_m, tile_k], w[tile_k, first])
        c, s = cos[tile_m, of_head].float(), sin[tile_m, of_head].float()
        high = odd + bias[first + 1][None, :] + res[tile_m, first + 1]
        low = even + bias[first][None, :] + res[tile_m, first]
        out[tile_m, first + 1] = (low * s + high * c).to(x.dtype)
        out[tile_m, first] = (low * c - high * s).to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def by_views(x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """Views of the host of even and of odd columns, and a vector with a number for each pair."""
    (m, k), n = x.size(), w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    w_even, w_odd, out_even, out_odd = w[:, 0::2], w[:, 1::2], out[:, 0::2], out[:, 1::2]
    for tile_m, pair in hl.tile([m, n // 2]):
        even = hl.zeros([tile_m, pair], dtype=torch.float32)
        odd = hl.zeros([tile_m, pair], dtype=torch.float32)
        for tile_k in hl.tile(k):
            even = hl.dot(x[tile_m, tile_k], w_even[tile_k, pair], acc=even)
            odd = hl.dot(x[tile_m, tile_k], w_odd[tile_k, pair], acc=odd)
        top = torch.maximum(even, odd)
        low, high = torch.exp(even - top), torch.exp(odd - top)
        out_even[tile_m, pair] = (low / (low + high) * gain[pair][None, :]).to(x.dtype)
        out_odd[tile_m, pair] = (high / (low + high) * gain[pair][None, :]).to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def by_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Rows of a weight, as pairs, and an output of as many pairs."""
    (m, k), n = x.size(), w.size(0)
    pairs = w.view(n // 2, 2, k)
    out = torch.empty([m, n // 2, 2], dtype=torch.float32, device=x.device)
    for tile_m, pair in hl.tile([m, n // 2]):
        even = hl.zeros([tile_m, pair], dtype=torch.float32)
        odd = hl.zeros([tile_m, pair], dtype=torch.float32)
        for tile_k in hl.tile(k):
            even += hl.dot(x[tile_m, tile_k], pairs[pair, 0, tile_k].T)
            odd += hl.dot(x[tile_m, tile_k], pairs[pair, 1, tile_k].T)
        out[tile_m, pair, 0] = torch.sqrt(even * even + odd * odd)
        out[tile_m, pair, 1] = even - odd
    return out.view(m, n)


@helion.kernel(backend="cute", static_shapes=True)
def gated(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gates next to their inputs, and a matrix of the inputs."""
    (m, k), n = x.size(), w.size(1)
    out = torch.empty([m, n // 2], dtype=x.dtype, device=x.device)
    inputs = torch.empty([m, n // 2], dtype=x.dtype, device=x.device)
    for tile_m, pair in hl.tile([m, n // 2]):
        gate = hl.zeros([tile_m, pair], dtype=torch.float32)
        up = hl.zeros([tile_m, pair], dtype=torch.float32)
        for tile_k in hl.tile(k):
            gate = torch.addmm(gate, x[tile_m, tile_k], w[tile_k, pair.index * 2])
            up = torch.addmm(up, x[tile_m, tile_k], w[tile_k, pair.index * 2 + 1])
        out[tile_m, pair] = (gate * torch.sigmoid(gate) * up).to(x.dtype)
        inputs[tile_m, pair] = up.to(x.dtype)
    return out, inputs


@helion.kernel(backend="cute", static_shapes=True)
def of_fixed_tiles(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Tiles of 32 pairs."""
    (m, k), n = x.size(), w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, pair in hl.tile([m, n // 2], block_size=[64, 32]):
        even = hl.zeros([tile_m, pair], dtype=torch.float32)
        odd = hl.zeros([tile_m, pair], dtype=torch.float32)
        for tile_k in hl.tile(k):
            even = torch.addmm(even, x[tile_m, tile_k], w[tile_k, pair.index * 2])
            odd = torch.addmm(odd, x[tile_m, tile_k], w[tile_k, pair.index * 2 + 1])
        out[tile_m, pair.index * 2] = (even * odd).to(x.dtype)
        out[tile_m, pair.index * 2 + 1] = (even + odd).to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=False)
def of_two_products(
    x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys, each of even and of odd columns, of any number of rows."""
    m, k, n, half = x.size(0), hl.specialize(w.size(0)), hl.specialize(w.size(1)), hl.specialize(cos.size(1))
    hl.specialize(v.size(1))
    q = torch.empty([m, n], dtype=x.dtype, device=x.device)
    p = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, pair in hl.tile([m, n // 2]):
        even = hl.zeros([tile_m, pair], dtype=torch.float32)
        odd = hl.zeros([tile_m, pair], dtype=torch.float32)
        even_p = hl.zeros([tile_m, pair], dtype=torch.float32)
        odd_p = hl.zeros([tile_m, pair], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            even = torch.addmm(even, rows, w[tile_k, pair.index * 2])
            odd = torch.addmm(odd, rows, w[tile_k, pair.index * 2 + 1])
            even_p = torch.addmm(even_p, rows, v[tile_k, pair.index * 2])
            odd_p = torch.addmm(odd_p, rows, v[tile_k, pair.index * 2 + 1])
        c, s = cos[tile_m, pair.index % half].float(), sin[tile_m, pair.index % half].float()
        q[tile_m, pair.index * 2] = (even * c - odd * s).to(x.dtype)
        q[tile_m, pair.index * 2 + 1] = (even * s + odd * c).to(x.dtype)
        p[tile_m, pair.index * 2] = (even_p * c - odd_p * s).to(x.dtype)
        p[tile_m, pair.index * 2 + 1] = (even_p * s + odd_p * c).to(x.dtype)
    return q, p


def made(*shape: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operands(m: int = M, k: int = K, n: int = N, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    """A left operand, a weight, and tables for the pairs of a head."""
    x, w = made(m, k, seed=0, dtype=dtype), (made(k, n, seed=1) / k**0.5).to(dtype)
    return x, w, made(m, HEAD, seed=2, dtype=dtype), made(m, HEAD, seed=3, dtype=dtype)


def turned(product: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = product.view(len(product), -1, HEAD, 2).unbind(-1)
    c, s = cos.double()[:, None], sin.double()[:, None]
    return torch.stack((low * c - high * s, low * s + high * c), -1).reshape(product.shape)


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.double() @ w.double()


def check(found: Any, wanted: Sequence[torch.Tensor] | torch.Tensor, tolerance: float = 5e-3) -> None:
    both = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for one, other in both:
        assert (one.double() - other).norm() < tolerance * other.norm()


def gemm(kernel: Callable[..., Any], arguments: Sequence[torch.Tensor]) -> GemmPlan:
    bound = kernel.bind(tuple(arguments), target="h200")
    plan = bound.plan(bound.seeds[0].config)
    assert isinstance(plan, CutePlan)
    return plan.gemm


def check_all_columns(plan: GemmPlan, products: int = 1) -> None:
    """Check that a plan has all columns, of which TMA loads those of each product and stores whole rows."""
    assert (plan.problem.n, len(plan.problem.epilogue.of_kind("product"))) == (N, products - 1)
    assert not plan.problem.copied


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_columns_that_indices_select_are_one_product(dtype: torch.dtype) -> None:
    x, w, cos, sin = operands(dtype=dtype)
    bias, res = made(N, seed=4, dtype=dtype), made(M, N, seed=5, dtype=dtype)
    check(by_indices(x, w, bias, res, cos, sin), turned(product(x, w) + bias.double() + res.double(), cos, sin))
    plan = gemm(by_indices, (x, w, bias, res, cos, sin))
    check_all_columns(plan)
    assert {each.kind for each in plan.problem.epilogue.operands} == {"row", "exact", "strided"}
    assert [each.kind for each in plan.problem.outputs] == ["exact"]


def test_views_of_the_host_are_one_product() -> None:
    x, w, *_ = operands(m=63, k=1000)
    gain = made(N // 2, seed=6)
    wanted = torch.softmax(product(x, w).view(63, -1, 2), -1) * gain.double()[None, :, None]
    check(by_views(x, w, gain), wanted.view(63, N))
    check_all_columns(gemm(by_views, (x, w, gain)))


def test_rows_of_a_weight_are_one_product() -> None:
    x, w, *_ = operands()
    low, high = product(x, w).view(M, -1, 2).unbind(-1)
    wanted = torch.stack((torch.sqrt(low * low + high * high), low - high), -1).view(M, N)
    check(by_rows(x, w.T.contiguous()), wanted)
    plan = gemm(by_rows, (x, w.T.contiguous()))
    check_all_columns(plan)
    assert [each.kind for each in plan.problem.outputs] == ["exact"]


def test_gates_next_to_their_inputs_are_one_product() -> None:
    x, w, *_ = operands()
    gate, up = product(x, w).view(M, -1, 2).unbind(-1)
    check(gated(x, w), (gate * torch.sigmoid(gate) * up, up))
    plan = gemm(gated, (x, w))
    check_all_columns(plan)
    assert [each.pairs for each in plan.problem.outputs] == [N // 2, N // 2]


def test_tiles_of_a_fixed_number_of_pairs_have_twice_as_many_columns() -> None:
    x, w, *_ = operands()
    low, high = product(x, w).view(M, -1, 2).unbind(-1)
    check(of_fixed_tiles(x, w), torch.stack((low * high, low + high), -1).view(M, N))
    plan = gemm(of_fixed_tiles, (x, w))
    check_all_columns(plan)
    assert plan.tile[:2] == (64, 64)


@pytest.mark.parametrize("rows", [M, 1000])
def test_two_products_of_even_and_odd_columns_are_two_products(rows: int) -> None:
    x, w, cos, sin = operands(m=rows)
    v = made(K, N, seed=7)
    check(of_two_products(x, w, v, cos, sin), (turned(product(x, w), cos, sin), turned(product(x, v), cos, sin)))
    check_all_columns(gemm(of_two_products, (x, w, v, cos, sin)), products=2)


@helion.kernel(backend="cute", static_shapes=True)
def numbered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Pairs plus their numbers."""
    (m, k), n = x.size(), w.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, pair in hl.tile([m, n // 2]):
        even = hl.zeros([tile_m, pair], dtype=torch.float32)
        odd = hl.zeros([tile_m, pair], dtype=torch.float32)
        for tile_k in hl.tile(k):
            even = torch.addmm(even, x[tile_m, tile_k], w[tile_k, pair.index * 2])
            odd = torch.addmm(odd, x[tile_m, tile_k], w[tile_k, pair.index * 2 + 1])
        out[tile_m, pair.index * 2] = even + pair.index[None, :]
        out[tile_m, pair.index * 2 + 1] = odd - pair.index[None, :]
    return out


@helion.kernel(backend="cute", static_shapes=True)
def some_heads(
    x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, gain: torch.Tensor, heads: hl.constexpr
) -> torch.Tensor:
    """The first heads, turned by tables with a number for each column of a head."""
    (m, k), n, width = x.size(), w.size(1), cos.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        acc = acc * gain[tile_n.index % width][None, :]
        low, high = hl.split(acc.reshape(acc.size(0), acc.size(1) // 2, 2))
        other = hl.join(-high, low).reshape(acc.size(0), acc.size(1))
        turned = acc * cos[tile_m, tile_n.index % width] + other * sin[tile_m, tile_n.index % width]
        out[tile_m, tile_n] = torch.where((tile_n.index < heads * width)[None, :], turned, acc).to(x.dtype)
    return out


def test_pairs_have_numbers() -> None:
    x, w, *_ = operands()
    low, high = product(x, w).view(M, -1, 2).unbind(-1)
    numbers = torch.arange(N // 2).double()
    check(numbered(x, w), torch.stack((low + numbers, high - numbers), -1).view(M, N))
    check_all_columns(gemm(numbered, (x, w)))


def test_columns_of_heads_have_the_same_tables() -> None:
    x, w, *_ = operands()
    cos, sin, gain = (made(*shape, seed=10 + at) for at, shape in enumerate([(M, 64), (M, 64), (64,)]))
    plain = product(x, w) * gain.double().repeat(3)
    other = torch.stack((-plain[:, 1::2], plain[:, 0::2]), -1).view(M, N)
    wanted = plain * cos.double().repeat(1, 3) + other * sin.double().repeat(1, 3)
    wanted[:, 128:] = plain[:, 128:]
    check(some_heads(x, w, cos, sin, gain, 2), wanted)
    check_all_columns(plan := gemm(some_heads, (x, w, cos, sin, gain, 2)))
    assert [each.repeated for each in plan.problem.epilogue.operands] == [64, 64, 64]


# What is no product with all columns ----------------------------------------------------------------------------------------


@helion.kernel(static_shapes=True)
def crossed(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Real and imaginary parts: the columns of one product are even and odd, those of the other odd and even."""
    (m, k), n = x.size(), w.size(1)
    out = torch.empty([m, n // 2, 2], dtype=torch.float32, device=x.device)
    for tile_m, pair in hl.tile([m, n // 2]):
        real = hl.zeros([tile_m, pair], dtype=torch.float32)
        imaginary = hl.zeros([tile_m, pair], dtype=torch.float32)
        for tile_k in hl.tile(k):
            real += hl.dot(x[tile_m, tile_k], w[tile_k, pair.index * 2])
            real -= hl.dot(y[tile_m, tile_k], w[tile_k, pair.index * 2 + 1])
            imaginary += hl.dot(x[tile_m, tile_k], w[tile_k, pair.index * 2 + 1])
            imaginary += hl.dot(y[tile_m, tile_k], w[tile_k, pair.index * 2])
        out[tile_m, pair, 0] = real
        out[tile_m, pair, 1] = imaginary
    return out


@helion.kernel(static_shapes=True)
def distant(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Every fourth column, and the one after the next."""
    (m, k), n = x.size(), w.size(1)
    out = torch.empty([m, n // 2], dtype=torch.float32, device=x.device)
    for tile_m, four in hl.tile([m, n // 4]):
        one = hl.zeros([tile_m, four], dtype=torch.float32)
        other = hl.zeros([tile_m, four], dtype=torch.float32)
        for tile_k in hl.tile(k):
            one = torch.addmm(one, x[tile_m, tile_k], w[tile_k, four.index * 4])
            other = torch.addmm(other, x[tile_m, tile_k], w[tile_k, four.index * 4 + 3])
        out[tile_m, four.index * 2] = one
        out[tile_m, four.index * 2 + 1] = other
    return out


@helion.kernel(static_shapes=True)
def of_arguments(x: torch.Tensor, even_w: torch.Tensor, odd_w: torch.Tensor) -> torch.Tensor:
    """Columns of two arguments, which other calls may have elsewhere."""
    (m, k), n = x.size(), even_w.size(1)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_m, pair in hl.tile([m, n]):
        even = hl.zeros([tile_m, pair], dtype=torch.float32)
        odd = hl.zeros([tile_m, pair], dtype=torch.float32)
        for tile_k in hl.tile(k):
            even = torch.addmm(even, x[tile_m, tile_k], even_w[tile_k, pair])
            odd = torch.addmm(odd, x[tile_m, tile_k], odd_w[tile_k, pair])
        out[tile_m, pair] = even * odd
    return out


@helion.kernel(static_shapes=True)
def read_and_stored(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The odd columns of the output before the even ones are stored."""
    (m, k), n = x.size(), w.size(1)
    for tile_m, pair in hl.tile([m, n // 2]):
        even = hl.zeros([tile_m, pair], dtype=torch.float32)
        odd = hl.zeros([tile_m, pair], dtype=torch.float32)
        for tile_k in hl.tile(k):
            even = torch.addmm(even, x[tile_m, tile_k], w[tile_k, pair.index * 2])
            odd = torch.addmm(odd, x[tile_m, tile_k], w[tile_k, pair.index * 2 + 1])
        out[tile_m, pair.index * 2] = even
        out[tile_m, pair.index * 2 + 1] = out[tile_m, pair.index * 2] * odd
    return out


def test_crossed_and_distant_columns_are_no_product_of_all_columns() -> None:
    x, w, *_ = operands()
    y = made(M, K, seed=8)
    left, right = w.view(K, -1, 2).unbind(-1)
    real = product(x, left) - product(y, right)
    check(crossed(x, y, w), torch.stack((real, product(x, right) + product(y, left)), -1))
    check(distant(x, w), torch.stack((product(x, w)[:, 0::4], product(x, w)[:, 3::4]), -1).view(M, N // 2))


def test_columns_of_arguments_stay_apart() -> None:
    x, w, *_ = operands()
    check(of_arguments(x, w[:, 0::2], w[:, 1::2]), product(x, w[:, 0::2]) * product(x, w[:, 1::2]))
    check(of_arguments(x, w[:, 1::2], w[:, 0::2]), product(x, w[:, 0::2]) * product(x, w[:, 1::2]))


def test_an_output_that_is_read_stays_apart() -> None:
    x, w, *_ = operands()
    low, high = product(x, w).view(M, -1, 2).unbind(-1)
    found = read_and_stored(x, w, made(M, N, seed=9, dtype=torch.float32))
    check(found, torch.stack((low, low * high), -1).view(M, N))


# Text -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sm_90", "sm_100"])
def test_the_text_reads_both_columns_of_each_product(name: str) -> None:
    """All threads in lockstep: pairs of two products, and a table of numbers that pairs have again and again."""
    target = gemms.HOPPER if name == "sm_90" else gemms.BLACKWELL
    rows, n, pairs = 127, 56, 4
    table = EpilogueOperand(name="table", kind="strided", dtype="float32", pitch=pairs, pairs=pairs)
    second = EpilogueOperand(name="second", kind="product", dtype="bfloat16", pitch=64)
    steps = [Instruction("mul", (each, 2)) for each in (0, 1)]
    steps += [Instruction(PARTNER, (each,)) for each in (0, 1)]
    steps += [Instruction("add", (each, 2)) for each in (5, 6)]
    steps += [Instruction(PARTNER, (each,)) for each in (7, 8)]
    steps += [Instruction(JOINED, (3, 9)), Instruction(JOINED, (4, 10))]
    outputs = tuple(
        EpilogueOutput(name=f"out_{value}", value=value, kind="exact", dtype="float32", pitch=n) for value in (11, 12)
    )
    epilogue = Epilogue(operands=(second, table), instructions=tuple(steps), outputs=outputs)
    problem = gemms.product(rows, n, 64, output="float32", epilogue=epilogue)
    plan = plan_gemm(problem, Choice(tile=(128, 64, 64), epilogue_n=16), target)
    sums = [made(128, n, seed=each, dtype=torch.float32) for each in (5, 6)]
    numbers = made(rows, pairs, seed=7, dtype=torch.float32)
    cluster = lockstep.Cluster(plan, sums, {"table": numbers})
    cluster.run()
    of_pairs = numbers[:, torch.arange(n // 2) % pairs]
    for given, output in zip(sums, problem.outputs, strict=True):
        low, high = given[:rows].view(rows, -1, 2).unbind(-1)
        wanted = torch.stack((low * of_pairs, high + of_pairs), -1).view(rows, n)
        torch.testing.assert_close(cluster.matrix(output.name)[:rows], wanted, rtol=1e-5, atol=1e-5)
