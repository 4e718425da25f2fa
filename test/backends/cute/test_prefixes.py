"""Masks that show all queries a prefix of the keys: blocks after it end with those of the tile of queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from backends.cute.edited_source import edited
from backends.cute.printed_blocks import visited

import helion
from helion import exc
from helion._testing import import_path

TEXT = """
import torch
import helion.language as hl


def attend(q, k, v, prefixes, least: int):
    batch, heads, m, _ = q.size()
    dims = hl.specialize(q.size(3))
    out = torch.empty_like(q)
    for tile_b, tile_h, rows in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        b, h = tile_b.begin, tile_h.begin
        prefix = prefixes[b]
        highest = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, dims], dtype=torch.float32)
        for tile in hl.tile(k.size(2)):
            scores = hl.dot(q[b, h, rows, :], k[b, h, tile, :].T) * dims**-0.5
            seen = (rows.index[:, None] >= tile.index[None, :]) | (tile.index[None, :] < prefix)
            scores = torch.where(seen, scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b, h, tile, :], acc=acc * shrink[:, None])
            highest = raised
        out[b, h, rows, :] = acc / total[:, None]
    return out
"""
LOOP, BELOW = "hl.tile(k.size(2))", "(tile.index[None, :] < prefix)"
FORMS = {
    "all keys": (LOOP, LOOP),
    "a loop to the last visible key": (LOOP, "hl.tile(0, torch.maximum(prefix, rows.end))"),
    "a loop to that key or the last one": (LOOP, "hl.tile(0, min(max(prefix, rows.end), k.size(2)))"),
    "the other order": ("(rows.index[:, None] >= tile.index[None, :]) | " + BELOW, "(prefix > tile.index[None, :]) | (tile.index[None, :] <= rows.index[:, None])"),
    "hidden keys": ("(rows.index[:, None] >= tile.index[None, :]) | " + BELOW, "~((rows.index[:, None] < tile.index[None, :]) & (tile.index[None, :] >= prefix))"),
    "up to the last one": (BELOW, "(tile.index[None, :] <= prefix - 1)"),
    "of the launch": (BELOW, "(tile.index[None, :] < least)"),
    "and a window": ("            scores = torch.where(seen", "            seen = seen & (tile.index[None, :] > rows.index[:, None] - 80)\n            scores = torch.where(seen"),
}  # fmt: skip
REFUSED = {
    "a loop to the end of the tile": (LOOP, "hl.tile(0, rows.end)", "later keys"),
    "a loop to another key": (LOOP, "hl.tile(0, torch.maximum(prefix - 1, rows.end))", "ends at a number|later keys"),
}


def given_of(device: str = "cpu") -> tuple[Any, ...]:
    torch.manual_seed(0)
    tensors = [torch.randn(3, 1, 200, 64).bfloat16().to(device) for _ in range(3)]
    return *tensors, torch.tensor([0, 90, 200], dtype=torch.int32, device=device), 77


def wanted_of(q: Any, k: Any, v: Any, prefixes: Any, least: int, form: str) -> torch.Tensor:
    rows, keys = torch.arange(200)[:, None], torch.arange(200)
    seen = (rows >= keys) | (keys < (least if form == "of the launch" else prefixes[:, None, None, None]))
    if form == "and a window":
        seen = seen & (keys > rows - 80)
    scores = (q.double() @ k.double().mT / 8).masked_fill(~seen, float("-inf"))
    return torch.softmax(scores, -1) @ v.double()


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("form", list(FORMS))
def test_values(form: str, static: bool, tmp_path: Path) -> None:
    function = edited(TEXT, *FORMS[form], tmp_path / "prefixes.py").attend
    kernel = helion.kernel(function, backend="cute", static_shapes=static)
    bound = kernel.bind(given_of())
    assert "key <= query + 0 or key < " in str(bound.plan())
    wanted = wanted_of(*given_of(), form)
    assert (kernel(*given_of()) - wanted).norm() < 6e-3 * wanted.norm()


@pytest.mark.parametrize("name", list(REFUSED))
def test_refusals(name: str, tmp_path: Path) -> None:
    *change, reason = REFUSED[name]
    function = edited(TEXT, *change, tmp_path / "prefixes.py").attend
    with pytest.raises(exc.CuteUnsupported, match=reason):
        helion.kernel(function, backend="cute").bind(given_of("meta"), target="sm_90")


def test_printed_blocks(tmp_path: Path) -> None:
    """Blocks that a query of the tile sees are visited, and those without a mask are seen by all of its queries."""
    (tmp_path / "prefixes.py").write_text(TEXT)
    bound = helion.kernel(import_path(tmp_path / "prefixes.py").attend, backend="cute").bind(
        given_of("meta"), target="sm_90"
    )
    config = helion.Config(**{**bound.default_config(), "block_sizes": [64, 64]})
    plan = bound.plan(config).attention
    for tile in range(4):
        for prefix in (-5, 0, 1, 63, 64, 65, 130, 199, 200, 1000):
            rows, keys = torch.arange(64 * tile, 64 * tile + 64)[:, None], torch.arange(256)
            seen = ((keys <= rows) | (keys < prefix)) & (keys < 200)
            blocks = dict(visited(plan, tile, [prefix]))
            for block, of_block in enumerate(seen.split(64, -1)):
                assert block in blocks or not of_block.any()
                assert of_block[:, : 200 - 64 * block].all() or blocks.get(block, True)
            assert len(blocks) == max(1, sum(bool(each.any()) for each in seen.split(64, -1)))
