"""Kernels that the heuristics are tested on, one by one, and how to ask them."""

from __future__ import annotations

import dataclasses
import functools

import torch
from harness import facts_of, tensor
from sample_kernels import attention

import helion.language as hl
from helion._compiler.facts.records import KernelFacts
from helion.autotuner.proposal import Declined, Heuristic, Proposal
from helion.hardware import Target, target

BF16, FP32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
B200 = target("b200")
#: An H100 with another matrix unit, to which rows for its own do not apply: what is published for it.
H100 = dataclasses.replace(
    target("h100"),
    name="sm_9x",
    features=B200.features,
    tensor_memory_columns=B200.tensor_memory_columns,
    tensor_memory_bytes_per_sm=B200.tensor_memory_bytes_per_sm,
)


def proposed(heuristic: Heuristic, facts: KernelFacts, gpu: Target) -> tuple[Proposal, ...]:
    found = heuristic.propose(facts, gpu)
    assert not isinstance(found, Declined), found.reason
    return found


def reason(heuristic: Heuristic, facts: KernelFacts, gpu: Target) -> str:
    """Why it declines; empty where it does not."""
    found = heuristic.propose(facts, gpu)
    return found.reason if isinstance(found, Declined) else ""


# --- kernels -------------------------------------------------------------------------------------------------------------


def matmul_layer_norm(x, y, weight, bias):
    m, k = x.size()
    n = hl.specialize(y.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        variance, mean = torch.var_mean(acc, dim=-1, keepdim=True, correction=0)
        out[tile_m, :] = (acc - mean) * torch.rsqrt(variance + 1e-5) * weight[:] + bias[:]
    return out


def matmul_rms_norm_tiled(x, y):
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        squares = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            squares = squares + torch.sum(acc * acc, dim=-1)
            out[tile_m, tile_n] = acc
        scale = torch.rsqrt(squares / n + 1e-6)
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = out[tile_m, tile_n].to(torch.float32) * scale[:, None]
    return out


def matmul_largest(x, y):
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            highest = torch.maximum(highest, torch.amax(acc, dim=-1))
        out[tile_m] = highest
    return out


def distance_of_products(x, y, z):
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            left = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                left = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=left)
            right = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                right = hl.dot(x[tile_m, tile_k], z[tile_k, tile_n], acc=right)
            total = total + torch.sum(torch.abs(left - right), dim=-1)
        out[tile_m] = total
    return out


def split_k(x, y):
    m, k = x.size()
    n = y.size(1)
    out = torch.zeros([m, n], dtype=torch.float32, device=x.device)
    for tile_m, tile_n, span in hl.tile([m, n, k]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(span.begin, span.end):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        hl.atomic_add(out, [tile_m, tile_n], acc)
    return out


def parts_then_sum(x, y):
    m, k = x.size()
    n = y.size(1)
    span = (k + 3) // 4
    parts = torch.empty([4, m, n], dtype=torch.float32, device=x.device)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for tile_s, tile_m, tile_n in hl.tile([4, m, n], block_size=[1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(tile_s.begin * span, min(tile_s.begin * span + span, k)):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
        parts[tile_s.begin, tile_m, tile_n] = acc
    hl.barrier()
    for tile_m, tile_n in hl.tile([m, n]):
        out[tile_m, tile_n] = torch.sum(parts[:, tile_m, tile_n], dim=0)
    return out


def grouped(x, y, offsets):
    rows, k = x.size()
    groups, _, n = y.size()
    out = torch.empty([rows, n], dtype=x.dtype, device=x.device)
    for tile_g, tile_n in hl.tile([groups, n], block_size=[1, None]):
        group = tile_g.begin
        for tile_m in hl.tile(offsets[group], offsets[group + 1]):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = hl.dot(x[tile_m, tile_k], y[group, tile_k, tile_n], acc=acc)
            out[tile_m, tile_n] = acc
    return out


def halves(x, y, z):
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = hl.dot(x[tile_m, tile_k], y[tile_k, tile_n], acc=acc)
            acc = hl.dot(x[tile_m, tile_k], z[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def rms_norm(x, weight):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].to(torch.float32)
        scale = torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-6)
        out[tile, :] = row * scale * weight[:].to(torch.float32)
    return out


def sum_then_scale(x):
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        total = x[tile_m, :].to(torch.float32).sum(-1)
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = x[tile_m, tile_n] / total[:, None]
    return out


def two_pass_softmax(x):
    m, n = x.size()
    out = torch.empty_like(x)
    block_m = hl.register_block_size(m)
    block_n = hl.register_block_size(n)
    for tile_m in hl.tile(m, block_size=block_m):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n, block_size=block_n):
            values = x[tile_m, tile_n].to(torch.float32)
            raised = torch.maximum(highest, torch.amax(values, dim=1))
            total = total * torch.exp(highest - raised) + torch.sum(torch.exp(values - raised[:, None]), dim=1)
            highest = raised
        for tile_n in hl.tile(n, block_size=block_n):
            out[tile_m, tile_n] = torch.exp(x[tile_m, tile_n].to(torch.float32) - highest[:, None]) / total[:, None]
    return out


def welford(x):
    m, n = x.size()
    out = torch.empty_like(x)
    for tile_m in hl.tile(m):
        mean = hl.zeros([tile_m], dtype=torch.float32)
        square = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            values = x[tile_m, tile_n].to(torch.float32)
            mean = mean + torch.sum(values, dim=-1)
            square = square + torch.sum(values * values, dim=-1)
        for tile_n in hl.tile(n):
            out[tile_m, tile_n] = (x[tile_m, tile_n].to(torch.float32) - mean[:, None]) * square[:, None]
    return out


def kl_div(prediction, truth):
    rows, classes = prediction.size()
    loss = torch.empty([rows], dtype=torch.float32, device=prediction.device)
    block_v = hl.register_block_size(classes)
    block_r = hl.register_block_size(rows)
    for tile_r in hl.tile(rows, block_size=block_r):
        acc = hl.zeros([tile_r, block_v], dtype=torch.float32)
        for tile_v in hl.tile(classes, block_size=block_v):
            log_p = prediction[tile_r, tile_v]
            q = truth[tile_r, tile_v]
            acc += torch.exp(q) * (q - log_p)
        loss[tile_r] = acc.sum(dim=-1)
    return loss


def norm_gradient(x, grad):
    m, n = x.size()
    n = hl.specialize(n)
    block = hl.register_block_size(m)
    partial = torch.empty([(m + block - 1) // block, n], dtype=torch.float32, device=x.device)
    for outer in hl.tile(m, block_size=block):
        acc = hl.zeros([n], dtype=torch.float32)
        for inner in hl.tile(outer.begin, outer.end):
            acc += (x[inner, :].to(torch.float32) * grad[inner, :].to(torch.float32)).sum(0)
        partial[outer.id, :] = acc
    return partial


def gelu(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        value = x[tile].to(torch.float32)
        out[tile] = 0.5 * value * (1 + torch.tanh(0.79788456 * (value + 0.044715 * value * value * value)))
    return out


def nine_sines(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        value = torch.sin(torch.sin(torch.sin(x[tile])))
        value = torch.sin(torch.sin(torch.sin(value)))
        out[tile] = torch.sin(torch.sin(torch.sin(value)))
    return out


@functools.cache
def attention_facts(head: int) -> KernelFacts:
    return facts_of(attention, tensor(16, 2048, head), tensor(16, head, 2048), tensor(16, 2048, head))
