"""Single lanes for vectors that a loop spreads over tiles of more dimensions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl

BF16, FP32 = torch.bfloat16, torch.float32
NEAR = {"block_sizes": [2, 256], "num_warps": 4, "num_stages": 1}


def forces(x, mass):
    """Sums over all pairs of two vectors, in two results of one tensor."""
    (n,) = x.size()
    out = torch.empty([2, n], dtype=torch.float32, device=x.device)
    for i in hl.tile(n):
        own = x[i].to(torch.float32)
        first, second = hl.zeros([i], dtype=torch.float32), hl.zeros([i], dtype=torch.float32)
        for j in hl.tile(mass.size(0)):
            apart = x[j].to(torch.float32)[None, :] - own[:, None]
            near = mass[j].to(torch.float32)[None, :] * torch.exp(-apart * apart)
            first += near.sum(1)
            second += (near * apart).sum(1)
        out[0, i] = first
        out[1, i] = second
    return out


def of_forces(x, mass):
    apart = x.double()[None, :] - x.double()[:, None]
    near = mass.double() * torch.exp(-apart * apart)
    return torch.stack([near.sum(1), (near * apart).sum(1)]).float()


def soft_product(a, t):
    """`log sum_i exp(a[b, i] + t[i, j])`."""
    out = torch.empty([a.size(0), t.size(1)], dtype=torch.float32, device=a.device)
    for b, j in hl.tile(out.size()):
        total = hl.zeros([b, j], dtype=torch.float32)
        for i in hl.tile(a.size(1)):
            total += torch.exp(a[b, i].to(torch.float32)[:, :, None] + t[i, j].to(torch.float32)[None, :, :]).sum(1)
        out[b, j] = torch.log(total)
    return out


def of_soft_product(a, t):
    return torch.logsumexp(a.double()[:, :, None] + t.double()[None], 1).float()


def made(*shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def single(code: str) -> int:
    """Return the accesses with single lanes."""
    return len(re.findall(r"\+ tl\.minimum\(tl\.program_id\(0\), 0\)", code))


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(
    ("fn", "reference", "args", "sizes", "found"),
    [
        (forces, of_forces, (made(1000), made(1000)), [2, 256], 2),
        (forces, of_forces, (made(257, dtype=BF16), made(257, dtype=BF16)), [4, 256], 0),
        (soft_product, of_soft_product, (made(5, 63), made(63, 1000)), [1, 128, 16], 1),
        (soft_product, of_soft_product, (made(5, 63), made(63, 1000)), [1, 128, 8], 0),
        (soft_product, of_soft_product, (made(3, 4097), made(4097, 65)), [2, 128, 16], 0),
    ],
    ids=["pairs", "bf16", "columns", "few rows", "shared"],
)
def test_vectors_of_a_loop_have_the_lanes_of_its_tile(
    fn: Callable[..., Any],
    reference: Callable[..., torch.Tensor],
    args: tuple[torch.Tensor, ...],
    sizes: list[int],
    found: int,
    static: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HELION_VERIFY", "1")
    bound = helion.kernel(fn, backend="triton", static_shapes=static).bind(args)
    tiles = dict(zip(("grid", "last", "loop"), sizes, strict=False))
    config = helion.Config(block_sizes=list(tiles.values()), num_warps=4, num_stages=1)
    assert single(bound.to_triton_code(config)) == found
    torch.testing.assert_close(bound.compile_config(config)(*args), reference(*args), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_steps_wait_at_no_barrier(target: str) -> None:
    x = tensor(8192, dtype=FP32)
    cases = (
        (forces, (x, x), [4, 512]),
        (soft_product, (tensor(256, 512, dtype=FP32), tensor(512, 512, dtype=FP32)), [1, 128, 16]),
    )
    for fn, args, sizes in cases:
        bound = helion.kernel(fn, backend="triton").bind(args, target=target)
        config = bound.config_spec.normalize(helion.Config(block_sizes=sizes, num_warps=4, num_stages=1))
        ((_, code),) = bound.variant.compiled.assembled(config).items()
        assert not [each.name for part in code.by_depth()[1:] for each in part if each.opcode in ("BAR", "STS", "LDS")]


def with_rows(x, y):
    """A tile of all axes is loaded as well."""
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for i in hl.tile(x.size(0)):
        acc = hl.zeros([i], dtype=torch.float32)
        for j in hl.tile(x.size(1)):
            acc += (x[i, j] * torch.exp(y[j])[None, :]).sum(1)
        out[i] = acc
    return out


def stored(x, y):
    """The loop stores its tile."""
    out = torch.empty([x.size(0), y.size(0)], dtype=torch.float32, device=x.device)
    for i in hl.tile(x.size(0)):
        for j in hl.tile(y.size(0)):
            out[i, j] = x[i, 0][:, None] + y[j][None, :]
    return out


def multiplied(x, y):
    """A matmul arranges the lanes of the loop's tiles."""
    out = torch.empty([x.size(0), y.size(0)], dtype=torch.float32, device=x.device)
    for i, j in hl.tile(out.size()):
        acc = hl.zeros([i, j], dtype=torch.float32)
        for k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[i, k], y[k][:, None] * x[j, k].T)
        out[i, j] = acc
    return out


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (with_rows, (tensor(64, 512, dtype=FP32), tensor(512, dtype=FP32))),
        (stored, (tensor(64, 8, dtype=FP32), tensor(512, dtype=FP32))),
        (multiplied, (tensor(512, 512, dtype=FP32), tensor(512, dtype=FP32))),
    ],
)
def test_loads_beside_tiles_of_all_axes_keep_their_vectors(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    bound = helion.kernel(fn, backend="triton").bind(args)
    sizes = [2, 512] if fn is not multiplied else [64, 64, 512]
    config = helion.Config(block_sizes=sizes, num_warps=4, num_stages=1)
    assert not single(bound.to_triton_code(config))


def test_loops_with_stages_and_other_gpus_keep_their_vectors() -> None:
    x = tensor(8192, dtype=FP32)
    kernel = helion.kernel(forces, backend="triton")
    assert single(kernel.bind((x, x)).to_triton_code(helion.Config(**NEAR)))
    assert not single(kernel.bind((x, x)).to_triton_code(helion.Config(**NEAR, range_num_stages=[0, 3])))
    assert not single(kernel.bind((x, x), target="gfx942").to_triton_code(helion.Config(**NEAR)))
    few = helion.Config(**{**NEAR, "block_sizes": [8, 128]})
    assert not single(kernel.bind((x, x)).to_triton_code(few))
