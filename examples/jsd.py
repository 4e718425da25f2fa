"""Generalized Jensen-Shannon divergence between two rows of log-probabilities, and its gradient.

Distillation needs the loss and the gradient of the student's log-probabilities; both are computed in one pass. The
logarithm of the mixture is a log-add-exp, so probabilities that underflow give no NaN.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel()
def jsd(student: torch.Tensor, teacher: torch.Tensor, beta: hl.constexpr = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute fp32 `beta KL(teacher, mix) + (1 - beta) KL(student, mix)` of each row, the mixture in the same
    proportions.

    `student[M, N]` and `teacher[M, N]` hold log-probabilities; 0 < `beta` < 1. Returns the losses `[M]` and the
    gradient `[M, N]` of their sum with respect to `student`.
    """
    assert student.size() == teacher.size(), "student and teacher must have the same shape"
    m, n = student.size()
    losses = torch.empty([m], dtype=torch.float32, device=student.device)
    grad = torch.empty_like(student)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            log_q = student[tile_m, tile_n].to(torch.float32)
            log_p = teacher[tile_m, tile_n].to(torch.float32)
            log_mix = torch.logaddexp(log_p + math.log(beta), log_q + math.log(1 - beta))
            from_p = beta * torch.exp(log_p) * (log_p - log_mix)
            from_q = (1 - beta) * torch.exp(log_q) * (log_q - log_mix)
            acc += torch.sum(from_p + from_q, dim=-1)
            grad[tile_m, tile_n] = from_q
        losses[tile_m] = acc
    return losses, grad


def reference(student: torch.Tensor, teacher: torch.Tensor, beta: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    student = student.detach().requires_grad_()
    mix = torch.log(beta * teacher.exp() + (1 - beta) * student.exp())
    terms = beta * teacher.exp() * (teacher - mix) + (1 - beta) * student.exp() * (student - mix)
    losses = terms.sum(-1)
    (grad,) = torch.autograd.grad(losses.sum(), student)
    return losses.detach(), grad


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    student = torch.log_softmax(torch.randn([33, 301], device=DEVICE), dim=-1)
    teacher = torch.log_softmax(torch.randn([33, 301], device=DEVICE) * 2, dim=-1)
    return [
        ("fp32", jsd, (student, teacher)),
        ("fp32, beta 0.1", jsd, (student, teacher, 0.1)),
        ("fp16, 77 columns", jsd, (student[:, :77].half(), teacher[:, :77].half())),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
