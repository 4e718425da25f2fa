"""Which of these kernels run on what, beside the same computation in PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from benchmarks.unseen.table import BF16, E4M3, FP16, FP32, Arguments, Maker, Unseen, wide

from . import gathers, products, rows

# --- arguments ----------------------------------------------------------------------------------------------------------


def _alike(count: int, vectors: int = 0) -> Callable[..., Arguments]:
    """``count`` tensors of a shape, and ``vectors`` of its last extent."""

    def made(make: Maker, dtype: torch.dtype, *shape: int) -> Arguments:
        tensors = [make.normal(*shape, dtype=dtype) for _ in range(count)]
        return *tensors, *(make.normal(shape[-1], dtype=dtype) for _ in range(vectors))

    return made


def _turned(make: Maker, dtype: torch.dtype, b: int, t: int, h: int, d: int, pairs: int) -> Arguments:
    return make.normal(b, t, h, d, dtype=dtype), make.normal(t, pairs, dtype=FP32, scale=3.0)


def _normed_heads(make: Maker, dtype: torch.dtype, t: int, h: int, d: int) -> Arguments:
    tables = (make.normal(t, d // 2, dtype=FP32) for _ in range(2))
    return make.normal(t, h, d, dtype=dtype), make.normal(d, dtype=dtype), *tables


def _grouped(tensors: int, vectors: int) -> Callable[..., Arguments]:
    """Tensors of a shape, and weights of its last two extents."""

    def made(make: Maker, dtype: torch.dtype, *shape: int) -> Arguments:
        first = [make.normal(*shape, dtype=dtype) for _ in range(tensors)]
        return *first, *(make.normal(*shape[-2:], dtype=dtype) for _ in range(vectors))

    return made


def _optimised(make: Maker, dtype: torch.dtype, n: int) -> Arguments:
    master, first = make.normal(n, dtype=FP32), make.normal(n, dtype=FP32, scale=0.1)
    second = make.normal(n, dtype=FP32, scale=0.1)
    return master, first, second * second, make.normal(n, dtype=dtype), 1e-3, 100


def _filtered(make: Maker, dtype: torch.dtype, b: int, h: int, w: int, c: int) -> Arguments:
    return make.normal(b, h, w, c, dtype=dtype), make.normal(3, 3, c, dtype=dtype)


def _tapped(make: Maker, dtype: torch.dtype, b: int, c: int, t: int) -> Arguments:
    return make.normal(b, c, t, dtype=dtype), make.normal(c, 4, dtype=dtype), make.normal(c, dtype=dtype)


def _to_length(make: Maker, dtype: torch.dtype, b: int, t: int, c: int, length: int) -> Arguments:
    return make.normal(b, t, c, dtype=dtype), length


def _images(make: Maker, dtype: torch.dtype, b: int, c: int, h: int, w: int, side: int) -> Arguments:
    return make.normal(b, c, h, w, dtype=dtype), side


def _decaying(make: Maker, dtype: torch.dtype, b: int, length: int) -> Arguments:
    steps = make.normal(b, length, dtype=dtype)
    return (-steps.abs() / 16,)


def _labelled(make: Maker, dtype: torch.dtype, m: int, v: int) -> Arguments:
    return make.normal(m, v, dtype=dtype), make.integers(m, high=v), 0.1


def _states(make: Maker, dtype: torch.dtype, b: int, h: int, p: int, n: int) -> Arguments:
    state, x, dt = (
        make.normal(b, h, p, n, dtype=dtype),
        make.normal(b, h, p, dtype=dtype),
        make.normal(b, h, dtype=dtype),
    )
    return state, x, dt.abs(), -make.normal(h, dtype=FP32).abs(), *(make.normal(b, n, dtype=dtype) for _ in range(2))


def _routed(make: Maker, dtype: torch.dtype, t: int, e: int, k: int) -> Arguments:
    """Rows without equal numbers, so that there is one order."""
    if make.device == "meta":
        return make.normal(t, e, dtype=dtype), k
    order = torch.rand(t, e, generator=make.stream(), device=make.device).argsort(-1)
    return (order.to(dtype) / 8, k)


def _bounds(make: Maker, count: int, total: int) -> torch.Tensor:
    """``count`` segments of ``total`` by chance, one of them empty."""
    if make.device == "meta":
        return torch.empty(count + 1, dtype=torch.int32, device="meta")
    inner = torch.randint(0, total + 1, [count - 1], generator=make.stream(), device=make.device).sort().values
    inner[count // 2] = inner[count // 2 - 1]
    ends = torch.tensor([0, total], device=make.device)
    return torch.cat([ends[:1], inner, ends[1:]]).to(torch.int32)


def _edges(make: Maker, dtype: torch.dtype, nodes: int, edges: int, heads: int) -> Arguments:
    return make.normal(edges, heads, dtype=dtype), _bounds(make, nodes, edges)


def _graph(make: Maker, dtype: torch.dtype, nodes: int, edges: int, d: int) -> Arguments:
    return make.normal(nodes, d, dtype=dtype), make.integers(edges, high=nodes), _bounds(make, nodes, edges)


def _permuted(make: Maker, count: int, kept: int) -> torch.Tensor:
    if make.device == "meta":
        return torch.empty(kept, dtype=torch.int64, device="meta")
    return torch.randperm(count, generator=make.stream(), device=make.device)[:kept]


def _pages(make: Maker, dtype: torch.dtype, b: int, count: int, page: int, g: int, d: int) -> Arguments:
    return make.normal(b * count, page, g, d, dtype=dtype), _permuted(make, b * count, b * count).view(b, count)


def _slots(make: Maker, dtype: torch.dtype, t: int, g: int, d: int, size: int) -> Arguments:
    return make.normal(t, g, d, dtype=dtype), _permuted(make, size, t), size


def _sampled(make: Maker, dtype: torch.dtype, b: int, h: int, w: int, c: int, count: int) -> Arguments:
    return make.normal(b, h, w, c, dtype=dtype), make.normal(b, count, 2, dtype=FP32, mean=0.0, scale=0.5)


def _edged(make: Maker, dtype: torch.dtype, n: int, count: int) -> Arguments:
    edges = make.normal(count, dtype=dtype)
    return make.normal(n, dtype=dtype), edges if make.device == "meta" else edges.sort().values


def _pairs(make: Maker, dtype: torch.dtype, n: int, bins: int) -> Arguments:
    return *(make.integers(n, high=bins, dtype=dtype) for _ in range(2)), bins


def _packed(make: Maker, dtype: torch.dtype, n: int, k: int) -> Arguments:
    packed = make.integers(n, k // 2, high=256, dtype=torch.uint8)
    zeros = make.integers(n, k // 128, high=16, dtype=torch.int8)
    return packed, make.normal(n, k // 128, dtype=dtype, mean=1.0, scale=0.1), zeros


def _experts(make: Maker, dtype: torch.dtype, t: int, e: int, k: int, n: int, chosen: int) -> Arguments:
    """Every token goes to ``chosen`` experts, in the order of experts."""
    x, w = make.normal(t, k, dtype=dtype), make.normal(e, k, n, dtype=dtype, scale=k**-0.5)
    if make.device == "meta":
        return x, w, *(torch.empty(size, dtype=torch.int32, device="meta") for size in (t * chosen, e + 1))
    expert = torch.randint(0, e, [t * chosen], generator=make.stream(), device=make.device)
    order = expert.argsort(stable=True)
    starts = torch.searchsorted(expert[order], torch.arange(e + 1, device=make.device))
    return x, w, (order // chosen).to(torch.int32), starts.to(torch.int32)


def _aligned(make: Maker, dtype: torch.dtype, t: int, e: int, k: int, n: int) -> Arguments:
    x, w = make.normal(t, k, dtype=dtype), make.normal(e, n, k, dtype=dtype, scale=k**-0.5)
    expert_of = make.integers(t // 64, high=e, dtype=torch.int32)
    return x, w, _permuted(make, t, t), expert_of if make.device == "meta" else expert_of.sort().values


def _triangle(make: Maker, dtype: torch.dtype, m: int, n: int) -> Arguments:
    return make.normal(m, m, dtype=dtype, scale=m**-0.5), make.normal(m, n, dtype=dtype)


def _sparse(make: Maker, dtype: torch.dtype, grid: int, count: int, side: int, n: int) -> Arguments:
    """``count`` of the ``grid`` by ``grid`` blocks, in the order of rows."""
    blocks = make.normal(count, side, side, dtype=dtype, scale=(count / grid * side) ** -0.5)
    x = make.normal(grid * side, n, dtype=dtype)
    if make.device == "meta":
        return blocks, *(torch.empty(size, dtype=torch.int32, device="meta") for size in (count, grid + 1)), x
    places = _permuted(make, grid * grid, count).sort().values
    starts = torch.searchsorted(places, torch.arange(grid + 1, device=make.device) * grid)
    return blocks, (places % grid).to(torch.int32), starts.to(torch.int32), x


def _small_matrices(make: Maker, dtype: torch.dtype, b: int, n: int) -> Arguments:
    return make.normal(b, n, n, dtype=dtype, scale=n**-0.5), make.normal(b, n, n, dtype=dtype)


def _chunks(make: Maker, dtype: torch.dtype, b: int, length: int, d: int, e: int) -> Arguments:
    q, k = (make.normal(b, length, d, dtype=dtype, scale=d**-0.25) for _ in range(2))
    gates = make.normal(b, length, dtype=FP32)
    return q, k, make.normal(b, length, e, dtype=dtype), -gates.abs() / 16


def _vector(weights: int) -> Callable[..., Arguments]:
    def made(make: Maker, dtype: torch.dtype, n: int, k: int) -> Arguments:
        return make.normal(k, dtype=dtype), *(make.normal(n, k, dtype=dtype, scale=k**-0.5) for _ in range(weights))

    return made


def _tokens(make: Maker, dtype: torch.dtype, m: int, k: int, n: int) -> Arguments:
    w = make.normal(n, k, dtype=dtype, scale=k**-0.5)
    return make.normal(m, k, dtype=dtype), w, make.normal(m, n, dtype=dtype)


def _bytes(make: Maker, dtype: torch.dtype, n: int, k: int) -> Arguments:
    w = make.integers(n, k, low=-9, high=10, dtype=torch.int8)
    return make.normal(k, dtype=dtype), w, make.normal(n, dtype=FP32, mean=1.0, scale=1 / k)


def _halves(make: Maker, dtype: torch.dtype, m: int, k: int, n: int) -> Arguments:
    w = make.normal(k, 2 * n, dtype=dtype, scale=k**-0.5)
    return make.normal(m, k, dtype=dtype), w, make.normal(2 * n, dtype=dtype)


def _heads(make: Maker, dtype: torch.dtype, b: int, t: int, k: int, h: int, d: int) -> Arguments:
    return make.normal(b, t, k, dtype=dtype), make.normal(h, k, d, dtype=dtype, scale=k**-0.5)


def _points(make: Maker, dtype: torch.dtype, m: int, n: int, k: int) -> Arguments:
    x, y = (make.normal(side, k, dtype=dtype, scale=k**-0.5) for side in (m, n))
    return x, y, 0.5


def _views(make: Maker, dtype: torch.dtype, m: int, d: int) -> Arguments:
    x, y = (make.normal(m, d, dtype=dtype, scale=d**-0.5) for _ in range(2))
    return x, y, 0.1


def _gated_states(make: Maker, dtype: torch.dtype, b: int, t: int, d: int, e: int) -> Arguments:
    q, k = (make.normal(b, t, d, dtype=dtype, scale=d**-0.5) for _ in range(2))
    gates = make.normal(b, t, d, dtype=FP32)
    return q, k, make.normal(b, t, e, dtype=dtype), torch.sigmoid(gates + 2.0).to(dtype)


# --- references ---------------------------------------------------------------------------------------------------------


def _partial_rope(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    pairs = angles.size(1)
    cos, sin = torch.cos(wide(angles))[:, None, :], torch.sin(wide(angles))[:, None, :]
    first, second = wide(x[..., 0 : 2 * pairs : 2]), wide(x[..., 1 : 2 * pairs : 2])
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)
    return torch.cat([turned.to(x.dtype), x[..., 2 * pairs :]], -1)


def _norm_and_rope(x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    y = F.rms_norm(wide(x), x.shape[-1:], wide(weight), eps=1e-6)
    low, high = y.chunk(2, -1)
    c, s = cos[:, None, :], sin[:, None, :]
    return torch.cat([low * c - high * s, high * c + low * s], -1).to(x.dtype)


def _layer_norm_to_int8(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = F.layer_norm(wide(x), x.shape[-1:], wide(weight), wide(bias))
    scale = y.abs().amax(-1) / 127
    return torch.round(y / scale[:, None]).to(torch.int8), scale


def _residual_norm_to_fp8(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    values = wide(x) + wide(residual)
    y = F.rms_norm(values, x.shape[-1:], wide(weight), eps=1e-6).view(x.size(0), -1, 128)
    scale = y.abs().amax(-1).clamp(min=1e-6) / 448
    return values.to(x.dtype), (y / scale[:, :, None]).to(E4M3).view(x.shape), scale


def _group_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    values = wide(x)
    variance, mean = torch.var_mean(values, (1, 3), correction=0, keepdim=True)
    return F.silu((values - mean) * torch.rsqrt(variance + 1e-5) * wide(weight) + wide(bias)).to(x.dtype)


def _batch_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    values = wide(x)
    variance, mean = torch.var_mean(values, 0, correction=0)
    y = (values - mean) * (torch.rsqrt(variance + 1e-5) * wide(weight)) + wide(bias)
    return torch.relu(y).to(x.dtype), mean, variance


def _gated_group_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = wide(x) * F.silu(wide(gate))
    return (y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-5) * wide(weight)).to(x.dtype)


def _unit_columns(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    values = wide(x)
    return (values * (wide(gain) * torch.rsqrt((values * values).sum(0)))).to(x.dtype)


def _swiglu_gradients(grad: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    g, a, b = wide(grad), wide(gate), wide(up)
    s = torch.sigmoid(a)
    return torch.cat([g * b * s * (1 + a * (1 - s)), g * a * s], -1).to(grad.dtype)


def _gelu_gradients(grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    result = torch.ops.aten.gelu_backward(wide(grad), wide(x) + wide(bias), approximate="tanh")
    return result.to(x.dtype), result.sum(0)


def _adamw(
    master: torch.Tensor, first: torch.Tensor, second: torch.Tensor, grad: torch.Tensor, rate: float, step: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    g = wide(grad)
    m, v = first * 0.9 + g * 0.1, second * 0.95 + g * g * 0.05
    slope = (m / (1 - 0.9**step)) / (torch.sqrt(v / (1 - 0.95**step)) + 1e-8)
    new = master * (1 - rate * 0.1) - rate * slope
    return new, m, v, new.to(grad.dtype)


def _gradient_norm(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(x, dtype=torch.promote_types(x.dtype, FP32))


def _depthwise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    taps = w.permute(2, 0, 1)[:, None]
    return F.conv2d(x.permute(0, 3, 1, 2), taps, padding=1, groups=x.size(3)).permute(0, 2, 3, 1)


def _causal_convolution(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    found = F.conv1d(F.pad(wide(x), (3, 0)), wide(w)[:, None], wide(bias), groups=x.size(1))
    return F.silu(found).to(x.dtype)


def _wave(now: torch.Tensor, before: torch.Tensor, speed: torch.Tensor) -> torch.Tensor:
    around = F.pad(now, (1, 1, 1, 1))
    bend = around[:-2, 1:-1] + around[2:, 1:-1] + around[1:-1, :-2] + around[1:-1, 2:] - 4 * now
    return 2 * now - before + speed * bend


def _max_pool(x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(x.permute(0, 3, 1, 2), 3, stride=2, padding=1).permute(0, 2, 3, 1)


def _padded_transpose(x: torch.Tensor, length: int) -> torch.Tensor:
    return F.pad(x, (0, 0, 0, length - x.size(1))).transpose(1, 2).contiguous()


def _patches(x: torch.Tensor, side: int) -> torch.Tensor:
    b, c, h, w = x.shape
    return x.view(b, c, h // side, side, w // side, side).permute(0, 2, 4, 1, 3, 5).contiguous()


def _lower(length: int, device: torch.device) -> torch.Tensor:
    at = torch.arange(length, device=device)
    return at[:, None] >= at


def _decay_matrices(steps: torch.Tensor) -> torch.Tensor:
    sums = wide(steps).cumsum(-1)
    apart = sums[:, :, None] - sums[:, None, :]
    return torch.exp(apart.masked_fill(~_lower(steps.size(1), steps.device), float("-inf")))


def _smoothed(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> tuple[torch.Tensor, torch.Tensor]:
    x, v = wide(logits), logits.size(1)
    logs = torch.log_softmax(x, -1)
    losses = -(1 - smoothing) * logs.gather(1, labels[:, None])[:, 0] - smoothing * logs.mean(-1)
    hit = torch.arange(v, device=x.device) == labels[:, None]
    return losses, (logs.exp() - hit * (1 - smoothing) - smoothing / v).to(logits.dtype)


def _state_step(
    state: torch.Tensor, x: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    width = wide(dt)
    decay = torch.exp(width * a)[:, :, None, None]
    entered = (wide(x) * width[:, :, None])[:, :, :, None] * wide(b)[:, None, None, :]
    after = wide(state) * decay + entered
    return after.to(state.dtype), (after * wide(c)[:, None, None, :]).sum(-1).to(x.dtype)


def _gates(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    best, where = torch.softmax(wide(logits), -1).topk(k, -1)
    return best / best.sum(-1, keepdim=True), where.to(torch.int32)


def _segments(starts: torch.Tensor, count: int) -> torch.Tensor:
    return torch.searchsorted(starts, torch.arange(count, device=starts.device, dtype=torch.int32), right=True) - 1


def _segment_softmax(scores: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    x, own = wide(scores), _segments(starts, scores.size(0))
    count = starts.size(0) - 1
    top = x.new_full([count, x.size(1)], float("-inf")).scatter_reduce(0, own[:, None].expand_as(x), x, "amax")
    p = torch.exp(x - top[own])
    return (p / x.new_zeros([count, x.size(1)]).index_add(0, own, p)[own]).to(scores.dtype)


def _neighbour_sums(features: torch.Tensor, neighbours: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    own = _segments(starts, neighbours.size(0))
    values = wide(features)[neighbours]
    return values.new_zeros([starts.size(0) - 1, features.size(1)]).index_add(0, own, values).to(features.dtype)


def _gathered_pages(pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return pages[table].flatten(1, 2).transpose(1, 2).contiguous()


def _written(keys: torch.Tensor, slots: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    values = wide(keys)
    scale = values.abs().amax(-1).clamp(min=1e-6) / 448
    cache = torch.zeros([size, *keys.shape[1:]], dtype=E4M3, device=keys.device)
    scales = torch.zeros([size, keys.size(1)], dtype=scale.dtype, device=keys.device)
    cache[slots] = (values / scale[:, :, None]).to(E4M3)
    scales[slots] = scale
    return cache, scales


def _bilinear(x: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    images = x.permute(0, 3, 1, 2)
    return F.grid_sample(images, points.to(x.dtype)[:, None], align_corners=False)[:, :, 0].transpose(1, 2)


def _joint(x: torch.Tensor, y: torch.Tensor, bins: int) -> torch.Tensor:
    counts = torch.zeros([bins * bins], dtype=torch.int32, device=x.device)
    both = x.long() * bins + y.long()
    return counts.scatter_add(0, both, torch.ones_like(both, dtype=torch.int32)).view(bins, bins)


def _unpacked(packed: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    values = torch.stack([packed & 15, packed >> 4], -1).flatten(1).view(packed.size(0), -1, 128)
    return ((wide(values) - zeros[:, :, None]) * wide(scales)[:, :, None]).to(scales.dtype).flatten(1)


def _routed_experts(x: torch.Tensor, w: torch.Tensor, tokens: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    if x.dtype == BF16:
        return torch._grouped_mm(x[tokens], w, offs=starts[1:])
    own = _segments(starts, tokens.size(0))[:, None]
    chosen = x[tokens]
    return sum((torch.where(own == e, chosen, 0.0) @ each for e, each in enumerate(w)), torch.zeros_like(x[:1, :1]))


def _aligned_experts(x: torch.Tensor, w: torch.Tensor, tokens: torch.Tensor, expert_of: torch.Tensor) -> torch.Tensor:
    if x.dtype == BF16:
        ends = 64 * torch.searchsorted(expert_of, torch.arange(w.size(0), device=x.device), right=True)
        return torch._grouped_mm(x[tokens], w.mT, offs=ends.to(torch.int32))
    return torch.bmm(x[tokens].view(-1, 64, x.size(1)), w[expert_of].mT).flatten(0, 1)


def _sparse_product(blocks: torch.Tensor, columns: torch.Tensor, starts: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The whole matrix: faster on a GPU than products of gathered blocks for one block out of eight."""
    side, grid = blocks.size(1), starts.size(0) - 1
    full = blocks.new_zeros([grid, x.size(0) // side, side, side])
    full[_segments(starts, blocks.size(0)), columns.long()] = blocks
    return full.transpose(1, 2).reshape(grid * side, -1) @ x


def _congruences(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return a @ x @ a.mT


def _chunk_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    sums = wide(gates).cumsum(-1)
    apart = (sums[:, :, None] - sums[:, None, :]).clamp(max=0)
    weights = torch.exp(apart) * _lower(q.size(1), q.device)
    return (wide(q @ k.mT) * weights).to(v.dtype) @ v


def _gated_vector(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate @ x) * (up @ x)


def _packed_geglu(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    first, second = torch.addmm(bias, x, w).chunk(2, -1)
    return F.gelu(first) * second


def _projected(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.einsum("btk,hkd->bhtd", x, w).contiguous()


def _affinity(x: torch.Tensor, y: torch.Tensor, gamma: float) -> torch.Tensor:
    left, right = wide(x).square().sum(-1)[:, None], wide(y).square().sum(-1)
    return torch.exp(-gamma * torch.relu(left + right - 2 * wide(x @ y.T)))


def _contrastive(x: torch.Tensor, y: torch.Tensor, temperature: float) -> torch.Tensor:
    scores = wide(x @ y.T) / temperature
    return torch.logsumexp(scores, -1) - scores.diagonal()


def _gated_state_scan(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """By chunks of 16, whose gates are multiplied up: the form without a loop over tokens."""
    b, t, d = q.shape
    parts = [wide(each).view(b, t // 16, 16, -1) for each in (q, k, v)]
    logs = torch.log(wide(gates)).view(b, t // 16, 16, d).cumsum(2)
    queries, keys = parts[0] * torch.exp(logs), parts[1] * torch.exp(-logs)
    inside = (queries @ keys.mT * _lower(16, q.device)) @ parts[2]
    ends = torch.exp(logs[:, :, -1])
    entered = (keys * ends[:, :, None]).mT @ parts[2]
    state, states = torch.zeros_like(entered[:, 0]), []
    for chunk in range(t // 16):
        states.append(state)
        state = state * ends[:, chunk, :, None] + entered[:, chunk]
    return (inside + queries @ torch.stack(states, 1)).view(b, t, -1).to(v.dtype)


# --- the table ----------------------------------------------------------------------------------------------------------

ROWS = (
    Unseen(
        kernel=rows.partial_rope,
        reference=_partial_rope,
        arguments=_turned,
        shapes=((BF16, (4, 4096, 16, 256, 32)), (FP16, (2, 1000, 12, 100, 16))),
        small=((FP32, (2, 5, 3, 20, 4)),),
    ),
    Unseen(
        kernel=rows.norm_and_rope,
        reference=_norm_and_rope,
        arguments=_normed_heads,
        shapes=((BF16, (16384, 40, 128)), (FP32, (4097, 8, 96))),
        small=((FP32, (5, 3, 20)),),
    ),
    Unseen(
        kernel=rows.layer_norm_to_int8,
        reference=_layer_norm_to_int8,
        arguments=_alike(1, 2),
        shapes=((BF16, (16384, 4096)), (FP16, (65536, 1000)), (BF16, (4096, 12288))),
        small=((FP32, (5, 33)),),
    ),
    Unseen(
        kernel=rows.residual_norm_to_fp8,
        reference=_residual_norm_to_fp8,
        arguments=_alike(2, 1),
        shapes=((BF16, (16384, 5120)), (BF16, (8192, 8192))),
        small=((FP32, (3, 256)),),
    ),
    Unseen(
        kernel=rows.group_norm_nhwc,
        reference=_group_norm,
        arguments=_grouped(1, 2),
        shapes=((BF16, (16, 4096, 32, 20)), (FP16, (8, 1024, 32, 40)), (BF16, (4, 16384, 32, 8))),
        small=((FP32, (2, 19, 3, 5)),),
    ),
    Unseen(
        kernel=rows.batch_norm_columns,
        reference=_batch_norm,
        arguments=_alike(1, 2),
        shapes=((BF16, (100352, 256)), (FP32, (25088, 1024)), (BF16, (401408, 64))),
        small=((FP32, (70, 9)),),
    ),
    Unseen(
        kernel=rows.gated_group_norm,
        reference=_gated_group_norm,
        arguments=_grouped(2, 1),
        shapes=((BF16, (16384, 8, 1024)), (FP32, (4097, 24, 64))),
        small=((FP32, (5, 3, 17)),),
    ),
    Unseen(
        kernel=rows.unit_columns,
        reference=_unit_columns,
        arguments=_alike(1, 1),
        shapes=((BF16, (4096, 11008)), (FP32, (2048, 1000))),
        small=((FP32, (70, 9)),),
    ),
    Unseen(
        kernel=rows.swiglu_gradients,
        reference=_swiglu_gradients,
        arguments=_alike(3),
        shapes=((BF16, (8192, 11008)), (FP16, (4097, 1001))),
        small=((FP32, (5, 33)),),
    ),
    Unseen(
        kernel=rows.biased_gelu_gradients,
        reference=_gelu_gradients,
        arguments=_alike(2, 1),
        shapes=((BF16, (16384, 8192)), (FP32, (10000, 768))),
        small=((FP32, (70, 33)),),
    ),
    Unseen(
        kernel=rows.adamw_with_master,
        reference=_adamw,
        arguments=_optimised,
        shapes=((BF16, (50_000_000,)), (FP16, (1_000_003,))),
        small=((FP32, (100,)),),
    ),
    Unseen(
        kernel=rows.gradient_norm,
        reference=_gradient_norm,
        arguments=_alike(1),
        shapes=((BF16, (1 << 28,)), (FP32, (10_000_001,))),
        small=((FP32, (5000,)),),
    ),
    Unseen(
        kernel=rows.depthwise_nhwc,
        reference=_depthwise,
        arguments=_filtered,
        shapes=((BF16, (32, 56, 56, 384)), (FP16, (16, 65, 63, 96))),
        small=((FP32, (1, 5, 6, 9)),),
    ),
    Unseen(
        kernel=rows.causal_convolution,
        reference=_causal_convolution,
        arguments=_tapped,
        shapes=((BF16, (8, 4096, 4096)), (FP32, (3, 1536, 1000))),
        small=((FP32, (2, 5, 19)),),
    ),
    Unseen(
        kernel=rows.wave_step,
        reference=_wave,
        arguments=_alike(3),
        shapes=((FP32, (8192, 8192)), (FP32, (2049, 3001))),
        small=((FP32, (9, 20)),),
    ),
    Unseen(
        kernel=rows.max_pool_nhwc,
        reference=_max_pool,
        arguments=_alike(1),
        shapes=((BF16, (64, 112, 112, 64)), (FP32, (8, 55, 57, 192))),
        small=((FP32, (1, 7, 6, 5)),),
    ),
    Unseen(
        kernel=rows.padded_transpose,
        reference=_padded_transpose,
        arguments=_to_length,
        shapes=((BF16, (16, 4000, 1024, 4096)), (FP32, (8, 1000, 257, 1024))),
        small=((FP32, (2, 9, 17, 12)),),
    ),
    Unseen(
        kernel=rows.patches,
        reference=_patches,
        arguments=_images,
        shapes=((BF16, (128, 3, 224, 224, 16)), (FP32, (64, 4, 128, 128, 2))),
        small=((FP32, (2, 3, 8, 12, 4)),),
    ),
    Unseen(
        kernel=rows.decay_matrices,
        reference=_decay_matrices,
        arguments=_decaying,
        shapes=((FP32, (4096, 64)), (BF16, (1000, 100))),
        small=((FP32, (3, 9)),),
    ),
    Unseen(
        kernel=rows.smoothed_loss_and_gradient,
        reference=_smoothed,
        arguments=_labelled,
        shapes=((BF16, (4096, 128256)), (FP32, (2048, 32001)), (BF16, (16384, 1000))),
        small=((FP32, (5, 70)),),
    ),
    Unseen(
        kernel=rows.state_step,
        reference=_state_step,
        arguments=_states,
        shapes=((BF16, (128, 80, 64, 128)), (FP32, (16, 24, 64, 16))),
        small=((FP32, (2, 3, 5, 9)),),
    ),
)

GATHERS = (
    Unseen(
        kernel=gathers.routed_gates,
        reference=_gates,
        arguments=_routed,
        shapes=((FP32, (65536, 64, 8)), (BF16, (32768, 128, 4)), (FP32, (10000, 60, 6))),
        small=((FP32, (5, 12, 3)),),
    ),
    Unseen(
        kernel=gathers.segment_softmax,
        reference=_segment_softmax,
        arguments=_edges,
        shapes=((FP32, (100_000, 3_200_000, 8)), (BF16, (4000, 1_000_000, 4))),
        small=((FP32, (7, 50, 3)),),
    ),
    Unseen(
        kernel=gathers.neighbour_sums,
        reference=_neighbour_sums,
        arguments=_graph,
        shapes=((BF16, (100_000, 1_600_000, 128)), (FP32, (20_000, 500_000, 100))),
        small=((FP32, (7, 50, 19)),),
    ),
    Unseen(
        kernel=gathers.gathered_pages,
        reference=_gathered_pages,
        arguments=_pages,
        shapes=((BF16, (16, 256, 16, 8, 128)), (FP16, (5, 100, 32, 4, 80))),
        small=((FP32, (2, 3, 4, 2, 9)),),
    ),
    Unseen(
        kernel=gathers.written_slots,
        reference=_written,
        arguments=_slots,
        shapes=((BF16, (32768, 8, 128, 65536)), (FP16, (5000, 12, 64, 8192))),
        small=((FP32, (5, 3, 17, 9)),),
    ),
    Unseen(
        kernel=gathers.bilinear_samples,
        reference=_bilinear,
        arguments=_sampled,
        shapes=((FP32, (8, 128, 128, 256, 16384)), (FP32, (4, 65, 63, 32, 50000))),
        small=((FP32, (2, 5, 6, 9, 11)),),
    ),
    Unseen(
        kernel=gathers.buckets,
        reference=lambda x, edges: torch.searchsorted(edges, x, right=True, out_int32=True),
        arguments=_edged,
        shapes=((FP32, (1 << 25, 31)), (FP32, (4_000_001, 255))),
        small=((FP32, (100, 7)),),
    ),
    Unseen(
        kernel=gathers.joint_counts,
        reference=_joint,
        arguments=_pairs,
        shapes=((torch.int32, (1 << 25, 32)), (torch.int64, (5_000_000, 256))),
        small=((torch.int32, (100, 5)),),
    ),
    Unseen(
        kernel=gathers.unpacked_weights,
        reference=_unpacked,
        arguments=_packed,
        shapes=((BF16, (11008, 4096)), (FP16, (4096, 14336))),
        small=((FP32, (5, 256)),),
    ),
)

PRODUCTS = (
    Unseen(
        kernel=products.routed_experts,
        reference=_routed_experts,
        arguments=_experts,
        shapes=((BF16, (8192, 64, 2048, 1408, 6)), (BF16, (4096, 8, 4096, 3584, 2))),
        small=((FP32, (10, 3, 20, 17, 2)),),
    ),
    Unseen(
        kernel=products.aligned_experts,
        reference=_aligned_experts,
        arguments=_aligned,
        shapes=((BF16, (16384, 32, 2048, 1536)), (BF16, (4096, 8, 1000, 2880))),
        small=((FP32, (128, 3, 20, 17)),),
    ),
    Unseen(
        kernel=products.lower_triangle_product,
        reference=lambda low, x: low.tril() @ x,
        arguments=_triangle,
        shapes=((BF16, (4096, 4096)), (FP32, (2000, 1000))),
        small=((FP32, (37, 20)),),
    ),
    Unseen(
        kernel=products.block_sparse_product,
        reference=_sparse_product,
        arguments=_sparse,
        shapes=((BF16, (64, 512, 64, 4096)), (FP16, (128, 2048, 32, 1000))),
        small=((FP32, (4, 7, 16, 20)),),
    ),
    Unseen(
        kernel=products.feature_interactions,
        reference=lambda x: torch.bmm(x, x.mT),
        arguments=_alike(1),
        shapes=((BF16, (16384, 27, 128)), (FP16, (8192, 64, 64))),
        small=((FP32, (3, 9, 17)),),
    ),
    Unseen(
        kernel=products.congruences,
        reference=_congruences,
        arguments=_small_matrices,
        shapes=((BF16, (4096, 64)), (FP32, (8192, 32))),
        small=((FP32, (3, 16)),),
    ),
    Unseen(
        kernel=products.chunk_attention,
        reference=_chunk_attention,
        arguments=_chunks,
        shapes=((BF16, (2048, 64, 128, 128)), (FP16, (1024, 128, 64, 256))),
        small=((FP32, (2, 16, 20, 17)),),
    ),
    Unseen(
        kernel=products.gated_vector,
        reference=_gated_vector,
        arguments=_vector(2),
        shapes=((BF16, (14336, 4096)), (FP16, (11008, 2048)), (FP32, (5000, 3000))),
        small=((FP32, (19, 33)),),
    ),
    Unseen(
        kernel=products.few_tokens,
        reference=lambda x, w, residual: residual + x @ w.T,
        arguments=_tokens,
        shapes=((BF16, (1, 4096, 14336)), (BF16, (8, 8192, 8192)), (FP16, (16, 4096, 4096)), (FP16, (5, 2880, 5000))),
        small=((FP32, (3, 33, 20)),),
    ),
    Unseen(
        kernel=products.int8_vector,
        reference=lambda x, w, scale: ((wide(w).to(x.dtype) @ x) * scale).to(x.dtype),
        arguments=_bytes,
        shapes=((BF16, (14336, 4096)), (FP16, (4096, 11008))),
        small=((FP32, (19, 33)),),
    ),
    Unseen(
        kernel=products.packed_geglu,
        reference=_packed_geglu,
        arguments=_halves,
        shapes=((BF16, (8192, 4096, 11008)), (FP16, (4096, 1280, 5120)), (BF16, (1000, 768, 3000))),
        small=((FP32, (17, 34, 20)),),
    ),
    Unseen(
        kernel=products.projected_heads,
        reference=_projected,
        arguments=_heads,
        shapes=((BF16, (4, 2048, 4096, 32, 128)), (FP16, (3, 1000, 768, 12, 64))),
        small=((FP32, (2, 5, 20, 3, 16)),),
    ),
    Unseen(
        kernel=products.gaussian_affinity,
        reference=_affinity,
        arguments=_points,
        shapes=((FP32, (8192, 8192, 64)), (BF16, (5000, 10000, 768))),
        small=((FP32, (17, 20, 33)),),
    ),
    Unseen(
        kernel=products.contrastive_loss,
        reference=_contrastive,
        arguments=_views,
        shapes=((BF16, (16384, 128)), (FP16, (5000, 256))),
        small=((FP32, (20, 17)),),
    ),
    Unseen(
        kernel=products.gated_state_scan,
        reference=_gated_state_scan,
        arguments=_gated_states,
        shapes=((BF16, (64, 512, 64, 64)), (FP32, (16, 256, 128, 128))),
        small=((FP32, (2, 16, 9, 17)),),
    ),
)

WORKLOADS = (*ROWS, *GATHERS, *PRODUCTS)
