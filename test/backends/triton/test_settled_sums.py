"""Sums of products whose left operand a loop computes: they are there before its registers get the next numbers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature
from helion.runtime.bound import BoundKernel

BF16 = torch.bfloat16


def plain(x, s, y):
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc * s[tile_n]
    return out


def scaled(x, s, y):
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k] * s[tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def added(x, s, y):
    """The product goes to the sum by an addition, and the operand is viewed behind what computes it."""
    k, m = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc += hl.dot((x[tile_k, tile_m] * s[tile_k][:, None]).t(), y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def held(x, s, y):
    """The operand is computed in front of the loop, and of another product of the loop."""
    m, k = hl.specialize(x.size(0)), hl.specialize(x.size(1))
    out = torch.empty([m, k], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        rows = x[tile_m, :] * s[None, :]
        acc = hl.zeros([tile_m, k], dtype=torch.float32)
        for tile_n in hl.tile(y.size(1)):
            scores = hl.dot(rows, y[:, tile_n])
            acc = hl.dot(torch.relu(scores).to(x.dtype), y[:, tile_n].t(), acc=acc)
        out[tile_m, :] = acc
    return out


def walked(x, s, y):
    """The operand is made of a product of tiles of rows that may be too few for the asynchronous unit."""
    k = hl.specialize(x.size(1))
    out = torch.empty([y.size(1), k], dtype=torch.float32, device=x.device)
    for tile_n in hl.tile(y.size(1)):
        columns = y[:, tile_n]
        acc = hl.zeros([tile_n, k], dtype=torch.float32)
        for tile_m in hl.tile(x.size(0)):
            rows = x[tile_m, :]
            acc = hl.dot(torch.relu(hl.dot(rows, columns)).to(x.dtype).T, rows, acc=acc)
        out[tile_n, :] = acc
    return out


def summed_too(x, s, y):
    """The loop also sums the columns of an operand that it multiplies."""
    k, m = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    sums = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_k, tile_m]
            acc = torch.addmm(acc, rows.T, y[tile_k, tile_n])
            total += rows.to(torch.float32).sum(0)
        out[tile_m, tile_n] = acc
        sums[tile_m] = total
    return out, sums


def multiplied_twice(x, s, y):
    """Only matmuls read the operands."""
    k, m = x.size()
    out = torch.empty([m, y.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)]):
        one = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        two = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            right = y[tile_k, tile_n]
            one = torch.addmm(one, x[tile_k, tile_m].T, right)
            two = torch.addmm(two, x[tile_m, tile_k], right)
        out[tile_m, tile_n] = one - two
    return out


def bound(function: Callable, size: int = 512, on: str = "sm_90") -> BoundKernel:
    arguments = tensor(size, size, dtype=BF16), tensor(size, dtype=BF16), tensor(size, size, dtype=BF16)
    return helion.kernel(function, static_shapes=True).bind(arguments, target=on)


def config(function: Callable) -> helion.Config:
    sizes = [64, 64] if function is held else [128, 128, 64]
    return helion.Config(block_sizes=sizes, num_warps=4, num_stages=3)


def waits(kernel: BoundKernel, chosen: helion.Config) -> set[str]:
    """How many products may be in flight where the code waits for some."""
    text = ptx(kernel, chosen)
    assert "wgmma.mma_async" in text
    return set(re.findall(r"wgmma\.wait_group\.sync\.aligned (\d+)", text))


def ptx(kernel: BoundKernel, chosen: helion.Config) -> str:
    full = kernel.config_spec.normalize(chosen)
    plan = kernel._analysis.code(full).plan
    function = inspect.unwrap(kernel.compile_config(full)).__globals__[plan.kernel_names[0]]
    return str(compile_offline(function, **offline_signature(plan, kernel.target)).asm["ptx"])


@pytest.mark.parametrize(("function", "count"), [(plain, 0), (scaled, 1), (added, 1), (held, 0)])
def test_sums_of_computed_operands_are_settled(function: Callable, count: int) -> None:
    size = 128 if function is held else 512
    assert bound(function, size).to_triton_code(config(function)).count("= _settled(") == count
    assert " _settled(" not in bound(function, size, "sm_80").to_triton_code(config(function))


def test_no_product_is_in_flight_when_its_operand_is_computed_again() -> None:
    assert waits(bound(scaled), config(scaled)) == {"0"}


def test_a_product_on_the_other_unit_waits_for_none() -> None:
    kernel = bound(walked, 128)
    few, enough = (helion.Config(block_sizes=[64, rows], num_warps=4, num_stages=2) for rows in (32, 64))
    assert "= _settled(" in kernel.to_triton_code(few) and "= _settled(" not in kernel.to_triton_code(enough)
    assert waits(kernel, few) == {"0"}


def test_a_load_that_is_not_multiplied_alone_is_not_overwritten() -> None:
    """Triton gives it a buffer for each stage in flight, and none for the product that still reads one."""
    kernel = bound(summed_too)
    code = kernel.to_triton_code(config(summed_too))
    (line,) = [line for line in code.splitlines() if "= _settled(" in line]
    assert line.strip() == "acc = _settled(acc)"
    assert waits(kernel, config(summed_too)) == {"0"}
    assert " _settled(" not in bound(summed_too, on="sm_80").to_triton_code(config(summed_too))
    apart = bound(multiplied_twice)
    assert " _settled(" not in apart.to_triton_code(config(multiplied_twice))
    assert waits(apart, config(multiplied_twice)) == {"0", "2"}


def test_the_last_product_of_a_step_is_waited_for() -> None:
    text = ptx(bound(summed_too), config(summed_too))
    loop = text[text.index("wgmma.mma_async") :]
    copied = loop[: loop.index("cp.async.commit_group")]
    assert copied.index("wgmma.wait_group.sync.aligned 0") < copied.index("cp.async.c")


def test_turned_products_are_settled() -> None:
    fp32 = (
        tensor(512, 512, dtype=torch.float32),
        tensor(512, dtype=torch.float32),
        tensor(512, 512, dtype=torch.float32),
    )
    kernel = helion.kernel(plain, static_shapes=True).bind(fp32, target="sm_90")
    turned = helion.Config(block_sizes=[128, 128, 32], num_warps=4, num_stages=3, swap_ab=True)
    assert "= _settled(" in kernel.to_triton_code(turned)
    assert waits(kernel, turned) == {"0"}


def test_settled_sums_are_right() -> None:
    torch.manual_seed(0)
    x, s, y = (torch.randn(shape).to(BF16) for shape in ((70, 70), (70,), (70, 70)))
    left = (x.T * s).float()
    found = helion.kernel(added, config=helion.Config(block_sizes=[64, 64, 32], num_warps=4))(x, s, y)
    torch.testing.assert_close(found, left @ y.float(), rtol=1e-2, atol=1e-1)


def summed_around(x, s, y):
    """A loop of few steps within the one whose load it multiplies."""
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for t, u in hl.tile(out.size()):
        acc, total = hl.zeros([t, u]), hl.zeros([t])
        for c in hl.tile(x.size(1)):
            a = x[t, c]
            for _ in range(2):
                acc = hl.dot(a, y[c, u], acc=acc)
            total += a.to(torch.float32).sum(1)
        out[t, u] = acc + total[:, None]
    return out


def computed_around(x, s, y):
    """The same with an operand that each step computes."""
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for t, u in hl.tile(out.size()):
        acc = hl.zeros([t, u])
        for c in hl.tile(x.size(1)):
            a = torch.relu(x[t, c])
            for _ in range(2):
                acc = hl.dot(a, y[c, u], acc=acc)
        out[t, u] = acc
    return out


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("function", [summed_around, computed_around])
def test_loops_within_a_step_are_settled(function: Callable, static: bool) -> None:
    """A static one becomes a part of the step, whose load Triton then prefetches."""
    kernel = bound(function)
    chosen = helion.Config(**{**config(plain), "static_ranges": [static]})
    assert kernel.to_triton_code(chosen).count("acc = _settled(acc)") == 1
    assert waits(kernel, chosen) == {"0"}


def multiplied_by_few(x, s, y):
    """The load is multiplied by many columns, and again by eight, for which the asynchronous unit is too wide."""
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    few = torch.empty([x.size(0), 8], dtype=torch.float32, device=x.device)
    for t, u in hl.tile(out.size()):
        acc, sums = hl.zeros([t, u]), hl.zeros([t, 8])
        for c in hl.tile(x.size(1)):
            a = x[t, c]
            acc = hl.dot(a, y[c, u], acc=acc)
            sums = hl.dot(a, hl.full([c, 8], 1.0, dtype=x.dtype), acc=sums)
        out[t, u] = acc
        few[t, :] = sums
    return out, few


def test_a_product_of_few_columns_is_another_reader_of_a_load() -> None:
    kernel = bound(multiplied_by_few)
    chosen = config(plain)
    assert kernel.to_triton_code(chosen).count("acc = _settled(acc)") == 1
    assert waits(kernel, chosen) == {"0"}
    text = ptx(kernel, chosen)
    assert "wgmma.mma_async" in text and "mma.sync" in text
