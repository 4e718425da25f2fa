"""Stack tensors: many tensors by their addresses, loaded and stored as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import Config, exc


def addresses(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64)


@helion.kernel
def gather(ptrs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    out = torch.empty([ptrs.size(0), like.size(0)], dtype=like.dtype, device=like.device)
    for tile in hl.tile(like.size(0)):
        out[:, tile] = hl.stacktensor_like(like, ptrs[:])[tile]
    return out


@helion.kernel
def gather_rows(ptrs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Tiles of pointers of rank 2, columns of a transposed tensor, one row of each."""
    out = torch.empty([*ptrs.size(), *like.size()], dtype=like.dtype, device=like.device)
    first = torch.empty([*ptrs.size(), like.size(1)], dtype=like.dtype, device=like.device)
    for a, b in hl.tile(ptrs.size()):
        stack = hl.stacktensor_like(like, ptrs[a, b])
        for tile in hl.tile(like.size(0)):
            out[a, b, tile, :] = stack[tile, :] + 1
        first[a, b, :] = stack[0, :]
    return out, first


@helion.kernel
def scatter(ptrs: torch.Tensor, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(1)):
        stack = hl.stacktensor_like(like, ptrs[:])
        stack[tile] = x[:, tile] * 2
    return x


@helion.kernel
def broadcast(ptrs: torch.Tensor, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    for lanes, tile in hl.tile([ptrs.size(0), x.size(0)]):
        stack = hl.stacktensor_like(like, ptrs[lanes])
        stack[tile] = x[tile][None, :]
    return x


@helion.kernel
def accumulate(ptrs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A reduction over the tensors, tile by tile of pointers, with a mask of the user's."""
    out = torch.zeros_like(like)
    for tile in hl.tile(like.size(0)):
        acc = hl.zeros([tile], dtype=torch.float32)
        for lanes in hl.tile(ptrs.size(0)):
            stack = hl.stacktensor_like(like, ptrs[lanes])
            some = hl.load(stack, [tile], extra_mask=(lanes.index % 2 == 0)[:, None])
            acc += some.to(torch.float32).sum(0)
        out[tile] = acc.to(out.dtype)
    return out


@helion.kernel
def masked_store(ptrs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(like.size(0)):
        stack = hl.stacktensor_like(like, ptrs[:])
        hl.store(stack, [tile], 7.0, extra_mask=(tile.index > 2)[None, :])
    return like


DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn)


def ways(kernel: helion.Kernel, args: tuple[Any, ...], sizes: list[int]) -> list[Any]:
    bound = kernel.bind(args)
    return [bound.run_ref, bound.compile_config(Config(block_sizes=sizes))]


def same(found: torch.Tensor, right: torch.Tensor) -> None:
    torch.testing.assert_close(found.to(torch.float32), right.to(torch.float32), rtol=0, atol=0)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count, size", [(4, 6), (3, 17), (5, 1)])
def test_gather(dtype: torch.dtype, static: bool, count: int, size: int) -> None:
    tensors = [(torch.randn(size) * 3 + 1).to(dtype) for _ in range(count)]
    kernel = helion.kernel(gather.fn, static_shapes=static)
    for run in ways(kernel, (addresses(tensors), tensors[0]), [4]):
        same(run(addresses(tensors), tensors[0]), torch.stack([t.to(torch.float32) for t in tensors]))


@pytest.mark.parametrize("static", [True, False])
def test_pointers_of_two_dimensions_and_strides(static: bool) -> None:
    tensors = [torch.randn(5, 9).T for _ in range(6)]
    ptrs = addresses(tensors).view(2, 3)
    kernel = helion.kernel(gather_rows.fn, static_shapes=static)
    for run in ways(kernel, (ptrs, tensors[0]), [2, 2, 4]):
        out, first = run(ptrs, tensors[0])
        stacked = torch.stack(tensors).view(2, 3, 9, 5)
        assert torch.equal(out, stacked + 1) and torch.equal(first, stacked[:, :, 0])


@pytest.mark.parametrize("static", [True, False])
def test_stores(static: bool) -> None:
    x = torch.randn(3, 13)
    for at, kernel in enumerate((scatter, broadcast)):
        given = x if kernel is scatter else x[0].clone()
        kernel = helion.kernel(kernel.fn, static_shapes=static)
        sizes = [4] if not at else [2, 4]
        for run in range(2):
            tensors = [torch.zeros(13) for _ in range(3)]
            args = (addresses(tensors), given, tensors[0])
            ways(kernel, args, sizes)[run](*args)
            right = x * 2 if not at else x[:1].expand(3, 13)
            assert torch.equal(torch.stack(tensors), right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masks_and_reductions(dtype: torch.dtype) -> None:
    tensors = [(torch.randn(11) + 5).to(dtype) for _ in range(7)]
    args = (addresses(tensors), tensors[0])
    right = torch.stack(tensors)[::2].to(torch.float32).sum(0).to(dtype)
    for run in ways(accumulate, args, [4, 2]):
        torch.testing.assert_close(run(*args), right)
    for run in range(2):
        tensors = [torch.zeros(11) for _ in range(3)]
        args = (addresses(tensors), tensors[0])
        ways(masked_store, args, [4])[run](*args)
        assert all(t.tolist() == [0.0] * 3 + [7.0] * 8 for t in tensors)


def test_the_tuple() -> None:
    @helion.kernel
    def kernel(ptrs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        out = torch.empty([ptrs.size(0), like.size(0)])
        for tile in hl.tile(ptrs.size(0)):
            stack = hl.stacktensor_like(like, ptrs[tile])
            assert_rank = len(stack.shape)
            out[tile, :] = stack[:].to(torch.float32) * assert_rank * stack.dtype.itemsize
        return out

    tensors = [torch.randn(4) for _ in range(3)]
    for run in ways(kernel, (addresses(tensors), tensors[0]), [2]):
        assert torch.equal(run(addresses(tensors), tensors[0]), torch.stack(tensors) * 8)
    stack = hl.StackTensor(tensors[0], addresses(tensors))
    assert stack._fields == ("tensor_like", "dev_ptrs") and stack.tensor_like is tensors[0]
    assert tuple(stack.shape) == (3, 4) and stack.dtype == torch.float32 and stack.device.type == "cpu"
    assert stack.new_empty(2).shape == (2,)


# --- refusals -----------------------------------------------------------------------------------------------------------


@helion.kernel
def on_host(ptrs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    stack = hl.stacktensor_like(like, ptrs)
    for tile in hl.tile(like.size(0)):
        like[tile] = stack[tile].sum(0)
    return like


@helion.kernel
def pointers_on_host(ptrs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(like.size(0)):
        like[tile] = hl.stacktensor_like(like, ptrs)[tile].sum(0)
    return like


@helion.kernel
def example_on_device(ptrs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(like.size(0)):
        like[tile] = hl.stacktensor_like(like[tile], ptrs[:])[tile].sum(0)
    return like


@helion.kernel
def atomic(ptrs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(like.size(0)):
        hl.atomic_add(hl.stacktensor_like(like, ptrs[:]), [tile], 1.0)
    return like


@helion.kernel
def wrong_rank(ptrs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(like.size(0)):
        like[tile] = hl.stacktensor_like(like, ptrs[:])[tile, tile].sum(0)
    return like


@pytest.mark.parametrize(
    "kernel, error, text",
    [
        (on_host, exc.StackTensorcOnHost, "in host code"),
        (pointers_on_host, exc.StackTensorDevPtrOnHost, r"host tensor 'ptrs'.*ptrs\[tile\]"),
        (example_on_device, exc.StackTensorExampleOnDevice, "did you forget"),
        (atomic, exc.InvalidAPIUsage, "does not take stack tensors"),
        (wrong_rank, exc.RankMismatch, "Expected 1 indices for 'like'"),
    ],
    ids=lambda v: getattr(v, "name", None),
)
def test_refusals(kernel: helion.Kernel, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kernel.bind((torch.zeros(4, dtype=torch.uint64), torch.zeros(8)))


def test_pointers_are_unsigned_and_calls_stand_in_kernels() -> None:
    with pytest.raises(exc.StackTensorDevPtrDtype, match=r"must be torch\.uint64, got torch\.int64"):
        gather.bind((torch.zeros(4, dtype=torch.int64), torch.zeros(8)))
    with pytest.raises(exc.NotInsideKernel):
        hl.stacktensor_like(torch.zeros(4), torch.zeros(4, dtype=torch.uint64))


@helion.kernel
def two_loops(ptrs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(like)
    for tile in hl.tile(like.size(0)):
        hl.stacktensor_like(like, ptrs[:])[tile] = like[tile][None, :] + 1
    for tile in hl.tile(like.size(0)):
        out[tile] = like[tile]
    return out


@helion.kernel
def in_phases(ptrs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(like)
    for tile in hl.tile(like.size(0)):
        hl.stacktensor_like(like, ptrs[:])[tile] = like[tile][None, :] + 1
    hl.barrier()
    for tile in hl.tile(like.size(0)):
        out[tile] = hl.stacktensor_like(like, ptrs[:])[tile].sum(0)
    return out


def test_what_addresses_lead_to_may_be_any_tensor() -> None:
    x = torch.randn(9)
    others = [torch.zeros(9) for _ in range(2)]
    with pytest.raises(exc.LoopDependencyError):
        two_loops.bind((addresses(others), x))
    assert torch.equal(in_phases(addresses(others), x), (x + 1) * 2)
    code = gather.bind((addresses(others), x)).to_code()
    assert "tl.debug_barrier()" in code.partition("tl.pointer_type")[2]  # before the store, which may meet the load


def test_it_compiles_for_a_gpu() -> None:
    bound = gather_rows.bind((torch.zeros(2, 3, dtype=torch.uint64), torch.zeros(9, 5)), target="sm_90")
    assert bound.resources().fits
