"""Jensen-Shannon divergence of two models' predictions, computed from their last hidden states.

The first form leaves the matmuls to cuBLAS and fuses the rest over whole rows of logits. The second never stores the
logits. One pass over the vocabulary finds the normalizers, another computes the logits again. It needs no memory
beyond the inputs, and twice the work.
"""

from __future__ import annotations

import math
from typing import Any

import torch

import helion
import helion.language as hl
from helion.testing import DEVICE, run_cases


@helion.kernel(ignore_warnings=[helion.exc.TensorOperationInWrapper])
def fused_linear_jsd(
    student: torch.Tensor,
    student_weight: torch.Tensor,
    teacher: torch.Tensor,
    teacher_weight: torch.Tensor,
    beta: hl.constexpr = 0.5,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Compute the fp32 mean over rows of the divergence between student and teacher. Their distributions are the
    softmaxes of `student @ student_weight.T / temperature` and of the same for the teacher.

    States are `[M, H]`, weights `[V, H]`; M and V are shared, H is each model's own. 0 < `beta` < 1 weighs the teacher.
    """
    assert student.size(0) == teacher.size(0), (
        f"{student.size(0)} rows of the student, {teacher.size(0)} of the teacher"
    )
    assert student_weight.size(0) == teacher_weight.size(0), "the models must share a vocabulary"
    m, vocabulary = student.size(0), student_weight.size(0)
    student_logits = (student @ student_weight.T).view(m, vocabulary)
    teacher_logits = (teacher @ teacher_weight.T).view(m, vocabulary)
    losses = torch.empty([m], dtype=torch.float32, device=student.device)
    for tile in hl.tile(m):
        log_q = torch.log_softmax(student_logits[tile, :].to(torch.float32) / temperature, dim=-1)
        log_p = torch.log_softmax(teacher_logits[tile, :].to(torch.float32) / temperature, dim=-1)
        log_mix = torch.logaddexp(log_p + math.log(beta), log_q + math.log(1 - beta))
        from_p = beta * torch.exp(log_p) * (log_p - log_mix)
        from_q = (1 - beta) * torch.exp(log_q) * (log_q - log_mix)
        losses[tile] = torch.sum(from_p + from_q, dim=-1)
    return losses.mean()


@helion.kernel(ignore_warnings=[helion.exc.TensorOperationInWrapper])
def fused_linear_jsd_tiled(
    student: torch.Tensor,
    student_weight: torch.Tensor,
    teacher: torch.Tensor,
    teacher_weight: torch.Tensor,
    beta: hl.constexpr = 0.5,
    temperature: float = 1.0,
) -> torch.Tensor:
    """Compute the same without logits in memory."""
    m, student_width = student.size()
    vocabulary, teacher_width = teacher_weight.size()
    assert teacher.size(0) == m, f"{m} rows of the student, {teacher.size(0)} of the teacher"
    assert student_weight.size(0) == vocabulary, "the models must share a vocabulary"
    losses = torch.empty([m], dtype=torch.float32, device=student.device)
    for tile_m in hl.tile(m):
        highest_q = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        highest_p = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total_q = hl.zeros([tile_m], dtype=torch.float32)
        total_p = hl.zeros([tile_m], dtype=torch.float32)
        for tile_v in hl.tile(vocabulary):
            q = hl.zeros([tile_m, tile_v], dtype=torch.float32)
            for tile_h in hl.tile(student_width):
                q = hl.dot(student[tile_m, tile_h], student_weight[tile_v, tile_h].T, acc=q)
            p = hl.zeros([tile_m, tile_v], dtype=torch.float32)
            for tile_h in hl.tile(teacher_width):
                p = hl.dot(teacher[tile_m, tile_h], teacher_weight[tile_v, tile_h].T, acc=p)
            q = q / temperature
            p = p / temperature
            raised_q = torch.maximum(highest_q, torch.amax(q, dim=-1))
            raised_p = torch.maximum(highest_p, torch.amax(p, dim=-1))
            total_q = total_q * torch.exp(highest_q - raised_q) + torch.exp(q - raised_q[:, None]).sum(-1)
            total_p = total_p * torch.exp(highest_p - raised_p) + torch.exp(p - raised_p[:, None]).sum(-1)
            highest_q = raised_q
            highest_p = raised_p
        normaliser_q = highest_q + torch.log(total_q)
        normaliser_p = highest_p + torch.log(total_p)
        acc = hl.zeros([tile_m], dtype=torch.float32)
        for tile_v in hl.tile(vocabulary):
            q = hl.zeros([tile_m, tile_v], dtype=torch.float32)
            for tile_h in hl.tile(student_width):
                q = hl.dot(student[tile_m, tile_h], student_weight[tile_v, tile_h].T, acc=q)
            p = hl.zeros([tile_m, tile_v], dtype=torch.float32)
            for tile_h in hl.tile(teacher_width):
                p = hl.dot(teacher[tile_m, tile_h], teacher_weight[tile_v, tile_h].T, acc=p)
            log_q = q / temperature - normaliser_q[:, None]
            log_p = p / temperature - normaliser_p[:, None]
            log_mix = torch.logaddexp(log_p + math.log(beta), log_q + math.log(1 - beta))
            from_p = beta * torch.exp(log_p) * (log_p - log_mix)
            from_q = (1 - beta) * torch.exp(log_q) * (log_q - log_mix)
            acc += torch.sum(from_p + from_q, dim=-1)
        losses[tile_m] = acc
    return losses.mean()


def reference(
    student: torch.Tensor,
    student_weight: torch.Tensor,
    teacher: torch.Tensor,
    teacher_weight: torch.Tensor,
    beta: float = 0.5,
    temperature: float = 1.0,
) -> torch.Tensor:
    q = torch.softmax(student @ student_weight.T / temperature, dim=-1)
    p = torch.softmax(teacher @ teacher_weight.T / temperature, dim=-1)
    mix = beta * p + (1 - beta) * q
    divergence = beta * p * torch.log(p / mix) + (1 - beta) * q * torch.log(q / mix)
    return divergence.sum() / student.size(0)


def cases() -> list[tuple[str, helion.Kernel, tuple[Any, ...]]]:
    torch.manual_seed(0)
    student = torch.randn([19, 33], device=DEVICE) + 0.5
    teacher = torch.randn([19, 45], device=DEVICE) - 0.5
    student_weight = torch.randn([77, 33], device=DEVICE) * 0.2
    teacher_weight = torch.randn([77, 45], device=DEVICE) * 0.3
    args = (student, student_weight, teacher, teacher_weight)
    return [
        ("fp32", fused_linear_jsd, args),
        # half types would round the logits, which the reference does not
        ("fp32, temperature 2", fused_linear_jsd, (*args, 0.5, 2.0)),
        ("fp32, beta 0.1", fused_linear_jsd, (*args, 0.1)),
        ("tiled, fp32", fused_linear_jsd_tiled, args),
        ("tiled, bf16, temperature 2", fused_linear_jsd_tiled, (*(arg.bfloat16() for arg in args), 0.5, 2.0)),
        ("tiled, fp16, beta 0.1", fused_linear_jsd_tiled, (*(arg.half() for arg in args), 0.1)),
    ]


def main() -> None:
    run_cases(cases(), reference)


if __name__ == "__main__":
    main()
