"""Consecutive loops of attention, and loops without a softmax: a change is refused, or its result is right."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from backends.cute import attention_loops as loops
from backends.cute.edited_source import ATTENTION, edited

import helion
from helion import exc

BEGIN = ATTENTION[: ATTENTION.index("        for tile_n")]
STEP = ATTENTION[ATTENTION.index("            raised") : ATTENTION.index("        out[")]
TWO_LOOPS = f"""{BEGIN}        for tile_n in hl.tile(0, tile_m.begin):
            scores = hl.dot(q[tile_h.begin, tile_m, :], k[tile_h.begin, tile_n, :].T) * 0.125
{STEP}        between = 1.0
        for tile_n in hl.tile(tile_m.begin, tile_m.end):
            scores = hl.dot(q[tile_h.begin, tile_m, :], k[tile_h.begin, tile_n, :].T) * (0.125 * between)
            seen = tile_m.index[:, None] >= tile_n.index[None, :]
            scores = torch.where(seen, scores, float("-inf"))
{STEP}        out[tile_h.begin, tile_m, :] = acc / total[:, None]
    return out
"""
TWO_LOOPS_CHANGES = {
    "as it is": ("import torch", "import torch", None),
    "a window in the second": ("seen = ", "seen = (tile_m.index[:, None] - tile_n.index[None, :] < 40) & ", "adjacent"),
    "a mask that hides earlier keys": (">= tile_n.index[None, :]", ">= tile_n.index[None, :] + 5", "adjacent"),
    "a mask that sees one later key": (">= tile_n.index[None, :]", ">= tile_n.index[None, :] - 1", "size of tiles|more of them"),
    "another scale": ("between = 1.0", "between = 2.0", "adjacent"),
    "a gap": ("hl.tile(0, tile_m.begin)", "hl.tile(0, tile_m.begin - 1)", "adjacent"),
    "a use between": ("between = 1.0", "between = 1.0\n        total = total * 1.0", "adjacent"),
    "other keys": ("k[tile_h.begin, tile_n, :].T) * (", "v[tile_h.begin, tile_n, :].T) * (", "adjacent"),
    "rows of another tensor": ("hl.dot(q[tile_h.begin, tile_m, :], k[tile_h.begin, tile_n, :].T) * 0.125",
                               "hl.dot(k[tile_h.begin, tile_m, :], k[tile_h.begin, tile_n, :].T) * 0.125", "adjacent"),
    "a number for hidden scores": ('scores, float("-inf"))', "scores, 0.0)", "adjacent"),
}  # fmt: skip

WEIGHTS = """
import torch
import helion
import helion.language as hl


def attend(q, k, v):
    heads, m, _ = q.size()
    dims = hl.specialize(q.size(2))
    out = torch.empty_like(q)
    for tile_h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(k.size(1)):
            scores = hl.dot(q[tile_h.begin, tile_m, :], k[tile_h.begin, tile_n, :].T) * 0.125
            weights = torch.sigmoid(scores)
            total = total + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[tile_h.begin, tile_n, :], acc=acc)
        out[tile_h.begin, tile_m, :] = acc / total[:, None]
    return out
"""
WEIGHTS_CHANGES = {
    "as it is": ("import torch", "import torch", None),
    "an identity": ("torch.sigmoid(scores)", "scores", None),
    "a mask": ("torch.sigmoid(scores)", "torch.where(tile_m.index[:, None] >= tile_n.index[None, :], torch.exp(scores), 0.0)", None),
    "a number for hidden weights": ("torch.sigmoid(scores)", "torch.where(tile_m.index[:, None] >= tile_n.index[None, :], torch.exp(scores), 0.5)", None),
    "sums of rounded weights": ("weights.sum(-1)", "weights.to(v.dtype).float().sum(-1)", "carries the accumulator"),
    "sums of squares": ("weights.sum(-1)", "(weights * weights).sum(-1)", "carries the accumulator"),
    "a rescaled accumulator": ("acc=acc)", "acc=acc * 0.5)", "carries the accumulator"),
    "an initial sum": ("hl.zeros([tile_m], dtype", "hl.full([tile_m], 2.0, dtype", None),
    "an initial accumulator": ("hl.zeros([tile_m, dims], dtype", "hl.full([tile_m, dims], 2.0, dtype", None),
    "weights of the sum": ("torch.sigmoid(scores)", "torch.sigmoid(scores + total[:, None])", "other values of the loop"),
    "rounded products": ("acc = hl.dot(weights.to(v.dtype), v[tile_h.begin, tile_n, :], acc=acc)",
                         "acc = acc + torch.mm(weights.to(v.dtype), v[tile_h.begin, tile_n, :])", None),
    "the end of the tile": ("hl.tile(k.size(1))", "hl.tile(tile_m.end)", "size of tiles|more of them"),
}  # fmt: skip


@pytest.mark.parametrize("name", TWO_LOOPS_CHANGES)
def test_changed_loops_over_adjacent_ranges(name: str, tmp_path: Path) -> None:
    _compare(TWO_LOOPS, *TWO_LOOPS_CHANGES[name], tmp_path)


@pytest.mark.parametrize("name", WEIGHTS_CHANGES)
def test_changed_weights(name: str, tmp_path: Path) -> None:
    _compare(WEIGHTS, *WEIGHTS_CHANGES[name], tmp_path)


def _compare(text: str, old: str, new: str, message: str | None, folder: Path) -> None:
    """Compare with the reference interpreter of another backend, whose tile is all queries."""
    torch.manual_seed(1)
    function: Any = edited(text, old, new, folder / "changed.py").attend
    q, k, v = (torch.randn(2, 150, 64).bfloat16() + 0.1 for _ in range(3))
    attend = helion.kernel(backend="cute")(function)
    if message is not None:
        with pytest.raises(exc.CuteUnsupported, match=message):
            attend.bind((q, k, v))
        return
    wanted = helion.kernel(backend="triton", ref_mode=helion.RefMode.EAGER)(function)(q, k, v)
    assert (attend(q, k, v).double() - wanted.double()).norm() < 6e-3 * wanted.double().norm()


def test_tiles_of_both_loops_in_triton(tmp_path: Path) -> None:
    """The tiles of keys of both loops are equally long, and the time counts both ranges."""
    function: Any = edited(TWO_LOOPS, "import torch", "import torch", tmp_path / "both.py").attend
    tensors = tuple(torch.empty(64, 4096, 64, dtype=torch.bfloat16, device="meta") for _ in range(3))
    bound = helion.kernel(backend="triton")(function).bind(tensors, target="h100")
    queries, before, within = bound.default_config().block_sizes
    assert before == within >= 32 and queries >= 64
    assert bound.facts.axes[bound.facts.attention.key_axis].mean == 2048


def test_auto_takes_both_loops_by_prediction(tmp_path: Path) -> None:
    function: Any = edited(TWO_LOOPS, "import torch", "import torch", tmp_path / "both.py").attend
    tensors = tuple(torch.empty(64, 4096, 128, dtype=torch.bfloat16, device="meta") for _ in range(3))
    assert helion.kernel()(function).bind(tensors, target="h100").backend_on_gpu == "cute"


def test_random_configs_of_weights_have_a_plan(tmp_path: Path) -> None:
    """Weights without a softmax have neither a maximum to rescale by nor partial results."""
    function: Any = edited(WEIGHTS, "import torch", "import torch", tmp_path / "random.py").attend
    tensors = tuple(torch.empty(4, 1000, 64, dtype=torch.bfloat16, device="meta") for _ in range(3))
    bound = helion.kernel(backend="cute")(function).bind(tensors, target="h100")
    rng = random.Random(1)
    for _ in range(40):
        config = bound.config_spec.random(rng)
        assert not config.config["wgmma_lazy_rescale"] and bound.plan(config)


def test_a_single_key(tmp_path: Path) -> None:
    """A dimension of one element may have no tile in its index."""
    function: Any = edited(TWO_LOOPS, "import torch", "import torch", tmp_path / "single.py").attend
    q, k, v = (torch.randn(2, 1, 64).bfloat16() for _ in range(3))
    with pytest.raises(exc.CuteUnsupported, match="is not indexed by a tile of keys"):
        helion.kernel(backend="cute")(function).bind((q, k, v), target="h100")
    function = edited(WEIGHTS, "import torch", "import torch", tmp_path / "weights.py").attend
    torch.testing.assert_close(helion.kernel(backend="cute")(function)(q, k, v), v, rtol=1e-2, atol=1e-2)


def test_the_tile_before_the_keys_before_it(tmp_path: Path) -> None:
    """The loop over the tile's own keys may come first."""
    marks = ("        for tile_n in hl.tile(0", "        between", "        out[tile_h")
    start, middle, end = map(TWO_LOOPS.index, marks)
    swapped = TWO_LOOPS[:start] + TWO_LOOPS[middle:end] + TWO_LOOPS[start:middle] + TWO_LOOPS[end:]
    assert swapped.index("hl.tile(tile_m.begin") < swapped.index("hl.tile(0")
    _compare(swapped, "import torch", "import torch", None, tmp_path)


@pytest.mark.parametrize("static", [True, False])
def test_values_of_earlier_keys(static: bool) -> None:
    """The loop begins with the maximum, the sum and the accumulator of other keys. One query has seen none of them."""
    torch.manual_seed(3)
    q, k, v = (torch.randn(2, rows, 64).bfloat16() + 0.1 for rows in (150, 230, 230))
    scores = q.double() @ k.double().mT / 8
    before = scores[..., :100].clone()
    before[0, 5] = -1e30
    highest = before.amax(-1)
    weights = torch.exp(before - highest[..., None])
    weights[0, 5] = 0.0
    given = (highest, weights.sum(-1), weights @ v[:, :100].double())
    scores[0, 5, :100] = float("-inf")
    attend = helion.kernel(loops.continued, backend="cute", static_shapes=static)
    found = attend(q, k[:, 100:], v[:, 100:], *(x.float() for x in given))
    wanted = torch.softmax(scores, -1) @ v.double()
    assert (found.double() - wanted).norm() < 4e-3 * wanted.norm()
