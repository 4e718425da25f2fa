"""Seeds of kernels that exchange tiles with other GPUs."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.distributed as hd
import helion.language as hl
from helion.backends.triton.heuristics.families.exchange import TritonExchangeHeuristic
from helion.hardware import NVLINK4, target

RULE = TritonExchangeHeuristic.name


@helion.kernel(static_shapes=True)
def all_reduce(x: torch.Tensor, mail: hl.Mailbox) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        total = x[tile].to(torch.float32)
        for peer in hl.static_range(1, mail.world_size):
            mail.send(peer, [tile], x[tile])
        for peer in hl.static_range(1, mail.world_size):
            total = total + mail.receive(peer, [tile])
        out[tile] = total.to(x.dtype)
    return out


@helion.kernel(static_shapes=True)
def doubled(x: torch.Tensor, ch: hl.Channel) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * 2 + ch.seen[0, 0]
    return out


@helion.kernel(static_shapes=True)
def rows(x: torch.Tensor, ch: hl.Channel) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        hl.signal(ch, [tile.id], to=1)
        hl.wait(ch, [tile.id], sender=1)
        out[tile] = x[tile, :].sum(-1)
    return out


@helion.kernel(static_shapes=True, ignore_warnings=[helion.exc.UnacknowledgedReuse])
def normalized(x: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        inbox[1][tile, :] = x[tile, :]
        hl.signal(ch, [tile.id], to=1)
        hl.wait(ch, [tile.id], sender=1)
        total = inbox[0][tile, :].to(torch.float32) + x[tile, :]
        out[tile, :] = (total * torch.rsqrt(torch.mean(total * total, -1, keepdim=True))).to(x.dtype)
    return out


def _channel(words: int) -> hl.Channel:
    return hd.channel([words], device="meta", ranks=2)


def _sum_of(count: int, dtype: torch.dtype, ranks: int, name: str) -> helion.BoundKernel:
    mail = hd.mailbox([count], dtype, device="meta", ranks=ranks)
    return all_reduce.bind((torch.empty(count, dtype=dtype, device="meta"), mail), target=name)


@pytest.mark.parametrize(
    ("count", "dtype", "size", "warps"),
    [
        (2**12, torch.bfloat16, 2048, 8),
        (2**12 - 5, torch.float32, 1024, 8),
        (2**18, torch.bfloat16, 4096, 8),
        (2**18 + 3, torch.float32, 2048, 8),
        (2**25, torch.bfloat16, 4096, 8),
    ],
)
def test_threads_store_whole_vectors(count: int, dtype: torch.dtype, size: int, warps: int) -> None:
    seed = _sum_of(count, dtype, 2, "h100").seeds[0]
    assert (seed.heuristic, seed.config.block_sizes, seed.config.num_warps) == (RULE, [size], warps)
    assert size * dtype.itemsize % (32 * warps * 16) == 0


@pytest.mark.parametrize("ranks", [3, 8])
@pytest.mark.parametrize("name", ["b200", "a100"])
def test_other_links_and_more_ranks(ranks: int, name: str) -> None:
    bound = _sum_of(2**20, torch.float16, ranks, name)
    assert bound.seeds[0].heuristic == RULE and bound.facts.messages == 2 * (ranks - 1)
    assert "96 programs fill NVLink 4" in bound.seeds[0].reason and target(name).link is None


def test_what_has_no_messages_or_reduces_is_declined() -> None:
    bound = doubled.bind((torch.empty(1000, device="meta"), _channel(64)), target="h100")
    assert dict(bound.declined)[RULE] == "no messages between GPUs" and bound.facts.messages == 0
    bound = rows.bind((torch.empty(1000, 300, device="meta"), _channel(1000)), target="h100")
    assert dict(bound.declined)[RULE] == "no store of a whole tile" and bound.facts.messages == 2


@pytest.mark.parametrize(
    ("columns", "size", "warps"), [(80, 16, 8), (500, 4, 8), (8192, 1, 16), (30000, 1, 16), (40000, None, 0)]
)
def test_whole_rows_are_sent(columns: int, size: int | None, warps: int) -> None:
    x = torch.empty(300, columns, dtype=torch.bfloat16, device="meta")
    inbox = hd.empty([300, columns], torch.bfloat16, device="meta", ranks=2)
    bound = normalized.bind((x, inbox, _channel(300)), target="h100")
    if size is None:
        assert dict(bound.declined)[RULE] == "rows of more than 4096 vectors of 16 bytes"
    else:
        seed = bound.seeds[0]
        assert (seed.heuristic, seed.config.block_sizes, seed.config.num_warps) == (RULE, [size], warps)


def test_targets_of_hopper_have_the_measured_link() -> None:
    assert target("h100").link is NVLINK4 and target("h200").link is NVLINK4
