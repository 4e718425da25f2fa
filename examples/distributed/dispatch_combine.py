"""Tokens to their experts and results back, with several experts per rank and per token.

`dispatch` stores each token once on each rank that has an expert of it. The experts there give one row per token: the sum of
their results, by the weights of the gate. `combine` reads these rows and adds them up. Rows keep the place of their
token, so that no rank needs to know what the others send.

One memory for all calls suffices. An expert sends its results after it has read the tokens. A rank sends the tokens of
the next call after it has read these results.

    python examples/distributed/dispatch_combine.py
    torchrun --nproc-per-node 2 examples/distributed/dispatch_combine.py
"""

from __future__ import annotations

import torch

import helion
import helion.distributed as dist
import helion.language as hl
from helion.testing import DEVICE

#: Tokens of one program.
ROWS = 4
#: The kernels of a call keep each other's memory in order.
ACROSS_CALLS = [helion.exc.UnacknowledgedReuse, helion.exc.UncoveredOutput]


@helion.kernel(config=helion.Config(num_warps=8), ignore_warnings=ACROSS_CALLS)
def dispatch(x: torch.Tensor, wanted: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> None:
    """Send token `x[t, :]` to the peers `p` with `wanted[t, p]`, and wait for the tokens of all peers.

    `inbox`: symmetric, `[ranks, T, D]`. Row `[p, t]` there is token `t` of peer `p`.
    """
    n, tokens = len(inbox), x.size(0)
    for tile in hl.tile(tokens, block_size=ROWS):
        token = x[tile, :]
        for peer in hl.static_range(1, n):
            sent = wanted[tile, peer] != 0
            hl.store(inbox[peer], [n - peer, tile, slice(None)], token, extra_mask=sent[:, None])
            hl.signal(ch, [tile.id], to=peer)
        own = wanted[tile, 0] != 0
        hl.store(inbox[0], [0, tile, slice(None)], token, extra_mask=own[:, None])
    hl.barrier()
    for tile in hl.tile(tokens, block_size=ROWS):
        for peer in hl.static_range(1, n):
            hl.wait(ch, [tile.id], sender=peer)


@helion.kernel(config=helion.Config(block_sizes=[ROWS], num_warps=8), ignore_warnings=ACROSS_CALLS)
def combine(wanted: torch.Tensor, results: tuple[torch.Tensor, ...], ch: hl.Channel) -> torch.Tensor:
    """Return the sum of the rows `results[p][.., t, :]` of the peers `p` with `wanted[t, p]`, once they are there.

    `results`: symmetric, `[ranks, T, D]`. Row `[p, t]` there is for token `t` of peer `p`.
    """
    n, (tokens, columns) = len(results), results[0].size()[1:]
    out = torch.empty([tokens, columns], dtype=results[0].dtype, device=results[0].device)
    for tile in hl.tile(tokens):
        for peer in hl.static_range(1, n):  # results are of earlier kernels
            hl.signal(ch, [tile.id], to=peer)
        for peer in hl.static_range(1, n):
            hl.wait(ch, [tile.id], sender=peer)
        acc = hl.zeros([tile, columns], dtype=torch.float32)
        for step in hl.static_range(1, n + 1):  # this rank's rows last: those of peers take longer
            peer = step % n
            sent = wanted[tile, peer] != 0
            row = hl.load(results[peer], [(n - peer) % n, tile, slice(None)], extra_mask=sent[:, None])
            acc = acc + row.to(torch.float32)
        out[tile, :] = acc.to(out.dtype)
    return out


@helion.kernel()
def experts(tokens: torch.Tensor, gates: torch.Tensor, results: torch.Tensor) -> None:
    """Write the sum of `gates[p, t, e] * (e + 1) * tokens[p, t]` over the experts `e` of a rank. Real experts are MLPs."""
    for peer, tile in hl.tile([tokens.size(0), tokens.size(1)], block_size=[1, None]):
        factor = hl.zeros([tile], dtype=torch.float32)
        for expert in hl.static_range(gates.size(2)):
            factor = factor + gates[peer.begin, tile, expert] * (expert + 1)
        row = hl.load(tokens, [peer.begin, tile, slice(None)], extra_mask=(factor != 0)[:, None])
        results[peer.begin, tile, :] = (row.to(torch.float32) * factor[:, None]).to(results.dtype)


def routed(rank: int, ranks: int, tokens: int, count: int, top: int, call: int = 0) -> torch.Tensor:
    """Return the gate of each token of a rank for each expert, `[tokens, ranks, count]`: 0 where it is not chosen."""
    generator = torch.Generator().manual_seed(1000 * call + rank)
    scores = torch.rand([tokens, ranks * count], generator=generator)
    chosen = torch.zeros_like(scores).scatter(1, scores.topk(top, 1).indices, 1.0)
    gates = torch.softmax(scores, 1) * chosen
    return (gates / gates.sum(1, keepdim=True)).view(tokens, ranks, count)


def inputs(rank: int, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return (torch.randn([rows, columns], generator=generator) + 0.25).bfloat16().to(DEVICE)


def on_rank(tokens: int = 43, d: int = 72, count: int = 3, top: int = 2, calls: int = 3) -> float:
    ranks, me = dist.world_size(), dist.rank()
    inbox, results = (dist.empty([ranks, tokens, d], torch.bfloat16) for _ in range(2))
    there, back = dist.channel([helion.cdiv(tokens, ROWS)]), dist.channel([tokens])
    x, worst = inputs(me, tokens, d), 0.0
    weights = torch.arange(1, count + 1)
    for call in range(calls):
        gates = [routed(rank, ranks, tokens, count, top, call) for rank in range(ranks)]
        mine = gates[me].roll(-me, 1)  # in the order of the peers
        wanted = mine.ne(0).any(2).int().to(DEVICE)
        theirs = torch.stack([gates[(me + peer) % ranks][:, me] for peer in range(ranks)]).to(DEVICE)
        dispatch(x, wanted, inbox, there)
        experts(inbox[0], theirs, results[0])
        result = combine(wanted, results, back)
        expected = x.double() * (gates[me] * weights).sum((1, 2)).double()[:, None].to(DEVICE)
        torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=2e-2)
        worst = max(worst, float((result - expected).abs().max()))
    dist.check(there)
    dist.check(back)
    return worst


def main() -> None:
    errors = dist.run(on_rank)
    print(f"dispatch_combine: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
