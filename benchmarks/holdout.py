"""Kernels that predicted times are judged by: nothing was fitted to them, and no rule was made for them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .unseen.table import BF16, FP16, FP32, Arguments, Maker, Unseen, wide

# --- rows ---------------------------------------------------------------------------------------------------------------


@helion.kernel()
def modulated_norm(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """`norm(x[B, T, D]) * (1 + scale[B, D]) + shift[B, D]`, normalized over D."""
    b, t, _ = x.size()
    out = torch.empty_like(x)
    for tile_b, tile_t in hl.tile([b, t]):
        values = x[tile_b, tile_t, :].to(torch.float32)
        centred = values - values.mean(-1, keepdim=True)
        normal = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)
        factor = 1.0 + scale[tile_b, :].to(torch.float32)
        out[tile_b, tile_t, :] = (normal * factor[:, None, :] + shift[tile_b, :][:, None, :]).to(x.dtype)
    return out


@helion.kernel()
def hinge_margin(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """`sum_j max(0, 1 + s[j] - s[label])` of every row: one value is gathered, then the row is summed up."""
    m, n = scores.size()
    out = torch.empty([m], dtype=torch.float32, device=scores.device)
    flat = scores.view(-1)
    for tile in hl.tile(m):
        own = flat[tile.index * n + labels[tile]].to(torch.float32)
        out[tile] = torch.relu(1.0 + scores[tile, :].to(torch.float32) - own[:, None]).sum(-1)
    return out


@helion.kernel()
def triplet_loss(anchor: torch.Tensor, near: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
    """`relu(|a - n| - |a - f| + 1)` of the rows of three matrices, in tiles of columns."""
    m, n = anchor.size()
    out = torch.empty([m], dtype=torch.float32, device=anchor.device)
    for tile_m in hl.tile(m):
        first = hl.zeros([tile_m], dtype=torch.float32)
        second = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            a = anchor[tile_m, tile_n].to(torch.float32)
            to_near = a - near[tile_m, tile_n].to(torch.float32)
            to_far = a - far[tile_m, tile_n].to(torch.float32)
            first = first + (to_near * to_near).sum(-1)
            second = second + (to_far * to_far).sum(-1)
        out[tile_m] = torch.relu(torch.sqrt(first) - torch.sqrt(second) + 1.0)
    return out


@helion.kernel()
def power_mean(x: torch.Tensor) -> torch.Tensor:
    """`(mean |x|**3) ** (1/3)` over the positions of `x[B, C, P]`."""
    b, c, _ = x.size()
    out = torch.empty([b, c], dtype=torch.float32, device=x.device)
    for tile_b, tile_c in hl.tile([b, c]):
        values = torch.abs(x[tile_b, tile_c, :].to(torch.float32))
        out[tile_b, tile_c] = torch.exp(torch.log((values * values * values).mean(-1)) / 3.0)
    return out


@helion.kernel()
def centred_max(x: torch.Tensor) -> torch.Tensor:
    """`x / max |x - mean|` of each row: the second reduction waits for the first one."""
    m, _ = x.size()
    out = torch.empty_like(x)
    for tile in hl.tile(m):
        values = x[tile, :].to(torch.float32)
        far = torch.abs(values - values.mean(-1, keepdim=True)).amax(-1, keepdim=True)
        out[tile, :] = (values / far).to(x.dtype)
    return out


@helion.kernel()
def masked_token_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """fp32 mean of the tokens of `x[B, T, D]` whose `mask[B, T]` is set."""
    b, t, d = x.size()
    out = torch.empty([b, d], dtype=torch.float32, device=x.device)
    for tile_b, tile_d in hl.tile([b, d]):
        total = hl.zeros([tile_b, tile_d], dtype=torch.float32)
        count = hl.zeros([tile_b], dtype=torch.float32)
        for tile_t in hl.tile(t):
            weight = mask[tile_b, tile_t].to(torch.float32)
            total = total + (x[tile_b, tile_t, tile_d].to(torch.float32) * weight[:, :, None]).sum(1)
            count = count + weight.sum(1)
        out[tile_b, tile_d] = total / torch.clamp(count, min=1.0)[:, None]
    return out


# --- elements -----------------------------------------------------------------------------------------------------------


@helion.kernel()
def sign_momentum_step(
    weight: torch.Tensor, gradient: torch.Tensor, momentum: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of an optimizer that takes the sign of a mixture: three matrices read, two written."""
    new_weight, new_momentum = torch.empty_like(weight), torch.empty_like(momentum)
    for tile in hl.tile(weight.size()):
        w, g, m = weight[tile].to(torch.float32), gradient[tile].to(torch.float32), momentum[tile].to(torch.float32)
        mixed = 0.9 * m + 0.1 * g
        step = torch.where(mixed > 0, 1.0, torch.where(mixed < 0, -1.0, 0.0))
        new_weight[tile] = (w * 0.99 - 0.01 * step).to(weight.dtype)
        new_momentum[tile] = (0.95 * m + 0.05 * g).to(momentum.dtype)
    return new_weight, new_momentum


@helion.kernel()
def cast_both_ways(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`x[M, N]` in bfloat16, as it is and transposed."""
    m, n = x.size()
    straight = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    turned = torch.empty([n, m], dtype=torch.bfloat16, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        values = x[tile_m, tile_n].to(torch.bfloat16)
        straight[tile_m, tile_n] = values
        turned[tile_n, tile_m] = values.T
    return straight, turned


@helion.kernel()
def gated_mixture(x: torch.Tensor, y: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """`s x + (1 - s) softplus(y)` with `s = sigmoid(gate[M])` of each row."""
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        share = torch.sigmoid(gate[tile_m].to(torch.float32))[:, None]
        a, b = x[tile_m, tile_n].to(torch.float32), y[tile_m, tile_n].to(torch.float32)
        soft = torch.relu(b) + torch.log1p(torch.exp(-torch.abs(b)))
        out[tile_m, tile_n] = (share * a + (1.0 - share) * soft).to(x.dtype)
    return out


# --- products -----------------------------------------------------------------------------------------------------------


@helion.kernel()
def gated_product(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """`silu(x @ gate) * (x @ up)`: two accumulators over the same rows."""
    m, k = x.size()
    n = gate.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        first = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        second = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            rows = x[tile_m, tile_k]
            first = torch.addmm(first, rows, gate[tile_k, tile_n])
            second = torch.addmm(second, rows, up[tile_k, tile_n])
        out[tile_m, tile_n] = (F.silu(first) * second).to(x.dtype)
    return out


@helion.kernel()
def squared_gram(x: torch.Tensor) -> torch.Tensor:
    """`relu(x @ x.T) ** 2` of `x[M, K]`."""
    m, k = x.size()
    out = torch.empty([m, m], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, m]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], x[tile_n, tile_k].T)
        kept = torch.relu(acc)
        out[tile_m, tile_n] = (kept * kept).to(x.dtype)
    return out


@helion.kernel()
def scaled_residual(x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """`(x[M, K] @ w[K, N]) * gain[N] + residual[M, N]`."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        out[tile_m, tile_n] = (acc * gain[tile_n] + residual[tile_m, tile_n]).to(x.dtype)
    return out


@helion.kernel()
def bounded_scores(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """`tanh(q[B, M, D] @ k[B, N, D].T + bias[B, N])`, each batch by itself."""
    b, m, d = q.size()
    n = k.size(1)
    out = torch.empty([b, m, n], dtype=q.dtype, device=q.device)
    for tile_b, tile_m, tile_n in hl.tile([b, m, n]):
        acc = hl.zeros([tile_b, tile_m, tile_n], dtype=torch.float32)
        for tile_d in hl.tile(d):
            acc = torch.baddbmm(acc, q[tile_b, tile_m, tile_d], k[tile_b, tile_n, tile_d].transpose(1, 2))
        shifted = acc + bias[tile_b, tile_n].to(torch.float32)[:, None, :]
        out[tile_b, tile_m, tile_n] = torch.tanh(shifted).to(q.dtype)
    return out


@helion.kernel()
def product_row_maxima(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The largest element of each row of `x[M, K] @ w[K, N]`; the product itself is not written."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_m in hl.tile(m):
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        for tile_n in hl.tile(n):
            acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
            for tile_k in hl.tile(k):
                acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
            top = torch.maximum(top, acc.amax(-1))
        out[tile_m] = top
    return out


# --- the same in PyTorch ------------------------------------------------------------------------------------------------


def _modulated(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    normal = F.layer_norm(wide(x), x.shape[-1:])
    return (normal * (1 + wide(scale)[:, None]) + wide(shift)[:, None]).to(x.dtype)


def _hinge(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    own = wide(scores).gather(1, labels[:, None])
    return torch.relu(1 + wide(scores) - own).sum(-1)


def _triplet(anchor: torch.Tensor, near: torch.Tensor, far: torch.Tensor) -> torch.Tensor:
    to_near, to_far = ((wide(anchor) - wide(other)).norm(dim=-1) for other in (near, far))
    return torch.relu(to_near - to_far + 1)


def _power_mean(x: torch.Tensor) -> torch.Tensor:
    return wide(x).abs().pow(3).mean(-1).pow(1 / 3)


def _centred_max(x: torch.Tensor) -> torch.Tensor:
    values = wide(x)
    return (values / (values - values.mean(-1, keepdim=True)).abs().amax(-1, keepdim=True)).to(x.dtype)


def _token_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weight = mask.to(wide(x).dtype)
    return (wide(x) * weight[:, :, None]).sum(1) / weight.sum(1).clamp(min=1)[:, None]


def _sign_step(
    weight: torch.Tensor, gradient: torch.Tensor, momentum: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    step = torch.sign(0.9 * wide(momentum) + 0.1 * wide(gradient))
    new = 0.95 * wide(momentum) + 0.05 * wide(gradient)
    return (wide(weight) * 0.99 - 0.01 * step).to(weight.dtype), new.to(momentum.dtype)


def _both_ways(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.to(BF16), x.to(BF16).T.contiguous()


def _mixture(x: torch.Tensor, y: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    share = torch.sigmoid(wide(gate))[:, None]
    return (share * wide(x) + (1 - share) * F.softplus(wide(y))).to(x.dtype)


def _gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(x @ gate) * (x @ up)


def _gram(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ x.T) ** 2


def _residual(x: torch.Tensor, w: torch.Tensor, gain: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    return x @ w * gain + residual


def _scores(q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.tanh(q @ k.transpose(1, 2) + bias[:, None])


def _maxima(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return wide(x @ w).amax(-1)


# --- arguments ----------------------------------------------------------------------------------------------------------


def _matrices(count: int) -> Any:
    def made(make: Maker, dtype: torch.dtype, *shape: int) -> Arguments:
        return tuple(make.normal(*shape, dtype=dtype) for _ in range(count))

    return made


def _modulation(make: Maker, dtype: torch.dtype, b: int, t: int, d: int) -> Arguments:
    return make.normal(b, t, d, dtype=dtype), make.normal(b, d, dtype=dtype), make.normal(b, d, dtype=dtype)


def _labelled(make: Maker, dtype: torch.dtype, m: int, n: int) -> Arguments:
    return make.normal(m, n, dtype=dtype), make.integers(m, high=n)


def _tokens(make: Maker, dtype: torch.dtype, b: int, t: int, d: int) -> Arguments:
    return make.normal(b, t, d, dtype=dtype), make.integers(b, t, high=2, dtype=torch.int32)


def _gates(make: Maker, dtype: torch.dtype, m: int, n: int) -> Arguments:
    return make.normal(m, n, dtype=dtype), make.normal(m, n, dtype=dtype), make.normal(m, dtype=dtype)


def _two_weights(make: Maker, dtype: torch.dtype, m: int, k: int, n: int) -> Arguments:
    weights = (make.normal(k, n, dtype=dtype, scale=k**-0.5) for _ in range(2))
    return make.normal(m, k, dtype=dtype), *weights


def _features(make: Maker, dtype: torch.dtype, m: int, k: int) -> Arguments:
    return (make.normal(m, k, dtype=dtype, scale=k**-0.25),)


def _with_residual(make: Maker, dtype: torch.dtype, m: int, k: int, n: int) -> Arguments:
    product = make.normal(m, k, dtype=dtype), make.normal(k, n, dtype=dtype, scale=k**-0.5)
    return *product, make.normal(n, dtype=dtype), make.normal(m, n, dtype=dtype)


def _heads(make: Maker, dtype: torch.dtype, b: int, m: int, n: int, d: int) -> Arguments:
    q, k = (make.normal(b, side, d, dtype=dtype, scale=d**-0.25) for side in (m, n))
    return q, k, make.normal(b, n, dtype=dtype)


def _product(make: Maker, dtype: torch.dtype, m: int, k: int, n: int) -> Arguments:
    return make.normal(m, k, dtype=dtype), make.normal(k, n, dtype=dtype, scale=k**-0.5)


HOLDOUT = (
    Unseen(
        kernel=modulated_norm,
        reference=_modulated,
        arguments=_modulation,
        shapes=((BF16, (16, 4096, 1152)), (FP32, (8, 1000, 3072))),
        small=((FP32, (2, 9, 70)),),
    ),
    Unseen(
        kernel=hinge_margin,
        reference=_hinge,
        arguments=_labelled,
        shapes=((BF16, (8192, 10000)), (FP32, (65536, 1000))),
        small=((FP32, (9, 70)),),
    ),
    Unseen(
        kernel=triplet_loss,
        reference=_triplet,
        arguments=_matrices(3),
        shapes=((BF16, (32768, 768)), (FP32, (2048, 8192))),
        small=((FP32, (9, 70)),),
    ),
    Unseen(
        kernel=power_mean,
        reference=_power_mean,
        arguments=_matrices(1),
        shapes=((BF16, (64, 512, 784)), (FP32, (16, 256, 12544))),
        small=((FP32, (2, 3, 70)),),
    ),
    Unseen(
        kernel=centred_max,
        reference=_centred_max,
        arguments=_matrices(1),
        shapes=((BF16, (16384, 5120)), (FP32, (4096, 20000))),
        small=((FP32, (9, 70)),),
    ),
    Unseen(
        kernel=masked_token_mean,
        reference=_token_mean,
        arguments=_tokens,
        shapes=((BF16, (64, 512, 1024)), (FP32, (16, 2048, 768))),
        small=((FP32, (2, 9, 33)),),
    ),
    Unseen(
        kernel=sign_momentum_step,
        reference=_sign_step,
        arguments=_matrices(3),
        shapes=((FP32, (4096, 4096)), (BF16, (5000, 5000))),
        small=((FP32, (9, 70)),),
    ),
    Unseen(
        kernel=cast_both_ways,
        reference=_both_ways,
        arguments=_matrices(1),
        shapes=((FP32, (8192, 4096)), (FP16, (4097, 6000))),
        small=((FP32, (9, 70)),),
    ),
    Unseen(
        kernel=gated_mixture,
        reference=_mixture,
        arguments=_gates,
        shapes=((BF16, (65536, 512)), (FP32, (3000, 10000))),
        small=((FP32, (9, 70)),),
    ),
    Unseen(
        kernel=gated_product,
        reference=_gated,
        arguments=_two_weights,
        shapes=((BF16, (4096, 4096, 5504)), (FP16, (200, 2048, 8192))),
        small=((FP32, (17, 30, 20)),),
    ),
    Unseen(
        kernel=squared_gram,
        reference=_gram,
        arguments=_features,
        shapes=((BF16, (8192, 1024)), (FP16, (2000, 4096))),
        small=((FP32, (17, 30)),),
    ),
    Unseen(
        kernel=scaled_residual,
        reference=_residual,
        arguments=_with_residual,
        shapes=((BF16, (4096, 5120, 5120)), (FP32, (2048, 1536, 3000))),
        small=((FP32, (17, 30, 20)),),
    ),
    Unseen(
        kernel=bounded_scores,
        reference=_scores,
        arguments=_heads,
        shapes=((BF16, (48, 1024, 1024, 64)), (FP16, (128, 200, 1500, 128))),
        small=((FP32, (2, 17, 20, 16)),),
    ),
    Unseen(
        kernel=product_row_maxima,
        reference=_maxima,
        arguments=_product,
        shapes=((BF16, (16384, 512, 2048)), (BF16, (3000, 1024, 4096))),
        small=((FP32, (17, 30, 20)),),
    ),
)
