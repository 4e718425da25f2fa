"""Stores of the two results of a matmul that fill pairs: what is predicted of them."""

from __future__ import annotations

import torch
from harness import tensor

import helion
import helion.language as hl
from helion.backends.triton.resources.fragments import narrow_stores
from helion.backends.triton.resources.paired import paired_stores
from helion.backends.triton.resources.time.roots import roots_of
from helion.hardware import target


def both(x, y, width: hl.constexpr):
    """Two results in the first elements of ``width``."""
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n, width], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        one, two = hl.zeros([tile_m, tile_n]), hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(k):
            a, b = x[tile_m, tile_k], y[tile_k, tile_n]
            one = torch.addmm(one, a, b)
            two = torch.addmm(two, a * a, b)
        out[tile_m, tile_n, 0] = one
        out[tile_m, tile_n, 1] = two
    return out


def test_pairs_are_vectors_of_neighbours() -> None:
    arguments = tensor(2048, 2048), tensor(2048, 2048)
    kernel = helion.kernel(both, static_shapes=True)
    pairs, triples = (kernel.bind((*arguments, width), target="h200").facts for width in (2, 3))
    stores = [op.slot for op in pairs.memory_ops if op.kind == "store"]
    assert paired_stores(pairs) == {*stores} and not paired_stores(triples)
    gpu, sizes = target("h200"), {0: 128, 1: 128, 2: 64}
    assert narrow_stores(pairs, sizes, 8, gpu) == 0 < narrow_stores(triples, sizes, 8, gpu)
    found = [[a for a in root.accesses if a.kind == "store"] for facts in (pairs, triples) for root in roots_of(facts)]
    assert [[each.inner for each in accesses] for accesses in found] == [[1, 1], [None, None]]


def test_tiles_of_pairs_are_not_taken_for_ones_that_spill() -> None:
    bound = helion.kernel(both, static_shapes=True).bind((tensor(2048, 2048), tensor(2048, 2048), 2), target="h200")
    config = helion.Config(block_sizes=[128, 128, 64], num_warps=8, num_stages=3)
    assert "tl.join(" in bound.to_triton_code(config)
    predicted = bound._analysis.predict(bound.config_spec.normalize(config))
    assert not predicted.spill_risk and bound.resources(config).spill_bytes == 0
