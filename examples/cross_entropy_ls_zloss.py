"""Cross-entropy with label smoothing and a penalty on the normalizer, per row of logits.

The kernel needs three reductions over one row (maximum, sum of exponentials, sum) and a gathered logit. The penalty,
known as z-loss, keeps `logsumexp` near 0 and thereby the logits from drifting.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def cross_entropy_ls_zloss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    smoothing: float = 0.1,
    z_weight: float = 1e-4,
    ignore_index: int = -100,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute fp32 losses of the rows of contiguous `logits[N, classes]`, and the part `z_weight * logsumexp ** 2` of
    each.

    The label has weight `1 - smoothing`, and `smoothing` is spread over all classes. Rows whose label is
    `ignore_index` give 0.
    """
    n, classes = logits.size()
    assert labels.size(0) == n, f"{labels.size(0)} labels for {n} rows"
    flat = logits.view(-1)
    losses = torch.empty([n], dtype=torch.float32, device=logits.device)
    z_losses = torch.empty([n], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(n):
        label = labels[tile]
        counted = label != ignore_index
        row = logits[tile, :].to(torch.float32)
        highest = torch.amax(row, dim=-1)
        normaliser = highest + torch.log(torch.sum(torch.exp(row - highest[:, None]), dim=-1))
        average = torch.sum(row, dim=-1) / classes
        picked = hl.load(flat, [tile.index * classes + torch.where(counted, label, 0)]).to(torch.float32)
        z_loss = z_weight * normaliser * normaliser
        loss = normaliser - (1 - smoothing) * picked - smoothing * average + z_loss
        losses[tile] = torch.where(counted, loss, 0.0)
        z_losses[tile] = torch.where(counted, z_loss, 0.0)
    return losses, z_losses


def reference(
    logits: torch.Tensor,
    labels: torch.Tensor,
    smoothing: float = 0.1,
    z_weight: float = 1e-4,
    ignore_index: int = -100,
) -> tuple[torch.Tensor, torch.Tensor]:
    smoothed = torch.nn.functional.cross_entropy(
        logits, labels, reduction="none", label_smoothing=smoothing, ignore_index=ignore_index
    )
    z_loss = torch.where(labels == ignore_index, 0.0, z_weight * torch.logsumexp(logits, dim=-1) ** 2)
    return smoothed + z_loss, z_loss


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    logits = torch.randn([33, 301], device=DEVICE) * 3 + 5
    labels = torch.randint(0, 301, [33], dtype=torch.int64, device=DEVICE)
    labels[::7] = -100
    short = torch.where(labels < 0, labels, labels % 77)
    return [
        ("fp32", cross_entropy_ls_zloss, (logits, labels)),
        ("bf16, much smoothing", cross_entropy_ls_zloss, (logits.bfloat16(), labels, 0.5, 1e-2)),
        ("fp16, 77 classes, none ignored", cross_entropy_ls_zloss, (logits[:, :77].half().contiguous(), short % 77)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
