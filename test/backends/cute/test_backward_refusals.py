"""Loops that differ from gradients of attention in one place: each is refused by name, or gives the values of eager torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from backends.cute.edited_source import GRADIENTS, compare_gradients, edited

import helion
from helion import exc

CHANGES = {
    "no mask": ('torch.where(tile_m.index[:, None] >= tile_n.index[None, :], scores, float("-inf"))', "scores", None),
    "a low number as mask": ('float("-inf")', "-1e30", None),
    "a mask that changes scores": ('float("-inf")', "-0.5", None),
    "masks of weights alone": ("weights.to(do.dtype).T", "torch.where(tile_m.index[:, None] > 9, weights, 0.0).to(do.dtype).T", None),
    "a loop from the tile on": ("hl.tile(m)", "hl.tile(tile_n.begin, m)", None),
    "a loop from the end of the tile": ("hl.tile(m)", "hl.tile(tile_n.end, m)", "from 0"),
    "a loop to the tile": ("hl.tile(m)", "hl.tile(tile_n.end)", "size of tiles"),
    "fewer queries": ("hl.tile(m)", "hl.tile(m - 7)", None),
    "a tensor per query": ("* (changes - delta", "* extra[tile_m][:, None] * (changes - delta", None),
    "scores of the sum": ("* (changes - delta", "* value_sum.sum(-1)[None, :] * (changes - delta", "one dot of two loads per accumulator|reads a loop-carried value"),
    "sums of squares": ("hl.dot(differences.to(q.dtype).T, q[h, tile_m, :], acc=key_sum)",
                        "hl.dot(differences.to(q.dtype).T, q[h, tile_m, :], acc=key_sum * 2.0)", "acc \\+ x @ y"),
    "another first number": ("key_sum = hl.zeros([tile_n, dims], dtype=torch.float32)",
                             "key_sum = hl.full([tile_n, dims], 1.0, dtype=torch.float32)", "begin with another"),
    "another right operand": ("q[h, tile_m, :], acc=key_sum", "q[h, tile_m, :] * 3, acc=key_sum", "no product before"),
    "a multiple of the right operand": ("q[h, tile_m, :], acc=key_sum", "q[h, tile_m, :] * 2, acc=key_sum", None),
    "a right operand in another type": ("q[h, tile_m, :], acc=key_sum", "(q[h, tile_m, :] * 3.5).to(torch.float16).to(q.dtype), acc=key_sum", "no product before"),
    "another head": ("q[h, tile_m, :], acc=key_sum", "q[0, tile_m, :], acc=key_sum", "no product before"),
    "a rounded sum": ("hl.dot(differences.to(q.dtype).T, q[h, tile_m, :], acc=key_sum)",
                      "key_sum + torch.mm(differences.to(q.dtype).T, q[h, tile_m, :])", r"acc \+ x @ y"),
    "a plain sum": ("hl.dot(differences.to(q.dtype).T, q[h, tile_m, :], acc=key_sum)",
                    "key_sum + hl.dot(differences.to(q.dtype).T, q[h, tile_m, :])", None),
    "a store in the loop": ("            changes = hl", "            dv[h, tile_n, :] = value_sum.to(dv.dtype)\n            changes = hl", "stored in the loop"),
    "outputs in fp32": ("dk, dv = torch.empty_like(k), torch.empty_like(v)", "dk, dv = k.new_empty(k.size(), dtype=torch.float32), torch.empty_like(v)", None),
    "outputs in another half": ("dk, dv = torch.empty_like(k), torch.empty_like(v)", "dk, dv = k.new_empty(k.size(), dtype=torch.float16), torch.empty_like(v)", "bfloat16 or float32 are implemented"),
    "row sums in the loop": ("changes - delta[h, tile_m]", "changes - (do[h, tile_m, :].float() * do[h, tile_m, :].float()).sum(-1)", None),
    "rounded row sums in the loop": ("changes - delta[h, tile_m]", "changes - (do[h, tile_m, :] * q[h, tile_m, :]).sum(-1)", None),
    "greatest numbers of rows in the loop": ("changes - delta[h, tile_m]", "changes - do[h, tile_m, :].float().amax(-1)", "max in gradients, other than a sum"),
    "row sums of other numbers": ("changes - delta[h, tile_m]", "changes - (do[h, tile_m, :].float() * delta[h, tile_m][:, None]).sum(-1)", "computed with other numbers"),
    "queries as output": ("dk, dv = torch.empty_like(k), torch.empty_like(v)", "dk, dv = k, torch.empty_like(v)", "read by the kernel"),
    "powers of two": ("torch.exp(scores - logsum", "torch.exp2(scores - logsum", None),
    "exponentials of both": ("weights * (changes", "torch.exp(changes * 0.01) * weights * (changes", "of which exponentials depend on one"),
}  # fmt: skip


STORED = GRADIENTS.replace("(v)\n", "(v)\n    more = k.new_empty([heads, m, n], dtype=torch.float32)\n", 1)
STORED = STORED.replace(
    "            key_sum = hl", "            more[h, tile_m, tile_n] = differences * 2\n            key_sum = hl"
)
STORED = STORED.replace("return dk, dv", "return dk, dv, more")
CHANGES_OF_STORED = {
    "masked numbers": ("differences * 2", "differences * 3", None),
    "numbers of both products": ("differences * 2", "weights + changes", None),
    "rounded numbers": ("differences * 2", "weights.to(torch.bfloat16) * 0.5", None),
    "a loop from the tile on": ("hl.tile(m)", "hl.tile(tile_n.begin, m)", "begins with the tile"),
    "numbers that are stored twice": ("            changes = hl", "            more[h, tile_m, tile_n] = weights\n            changes = hl", "stored twice in the loop"),
    "another half": ("more = k.new_empty([heads, m, n], dtype=torch.float32)", "more = k.new_empty([heads, m, n], dtype=torch.float16)", "stored in the loop in float16"),
    "numbers of no product": ("differences * 2", "(logsum[h, tile_m] * 2)[:, None] + extra[tile_n][None, :]", "does not depend on a product"),
}  # fmt: skip


EDITED = [(GRADIENTS, *change, name) for name, change in CHANGES.items()]
EDITED += [(STORED, *change, f"{name}, stored in the loop") for name, change in CHANGES_OF_STORED.items()]


@pytest.mark.parametrize("at", range(len(EDITED)), ids=[each[-1] for each in EDITED])
def test_a_changed_loop_is_refused_or_right(at: int, tmp_path: Path) -> None:
    text, old, new, message, _ = EDITED[at]
    compare_gradients(text, (old, new, message), tmp_path / "gradients.py", torch.rand(150) - 0.2)


def test_gradients_in_fp32_are_within_reach(tmp_path: Path) -> None:
    """Threads store them, by offsets of 32 bits."""
    tensors = [torch.empty(64, rows, 64, dtype=torch.bfloat16, device="meta") for rows in (200, 600_000, 600_000, 200)]
    more = [torch.empty(64, 200, device="meta"), torch.empty(64, 200, device="meta"), torch.empty(200, device="meta")]
    old, new, _ = CHANGES["outputs in fp32"]
    in_fp32 = helion.kernel(backend="cute")(edited(GRADIENTS, old, new, tmp_path / "gradients.py").gradients)
    with pytest.raises(exc.CuteUnsupported, match="offsets of .* elements; below"):
        in_fp32.bind((*tensors, *more))
