"""Bytes that a loop converts to floats for a matmul, without conversion instructions."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

import numpy as np
import pytest
import torch

import helion
import helion.language as hl
from helion.backends.triton.codegen.ops import bytes as ops_bytes
from helion.runtime.bound import BoundKernel

CONFIG = helion.Config(block_sizes=[32, 64, 32], num_warps=4, num_stages=2)


def right(x, w, scale):
    m, k = x.size()
    out = torch.empty([m, w.size(1)], dtype=torch.float32, device=x.device)
    for rows, cols in hl.tile([m, w.size(1)]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[rows, inner], w[inner, cols].to(x.dtype))
        out[rows, cols] = acc * scale[cols]
    return out


def left(x, w, scale):
    k, m = x.size()
    out = torch.empty([w.size(0), m], dtype=torch.float32, device=x.device)
    for rows, cols in hl.tile([w.size(0), m]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = torch.addmm(acc, w[rows, inner].to(x.dtype), x[inner, cols])
        out[rows, cols] = acc * scale[rows, None]
    return out


def scaled(x, w, scale):
    m, k = x.size()
    out = torch.empty([m, w.size(1)], dtype=torch.float32, device=x.device)
    for rows, cols in hl.tile([m, w.size(1)]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            weights = w[inner, cols].to(torch.float32) * scale[cols]
            acc = torch.addmm(acc, x[rows, inner], weights.to(x.dtype))
        out[rows, cols] = acc
    return out


def converted_once(x, w, scale):
    """Its matmul has no loop, and its other bytes no matmul."""
    m = x.size(0)
    out = torch.empty([m, w.size(1)], dtype=torch.float32, device=x.device)
    for rows, cols in hl.tile([m, w.size(1)]):
        out[rows, cols] = hl.dot(x[rows, :], w[:, cols].to(x.dtype)) * scale[cols]
    return out


def arguments(kernel: Callable, source: torch.dtype, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    x = torch.randn(33, 63).to(dtype)
    w = torch.arange(256).to(torch.uint8)[torch.randperm(256)].repeat(40)[: 63 * 100].view(63, 100).view(source)
    operands = (x.t().contiguous(), w.t().contiguous()) if kernel is left else (x, w)
    return *operands, torch.full([100], 0.5)


def bound(kernel: Callable, source: torch.dtype, dtype: torch.dtype, target: str = "sm_90") -> BoundKernel:
    return helion.kernel(kernel, backend="triton").bind(arguments(kernel, source, dtype), target=target)


def used(of: BoundKernel) -> set[str]:
    return set(re.findall(r"= (_u?int8_to_\w+)\(", of.to_triton_code(CONFIG)))


@pytest.mark.parametrize("source", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("kernel", [right, left, scaled])
def test_results_are_exact(kernel: Callable, dtype: torch.dtype, source: torch.dtype) -> None:
    of = bound(kernel, source, dtype)
    expected = ops_bytes.FUNCTIONS.get((source, torch.float32 if kernel is scaled else dtype))
    assert used(of) == {expected} - {None}
    args = arguments(kernel, source, dtype)
    x, w, _ = (each.double() for each in args)
    actual = of.compile_config(CONFIG)(*args).double()
    torch.testing.assert_close(actual, (w @ x if kernel is left else x @ w) * 0.5, rtol=1e-5, atol=1e-2)


def test_other_bytes_are_converted_by_instructions() -> None:
    once = bound(converted_once, torch.int8, torch.float16)
    assert "_int8_to" not in once.to_triton_code(helion.Config(block_sizes=[32, 64]))
    assert not used(bound(right, torch.int8, torch.bfloat16))  # Triton permutes these itself
    assert not used(bound(right, torch.int8, torch.float16, "gfx942"))


def test_uint8_is_converted_as_int8_is_only_where_that_is_fast() -> None:
    assert used(bound(right, torch.uint8, torch.bfloat16)) == {"_uint8_to_bf16"}
    assert not used(bound(right, torch.uint8, torch.bfloat16, "sm_80"))
    assert used(bound(right, torch.uint8, torch.float16, "sm_80")) == {"_uint8_to_fp16"}


@pytest.mark.parametrize("text", ops_bytes.PTX, ids=[ops_bytes.FUNCTIONS[pair] for pair in ops_bytes.PTX.values()])
def test_the_assembly_converts_every_byte(text: str) -> None:
    source, to = ops_bytes.PTX[text]
    every = torch.arange(256).to(torch.uint8)
    words = [struct.unpack("<I", bytes(every[at : at + 4].tolist()))[0] for at in range(0, 256, 4)]
    found = np.array([number for word in words for number in _run(text, word, to)])
    np.testing.assert_array_equal(found, every.view(source).double().numpy())


def _run(text: str, word: int, to: torch.dtype) -> list[float]:
    """Return the numbers that the assembly makes of a register of four bytes."""
    outputs = to.itemsize
    registers = {f"${outputs}": word}

    def value(name: str) -> int:
        if name.startswith("0f"):
            return int(name[2:], 16)
        return int(name, 16) if name.startswith("0x") else registers[name]

    for line in text.strip("{ }").split(";"):
        op, _, rest = line.strip().partition(" ")
        names = [name.strip() for name in rest.split(",")]
        if op in ("", ".reg"):
            continue
        first, *more = names
        given = [value(name) for name in more]
        registers[first] = _INSTRUCTIONS[op](*given)
    form = "<ee" if to is torch.float16 else "<f"
    words = [registers[f"${at}"] for at in range(outputs)]
    return [number for each in words for number in struct.unpack(form, struct.pack("<I", each))]


def _permuted(a: int, b: int, selector: int) -> int:
    pool = struct.pack("<II", a, b)
    return int(struct.unpack("<I", bytes(pool[selector >> 4 * at & 7] for at in range(4)))[0])


def _difference(dtype: type, count: int) -> Callable[[int, int], int]:
    def less(a: int, b: int) -> int:
        first, second = (np.frombuffer(struct.pack("<I", each), dtype, count) for each in (a, b))
        return int(np.frombuffer((first - second).tobytes(), np.uint32)[0])

    return less


_INSTRUCTIONS: dict[str, Callable[..., int]] = {
    "xor.b32": lambda a, b: a ^ b,
    "mov.b32": lambda a: a,
    "prmt.b32": _permuted,
    "sub.f16x2": _difference(np.float16, 2),
    "sub.f32": _difference(np.float32, 1),
}
