"""Kernels written for torch's symmetric memory: remote tensors, and synchronization through signal pads."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed._symmetric_memory  # declares get_remote_tensors

import helion
import helion.distributed as hd
import helion.language as hl
from helion import exc
from helion.runtime.triton.dist_utils import symm_mem_sync
from helion.runtime.triton.helpers import triton_wait_signal

ROWS, COLUMNS, PROGRAMS = 40, 1100, 32


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[8], reduction_loops=[512]))
def one_shot(
    x: torch.Tensor,
    buffer: torch.Tensor,
    pads: torch.Tensor,
    weight: torch.Tensor,
    GROUP: hl.ProcessGroupName,
    RANK: hl.constexpr,
    WORLD_SIZE: hl.constexpr,
) -> torch.Tensor:
    """All-reduce and normalization, with pulls from the peers between two synchronizations."""
    out = torch.empty_like(x)
    buffers = torch.ops.symm_mem.get_remote_tensors(buffer, GROUP)
    for tile in hl.tile(x.size(0)):
        buffer[tile, :] = x[tile, :]
        hl.triton_kernel(symm_mem_sync, args=(pads, None, RANK, WORLD_SIZE, True, True), output_like=None)
        acc = hl.zeros([tile, x.size(1)], dtype=torch.float32)
        for remote in buffers:
            acc = acc + remote[tile, :].to(torch.float32)
        out[tile, :] = (acc * torch.rsqrt(torch.mean(acc * acc, dim=-1, keepdim=True)) * weight[None, :]).to(x.dtype)
        hl.triton_kernel(symm_mem_sync, args=(pads, None, RANK, WORLD_SIZE, True, False), output_like=None)
    return out


def _pads(ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's signal pad, and the addresses of all ranks' pads."""
    pad = torch.zeros(PROGRAMS * ranks, dtype=torch.int32)
    every = torch.ops.symm_mem.get_remote_tensors(pad, "0")
    return pad, torch.tensor([each.data_ptr() for each in every], dtype=torch.int64)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_pulls_between_synchronizations(ranks: int) -> None:
    torch.manual_seed(0)
    inputs = [torch.randn(ROWS, COLUMNS) + 0.5 for _ in range(ranks)]
    weight = torch.randn(COLUMNS) + 1

    def on_rank() -> list[torch.Tensor]:
        pad, pads = _pads(ranks)
        buffer, me = torch.empty(ROWS, COLUMNS), hd.rank()
        results = [one_shot(inputs[me] * scale, buffer, pads, weight, "0", me, ranks) for scale in (1.0, -3.0)]
        assert not pad.any()
        return results

    total = sum(x.double() for x in inputs)
    expected = torch.nn.functional.rms_norm(total, [COLUMNS], weight.double(), 0.0)
    for first, second in hd.run(on_rank, ranks, seed=ranks):
        torch.testing.assert_close(first.double(), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(second.double(), -expected, rtol=1e-4, atol=1e-4)


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[16, 16, 16]))
def reduce_scatter(
    x: torch.Tensor,
    w: torch.Tensor,
    buffer: torch.Tensor,
    pads: torch.Tensor,
    RANK: hl.constexpr,
    WORLD_SIZE: hl.constexpr,
    GROUP: hl.ProcessGroupName,
) -> torch.Tensor:
    """Matmul and reduce-scatter: programs in this rank's rows add what all ranks have computed."""
    rows, columns = x.size(0), w.size(1)
    part = rows // WORLD_SIZE
    out = torch.empty([part, columns], dtype=x.dtype, device=x.device)
    buffers = torch.ops.symm_mem.get_remote_tensors(buffer, GROUP)
    first = RANK * part
    for tile_m, tile_n in hl.tile([rows, columns]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        buffer[tile_m, tile_n] = acc.to(x.dtype)
        hl.triton_kernel(symm_mem_sync, args=(pads, None, RANK, WORLD_SIZE, True, True), output_like=None)
        if tile_m.begin >= first and tile_m.begin < first + part:
            total = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for remote in buffers:
                total = total + remote[tile_m, tile_n].to(torch.float32)
            out[tile_m.index - first, tile_n] = total.to(x.dtype)
        hl.triton_kernel(symm_mem_sync, args=(pads, None, RANK, WORLD_SIZE, True, False), output_like=None)
    return out


@pytest.mark.parametrize("ranks", [3, *(pytest.param(n, marks=pytest.mark.prove) for n in (2, 4, 8))])
def test_reduce_scatter_with_pulls(ranks: int) -> None:
    torch.manual_seed(0)
    pairs = [(torch.randn(16 * ranks, 20) + 0.25, torch.randn(20, 30) + 0.25) for _ in range(ranks)]

    def on_rank() -> list[torch.Tensor]:
        pad, pads = _pads(ranks)
        buffer, me = torch.empty(16 * ranks, 30), hd.rank()
        results = [reduce_scatter(*pairs[me], buffer, pads, me, ranks, "0") for _ in range(2)]
        assert not pad.any()
        return results

    expected = sum(x.double() @ w.double() for x, w in pairs).chunk(ranks)
    for rank, results in enumerate(hd.run(on_rank, ranks, seed=ranks)):
        for result in results:
            torch.testing.assert_close(result.double(), expected[rank], rtol=1e-2, atol=2e-2)


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[8]))
def moved_rows(x: torch.Tensor, out: torch.Tensor, start: hl.constexpr) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        if tile.end > start:
            out[tile.index - start, :] = x[tile, :]
    return out


@pytest.mark.parametrize("start", [0, 11, 20])
def test_tiles_in_a_branch_store_the_rows_inside(start: int) -> None:
    """The tiles in which the stored rows begin and end also have other rows."""
    x, memory = torch.randn(45, 30), torch.zeros(60, 30)
    moved_rows(x, memory[20:37], start)
    torch.testing.assert_close(memory[20:37], x[start : start + 17], rtol=0, atol=0)
    assert not memory[:20].any() and not memory[37:].any()


@pytest.mark.parametrize("start, rows", [(11, 17), (0, 17), (0, 45)])
def test_checked_mode_reports_rows_outside(start: int, rows: int) -> None:
    """Report lanes before and after the rows, and none where all are inside."""
    x, memory = torch.randn(45, 30), torch.zeros(60, 30)
    checked = helion.kernel(moved_rows.fn, static_shapes=True, config=moved_rows.configs[0], checked=True)
    if rows < 45:
        with pytest.raises(exc.IndexOutOfRange, match=r"writes 'out' out of range in dimension 0"):
            checked(x, memory[:rows], start)
    else:
        torch.testing.assert_close(checked(x, memory[:rows], start), x, rtol=0, atol=0)


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _bound(world_size: int | None, group: str = "0") -> Any:
    args = (_meta(ROWS, COLUMNS), _meta(ROWS, COLUMNS), _meta(2, dtype=torch.int64), _meta(COLUMNS), group, 0, 2)
    return one_shot.bind(args, target="h100", world_size=world_size)


@pytest.mark.parametrize("ranks", [2, 4])
def test_kernels_bind_without_a_process_group(ranks: int) -> None:
    code = _bound(ranks).to_triton_code()
    body = code[code.index("def _helion_one_shot") :]
    first, second = (found.start() for found in re.finditer(r"\bsymm_mem_sync\(", body))
    loads = [found.start() for found in re.finditer(r"tl\.load\(buffers_\d", body)]
    assert body.index("tl.store(buffer") < first < min(loads) and max(loads) < second
    assert len({body[at : body.index(" ", at)] for at in loads}) == ranks


def test_the_size_of_the_group_must_be_known() -> None:
    with pytest.raises(exc.InvalidAPIUsage, match=r"process group 'nobody' is not known: .*world_size="):
        _bound(None, "nobody")


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[8]))
def after_signal(x: torch.Tensor, flags: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        hl.triton_kernel(triton_wait_signal, args=(flags, 1, 0, "acquire", "sys", "ld", False), output_like=None)
        out[tile, :] = x[tile, :] * 2
    return out


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[64]))
def send(x: torch.Tensor, theirs: torch.Tensor, flags: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        theirs[tile, :] = x[tile, :]
        hl.atomic_xchg(flags, [0], 1, sem="release", scope="sys")


@pytest.mark.parametrize("sends", [True, False])
def test_waits_for_a_word(sends: bool) -> None:
    x = torch.randn(ROWS, 30) + 1

    def on_rank() -> torch.Tensor | None:
        data, flags = hd.empty([ROWS, 30]), hd.empty([1], torch.int32)
        flags[0].zero_()
        hd.barrier()
        if hd.rank():
            return after_signal(data[0], flags[0])
        if sends:
            send(x, data[1], flags[1])
        return None

    if sends:
        torch.testing.assert_close(hd.run(on_rank, 2)[1], x * 2, rtol=0, atol=0)
        return
    with pytest.raises(exc.Deadlock, match=r"rank 1, kernel 'after_signal', program .* polls flags\[0\], which is 0"):
        hd.run(on_rank, 2)


def test_remote_tensors_on_cpus_need_ranks() -> None:
    hd.run(hd.rank, 1)
    with pytest.raises(exc.InvalidAPIUsage, match="outside of simulated ranks"):
        torch.ops.symm_mem.get_remote_tensors(torch.ones(3), "0")
