"""Launch gradients of attention with random sizes: values beside fp32, and bits of two launches.

    python test/backends/cute/gradient_launches.py --out FILE [--seconds N] [--each N] KIND:DIMS:MASK:SEED ...

A kind is one of ``KINDS``. One config serves all sizes. Half of them are multiples of 8, of which TMA loads numbers per row.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "test")]

from backends.cute import backward_kernels as kernels  # noqa: E402

import helion  # noqa: E402
from benchmarks.attention_launches import writer  # noqa: E402

LIMIT = 4e-3
"""The largest error of an output, relative to the norm of what its differences round relative to."""
STEPS = (1, 8)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kernel, its outputs, the heads that share keys, and its layout; ``ordered`` ones give the same bits in every launch."""

    kernel: Callable[..., Any]
    outputs: str
    shared: int = 1
    turned: bool = False
    ordered: bool = True


KINDS = {
    "queries": Kind(kernel=kernels.gradient_of_queries, outputs="q", shared=2),
    "keys": Kind(kernel=kernels.gradients_of_keys, outputs="kv"),
    "shared": Kind(kernel=kernels.gradients_of_shared_keys, outputs="kv", shared=2, turned=True),
    "all": Kind(kernel=kernels.all_gradients, outputs="qkv", shared=2, ordered=False),
    "bias": Kind(kernel=kernels.gradient_of_queries_and_bias, outputs="qb"),
}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a launch."""

    batch: int
    groups: int
    m: int
    n: int


def drawn(kind: Kind, causal: bool, most: int, source: random.Random) -> Iterator[Sizes]:
    """Yield sizes, the first of them fixed."""
    groups = 2
    yield Sizes(batch=2, groups=groups, m=most // 8 * 8, n=most // 8 * 8)
    while True:
        step = source.choice(STEPS)
        n = source.randint(2, most // step) * step
        m = min(n if causal else most, source.randint(2, most // step) * step)
        m = n if kind.kernel is kernels.gradients_of_keys and causal else m
        yield Sizes(batch=source.randint(2, 3), groups=groups if kind.turned else source.randint(2, 3), m=m, n=n)


def truth(q: Any, k: Any, v: Any, do: Any, causal: bool, bias: Any) -> tuple[Any, Any, dict[str, tuple[Any, Any]]]:
    """Return logarithms of sums, row sums, and each gradient in fp32 with the magnitude of its terms."""
    shared = q.shape[1] // k.shape[1]
    q, k, v, do = (x.float() for x in (q, k, v, do))
    wide, values = (x.repeat_interleave(shared, 1) for x in (k, v))
    m, n, scale = q.shape[2], k.shape[2], q.shape[3] ** -0.5
    scores = q @ wide.mT * scale
    scores = scores if bias is None else scores + bias.float()
    if causal:
        scores = scores.masked_fill(~torch.ones(m, n, dtype=torch.bool, device=q.device).tril(n - m), float("-inf"))
    logsum = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - logsum[..., None])
    delta, changes = (do * (weights @ values)).sum(-1), do @ values.mT
    differences = weights * (changes - delta[..., None])
    size = weights * (changes.abs() + delta.abs()[..., None])

    def summed(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(1, (-1, shared)).sum(2)

    return (
        logsum,
        delta,
        {
            "q": (differences @ wide * scale, size @ wide.abs() * scale),
            "k": (summed(differences.mT @ q) * scale, summed(size.mT @ q.abs()) * scale),
            "v": (summed(weights.mT @ do), summed(weights.mT @ do.abs())),
            "b": (differences, size),
        },
    )


def launch(name: str, most: int, launches: int, until: float, seconds: float, say: Callable[..., None]) -> None:
    """Launch a kind until ``until``, for at most ``seconds`` after its compilation, and write a line of its errors."""
    which, dims, mask, seed = name.split(":")
    kind, causal, dims = KINDS[which], mask == "causal", int(dims)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(int(seed))
    elements = max(9 * most * most if which == "bias" else 0, 3 * 6 * most * dims)
    pool = (torch.randn(5, elements, device=device) + 0.1).bfloat16()
    settings: dict[str, Any] = {"backend": "cute", "static_shapes": False}
    kernel, done, slowest, end = None, 0, 0.0, until
    found = torch.zeros(2, device=device, dtype=torch.float64)
    for sizes in drawn(kind, causal, most, random.Random(int(seed))):
        heads = sizes.groups * kind.shared
        shapes = [(heads, sizes.m), (sizes.groups, sizes.n), (sizes.groups, sizes.n), (heads, sizes.m)]
        plain = [
            x[: sizes.batch * h * rows * dims].view(sizes.batch, h, rows, dims)
            for x, (h, rows) in zip(pool, shapes, strict=False)
        ]
        given = [x.transpose(1, 2).contiguous() if kind.turned else x for x in plain]
        of_bias = (sizes.batch, heads, sizes.m, sizes.n)
        bias = pool[4][: torch.Size(of_bias).numel()].view(of_bias) if which == "bias" else None
        logsum, delta, wanted = truth(*plain, causal, bias)
        arguments = (*given, logsum, delta, causal if bias is None else bias)
        if kernel is None:
            config = helion.kernel(kind.kernel, **settings).bind(arguments).default_config()
            kernel = helion.kernel(kind.kernel, config=config, **settings)
        began = time.monotonic()
        both = [kernel(*arguments) for _ in range(2)]
        slowest = max(slowest, time.monotonic() - began if done else 0.0)
        one, other = ((each,) if torch.is_tensor(each) else each for each in both)
        for result, again, what in zip(one, other, kind.outputs, strict=True):
            value, size = wanted[what]
            result = result.transpose(1, 2) if kind.turned else result
            found[0] = torch.maximum(found[0], ((result.float() - value).norm() / size.norm()).nan_to_num(9.0))
            found[1] += (result != (again.transpose(1, 2) if kind.turned else again)).sum() if kind.ordered else 0
        if not done and device == "cuda":
            torch.cuda.synchronize()
        end = min(until, time.monotonic() + seconds) if not done else end
        done += 2
        if done >= launches or time.monotonic() > end:
            break
    worst, differing = found.tolist()
    say(job="gradient launches", kind="check", name=name, launches=done, error=round(worst, 5), differing=int(differing), ok=worst < LIMIT and not differing, slowest_s=round(slowest, 2))  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="KIND:DIMS:MASK:SEED")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--each", type=float, default=40.0, help="seconds of a kind after its compilation")
    parser.add_argument("--launches", type=int, default=10_000)
    parser.add_argument("--most", type=int, default=700, help="the most rows")
    options = parser.parse_args(arguments)
    until, say = time.monotonic() + options.seconds, writer(options.out)
    for name in options.names:
        if time.monotonic() < until:
            launch(name, options.most, options.launches, until, options.each, say)


if __name__ == "__main__":
    main()
