"""Masks by chunks: blocks of keys before the chunk of a tile's first query are not visited."""

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


def attend(q, k, v, chunk: int):
    batch, heads, m, _ = q.size()
    dims = hl.specialize(q.size(3))
    out = torch.empty_like(q)
    for tile_b, tile_h, rows in hl.tile([batch, heads, m], block_size=[1, 1, None]):
        b, h = tile_b.begin, tile_h.begin
        highest = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, dims], dtype=torch.float32)
        for tile in hl.tile(rows.begin // chunk * chunk, rows.end):
            scores = hl.dot(q[b, h, rows, :], k[b, h, tile, :].T) * dims**-0.5
            same = rows.index[:, None] // chunk == tile.index[None, :] // chunk
            scores = torch.where(same & (rows.index[:, None] >= tile.index[None, :]), scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b, h, tile, :], acc=acc * shrink[:, None])
            highest = raised
        out[b, h, rows, :] = acc / total[:, None]
    return out
"""
LOOP, SAME = (
    "hl.tile(rows.begin // chunk * chunk, rows.end)",
    "rows.index[:, None] // chunk == tile.index[None, :] // chunk",
)
HIDDEN = 'scores, float("-inf"))'
FORMS = {
    "a loop from the chunk": (LOOP, LOOP),
    "the other factor first": (LOOP, "hl.tile(chunk * (rows.begin // chunk), rows.end)"),
    "a loop from what remains": (LOOP, "hl.tile(rows.begin - rows.begin % chunk, rows.end)"),
    "a loop over all keys": (LOOP, "hl.tile(m)"),
    "a loop to the tile": (LOOP, "hl.tile(rows.end)"),
    "keys first": (SAME, "tile.index[None, :] // chunk == rows.index[:, None] // chunk"),
    "other chunks hidden": (SAME, "~(rows.index[:, None] // chunk != tile.index[None, :] // chunk)"),
    "the first key": (SAME, "tile.index[None, :] >= (rows.index // chunk * chunk)[:, None]"),
    "the first key by what remains": (SAME, "(rows.index - rows.index % chunk)[:, None] <= tile.index[None, :]"),
    "a number that hides": (HIDDEN, "scores, -1.0e30)"),
    "and a window": (SAME, f"({SAME}) & (tile.index[None, :] > rows.index[:, None] - 70)"),
    "of the kernel": ("dims = hl", "chunk, dims = hl.specialize(chunk), hl"),
}  # fmt: skip
REFUSED = {
    "a mask of other chunks": (LOOP, "hl.tile(rows.begin // 128 * 128, rows.end)", "a loop over keys from 0"),
    "later keys": ("rows.index[:, None] >= tile.index[None, :]", "rows.index[:, None] >= tile.index[None, :] - 3", "floordiv"),
    "a loop to the end of the chunk": (LOOP, "hl.tile((rows.begin + 7) // chunk * chunk, rows.end)", "a loop over keys from 0"),
}  # fmt: skip


def given_of(device: str = "cpu", chunk: int = 96) -> tuple[Any, ...]:
    torch.manual_seed(0)
    return *(torch.randn(2, 2, 300, 64).bfloat16().to(device) for _ in range(3)), chunk


def wanted_of(q: Any, k: Any, v: Any, chunk: int, form: str) -> torch.Tensor:
    rows, keys = torch.arange(300)[:, None], torch.arange(300)
    seen = (rows >= keys) & (rows // chunk == keys // chunk)
    if form == "and a window":
        seen = seen & (keys > rows - 70)
    scores = (q.double() @ k.double().mT / 8).masked_fill(~seen, float("-inf"))
    return torch.softmax(scores, -1) @ v.double()


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("form", list(FORMS))
def test_values(form: str, static: bool, tmp_path: Path) -> None:
    kernel = helion.kernel(
        edited(TEXT, *FORMS[form], tmp_path / "chunks.py").attend, backend="cute", static_shapes=static
    )
    assert " // " in str(kernel.bind(given_of()).plan())
    for chunk in (33, 1000):
        given = given_of(chunk=chunk)
        wanted = wanted_of(*given, form)
        assert (kernel(*given) - wanted).norm() < 6e-3 * wanted.norm(), chunk


@pytest.mark.parametrize("name", list(REFUSED))
def test_refusals(name: str, tmp_path: Path) -> None:
    *change, reason = REFUSED[name]
    function = edited(TEXT, *change, tmp_path / "chunks.py").attend
    with pytest.raises(exc.CuteUnsupported, match=reason):
        helion.kernel(function, backend="cute").bind(given_of("meta"), target="sm_90")


def test_chunks_are_positive(tmp_path: Path) -> None:
    """Code for a positive length serves no other one."""
    (tmp_path / "chunks.py").write_text(TEXT)
    kernel = helion.kernel(import_path(tmp_path / "chunks.py").attend, backend="cute")
    kernel.bind(given_of("meta"), target="sm_90")
    with pytest.raises(exc.CuteUnsupported):
        kernel.bind(given_of("meta", -96), target="sm_90")


@pytest.mark.parametrize("chunk", [1, 33, 64, 96, 128, 1000])
def test_printed_blocks(chunk: int, tmp_path: Path) -> None:
    """Blocks that a query of the tile sees are visited, and those without a mask are seen by all of its queries."""
    (tmp_path / "chunks.py").write_text(TEXT)
    kernel = helion.kernel(import_path(tmp_path / "chunks.py").attend, backend="cute")
    bound = kernel.bind(given_of("meta"), target="sm_90")
    for keys in (64, 128):
        plan = bound.plan(helion.Config(**{**bound.default_config(), "block_sizes": [64, keys]})).attention
        for tile in range(5):
            rows, columns = torch.arange(64 * tile, 64 * tile + 64)[:, None], torch.arange(384)
            seen = (columns <= rows) & (columns // chunk == rows // chunk) & (columns < 300)
            blocks = dict(visited(plan, tile, [chunk, 1]))
            for block, of_block in enumerate(seen.split(keys, -1)):
                assert block in blocks or not of_block.any()
                assert of_block[:, : 300 - keys * block].all() or blocks.get(block, True)
            first = 64 * tile // chunk * chunk // keys
            assert min(blocks) == first
