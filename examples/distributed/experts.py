"""A mixture of experts with one expert per rank: tokens are sent to their expert, and its results back.

The first loop sends each token to a row in the inbox of its expert. The second one computes the rows that have arrived,
and sends the results back to the same rows of each sender. The third one puts them into the order of the tokens.

One inbox suffices, since an expert sends a result after it has read the token. When a rank has all results of a call,
it may send the tokens of the next one.

    python examples/distributed/experts.py
    torchrun --nproc-per-node 2 examples/distributed/experts.py
"""

from __future__ import annotations

import torch

import helion
import helion.distributed as dist
import helion.language as hl
from helion.testing import DEVICE

#: Tokens that one message covers.
ROWS = 16


@helion.kernel(ignore_warnings=[helion.exc.TensorOperationInWrapper])
def experts(
    x: torch.Tensor,
    w: torch.Tensor,
    expert: torch.Tensor,
    row: torch.Tensor,
    inbox: tuple[torch.Tensor, ...],
    results: tuple[torch.Tensor, ...],
    there: hl.Channel,
    back: hl.Channel,
) -> torch.Tensor:
    """Return `relu(x[t] @ w)` for each token `t` of `x[T, D]`, with the `w[D, H]` of the peer `expert[t]`.

    `row[t]`: where the token is among those for its expert, all different. `inbox` and `results`: symmetric,
    `[ranks, T, D]` and `[ranks, T, H]`.
    """
    n, (tokens, d), h = len(inbox), x.size(), w.size(1)
    d, h = hl.specialize(d), hl.specialize(h)
    messages = helion.cdiv(tokens, ROWS)
    out = torch.empty([tokens, h], dtype=x.dtype, device=x.device)
    arrived = results[0].view([n * tokens, h])
    for tile in hl.tile(tokens, block_size=ROWS):
        to, at, token = expert[tile], row[tile], x[tile, :]
        for peer in hl.static_range(n):
            hl.store(inbox[peer], [(n - peer) % n, at, slice(None)], token, extra_mask=(to == peer)[:, None])
            hl.signal(there, [0], to=peer)
    hl.barrier()
    for tile in hl.tile(tokens, block_size=ROWS):
        for peer in hl.static_range(n):
            hl.wait(there, [0], sender=peer, count=messages, keep=True)
            result = torch.relu(hl.dot(inbox[0][peer, tile, :], w[:, :])).to(x.dtype)
            results[peer][(n - peer) % n, tile, :] = result
            hl.signal(back, [0], to=peer)
    hl.barrier()
    for tile in hl.tile(tokens, block_size=ROWS):
        for peer in hl.static_range(n):
            hl.wait(back, [0], sender=peer, count=messages, keep=True)
        out[tile, :] = arrived[expert[tile] * tokens + row[tile], :]
    there.seen.add_(messages)
    back.seen.add_(messages)
    return out


def inputs(rank: int, rows: int, columns: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return ((torch.randn([rows, columns], generator=generator) + 0.25) / rows**0.25).bfloat16().to(DEVICE)


def routed(rank: int, ranks: int, tokens: int, call: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the expert of each token as a peer of `rank`, and its row there."""
    generator = torch.Generator().manual_seed(1000 * call + rank)
    expert = torch.randint(ranks, [tokens], generator=generator)
    row = torch.stack([(expert == each).cumsum(0) for each in range(ranks)]).gather(0, expert[None])[0] - 1
    return expert.int().to(DEVICE), row.int().to(DEVICE)


def on_rank(tokens: int = 75, d: int = 64, h: int = 32, calls: int = 3) -> float:
    ranks, me = dist.world_size(), dist.rank()
    inbox, results = (dist.empty([ranks, tokens, size], torch.bfloat16) for size in (d, h))
    there, back = dist.channel([1]), dist.channel([1])
    x, weights = inputs(me, tokens, d), torch.stack([inputs(100 + rank, d, h) for rank in range(ranks)])
    worst = 0.0
    for call in range(calls):
        expert, row = routed(me, ranks, tokens, call)
        result = experts(x, weights[me], expert, row, inbox, results, there, back)
        chosen = weights[(me + expert.long()) % ranks].double()
        expected = torch.relu(x.double()[:, None] @ chosen)[:, 0]
        torch.testing.assert_close(result.double(), expected, rtol=2e-2, atol=0.02 * float(expected.std()))
        worst = max(worst, float((result - expected).abs().max()))
    dist.check(there)
    dist.check(back)
    return worst


def main() -> None:
    errors = dist.run(on_rank)
    print(f"experts: max error {max(errors):.1e}")


if __name__ == "__main__":
    main()
