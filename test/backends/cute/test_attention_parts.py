"""Keys that the user divides among programs: loops between keys that are computed from the coordinates of a head."""

from __future__ import annotations

import pytest
import torch
from backends.cute import attention_parts as kernels

import helion
import helion.language as hl
from helion import exc


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("parts", [1, 3])
def test_values(static: bool, parts: int) -> None:
    torch.manual_seed(parts)
    for lengths, shared in (([300, 37], 4), ([129, 1], 8)):
        given = kernels.given_of(lengths, 300, shared)
        found = helion.kernel(kernels.of_lengths, backend="cute", static_shapes=static)(*given, parts)
        assert (kernels.joined(*found) - kernels.wanted(*given)).norm() < 6e-3 * kernels.wanted(*given).norm()
    given = kernels.given_of([301, 301], 301, 70)
    found = helion.kernel(kernels.of_all, backend="cute", static_shapes=static)(*given[:3], parts)
    assert (kernels.joined(*found) - kernels.wanted(*given)).norm() < 6e-3 * kernels.wanted(*given).norm()


def test_auto_divides_the_keys_of_few_programs() -> None:
    """Prediction counts the keys of a part, not of all."""
    meta = [
        torch.empty(size, dtype=torch.bfloat16, device="meta") for size in ((2, 8, 4, 128), *[(2, 32768, 8, 128)] * 2)
    ]
    bound = helion.kernel(kernels.of_all).bind((*meta, 16), target="h200")
    (keys,) = (axis for axis in bound.facts.axes if axis.extent is None)
    assert keys.mean == 2048 and bound.backend_on_gpu == "cute"


def heads_as_rows(q, k, v, lengths):
    """One query per head, whose keys end with a multiple of the head's number: heads are no rows of one tile."""
    heads, dims = q.size(0), hl.specialize(q.size(2))
    out = torch.empty_like(q)
    for h, tile_m in hl.tile([heads, q.size(1)], block_size=[1, None]):
        highest = hl.full([tile_m], -1e30, dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile in hl.tile(0, h.begin * 30 + 30):
            scores = hl.dot(q[h.begin, tile_m, :], k[h.begin // 4, tile, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h.begin // 4, tile, :], acc=acc * shrink[:, None])
            highest = raised
        out[h.begin, tile_m, :] = acc / total[:, None]
    return out


def test_heads_with_keys_of_their_own_are_no_rows() -> None:
    torch.manual_seed(2)
    q, k, v = (torch.randn(size).bfloat16() for size in ((8, 1, 64), (2, 240, 64), (2, 240, 64)))
    found = helion.kernel(heads_as_rows, backend="cute")(q, k, v, None)
    keys, values = (x.double().repeat_interleave(4, 0) for x in (k, v))
    scores = q.double() @ keys.mT / 8
    ends = torch.arange(8)[:, None, None] * 30 + 30
    wanted = torch.softmax(scores.masked_fill(torch.arange(240) >= ends, float("-inf")), -1) @ values
    assert (found - wanted).norm() < 6e-3 * wanted.norm()


def test_more_queries_than_a_tile_are_refused() -> None:
    given = kernels.given_of([300, 37], 300, 100)
    with pytest.raises(exc.CuteUnsupported, match="a tile of queries in its grid, or up to 64 of them"):
        helion.kernel(kernels.of_lengths, backend="cute").bind((*given, 3), target="sm_90")


@pytest.mark.prove
@pytest.mark.parametrize("name", ["of_lengths", "of_all"])
def test_binaries_are_neither_spilled_nor_serialized(name: str) -> None:
    given = [x.to("meta") for x in kernels.given_of([3000, 2000], 3000, 8, 128)][: 4 if name == "of_lengths" else 3]
    bound = helion.kernel(getattr(kernels, name), backend="cute").bind((*given, 4), target="sm_90")
    found = bound.resources(bound.seeds[0].config)
    assert found.spill_bytes == 0 and found.sass_counts["WARPGROUP"] <= 14
