"""Heads of which indices select consecutive dimensions, as slices do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from backends.cute.edited_source import edited

import helion
from helion import exc

TEXT = """
import torch
import helion.language as hl


def attend(q, k, turned, v):
    batch, m, heads, _ = q.size()
    d, r = hl.specialize(v.size(3)), hl.specialize(turned.size(2))
    out = torch.empty_like(v)
    for tile_b, tile_h, rows in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        b, h = tile_b.begin, tile_h.begin
        own = q[b, rows, h, hl.arange(d)]
        rest = q[b, rows, h, d + hl.arange(r)]
        highest = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, d], dtype=torch.float32)
        for tile in hl.tile(rows.end):
            scores = hl.dot(own, k[b, tile, h, hl.arange(d)].T)
            scores = hl.dot(rest, turned[b, tile, :].T, acc=scores) * (d + r) ** -0.5
            scores = torch.where(rows.index[:, None] >= tile.index[None, :], scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b, tile, h, hl.arange(d)], acc=acc * shrink[:, None])
            highest = raised
        out[b, rows, h, :] = acc / total[:, None]
    return out
"""
REST, OWN = "q[b, rows, h, d + hl.arange(r)]", "k[b, tile, h, hl.arange(d)]"
FORMS = {
    "the number first": (REST, REST),
    "the number last": (REST, "q[b, rows, h, hl.arange(r) + d]"),
    "in two steps": (REST, "q[b, rows, h, (hl.arange(r) + 1) + (d - 1)]"),
    "a slice": (REST, "q[b, rows, h, d : d + r]"),
    "a slice of keys": (OWN, "k[b, tile, h, :d]"),
    "stored": ("out[b, rows, h, :]", "out[b, rows, h, hl.arange(d)]"),
}
REFUSED = {
    "too many": (REST, "q[b, rows, h, d + 16 + hl.arange(r)]", "has 128 dimensions of a head, and more are read"),
    "others between": (REST, "q[b, rows, h, d - 32 + hl.arange(r)]", "not adjacent"),
    "in steps": (REST, "q[b, rows, h, 2 * hl.arange(r)]", "computed positions"),
}


def given_of(device: str = "cpu") -> tuple[Any, ...]:
    torch.manual_seed(0)
    shapes = [(2, 150, 2, 128), (2, 150, 2, 64), (2, 150, 64), (2, 150, 2, 64)]
    return tuple(torch.randn(shape).bfloat16().to(device) for shape in shapes)


def wanted_of(q: Any, k: Any, turned: Any, v: Any) -> torch.Tensor:
    keys = torch.cat([k, turned[:, :, None].expand(-1, -1, 2, -1)], -1).double().transpose(1, 2)
    scores = q.double().transpose(1, 2) @ keys.mT / 128**0.5
    hidden = torch.ones(150, 150, dtype=torch.bool).triu(1)
    return (torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ v.double().transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("form", list(FORMS))
def test_values(form: str, static: bool, tmp_path: Path) -> None:
    function = edited(TEXT, *FORMS[form], tmp_path / "parts.py").attend
    kernel = helion.kernel(function, backend="cute", static_shapes=static)
    wanted = wanted_of(*given_of())
    assert (kernel(*given_of()) - wanted).norm() < 6e-3 * wanted.norm()


@pytest.mark.parametrize("name", list(REFUSED))
def test_refusals(name: str, tmp_path: Path) -> None:
    *change, reason = REFUSED[name]
    function = edited(TEXT, *change, tmp_path / "parts.py").attend
    with pytest.raises(exc.CuteUnsupported, match=reason):
        helion.kernel(function, backend="cute").bind(given_of("meta"), target="sm_90")
