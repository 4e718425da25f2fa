"""Attention that rounds p @ v to the type of its operands before it is added, as ``acc * alpha + p @ v`` does."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from backends.cute.edited_roles import edited, without

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.roles.attention import grammar as a
from helion.backends.cute.roles.attention.programs import attention_program
from helion.backends.cute.shapes import shape_of_plan
from helion.backends.cute.verify.attention.verify import verify_attention
from helion.backends.cute.verify.state import Fault


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    heads, m, dims = q.shape
    dims = hl.specialize(dims)
    out = torch.empty_like(q)
    for tile_h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(k.size(1)):
            scores = hl.dot(q[tile_h.begin, tile_m, :], k[tile_h.begin, tile_n, :].T) * dims**-0.5
            raised = torch.maximum(highest, scores.amax(-1))
            weights = torch.exp(scores - raised[:, None])
            alpha = torch.exp(highest - raised)
            total = total * alpha + weights.sum(-1)
            acc = acc * alpha[:, None] + weights.to(v.dtype) @ v[tile_h.begin, tile_n, :]
            highest = raised
        out[tile_h.begin, tile_m, :] = (acc / total[:, None]).to(out.dtype)
    return out


def linear_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    heads, m, dims = q.shape
    dims = hl.specialize(dims)
    out = torch.empty_like(v)
    for tile_h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(0, tile_m.end):
            weights = q[tile_h.begin, tile_m, :] @ k[tile_h.begin, tile_n, :].T
            weights = torch.where(tile_m.index[:, None] >= tile_n.index[None, :], weights, 0.0)
            acc = torch.addmm(acc, weights, v[tile_h.begin, tile_n, :])
        out[tile_h.begin, tile_m, :] = acc.to(out.dtype)
    return out


@functools.cache
def bound_for(dtype: torch.dtype, dims: int, gpu: str = "h100", backend: str = "cute") -> helion.BoundKernel:
    tensors = tuple(torch.empty(16, 1000, dims, dtype=dtype, device="meta") for _ in range(3))
    return helion.kernel(backend=backend)(attend).bind(tensors, target=gpu)


def attention_plan(dtype: torch.dtype = torch.bfloat16, dims: int = 64) -> Any:
    bound = bound_for(dtype, dims)
    return bound.plan(bound.default_config())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dims", [32, 128])
def test_close_to_fp64(dtype: torch.dtype, dims: int) -> None:
    torch.manual_seed(dims)
    q, k, v = (torch.randn(2, rows, dims).to(dtype) + 0.1 for rows in (63, 150, 150))
    wanted = torch.softmax(q.double() @ k.double().mT * dims**-0.5, -1) @ v.double()
    found = helion.kernel(backend="cute")(attend)(q, k, v)
    assert (found.double() - wanted).norm() < 8e-3 * wanted.norm()


def test_weights_that_are_rounded_already() -> None:
    """Take weights that have the type of v as they are, since q @ k.T is rounded to it."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 150, 64).bfloat16() + 0.1 for _ in range(3))
    wanted = (q.double() @ k.double().mT).tril() @ v.double()
    found = helion.kernel(backend="cute")(linear_attention)(q, k, v)
    assert (found.double() - wanted).norm() < 8e-3 * wanted.norm()


@pytest.mark.parametrize(
    ("dtype", "instruction"), [(torch.bfloat16, "cvt.rn.bf16x2.f32 p"), (torch.float16, "cvt.rn.f16x2.f32 p")]
)
def test_products_are_rounded_in_pairs(dtype: torch.dtype, instruction: str) -> None:
    plan = attention_plan(dtype)
    text = shape_of_plan(plan).kernel(plan).source
    function = text.partition("def add_product(output, product):")[2].partition("\ndef ")[0]
    assert instruction in function


def test_each_product_is_added_once() -> None:
    program = attention_program(attention_plan().attention)
    verify_attention(program)
    with pytest.raises(Fault, match="without the product|overwritten"):
        verify_attention(edited(program, "attend", without(a.AddProduct())))


def test_wide_heads_have_shorter_blocks() -> None:
    """Accumulator and product of 128 dimensions take 128 registers, so that blocks of keys are shorter."""
    assert attention_plan(dims=128).attention.keys < attention_plan(dims=64).attention.keys


def test_products_in_float16_have_the_true_maximum() -> None:
    """Weights relative to a smaller maximum are up to 256 times larger, so that rounded products would overflow."""
    bound = bound_for(torch.float16, 128)
    assert not any(bound.plan(seed.config).attention.lazy for seed in bound.seeds)
    assert attention_plan(torch.bfloat16, 128).attention.lazy
    config = helion.Config(**{**bound.default_config(), "wgmma_lazy_rescale": True})
    with pytest.raises(exc.BaseError, match="wgmma_lazy_rescale"):
        bound.plan(config)


def test_tcgen05_refuses() -> None:
    with pytest.raises(exc.CuteUnsupported, match=r"p @ v is rounded to bfloat16 before it is added.* not for tcgen05"):
        bound_for(torch.bfloat16, 64, "b200")


def test_no_binary_spills() -> None:
    """Compile with accumulator, product, scores and weights in registers."""
    bound = bound_for(torch.bfloat16, 128)
    assert bound.resources(bound.default_config()).spill_bytes == 0
