"""Branches that skip tiles of queries behind the end of a sequence, which masks of stores hide as well."""

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


def attend(qkv, starts, longest: int):
    t, _, heads, dims = qkv.size()
    dims = hl.specialize(dims)
    out = qkv.new_zeros([t, heads, dims])
    for sequences, tile_h, rows in hl.tile([starts.size(0) - 1, heads, longest], block_size=[1, 1, None]):
        head, first = tile_h.begin, starts[sequences.begin]
        length = starts[sequences.begin + 1] - first
        if rows.begin < length:
            inside = rows.index < length
            q = hl.load(qkv, [first + rows.index, 0, head, slice(None)], extra_mask=inside[:, None])
            highest = hl.full([rows], float("-inf"), dtype=torch.float32)
            total = hl.zeros([rows], dtype=torch.float32)
            acc = hl.zeros([rows, dims], dtype=torch.float32)
            for tile in hl.tile(min(rows.end, length)):
                scores = hl.dot(q, qkv[first + tile.index, 1, head, :].T) * dims**-0.5
                scores = torch.where(rows.index[:, None] >= tile.index[None, :], scores, float("-inf"))
                raised = torch.maximum(highest, torch.amax(scores, -1))
                weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
                total = total * shrink + weights.sum(-1)
                acc = hl.dot(weights.to(qkv.dtype), qkv[first + tile.index, 2, head, :], acc=acc * shrink[:, None])
                highest = raised
            y = (acc / total[:, None]).to(qkv.dtype)
            hl.store(out, [first + rows.index, head, slice(None)], y, extra_mask=inside[:, None])
    return out
"""
BRANCH, INSIDE = "if rows.begin < length:", "inside = rows.index < length"
FORMS = {
    "the tile first": (BRANCH, BRANCH),
    "the length first": (BRANCH, "if length > rows.begin:"),
    "a mask with the length first": (INSIDE, "inside = length > rows.index"),
}
REFUSED = {
    "another length": (BRANCH, "if rows.begin < length - 8:"),
    "the end of the tile": (BRANCH, "if rows.end < length:"),
    "the opposite": (BRANCH, "if rows.begin > length:"),
    "a tile that may be the last": (BRANCH, "if rows.begin <= length:"),
    "the head": (BRANCH, "if head < length:"),
    "another branch": (
        BRANCH,
        "if rows.begin >= length:\n            out[0, head, :] = 1.0\n        else:",
    ),
}
LENGTHS = [5, 130, 64, 0, 200]


def given_of(device: str = "cpu") -> tuple[Any, ...]:
    torch.manual_seed(0)
    starts = torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32).to(device)
    return torch.randn(sum(LENGTHS), 3, 2, 64).bfloat16().to(device), starts, max(LENGTHS)


def wanted_of(qkv: torch.Tensor) -> torch.Tensor:
    parts = []
    for rows in qkv.double().split(LENGTHS):
        q, k, v = rows.permute(1, 2, 0, 3)
        hidden = torch.ones(len(rows), len(rows), dtype=torch.bool).triu(1)
        parts.append((torch.softmax((q @ k.mT / 8).masked_fill(hidden, float("-inf")), -1) @ v).transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("form", list(FORMS))
def test_values(form: str, static: bool, tmp_path: Path) -> None:
    function = edited(TEXT, *FORMS[form], tmp_path / "skipped.py").attend
    kernel = helion.kernel(function, backend="cute", static_shapes=static)
    given = given_of()
    wanted = wanted_of(given[0])
    assert (kernel(*given) - wanted).norm() < 6e-3 * wanted.norm()


@pytest.mark.parametrize("name", list(REFUSED))
def test_refusals(name: str, tmp_path: Path) -> None:
    function = edited(TEXT, *REFUSED[name], tmp_path / "skipped.py").attend
    with pytest.raises(exc.CuteUnsupported, match="attention|if in"):
        helion.kernel(function, backend="cute").bind(given_of("meta"), target="sm_90")
