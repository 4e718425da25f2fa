"""Records, tables and graphs: neighbours, joins, keys, packed numbers, crosses of features and orders of dimensions."""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from .cell import BF16, FP16, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def neighbour_attention(
    features: torch.Tensor, source: torch.Tensor, target: torch.Tensor, neighbours: torch.Tensor
) -> torch.Tensor:
    """Attention of a graph: features `[N, H, D]` of the neighbours `[N, K]`, weighted by leaky scores of both ends."""
    n, h, _ = features.size()
    out = torch.empty_like(features)
    for tile, head in hl.tile([n, h], block_size=[None, 1]):
        near = neighbours[tile, :]
        scores = source[near, head.begin] + target[tile, head.begin][:, None]
        scores = torch.where(scores > 0, scores, 0.2 * scores)
        weights = torch.softmax(scores, dim=1)
        values = features[near, head.begin, :].to(torch.float32)
        out[tile, head.begin, :] = (values * weights[:, :, None]).sum(1).to(features.dtype)
    return out


def neighbour_attention_torch(
    features: torch.Tensor, source: torch.Tensor, target: torch.Tensor, neighbours: torch.Tensor
) -> torch.Tensor:
    near = neighbours.long()
    scores = torch.nn.functional.leaky_relu(source[near] + target[:, None], 0.2)
    weights = torch.softmax(scores, 1)
    return (high(features)[near] * weights[..., None]).sum(1).to(features.dtype)


def make_neighbour_attention(device: str, small: bool) -> Arguments:
    n, h, d, k = (37, 2, 16, 5) if small else (65536, 8, 32, 16)
    neighbours = torch.randint(0, n, [n, k], device=device, dtype=torch.int32)
    return normal(device, n, h, d, dtype=BF16), normal(device, n, h), normal(device, n, h), neighbours


CELLS.add(neighbour_attention, make_neighbour_attention, neighbour_attention_torch)


@helion.kernel
def common_neighbours(rows: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """The number of neighbours that both ends of each edge have, in a graph of bits `[N, W]`."""
    edges = first.size(0)
    words = rows.size(1)
    out = torch.empty([edges], dtype=torch.int32, device=rows.device)
    for tile in hl.tile(edges):
        a, b = first[tile], second[tile]
        count = hl.zeros([tile], dtype=torch.int32)
        for word in hl.tile(words):
            both = rows[a, word] & rows[b, word]
            both = both - ((both >> 1) & 0x55555555)
            both = (both & 0x33333333) + ((both >> 2) & 0x33333333)
            both = (both + (both >> 4)) & 0x0F0F0F0F
            both = both + (both >> 8)
            both = both + (both >> 16)
            count += (both & 0x3F).sum(1)
        out[tile] = count
    return out


def common_neighbours_torch(rows: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    both = rows[first] & rows[second]
    both = both - ((both >> 1) & 0x55555555)
    both = (both & 0x33333333) + ((both >> 2) & 0x33333333)
    both = (both + (both >> 4)) & 0x0F0F0F0F
    both = both + (both >> 8)
    return ((both + (both >> 16)) & 0x3F).sum(1).int()


def make_common_neighbours(device: str, small: bool) -> Arguments:
    n, words, edges = (37, 9, 65) if small else (8192, 256, 262144)
    rows = torch.randint(-(1 << 31), 1 << 31, [n, words], device=device).to(torch.int32)
    return rows, *(torch.randint(0, n, [edges], device=device) for _ in range(2))


CELLS.add(common_neighbours, make_common_neighbours, common_neighbours_torch)


@helion.kernel
def join_by_key(keys: torch.Tensor, table: torch.Tensor, payload: torch.Tensor, missing: float) -> torch.Tensor:
    """The payload of each key's first place in a sorted table, or another number where the table lacks the key."""
    n = table.size(0)
    steps = n.bit_length()
    out = torch.empty([keys.size(0)], dtype=payload.dtype, device=keys.device)
    for tile in hl.tile(keys.size(0)):
        key = keys[tile]
        low = hl.zeros([tile], dtype=torch.int32)
        high = hl.full([tile], n, dtype=torch.int32)
        for _ in range(steps):
            middle = (low + high) // 2
            inside = torch.clamp(middle, max=n - 1)
            right = (low < high) & (table[inside] < key)
            high = torch.where((low < high) & ~right, middle, high)
            low = torch.where(right, middle + 1, low)
        at = torch.clamp(low, max=n - 1)
        out[tile] = torch.where(table[at] == key, payload[at], missing)
    return out


def join_by_key_torch(keys: torch.Tensor, table: torch.Tensor, payload: torch.Tensor, missing: float) -> torch.Tensor:
    at = torch.searchsorted(table, keys).clamp(max=table.size(0) - 1)
    return torch.where(table[at] == keys, payload[at], missing)


def make_join_by_key(device: str, small: bool) -> Arguments:
    n, count = (65, 1001) if small else (1_000_003, 4_000_000)
    table = torch.randint(0, 2 * n, [n], device=device).sort().values
    return torch.randint(0, 2 * n, [count], device=device), table, normal(device, n), -1.0


CELLS.add(join_by_key, make_join_by_key, join_by_key_torch)


@helion.kernel
def unpack_twelve_bits(packed: torch.Tensor, black: int, gain: float) -> torch.Tensor:
    """Levels of rows of sensors `[H, 3 W]` of bytes, two numbers of 12 bits in each three: `[H, 2 W]` in fp16."""
    h, width = packed.size()
    triples = packed.view(h, width // 3, 3)
    out = torch.empty([h, width // 3, 2], dtype=torch.float16, device=packed.device)
    for rows, columns in hl.tile([h, width // 3]):
        first = triples[rows, columns, 0].to(torch.int32)
        second = triples[rows, columns, 1].to(torch.int32)
        third = triples[rows, columns, 2].to(torch.int32)
        left = first | ((second & 15) << 8)
        right = (second >> 4) | (third << 4)
        out[rows, columns, 0] = (torch.clamp(left - black, min=0).to(torch.float32) * gain).to(torch.float16)
        out[rows, columns, 1] = (torch.clamp(right - black, min=0).to(torch.float32) * gain).to(torch.float16)
    return out.view(h, width // 3 * 2)


def unpack_twelve_bits_torch(packed: torch.Tensor, black: int, gain: float) -> torch.Tensor:
    first, second, third = packed.int().unflatten(1, (-1, 3)).unbind(2)
    both = torch.stack([first | ((second & 15) << 8), (second >> 4) | (third << 4)], 2)
    return ((both - black).clamp(min=0).float() * gain).half().flatten(1)


CELLS.add(
    unpack_twelve_bits,
    lambda device, small: (
        torch.randint(0, 256, (7, 99) if small else (8192, 12288), device=device, dtype=torch.uint8),
        64,
        1 / 1024,
    ),
    unpack_twelve_bits_torch,
)


@helion.kernel
def factorization_scores(ids: torch.Tensor, table: torch.Tensor, linear: torch.Tensor) -> torch.Tensor:
    """Scores `[B]` of factorization machines: the linear terms and products of all pairs of embeddings of F fields."""
    b, f = ids.size()
    d = hl.specialize(table.size(1))
    out = torch.empty([b], dtype=torch.float32, device=ids.device)
    for tile in hl.tile(b):
        total, squares = hl.zeros([tile, d]), hl.zeros([tile, d])
        first = hl.zeros([tile])
        for field in range(f):
            at = ids[tile, field]
            row = table[at, :].to(torch.float32)
            total += row
            squares += row * row
            first += linear[at]
        out[tile] = first + 0.5 * (total * total - squares).sum(1)
    return out


def factorization_scores_torch(ids: torch.Tensor, table: torch.Tensor, linear: torch.Tensor) -> torch.Tensor:
    rows = high(table)[ids]
    return linear[ids].sum(1) + 0.5 * (rows.sum(1) ** 2 - (rows**2).sum(1)).sum(1)


CELLS.add(
    factorization_scores,
    lambda device, small: (
        torch.randint(0, 99 if small else 1_000_000, (37, 5) if small else (65536, 26), device=device),
        normal(device, 99 if small else 1_000_000, 24 if small else 64, dtype=FP16),
        normal(device, 99 if small else 1_000_000),
    ),
    factorization_scores_torch,
)


@helion.kernel
def smallest_hashes(tokens: torch.Tensor, lengths: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Signatures `[N, S]` of documents `[N, T]`: the smallest of each of S hashes of the first tokens of each."""
    n, t = tokens.size()
    s = a.size(0)
    out = torch.empty([n, s], dtype=torch.int32, device=tokens.device)
    for docs, hashes in hl.tile([n, s]):
        least = hl.full([docs, hashes], 2147483647, dtype=torch.int32)
        for at in hl.tile(t):
            token = tokens[docs, at].to(torch.int32)
            value = token[:, :, None] * a[hashes][None, None, :] + b[hashes][None, None, :]
            value = (value ^ (value >> 15)) & 2147483647
            known = at.index[None, :] < lengths[docs][:, None]
            value = torch.where(known[:, :, None], value, 2147483647)
            least = torch.minimum(least, value.amin(1))
        out[docs, hashes] = least
    return out


def smallest_hashes_torch(
    tokens: torch.Tensor, lengths: torch.Tensor, a: torch.Tensor, b: torch.Tensor
) -> torch.Tensor:
    value = tokens[:, :, None].int() * a + b
    value = (value ^ (value >> 15)) & 2147483647
    known = torch.arange(tokens.size(1), device=tokens.device) < lengths[:, None]
    return torch.where(known[..., None], value, 2147483647).amin(1)


def make_smallest_hashes(device: str, small: bool) -> Arguments:
    n, t, s = (21, 37, 9) if small else (16384, 256, 128)
    tokens = torch.randint(0, 30000, [n, t], device=device, dtype=torch.int16)
    lengths = torch.randint(1, t + 1, [n], device=device, dtype=torch.int32)
    factors = (torch.randint(-(1 << 31), 1 << 31, [s], device=device).to(torch.int32) for _ in range(2))
    return tokens, lengths, *factors


CELLS.add(smallest_hashes, make_smallest_hashes, smallest_hashes_torch)


@helion.kernel
def mix_tokens(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Mixtures of the tokens of each head, `bshd,hst->bthd`, for all B."""
    b, s, h, d = x.size()
    t = weight.size(2)
    out = torch.empty([b, t, h, d], dtype=x.dtype, device=x.device)
    for batch, head, tile_t, tile_d in hl.tile([b, h, t, d], block_size=[1, 1, None, None]):
        acc = hl.zeros([tile_t, tile_d])
        for tile_s in hl.tile(s):
            left = weight[head.begin, tile_s, tile_t]
            right = x[batch.begin, tile_s, head.begin, tile_d]
            acc = torch.addmm(acc, left.T, right)
        out[batch.begin, tile_t, head.begin, tile_d] = acc.to(x.dtype)
    return out


CELLS.add(
    mix_tokens,
    lambda device, small: (
        normal(device, *((3, 21, 35) if small else (12, 577, 577)), dtype=BF16, scale=0.04),
        normal(device, *((2, 21, 3, 16) if small else (64, 577, 12, 64)), dtype=BF16),
    ),
    lambda weight, x: torch.einsum("bshd,hst->bthd", high(x), high(weight)).to(x.dtype),
    lambda weight, x: torch.einsum("bshd,hst->bthd", x, weight),
)


@helion.kernel
def film_to_channels(film: torch.Tensor, mean: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
    """Films `[B, T, H, W, 3]` of bytes as normalized numbers `[B, 3, T, H, W]` in bf16."""
    b, t, h, w, c = film.size()
    out = torch.empty([b, c, t, h, w], dtype=torch.bfloat16, device=film.device)
    for tile_b, tile_t, tile_h, tile_w in hl.tile([b, t, h, w]):
        for channel in hl.static_range(3):
            value = film[tile_b, tile_t, tile_h, tile_w, channel].to(torch.float32) / 255
            value = (value - mean[channel]) / deviation[channel]
            out[tile_b, channel, tile_t, tile_h, tile_w] = value.to(torch.bfloat16)
    return out


CELLS.add(
    film_to_channels,
    lambda device, small: (
        torch.randint(0, 256, (2, 3, 5, 7, 3) if small else (8, 32, 224, 224, 3), device=device, dtype=torch.uint8),
        torch.rand([3], device=device),
        0.2 + torch.rand([3], device=device),
    ),
    lambda film, mean, deviation: (
        ((film.to(mean.dtype) / 255 - mean) / deviation).permute(0, 4, 1, 2, 3).contiguous().to(BF16)
    ),
)


@helion.kernel
def coherence(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """How alike two signals are in each band: of spectra `[C, S, F, 2]` of S parts, for C channels: `[C, F]`."""
    c, s, f, _ = x.size()
    hl.specialize(x.size(3))
    out = torch.empty([c, f], dtype=torch.float32, device=x.device)
    for channels, bands in hl.tile([c, f]):
        real, imag = hl.zeros([channels, bands]), hl.zeros([channels, bands])
        left, right = hl.zeros([channels, bands]), hl.zeros([channels, bands])
        for parts in hl.tile(s):
            a, b = hl.split(x[channels, parts, bands, :])
            d, e = hl.split(y[channels, parts, bands, :])
            real += (a * d + b * e).sum(1)
            imag += (b * d - a * e).sum(1)
            left += (a * a + b * b).sum(1)
            right += (d * d + e * e).sum(1)
        out[channels, bands] = (real * real + imag * imag) / (left * right)
    return out


def coherence_torch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b = x.unbind(-1)
    d, e = y.unbind(-1)
    real, imag = (a * d + b * e).sum(1), (b * d - a * e).sum(1)
    return (real**2 + imag**2) / ((a * a + b * b).sum(1) * (d * d + e * e).sum(1))


CELLS.add(
    coherence,
    lambda device, small: tuple(normal(device, *((2, 5, 33, 2) if small else (64, 128, 1025, 2))) for _ in range(2)),
    coherence_torch,
)


@helion.kernel
def pair_products(features: torch.Tensor, places: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """Dense features `[B, D]`, then the products of all pairs of `[B, F, D]`, at their `places[F, F]` of a row."""
    b, f, d = features.size()
    pairs = f * (f - 1) // 2
    out = torch.empty([b, d + pairs], dtype=features.dtype, device=features.device)
    for row in hl.grid(b):
        block = features[row, :, :]
        products = hl.dot(block, block.T, out_dtype=torch.float32)
        below = hl.arange(f)[:, None] > hl.arange(f)[None, :]
        hl.store(out, [row, places[:, :] + d], products.to(features.dtype), extra_mask=below)
        out[row, :d] = dense[row, :]
    return out


def pair_products_torch(features: torch.Tensor, places: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    products = high(features) @ high(features).transpose(1, 2)
    rows, columns = torch.tril_indices(features.size(1), features.size(1), -1, device=features.device)
    return torch.cat([dense, products[:, rows, columns].to(dense.dtype)], 1)


def make_pair_products(device: str, small: bool) -> Arguments:
    b, f, d = (7, 5, 16) if small else (16384, 27, 128)
    at = torch.arange(f, device=device)
    places = torch.where(at[:, None] > at, at[:, None] * (at[:, None] - 1) // 2 + at, 0).to(torch.int32)
    return normal(device, b, f, d, dtype=BF16), places, normal(device, b, d, dtype=BF16)


CELLS.add(pair_products, make_pair_products, pair_products_torch)
