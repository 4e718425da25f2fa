"""Biases of attention that are looked up by computed indices, as those of relative positions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends.cute import attention_tables as tables

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.attention import formula
from helion.backends.cute.codegen.attention.softmax import softmax_functions


def of_meta(given: Any) -> list[Any]:
    return [x.to("meta") if torch.is_tensor(x) else x for x in given]


@pytest.mark.parametrize("kind", tables.KINDS)
@pytest.mark.parametrize("static", [True, False])
def test_values(static: bool, kind: str) -> None:
    torch.manual_seed(1)
    kernel = helion.kernel(tables.biased, backend="cute", static_shapes=static)
    for m, n in ((100, 130), (65, 70)):
        given = tables.given_of(kind, m, n, dtype=torch.bfloat16 if static else torch.float32)
        found, wanted = kernel(*given), tables.of_biased(*given)
        assert (found.double() - wanted).norm() < 6e-3 * wanted.norm()


def test_printed_indices_are_those_of_the_table() -> None:
    """Run the printed read of a table: an index out of it is that of an element which is masked, and reads its end."""
    given = tables.given_of("clamped", 100, 130)
    plan = helion.kernel(tables.biased, backend="cute").bind(of_meta(given), target="sm_90").plan().attention
    (table,) = plan.problem.score.sources
    text = formula.gathers(plan, plan.problem.score, ("head_0",))["gather"]("x", table.label)
    held = {(0, at, 2): torch.tensor(float(at)) for at in range(33)}

    class Cutlass:
        Float32, Int32, min, max = torch.float32, int, min, max

    for x, wanted in ((0.0, 0), (32.0, 32), (40.0, 32), (-3.0, 0)):
        names = {"cutlass": Cutlass, "x": x, "head_0": 2, f"vector_{table.label}": held}
        assert float(eval(text, names)) == wanted
    assert sum("vector_" in line for lines in softmax_functions(plan) for line in lines if "def " not in line) == 1


def test_auto_takes_tables_by_prediction() -> None:
    """Measured times of 64 heads of 4096 queries and keys: 1493, 1961 and 3864 us, and 5569, 3368 and 3443 in Triton."""
    times, chosen = [], []
    for kind in ("clamped", "buckets", "matrix"):
        bound = helion.kernel(tables.biased, backend="cute").bind(
            of_meta(tables.given_of(kind, 4096, 4096, heads=64)), target="h200"
        )
        times.append(bound.seeds[0].predicted.time_us)
        chosen.append(
            helion.kernel(tables.biased).bind(of_meta(tables.given_of(kind, 4096, 4096, heads=64)), target="h200")
        )
    assert [bound.backend_on_gpu for bound in chosen] == ["cute", "cute", "triton"]
    assert times == pytest.approx([1493, 1961, 3864], rel=0.15)


def of_outputs(q, k, v, gains):
    """Outputs times numbers that are looked up by the query's number."""
    heads, m, dims = q.size()
    n, dims = k.size(1), hl.specialize(dims)
    out = torch.empty_like(q)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(n):
            scores = hl.dot(q[h.begin, tile_m, :], k[h.begin, tile_n, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[h.begin, tile_m, :] = acc / total[:, None] * gains[tile_m.index // 2][:, None]
    return out


def test_tables_of_outputs_are_refused() -> None:
    q, k, v, gains, *_ = tables.given_of("distance", 100, 130)
    with pytest.raises(exc.CuteUnsupported, match="gains is indexed by computed positions"):
        helion.kernel(of_outputs, backend="cute").bind((q, k, v, gains[0]), target="sm_90")


@pytest.mark.prove
@pytest.mark.parametrize("kind", ["clamped", "buckets"])
@pytest.mark.parametrize("dims", [64, 128])
def test_binaries_are_neither_spilled_nor_serialized(dims: int, kind: str) -> None:
    given = tables.given_of(kind, 1000, 2000, dims=dims)
    bound = helion.kernel(tables.biased, backend="cute", static_shapes=False).bind(of_meta(given), target="sm_90")
    found = bound.resources(bound.seeds[0].config)
    assert found.spill_bytes == 0 and found.sass_counts["WARPGROUP"] <= 14
