"""Sums of several matmuls: consecutive loops over K, and several dots of one loop, for the same accumulators."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from backends.cute import edited_roles, products
from backends.cute.products import BF16, BOUNDS

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.module import build
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.records import Choice, Term
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.resources.shape import shape_of
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.programs import kernel_program
from helion.backends.cute.shapes import MATMUL
from helion.backends.cute.toolchain.offline import compile_text
from helion.backends.cute.verify.state import Fault
from helion.backends.cute.verify.verify import verify
from helion.hardware import target as target_of

M, N, K, R = 150, 104, 200, 24
TARGETS = ("sm_90", "sm_100")


@helion.kernel(backend="cute")
def adapted(
    x: torch.Tensor, w: torch.Tensor, low: torch.Tensor, up: torch.Tensor, bias: torch.Tensor, start: torch.Tensor
) -> torch.Tensor:
    """``start + x @ w.T + low @ up.T + bias``, with one separate add."""
    (m, k), n, rank = x.size(), w.size(0), low.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([m, n]):
        acc = start[i, j].to(torch.float32)
        for d in hl.tile(k):
            acc = hl.dot(x[i, d], w[j, d].T, acc=acc)
        for r in hl.tile(rank):
            acc = acc + torch.mm(low[i, r], up[j, r].T, out_dtype=torch.float32)
        out[i, j] = (acc + bias[j][None, :].to(torch.float32)).to(x.dtype)
    return out


@helion.kernel(backend="cute")
def filtered_in_each(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A convolution along time of each signal of a batch: rows shifted by each of three taps."""
    batch, t, c = x.size()
    n = w.size(2)
    out = torch.empty([batch, t - 2, n], dtype=x.dtype, device=x.device)
    for b, i, j in hl.tile([batch, t - 2, n], block_size=[1, None, None]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(c):
            for tap in hl.static_range(3):
                acc = hl.dot(x[b.begin, i.index + tap, d], w[tap, d, j], acc=acc)
        out[b.begin, i, j] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def filtered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A convolution along time: rows shifted by each of three taps."""
    t, c = x.size()
    n = w.size(2)
    out = torch.empty([t - 2, n], dtype=x.dtype, device=x.device)
    for i, j in hl.tile([t - 2, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(c):
            for tap in hl.static_range(3):
                acc = hl.dot(x[i.index + tap, d], w[tap, d, j], acc=acc)
        out[i, j] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def gates(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Two accumulators, of two terms each, which the second loop adds to in the other order."""
    b, k = x.size()
    n = h.size(1)
    out = torch.empty_like(h)
    for i, j in hl.tile([b, n]):
        first = hl.zeros([i, j], dtype=torch.float32)
        second = hl.zeros([i, j], dtype=torch.float32)
        for d in hl.tile(k):
            first = hl.dot(x[i, d], w[0, d, j], acc=first)
            second = hl.dot(x[i, d], w[1, d, j], acc=second)
        for d in hl.tile(n):
            second = hl.dot(h[i, d], u[1, d, j], acc=second)
            first = hl.dot(h[i, d], u[0, d, j], acc=first)
        out[i, j] = (torch.sigmoid(first) * torch.tanh(second)).to(h.dtype)
    return out


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return products.values(*shape, dtype=dtype, device="cpu", seed=seed) / 8


def adapted_args() -> tuple[torch.Tensor, ...]:
    return (
        tensor(M, K),
        tensor(N, K, seed=1),
        tensor(M, R, seed=2),
        tensor(N, R, seed=3),
        tensor(N, seed=4),
        tensor(M, N, seed=5),
    )


def test_consecutive_loops_add_to_one_accumulator() -> None:
    x, w, low, up, bias, start = args = adapted_args()
    wanted = x.double() @ w.double().t() + low.double() @ up.double().t() + bias.double() + start.double()
    assert products.row_error(adapted(*args), wanted) < BOUNDS[BF16]
    problem = adapted.bind(args, target="sm_90").plan().gemm.problem
    assert (problem.k, [term.k for term in problem.terms]) == (K, [R])


def test_dots_of_shifted_rows_add_to_one_accumulator() -> None:
    x, w = tensor(M + 2, 72), tensor(3, 72, N, seed=1)
    wanted = sum(x[tap : M + tap].double() @ w[tap].double() for tap in range(3))
    assert products.row_error(filtered(x, w), wanted) < BOUNDS[BF16]


def test_terms_of_two_accumulators() -> None:
    x, h, w, u = tensor(M, 72), tensor(M, N, seed=1), tensor(2, 72, N, seed=2), tensor(2, N, N, seed=3)
    first, second = (x.double() @ w[at].double() + h.double() @ u[at].double() for at in range(2))
    assert products.row_error(gates(x, h, w, u), torch.sigmoid(first) * torch.tanh(second)) < BOUNDS[BF16]


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_know_all_terms(target: str) -> None:
    x, w = (torch.empty(shape, dtype=BF16, device="meta") for shape in ((4096, 2048), (3, 2048, 4096)))
    bound = filtered.bind((x, w), target=target)
    shape = shape_of(bound.facts)
    assert not isinstance(shape, str) and [term.k for term in shape.problem.terms] == [2048, 2048]
    assert bound.plan().gemm.k_tiles == 96
    assert bool(MATMUL.on_request(bound.plan().program, bound.facts, bound.target)) == (target == "sm_100")


@pytest.mark.parametrize("target", TARGETS)
def test_terms_of_two_accumulators_run_on_request_on_blackwell(target: str) -> None:
    meta = {"dtype": BF16, "device": "meta"}
    x, h, w, u = (torch.empty(shape, **meta) for shape in ((M, 72), (M, N), (2, 72, N), (2, N, N)))
    bound = gates.bind((x, h, w, u), target=target)
    assert bool(MATMUL.on_request(bound.plan().program, bound.facts, bound.target)) == (target == "sm_100")


@pytest.mark.parametrize("target", TARGETS)
def test_each_k_tile_is_loaded_from_its_term(target: str) -> None:
    gemm = adapted.bind(adapted_args(), target=target).plan().gemm
    text = build(gemm)
    assert "if k_tile < 4:" in text and "if k_tile >= 4:" in text
    assert "from_a_of_1[None, tile_m, k_tile - 4]" in text
    if target == "sm_90":
        assert ".local" not in compile_text(text, gemm).ptx


@pytest.mark.parametrize("target", TARGETS)
def test_terms_that_load_nothing_are_found(target: str) -> None:
    program = kernel_program(adapted.bind(adapted_args(), target=target).plan().gemm)
    verify(program)
    for label in ("b", "a_of_1", "b_of_1"):
        edited = edited_roles.edited(program, "load", edited_roles.without(g.TmaLoad(label, "ab_fill")))
        with pytest.raises(Fault):
            verify(edited)
    (other,) = (step for step in _steps(program.role("load").program) if step == g.OfTerm(1, getattr(step, "body", ())))
    with pytest.raises(Fault):
        verify(edited_roles.edited(program, "load", edited_roles.without(other)))


def _steps(steps: tuple[g.Step, ...]) -> list[g.Step]:
    return [each for step in steps for each in (step, *_steps(getattr(step, "body", ())))]


def test_terms_that_do_not_fit_are_refused() -> None:
    problem = adapted.bind(adapted_args(), target="sm_90").plan().gemm.problem
    choice = Choice(tile=(128, 128, 64))
    for changes, reason in (
        ({"terms": (Term(k=8, a_pitch=8, b_pitches=(8,)),) * 12}, "a sum of 13 matmuls; up to 12"),
        ({"terms": (Term(k=8, a_pitch=12, b_pitches=(8,)),)}, "a stride of 12 elements"),
        ({"terms": (Term(k=8, a_pitch=8, b_pitches=(0,)),)}, "they overlap"),
    ):
        with pytest.raises(Refusal, match=reason):
            plan_gemm(dataclasses.replace(problem, **changes), choice, target_of("sm_90"))


@helion.kernel(backend="cute")
def rounded_between(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Something else reads the first sum."""
    (m, k), n, other = a.size(), b.size(1), c.size(1)
    out = torch.empty([m, n], dtype=a.dtype, device=a.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for x in hl.tile(k):
            acc = torch.addmm(acc, a[i, x], b[x, j])
        total = torch.relu(acc)
        for x in hl.tile(other):
            total = torch.addmm(total, c[i, x], d[x, j])
        out[i, j] = total.to(a.dtype)
    return out


def test_what_is_no_sum_of_matmuls_is_refused() -> None:
    a, b, c, d = tensor(M, K), tensor(K, N), tensor(M, R), tensor(R, N)
    with pytest.raises(exc.CuteUnsupported, match="or several that go on with all accumulators"):
        rounded_between.bind((a, b, c, d), target="sm_90")


@helion.kernel(backend="cute")
def with_effects(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    """Two terms of a loop, and a loop that stores."""
    (m, k), n = a.size(), b.size(1)
    out = torch.empty([m, n], dtype=a.dtype, device=a.device)
    for i, j in hl.tile([m, n]):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for x in hl.tile(k):
            acc = hl.dot(a[i, x], b[x, j], acc=acc)
            acc = hl.dot(c[i, x], b[x, j], acc=acc)
        for x in hl.tile(k):
            copy[i, x] = a[i, x]
        out[i, j] = acc.to(a.dtype)
    return out


@helion.kernel(backend="cute")
def rows_only(a: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    out = torch.empty([order.size(0), a.size(1)], dtype=a.dtype, device=a.device)
    for i in hl.tile(order.size(0)):
        row = order[i]
        for x in hl.tile(a.size(1)):
            out[i, x] = a[row // 2, x]
    return out


def test_loops_with_effects_are_refused() -> None:
    a, b, c = tensor(M, K), tensor(K, N), tensor(M, K, seed=1)
    with pytest.raises(exc.CuteUnsupported):
        with_effects.bind((a, b, c, torch.empty(M, K, dtype=BF16)), target="sm_90")
    with pytest.raises(exc.CuteUnsupported):
        rows_only.bind((a, torch.arange(2 * M)), target="sm_90")


def test_terms_with_another_dimension_contiguous_are_copied() -> None:
    x, w, low, up, bias, start = adapted_args()
    given = (x, w, low.t().contiguous().t(), up.t().contiguous().t(), bias, start)
    wanted = x.double() @ w.double().t() + low.double() @ up.double().t() + bias.double() + start.double()
    assert products.row_error(adapted(*given), wanted) < BOUNDS[BF16]
    gemm = adapted.bind(given, target="sm_90").plan().gemm
    assert [each.operand for each in gemm.whole.copied] == ["a_of_1", "b_of_1"]
    assert (gemm.problem.a_major, gemm.problem.b_major) == ("k", "k")


def test_terms_in_each_matmul_of_a_batch() -> None:
    x = products.values(3, M, 72, dtype=BF16, device="cpu")
    w = products.values(3, 72, N, dtype=BF16, device="cpu", seed=1)
    wanted = sum((x[:, tap : M - 2 + tap].double() @ w[tap].double() for tap in range(3)), torch.zeros(()))
    assert (filtered_in_each(x, w).double() - wanted).norm() < BOUNDS[BF16] * wanted.norm()
    bound = filtered_in_each.bind((x, w), target="sm_90")
    problem, shape = bound.plan().gemm.problem, shape_of(bound.facts)
    assert problem.batch.terms == (M * 72, 0, M * 72, 0) and not isinstance(shape, str)
    assert len(shape.problem.terms) == len(problem.terms) == 2 and shape.problem.batches == 3
    text = bound.to_cute_code()
    assert all(f"from_a_of_{at}[None, tile_m, k_tile - " in text and "batch]" in text for at in (1, 2))
    assert not MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    odd = products.values(3, M, 71, dtype=BF16, device="cpu")
    with pytest.raises(exc.CuteUnsupported, match="from one matmul of the batch to the next; TMA needs a multiple"):
        filtered_in_each.bind((odd, products.values(3, 71, N, dtype=BF16, device="cpu")), target="sm_90")
