"""Launch attention kernels with random sizes, or many times: values beside fp32, bits, and writes out of the output.

    python benchmarks/attention_launches.py --out FILE [--seconds N] [--same] KIND:LAUNCHES:SEED ...

A kind is a kernel and the dimensions of its heads, as `forward-64-causal` or `pages-128`. All launches share one binary. Each
is compared with torch in fp32 and with a second launch. Outputs lie between guards. With `--same` all launches have
the sizes of the first.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import helion  # noqa: E402
import helion.language as hl  # noqa: E402

GUARD, UNTOUCHED = 512, 7.0
"""Elements around an output, and their value."""
POOL = 12_000_000
"""Elements that operands are cut from."""
BOUND = 2e-2
"""The largest error of a row, relative to its norm."""
WINDOW = 100
Drawn = tuple[tuple[Any, ...], torch.Tensor, torch.Tensor, torch.Tensor]
"""Arguments of a launch, the memory of the output with guards, the output, and its reference."""


def forward(q, k, v, out, mask: hl.constexpr):
    """Inputs `[H, S, D]`; two heads share keys."""
    heads, m, _ = q.size()
    dims, n = hl.specialize(q.size(2)), k.size(1)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(n):
            scores = hl.dot(q[h.begin, tile_m, :], k[h.begin // 2, tile_n, :].T) * dims**-0.5
            distance = tile_m.index[:, None] + (n - m) - tile_n.index[None, :]
            if mask == "causal":
                scores = torch.where(distance >= 0, scores, float("-inf"))
            if mask == "window":
                scores = torch.where((distance >= 0) & (distance < 100), scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h.begin // 2, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[h.begin, tile_m, :] = acc / total[:, None]
    return out


def decode(q, k, v, out, lengths):
    """Queries `[B, G, R, D]` of caches `[B, S, G, D]`."""
    batch, groups, shared, dims = hl.specialize(q.size())
    for b, g, rows in hl.tile([batch, groups, shared], block_size=[1, 1, None]):
        highest = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, dims], dtype=torch.float32)
        length = lengths[b.begin]
        for tile_n in hl.tile(k.size(1)):
            scores = hl.dot(q[b.begin, g.begin, rows, :], k[b.begin, tile_n, g.begin, :].T) * dims**-0.5
            scores = torch.where((tile_n.index < length)[None, :], scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b.begin, tile_n, g.begin, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, g.begin, rows, :] = acc / total[:, None]
    return out


def sequences(q, k, v, out, starts, key_starts, longest, mask: hl.constexpr):
    """Sequences of `[T, H, D]`, one after another; two heads share keys."""
    count, heads, dims = starts.size(0) - 1, q.size(1), hl.specialize(q.size(2))
    for tile_s, head, tile_m in hl.tile([count, heads, longest], block_size=[1, 1, None]):
        s, h = tile_s.begin, head.begin
        start, first = starts[s], key_starts[s]
        queries, keys = starts[s + 1] - start, key_starts[s + 1] - first
        rows, valid = start + tile_m.index, tile_m.index < queries
        query = hl.load(q, [rows, h, hl.arange(dims)], extra_mask=valid[:, None])
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(keys):
            scores = hl.dot(query, k[first + tile_n.index, h // 2, :].T) * dims**-0.5
            if mask == "causal":
                seen = tile_m.index[:, None] + (keys - queries) >= tile_n.index[None, :]
                scores = torch.where(seen, scores, float("-inf"))
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[first + tile_n.index, h // 2, :], acc=acc * shrink[:, None])
            highest = raised
        hl.store(out, [rows, h, hl.arange(dims)], acc / total[:, None], extra_mask=valid[:, None])
    return out


def pages(q, k, v, out, table, lengths, page: hl.constexpr):
    """Queries `[B, G, R, D]` of pages `[P, page, G, D]`."""
    batch, groups, shared, dims = hl.specialize(q.size())
    for b, g, rows in hl.tile([batch, groups, shared], block_size=[1, 1, None]):
        highest = hl.full([rows], -1e30, dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, dims], dtype=torch.float32)
        for tile in hl.tile(0, lengths[b.begin], block_size=page):
            own, at = table[b.begin, tile.id], tile.index - tile.begin
            scores = hl.dot(q[b.begin, g.begin, rows, :], k[own, at, g.begin, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[own, at, g.begin, :], acc=acc * shrink[:, None])
            highest = raised
        out[b.begin, g.begin, rows, :] = acc / torch.where(total > 0, total, 1.0)[:, None]
    return out


def listed(q, k, v, out, blocks, counts, size: hl.constexpr):
    """Queries `[H, M, D]` whose tiles list the blocks of keys that they see."""
    heads, m, _ = q.size()
    dims = hl.specialize(q.size(2))
    for tile_h, tile_m in hl.tile([heads, m], block_size=[1, size]):
        h, number = tile_h.begin, tile_m.id
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(0, counts[h, number] * size):
            rows = blocks[h, number, tile_n.index // size] * size + tile_n.index % size
            scores = hl.dot(q[h, tile_m, :], k[h, rows, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h, rows, :], acc=acc * shrink[:, None])
            highest = raised
        out[h, tile_m, :] = acc / total[:, None]
    return out


@dataclass(frozen=True, kw_only=True)
class Launches:
    """The launches of a kind: random numbers, operands to cut from, and the device."""

    name: str
    drawn: random.Random
    pool: torch.Tensor
    device: str

    @property
    def dims(self) -> int:
        return int(self.name.split("-")[1])

    @property
    def mask(self) -> str:
        return next((each for each in ("causal", "window") if each in self.name), "full")

    def tensors(self, *shapes: Sequence[int]) -> list[torch.Tensor]:
        """Return operands of these shapes, at a random place of the pool."""
        begin = 8 * self.drawn.randint(0, 1000)
        return [self.pool[at % 3, begin : begin + math.prod(shape)].view(*shape) for at, shape in enumerate(shapes)]

    def guarded(self, shape: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return an output that is not a number, and its memory with guards."""
        whole = torch.full([math.prod(shape) + 2 * GUARD], UNTOUCHED, dtype=torch.bfloat16, device=self.device)
        out = whole[GUARD:-GUARD].view(*shape).fill_(float("nan"))
        return whole, out

    def integers(self, numbers: Any) -> torch.Tensor:
        return torch.as_tensor(numbers, dtype=torch.int32).to(self.device)

    def positions(self, n: int) -> torch.Tensor:
        return torch.arange(n, device=self.device)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Return attention in fp32; a query without keys gives 0."""
    scores = (q.float() @ k.float().mT * q.size(-1) ** -0.5).masked_fill(~seen, float("-inf"))
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v.float()


def _seen(of: Launches, m: int, n: int) -> torch.Tensor:
    distance = of.positions(m)[:, None] + (n - m) - of.positions(n)[None, :]
    if of.mask == "full":
        return torch.ones_like(distance, dtype=torch.bool)
    return (distance >= 0) & (distance < (WINDOW if of.mask == "window" else n + 1))


def draw_forward(of: Launches) -> Drawn:
    groups, n, r = of.drawn.randint(2, 8), of.drawn.randint(2, 700), of.drawn
    m = r.randint(2, 700 if of.mask == "full" else n)
    q, k, v = of.tensors((2 * groups, m, of.dims), (groups, n, of.dims), (groups, n, of.dims))
    whole, out = of.guarded(q.shape)
    wide = (x.repeat_interleave(2, 0) for x in (k, v))
    return (q, k, v, out, of.mask), whole, out, _attend(q, *wide, _seen(of, m, n))


def draw_decode(of: Launches) -> Drawn:
    batch, groups, shared, n = 3, 2, 5, of.drawn.randint(300, 5000)
    lengths = of.integers([of.drawn.randint(1, n) for _ in range(batch)])
    q, k, v = of.tensors((batch, groups, shared, of.dims), *2 * [(batch, n, groups, of.dims)])
    whole, out = of.guarded(q.shape)
    seen = (of.positions(n) < lengths[:, None])[:, None, None]
    return (q, k, v, out, lengths), whole, out, _attend(q, k.transpose(1, 2), v.transpose(1, 2), seen)


def draw_sequences(of: Launches) -> Drawn:
    r = of.drawn
    lengths = [(r.choice([0, 1, r.randint(2, 400)]), r.randint(1, 500)) for _ in range(r.randint(2, 6))]
    lengths = [(max(2, lengths[0][0]), 2), *lengths[1:]]
    lengths = [(m, max(m, n)) for m, n in lengths]
    starts, key_starts = (
        [sum(each[side] for each in lengths[:at]) for at in range(len(lengths) + 1)] for side in (0, 1)
    )
    q, k, v = of.tensors((starts[-1] + 3, 4, of.dims), *2 * [(key_starts[-1] + 2, 2, of.dims)])
    whole, out = of.guarded(q.shape)
    out[starts[-1] :] = UNTOUCHED
    wanted = torch.full(q.shape, UNTOUCHED, device=of.device)
    for (m, n), begin, first in zip(lengths, starts, key_starts, strict=False):
        keys, values = (x[first : first + n].transpose(0, 1).repeat_interleave(2, 0) for x in (k, v))
        rows = slice(begin, begin + m)
        wanted[rows] = _attend(q[rows].transpose(0, 1), keys, values, _seen(of, m, n)).transpose(0, 1)
    longest = max(2, *(m for m, _ in lengths))
    return (q, k, v, out, of.integers(starts), of.integers(key_starts), longest, of.mask), whole, out, wanted


def draw_pages(of: Launches) -> Drawn:
    batch, groups, shared, page, r = 3, 2, 4, 64, of.drawn
    lengths = [r.choice([0, r.randint(1, 1500)]) for _ in range(batch)]
    counts = [-(-each // page) for each in lengths]
    own = r.sample(range(sum(counts) + 2), sum(counts))
    table = torch.full([batch, max(2, *counts) + r.randint(0, 3)], -1, dtype=torch.int32)
    for b, count in enumerate(counts):
        table[b, :count], own = torch.tensor(own[:count], dtype=torch.int32), own[count:]
    q, k, v = of.tensors((batch, groups, shared, of.dims), *2 * [(sum(counts) + 2, page, groups, of.dims)])
    whole, out = of.guarded(q.shape)
    wanted = torch.zeros(q.shape, device=of.device)
    for b, n in enumerate(lengths):
        held = table[b, : counts[b]].long().to(of.device)
        keys, values = (x[held].flatten(0, 1)[:n].transpose(0, 1) for x in (k, v))
        wanted[b] = _attend(q[b], keys, values, torch.ones(1, n, dtype=torch.bool, device=of.device))
    return (q, k, v, out, table.to(of.device), of.integers(lengths), page), whole, out, wanted


def draw_listed(of: Launches) -> Drawn:
    size, heads, tiles, most = 64, of.drawn.randint(2, 4), of.drawn.randint(2, 8), of.drawn.randint(2, 12)
    q, k, v = of.tensors((heads, tiles * size, of.dims), *2 * [(heads, most * size, of.dims)])
    counts = [[of.drawn.randint(1, most) for _ in range(tiles)] for _ in range(heads)]
    blocks = [[of.drawn.sample(range(most), most) for _ in range(tiles)] for _ in range(heads)]
    seen = torch.zeros(heads, tiles, most, dtype=torch.bool)
    for h, t in ((h, t) for h in range(heads) for t in range(tiles)):
        seen[h, t, blocks[h][t][: counts[h][t]]] = True
    wide = seen.to(of.device).repeat_interleave(size, 1).repeat_interleave(size, 2)
    whole, out = of.guarded(q.shape)
    return (q, k, v, out, of.integers(blocks), of.integers(counts), size), whole, out, _attend(q, k, v, wide)


KINDS: dict[str, tuple[Callable[..., Any], Callable[[Launches], Drawn], dict[str, Any]]] = {
    "forward": (forward, draw_forward, {}),
    "wide": (forward, draw_forward, {"block_sizes": [128, 128], "wgmma_kv_stages": 2}),
    "decode": (decode, draw_decode, {"wgmma_key_splits": 3}),
    "sequences": (sequences, draw_sequences, {}),
    "pages": (pages, draw_pages, {"wgmma_key_splits": 3}),
    "listed": (listed, draw_listed, {}),
}
"""The kernel of each kind, its random launches, and the config keys other than the default."""


def launch(name: str, launches: int, seed: int, until: float, say: Callable[..., None], same: bool = False) -> None:
    """Launch a kind until ``until``, at most ``launches`` times, and write a line of what differs."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    function, draw, changes = KINDS[name.split("-")[0]]
    torch.manual_seed(seed)
    pool = (torch.randn(3, POOL, device=device) + 0.2).bfloat16()
    of = Launches(name=name, drawn=random.Random(seed), pool=pool, device=device)
    settings = {"backend": "cute", "static_shapes": False, "ignore_warnings": [helion.exc.TensorOperationInWrapper]}
    given, *_ = draw(Launches(name=name, drawn=random.Random(1), pool=pool, device=device))
    first = helion.kernel(function, **settings).bind(given).default_config()
    kernel = helion.kernel(function, config=helion.Config(**{**first, **changes}), **settings)
    slowest, done = 0.0, 0
    found = torch.zeros(3, device=device, dtype=torch.float64)
    drawn = draw(of)
    while done < launches and time.monotonic() < until:
        drawn = drawn if same or not done else draw(of)
        given, whole, out, wanted = drawn
        began = time.monotonic()
        kernel(*given)
        slowest = max(slowest, time.monotonic() - began if done else 0.0)
        if not (same and done):
            before = out.clone()
            kernel(*given)
        bits = (before.view(torch.int16) != out.view(torch.int16)).sum()
        guards = (whole[:GUARD] != UNTOUCHED).sum() + (whole[-GUARD:] != UNTOUCHED).sum()
        size = wanted.norm(dim=-1)
        errors = (out.float() - wanted).norm(dim=-1) / (size + 0.05 * size.square().mean().sqrt() + 1e-6)
        found[0] = torch.maximum(found[0], errors.max().nan_to_num(9.0))
        found[1:] += torch.stack([bits, guards])
        done += 1
    worst, differing, written = found.tolist()
    ok = bool(done) and worst < BOUND and not differing and not written
    say(kind="launches", name=name, launches=done, same=same, worst=round(worst, 5), differing=int(differing), written=int(written), ok=ok, slowest_s=round(slowest, 2), seed=seed)  # fmt: skip


def writer(path: Path) -> Callable[..., None]:
    """Return a function that prints a line of JSON and adds it to a file."""

    def say(**line: Any) -> None:
        text = json.dumps(line)
        print(text, flush=True)
        with path.open("a") as file:
            file.write(text + "\n")

    return say


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="+", metavar="KIND:LAUNCHES:SEED")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--same", action="store_true")
    options = parser.parse_args(arguments)
    until, say = time.monotonic() + options.seconds, writer(options.out)
    for each in options.kinds:
        name, launches, seed = each.split(":")
        launch(name, int(launches), int(seed), until, say, options.same)


if __name__ == "__main__":
    main()
