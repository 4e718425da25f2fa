"""Layers of experts, adapters and quantized weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, E4M3, Arguments, Cells, high, normal, offsets_of

CELLS = Cells()


@helion.kernel
def router_losses(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sums of probabilities and numbers of first choices of each expert, and squares of the log-sum-exps `[T]`."""
    t, e = logits.size()
    e = hl.specialize(e)
    mass = torch.zeros([e], dtype=torch.float32, device=logits.device)
    load = torch.zeros([e], dtype=torch.float32, device=logits.device)
    z = torch.empty([t], dtype=torch.float32, device=logits.device)
    for tile in hl.tile(t):
        x = logits[tile, :].to(torch.float32)
        top = torch.amax(x, -1, keepdim=True)
        exps = torch.exp(x - top)
        total = exps.sum(-1, keepdim=True)
        lse = (top + torch.log(total)).squeeze(-1)
        z[tile] = lse * lse
        first = torch.argmax(x, -1)
        chosen = (hl.arange(e)[None, :] == first[:, None]).to(torch.float32)
        hl.atomic_add(mass, [slice(None)], (exps / total).sum(0))
        hl.atomic_add(load, [slice(None)], chosen.sum(0))
    return mass, load, z


def router_losses_torch(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = high(logits)
    load = F.one_hot(x.argmax(-1), x.size(1)).to(torch.float32).sum(0)
    return torch.softmax(x, -1).sum(0), load, torch.logsumexp(x, -1) ** 2


CELLS.add(
    router_losses,
    lambda device, small: (normal(device, *((37, 24) if small else (32768, 160)), dtype=BF16),),
    router_losses_torch,
)


@helion.kernel
def sorted_blocks_product(
    x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor, experts: torch.Tensor, gate: torch.Tensor
) -> torch.Tensor:
    """`gate[i] * x[i // 2] @ w[e].T` in row i of `[2 T, N]`, for the ids of blocks of 64 rows that share an expert.

    A block's expert is in ``experts``; ids of ``2 T`` and more fill the blocks."""
    k, n = x.size(1), w.size(1)
    count = gate.size(0)
    out = torch.empty([count, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([ids.size(0), n], block_size=[64, None]):
        expert = experts[rows.id]
        own = ids[rows]
        valid = own < count
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            a = hl.load(x, [own // 2, inner], extra_mask=valid[:, None])
            acc = hl.dot(a, w[expert, cols, inner].T, acc=acc)
        weight = hl.load(gate, [own], extra_mask=valid)
        hl.store(out, [own, cols], (acc * weight[:, None]).to(out.dtype), extra_mask=valid[:, None])
    return out


def sorted_blocks_product_torch(
    x: torch.Tensor, w: torch.Tensor, ids: torch.Tensor, experts: torch.Tensor, gate: torch.Tensor
) -> torch.Tensor:
    count = gate.size(0)
    own = torch.clamp(ids, max=count - 1).view(-1, 64).long()
    y = high(x[own // 2] @ w[experts.long()].transpose(1, 2)) * gate[own][..., None]
    out = torch.zeros([count + 1, w.size(1)], dtype=x.dtype, device=x.device)
    out[torch.clamp(ids, max=count).long()] = y.flatten(0, 1).to(x.dtype)
    return out[:count]


def make_sorted_blocks_product(device: str, small: bool) -> Arguments:
    t, k, n, e = (70, 48, 40, 3) if small else (8192, 2048, 1408, 16)
    expert_of = torch.randint(0, e, [2 * t])
    parts = [torch.nonzero(expert_of == i)[:, 0] for i in range(e)]
    blocks = [-(-part.numel() // 64) for part in parts]
    ids = torch.cat(
        [F.pad(part, (0, 64 * b - part.numel()), value=2 * t) for part, b in zip(parts, blocks, strict=True)]
    )
    experts = torch.repeat_interleave(torch.arange(e), torch.tensor(blocks))
    x, w = normal(device, t, k, dtype=BF16), normal(device, e, n, k, dtype=BF16, scale=0.05)
    return x, w, ids.to(torch.int32).to(device), experts.to(torch.int32).to(device), torch.rand([2 * t], device=device)


CELLS.add(sorted_blocks_product, make_sorted_blocks_product, sorted_blocks_product_torch)


@helion.kernel
def grouped_w8a8(
    x: torch.Tensor, w: torch.Tensor, row_scale: torch.Tensor, column_scale: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    """int8 `x[M, K]` times `w[E, N, K]` of the expert of each row: rows of expert e begin at `offsets[e]`."""
    m, k = x.size()
    e, n, _ = w.size()
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for tile_e, cols in hl.tile([e, n], block_size=[1, None]):
        ei = tile_e.begin
        for rows in hl.tile(offsets[ei], offsets[ei + 1]):
            acc = hl.zeros([rows, cols], dtype=torch.int32)
            for inner in hl.tile(k):
                acc = hl.dot(x[rows, inner], w[ei, cols, inner].T, acc=acc)
            y = acc.to(torch.float32) * row_scale[rows][:, None] * column_scale[ei, cols][None, :]
            out[rows, cols] = y.to(torch.bfloat16)
    return out


def grouped_w8a8_torch(
    x: torch.Tensor, w: torch.Tensor, row_scale: torch.Tensor, column_scale: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    out = torch.empty([x.size(0), w.size(1)], dtype=BF16, device=x.device)
    for i in range(w.size(0)):
        rows = slice(int(offsets[i]), int(offsets[i + 1]))
        y = x[rows].float() @ w[i].float().T
        out[rows] = (y * row_scale[rows, None] * column_scale[i]).to(BF16)
    return out


def grouped_w8a8_baseline(
    x: torch.Tensor, w: torch.Tensor, row_scale: torch.Tensor, column_scale: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    a, b = x.to(BF16), (w * column_scale[..., None]).to(BF16)
    y = torch._grouped_mm(a, b.transpose(1, 2), offs=offsets[1:].to(torch.int32))
    return (y * row_scale[:, None]).to(BF16)


def make_grouped_w8a8(device: str, small: bool) -> Arguments:
    e, n, k = (3, 48, 64) if small else (8, 4096, 2048)
    offsets = offsets_of(e, 10, 40) if small else offsets_of(e, 500, 1500)
    m = int(offsets[-1])
    x = torch.randint(-127, 128, [m, k], device=device, dtype=torch.int8)
    w = torch.randint(-127, 128, [e, n, k], device=device, dtype=torch.int8)
    return x, w, torch.rand([m], device=device) * 0.01, torch.rand([e, n], device=device) * 0.01, offsets.to(device)


CELLS.add(grouped_w8a8, make_grouped_w8a8, grouped_w8a8_torch, grouped_w8a8_baseline)


@helion.kernel
def mxfp4_few_tokens(
    x: torch.Tensor, codes: torch.Tensor, exponents: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    """A few tokens `x[M, K]` times weights in mxfp4: `codes[N, K / 2]` with the first number in the low half, exponents
    `[N, K / 32]` with a bias of 127, a table of the 16 numbers."""
    m, k = x.size()
    n = codes.size(0)
    groups = k // 32
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    pairs = x.view(m, groups, 16, 2)
    packed = codes.view(n, groups, 16)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for group in hl.tile(groups, block_size=1):
            gi = group.begin
            byte = packed[cols, gi, :].to(torch.int32)
            low, top = table[byte & 15], table[(byte >> 4) & 15]
            part = hl.dot(pairs[rows, gi, :, 0], low.to(x.dtype).T)
            part = hl.dot(pairs[rows, gi, :, 1], top.to(x.dtype).T, acc=part)
            acc += part * torch.exp2(exponents[cols, gi].to(torch.float32) - 127.0)[None, :]
        out[rows, cols] = acc.to(x.dtype)
    return out


def mxfp4_few_tokens_torch(
    x: torch.Tensor, codes: torch.Tensor, exponents: torch.Tensor, table: torch.Tensor
) -> torch.Tensor:
    w = torch.stack([table[(codes & 15).long()], table[(codes >> 4).long()]], -1).flatten(1)
    w = w * torch.exp2(exponents.to(torch.float32) - 127.0).repeat_interleave(32, 1)
    return x @ w.to(x.dtype).T


def make_mxfp4_few_tokens(device: str, small: bool) -> Arguments:
    m, n, k = (3, 40, 96) if small else (16, 5760, 2880)
    codes = torch.randint(0, 256, [n, k // 2], device=device, dtype=torch.uint8)
    exponents = torch.randint(118, 124, [n, k // 32], device=device, dtype=torch.uint8)
    half = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=device)
    return normal(device, m, k, dtype=BF16), codes, exponents, torch.cat([half, -half])


CELLS.add(mxfp4_few_tokens, make_mxfp4_few_tokens, mxfp4_few_tokens_torch)


@helion.kernel
def lora_linear(
    x: torch.Tensor, w: torch.Tensor, down: torch.Tensor, up: torch.Tensor, bias: torch.Tensor, scale: float
) -> torch.Tensor:
    """`x @ w.T + scale * (x @ down.T) @ up.T + bias` with `x[M, K]`, `w[N, K]`, `down[R, K]`, `up[N, R]`."""
    m, k = x.size()
    n = w.size(0)
    r = hl.specialize(down.size(0))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        hidden = hl.zeros([rows, r], dtype=torch.float32)
        for inner in hl.tile(k):
            a = x[rows, inner]
            acc = hl.dot(a, w[cols, inner].T, acc=acc)
            hidden = hl.dot(a, down[:, inner].T, acc=hidden)
        acc = hl.dot((hidden * scale).to(x.dtype), up[cols, :].T, acc=acc)
        out[rows, cols] = (acc + bias[cols].to(torch.float32)[None, :]).to(x.dtype)
    return out


def lora_linear_torch(
    x: torch.Tensor, w: torch.Tensor, down: torch.Tensor, up: torch.Tensor, bias: torch.Tensor, scale: float
) -> torch.Tensor:
    return F.linear(x, w, bias) + (F.linear(x, down) * scale) @ up.T


def make_lora_linear(device: str, small: bool) -> Arguments:
    m, n, k, r = (37, 40, 65, 16) if small else (4096, 4096, 4096, 32)
    shapes = (m, k), (n, k), (r, k), (n, r), (n,)
    return *(normal(device, *shape, dtype=BF16, scale=0.1) for shape in shapes), 2.0


CELLS.add(lora_linear, make_lora_linear, lora_linear_torch)


@helion.kernel
def fp8_gate_up(x: torch.Tensor, w: torch.Tensor, row_scale: torch.Tensor, column_scale: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` of e4m3 `x[M, K]` with a scale for each row, and `w[2, N, K]` with scales `[2, N]`."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=torch.bfloat16, device=x.device)
    for rows, cols in hl.tile([m, n]):
        gate = hl.zeros([rows, cols], dtype=torch.float32)
        up = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            a = x[rows, inner]
            gate = hl.dot(a, w[0, cols, inner].T, acc=gate)
            up = hl.dot(a, w[1, cols, inner].T, acc=up)
        own = row_scale[rows][:, None]
        gate = gate * own * column_scale[0, cols][None, :]
        up = up * own * column_scale[1, cols][None, :]
        out[rows, cols] = (gate * torch.sigmoid(gate) * up).to(torch.bfloat16)
    return out


def fp8_gate_up_torch(
    x: torch.Tensor, w: torch.Tensor, row_scale: torch.Tensor, column_scale: torch.Tensor
) -> torch.Tensor:
    a = x.float() * row_scale[:, None]
    gate, up = (a @ (w[i].float() * column_scale[i, :, None]).T for i in range(2))
    return (F.silu(gate) * up).to(BF16)


def fp8_gate_up_baseline(
    x: torch.Tensor, w: torch.Tensor, row_scale: torch.Tensor, column_scale: torch.Tensor
) -> torch.Tensor:
    both = torch._scaled_mm(
        x,
        w.flatten(0, 1).T,
        scale_a=row_scale[:, None],
        scale_b=column_scale.view(1, -1),
        out_dtype=BF16,
        use_fast_accum=True,
    )
    gate, up = both.float().chunk(2, 1)
    return (F.silu(gate) * up).to(BF16)


def make_fp8_gate_up(device: str, small: bool) -> Arguments:
    m, n, k = (37, 48, 64) if small else (4096, 5504, 2048)
    x, w = normal(device, m, k).to(E4M3), normal(device, 2, n, k).to(E4M3)
    return x, w, torch.rand([m], device=device) * 0.1, torch.rand([2, n], device=device) * 0.1


CELLS.add(fp8_gate_up, make_fp8_gate_up, fp8_gate_up_torch, fp8_gate_up_baseline)


@helion.kernel
def expert_weight_gradient(x: torch.Tensor, grad: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Gradients `[E, N, K]` of weights of experts, from the rows of `grad[M, N]` and `x[M, K]` of each."""
    e = offsets.size(0) - 1
    n, k = grad.size(1), x.size(1)
    out = torch.empty([e, n, k], dtype=torch.float32, device=x.device)
    for tile_e, tile_n, tile_k in hl.tile([e, n, k], block_size=[1, None, None]):
        ei = tile_e.begin
        acc = hl.zeros([tile_n, tile_k], dtype=torch.float32)
        for rows in hl.tile(offsets[ei], offsets[ei + 1]):
            acc = hl.dot(grad[rows, tile_n].T, x[rows, tile_k], acc=acc)
        out[ei, tile_n, tile_k] = acc
    return out


def expert_weight_gradient_torch(x: torch.Tensor, grad: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    pairs = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    return torch.stack([high(grad[start:end].T) @ high(x[start:end]) for start, end in pairs])


def expert_weight_gradient_baseline(x: torch.Tensor, grad: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return torch._grouped_mm(grad.T, x, offs=offsets[1:].to(torch.int32)).to(torch.float32)


def make_expert_weight_gradient(device: str, small: bool) -> Arguments:
    e, n, k = (3, 40, 65) if small else (8, 2816, 2048)
    offsets = offsets_of(e, 10, 40) if small else offsets_of(e, 1000, 3000)
    m = int(offsets[-1])
    return normal(device, m, k, dtype=BF16), normal(device, m, n, dtype=BF16), offsets.to(device)


CELLS.add(
    expert_weight_gradient,
    make_expert_weight_gradient,
    expert_weight_gradient_torch,
    expert_weight_gradient_baseline,
)
