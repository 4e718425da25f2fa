"""Attention with dropout on the cute backend, and its gradients: random numbers as a source of formulas."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from backends.cute import dropped_kernels as kernels
from backends.cute.backward_kernels import Case
from backends.cute.printed_gradients import computed_as_printed
from backends.cute.test_backward import launch_arguments

import helion
import helion.language as hl
from helion._support.philox import WORD, philox, uniform
from helion.backends.cute.codegen.attention.formula import uniform_functions
from helion.backends.cute.plan.attention.operands import RandomNumbers
from helion.backends.cute.shapes import shape_of_plan

NAMES = (
    "dropout",
    "dropout, causal, shared keys",
    "a seed for each head",
    "gradient of queries with dropout",
    "gradients of keys with dropout",
)


@functools.cache
def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    return {case.name: case for case in kernels.cases(batch=1)}


def test_names_are_those_of_the_cases() -> None:
    assert NAMES == tuple(cases())


def meta(arguments: Any) -> tuple[Any, ...]:
    return tuple(each.to("meta") if torch.is_tensor(each) else each for each in arguments)


@pytest.mark.parametrize(
    ("name", "static"),
    [
        *((name, True) for name in NAMES),
        (NAMES[0], False),
        *(pytest.param(name, False, marks=pytest.mark.prove) for name in NAMES[1:]),
    ],
)
def test_values_on_cpu_tensors(name: str, static: bool) -> None:
    case = cases()[name]
    found = helion.kernel(backend="cute", static_shapes=static)(case.kernel)(*case.arguments)
    for one, other in zip((found,) if torch.is_tensor(found) else found, case.wanted, strict=True):
        assert (one.double() - other).norm() < 6e-3 * other.norm()


@pytest.mark.parametrize("name", [pytest.param(NAMES[-2], marks=pytest.mark.prove), NAMES[-1]])
def test_printed_text_draws_the_numbers_of_the_forward(name: str) -> None:
    case = cases()[name]
    plan = helion.kernel(backend="cute")(case.kernel).bind(meta(case.arguments), target="h100").plan()
    problem = plan.backward.problem
    assert [type(each) for each in problem.sources].count(RandomNumbers) == 1
    found = computed_as_printed(plan.backward, launch_arguments(case, plan))
    by_name = {each.output.name[:2]: one for each, one in zip(problem.gradients, found, strict=True)}
    for one, other in zip((by_name[key] for key in ("dq", "dk", "dv") if key in by_name), case.wanted, strict=True):
        assert (one.double() - other).norm() < 6e-3 * other.norm()


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_drawn_and_not_loaded(name: str) -> None:
    """A number for each query and key has no memory to be loaded from."""
    case = cases()[name]
    plan = helion.kernel(backend="cute")(case.kernel).bind(meta(case.arguments), target="h100").plan()
    problem = plan.backward.problem if name.startswith("gradient") else plan.attention.problem
    (source,) = (each for each in problem.sources if isinstance(each, RandomNumbers))
    text = shape_of_plan(plan).kernel(plan).source
    assert "uniform(cutlass.Int64(" in text and f"vectors_of_{source.label}" not in text


@pytest.mark.parametrize(
    ("function", "count", "of_cute", "of_triton", "within"),
    [(kernels.attention_with_dropout, 3, 680, 661, 0.1), (kernels.gradients_of_keys, 4, 942, 1490, 0.35)],
)
def test_predictions_count_the_random_numbers(
    function: Callable[..., object], count: int, of_cute: int, of_triton: int, within: float
) -> None:
    """Compare with times of both backends on an H200 (``dropout_times``): Philox takes most of them."""
    given = [torch.empty(2, 16, 2048, 128, dtype=torch.bfloat16, device="meta")] * count
    given += [torch.empty(2, 16, 2048, device="meta")] * (2 if count == 4 else 0)
    arguments = (*given, kernels.SEED, kernels.DROPPED, *([False] if count == 3 else []))
    for backend, measured, error in (("cute", of_cute, 0.15), ("triton", of_triton, within)):
        bound = helion.kernel(backend=backend)(function).bind(arguments, target="h200")
        analysis = bound.variant.analysis
        assert abs(bound.seeds[0].predicted.time_us / measured - 1) < error
        assert not analysis.backend.on_request(analysis.program, analysis.facts, analysis.target)
    taken = helion.kernel(function).bind(arguments, target="h200").backend_on_gpu
    assert taken == ("cute" if of_cute < of_triton else "triton")


class Words:
    """The registers of a block of PTX, which its instructions change one after the other."""

    def __init__(self, *given: torch.Tensor) -> None:
        self.held: dict[str, torch.Tensor | int] = {f"{{$r{at}}}": value for at, value in enumerate(given)}

    def of(self, name: str) -> torch.Tensor | int:
        return int(name) if name.isdigit() else self.held[name]

    def run(self, text: str) -> torch.Tensor:
        for line in text.strip()[1:-1].split(";")[:-1]:
            op, _, rest = line.strip().partition(" ")
            to, *given = (each.strip() for each in re.findall(r"\{(?!\$)[^}]*\}|[^,]+", rest))
            if op == "mul.wide.u32":
                self.held[to] = self.of(given[0]) * self.of(given[1])
            elif op == "mov.b64":
                low, high = (name.strip() for name in to.strip("{}").split(","))
                self.held[low], self.held[high] = self.of(given[0]) & WORD, (self.of(given[0]) >> 32) & WORD
            elif op == "xor.b32":
                self.held[to] = self.of(given[0]) ^ self.of(given[1])
            elif op == "add.u32":
                self.held[to] = (self.of(given[0]) + self.of(given[1])) & WORD
            elif op == "mov.b32":
                self.held[to] = self.of(given[0])
            else:
                assert op == ".reg", f"unknown instruction {op}"
        return self.held["{$w0}"]  # type: ignore[return-value]


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("seed", [0, 3, -5, 7**20])
def test_printed_words_are_philox(wide: bool, seed: int) -> None:
    """Run the printed block of PTX, an instruction at a time, at offsets of more than 32 bits."""
    case = cases()["dropout"]
    problem = (
        helion.kernel(backend="cute")(case.kernel).bind(meta(case.arguments), target="h100").plan().attention.problem
    )
    offsets = torch.randint(-(2**40), 2**40, (1000,))
    used, found = offsets if wide else offsets & WORD, []

    def ptx(text: str, write_only_types: Any, read_only_args: list[Any]) -> torch.Tensor:
        found.append(Words(*(torch.as_tensor(each) & WORD for each in read_only_args)).run(text))
        return found[0].to(torch.int32)

    names: dict[str, Any] = {
        "cutlass": SimpleNamespace(Int32=lambda value: value, Float32=torch.Tensor.float),
        "cute": SimpleNamespace(arch=SimpleNamespace(inline_ptx=ptx)),
    }
    exec("\n".join(uniform_functions(problem)[0]), names)
    drawn = names["uniform"](seed, offsets, wide)
    assert torch.equal(found[0], philox(torch.tensor(seed), used)[0])
    assert torch.equal(drawn, uniform(found[0]))


def drawn_weights(q, k, v, seed: int, draw, weigh):
    m, dims = q.size(0), hl.specialize(q.size(1))
    out = torch.empty_like(q)
    for tile_m in hl.tile(m):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(k.size(0)):
            scores = hl.dot(q[tile_m, :], k[tile_n, :].T)
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            weights = weigh(weights, draw(tile_m, tile_n, seed))
            acc = hl.dot(weights.to(v.dtype), v[tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[tile_m, :] = acc / total[:, None]
    return out


def products(tile_m, tile_n, seed):
    return hl.rand([tile_m, tile_n], seed, offsets=tile_m.index[:, None] * tile_n.index[None, :])


def wrapped(tile_m, tile_n, seed):
    offsets = (tile_m.index[:, None] * 2**20 + tile_n.index[None, :]).to(torch.int64)
    return hl.rand([tile_m, tile_n], seed, offsets=offsets)


def plain(tile_m, tile_n, seed):
    return hl.rand([tile_m, tile_n], seed)


def selected(weights, drawn):
    return torch.where(drawn > 0.5, weights, 0.0)


def added(weights, drawn):
    return weights + drawn


@pytest.mark.parametrize(
    ("draw", "weigh", "reason"),
    [
        (products, selected, "products of positions are not implemented"),
        (wrapped, selected, "in one integer type, are not implemented"),
        (plain, added, "may not be 0 where these are"),
    ],
)
def test_other_offsets_and_weights_are_refused(draw: Any, weigh: Any, reason: str) -> None:
    x = torch.empty(200, 64, dtype=torch.bfloat16, device="meta")
    with pytest.raises(helion.exc.CuteUnsupported, match=reason):
        helion.kernel(backend="cute")(drawn_weights).bind((x, x, x, 3, draw, weigh), target="h100")
