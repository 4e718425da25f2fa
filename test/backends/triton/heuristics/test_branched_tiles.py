"""Matmuls of which a condition leaves tiles out, and those with an operand of single elements."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl
from helion.backends.triton.heuristics.families.matmul.extents import is_branched


@helion.kernel(backend="triton", static_shapes=True)
def lower_gram(a: torch.Tensor, whole: hl.constexpr) -> torch.Tensor:
    n, k = a.size()
    out = torch.zeros([n, n], dtype=a.dtype, device=a.device)
    for tile_m, tile_n in hl.tile([n, n]):
        if whole or tile_m.end > tile_n.begin:
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, a[tile_m, tile_k], a[tile_n, tile_k].T)
            out[tile_m, tile_n] = acc.to(a.dtype)
    return out


@helion.kernel(backend="triton", static_shapes=True)
def hankel(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    n, c = x.size()
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile([n, c]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(n):
            acc = torch.addmm(acc, t[tile_m.index[:, None] + tile_k.index[None, :]], x[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="triton", static_shapes=True)
def frames(x: torch.Tensor, w: torch.Tensor, hop: hl.constexpr) -> torch.Tensor:
    width, c = w.size()
    m = (x.size(0) - width) // hop + 1
    out = torch.empty([m, c], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, c]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(width):
            acc = torch.addmm(acc, x[tile_m.index[:, None] * hop + tile_k.index[None, :]], w[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="triton", static_shapes=True)
def picked_rows(x: torch.Tensor, at: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, (k, n) = at.size(0), w.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        rows = at[tile_m]
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[rows, tile_k], w[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("whole", [True, False])
def test_tiles_that_are_left_out_are_not_shared_in_advance(whole: bool) -> None:
    """A persistent grid gives each program as many tiles, with and without work."""
    bound = lower_gram.bind((meta(4096, 1024), whole), target="h200")
    config, fact = bound.default_config(), bound.facts.matmuls[0]
    assert is_branched(bound.facts, fact.region) != whole
    assert (config["pid_type"] == "flat") != whole and set(config["indexing"]) == {"tensor_descriptor"}
    assert config["l2_groupings"] == [8]


def test_a_descriptor_loads_what_lies_beside_single_elements() -> None:
    """Threads load single elements to registers. Picked rows of several elements are copied, as B is."""
    config = hankel.bind((meta(8192), meta(4096, 256)), target="h200").default_config()
    assert config["indexing"] == ["pointer", "tensor_descriptor", "pointer"]
    args = meta(4096, 1024), meta(4096, dtype=torch.int64), meta(1024, 1024)
    assert "tensor_descriptor" not in picked_rows.bind(args, target="h200").default_config()["indexing"]
    assert (
        "tensor_descriptor"
        not in hankel.bind((meta(8192), meta(4096, 256)), target="sm_80").default_config()["indexing"]
    )
    odd = hankel.bind((meta(8192), meta(4096, 255)), target="h200").default_config()
    assert "tensor_descriptor" not in odd["indexing"]


@pytest.mark.parametrize(("hop", "box"), [(160, False), (8, False), (3, True)])
def test_vectors_of_frames_are_copied_as_b_is(hop: int, box: bool) -> None:
    config = frames.bind((meta(hop * 4096 + 1024), meta(1024, 256), hop), target="h200").default_config()
    assert config["indexing"] == ["pointer", "tensor_descriptor" if box else "pointer", "pointer"]


@pytest.mark.parametrize(("hop", "first"), [(160, False), (8, False), (3, True)])
def test_single_elements_of_many_columns_are_gathered_first(hop: int, first: bool) -> None:
    """The loop over K then loads vectors. Those of frames at multiples of 16 bytes stay where they are."""
    config = frames.bind((meta(hop * 4096 + 1024), meta(1024, 1024), hop), target="h200").default_config()
    assert config["precompute_operands"] is first


@pytest.mark.parametrize("n", [65, 200])
def test_results(n: int) -> None:
    a, t, x = torch.randn(n, 40), torch.randn(2 * n), torch.randn(n, 33)
    tiles = torch.arange(n)[:, None] >= torch.arange(n)
    torch.testing.assert_close(lower_gram(a, False)[tiles], (a @ a.T)[tiles], rtol=1e-4, atol=1e-4)
    at = torch.arange(n)
    torch.testing.assert_close(hankel(t, x), t[at[:, None] + at] @ x, rtol=1e-4, atol=1e-3)
