"""Epilogues over the pairs of neighboring columns, which ``hl.split`` and ``hl.join`` name."""

from __future__ import annotations

import pytest
import torch
from backends.cute import gemms, lockstep
from backends.cute.products import BF16

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.plan.build import plan_gemm
from helion.backends.cute.plan.epilogue import JOINED, PARTNER, Epilogue, EpilogueOutput, Instruction, constant
from helion.backends.cute.plan.records import Choice

M, K, N = 150, 72, 256


@helion.kernel(backend="cute", static_shapes=True)
def gated(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Gates and their inputs, side by side."""
    (m, k), n = x.size(), w.size(1)
    out = torch.empty([m, n // 2], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        acc = acc + bias[tile_n]
        gate, up = hl.split(acc.reshape(acc.size(0), acc.size(1) // 2, 2))
        at = tile_n.begin // 2 + hl.arange(tile_n.block_size // 2)
        hl.store(out, [tile_m, at], (torch.sigmoid(gate) * up).to(x.dtype), extra_mask=(at < n // 2)[None, :])
    return out


@helion.kernel(backend="cute", static_shapes=True)
def rotated(x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs of the columns of heads, by an angle for each row and pair of a head."""
    (m, k), n = x.size(), w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[None, 64]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        a, b = hl.split(acc.reshape(acc.size(0), 32, 2))
        c, s = cos[tile_m, :], sin[tile_m, :]
        turned = hl.join(a * c - b * s, a * s + b * c).reshape(acc.size(0), acc.size(1))
        out[tile_m, tile_n] = turned.to(x.dtype)
    return out


@helion.kernel(backend="cute", static_shapes=True)
def numbered(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Pairs times their numbers."""
    (m, k), n = x.size(), w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n], block_size=[None, 64]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        a, b = hl.split(acc.reshape(acc.size(0), 32, 2))
        numbers = hl.arange(32).to(torch.float32)[None, :]
        out[tile_m, tile_n] = hl.join(a * numbers, b).reshape(acc.size(0), acc.size(1)).to(x.dtype)
    return out


def made(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.25


def operands(columns: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    return made(M, K, seed=0).to(BF16), (made(K, columns, seed=1) / 8).to(BF16)


def close(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((found.double() - wanted).norm() < 5e-3 * wanted.norm())


def test_pairs_are_gated_by_their_first_columns() -> None:
    x, w = operands(264)
    bias = made(264, seed=2)
    pairs = x.double() @ w.double() + bias
    assert close(gated(x, w, bias), torch.sigmoid(pairs[:, 0::2]) * pairs[:, 1::2])


def test_pairs_are_rotated_and_joined() -> None:
    x, w = operands()
    cos, sin = made(M, 32, seed=3), made(M, 32, seed=4)
    heads = (x.double() @ w.double()).view(M, -1, 64)
    a, b = heads[..., 0::2], heads[..., 1::2]
    c, s = cos.double()[:, None], sin.double()[:, None]
    wanted = torch.stack((a * c - b * s, a * s + b * c), -1).reshape(M, N)
    assert close(rotated(x, w, cos, sin), wanted)


@pytest.mark.parametrize("name", ["sm_90", "sm_100"])
@pytest.mark.parametrize("narrow", [True, False])
def test_the_text_reads_both_columns_of_a_pair(name: str, narrow: bool) -> None:
    """All threads in lockstep: a gate of pairs in half of the columns, or pairs that are exchanged and joined again."""
    target = gemms.HOPPER if name == "sm_90" else gemms.BLACKWELL
    steps = (Instruction(PARTNER, (0,)), Instruction("sigmoid", (0,)), Instruction("mul", (2, 1)))
    steps += (Instruction(PARTNER, (3,)), Instruction("add", (3, constant(1.0))), Instruction(JOINED, (5, 4)))
    rows, n = 127, 56
    outputs = (EpilogueOutput(name="out", value=3, kind="strided", dtype="float32", pitch=n // 2, pairs=n // 2),)
    epilogue = Epilogue(instructions=steps[:3] if narrow else steps, outputs=outputs if narrow else ())
    problem = gemms.product(rows, n, 64, output="float32", epilogue=epilogue)
    plan = plan_gemm(problem, Choice(tile=(128, 64, 64), epilogue_n=16), target)
    sums = made(128, n, seed=5)
    cluster = lockstep.Cluster(plan, [sums], {})
    cluster.run()
    gates = torch.sigmoid(sums[:, 0::2].double()) * sums[:, 1::2].double()
    wanted = torch.stack((gates if narrow else gates + 1, gates), -1).flatten(1)
    got = cluster.matrix(problem.outputs[0].name)[:rows].double()
    torch.testing.assert_close(got, wanted[:rows], rtol=1e-5, atol=1e-5)


def test_numbers_of_the_pairs_of_a_tile_are_refused() -> None:
    with pytest.raises(exc.CuteUnsupported, match="indices of pairs of a tile are implemented where they select"):
        numbered.bind(operands(), target="h200")
