"""Sums of matmuls whose terms add to some of the accumulators, and whose operands TMA does not load as they are."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest
import torch
from backends.cute import products
from backends.cute.products import BF16, BOUNDS

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.module import build
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.resources.shape import shape_of
from helion.backends.cute.roles.edits import edit_role
from helion.backends.cute.roles.grammar import Step
from helion.backends.cute.roles.partial import Piece, TermLoop, TermMma, all_pieces, pieces
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.shapes import MATMUL
from helion.backends.cute.toolchain.offline import compile_text
from helion.backends.cute.verify.state import Fault
from helion.backends.cute.verify.verify import verify
from helion.hardware import target as target_of

M, N, K = 150, 104, 72
TARGETS = ("sm_90", "sm_100")
FP16, FP32 = torch.float16, torch.float32


@helion.kernel(backend="cute")
def complex_numbers(
    ar: torch.Tensor, ai: torch.Tensor, br: torch.Tensor, bi: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of four dots, each of the left operands has two, for three accumulators."""
    (m, k), n = ar.size(), br.size(1)
    real, imaginary = (torch.empty([m, n], dtype=ar.dtype, device=ar.device) for _ in range(2))
    for i, j in hl.tile([m, n]):
        plus = hl.zeros([i, j], dtype=torch.float32)
        minus = hl.zeros([i, j], dtype=torch.float32)
        cross = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            plus = hl.dot(ar[i, d], br[d, j], acc=plus)
            minus = hl.dot(ai[i, d], bi[d, j], acc=minus)
            cross = hl.dot(ar[i, d], bi[d, j], acc=cross)
            cross = hl.dot(ai[i, d], br[d, j], acc=cross)
        real[i, j] = (plus - minus).to(ar.dtype)
        imaginary[i, j] = cross.to(ar.dtype)
    return real, imaginary


@helion.kernel(backend="cute")
def cell(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The loops carry two accumulators each, of which they share one."""
    (b, k), n = x.size(), h.size(1)
    out = torch.empty_like(h)
    for i, j in hl.tile([b, n]):
        gate = hl.full([i, j], 0.5, dtype=torch.float32)
        fresh = hl.zeros([i, j], dtype=torch.float32)
        before = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            fresh = hl.dot(x[i, d], w[0, d, j], acc=fresh)
            gate = hl.dot(x[i, d], w[1, d, j], acc=gate)
        for d in hl.tile(n):
            gate = hl.dot(h[i, d], u[0, d, j], acc=gate)
            before = hl.dot(h[i, d], u[1, d, j], acc=before)
        out[i, j] = torch.tanh(fresh + torch.sigmoid(gate) * before).to(h.dtype)
    return out


@helion.kernel(backend="cute")
def density(x: torch.Tensor, square: torch.Tensor, linear: torch.Tensor) -> torch.Tensor:
    """Dots over all of K, one of them of a computed operand, and a reduction of their rows."""
    (m, d), _ = x.size(), hl.specialize(linear.size(1))
    d, out = hl.specialize(d), torch.empty([m], dtype=torch.float32, device=x.device)
    for i in hl.tile(m):
        rows = x[i, :]
        scores = hl.dot(rows, linear[:, :]) - hl.dot(rows * rows, square[:, :])
        out[i] = torch.logsumexp(scores, dim=-1)
    return out


@helion.kernel(backend="cute")
def filtered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Rows of any pitch, shifted by each of three taps."""
    (t, c), n = x.size(), w.size(2)
    out = torch.empty([t - 2, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([t - 2, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(c):
            for tap in hl.static_range(3):
                acc = hl.dot(x[i.index + tap, d], w[tap, d, j], acc=acc)
        out[i, j] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def three_of_two(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Three accumulators, of which two begin with one matrix and go on with two."""
    (m, k), n = x.size(), w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        first = hl.zeros([i, j], dtype=torch.float32)
        second = hl.zeros([i, j], dtype=torch.float32)
        third = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            first = hl.dot(x[i, d], v[j, d].T, acc=first)
            second = hl.dot(x[i, d], w[j, d].T, acc=second)
            third = hl.dot(x[i, d], w[j, d].T, acc=third)
        for d in hl.tile(k):
            first = hl.dot(h[i, d], u[j, d].T, acc=first)
            second = hl.dot(h[i, d], u[j, d].T, acc=second)
            third = hl.dot(h[i, d], v[j, d].T, acc=third)
        out[i, j] = (first * second - third).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def two_of_one(
    x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, first: torch.Tensor, second: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One right operand for two left ones."""
    (m, k), n = x.size(), w.size(1)
    for i, j in hl.tile([m, n]):
        one = hl.zeros([i, j], dtype=torch.float32)
        other = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            one = hl.dot(x[i, d], w[d, j], acc=one)
            other = hl.dot(y[i, d], w[d, j], acc=other)
        first[i, j] = one.to(x.dtype)
        second[i, j] = other.to(x.dtype)
    return first, second


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return products.values(*shape, dtype=dtype, device="cpu", seed=seed) / 8


def parts(k: int, n: int, dtype: torch.dtype) -> list[torch.Tensor]:
    shapes = ((M, k), (M, k), (k, n), (k, n))
    return [tensor(*shape, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]


@pytest.mark.parametrize(("k", "n", "dtype"), [(K, N, BF16), (77, 103, FP16), (64, N, FP32)])
def test_terms_add_to_some_of_the_accumulators(k: int, n: int, dtype: torch.dtype) -> None:
    given = parts(k, n, dtype)
    ar, ai, br, bi = (each.double() for each in given)
    real, imaginary = complex_numbers(*given)
    assert products.row_error(real, ar @ br - ai @ bi) < BOUNDS[dtype]
    assert products.row_error(imaginary, ar @ bi + ai @ br) < BOUNDS[dtype]
    problem = complex_numbers.bind(tuple(given), target="sm_90").plan().gemm.whole
    assert len(problem.terms) == 1 and len(problem.absent) == 2
    assert not {each.operand for each in problem.copied} & {*problem.absent}


def test_loops_share_some_accumulators() -> None:
    x, h, w, u = tensor(M, K), tensor(M, N, seed=1), tensor(2, K, N, seed=2), tensor(2, N, N, seed=3)
    fresh, before = x.double() @ w[0].double(), h.double() @ u[1].double()
    gate = torch.sigmoid(0.5 + x.double() @ w[1].double() + h.double() @ u[0].double())
    assert products.row_error(cell(x, h, w, u), torch.tanh(fresh + gate * before)) < BOUNDS[BF16]


@pytest.mark.parametrize("turned", [False, True])
def test_a_transposed_result_shares_right_operands(turned: bool) -> None:
    x, y, w = tensor(M, K), tensor(M, K, seed=1), tensor(K, N, seed=2)
    outs = [torch.empty(N, M, dtype=BF16).t() if turned else torch.empty(M, N, dtype=BF16) for _ in range(2)]
    for found, left in zip(two_of_one(x, y, w, *outs), (x, y), strict=True):
        assert products.row_error(found, left.double() @ w.double()) < BOUNDS[BF16]
    problem = two_of_one.bind((x, y, w, *outs), target="sm_90").plan().gemm.whole
    assert (len(problem.terms), len(problem.absent)) == ((0, 0) if turned else (1, 2))


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_dots_over_all_of_k_have_operands_of_their_own(dtype: torch.dtype) -> None:
    x, square, linear = (
        tensor(M, 64, dtype=dtype),
        tensor(64, 136, seed=1, dtype=dtype),
        tensor(64, 136, seed=2, dtype=dtype),
    )
    wanted = torch.logsumexp(x.double() @ linear.double() - (x * x).double() @ square.double(), dim=-1)
    torch.testing.assert_close(density(x, square, linear).double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("c", "n", "dtype"), [(77, 103, FP16), (64, N, FP32), (76, N, BF16)])
def test_operands_of_terms_are_copied(c: int, n: int, dtype: torch.dtype) -> None:
    x, w = tensor(M + 2, c, dtype=dtype), tensor(3, c, n, seed=1, dtype=dtype)
    wanted = sum(x[tap : M + tap].double() @ w[tap].double() for tap in range(3))
    assert products.row_error(filtered(x, w), wanted) < BOUNDS[dtype]
    gemm = filtered.bind((x, w), target="sm_90").plan().gemm
    assert gemm.prepare is not None and not gemm.problem.copied


def test_accumulators_that_begin_with_one_matrix_stay_apart() -> None:
    x, h, *weights = tensor(M, K), tensor(M, K, seed=1), *(tensor(N, K, seed=seed) for seed in (2, 3, 4))
    w, u, v = (each.double().t() for each in weights)
    one, other = x.double(), h.double()
    wanted = (one @ v + other @ u) * (one @ w + other @ u) - (one @ w + other @ v)
    assert products.row_error(three_of_two(x, h, *weights), wanted) < BOUNDS[BF16]


def test_seeds_know_terms_and_their_copies() -> None:
    numbers = complex_numbers.bind(tuple(parts(K, N, BF16)), target="sm_90")
    x, square = torch.empty(4096, 64, dtype=BF16, device="meta"), torch.empty(64, 136, dtype=BF16, device="meta")
    odd = torch.empty(M + 2, 77, dtype=FP16, device="meta"), torch.empty(3, 77, 103, dtype=FP16, device="meta")
    for bound, products_of_a, k in (
        (numbers, 3, [K, K]),
        (density.bind((x, square, square), target="sm_90"), 2, [64, 64]),
        (filtered.bind(odd, target="sm_90"), 1, [77, 77, 77]),
    ):
        shape, whole = shape_of(bound.facts), bound.plan().gemm.whole
        assert not isinstance(shape, str) and bound.seeds
        assert (shape.products, [shape.problem.k, *(term.k for term in shape.problem.terms)]) == (products_of_a, k)
        assert len(shape.problem.copied) == len(whole.copied)
        assert len(shape.problem.absent) == len(whole.absent)


@pytest.mark.parametrize("target", TARGETS)
def test_absent_operands_are_loaded_from_past_the_end(target: str) -> None:
    bound = complex_numbers.bind(tuple(parts(K, N, BF16)), target=target)
    gemm = bound.plan().gemm
    text, tiles = build(gemm), -(-K // gemm.tile[2])
    second, last = (label for label in gemm.problem.absent)
    assert f"from_{second}[None, tile_n, k_tile + {tiles}]" in text
    # a second term begins as many tiles after the first
    assert f"from_{last}[None, tile_n, k_tile]" in text
    for label in (second, last):
        assert re.search(rf"matrix_{label} = .*, cutlass\.Int32\({K}\)\), stride=", text)


def test_accumulators_of_a_term_are_adjacent() -> None:
    """Terms of the first and last of three accumulators have adjacent ones in another order."""
    plan = complex_numbers.bind(tuple(parts(K, N, BF16)), target="b200").plan().gemm
    assert [[(each.first, each.count) for each in pieces(plan, term)] for term in (0, 1)] == [[(0, 2)], [(1, 2)]]
    assert pieces(plan, 1, first=True) == (Piece(1, 1), Piece(2, 1, fresh=True))
    assert all_pieces(plan) == [Piece(0, 2), Piece(1, 1), Piece(1, 2), Piece(2, 1)]
    given = tensor(M, K), tensor(M, N, seed=1), tensor(2, K, N, seed=2), tensor(2, N, N, seed=3)
    hopper = cell.bind(given, target="h200").plan().gemm
    assert pieces(hopper, 0) == (Piece(1, 1), Piece(2, 1)) and pieces(hopper, 1) == (Piece(0, 1), Piece(1, 1))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (lambda step: dataclasses.replace(step, term=0), "is multiplied as one of term 0"),
        (lambda step: dataclasses.replace(step, first=True), "the accumulators of tile"),
        (None, "the accumulator of tile"),
    ],
)
def test_wrong_accumulators_are_faults(target: str, edit: Callable[[TermMma], TermMma] | None, fault: str) -> None:
    """Plant an MMA of another term, one that begins an accumulator again, and a term that is left out."""
    program = kernel_program(complex_numbers.bind(tuple(parts(8 * K, N, BF16)), target=target).plan().gemm)

    def plant(step: Step) -> tuple[Step, ...]:
        if isinstance(step, TermLoop) and step.term == 1 and edit is None:
            return ()
        rest = isinstance(step, TermMma) and step.term == 1 and not step.first
        return (edit(step),) if edit is not None and isinstance(step, TermMma) and rest else (step,)

    name = "store" if target == "sm_90" else "multiply"
    verify(program)
    with pytest.raises(Fault, match=fault):
        verify(edit_role(program, name, plant))


def test_infinities_stay_in_the_accumulators_of_their_term() -> None:
    given = tensor(M, K), tensor(M, N, seed=1), tensor(2, K, N, seed=2), tensor(2, N, N, seed=3)
    given[0][3, 4] = torch.inf
    found, (x, h, w, u) = cell(*given), (each.double() for each in given)
    gate = torch.sigmoid(0.5 + x @ w[1] + h @ u[0])
    torch.testing.assert_close(found.double(), torch.tanh(x @ w[0] + gate * (h @ u[1])), rtol=2e-2, atol=2e-2)
    assert found.isfinite().all()


def test_eight_bits_that_are_promoted_have_whole_terms() -> None:
    left, right = (torch.empty(size, 128, dtype=torch.float8_e4m3fn, device="meta") for size in (M, N))
    given = left, left, right.t(), right.t()
    with pytest.raises(exc.Base, match="terms that add to a part of the accumulators"):
        complex_numbers.bind(given, target="sm_90").plan()
    assert complex_numbers.bind(given, target="sm_100").plan().gemm.problem.absent


def test_auto_takes_partial_terms_on_hopper() -> None:
    given = tuple(
        torch.empty(*shape, dtype=BF16, device="meta") for shape in ((4096, 1024),) * 2 + ((2, 1024, 1024),) * 2
    )
    bound = cell.bind(given, target="b200")
    asked = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    assert asked.startswith("matmuls of several products that are stored separately")
    assert helion.kernel(cell.fn, backend="auto").bind(given, target="h200").backend_on_gpu == "cute"
    odd = torch.empty(8194, 2047, dtype=BF16, device="meta"), torch.empty(3, 2047, 2047, dtype=BF16, device="meta")
    assert helion.kernel(filtered.fn, backend="auto").bind(odd, target="h200").backend_on_gpu == "cute"


@pytest.mark.prove
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("k", [K, 77])
def test_kernels_compile_without_spills(k: int, target: str) -> None:
    gemm = complex_numbers.bind(tuple(parts(k, 96 if k == K else 103, FP16)), target=target).plan().gemm
    compiled = compile_text(build(gemm), gemm)
    assert ".local" not in compiled.ptx


def test_absent_operands_are_checked() -> None:
    problem = complex_numbers.bind(tuple(parts(K, N, BF16)), target="sm_90").plan().gemm.problem
    labels = [each.label for each in problem.multiplicands]
    for absent in (("a",), (labels[2], f"{labels[2]}_of_1")):
        with pytest.raises(Refusal, match="a sum of matmuls without"):
            plan_gemm(dataclasses.replace(problem, absent=absent), Choice(tile=(64, 64, 64)), target_of("sm_90"))
