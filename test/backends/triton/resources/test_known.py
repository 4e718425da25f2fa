"""Facts that no size changes are found once for each kernel, and predictions after the first make few calls."""

from __future__ import annotations

import dataclasses
import itertools

import torch
from costs import calls
from harness import facts_of

import helion.language as hl
from helion._compiler.facts.records import KernelFacts, MemoryOpFact
from helion.backends.triton.resources import known
from helion.backends.triton.resources.predict import predict
from helion.backends.triton.resources.tiles import vector_elements
from helion.hardware import target


def weighted(x: torch.Tensor, weights: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Add nine neighbours of each row, weighted by column, and a bias, also to the transpose."""
    m, n = x.size(0) - 8, x.size(1)
    out, turned = torch.empty([m, n], device=x.device), torch.empty([n, m], device=x.device)
    for rows, columns in hl.tile([m, n]):
        total = hl.zeros([rows, columns])
        for at in hl.static_range(9):
            total = total + x[rows.index + at, columns] * weights[at, columns][None, :]
        total = total + bias[columns][None, :]
        out[rows, columns] = total
        turned[columns, rows] = total.T
    return out


def facts() -> KernelFacts:
    def fp32(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device="meta")

    return facts_of(weighted, fp32(1008, 300), fp32(9, 300), fp32(300))


def test_a_prediction_of_other_sizes_makes_few_calls() -> None:
    found, sizes = facts(), itertools.product((1, 2, 4, 8, 16), (32, 64, 128))

    def another() -> None:
        rows, columns = next(sizes)
        predict(found, {0: rows, 1: columns}, 4, 1, target("h200"))

    assert calls(another) < 1500


def test_groups_are_found_once_for_each_kernel() -> None:
    first, second = facts(), facts()
    assert known.alike(first) is known.alike(first) is not known.alike(second)
    assert known.narrow(first) is known.narrow(first) and known.expanded(first) is known.expanded(first)
    (group,) = (each for each in known.alike(first) if each.stored)
    assert group.turned and not group.in_rows and not group.repeats and len(group.ops) == 11
    (part,) = known.narrow(first)
    assert len(part.ops) == 10 and len(part.wider) == 10 and part.rows == ((0,),) and part.across


def access(**changes: object) -> MemoryOpFact:
    (first, *_) = facts().memory_ops
    return dataclasses.replace(first, **changes)


def test_threads_access_as_many_neighbours_as_the_strides_keep_aligned() -> None:
    sizes = {0: 8, 1: 128}
    for stride, width in ((300, 4), (302, 2), (301, 1), (0, 4)):
        assert vector_elements(access(strides=(stride, 1), scales=(1, 1)), sizes, 128) == width
    assert vector_elements(access(strides=(300, 1), scales=(1, 2)), sizes, 128) == 1
    assert vector_elements(access(strides=(300, 2), scales=(1, 1)), sizes, 128) == 1
    assert vector_elements(access(strides=(300, 1), scales=(1, 1)), sizes, 512) == 2
    assert vector_elements(access(strides=(300, 1), scales=(1, 1), static=False), sizes, 128) == 1
    assert vector_elements(access(strides=(304, 1), scales=(1, 1), static=False), sizes, 128) == 4
