"""Left operands from before a loop, whose registers the assembler gives to another product: they are made anew."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from backends.triton.left_operands import mixed_operands
from harness import tensor

import helion
import helion.language as hl
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature

FP16 = torch.float16
DESCRIPTOR = "tensor_descriptor"


def scaled_rows(q, k, v):
    """Attention whose queries are scaled in the loop."""
    m, d = q.size(0), hl.specialize(q.size(1))
    out = torch.empty([m, hl.specialize(v.size(1))], dtype=torch.float32, device=q.device)
    for tile_m in hl.tile(m):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, v.size(1)], dtype=torch.float32)
        rows = q[tile_m, :]
        for tile_n in hl.tile(k.size(0)):
            scores = hl.dot(rows * (d**-0.5), k[tile_n, :].T)
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights = torch.exp(scores - raised[:, None])
            shrink = torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[tile_m, :] = acc / total[:, None]
    return out


def plain_rows(q, k, v):
    """The queries are as they were loaded: the matrix unit reads them out of shared memory."""
    out = torch.empty([q.size(0), hl.specialize(v.size(1))], dtype=torch.float32, device=q.device)
    hl.specialize(q.size(1))
    for tile_m in hl.tile(q.size(0)):
        acc = hl.zeros([tile_m, v.size(1)], dtype=torch.float32)
        rows = q[tile_m, :]
        for tile_n in hl.tile(k.size(0)):
            scores = hl.dot(rows, k[tile_n, :].T)
            acc = hl.dot(torch.relu(scores * 0.125).to(v.dtype), v[tile_n, :], acc=acc)
        out[tile_m, :] = acc
    return out


def projected_rows(q, k, v):
    """The operand from before the loop is a product, and a branch on data stands between the two of the loop."""
    d = hl.specialize(q.size(1))
    out = torch.empty([q.size(0), hl.specialize(v.size(1))], dtype=torch.float32, device=q.device)
    for tile_m in hl.tile(q.size(0)):
        acc = hl.zeros([tile_m, v.size(1)], dtype=torch.float32)
        rows = hl.dot(q[tile_m, :], k[0:d, :]).to(q.dtype)
        for tile_n in hl.tile(k.size(0)):
            weights = torch.relu(hl.dot(rows, k[tile_n, :].T))
            if v[tile_n.begin, 0] > 0:
                weights = weights * 2
            acc = hl.dot(weights.to(v.dtype), v[tile_n, :], acc=acc)
        out[tile_m, :] = acc
    return out


def bound(function: Callable, width: int = 64, on: str = "sm_90") -> Any:
    rows = [tensor(n, width, dtype=FP16) for n in (512, 256, 256)]
    return helion.kernel(function, static_shapes=True).bind(rows, target=on)


def config(
    kernel: Any, described: tuple[int, ...], sizes: tuple[int, int] = (64, 64), warps: int = 4, stages: int = 2
) -> helion.Config:
    indexing = ["pointer"] * len(kernel.config_spec.default_config()["indexing"])
    for slot in described:
        indexing[slot] = DESCRIPTOR
    return helion.Config(block_sizes=list(sizes), num_warps=warps, num_stages=stages, indexing=indexing)


def mixed(kernel: Any, chosen: helion.Config, without: bool = False) -> list[tuple[int, int]]:
    """Pairs of products that the assembler mixes up; ``without``: in code that does not make operands anew."""
    full = kernel.config_spec.normalize(chosen)
    plan = kernel._analysis.code(full).plan
    function = inspect.unwrap(kernel.compile_config(full)).__globals__[plan.kernel_names[0]]
    if without:
        function._unsafe_update_src(function.src.replace("_renewed(", "("))
    compiled = compile_offline(function, **offline_signature(plan, kernel.target))
    assert "wgmma.mma_async" in compiled.asm["ptx"]
    return mixed_operands(compiled.asm["ptx"], compiled.asm["cubin"])


def renewed(kernel: Any, chosen: helion.Config) -> bool:
    return "dot(_renewed(" in kernel.to_triton_code(chosen)


# the copies of queries, keys and values by descriptors that put a wait between the products
@pytest.mark.parametrize(
    ("described", "expected"), [((0, 2), True), ((0, 1, 2), True), ((0, 1), False), ((0,), False), ((1, 2), False)]
)
def test_operands_of_descriptors_are_renewed(described: tuple[int, ...], expected: bool) -> None:
    kernel = bound(scaled_rows)
    assert renewed(kernel, config(kernel, described)) == expected
    assert not renewed(bound(scaled_rows, on="sm_80"), config(kernel, ()))
    assert not renewed(bound(scaled_rows, on="sm_100"), config(kernel, described))


def test_operands_in_shared_memory_and_other_widths_stay() -> None:
    kernel = bound(plain_rows)
    assert not renewed(kernel, config(kernel, (0, 1, 2)))
    kernel = bound(scaled_rows)
    assert not renewed(kernel, config(kernel, (0, 1, 2), sizes=(64, 128)))


def test_a_product_from_before_the_loop_is_renewed_where_the_loop_branches() -> None:
    kernel = bound(projected_rows)
    assert renewed(kernel, config(kernel, ()))


def test_the_assembler_mixes_no_operands() -> None:
    kernel = bound(scaled_rows)
    described = config(kernel, (0, 2))
    assert not mixed(kernel, described)
    assert mixed(kernel, described, without=True)
    assert not mixed(bound(projected_rows), config(bound(projected_rows), ()))


@pytest.mark.prove
@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("function", [scaled_rows, plain_rows, projected_rows])
def test_no_config_mixes_operands(function: Callable, width: int) -> None:
    kernel = bound(function, width)
    for described, rows, columns, warps in itertools.product(
        ((0, 1, 2), (0, 2), (0, 1), (2,)), (64, 128), (32, 64, 128), (4, 8)
    ):
        chosen = config(kernel, described, (rows, columns), warps)
        assert not mixed(kernel, chosen), chosen


def test_renewed_operands_are_right() -> None:
    torch.manual_seed(0)
    q, k, v = (((torch.randn(n, 64) + 0.25) / 8).half() for n in (70, 90, 90))
    kernel = helion.kernel(projected_rows).bind((q, k, v))
    chosen = config(kernel, ())
    assert renewed(kernel, chosen)
    rows = (q.double() @ k[:64].double()).half().double()
    weights = torch.relu(rows @ k.double().T) * torch.where(v[0::64, 0] > 0, 2.0, 1.0).repeat_interleave(64)[:90]
    found = kernel.compile_config(chosen)(q, k, v)
    torch.testing.assert_close(found.double(), weights.half().double() @ v.double(), rtol=1e-3, atol=1e-4)
