"""Kernels whose source differs from a given text in one place, and texts of attention and its gradients."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

import helion
from helion import exc
from helion._testing import import_path

ATTENTION = """
import torch
import helion
import helion.language as hl


def attend(q, k, v):
    heads, m, _ = q.size()
    dims = hl.specialize(q.size(2))
    out = torch.empty_like(q)
    for tile_h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(k.size(1)):
            scores = hl.dot(q[tile_h.begin, tile_m, :], k[tile_h.begin, tile_n, :].T) * 0.125
            scores = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[tile_h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[tile_h.begin, tile_m, :] = acc / total[:, None]
    return out
"""
"""Causal attention of heads."""
GRADIENTS = """
import torch
import helion
import helion.language as hl


def gradients(q, k, v, do, logsum, delta, extra):
    heads, m, _ = q.size()
    n = k.size(1)
    dims = hl.specialize(q.size(2))
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    for tile_h, tile_n in hl.tile([heads, n], block_size=[1, None]):
        h = tile_h.begin
        key_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        value_sum = hl.zeros([tile_n, dims], dtype=torch.float32)
        for tile_m in hl.tile(m):
            scores = hl.dot(q[h, tile_m, :], k[h, tile_n, :].T) * 0.125
            scores = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], scores, float("-inf"))
            weights = torch.exp(scores - logsum[h, tile_m][:, None])
            value_sum = hl.dot(weights.to(do.dtype).T, do[h, tile_m, :], acc=value_sum)
            changes = hl.dot(do[h, tile_m, :], v[h, tile_n, :].T)
            differences = weights * (changes - delta[h, tile_m][:, None])
            key_sum = hl.dot(differences.to(q.dtype).T, q[h, tile_m, :], acc=key_sum)
        dk[h, tile_n, :] = (key_sum * 0.125).to(dk.dtype)
        dv[h, tile_n, :] = value_sum.to(dv.dtype)
    return dk, dv
"""
"""The gradients of keys and values of causal attention. ``extra`` is there for changes."""


def edited(text: str, old: str, new: str, path: Path) -> ModuleType:
    """Return the module of ``text`` with ``new`` for the only ``old``, written to ``path``."""
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new))
    return import_path(path)


def compare_gradients(
    text: str,
    change: tuple[str, str, str | None],
    path: Path,
    extra: torch.Tensor | float,
    refusal: type[exc.Base] = exc.CuteUnsupported,
) -> None:
    """Compare gradients of a changed text with eager torch, whose blocks are all rows; or expect a refusal's message."""
    torch.manual_seed(1)
    old, new, message = change
    function = edited(text, old, new, path).gradients
    given = (*(torch.randn(2, 150, 64).bfloat16() + 0.1 for _ in range(4)), torch.rand(2, 150) + 3, torch.rand(2, 150))
    gradients = helion.kernel(backend="cute")(function)
    if message is not None:
        with pytest.raises(refusal, match=message):
            gradients.bind((*given, extra))
        return
    wanted = helion.kernel(backend="triton", ref_mode=helion.RefMode.EAGER)(function)(*given, extra)
    for one, other in zip(gradients(*given, extra), wanted, strict=True):
        assert (one.double() - other.double()).norm() < 6e-3 * other.double().norm()
