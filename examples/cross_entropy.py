"""Cross-entropy loss per row from logits and class indices.

The kernel combines a reduction over the row (a stable log-sum-exp) with a gather: `hl.load` takes one computed
address per row of the flattened logits.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute the fp32 loss `logsumexp(logits[i, :]) - logits[i, labels[i]]` of each row of contiguous `logits[N,
    classes]`."""
    n, classes = logits.size()
    assert labels.size(0) == n, f"{labels.size(0)} labels for {n} rows"
    flat = logits.view(-1)
    losses = torch.empty([n], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(n):
        row = logits[tile, :].to(torch.float32)
        highest = torch.amax(row, dim=-1)
        log_total = torch.log(torch.sum(torch.exp(row - highest[:, None]), dim=-1))
        picked = hl.load(flat, [tile.index * classes + labels[tile]]).to(torch.float32)
        losses[tile] = log_total + highest - picked
    return losses


def reference(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    logits = torch.randn([63, 1000], device=DEVICE) * 3 + 5
    labels = torch.randint(0, 1000, [63], dtype=torch.int64, device=DEVICE)
    return [
        ("fp32", cross_entropy, (logits, labels)),
        ("bf16", cross_entropy, (logits.bfloat16(), labels)),
        ("fp16, 77 classes", cross_entropy, (logits[:, :77].half().contiguous(), labels % 77)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
