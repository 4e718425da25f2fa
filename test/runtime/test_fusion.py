"""Elementwise neighbors of a kernel under ``torch.compile``, which the kernel takes with ``torch_compile_fusion``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

import helion
import helion.language as hl
from helion.runtime.torch_interop import fusion


@helion.kernel(torch_compile_fusion=True)
def row_norm(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        out[tile, :] = row * torch.rsqrt(torch.mean(row * row, dim=-1, keepdim=True) + 1e-5)
    return out


@helion.kernel(torch_compile_fusion=True)
def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel(torch_compile_fusion=True, static_shapes=False)
def scaled_sum(x: torch.Tensor, y: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile([x.size(0), x.size(1)]):
        out[tile_m, tile_n] = x[tile_m, tile_n] * scale + y[tile_m, tile_n]
    return out


def layouts(values: Iterable[Any]) -> list[tuple[str, str]]:
    return [(str(v.shape), str(v.stride())) for v in values if isinstance(v, torch.Tensor)]


def compiled(function: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], list[tuple[int, list[str]]]]:
    """Compile with the pass and Inductor's decompositions; also return the fused calls and ops of each graph."""
    seen: list[tuple[int, list[str]]] = []

    def forward(graph: torch.fx.GraphModule, _: Any) -> Any:
        count = fusion.fuse(graph.graph)
        graph.graph.lint()
        graph.recompile()
        for node in graph.graph.nodes:
            if str(node.target).startswith("helion."):  # Inductor keeps the layouts of these
                given = [a.meta["val"] for a in node.args if isinstance(a, torch.fx.Node)]
                assert layouts(node.meta["eager_input_vals"][0]) == layouts(given)
        seen.append((count, [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]))
        return graph

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=forward, decompositions=select_decomp_table())
    return torch.compile(function, backend=backend, fullgraph=True, **options), seen


_drawn = functools.partial(torch.randn, generator=torch.Generator().manual_seed(0))
X, Y, BIAS = _drawn(37, 50) + 0.2, _drawn(37, 50), _drawn(50)
A, B = _drawn(33, 70) * 0.3, _drawn(70, 45) * 0.3
C = _drawn(33, 45)

PATTERNS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "relu": (lambda x: row_norm(x).relu(), (X,)),
    "residual": (lambda x, y: row_norm(x) + y, (X, Y)),
    "silu": (lambda x: F.silu(row_norm(x)), (X,)),
    "gelu": (lambda x: F.gelu(row_norm(x)), (X,)),
    "bias": (lambda x, b: row_norm(x) + b, (X, BIAS)),
    "bias and scale of a product": (lambda a, b, c: torch.tanh(product(a, b) / 30 + c) * 30, (A, B, C)),
    "gate": (lambda x, y: torch.sigmoid(row_norm(x)) * y, (X, Y)),
    "argument": (lambda x: row_norm(F.gelu(x)), (X,)),
    "sum of arguments": (lambda x, y: row_norm(x + y), (X, Y)),
    "argument with a bias": (lambda x, b: row_norm((x + b).relu()), (X, BIAS)),
    "both sides": (lambda x, y: scaled_sum(x.exp(), y.sigmoid()).relu() + y, (X, Y)),
    "less precise result": (lambda x, y: (row_norm(x) * 2 + y).bfloat16(), (X, Y)),
}


def all_of(
    cases: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]],
) -> Callable[[], dict[str, Any]]:
    """Return a function of all cases: one graph takes less time to compile than many."""
    return lambda: {name: function(*args) for name, (function, args) in cases.items()}


def test_one_kernel_is_left_of_each_pattern() -> None:
    run, seen = compiled(all_of(PATTERNS))
    with torch.no_grad():
        found = run()
    ((count, ops),) = seen
    assert count == len(PATTERNS) == len(ops) and all(op.startswith("helion.") for op in ops), ops
    for name, (function, args) in PATTERNS.items():
        tolerance = 1e-2 if found[name].dtype == torch.bfloat16 else 1e-4
        expected = function(*args)
        assert found[name].dtype == expected.dtype
        torch.testing.assert_close(found[name], expected, atol=tolerance, rtol=tolerance)


def test_results_are_rounded_where_the_kernel_rounds_them() -> None:
    dtype = torch.bfloat16
    x, y = X.to(dtype), Y.to(dtype)
    run, seen = compiled(lambda x, y: F.silu(row_norm(x)) + y)
    with torch.no_grad():
        found, normed = run(x, y), row_norm(x).float()
    assert seen[0][0] == 1
    assert torch.equal(found, (normed * torch.sigmoid(normed) + y.float()).to(dtype))


def test_sizes_that_vary_stay_variable() -> None:
    run, seen = compiled(lambda x, y: scaled_sum(x, y, 3.0).relu(), dynamic=True)
    for rows in (5, 9):
        x, y = torch.randn(rows, 33), torch.randn(rows, 33)
        torch.testing.assert_close(run(x, y), (3 * x + y).relu())
    assert [count for count, _ in seen] == [1]


@helion.kernel(torch_compile_fusion=True)
def stored_twice(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] * 2
        out[tile, :] = out[tile, :] + 1
    return out


@helion.kernel(torch_compile_fusion=True)
def two_results(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, sums = torch.empty_like(x), torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] * 2
        sums[tile] = torch.sum(x[tile, :], -1)
    return out, sums


@helion.kernel(torch_compile_fusion=True)
def upper_rows(x: torch.Tensor) -> torch.Tensor:
    """Store a part of the result, whose other elements are zeros."""
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0) // 2):
        out[tile, :] = x[tile, :] * 2
    return out


@helion.kernel()
def plain(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] * 2
    return out


UNFUSED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "the result is used twice": (lambda x: (lambda out: (out, out.relu()))(row_norm(x)), (X,)),
    "a reduction": (lambda x: row_norm(x).sum(-1), (X,)),
    "an operand of other sizes": (lambda x: row_norm(x) + x[:, :1], (X,)),
    "an argument of a loop that is repeated": (lambda a, b: product(a.relu(), b), (A, B)),
    "an argument with other users": (lambda x: (lambda y: (row_norm(y), y))(x.relu()), (X,)),
    "a result that is stored twice": (lambda x: stored_twice(x).relu(), (X,)),
    "several results": (lambda x: two_results(x)[0].relu(), (X,)),
    "a result with other values": (lambda x: upper_rows(x) + 1, (X,)),
    "no setting": (lambda x: plain(x).relu(), (X,)),
    "integers": (lambda x: row_norm(x).to(torch.int32), (X,)),
}


def test_what_stays_with_torch() -> None:
    run, seen = compiled(all_of(UNFUSED))
    with torch.no_grad():
        found = run()
    assert [count for count, _ in seen] == [0]
    for name, (function, args) in UNFUSED.items():
        torch.testing.assert_close(found[name], function(*args))


def test_a_call_does_not_move_past_writes_of_its_arguments() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = row_norm(x)
        y.add_(1)
        return out + y

    run, _ = compiled(function)
    y = Y.clone()
    with torch.no_grad():
        torch.testing.assert_close(run(X, y), row_norm(X) + Y + 1)
    torch.testing.assert_close(y, Y + 1)


@pytest.mark.parametrize("place", ["before", "after"])
def test_writes_in_the_graph_end_what_is_fused(place: str) -> None:
    """Other passes of Inductor leave writes in place; operations stay on their side of them."""
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    overload, _ = row_norm.custom_op(X)
    computed = graph.call_function(torch.ops.aten.relu.default, (x,)) if place == "before" else x
    write = (torch.ops.aten.copy_.default, (x if place == "before" else y, y))
    if place == "before":
        graph.call_function(*write)
    call = graph.call_function(overload, (computed,))
    result = call
    if place == "after":
        graph.call_function(*write)
        result = graph.call_function(torch.ops.aten.add.Tensor, (call, y))
    graph.output(result)
    for node in graph.nodes:
        node.meta["val"] = X
    assert fusion.fuse(graph) == 0


def test_kernels_that_differ_only_in_fusion_have_operators_of_their_own() -> None:
    function = lambda x, y: (row_norm(x).relu(), row_norm(x) + y, row_norm(x).relu() * 2)  # noqa: E731
    run, seen = compiled(function)
    with torch.no_grad():
        torch.testing.assert_close(run(X, Y), function(X, Y))
    assert seen[0][0] >= 1 and len(set(seen[0][1])) == len(seen[0][1])


def test_the_pass_runs_after_the_users_own() -> None:
    asked: list[str] = []
    with torch._inductor.config.patch(post_grad_custom_post_pass=lambda graph: asked.append("user")):
        fusion.install()
        fusion.install()
        installed: Any = torch._inductor.config.post_grad_custom_post_pass
        installed(torch.fx.Graph())
    assert asked == ["user"]
    assert installed.uuid() is None  # a cached graph would call operators that another process does not have


def test_a_fused_kernel_has_the_configs_of_the_kernel() -> None:
    config = helion.Config(block_sizes=[4], num_warps=2, indexing=["block_ptr", "pointer"])
    kernel = helion.kernel(row_norm.fn, config=config, torch_compile_fusion=True)
    run, seen = compiled(lambda x, y: kernel(x) + y)
    with torch.no_grad():
        run(X, Y)
    assert seen[0][0] == 1
    (fused,) = (made for (of, _), made in fusion._KERNELS.items() if of is kernel)
    assert [dict(each) for each in fused.configs] == [{"block_sizes": [4], "num_warps": 2}]


@pytest.mark.prove
def test_inductor_runs_fused_kernels() -> None:
    torch._dynamo.reset()
    function, args = PATTERNS["both sides"]
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(function, fullgraph=True)(*args), function(*args))


@helion.kernel(torch_compile_fusion=True)
def with_a_taken_name(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        fused_0 = x[tile, :]
        out[tile, :] = fused_0 * 2
    return out


def test_new_parameters_have_names_of_their_own() -> None:
    run, seen = compiled(lambda x, y: with_a_taken_name(x) + y)
    with torch.no_grad():
        torch.testing.assert_close(run(X, Y), X * 2 + Y)
    assert seen[0][0] == 1
