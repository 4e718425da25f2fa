"""Programs of the front end as products: what is read off them, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion.backends.cute.codegen.module import build
from helion.backends.cute.lower.product import Product, product_of
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.epilogue import Instruction, constant
from helion.backends.cute.plan.records import Choice
from helion.backends.cute.plan.refusal import Refusal
from helion.hardware import target

M, N, K = 192, 320, 136


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype)


def product(kernel: Any, *arguments: Any) -> Product:
    return product_of(kernel.bind(arguments)._analysis.program)


@helion.kernel(static_shapes=True)
def fused(x: torch.Tensor, y: torch.Tensor, extra: torch.Tensor, epilogue: Callable[..., Any]) -> torch.Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = epilogue(acc, extra, tile_m, tile_n)
    return out


def epilogue_of(epilogue: Callable[..., Any], extra: torch.Tensor) -> Product:
    """Of the kernel whose output is `epilogue` of the sums, the extra tensor and its two tiles."""
    return product(fused, tensor(M, K), tensor(K, N), extra, epilogue)


@helion.kernel(static_shapes=True)
def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    _, n = gate.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        left = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        right = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            left = torch.addmm(left, x[tile_m, tile_k], gate[tile_k, tile_n])
            right = torch.addmm(right, x[tile_m, tile_k], up[tile_k, tile_n])
        out[tile_m, tile_n] = (torch.nn.functional.silu(left) * right).to(x.dtype)
    return out


@helion.kernel(static_shapes=True)
def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize(
    ("x", "y", "majors", "pitches"),
    [
        (tensor(M, K), tensor(K, N), ("k", "mn"), (K, N)),
        (tensor(M, K), tensor(N, K).t(), ("k", "k"), (K, K)),
        (tensor(K, M).t(), tensor(K, N), ("mn", "mn"), (M, N)),
        (tensor(M, 2 * K)[:, :K], tensor(K, N), ("k", "mn"), (2 * K, N)),
    ],
)
def test_majors_and_pitches_come_from_strides(
    x: Any, y: Any, majors: tuple[str, str], pitches: tuple[int, int]
) -> None:
    found = product(plain, x, y)
    problem = found.problem
    assert (problem.m, problem.n, problem.k) == (M, N, K)
    assert (problem.a_major, problem.b_major) == majors
    assert (problem.a_pitch, problem.b_pitch, problem.d_pitch) == (*pitches, N)
    assert problem.epilogue.instructions == ()
    assert (found.a, found.b, found.outputs, found.operands) == (0, 1, (2,), ())


def test_a_grid_in_the_other_order_is_the_same_product() -> None:
    @helion.kernel(static_shapes=True)
    def turned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        m, k = x.size()
        _, n = y.size()
        out = torch.empty([m, n], dtype=x.dtype, device=x.device)
        for tile_n, tile_m in hl.tile([n, m]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            out[tile_m, tile_n] = acc.to(x.dtype)
        return out

    assert product(turned, tensor(M, K), tensor(K, N)).problem == product(plain, tensor(M, K), tensor(K, N)).problem


def test_a_transposed_operand_is_read_where_it_lies() -> None:
    @helion.kernel(static_shapes=True)
    def turned(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        m, k = x.size()
        n, _ = w.size()
        out = torch.empty([m, n], dtype=x.dtype, device=x.device)
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_n, tile_k].T)
            out[tile_m, tile_n] = acc.to(x.dtype)
        return out

    problem = product(turned, tensor(M, K), tensor(N, K)).problem
    assert (problem.b_major, problem.b_pitch) == ("k", K)


# Operands of the epilogue --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "epilogue", "kind"),
    [
        (tensor(N), lambda acc, v, m, n: acc * v[n], "row"),
        (tensor(N), lambda acc, v, m, n: acc * v[n][None, :], "row"),
        (tensor(N).expand(M, N), lambda acc, v, m, n: acc * v[m, n], "row"),
        (tensor(1).expand(N), lambda acc, v, m, n: acc * v[n], "column"),
        (tensor(1, 1).expand(M, N), lambda acc, v, m, n: acc * v[m, n], "column"),
        (tensor(M), lambda acc, v, m, n: acc * v[m][:, None], "column"),
        (tensor(M)[:, None].expand(M, N), lambda acc, v, m, n: acc * v[m, n], "column"),
        (tensor(2 * N)[::2], lambda acc, v, m, n: acc * v[n], "row"),
        (tensor(M, 3)[:, 1], lambda acc, v, m, n: acc * v[m][:, None], "column"),
        (tensor(M, 3)[:, :1].expand(M, N), lambda acc, v, m, n: acc * v[m, n], "column"),
        (tensor(M, N), lambda acc, v, m, n: acc * v[m, n], "exact"),
        (tensor(M, 2 * N)[:, :N], lambda acc, v, m, n: acc * v[m, n], "exact"),
    ],
)
def test_operands_are_classed_by_strides(extra: torch.Tensor, epilogue: Callable[..., Any], kind: str) -> None:
    problem = epilogue_of(epilogue, extra).problem
    (operand,) = problem.epilogue.operands
    assert (operand.kind, operand.dtype) == (kind, "bfloat16")
    assert operand.pitch == (extra.stride(0) if kind == "exact" else max(extra.stride()))
    assert problem.epilogue.instructions == (Instruction("mul", (0, 1)),)


@pytest.mark.parametrize(
    ("extra", "epilogue", "message"),
    [
        (tensor(2 * N), lambda acc, v, m, n: acc + v[n], "of which tiles cover"),
        (tensor(2, M, N), lambda acc, v, m, n: acc + v[1, m, n], "without offsets and masks"),
        (tensor(N), lambda acc, v, m, n: acc + hl.load(v, [n], extra_mask=n.index < 7), "without offsets and masks"),
        (tensor(N + 1), lambda acc, v, m, n: acc + v[n.index + 1], "without offsets and masks"),
        (tensor(N), lambda acc, v, m, n: torch.sin(acc) + v[n], "sin in an epilogue"),
        (tensor(N), lambda acc, v, m, n: acc + acc.sum(-1)[:, None], "where a program holds whole rows"),
        (tensor(N, dtype=torch.int32), lambda acc, v, m, n: acc * v[n], "int32"),
        (tensor(N), lambda acc, v, m, n: torch.fmod(acc, v[n]), "fmod in an epilogue is not implemented"),
        (tensor(M, N), lambda acc, v, m, n: v[m, n] + 1.0, "it has no matmul"),
    ],
)
def test_other_epilogues_are_refused(extra: torch.Tensor, epilogue: Callable[..., Any], message: str) -> None:
    with pytest.raises(Refusal, match=re.escape(message)):
        found = epilogue_of(epilogue, extra)
        plan_gemm(found.problem, Choice(tile=(128, 64, 64)), target("sm_90"))


@pytest.mark.parametrize(
    ("extra", "epilogue"),
    [
        (tensor(N, M), lambda acc, v, m, n: acc + v[n, m].T),
        (tensor(N, M).t(), lambda acc, v, m, n: acc + v[m, n]),
        (tensor(M, 2 * N)[:, ::2], lambda acc, v, m, n: acc + v[m, n]),
    ],
)
def test_matrices_of_other_strides_are_read_by_threads(extra: torch.Tensor, epilogue: Callable[..., Any]) -> None:
    (operand,) = epilogue_of(epilogue, extra).problem.epilogue.operands
    strides = extra.stride() if extra.size(0) == M else extra.stride()[::-1]
    assert (operand.kind, operand.pitch, operand.column_pitch) == ("strided", *strides)


def test_rounding_within_a_chain_stays() -> None:
    """Eager rounds where the user casts and after every operation on 16-bit values; the last rounding is the store's."""
    found = epilogue_of(lambda acc, v, m, n: acc.to(torch.bfloat16) * v[n] + 1.0, tensor(N))
    ops = [instruction.op for instruction in found.problem.epilogue.instructions]
    assert ops == ["round_bfloat16", "mul", "round_bfloat16", "add", "round_bfloat16"]
    found = epilogue_of(lambda acc, v, m, n: (acc * v[n]).to(torch.bfloat16), tensor(N))
    assert [instruction.op for instruction in found.problem.epilogue.instructions] == ["mul"]


def test_gelu_takes_one_exponential() -> None:
    found = epilogue_of(lambda acc, v, m, n: torch.nn.functional.gelu(acc + v[n], approximate="tanh"), tensor(N))
    ops = [instruction.op for instruction in found.problem.epilogue.instructions]
    assert ops.count("one_plus_tanh") == 1
    assert "tanh" not in ops
    found = epilogue_of(lambda acc, v, m, n: torch.tanh(acc) * v[n], tensor(N))
    assert [instruction.op for instruction in found.problem.epilogue.instructions] == ["tanh", "mul"]


def test_numbers_are_told_from_values() -> None:
    """The number 1.0 is no reference to value 1, nor the other way around."""
    found = epilogue_of(lambda acc, v, m, n: torch.tanh(acc * v[n]) + 1.0, tensor(N))
    assert [instruction.op for instruction in found.problem.epilogue.instructions] == ["mul", "one_plus_tanh"]
    found = epilogue_of(lambda acc, v, m, n: torch.tanh(acc) + torch.relu(acc) * v[n], tensor(N))
    ops = [instruction.op for instruction in found.problem.epilogue.instructions]
    assert sorted(ops) == ["add", "mul", "relu", "tanh"]
    found = epilogue_of(lambda acc, v, m, n: (acc + v[n]) * 1.0, tensor(N))
    assert found.problem.epilogue.instructions[-1].arguments == (2, constant(1.0))


def test_two_products_share_an_epilogue() -> None:
    """The sums of the second are an operand of the epilogue, whose tensor is the second B."""
    found = product(gated, tensor(M, K), tensor(K, N), tensor(K, N))
    (operand,) = found.problem.epilogue.operands
    assert (operand.kind, operand.dtype, operand.pitch) == ("product", "bfloat16", N)
    assert (found.a, found.b, found.operands) == (0, 1, (2,))
    ops = [instruction.op for instruction in found.problem.epilogue.instructions]
    assert ops == ["sigmoid", "mul", "mul"]


def test_of_two_products_of_different_majors_one_is_copied() -> None:
    copied = product(gated, tensor(M, K), tensor(K, N), tensor(N, K).t()).problem.copied
    assert [(each.operand, each.sources[0].pitch, each.sources[0].k_pitch) for each in copied] == [("b", 1, N)]
    (operand,) = product(gated, tensor(M, K), tensor(K, N), tensor(K, 2 * N)[:, N:]).problem.epilogue.operands
    assert operand.pitch == 2 * N


def test_two_products_of_different_operands_are_refused() -> None:
    @helion.kernel(static_shapes=True)
    def apart(x: torch.Tensor, other: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        m, k = x.size()
        _, n = y.size()
        out = torch.empty([m, n], dtype=x.dtype, device=x.device)
        for tile_m, tile_n in hl.tile([m, n]):
            left = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            right = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                left = torch.addmm(left, x[tile_m, tile_k], y[tile_k, tile_n])
                right = torch.addmm(right, other[tile_m, tile_k], y[tile_k, tile_n])
            out[tile_m, tile_n] = left * right
        return out

    with pytest.raises(Refusal, match="need the same first operand"):
        product(apart, tensor(M, K), tensor(M, K), tensor(K, N))


def test_an_output_that_shares_memory_is_refused() -> None:
    @helion.kernel(static_shapes=True)
    def into(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        m, k = x.size()
        _, n = y.size()
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            out[tile_m, tile_n] = acc + out[0, tile_n]
        return out

    with pytest.raises(Refusal, match="shares memory with the output"):
        product(into, tensor(M, K), tensor(K, N), tensor(M, N))


def test_what_was_stored_is_read_as_it_was_rounded() -> None:
    found = product(stored_first, tensor(M, K), tensor(K, N), tensor(M, N)).problem.epilogue
    assert [(each.op, each.arguments) for each in found.instructions] == [("round_bfloat16", (0,)), ("add", (0, 1))]
    assert [each.value for each in found.outputs] == [0, 2]


@helion.kernel(static_shapes=True)
def stored_first(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    other = torch.empty_like(out)
    m, k = x.size()
    _, n = y.size()
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(out.dtype)
        other[tile_m, tile_n] = (acc + out[tile_m, tile_n]).to(out.dtype)
    return other


def test_other_programs_are_refused() -> None:
    @helion.kernel(static_shapes=True)
    def sums(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile, :].sum(-1)
        return out

    @helion.kernel(static_shapes=True)
    def scaled_operand(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        m, k = x.size()
        _, n = y.size()
        out = torch.empty([m, n], dtype=x.dtype, device=x.device)
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k] * 2, y[tile_k, tile_n])
            out[tile_m, tile_n] = acc.to(x.dtype)
        return out

    @helion.kernel(static_shapes=True)
    def from_one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        m, k = x.size()
        _, n = y.size()
        out = torch.empty([m, n], dtype=x.dtype, device=x.device)
        for tile_m, tile_n in hl.tile([m, n]):
            acc = hl.full([tile_m, tile_n], 1.0, dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
            out[tile_m, tile_n] = acc.to(x.dtype)
        return out

    with pytest.raises(Refusal, match="it has no matmul"):
        product(sums, tensor(M, N))
    (copied,) = product(scaled_operand, tensor(M, K), tensor(K, N)).problem.copied
    assert [made.op for made in copied.instructions] == ["mul"]
    assert product(from_one, tensor(M, K), tensor(K, N)).problem.epilogue.instructions == (
        Instruction("add", (0, constant(1.0))),
    )


def test_what_only_launches_know_is_named() -> None:
    dynamic = helion.kernel(plain.fn, static_shapes=False)
    found = product(dynamic, tensor(M, K), tensor(K, N))
    names = ("size_m", "size_n", "size_k", "pitch_a", "pitch_b", "pitch_d")
    assert found.problem.runtime == names and found.arguments[3:] == tuple(number for _, number in found.runtime)
    assert all(each <= example for each, example in zip((M, N), (found.problem.m, found.problem.n), strict=True))


def test_a_program_becomes_a_module() -> None:
    found = epilogue_of(
        lambda acc, v, m, n: torch.nn.functional.gelu(acc + v[n], approximate="tanh").to(torch.bfloat16), tensor(N)
    )
    text = build(plan_gemm(found.problem, Choice(tile=(128, 64, 64)), target("sm_90")))
    assert "extra_2_operand: cute.Pointer" in text
