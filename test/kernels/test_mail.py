"""Mail between simulated ranks, barriers between programs of all ranks, and copies to other ranks."""

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

ROWS, COLUMNS, K = 37, 50, 20


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[16]))
def all_reduce(x: torch.Tensor, mail: hl.Mailbox) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        acc = x[tile, :].to(torch.float32)
        for peer in hl.static_range(1, mail.world_size):
            mail.send(peer, [tile, slice(None)], x[tile, :])
        for peer in hl.static_range(1, mail.world_size):
            acc = acc + mail.receive(peer, [tile, slice(None)])
        out[tile, :] = acc.to(x.dtype)
    return out


def _inputs(ranks: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [(torch.randn(ROWS, COLUMNS) + 0.5).to(dtype) for _ in range(ranks)]


@pytest.mark.parametrize(("ranks", "dtype"), [(1, torch.float32), (3, torch.bfloat16)])
def test_all_reduce_by_mail(ranks: int, dtype: torch.dtype) -> None:
    inputs = _inputs(ranks, dtype)

    def on_rank() -> list[torch.Tensor]:
        mail = hd.mailbox([ROWS, COLUMNS], dtype)
        results = [all_reduce(inputs[hd.rank()] * scale, mail) for scale in (1, -2, 3)]
        hd.check(mail)
        return results

    total = sum(x.double() for x in inputs)
    for results in hd.run(on_rank, ranks, seed=ranks):
        for scale, result in zip((1, -2, 3), results, strict=True):
            torch.testing.assert_close(result.double(), scale * total, rtol=1e-2, atol=3e-2)


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[16, 16, 16, 16]))
def matmul_reduce_scatter(x: torch.Tensor, w: torch.Tensor, mail: hl.Mailbox, rank: int) -> torch.Tensor:
    n = mail.world_size
    rows, columns = x.size(0) // n, w.size(1)
    out = torch.empty([rows, columns], dtype=x.dtype, device=x.device)
    block_m, block_n = hl.register_block_size(rows), hl.register_block_size(columns)
    for peer in range(1, n):
        theirs = x.narrow(0, (rank + peer) % n * rows, rows)
        for tile_m, tile_n in hl.tile([rows, columns], block_size=[block_m, block_n]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(x.size(1)):
                acc = torch.addmm(acc, theirs[tile_m, tile_k], w[tile_k, tile_n])
            mail.send(peer, [tile_m, tile_n], acc)
    hl.barrier()
    own = x.narrow(0, rank * rows, rows)
    for tile_m, tile_n in hl.tile([rows, columns], block_size=[block_m, block_n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, own[tile_m, tile_k], w[tile_k, tile_n])
        for sender in hl.static_range(1, n):
            acc = acc + mail.receive(sender, [tile_m, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize(
    "ranks", [3, pytest.param(2, marks=pytest.mark.prove), pytest.param(8, marks=pytest.mark.prove)]
)
def test_matmul_and_reduce_scatter_by_mail(ranks: int) -> None:
    torch.manual_seed(1)
    pairs = [(torch.randn(ranks * 20, K) + 0.25, torch.randn(K, 36) + 0.25) for _ in range(ranks)]

    def on_rank() -> list[torch.Tensor]:
        mail, me = hd.mailbox([20, 36]), hd.rank()
        return [matmul_reduce_scatter(*pairs[me], mail, me) for _ in range(3)]

    expected = sum(x.double() @ w.double() for x, w in pairs).chunk(ranks)
    for rank, results in enumerate(hd.run(on_rank, ranks, seed=5)):
        for result in results:
            torch.testing.assert_close(result.double(), expected[rank], rtol=1e-2, atol=5e-2)


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[16]))
def gather(x: torch.Tensor, mail: hl.Mailbox) -> torch.Tensor:
    """Many programs receive each tile of rows."""
    n = mail.world_size
    out = torch.empty([n, 3, *x.size()], dtype=x.dtype, device=x.device)
    block = hl.register_block_size(x.size(0))
    for tile in hl.tile(x.size(0), block_size=block):
        for copy in hl.static_range(3):
            out[0, copy, tile, :] = x[tile, :]
        for peer in hl.static_range(1, n):
            mail.send(peer, [tile, slice(None)], x[tile, :])
    hl.barrier()
    for again, copy in hl.tile([x.size(0), 3], block_size=[block, 1]):
        for peer in hl.static_range(1, n):
            out[peer, copy.begin, again, :] = mail.receive(peer, [again, slice(None)], keep=True)
    mail.channel.seen.add_(1)
    return out


def _bound(function: Any, mail: Any, *more: Any, ranks: int = 2, **settings: Any) -> Any:
    kernel = helion.kernel(function, static_shapes=True, **settings)
    return kernel.bind((torch.empty(ROWS, COLUMNS, device="meta"), mail, *more), target="h100", world_size=ranks)


def _mail(ranks: int = 2) -> Any:
    return hd.mailbox([ROWS, COLUMNS], device="meta", ranks=ranks)


def _one_call(x: torch.Tensor, mail: hl.Mailbox, call: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        if call == "peer":
            mail.send(2, [tile, slice(None)], x[tile, :])
        elif call == "index":
            mail.send(1, [tile.begin, slice(None)], x[tile, :])
        elif call == "receive first":
            out[tile, :] = mail.receive(1, [tile, slice(None)])
            mail.send(1, [tile, slice(None)], x[tile, :])
        elif call == "another peer":
            mail.send(0, [tile, slice(None)], x[tile, :])
            out[tile, :] = mail.receive(1, [tile, slice(None)])
        elif call == "twice":
            mail.send(1, [tile, slice(None)], x[tile, :])
            mail.send(1, [tile, slice(None)], x[tile, :])
            out[tile, :] = mail.receive(1, [tile, slice(None)])
        out[tile, :] = x[tile, :]
    return out


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("peer", r"InvalidAPIUsage: .*peer of hl.Mailbox.send must be from 0 to 1"),
        ("index", r"InvalidAPIUsage: .*index of hl.Mailbox.send must be a tile or ':' for each dimension"),
        ("receive first", r"MessageOrder: .*sent at test_mail.py:\d+ \(mail.send.* follows the wait"),
        ("another peer", r"UnmatchedMessage: .*to=1.*is to=0"),
        ("twice", r"UnmatchedMessage: .*sends 2 in each call, of which 1"),
    ],
)  # fmt: skip
def test_wrong_mail_is_refused(call: str, message: str) -> None:
    with pytest.raises(exc.BaseError) as error:
        _bound(_one_call, _mail(), call)
    assert re.match(message, f"{type(error.value).__name__}: {error.value.message}", re.DOTALL)


def test_mail_for_many_programs() -> None:
    inputs = _inputs(3)

    def on_rank() -> list[torch.Tensor]:
        mail = hd.mailbox([ROWS, COLUMNS])
        return [gather(inputs[hd.rank()] * scale, mail) for scale in (1, 2, 3)]

    for rank, results in enumerate(hd.run(on_rank, 3, seed=2)):
        expected = torch.stack([inputs[(rank + peer) % 3] for peer in range(3)])
        for scale, result in zip((1, 2, 3), results, strict=True):
            torch.testing.assert_close(result, (scale * expected)[:, None].expand_as(result), rtol=0, atol=0)


def _sends(x: torch.Tensor, mail: hl.Mailbox) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        mail.send(1, [tile, slice(None)], x[tile, :])
        out[tile, :] = x[tile, :]
    return out


@pytest.mark.parametrize("function", [_sends, all_reduce.fn])
def test_gradients_of_messages_are_not_derived(function: Any) -> None:
    kernel = helion.kernel(function, static_shapes=True, config=helion.Config(block_sizes=[16])).differentiable()

    def on_rank() -> None:
        kernel(torch.ones(ROWS, COLUMNS, requires_grad=True), hd.mailbox([ROWS, COLUMNS])).sum().backward()

    with pytest.raises(exc.AutodiffNotSupported, match=r"message between ranks; .*torch\.autograd\.Function"):
        hd.run(on_rank, 2)


# --- barriers and copies ----------------------------------------------------------------------------------------------


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[16]))
def pulled(x: torch.Tensor, buffer: torch.Tensor, GROUP: hl.ProcessGroupName, RANKS: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(x)
    buffers = torch.ops.symm_mem.get_remote_tensors(buffer, GROUP)
    for tile in hl.tile(x.size(0)):
        buffer[tile, :] = x[tile, :]
        hl.remote_barrier(list(range(RANKS)))
        acc = hl.zeros([tile, x.size(1)], dtype=torch.float32)
        for remote in buffers:
            acc = acc + remote[tile, :]
        out[tile, :] = acc
        hl.remote_barrier(list(range(RANKS)))
    return out


@pytest.mark.parametrize("ranks", [1, 3])
def test_pulls_between_barriers(ranks: int) -> None:
    inputs = _inputs(ranks)

    def on_rank() -> list[torch.Tensor]:
        buffer = torch.empty(ROWS, COLUMNS)
        results = [pulled(inputs[hd.rank()] * scale, buffer, "0", ranks) for scale in (1, -2)]
        hd.check()
        return results

    for results in hd.run(on_rank, ranks, seed=3):
        for scale, result in zip((1, -2), results, strict=True):
            torch.testing.assert_close(result.double(), scale * sum(x.double() for x in inputs), rtol=1e-4, atol=1e-4)


def _no_second_barrier(x: torch.Tensor, buffer: torch.Tensor, RANKS: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(x)
    buffers = torch.ops.symm_mem.get_remote_tensors(buffer, "0")
    for tile in hl.tile(x.size(0)):
        buffer[tile, :] = x[tile, :]
        hl.remote_barrier(list(range(RANKS)))
        out[tile, :] = buffers[0][tile, :] + buffers[1][tile, :]
    return out


def test_a_missing_barrier_is_a_race() -> None:
    kernel = helion.kernel(_no_second_barrier, static_shapes=True, config=helion.Config(block_sizes=[16]))

    def on_rank() -> None:
        buffer = torch.empty(ROWS, COLUMNS)
        for _ in range(3):
            kernel(torch.ones(ROWS, COLUMNS), buffer, 2)

    with pytest.raises(exc.DataRace):
        hd.run(on_rank, 2, seed=1)


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[16]))
def rotated(x: torch.Tensor, buffer: torch.Tensor, RANK: int, RANKS: hl.constexpr) -> torch.Tensor:
    """Send rows to the next rank; the buffer is used by one call."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        copy = hl.make_async_remote_copy(x, [tile, slice(None)], (RANK + 1) % RANKS, buffer, [tile, slice(None)])
        copy.start()
        copy.wait_send()
        copy.wait_recv()
        out[tile, :] = buffer[tile, :] * 2
    return out


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_copies_to_the_next_rank(ranks: int) -> None:
    inputs = _inputs(ranks)

    def on_rank() -> torch.Tensor:
        return rotated(inputs[hd.rank()], torch.empty(ROWS, COLUMNS), hd.rank(), ranks)

    for rank, result in enumerate(hd.run(on_rank, ranks, seed=4)):
        torch.testing.assert_close(result, 2 * inputs[(rank - 1) % ranks], rtol=0, atol=0)


def _never_started(x: torch.Tensor, buffer: torch.Tensor, rank: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        copy = hl.make_async_remote_copy(x, [tile, slice(None)], rank, buffer)
        copy.wait()
        out[tile, :] = buffer[tile, :]
    return out


def test_a_copy_that_is_not_started_is_a_deadlock() -> None:
    kernel = helion.kernel(_never_started, static_shapes=True, config=helion.Config(block_sizes=[16]))
    with pytest.raises(exc.Deadlock, match="waits for 1 more message of any rank"):
        hd.run(lambda: kernel(torch.ones(ROWS, COLUMNS), torch.ones(ROWS, COLUMNS), 1), 2)


def _barriers(x: torch.Tensor, buffer: torch.Tensor, ids: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        hl.remote_barrier(list(ids) if isinstance(ids, tuple) else ids)
        out[tile, :] = x[tile, :]
    return out


def test_wrong_barriers_and_copies_are_refused() -> None:
    buffer = torch.empty(ROWS, COLUMNS, device="meta")
    for ids in ((0, 2), (1, 1)):
        with pytest.raises(exc.InvalidAPIUsage, match="ids of hl.remote_barrier must be different numbers from 0 to 1"):
            _bound(_barriers, buffer, ids)
    with pytest.raises(exc.InvalidAPIUsage, match="ids of hl.remote_barrier must be a list of constants, got"):
        _bound(_barriers, buffer, 3)
    with pytest.raises(exc.InvalidAPIUsage, match="device_id of hl.make_async_remote_copy must be from 0 to 1.*got 2"):
        _bound(_never_started, buffer, 2)
    with pytest.raises(exc.InvalidAPIUsage, match=r"number of ranks of hl\.remote_barrier is not known.*world_size="):
        _bound(_barriers, buffer, (0, 1), ranks=None)


@pytest.mark.parametrize("target", ["h100", "b200"])
def test_barriers_and_copies_are_compiled_without_ranks(target: str) -> None:
    kernel = helion.kernel(_barriers, static_shapes=True)
    args = (torch.empty(ROWS, COLUMNS, device="meta"), torch.empty(ROWS, COLUMNS, device="meta"), (0, 1))
    code = kernel.bind(args, target=target, world_size=2).to_triton_code()
    assert code.count("    _wait_for_messages(") == 2 and code.count("scope='sys'") == 2
    launch = code[code.index("_launcher(") :]
    assert launch.count("_helion_runtime.own_words(") == 1
    bound = kernel.bind(args, target=target, world_size=2)
    with pytest.raises(exc.InvalidAPIUsage, match="allow_helion_deps=True"):
        bound.to_code(options=helion.OutputCodeOptions(allow_helion_deps=False))


def test_barriers_have_a_word_for_each_program() -> None:
    kernel = helion.kernel(_barriers, static_shapes=True)
    args = (torch.empty(2**20, 8, device="meta"), torch.empty(1, device="meta"), (0, 1))
    bound = kernel.bind(args, target="h100", world_size=2)
    with pytest.raises(exc.ChannelTooSmall, match="65536 words.* 1048576 tiles of 1"):
        bound.to_triton_code(helion.Config(block_sizes=[1]))


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_mesh_has_a_group_for_each_dimension() -> None:
    def on_rank() -> tuple[Any, ...]:
        rows, columns = hd.mesh([2, 3])
        sizes = [hd.world_size(group) for group in (rows, columns, None)]
        return sizes, [hd.rank(group) for group in (rows, columns, None)]

    for rank, (sizes, numbers) in enumerate(hd.run(on_rank, 6)):
        assert sizes == [2, 3, 6]
        assert numbers == [rank // 3, rank % 3, rank]
    with pytest.raises(exc.InvalidAPIUsage, match=r"A mesh of shape \[2, 2\] has 4 ranks; there are 6"):
        hd.run(lambda: hd.mesh([2, 2]), 6)


def test_ranks_of_a_group_sum_among_themselves() -> None:
    inputs = _inputs(4)

    def on_rank() -> list[torch.Tensor]:
        group, _ = hd.mesh([2, 2])
        mail = hd.mailbox([ROWS, COLUMNS], group=group)
        results = [all_reduce(inputs[hd.rank()] * scale, mail) for scale in (1, -2)]
        hd.barrier(group)
        hd.check(mail, group)
        return results

    for rank, results in enumerate(hd.run(on_rank, 4, seed=6)):
        total = sum(inputs[other].double() for other in (rank % 2, rank % 2 + 2))
        for scale, result in zip((1, -2), results, strict=True):
            torch.testing.assert_close(result.double(), scale * total, rtol=1e-4, atol=1e-4)


def test_errors_name_ranks_of_a_group() -> None:
    def late() -> None:
        group, _ = hd.mesh([2, 2])
        mail = hd.mailbox([ROWS, COLUMNS], group=group)
        mail.channel.words[0][-1, 3, 0] = 2**11 * 7 + 2
        with pytest.raises(
            exc.PeerLost, match=f"rank {hd.rank()} .*in line 7 for messages of rank {(hd.rank() + 2) % 4}"
        ):
            hd.check(mail, group)
        hd.reset(mail, group)
        hd.check(mail, group)

    hd.run(late, 4)

    def alone() -> None:
        group, _ = hd.mesh([2, 2])
        mail = hd.mailbox([ROWS, COLUMNS], group=group)
        if hd.rank() != 3:
            all_reduce(torch.ones(ROWS, COLUMNS), mail)

    with pytest.raises(exc.Deadlock, match=r"rank 1, .* waits for 1 more message of rank 3"):
        hd.run(alone, 4, seed=1)
