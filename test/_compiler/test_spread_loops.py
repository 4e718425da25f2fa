"""Loops that are all that a grid loop does become dimensions of the grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc


def normalized(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        for c in hl.tile(x.size(1)):
            v = x[i, c, :]
            out[i, c, :] = (v - v.mean(-1, keepdim=True)) * 2
    return out


def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    n, height, width, channels = x.size()
    rows, columns = height - w.size(0) + 1, width - w.size(1) + 1
    out = torch.empty([n, rows, columns, w.size(3)], dtype=x.dtype, device=x.device)
    for b in hl.grid(n):
        for r in hl.grid(rows):
            for tw, to in hl.tile([columns, w.size(3)]):
                acc = hl.zeros([tw, to], dtype=torch.float32)
                for u in range(2):
                    for tc in hl.tile(channels):
                        acc = torch.addmm(acc, x[b, r + u, tw.index + u, tc], w[u, u, tc, to])
                out[b, r, tw, to] = acc.to(x.dtype)
    return out


def scaled_by_group(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for g in hl.grid(x.size(0)):
        scale = scales[g]
        for t in hl.tile(x.size(1)):
            out[g, t] = x[g, t] * scale
    return out


def counted(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([8], device=x.device)
    for i in hl.grid(x.size(0)):
        for t in hl.tile(x.size(1)):
            hl.atomic_add(out, [0], x[i, t].sum())
    return out


def grid_axes(function: Callable[..., Any], *args: Any, **settings: Any) -> list[int]:
    program = helion.kernel(function, **settings).bind(args, target="sm_90")._analysis.program
    return [axis.block for axis in program.roots[0].axes]


@pytest.mark.parametrize("static", [True, False])
def test_an_inner_tile_loop_is_spread(static: bool) -> None:
    x = torch.randn(3, 5, 37) + 1
    assert grid_axes(normalized, x, static_shapes=static) == [0, 1]
    kernel = helion.kernel(normalized, static_shapes=static)
    torch.testing.assert_close(kernel(x), (x - x.mean(-1, keepdim=True)) * 2)


@pytest.mark.parametrize("static", [True, False])
def test_all_loops_of_a_nest_are_spread(static: bool) -> None:
    x, w = torch.randn(2, 5, 111, 17), torch.randn(2, 2, 17, 6)  # lines that fill a tile are not joined
    assert grid_axes(convolved, x, w, static_shapes=static) == [0, 1, 2, 3]
    want = sum(x[:, u : u + 4, u : u + 110].double() @ w[u, u].double() for u in range(2))
    kernel = helion.kernel(convolved, static_shapes=static, dot_precision="ieee")
    torch.testing.assert_close(kernel(x, w).double(), want, rtol=1e-4, atol=1e-4)


def of_single_heads(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        for rows, head in hl.tile([x.size(1), x.size(2)], block_size=[None, 1]):
            out[i, rows, head.begin] = x[i, rows, head.begin] * 2.0
    return out


def of_first_heads(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        for rows, head in hl.tile([x.size(1), x.size(2)], block_size=[None, 2]):
            out[i, rows, head.begin // 2] = x[i, rows, head.begin]
    return out


def test_tiles_of_one_are_distinct_by_their_begin() -> None:
    x = torch.randn(2, 30, 4)
    assert len(grid_axes(of_single_heads, x)) == 3
    assert len(grid_axes(of_first_heads, x)) == 1


def test_a_scalar_that_precedes_the_loop_is_loaded_by_each_program() -> None:
    x, scales = torch.randn(3, 50), torch.randn(3)
    assert grid_axes(scaled_by_group, x, scales) == [0, 1]
    torch.testing.assert_close(helion.kernel(scaled_by_group)(x, scales), x * scales[:, None])


def test_atomics_that_commute_are_spread() -> None:
    x = torch.randn(3, 50)
    assert grid_axes(counted, x) == [0, 1]
    torch.testing.assert_close(helion.kernel(counted)(x)[0], x.sum(), rtol=1e-4, atol=1e-4)


# --- loops that stay ------------------------------------------------------------------------------------------------


def carried(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for i in hl.tile(x.size(0)):
        acc = hl.zeros([i])
        for t in hl.tile(x.size(1)):
            acc = acc + x[i, t].sum(-1)
        out[i] = acc
    return out


def rows_held(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in hl.tile(x.size(0)):
        held = x[i, :].amax(-1)
        for t in hl.tile(x.size(1)):
            out[i, t] = x[i, t] - held[:, None]
    return out


def overwritten(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for i in hl.tile(x.size(0)):
        for t in hl.tile(x.size(1)):
            y[i, 0] = x[i, t].sum(-1)
    return y


def shifted_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for i in hl.grid(x.size(0)):
        for t in hl.grid(x.size(1) - 1):
            x[i, t + 1] = x[i, t] + 1
    return x


def bounded_on_the_device(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for i in hl.grid(x.size(0)):
        for t in hl.tile(0, y[i, 0].to(torch.int32)):
            x[i, t] = 1.0
    return x


def scalar_written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for i in hl.grid(x.size(0)):
        first = x[i, 0]
        for t in hl.tile(x.size(1)):
            x[i, t] = x[i, t] - first
    return x


def stored_before(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for i in hl.grid(x.size(0)):
        y[i, 0] = 1.0
        for t in hl.tile(x.size(1)):
            x[i, t] = x[i, t] * 2
    return x


def in_turn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for i in hl.grid(x.size(0)):
        for t in hl.grid(x.size(1)):
            y[i, t] = hl.atomic_add(y, [i, 0], x[i, t])
    return y


def of_single_elements(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for i in hl.grid(x.size(0)):
        for t in range(x.size(1)):
            y[i, t] = x[i, t] + 1
    return y


def vectors(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        for j in hl.grid(x.size(1)):
            out[i, j, :] = x[i, j, :] + 1
    return out


def test_indices_are_spread_until_there_are_enough() -> None:
    assert grid_axes(vectors, torch.empty(6, 40, 8, device="meta")) == [0, 1]
    assert grid_axes(vectors, torch.empty(70000, 70000, 8, device="meta", dtype=torch.int8)) == [0]


@pytest.mark.parametrize(
    "function",
    [
        of_single_elements,
        carried,
        rows_held,
        overwritten,
        shifted_in_place,
        bounded_on_the_device,
        scalar_written,
        stored_before,
        in_turn,
    ],
    ids=lambda f: f.__name__,
)
def test_a_loop_with_dependences_or_work_before_it_stays(function: Callable[..., Any]) -> None:
    assert grid_axes(function, torch.randn(6, 40), torch.randn(6, 40)) == [0]


# --- configs and gradients ------------------------------------------------------------------------------------------


def test_entries_for_the_loops_as_written_are_dropped() -> None:
    config = helion.Config(block_sizes=[16], range_unroll_factors=[0, 2], range_num_stages=[0, 3], num_warps=4)
    x, scales = torch.randn(3, 50), torch.randn(3)
    torch.testing.assert_close(helion.kernel(scaled_by_group, config=config)(x, scales), x * scales[:, None])
    spec = helion.kernel(scaled_by_group).bind((x, scales), target="sm_90").config_spec
    assert spec.normalize(config.to_dict())["range_num_stages"] == [0]
    with pytest.raises(exc.InvalidConfig, match="range_num_stages has 3 entries, expected 1"):
        spec.normalize({**config.to_dict(), "range_num_stages": [0, 3, 1]})


def test_orders_and_entries_of_inner_loops_are_kept() -> None:
    x, w = torch.randn(2, 5, 111, 32), torch.randn(2, 2, 32, 16)
    spec = helion.kernel(convolved).bind((x, w), target="sm_90").config_spec
    given = {"block_sizes": [16, 16, 16], "loop_orders": [[1, 0]], "range_num_stages": [0, 1, 2, 3, 4, 3, 2][:6]}
    config = spec.normalize(given)
    assert config["loop_orders"] == [[0, 1, 2, 3]] and config["range_num_stages"] == [0, 4, 3]


def test_gradients_of_spread_loops() -> None:
    x = (torch.randn(3, 50) + 1).requires_grad_()
    scales = torch.randn(3, requires_grad=True)
    found = torch.autograd.grad(helion.kernel(scaled_by_group).differentiable()(x, scales).sin().sum(), (x, scales))
    want = torch.autograd.grad((x * scales[:, None]).sin().sum(), (x, scales))
    for one, other in zip(found, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def batched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty([a.size(0), a.size(1), b.size(2)], dtype=a.dtype, device=a.device)
    for i in hl.grid(a.size(0)):
        for tm, tn in hl.tile([a.size(1), b.size(2)]):
            acc = hl.zeros([tm, tn], dtype=torch.float32)
            for tk in hl.tile(a.size(2)):
                acc = torch.addmm(acc, a[i, tm, tk], b[i, tk, tn])
            out[i, tm, tn] = acc.to(a.dtype)
    return out


def test_the_cute_backend_takes_spread_loops() -> None:
    a, b = torch.randn(3, 70, 64).bfloat16(), torch.randn(3, 64, 72).bfloat16()
    want = a.double() @ b.double()
    found = helion.kernel(batched, backend="cute")(a, b)
    assert ((found.double() - want).norm() / want.norm()).item() < 5e-3
    bound = helion.kernel(batched, backend="auto").bind((a.to("meta"), b.to("meta")), target="sm_90")
    assert "on request" not in bound.explain() and bound.backend == "cute"
