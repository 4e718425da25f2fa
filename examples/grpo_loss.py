"""Loss of group relative policy optimization per token, and its gradient with respect to the logits.

One pass over the vocabulary finds the log-probability of each generated token, gathered by index. From it follows the
clipped policy loss with its penalty for leaving the reference model. A second pass writes the gradient.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def grpo_loss(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    old: torch.Tensor,
    anchor: torch.Tensor,
    advantages: torch.Tensor,
    keep: torch.Tensor | None = None,
    beta: float = 0.04,
    clip: float = 0.2,
    temperature: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute fp32 losses `[B, L]` and the gradient `[B, L, V]` of their sum with respect to `logits[B, L, V]`.

    `tokens[B, L]` are the generated tokens. `old[B, L]` are their log-probabilities under the policy that generated
    them, `anchor[B, L]` those under the reference model. `advantages[B]` is one number per sequence. Losses are
    multiplied by `keep[B, L]`.
    """
    batch, length, vocabulary = logits.size()
    losses = torch.empty([batch, length], dtype=torch.float32, device=logits.device)
    grad = torch.empty_like(logits)
    for tile_b, tile_l in hl.tile([batch, length]):
        highest = hl.full([tile_b, tile_l], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_b, tile_l], dtype=torch.float32)
        for tile_v in hl.tile(vocabulary):
            values = logits[tile_b, tile_l, tile_v].to(torch.float32) / temperature
            raised = torch.maximum(highest, torch.amax(values, dim=-1))
            partial = torch.sum(torch.exp(values - raised[:, :, None]), dim=-1)
            total = total * torch.exp(highest - raised) + partial
            highest = raised
        normaliser = highest + torch.log(total)
        token = tokens[tile_b, tile_l]
        picked = logits[tile_b.index[:, None], tile_l.index[None, :], token].to(torch.float32)
        log_p = picked / temperature - normaliser

        advantage = advantages[tile_b][:, None].to(torch.float32)
        ratio = torch.exp(log_p - old[tile_b, tile_l].to(torch.float32))
        free = ratio * advantage
        clipped = torch.clamp(ratio, 1 - clip, 1 + clip) * advantage
        drift = anchor[tile_b, tile_l].to(torch.float32) - log_p
        loss = beta * (torch.exp(drift) - drift - 1) - torch.minimum(free, clipped)
        slope = beta * (1 - torch.exp(drift)) - torch.where(free <= clipped, free, 0.0)
        if keep is not None:
            loss = loss * keep[tile_b, tile_l]
            slope = slope * keep[tile_b, tile_l]
        losses[tile_b, tile_l] = loss

        slope = slope / temperature
        for tile_v in hl.tile(vocabulary):
            values = logits[tile_b, tile_l, tile_v].to(torch.float32) / temperature
            share = torch.exp(values - normaliser[:, :, None])
            hit = tile_v.index[None, None, :] == token[:, :, None]
            grad[tile_b, tile_l, tile_v] = slope[:, :, None] * (torch.where(hit, 1.0, 0.0) - share)
    return losses, grad


def reference(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    old: torch.Tensor,
    anchor: torch.Tensor,
    advantages: torch.Tensor,
    keep: torch.Tensor | None = None,
    beta: float = 0.04,
    clip: float = 0.2,
    temperature: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = logits.detach().requires_grad_()
    log_p = torch.log_softmax(logits / temperature, dim=-1).gather(-1, tokens.long()[:, :, None]).squeeze(-1)
    ratio = torch.exp(log_p - old)
    drift = anchor - log_p
    gain = torch.minimum(ratio * advantages[:, None], ratio.clamp(1 - clip, 1 + clip) * advantages[:, None])
    losses = beta * (torch.exp(drift) - drift - 1) - gain
    if keep is not None:
        losses = losses * keep
    (grad,) = torch.autograd.grad(losses.sum(), logits)
    return losses.detach(), grad


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    logits = torch.randn([3, 13, 77], device=DEVICE) + 0.5
    tokens = torch.randint(0, 77, [3, 13], dtype=torch.int64, device=DEVICE)
    current = torch.log_softmax(logits, dim=-1).gather(-1, tokens[:, :, None]).squeeze(-1)
    old = current + torch.randn([3, 13], device=DEVICE) * 0.3
    anchor = current + torch.randn([3, 13], device=DEVICE) * 0.3
    advantages = torch.randn([3], device=DEVICE)
    keep = (torch.arange(13, device=DEVICE)[None, :] < torch.tensor([[13], [5], [9]], device=DEVICE)).float()
    return [
        ("fp32", grpo_loss, (logits, tokens, old, anchor, advantages)),
        ("bf16, masked", grpo_loss, (logits.bfloat16(), tokens, old, anchor, advantages, keep)),
        ("fp16, temperature", grpo_loss, (logits.half(), tokens.int(), old, anchor, advantages, keep, 0.1, 0.1, 0.9)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
