"""Memory in interpreted kernels: masks, descriptors, block pointers, atomics and out-of-bounds accesses."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from helion.backends.triton.execute.interpreter import interpret

F32, BF16, F16, I32 = torch.float32, torch.bfloat16, torch.float16, torch.int32


def randn(*shape: int, dtype: torch.dtype = F32, seed: int = 0, mean: float = 0.5) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + mean).to(dtype)


@triton.jit
def copy_kernel(x, out, rows, columns, stride_r, stride_c, OTHER: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    mask = (r < rows) & (c < columns)
    value = tl.load(
        x + r * stride_r + c * stride_c, mask=mask, other=OTHER, cache_modifier=".cg", eviction_policy="evict_last"
    )
    tl.store(out + r * C + c, value)


@pytest.mark.parametrize(
    "dtype", [F32, BF16, F16, torch.float8_e4m3fn, torch.int8, torch.uint8, torch.int64, torch.bool]
)
def test_masked_load_of_strided_tensors(dtype: torch.dtype) -> None:
    base = (randn(20, 30) * 4).to(dtype) if dtype != torch.bool else randn(20, 30) > 0.5
    x = base[3:10, 1:29:3].T  # (10, 7)
    other = {torch.bool: 1, torch.float8_e4m3fn: 2.0}.get(dtype, 3)
    out = torch.empty(16, 8, dtype=dtype)
    interpret(copy_kernel, (1,), (x, out, 10, 7, x.stride(0), x.stride(1)), {"OTHER": other, "R": 16, "C": 8})
    expected = torch.full((16, 8), other, dtype=F32).to(dtype)
    expected[:10, :7] = x
    assert torch.equal(out.float(), expected.float())


@triton.jit
def descriptor_kernel(x, out, rows, columns, stride, R: tl.constexpr, C: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [stride, 1], [R, C])
    target = tl.make_tensor_descriptor(out, shape=[rows, columns], strides=[stride, 1], block_shape=[R, C])
    for r in range(0, rows, R):
        for c in range(0, columns, C):
            tl.store_tensor_descriptor(target, [r, c], source.load([r, c]) * 2)


@triton.jit
def host_descriptor_kernel(source, target, R: tl.constexpr, C: tl.constexpr):
    row, column = tl.program_id(0) * R, tl.program_id(1) * C
    target.store([row, column], source.load([row, column]) + 1)


def test_tensor_descriptors() -> None:
    x, out = randn(21, 40, dtype=BF16), torch.zeros(21, 40, dtype=BF16)
    interpret(descriptor_kernel, (1,), (x[:, :24], out[:, :24], 21, 24, 40), {"R": 8, "C": 16})
    assert torch.equal(out[:, :24], x[:, :24] * 2)
    assert (out[:, 24:] == 0).all()
    with pytest.raises(ValueError, match=r"stores whole groups of 16 bytes, and .* a row of 35 elements of 2 bytes"):
        interpret(descriptor_kernel, (1,), (x[:, :35], out[:, :35], 21, 35, 40), {"R": 8, "C": 16})
    y = torch.zeros(21, 40)
    source, target = (TensorDescriptor.from_tensor(t, [8, 16]) for t in (x.float(), y))
    interpret(host_descriptor_kernel, (3, 3), (source, target), {"R": 8, "C": 16})
    assert torch.equal(y, x.float() + 1)
    with pytest.raises(ValueError, match=r"'descriptor_kernel', program \(0, 0, 0\): a tensor descriptor needs outer"):
        interpret(descriptor_kernel, (1,), (x, out, 21, 35, 35), {"R": 8, "C": 16})


@triton.jit
def block_pointer_kernel(x, out, rows, columns, R: tl.constexpr, C: tl.constexpr):
    source = tl.make_block_ptr(x, (rows, columns), (columns, 1), (0, 0), (R, C), (1, 0))
    target = tl.make_block_ptr(out, (rows, columns), (columns, 1), (0, 0), (R, C), (1, 0))
    for _ in range(0, columns, C):
        value = tl.load(source, boundary_check=(0, 1), padding_option="zero")
        tl.store(target, value + 1, boundary_check=(0, 1))
        source = tl.advance(source, (0, C))
        target = tl.advance(target, (0, C))


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_block_pointers() -> None:
    x, out = randn(5, 37), torch.zeros(5, 37)

    def run() -> None:
        interpret(block_pointer_kernel, (1,), (x, out, 5, 37), {"R": 8, "C": 16})

    if tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 9):
        with pytest.raises(NotImplementedError, match="Block pointers have been removed"):
            run()
    else:
        run()
        assert torch.equal(out, x + 1)


@triton.jit
def atomic_kernel(index, value, target, old, n, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    where = tl.load(index + i, mask=i < n, other=0)
    before = F(target + where, tl.load(value + i, mask=i < n, other=0), i < n)
    tl.store(old + i, before, mask=i < n)


@triton.jit
def atomic_add(p, v, mask):
    return tl.atomic_add(p, v, mask=mask, sem="relaxed")


@triton.jit
def atomic_max(p, v, mask):
    return tl.atomic_max(p, v, mask=mask)


@triton.jit
def atomic_min(p, v, mask):
    return tl.atomic_min(p, v, mask=mask)


@triton.jit
def atomic_and(p, v, mask):
    return tl.atomic_and(p, v, mask=mask)


@triton.jit
def atomic_or(p, v, mask):
    return tl.atomic_or(p, v, mask=mask)


@triton.jit
def atomic_xor(p, v, mask):
    return tl.atomic_xor(p, v, mask=mask)


@triton.jit
def atomic_xchg(p, v, mask):
    return tl.atomic_xchg(p, v, mask=mask)


ATOMICS = {
    "add": (atomic_add, lambda a, b: a + b, [F32, torch.float64, BF16, F16, I32, torch.int64, torch.uint32]),
    "max": (atomic_max, max, [F32, torch.float64, I32, torch.int64, torch.uint32, torch.uint64]),
    "min": (atomic_min, min, [F32, I32, torch.uint32]),
    "and": (atomic_and, lambda a, b: a & b, [I32, torch.int64]),
    "or": (atomic_or, lambda a, b: a | b, [I32, torch.uint32]),
    "xor": (atomic_xor, lambda a, b: a ^ b, [I32]),
    "xchg": (atomic_xchg, lambda a, b: b, [F32, I32, torch.int64]),
}


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, (_, _, dtypes) in ATOMICS.items() for d in dtypes], ids=str)
def test_atomics(name: str, dtype: torch.dtype) -> None:
    function, reference, _ = ATOMICS[name]
    n, generator = 50, torch.Generator().manual_seed(9)
    index = torch.randint(0, 6, (n,), generator=generator, dtype=I32)
    if dtype.is_floating_point:
        value, target = (torch.randn(n, generator=generator) * 3).to(dtype), randn(6, seed=10).to(dtype)
    else:
        value, target = (torch.randint(0, 2**31 - 1, (k,), generator=generator).to(dtype) for k in (n, 6))
        if torch.iinfo(dtype).min < 0:
            value = torch.where(torch.arange(n) % 3 == 0, -value, value)
        elif dtype == torch.uint32:
            value[0], target[5] = 2**32 - 5, 2**31 + 3
    expected, expected_old = target.tolist(), []
    for i, v in zip(index.tolist(), value.tolist(), strict=True):
        expected_old.append(expected[i])
        after = torch.tensor(reference(expected[i], v), dtype=torch.float64 if dtype.is_floating_point else None)
        expected[i] = wrapped(int(after), dtype) if not dtype.is_floating_point else after.to(dtype).item()
    old = torch.empty(n, dtype=dtype)
    interpret(atomic_kernel, (1,), (index, value, target, old, n), {"F": function, "BLOCK": 64})
    assert target.tolist() == expected
    if name in ("max", "min") and dtype.is_floating_point:
        return  # Triton makes two integer atomics of it, of the negative and of the other lanes
    assert old.tolist() == expected_old


def wrapped(value: int, dtype: torch.dtype) -> int:
    low = torch.iinfo(dtype).min
    return (value - low) % 2 ** (8 * dtype.itemsize) + low


@triton.jit
def lock_kernel(lock, total, order):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    before = tl.load(total)
    tl.store(total, before + 1)
    tl.store(order + tl.program_id(0), before)
    tl.atomic_xchg(lock, 0)


def test_compare_and_swap() -> None:
    lock, total, order = torch.zeros(1, dtype=I32), torch.zeros(1), torch.empty(5)
    interpret(lock_kernel, (5,), (lock, total, order), {})
    assert (lock.item(), total.item(), order.tolist()) == (0, 5.0, [0.0, 1.0, 2.0, 3.0, 4.0])


@triton.jit
def raw_pointer_kernel(addresses, out, N: tl.constexpr):
    source = tl.load(addresses).to(tl.pointer_type(tl.float32))
    tl.store(out + tl.arange(0, N), tl.load(source + tl.arange(0, N)))


def test_pointers_made_from_integers_are_not_checked() -> None:
    x, out = randn(8), torch.empty(8)
    interpret(raw_pointer_kernel, (1,), (torch.tensor([x.data_ptr()]), out), {"N": 8})
    assert torch.equal(out, x)


@triton.jit
def shifted_copy_kernel(x, out, shift, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i + shift))


def test_out_of_bounds_access_is_an_error() -> None:
    whole, out = randn(48), torch.empty(32)
    part = whole[8:40]
    interpret(shifted_copy_kernel, (1,), (part, out, 8), {"BLOCK": 32})  # outside the view, inside its storage
    assert torch.equal(out, whole[16:])
    message = r"kernel 'shifted_copy_kernel', program \(0, 0, 0\): out-of-bounds access: reads 4 bytes at address"
    with pytest.raises(IndexError, match=rf"{message} 0x[0-9a-f]+, 0 bytes past the end of argument 'x' \(192 bytes\)"):
        interpret(shifted_copy_kernel, (1,), (part, out, 16), {"BLOCK": 32})
    with pytest.raises(IndexError, match=rf"{message} .* 400 bytes before argument 'x' and 'out' .*Mask the access"):
        interpret(shifted_copy_kernel, (1,), (whole, whole, -100), {"BLOCK": 32})
    small = torch.full((8,), 7.0)
    with pytest.raises(IndexError, match=r"writes 4 bytes .* past the end of argument 'out'"):
        interpret(shifted_copy_kernel, (1,), (whole, small, 0), {"BLOCK": 32})
    assert (small == 7).all()  # nothing was written
