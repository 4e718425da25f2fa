"""Kernels in graphs of torch: torch.compile, torch.export, make_fx, vmap, and what is refused there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graph_kernels
import pytest
import torch
from graph_kernels import (
    add_into,
    add_scaled,
    apply,
    branches,
    convert,
    matmul,
    noise,
    rms_norm,
    scale_and_return,
    several,
    shifted,
    total_of,
    views,
)
from torch.fx.experimental.proxy_tensor import make_fx

import helion
import helion.language as hl
from helion import exc

ROOT = Path(__file__).resolve().parents[2]

INDUCTOR = pytest.param("inductor", marks=pytest.mark.cxx)  # compiles what is around the kernels
BACKENDS = ("eager", "aot_eager", INDUCTOR)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def compiled(fn: Callable[..., Any], backend: str, **options: Any) -> Callable[..., Any]:
    return torch.compile(fn, backend=backend, fullgraph=True, **options)


# --- torch.compile ------------------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    """Linear and norm, some of them, with the kernel called in a loop."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(depth))
        self.weights = torch.nn.ParameterList(torch.randn(width) for _ in range(depth))

    def forward(self, x: torch.Tensor, norm: Callable[..., torch.Tensor] = rms_norm) -> torch.Tensor:
        for layer, weight in zip(self.layers, self.weights, strict=True):
            x = x + torch.nn.functional.gelu(layer(norm(x, weight, eps=1e-6)))
        return x


def rms_norm_of_torch(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_with_kernels_inside(backend: str) -> None:
    torch.manual_seed(0)
    model = Block(63, 3)
    x = torch.randn(5, 63) + 1
    with torch.no_grad():
        expected = model(x, rms_norm_of_torch)
        torch.testing.assert_close(compiled(model, backend)(x), expected)
    forward = compiled(model, backend)(x)  # gradients are recorded, and nobody asks for them
    torch.testing.assert_close(forward.detach(), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_several_kernels_and_sizes(backend: str, dynamic: bool) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        product = matmul(x.relu(), y).t()
        return add_scaled(product.contiguous(), product.contiguous().sin(), 0.5, 2) * 3

    run = compiled(fn, backend, dynamic=dynamic)
    for m, k, n in ((8, 16, 4), (7, 33, 10), (12, 5, 3)):
        x, y = torch.randn(m, k) + 1, torch.randn(k, n)
        product = (x.relu() @ y).t()
        torch.testing.assert_close(run(x, y), (product + product.sin() * 0.5 + 2) * 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_that_are_written(backend: str) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        buffer = torch.zeros_like(x)
        add_into(buffer, x)
        add_into(buffer[2:], y[2:] * 2)
        add_into(y, buffer)
        return buffer.sin(), scale_and_return(x, 3.0) + 1

    x, y = torch.randn(12), torch.randn(12)
    xs, ys = x.clone(), y.clone()
    buffer = x.clone()
    buffer[2:] += 2 * y[2:]
    got = compiled(fn, backend)(xs, ys)
    torch.testing.assert_close(got, (buffer.sin(), 3 * x + 1))
    torch.testing.assert_close((xs, ys), (3 * x, y + buffer))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_that_are_views(backend: str, dynamic: bool) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        plus, minus, both, tail, again = views(x)
        plus.add_(10)  # seen in all that share its memory
        tail.mul_(2)
        return plus, minus, both, again, x.sum()

    run = compiled(fn, backend, dynamic=dynamic)
    for n in (6, 9):
        x = torch.randn(n)
        given = x.clone()
        plus, minus, both, again, total = run(given)
        torch.testing.assert_close(plus, x + 11)
        torch.testing.assert_close(minus, x - 1)
        torch.testing.assert_close(both, torch.cat([x + 11, x - 1]))
        torch.testing.assert_close(again, both)
        torch.testing.assert_close(given, torch.cat([x[:1], x[1:] * 2]))
        torch.testing.assert_close(total, given.sum())


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_of_what_the_graph_has_made(backend: str) -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = (x * 2).t().contiguous().t()[1]
        plus, _, _, tail, _ = views(made)
        made.add_(1)
        return plus, tail * 2

    x = torch.randn(3, 8)
    torch.testing.assert_close(compiled(fn, backend)(x), (x[1] * 2 + 1, (x[1, 1:] * 2 + 1) * 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_of_another_dtype_in_the_memory_of_an_argument(backend: str) -> None:
    x = torch.randn(8)
    got = compiled(lambda x: reinterprets(x), backend)(x.clone())
    assert torch.equal(got.view(torch.float32), x + 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nested_results(backend: str) -> None:
    def fn(x: torch.Tensor) -> Any:
        found = several(x)
        return (
            found["total"] + 1,
            found["pair"][0],
            found["pair"][1],
            found["name"],
            found["count"][0],
            found["count"][1] * 2,
        )

    x = torch.randn(4, 6) + 2
    total, doubled, none, name, count, twice = compiled(fn, backend)(x)
    torch.testing.assert_close(total, x.sum(-1) + 1)
    torch.testing.assert_close(doubled, x * 2)
    torch.testing.assert_close(twice, x * 2)
    assert (none, name, count) == (None, "both", 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_arguments_that_are_no_tensors(backend: str) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor, flag: bool, mode: str) -> tuple[torch.Tensor, ...]:
        return (
            total_of([x, y], (0.5, 3)),
            total_of([y, x], (2.0, 1), bias=x),
            convert(x, torch.float64, mode, flag, 2),
            convert(x, dtype=torch.int32, mode="none", flag=not flag, power=0),
        )

    x, y = torch.randn(10) * 4, torch.randn(10)
    run = compiled(fn, backend)
    for flag, mode in ((True, "square"), (False, "none")):
        signed = -x if flag else x
        raised = signed * signed if mode == "square" else signed
        expected = (0.5 * x + 3 * y, 2 * y + x + x, (raised + 2).double(), (x if flag else -x).int())
        torch.testing.assert_close(run(x, y, flag, mode), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_names_that_torch_gives_its_own_meaning(backend: str) -> None:
    run = compiled(lambda x: graph_kernels.named(x, x + 1, 2, x.size(0), x * 0), backend, dynamic=True)
    for n in (5, 9):
        x = torch.randn(n)
        torch.testing.assert_close(run(x), x + (x + 1) * 2 + n)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_named_tuple_and_an_argument_left_out(backend: str) -> None:
    x = torch.randn(7)
    run = compiled(lambda x: (graph_kernels.pair(x).first, graph_kernels.pair(x, x).second), backend)
    torch.testing.assert_close(run(x), (x * 2, x * 2 + 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_as_arguments(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return apply(x, shifted) + apply(x, torch.sigmoid) + apply(x, lambda v: v - 3)

    x = torch.randn(10)
    torch.testing.assert_close(compiled(fn, backend)(x), x * 2 + 1 + x.sigmoid() + x - 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_that_change_from_call_to_call(backend: str) -> None:
    def fn(x: torch.Tensor, scale: float, shift: int) -> torch.Tensor:
        return add_scaled(x, x * 2, scale, shift) + shift

    run = compiled(fn, backend, dynamic=True)
    x = torch.randn(10)
    for scale, shift in ((0.5, 3), (1.5, 4), (-2.0, -7), (0.0, 0)):
        torch.testing.assert_close(run(x, scale, shift), x + 2 * x * scale + 2 * shift)


def counted() -> tuple[Callable[..., Any], list[int]]:
    count = [0]

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        count[0] += 1
        return module.forward

    return backend, count


def test_dynamic_shapes_stay_dynamic_and_static_ones_specialize() -> None:
    for kernel, graphs in ((add_scaled, 1), (helion.kernel(add_scaled.fn), 3)):
        backend, count = counted()
        run = torch.compile(lambda x, y, kernel=kernel: kernel(x, y), backend=backend, fullgraph=True, dynamic=True)
        for n in (8, 13, 40):
            x, y = torch.randn(n, 3), torch.randn(n, 3)
            torch.testing.assert_close(run(x, y), x + y)
        assert count[0] == graphs


@pytest.mark.parametrize("backend", BACKENDS)
def test_branches_of_host_code_on_sizes(backend: str) -> None:
    run = compiled(lambda x, y: branches(x, y) * 1, backend, dynamic=True)
    for n in (10, 30, 11, 40):
        x, y = torch.randn(n), torch.randn(5)
        given = x.clone()
        expected = y if n > 16 else torch.cat([y, torch.zeros(1)])
        torch.testing.assert_close(run(given, y), expected)
        torch.testing.assert_close(given, x * 2 if n > 16 else x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_numbers_are_drawn_anew(backend: str) -> None:
    run = compiled(lambda x: (noise(x), noise(x)), backend)
    x = torch.zeros(50)
    torch.manual_seed(3)
    first, second = run(x)
    assert not torch.equal(first, second)
    third, _ = run(x)
    assert not torch.equal(first, third)
    torch.manual_seed(3)
    again, _ = run(x)
    assert torch.equal(first, again)


def test_calls_with_equal_arguments_are_one_operator() -> None:
    first, _ = add_scaled.custom_op(torch.randn(4), torch.randn(4), 0.5)
    second, _ = add_scaled.custom_op(torch.randn(7, 3), torch.randn(7, 3), 2.5, 3)
    third, _ = convert.custom_op(torch.randn(3), torch.float64, "none", True, 1)
    fourth, _ = convert.custom_op(torch.randn(3), torch.float64, "none", False, 1)
    assert first is second and third is not fourth


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_user_s_assertion_is_seen(backend: str) -> None:
    with pytest.raises(Exception, match="sizes do not match"):
        compiled(lambda x, y: matmul(x, y), backend)(torch.randn(3, 4), torch.randn(5, 6))


# --- gradients ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
def test_a_gradient_that_nobody_computes_is_an_error(backend: str) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    out = compiled(lambda x: rms_norm(x * 2, torch.ones(4)).sum(), backend)(x)
    with pytest.raises(exc.NoGradient, match="'rms_norm' with respect to 'x'"):
        out.backward()


def test_a_gradient_past_what_is_written_is_an_error() -> None:
    x = torch.randn(4, requires_grad=True)
    with pytest.raises(Exception, match="with respect to 'x' is wanted"):
        compiled(lambda out, x: add_into(out, x * 2), "aot_eager")(torch.randn(4), x)
    with pytest.raises(Exception, match="a leaf Variable|which requires grad"):
        compiled(lambda out, x: add_into(out * 2, x), "aot_eager")(x, torch.randn(4))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_model_that_is_trained(backend: str, dynamic: bool) -> None:
    norm = rms_norm.differentiable()

    def fn(x: torch.Tensor, weight: torch.Tensor, inside: bool) -> torch.Tensor:
        called = rms_norm.differentiable() if inside else norm
        return called(x * 2, weight, eps=1e-3).sin() * weight

    run = compiled(fn, backend, dynamic=dynamic)
    for n, inside in ((3, False), (5, True)):
        x, weight = (torch.randn(s, dtype=torch.float64).requires_grad_() for s in ((n, 7), (7,)))
        got = run(x, weight, inside)
        expected = rms_norm_of_torch(x * 2, weight, 1e-3).sin() * weight
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)
        seen = torch.autograd.grad(got.square().sum(), (x, weight))
        wanted = torch.autograd.grad(expected.square().sum(), (x, weight))
        torch.testing.assert_close(seen, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
def test_gradients_of_several_results(backend: str) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        total, doubled = graph_kernels.total_and_double.differentiable()(x)
        return total.sin().sum() + (doubled * x).sum()

    x = torch.randn(4, 6, requires_grad=True)
    (got,) = torch.autograd.grad(compiled(fn, backend)(x), x)
    (wanted,) = torch.autograd.grad(x.sum(-1).sin().sum() + (2 * x * x).sum(), x)
    torch.testing.assert_close(got, wanted)


def test_what_cannot_be_differentiated_in_a_graph() -> None:
    x = torch.randn(4, requires_grad=True)
    with pytest.raises(Exception, match="it is to be differentiated, and writes into its arguments or returns views"):
        compiled(lambda x: views.differentiable()(x)[0], "aot_eager")(x)


# --- operators ----------------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "rms_norm": lambda: (rms_norm, torch.randn(5, 7), torch.randn(7)),
    "dynamic": lambda: (add_scaled, torch.randn(5, 7), torch.randn(5, 7), 0.5, 3),
    "transposed": lambda: (add_scaled, torch.randn(4, 4).t(), torch.randn(4, 4).t()),
    "matmul": lambda: (matmul, torch.randn(5, 7), torch.randn(7, 3)),
    "bf16": lambda: (matmul, torch.randn(5, 8).bfloat16(), torch.randn(8, 3)),
    "writes": lambda: (add_into, torch.randn(9), torch.randn(9)),
    "returns what it writes": lambda: (scale_and_return, torch.randn(9), 2.0),
    "dict": lambda: (several, torch.randn(3, 5)),
    "views": lambda: (views, torch.randn(6)),
    "list": lambda: (total_of, [torch.randn(6), torch.randn(6)], (0.5, 2)),
    "constants": lambda: (convert, torch.randn(6), torch.float64, "square", True, 2),
    "function": lambda: (apply, torch.randn(6), shifted),
    "branch": lambda: (branches, torch.randn(20), torch.randn(6)),
    "other branch": lambda: (branches, torch.randn(6), torch.randn(6)),
}


@pytest.mark.parametrize("call", CALLS)
def test_torch_s_own_checks_of_operators(call: str) -> None:
    kernel, *args = CALLS[call]()
    torch.library.opcheck(*kernel.custom_op(*args))


# --- other tracers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict: bool) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            buffer = torch.zeros_like(x)
            add_into(buffer, x)
            return add_scaled(buffer, y, 0.5).relu()

    n = torch.export.Dim("n", min=2, max=1000)
    shapes = {"x": {0: n}, "y": {0: n}}
    program = torch.export.export(Model(), (torch.randn(8), torch.randn(8)), dynamic_shapes=shapes, strict=strict)
    names = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert any("helion.add_scaled" in name for name in names)
    for m in (8, 33):
        x, y = torch.randn(m), torch.randn(m)
        torch.testing.assert_close(program.module()(x, y), (x + y * 0.5).relu())
        torch.testing.assert_close(program.run_decompositions().module()(x, y), (x + y * 0.5).relu())


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode: str) -> None:
    graph = make_fx(lambda x: several(x)["pair"][0] + views(x[0])[3].sum(), tracing_mode=mode)(torch.randn(4, 6))
    x = torch.randn(4, 6)
    torch.testing.assert_close(graph(x), x * 2 + x[0, 1:].sum())


def test_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode() as mode:
        x = torch.empty(6, 8, dtype=torch.bfloat16).t()
        out = add_scaled(x, x)
    assert isinstance(out, FakeTensor) and out.fake_mode is mode
    assert (out.shape, out.stride(), out.dtype) == (x.shape, x.stride(), torch.bfloat16)
    assert isinstance(add_scaled(x, x), FakeTensor)  # outside of the mode, too


def test_vmap() -> None:
    x, y = torch.randn(3, 5), torch.randn(5, 3)
    torch.testing.assert_close(torch.vmap(add_scaled, in_dims=(0, 1))(x, y), x + y.t())
    torch.testing.assert_close(torch.vmap(lambda a: add_scaled(a, y[:, 0]))(x), x + y[:, 0])
    nested = torch.vmap(torch.vmap(add_scaled))(x[None], x[None])
    torch.testing.assert_close(nested, 2 * x[None])
    both = torch.vmap(lambda a: several(a)["total"])(torch.ones(2, 3, 4))
    torch.testing.assert_close(both, torch.full((2, 3), 4.0))
    torch.testing.assert_close(compiled(torch.vmap(add_scaled), "aot_eager")(x, x), 2 * x)
    with pytest.raises(exc.NoPlaceInGraph, match="writes into its arguments"):
        torch.vmap(add_into)(x.clone(), x)
    with pytest.raises(exc.NoPlaceInGraph, match="draws random numbers"):
        torch.vmap(noise)(x)
    assert torch.vmap(noise, randomness="different")(x).shape == x.shape


# --- refusals -----------------------------------------------------------------------------------------------------------

TABLE = torch.randn(8)


@helion.kernel
def uses_a_global(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + TABLE[tile]
    return out


@helion.kernel
def reads_data(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([int(x.max().item())], device=x.device)
    for tile in hl.tile(out.size(0)):
        out[tile] = 1.0
    return out


@helion.kernel
def changes_a_list(x: torch.Tensor, found: list[Any]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + 1
    found.append(out)
    return out


@helion.kernel
def strided(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] + 1
    return x.as_strided((2,), (3,))


@helion.kernel
def reinterprets(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] + 1
    return x.view(torch.int32)


def closing_over(tensor: torch.Tensor) -> Callable[..., Any]:
    return lambda v: v + tensor[0]


REFUSED: tuple[tuple[Callable[[], Any], str], ...] = (
    (lambda: uses_a_global.custom_op(torch.randn(8)), "global tensor of shape"),
    (lambda: reads_data.custom_op(torch.ones(8)), "needs the data of a tensor"),
    (lambda: changes_a_list.custom_op(torch.ones(8), []), "changes a list or dict"),
    (lambda: strided.custom_op(torch.ones(8)), "returns a view of an argument that it has not made with view"),
    (lambda: apply.custom_op(torch.ones(8), closing_over(torch.ones(1))), "closes over a tensor"),
)


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message[:20] for _, message in REFUSED])
def test_what_has_no_place_in_a_graph(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(exc.NoPlaceInGraph, match=message):
        call()


FLAG = False


@helion.kernel
def writes_by_a_global(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + 1
        if FLAG:
            y[tile] = x[tile]
    return out


def test_a_write_that_the_graph_does_not_know_of(monkeypatch: pytest.MonkeyPatch) -> None:
    run = compiled(lambda x, y: writes_by_a_global(x, y), "aot_eager")
    x, y = torch.randn(4), torch.randn(4)
    torch.testing.assert_close(run(x, y), x + 1)
    monkeypatch.setitem(globals(), "FLAG", True)
    with pytest.raises(exc.WriteUnknownToGraph, match="'writes_by_a_global' wrote into 'y'"):
        run(x, y)


def test_tensors_that_are_more_than_memory_are_refused_by_name() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    for backend in ("eager", "aot_eager"):
        with pytest.raises(Exception, match="a TwoTensor, a tensor subclass that computes in its own way"):
            compiled(lambda x: add_scaled(x, x), backend)(TwoTensor(torch.randn(4), torch.randn(4)))
        torch._dynamo.reset()


def test_bound_kernels_are_not_recorded() -> None:
    x = torch.randn(4)
    bound = add_scaled.bind((x, x))
    with pytest.raises(exc.UnsupportedTracer, match="as a bound kernel"):
        make_fx(lambda x: bound(x, x, 1.0, 0))(x)


@pytest.mark.prove
def test_kernels_made_before_and_after_the_compiler_is_imported() -> None:
    code = (
        "import sys, torch, helion\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "import graph_kernels as g\n"
        "import torch._dynamo\n"
        "x = torch.ones(4)\n"
        "print(g.add.custom_op(x, 1.0)[0].name(), g.apply.custom_op(x, torch.relu)[0].name())\n"
        "late = helion.kernel(g.add.fn)\n"
        "run = torch.compile(lambda x: late(x, 1.0) + g.add(x, 1.0), backend='eager', fullgraph=True)\n"
        "assert torch.equal(run(x), 2 * (x + 1))"
    )
    places = os.pathsep.join(map(str, (ROOT, ROOT / "test")))
    environment = {**os.environ, "PYTHONPATH": places}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    x = torch.ones(7)
    names = (graph_kernels.add.custom_op(x, 2.0)[0].name(), graph_kernels.apply.custom_op(x, torch.relu)[0].name())
    assert run.stdout.split() == list(names)  # saved programs name them
