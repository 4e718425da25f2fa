"""Persistent grids of matmuls whose columns are heads."""

from __future__ import annotations

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl

BF16 = torch.bfloat16


def head_norms(x, w, width: hl.constexpr):
    """`x @ w.T`, each head of `width` columns divided by its root mean square."""
    m, k = x.size()
    out = torch.empty([m, w.size(0)], dtype=x.dtype, device=x.device)
    for rows, head in hl.tile([m, w.size(0)], block_size=[None, width]):
        acc = hl.zeros([rows, head], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[rows, inner], w[head, inner].T)
        out[rows, head] = (acc * torch.rsqrt((acc * acc).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
    return out


def gated_heads(x, w, gates, width: hl.constexpr):
    """The same, of the sums of a gated head."""
    m, k = x.size()
    out = torch.empty([m, w.size(0)], dtype=x.dtype, device=x.device)
    for rows, head in hl.tile([m, w.size(0)], block_size=[None, width]):
        acc = hl.zeros([rows, head], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[rows, inner], w[head, inner].T)
        acc = acc * torch.sigmoid(gates[head].to(torch.float32))[None, :]
        out[rows, head] = (acc / acc.abs().sum(-1, keepdim=True)).to(x.dtype)
    return out


def _bound(m: int, n: int, k: int, gpu: str = "h200", fn=head_norms):
    given = (tensor(n),) if fn is gated_heads else ()
    return helion.kernel(fn).bind((tensor(m, k), tensor(n, k), *given, 128), target=gpu)


@pytest.mark.parametrize("fn", [head_norms, gated_heads])
@pytest.mark.parametrize(("m", "n"), [(4096, 4096), (16384, 1024)])
def test_several_waves_of_heads_have_a_persistent_grid(m: int, n: int, fn) -> None:
    bound = _bound(m, n, 4096, fn=fn)
    config = bound.default_config()
    assert config["pid_type"] == "persistent_interleaved" and config["block_sizes"] == [256, 64]
    assert config["num_warps"] == 8 and bound.resources(config).spill_bytes == 0
    first, second, *_ = bound.seeds
    assert second.config["pid_type"] == "flat" and first.predicted.time_us <= 0.95 * second.predicted.time_us


@pytest.mark.parametrize(("m", "gpu"), [(1024, "h200"), (2048, "h200"), (4096, "a100"), (4096, "mi300x")])
def test_other_heads_have_a_program_for_each_tile(m: int, gpu: str) -> None:
    assert _bound(m, 4096, 4096, gpu).default_config()["pid_type"] == "flat"


@pytest.mark.parametrize("rows", [63, 130, 1000])
def test_persistent_heads_are_right(rows: int) -> None:
    x, w = torch.randn(rows, 100).to(BF16), (torch.randn(96, 100) / 10).to(BF16)
    kernel = helion.kernel(head_norms)
    config = helion.Config(
        block_sizes=[64, 32],
        num_warps=8,
        l2_groupings=[8],
        range_flattens=[True, None],
        pid_type="persistent_interleaved",
        indexing=["tensor_descriptor", "tensor_descriptor", "pointer"],
    )
    got = kernel.bind((x, w, 32)).compile_config(config)(x, w, 32).double()
    y = (x.double() @ w.double().T).unflatten(1, (3, 32))
    want = (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).flatten(1)
    assert (got - want).abs().max() <= 2e-2 * want.abs().max()
