"""Copied operands of batches: of several dimensions, and computed from several tensors that differ from matmul to matmul."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from backends.cute import cubins, products
from backends.cute.products import BF16, BOUNDS

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.module import build
from helion.backends.cute.plan.operands import steps_of, varying
from helion.backends.cute.shapes import MATMUL

B, H, L, P, N = 3, 4, 45, 24, 40
TARGETS = ("sm_90", "sm_100")


@helion.kernel(backend="cute")
def states(x: torch.Tensor, k: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
    """``x[B, L, H, P]`` scaled by ``exp(decay[B, H, L - 1] - decay)``, times ``k[B, L, G, N]`` of which heads share one."""
    batch, length, heads, features = x.size()
    shared, n = heads // k.size(2), k.size(3)
    out = torch.empty([batch, heads, features, n], dtype=x.dtype, device=x.device)
    for tile_b, tile_h, tile_p, tile_n in hl.tile([batch, heads, features, n], block_size=[1, 1, None, None]):
        i, head = tile_b.begin, tile_h.begin
        end = decay[i, head, length - 1]
        acc = hl.zeros([tile_p, tile_n], dtype=torch.float32)
        for tile_l in hl.tile(length):
            weight = torch.exp(end - decay[i, head, tile_l])
            values = (x[i, tile_l, head, tile_p].to(torch.float32) * weight[:, None]).to(x.dtype)
            acc = hl.dot(values.T, k[i, tile_l, head // shared, tile_n], acc=acc)
        out[i, head, tile_p, tile_n] = acc.to(x.dtype)
    return out


@helion.kernel(backend="cute")
def heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Heads of any pitch, with a matrix each."""
    b, t, h, k = x.size()
    n = w.size(2)
    out = torch.empty([b, h, t, n], dtype=x.dtype, device=x.device)
    for i, j in hl.grid([b, h]):
        for tile_t, tile_n in hl.tile([t, n]):
            acc = hl.zeros([tile_t, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[i, tile_t, j, tile_k], w[j, tile_k, tile_n], acc=acc)
            out[i, j, tile_t, tile_n] = acc.to(out.dtype)
    return out


@helion.kernel(backend="cute")
def scaled_groups(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    (rows, k), (groups, n, _) = x.size(), w.size()
    out = torch.empty([rows, n], dtype=x.dtype, device=x.device)
    for g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        for tile_m in hl.tile(offsets[g.id], offsets[g.id + 1]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                weights = (w[g.id, tile_n, tile_k].to(torch.float32) * scale[g.id, tile_k][None, :]).to(x.dtype)
                acc = hl.dot(x[tile_m, tile_k], weights.T, acc=acc)
            out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def tensor(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> torch.Tensor:
    return products.values(*shape, dtype=dtype, device="cpu", seed=seed) / 8


def of_states(groups: int = 2) -> tuple[torch.Tensor, ...]:
    decay = -tensor(B, H, L, seed=2, dtype=torch.float32).abs().cumsum(-1)
    return tensor(B, L, H, P), tensor(B, L, groups, N, seed=1), decay


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_sources_differ_from_matmul_to_matmul(groups: int) -> None:
    x, k, decay = given = of_states(groups)
    weight = torch.exp(decay[..., -1:] - decay).double()
    values = (x.double() * weight.transpose(1, 2)[..., None]).to(BF16).double()
    wanted = torch.einsum("blhp,blhn->bhpn", values, k.double().repeat_interleave(H // groups, 2))
    assert products.row_error(states(*given).flatten(0, 2), wanted.flatten(0, 2)) < BOUNDS[BF16]


@pytest.mark.parametrize(("k", "n"), [(45, 40), (48, 39), (45, 39)])
def test_heads_of_any_pitch(k: int, n: int) -> None:
    x, w = tensor(B, 77, H, k), tensor(H, k, n, seed=1)
    wanted = torch.einsum("bthk,hkn->bhtn", x.double(), w.double())
    assert products.row_error(heads(x, w).flatten(0, 2), wanted.flatten(0, 2)) < BOUNDS[BF16]


def test_each_matmul_reads_its_own_elements() -> None:
    """Matrices are numbered through all dimensions of the batch, innermost first, by the kernel before and by TMA."""
    gemm = states.bind(of_states(), target="sm_90").plan().gemm
    problem, text = gemm.whole, build(gemm)
    assert problem.batch is not None and gemm.prepare is not None and gemm.problem.batch is not None
    sizes = [level.size for level in problem.batch.levels]
    a = gemm.prepare.operands[0]
    assert varying(problem, a.copied) == (True,) * len(sizes) and a.batches == B * H
    matrix = a.rows * a.pitch
    assert list(gemm.problem.batch_pitches("a")) == [
        matrix,
        *(matrix * each for each in itertools.accumulate(sizes[:-1], int.__mul__)),
    ]
    assert list(steps_of(problem, a.copied, 0)) != list(steps_of(problem, a.copied, 1))
    shown = f"({', '.join(map(str, sizes))})"
    layouts = re.findall(r"source_a_(\d) = cute\.make_tensor\(\w+, cute\.make_layout\((.*)\)\)", text)
    assert len(layouts) == len(a.copied.sources) == 3
    for number, layout in layouts:
        steps = f"({', '.join(map(str, steps_of(problem, a.copied, int(number))))})"
        assert f"{shown}), stride=" in layout and layout.endswith(f", {steps})")


@pytest.mark.parametrize("target", TARGETS)
def test_they_run_on_request_on_blackwell(target: str) -> None:
    bound = states.bind(of_states(), target=target)
    asked = MATMUL.on_request(bound._analysis.program, bound.facts, bound.env.target)
    assert ("run on request" in asked) == (target == "sm_100")


@pytest.mark.prove
@pytest.mark.parametrize("target", TARGETS)
def test_kernels_compile_without_spills(target: str) -> None:
    for bound in (
        states.bind(of_states(), target=target),
        heads.bind((tensor(B, 77, H, 45), tensor(H, 45, 39)), target=target),
    ):
        found = cubins.measure(bound.plan().gemm)
        assert found["stack_bytes"] == 0 and not found["misplaced_barriers"]


def test_groups_are_refused() -> None:
    given = tensor(150, 64), tensor(3, 96, 64), tensor(3, 64, dtype=torch.float32), torch.tensor([0, 40, 40, 150])
    with pytest.raises(exc.CuteUnsupported, match="computed from several tensors of a group is not implemented"):
        scaled_groups.bind(given, target="sm_90")
