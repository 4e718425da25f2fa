"""Attention in several passes over its keys: the plan of one loop, or a refusal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from backends.cute.edited_source import ATTENTION, edited

import helion
from helion import exc

SCORES = """        for tile_n in hl.tile(k.size(1)):
            scores = hl.dot(q[tile_h.begin, tile_m, :], k[tile_h.begin, tile_n, :].T) * 0.125
            scores = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], scores, float("-inf"))
"""
BEGIN = ATTENTION[: ATTENTION.index("        for tile_n")]
END = "        out[tile_h.begin, tile_m, :] = acc{}\n    return out\n"
HIGHEST = SCORES + "            highest = torch.maximum(highest, torch.amax(scores, -1))\n"
BOTH = f"""{SCORES}            raised = torch.maximum(highest, torch.amax(scores, -1))
            total = total * torch.exp(highest - raised) + torch.exp(scores - raised[:, None]).sum(-1)
            highest = raised
"""
WEIGHTS = "            weights = torch.exp(scores - highest[:, None])\n"
SUM = "            total += weights.sum(-1)\n"
ADD = "            acc = hl.dot(weights.to(v.dtype), v[tile_h.begin, tile_n, :], acc=acc)\n"
BY_SUM = "            weights = torch.exp(scores - highest[:, None]) / total[:, None]\n"
LOGSUM = "            weights = torch.exp(scores - logsum[:, None])\n"
PASSES = {
    "the maximum, then sums": (HIGHEST, WEIGHTS + SUM + ADD, " / total[:, None]"),
    "maximum and sum, then quotients": (BOTH, BY_SUM + ADD, ""),
    "the sum, then its inverse": (BOTH + "        inverse = 1.0 / total\n", WEIGHTS + "            weights = weights * inverse[:, None]\n" + ADD, ""),
    "the logarithm of the sum": (BOTH + "        logsum = highest + torch.log(total)\n", LOGSUM + ADD, ""),
    "three passes": (HIGHEST + SCORES + WEIGHTS + SUM, BY_SUM + ADD, ""),
    "the product added": (HIGHEST, WEIGHTS + SUM + ADD.replace("acc=acc)", "acc=None)").replace("acc = ", "acc = acc + ").replace(", acc=None", ""), " / total[:, None]"),
}  # fmt: skip
"""The first passes, the body of the last one after its scores, and the end of the output."""
REFUSED = {
    "squares of weights": ("weights.to(v.dtype)", "(weights * weights).to(v.dtype)"),
    "another scale": ("* 0.125", "* 0.25"),
    "other keys": ("hl.tile(k.size(1))", "hl.tile(8, k.size(1))"),
    "a sum from 1": ("total = hl.zeros([tile_m], dtype=torch.float32)", "total = hl.full([tile_m], 1.0, dtype=torch.float32)"),
    "an accumulator from 1": ("acc = hl.zeros([tile_m, dims], dtype=torch.float32)", "acc = hl.full([tile_m, dims], 1.0, dtype=torch.float32)"),
    "weights plus the maximum": ("weights.to(v.dtype)", "(weights + highest[:, None]).to(v.dtype)"),
    "half of the maximum": ("scores - highest[:, None]", "scores - highest[:, None] * 0.5"),
    "a product of sums": ("total += ", "total *= "),
}  # fmt: skip


def _text(name: str) -> str:
    first, last, end = PASSES[name]
    return BEGIN + first + SCORES + last + END.format(end)


def _plan(text: str, path: Path, *numbers: int) -> str:
    function: Any = edited(text, "import torch", "import torch", path).attend
    tensors = tuple(torch.empty(4, 150, 64, dtype=torch.bfloat16, device="meta") for _ in range(3))
    kernel = helion.kernel(backend="cute", static_shapes=not numbers)(function)
    bound = kernel.bind((*tensors, *numbers), target="h100")
    return str(bound.plan(bound.default_config()))


@pytest.mark.parametrize("name", PASSES)
def test_passes_have_the_plan_of_one_loop(name: str, tmp_path: Path) -> None:
    assert _plan(_text(name), tmp_path / "passes.py") == _plan(ATTENTION, tmp_path / "online.py")


def test_passes_with_a_number_of_the_launch(tmp_path: Path) -> None:
    """A window that only launches know is one number in all passes."""
    texts = [
        text.replace(">= tile_n.index[None, :]", "- tile_n.index[None, :] < window").replace(
            "k, v)", "k, v, window)", 1
        )
        for text in (_text("three passes"), ATTENTION)
    ]
    assert _plan(texts[0], tmp_path / "passes.py", 40) == _plan(texts[1], tmp_path / "online.py", 40)


@pytest.mark.parametrize("name", ["the maximum, then sums", "the logarithm of the sum"])
def test_passes_are_right(name: str, tmp_path: Path) -> None:
    function: Any = edited(_text(name), "import torch", "import torch", tmp_path / "passes.py").attend
    q, k, v = (torch.randn(2, 150, 64).bfloat16() + 0.1 for _ in range(3))
    scores = (q.double() @ k.double().mT / 8).masked_fill(torch.ones(150, 150).triu(1).bool(), float("-inf"))
    wanted = torch.softmax(scores, -1) @ v.double()
    assert (helion.kernel(backend="cute")(function)(q, k, v).double() - wanted).norm() < 4e-3 * wanted.norm()


@pytest.mark.parametrize("name", REFUSED)
def test_changed_passes_are_refused(name: str, tmp_path: Path) -> None:
    old, new = REFUSED[name]
    text = _text("the maximum, then sums")
    at = text.rindex(old)
    with pytest.raises(exc.CuteUnsupported, match="one loop over keys|a maximum other than"):
        _plan(text[:at] + new + text[at + len(old) :], tmp_path / "changed.py")
