"""Loops that differ from attention in one place: each is refused by name, or gives the values of eager torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from backends.cute.edited_source import edited

import helion
from helion import exc
from helion.backends.cute.lower.attention.formula import MOST_DIVISOR
from helion.backends.cute.plan.attention.build import MOST_POSITIONS

TEXT = """
import math
import torch
import helion
import helion.language as hl


def attend(q, k, v, extra):
    heads, m, _ = q.size()
    n = k.size(1)
    dims = hl.specialize(q.size(2))
    out = torch.empty_like(q)
    more = torch.empty([heads, m], dtype=torch.float32, device=q.device)
    for tile_h, tile_m in hl.tile([heads, m]):
        highest = hl.full([tile_h, tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_h, tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_h, tile_m, dims], dtype=torch.float32)
        query = q[tile_h, tile_m, :]
        for tile_n in hl.tile(n):
            scores = hl.dot(query, k[tile_h, tile_n, :].transpose(1, 2)) * 0.125
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, :, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[tile_h, tile_n, :], acc=acc * shrink[:, :, None])
            highest = raised
        out[tile_h, tile_m, :] = acc / total[:, :, None]
        more[tile_h, tile_m] = highest + torch.log(total)
    return out, more
"""
CHANGES = {
    "another base": ("shrink = torch.exp(", "shrink = torch.exp2(", r"sum l \* c"),
    "the sum is not rescaled": ("total * shrink + weights", "total + weights", r"sum l \* c"),
    "the accumulator is not rescaled": ("acc=acc * shrink[:, :, None]", "acc=acc", r"sum l \* c"),
    "the sum of rounded weights": ("weights.sum(-1)", "weights.to(v.dtype).float().sum(-1)", r"sum l \* c"),
    "the sum of squares": ("weights.sum(-1)", "(weights * weights).sum(-1)", r"sum l \* c"),
    "the largest weight": ("weights.sum(-1)", "weights.amax(-1)", r"sum l \* c"),
    "the maximum of other scores": ("torch.amax(scores, -1)", "torch.amax(scores * 2, -1)", "maximum"),
    "the minimum": ("torch.amax(scores, -1)", "torch.amin(scores, -1)", "maximum"),
    "the maximum is not carried": ("highest = raised", "highest = highest", "maximum"),
    "other exponents": ("scores - raised[:, :, None]", "scores - highest[:, :, None]", "maximum"),
    "negative exponents": ("scores - raised[:, :, None]", "(scores - raised[:, :, None]) * -1.0", "positive"),
    "weights times two": ("weights.to(v.dtype)", "(weights * 2).to(v.dtype)", None),
    "weights plus one": ("weights.to(v.dtype)", "(weights + 1).to(v.dtype)", "may not be 0 where these are"),
    "weights in another type": ("weights.to(v.dtype)", "weights.to(torch.float16).to(v.dtype)", None),
    "rounded outputs": ("hl.dot(weights.to(v.dtype), v[tile_h, tile_n, :], acc=acc * shrink[:, :, None])",
                        "acc * shrink[:, :, None] + torch.bmm(weights.to(v.dtype), v[tile_h, tile_n, :])", None),
    "outputs rounded twice": ("hl.dot(weights.to(v.dtype), v[tile_h, tile_n, :], acc=acc * shrink[:, :, None])",
                              "acc * shrink[:, :, None] + torch.bmm(weights.to(v.dtype), v[tile_h, tile_n, :]).half()",
                              "rounded to bfloat16 and float16"),
    "an initial sum": ("hl.zeros([tile_h, tile_m], dtype", "hl.full([tile_h, tile_m], 2.0, dtype", None),
    "an initial accumulator": ("hl.zeros([tile_h, tile_m, dims], dtype", "hl.full([tile_h, tile_m, dims], 2.0, dtype", "initial"),
    "an initial maximum": ('float("-inf"), dtype', "0.0, dtype", None),
    "a low maximum": ('float("-inf"), dtype', "-1e30, dtype", None),
    "scores of the maximum": ("* 0.125", "* 0.125 + highest[:, :, None]", "other values of the loop"),
    "the position in the tile": ("* 0.125", "* 0.125 + hl.arange(0, 1)", None),
    "fewer keys": ("hl.tile(n)", "hl.tile(n - 7)", None),
    "later keys": ("hl.tile(n)", "hl.tile(3, n)", "from 0"),
    "the end of the tile": ("hl.tile(n)", "hl.tile(tile_m.end)", "size of tiles|more of them"),
    "a mask beyond the end": ("hl.tile(n)", "hl.tile(tile_m.end)", "size of tiles|more of them"),
    "a product with scores": ("* 0.125", "* extra[tile_n][None, None, :]", None),
    "a negative scale": ("* 0.125", "* -0.125", None),
    "no scale": ("* 0.125", "", None),
    "queries that are scaled in the loop": ("hl.dot(query, k", "hl.dot((query * 0.3).to(q.dtype), k", None),
    "a quotient": ("* 0.125", "/ 8", None),
    "positions in chunks": ("* 0.125", "* 0.125 + torch.where(tile_m.index[:, None] // 40 == tile_n.index[None, :] // 40, 0.0, -3.0)", None),
    "remainders of positions": ("* 0.125", "* 0.125 - (tile_m.index[:, None] % 7 + tile_n.index[None, :] % 48).to(torch.float32) * 0.01", None),
    "a quotient by a position": ("* 0.125", "* 0.125 - tile_m.index[:, None] // (tile_n.index[None, :] + 1)", "floordiv"),
    "a negative divisor": ("* 0.125", "* 0.125 - tile_n.index[None, :] // -3", "floordiv"),
    "the maximum as output": ("highest + torch.log(total)", "highest", None),
    "the sum as output": ("highest + torch.log(total)", "total", None),
    "a store in the loop": ("            highest = raised", "            highest = raised\n            more[tile_h, tile_m] = total", "loop over keys"),
    "queries as output": ("out = torch.empty_like(q)", "out = q", "read by the kernel"),
}  # fmt: skip


def changed(name: str, folder: Path) -> Any:
    old, new, _ = CHANGES[name]
    return edited(TEXT, old, new, folder / "changed.py").attend


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_loop_is_refused_or_right(name: str, tmp_path: Path) -> None:
    """Compare a changed loop with the reference interpreter of another backend, whose blocks are all keys."""
    torch.manual_seed(1)
    function, message = changed(name, tmp_path), CHANGES[name][2]
    q, k, v = (torch.randn(2, 150, 64).bfloat16() + 0.1 for _ in range(3))
    extra = torch.rand(150) - 0.2
    attend = helion.kernel(backend="cute")(function)
    if message is not None:
        with pytest.raises(exc.CuteUnsupported, match=message):
            attend.bind((q, k, v, extra))
        return
    wanted = helion.kernel(backend="triton", ref_mode=helion.RefMode.EAGER)(function)(q, k, v, extra)
    for one, other in zip(attend(q, k, v, extra), wanted, strict=True):
        assert (one.double() - other.double()).norm() < 6e-3 * other.double().norm()


@pytest.mark.parametrize("divisor", [1, 2, 3, 48, 1000, 4097, MOST_DIVISOR])
@pytest.mark.parametrize("error", [0.0, 2.0**-22, -(2.0**-22)])
def test_quotients_of_positions_are_exact(divisor: int, error: float) -> None:
    """The steps of a quotient in fp32, for the largest positions, with reciprocals that are wrong in their last bits."""
    positions = torch.arange(MOST_POSITIONS - 3 * MOST_DIVISOR, MOST_POSITIONS)
    inverse = torch.tensor(1.0 / divisor) * (1 + error)
    rest, quotient = positions.float(), torch.zeros(len(positions))
    for _ in range(2):
        part = torch.floor((rest + 0.5) * inverse)
        rest, quotient = rest - part * divisor, quotient + part
    assert torch.equal(quotient.long(), positions // divisor)
    assert torch.equal(rest.long(), positions % divisor)


def test_too_many_rows_for_positions(tmp_path: Path) -> None:
    tensors = [torch.empty(1, MOST_POSITIONS + 64, 64, dtype=torch.bfloat16, device="meta") for _ in range(3)]
    attend = helion.kernel(backend="cute")(changed("positions in chunks", tmp_path))
    with pytest.raises(exc.CuteUnsupported, match="formulas of positions"):
        attend.bind((*tensors, torch.empty(1, device="meta")), target="h100")
