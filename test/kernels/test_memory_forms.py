"""Every way to address memory: tiles with offsets, integers, None, slices, gathers, masks, views, strides and aliases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion._testing import check


def call(kernel: helion.Kernel, *args: Any, **config: Any) -> Any:
    bound = kernel.bind(args)
    return bound.compile_config(config or bound.conservative_config())(*args)


def verify(kernel: helion.Kernel, reference: Callable[..., Any], *args: Any, **config: Any) -> None:
    bound = kernel.bind(args)
    check(kernel.name, bound.compile_config(config or bound.conservative_config()), reference, args)


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    if not dtype.is_floating_point:
        return torch.randint(0, 50, shape, generator=generator).to(dtype)
    return (torch.randn(shape, generator=generator) + 2).to(dtype)


# --- strides ------------------------------------------------------------------------------------------------------------


@helion.kernel
def double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] * 2
    return out


@helion.kernel
def softmax_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], -1)
    return out


STRIDED = {
    "transposed": lambda: sample(37, 9).t(),
    "every other column": lambda: sample(9, 74)[:, ::2],
    "every third row": lambda: sample(27, 37)[::3],
    "inner window": lambda: sample(20, 50)[5:14, 7:44],
    "expanded rows": lambda: sample(37).expand(9, 37),
    "expanded columns": lambda: sample(9, 1).expand(9, 37),
    "expanded in both": lambda: sample(1).expand(9, 37),
    "permuted from 3-D": lambda: sample(37, 4, 9).permute(1, 2, 0)[2],
    "diagonal planes": lambda: sample(9, 37, 2)[:, :, 1],
    "one row": lambda: sample(1, 37),
    "one column": lambda: sample(9, 1),
    "one element": lambda: sample(1, 1),
}


@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.parametrize("kernel", [double, softmax_rows], ids=lambda k: k.name)
def test_strides(kernel: helion.Kernel, name: str) -> None:
    x = STRIDED[name]()
    before = x.clone()
    result = call(kernel, x)
    expected = x * 2 if kernel is double else torch.softmax(x, -1)
    torch.testing.assert_close(result, expected)
    assert result.stride() == torch.empty_like(x).stride()
    assert torch.equal(x, before)


@helion.kernel
def into(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] + 1
    return out


def test_stores_touch_nothing_else() -> None:
    x = sample(9, 37)
    backing = torch.full((40, 90), -7.0)
    out = backing[3:12, 5:79:2]
    result = call(into, x, out)
    assert result is out
    expected = torch.full((40, 90), -7.0)
    expected[3:12, 5:79:2] = x + 1
    assert torch.equal(backing, expected)
    backing = torch.full((40, 90), -7.0)
    call(into, x, backing.t()[3:12, 2:39], block_sizes=[16, 8])
    expected = torch.full((40, 90), -7.0)
    expected.t()[3:12, 2:39] = x + 1
    assert torch.equal(backing, expected)


# --- in place and aliases -----------------------------------------------------------------------------------------------


@helion.kernel
def normalize_in_place(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile, :] = torch.softmax(x[tile, :], -1)
    return x


@helion.kernel
def add_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    for a, b in hl.tile(x.size()):
        x[a, b] += y[a, b]
        x[a, b] *= 2
        x[a, b] -= 1
    return x


@helion.kernel
def store_then_load(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] + 1
        first = x[tile]
        x[tile] = first * 3
        out[tile] = x[tile] - first
    return out


@pytest.mark.parametrize("config", [{"block_sizes": [2]}, {"block_sizes": [4], "reduction_loops": [16]}], ids=str)
def test_in_place_rows(config: dict[str, Any]) -> None:
    x = sample(5, 77)
    expected = torch.softmax(x, -1)
    assert call(normalize_in_place, x, **config) is x
    torch.testing.assert_close(x, expected)


def test_in_place_updates() -> None:
    x, y = sample(5, 37), sample(5, 37) + 1
    expected = (x + y) * 2 - 1
    call(add_in_place, x, y)
    torch.testing.assert_close(x, expected)
    expected = (y + y) * 2 - 1
    call(add_in_place, y, y)
    torch.testing.assert_close(y, expected)
    x, y = sample(37), torch.empty(37)
    expected = (x + 1) * 2
    call(store_then_load, x, y)
    torch.testing.assert_close(y, expected)


def test_an_argument_given_twice_and_then_once() -> None:
    kernel = helion.kernel(into.fn)
    x, y = sample(9, 37), sample(9, 37) - 5
    expected = x + 1
    call(kernel, x, x)
    torch.testing.assert_close(x, expected)
    call(kernel, x, y)
    torch.testing.assert_close(y, x + 1)


# --- subscripts ---------------------------------------------------------------------------------------------------------


@helion.kernel
def stencil(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    n = x.size(0)
    for tile in hl.tile(n - 2):
        out[tile] = x[tile] + 2 * x[tile + 1] - x[2 + tile]
    return out


@helion.kernel
def shifted_store(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(1, x.size(0)):
        out[tile - 1] = x[tile]
    return out


@helion.kernel
def shifted_by_argument(x: torch.Tensor, out: torch.Tensor, k: int) -> torch.Tensor:
    for tile in hl.tile(10):
        out[tile] = x[tile + k] + x[tile.index + k]
    return out


@helion.kernel
def neighbours(x: torch.Tensor) -> torch.Tensor:
    n = x.size(0)
    out = torch.empty_like(x)
    for tile in hl.tile(n):
        left = hl.load(x, [tile - 1], extra_mask=tile.index >= 1)
        right = hl.load(x, [tile + 1], extra_mask=tile.index < n - 1)
        out[tile] = left + x[tile] * 10 + right * 100
    return out


def test_shifted_tiles() -> None:
    x = sample(77)
    for sizes in ([8], [32], [128]):
        out = torch.zeros(75)
        verify(stencil, lambda x, out: x[:-2] + 2 * x[1:-1] - x[2:], x, out, block_sizes=sizes)
        verify(shifted_store, lambda x, out: x[1:], x, torch.zeros(76), block_sizes=sizes)
        for k in (0, 1, 5, 67):
            out = torch.zeros(10)
            verify(shifted_by_argument, lambda x, out, k: 2 * x[k : k + 10], x, out, k, block_sizes=sizes)

        def expected(x):
            zero = torch.zeros(1, dtype=x.dtype)
            return torch.cat([zero, x[:-1]]) + x * 10 + torch.cat([x[1:], zero]) * 100

        verify(neighbours, expected, x, block_sizes=sizes)


@helion.kernel
def integers(x: torch.Tensor, i: int) -> torch.Tensor:
    out = torch.empty([x.size(2), 4])
    for tile in hl.tile(x.size(2)):
        out[tile, 0] = x[0, 1, tile]
        out[tile, 1] = x[-1, -2, tile]
        out[tile, 2] = x[i, i + 1, tile]
        out[tile, -1] = x[i, 0, tile] + x[0, 0, 0]
    return out


@helion.kernel
def nones(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(1), x.size(0)])
    for a, b in hl.tile(x.size()):
        v = x[a, None, b]
        out[b, a] = (v + x[a, b][:, None, :])[:, 0, :].transpose(0, 1) + x[0, b, None]
    return out


@helion.kernel
def slices(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 5])
    for tile in hl.tile(x.size(0)):
        out[tile, 0:3] = x[tile, 2:5] + x[tile, 0:6:2]
        out[tile, 3] = x[tile, 3:].sum(-1)
        out[tile, 4] = x[tile, :4].sum(-1) + x[tile, -2:].amax(-1) + x[tile, 1:8:3].sum(-1)
    return out


@helion.kernel
def ellipsis_and_missing(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, ...] + x[tile] + x[tile, :, :] * x[tile, ..., 0][:, :, None] + x[tile, ..., 1][:, :, None]
    return out


@helion.kernel
def whole_tuple(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tiles in hl.tile(x.size()):
        out[tiles] = x[tiles] * 2 + x[tiles[0], tiles[1]]
    return out


def test_integers_nones_and_slices() -> None:
    x = sample(4, 5, 37)

    def expected(x, i):
        return torch.stack([x[0, 1], x[-1, -2], x[i, i + 1], x[i, 0] + x[0, 0, 0]], 1)

    for i in (0, 1, 3):
        verify(integers, expected, x, i)
    y = sample(9, 37)
    verify(nones, lambda x: (2 * x + x[0]).t(), y)
    verify(nones, lambda x: (2 * x + x[0]).t(), y, block_sizes=[4, 16])
    verify(whole_tuple, lambda x: x * 3, y)
    verify(ellipsis_and_missing, lambda x: 2 * x + x * x[..., :1] + x[..., 1:2], x)

    def sliced(x):
        first = x[:, 2:5] + x[:, 0:6:2]
        last = x[:, :4].sum(-1) + x[:, -2:].amax(-1) + x[:, 1:8:3].sum(-1)
        return torch.cat([first, x[:, 3:].sum(-1)[:, None], last[:, None]], 1)

    verify(slices, sliced, sample(9, 11))
    verify(slices, sliced, -sample(9, 13), block_sizes=[4])


@helion.kernel
def reversed_rows(x: torch.Tensor) -> torch.Tensor:
    n = x.size(0)
    out = torch.empty_like(x)
    for tile in hl.tile(n):
        out[tile, :] = x[n - 1 - tile.index, :]
    return out


@helion.kernel
def embedding(weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.empty([index.size(0), weight.size(1)], dtype=weight.dtype)
    for a, b in hl.tile(out.size()):
        out[a, b] = weight[index[a], b]
    return out


@helion.kernel
def pick(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile.index[:, None], labels[tile][:, None]].squeeze(1)
    return out


@helion.kernel
def pick_flat(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    n = x.size(1)
    flat = x.view(-1)
    out = torch.empty([x.size(0)], dtype=x.dtype)
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.load(flat, [tile.index * n + labels[tile]])
    return out


@helion.kernel
def scatter(x: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        out[index[tile]] = x[tile]
    return out


@helion.kernel
def cartesian(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    out = torch.empty([rows.size(0), columns.size(0)])
    for a, b in hl.tile(out.size()):
        out[a, b] = x[rows[a], columns[b]]
    return out


@helion.kernel
def broadcast_indices(x: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    out = torch.empty([rows.size(0), columns.size(0)])
    for a, b in hl.tile(out.size()):
        out[a, b] = x[rows[a][:, None], columns[b][None, :]]
    return out


@helion.kernel
def gather_2d(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.empty(index.size())
    for a, b in hl.tile(index.size()):
        out[a, b] = x[index[a, b]]
    return out


@helion.kernel
def gather_along_rows(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.empty(index.size())
    for a, b in hl.tile(index.size()):
        out[a, b] = x[a.index[:, None], index[a, b]]
    return out


@helion.kernel
def scalar_index(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.empty([index.size(0), x.size(1)])
    for i in hl.grid(index.size(0)):
        for tile in hl.tile(x.size(1)):
            out[i, tile] = x[index[i], tile]
    return out


@pytest.mark.parametrize("kind", [torch.int32, torch.int64], ids=str)
def test_gathers_and_scatters(kind: torch.dtype) -> None:
    x = sample(9, 37)
    index = torch.tensor([3, 0, 8, 8, 1, 4, 2], dtype=kind)
    columns = torch.tensor([36, 0, 5, 5, 20], dtype=kind)
    for sizes in ([4, 16], [16, 4]):
        verify(embedding, lambda w, i: w[i.long()], x, index, block_sizes=sizes)
        for kernel in (cartesian, broadcast_indices):
            verify(kernel, lambda x, r, c: x[r.long()][:, c.long()], x, index, columns, block_sizes=sizes)
        grid = torch.randint(0, 9, (5, 7), generator=torch.Generator().manual_seed(0)).to(kind)
        verify(gather_2d, lambda x, i: x[i.long()], sample(9), grid, block_sizes=sizes)
        verify(gather_along_rows, lambda x, i: x.gather(1, i.long()), sample(5, 9), grid, block_sizes=sizes)
    labels = torch.randint(0, 37, (9,), generator=torch.Generator().manual_seed(1)).to(kind)
    verify(pick, lambda x, t: x.gather(1, t.long()[:, None])[:, 0], x, labels)
    verify(pick_flat, lambda x, t: x.gather(1, t.long()[:, None])[:, 0], x, labels, block_sizes=[4])
    verify(reversed_rows, lambda x: x.flip(0), x)
    order = torch.randperm(37, generator=torch.Generator().manual_seed(2)).to(kind)
    verify(scatter, lambda x, i, out: out.index_copy(0, i.long(), x), sample(37), order, torch.zeros(37))
    verify(scalar_index, lambda x, i: x[i.long()], x, index)


# --- masks --------------------------------------------------------------------------------------------------------------


@helion.kernel
def triangle(x: torch.Tensor) -> torch.Tensor:
    out = torch.full(x.size(), -1.0)
    for a, b in hl.tile(x.size()):
        low = a.index[:, None] >= b.index[None, :]
        v = hl.load(x, [a, b], extra_mask=low)
        hl.store(out, [a, b], v * 2, extra_mask=(a.index[:, None] + b.index[None, :]) % 3 != 0)
    return out


@helion.kernel
def jagged_mean(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for a in hl.tile(x.size(0)):
        count = lengths[a]
        total = hl.zeros([a])
        for b in hl.tile(x.size(1)):
            v = hl.load(x, [a, b], extra_mask=b.index[None, :] < count[:, None])
            total = total + torch.exp(v).sum(-1)
        out[a] = (total - (x.size(1) - count)) / count
    return out


@helion.kernel
def masked_scalar(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in hl.grid(x.size(0)):
        hl.store(out, [i], x[i] + 1, extra_mask=i < 5)
        hl.store(out, [i], hl.load(x, [i], extra_mask=i > 100), extra_mask=i > 7)
    return out


def test_extra_masks() -> None:
    x = sample(9, 21)

    def expected(x):
        rows, columns = torch.arange(9)[:, None], torch.arange(21)[None, :]
        return torch.where((rows + columns) % 3 != 0, torch.where(rows >= columns, x * 2, 0.0), -1.0)

    for sizes in ([4, 8], [16, 4]):
        verify(triangle, expected, x, block_sizes=sizes)
    lengths = torch.tensor([1, 21, 3, 20, 7, 8, 9, 2, 16])

    def mean(x, lengths):
        inside = torch.arange(21)[None, :] < lengths[:, None]
        return torch.where(inside, torch.exp(x), 0.0).sum(-1) / lengths

    for sizes in ([4, 8], [2, 32]):
        result = call(jagged_mean, x, lengths, block_sizes=sizes)
        torch.testing.assert_close(result, mean(x, lengths), rtol=1e-4, atol=1e-4)

    def scalar(x):
        index = torch.arange(9)
        return torch.where(index < 5, x + 1, 0.0)

    verify(masked_scalar, scalar, sample(9))


# --- views of host tensors and of device values -------------------------------------------------------------------------


@helion.kernel
def views(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size()
    y = x.t()
    z = x.view(m, 4, n // 4)
    flat = x.reshape(-1)
    out = torch.empty_like(x)
    wide = out.view(m, 4, n // 4)
    for a in hl.tile(m):
        total = y[:, a].sum(0) + z[a, 1, :].sum(-1) + flat[a] + x[0, None, :].sum(-1)
        wide[a, :, :] = z[a, :, :] + total[:, None, None]
    return out


@helion.kernel
def slices_of_host_tensors(x: torch.Tensor) -> torch.Tensor:
    first, second = x[:, 0], x[1:, 1]
    out = torch.empty([x.size(0) - 1])
    for tile in hl.tile(second.size(0)):
        out[tile] = first[tile] + 10 * second[tile]
    return out


@helion.kernel
def chunks(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, dim=-1)
    out = torch.empty_like(a)
    for i, j in hl.tile(a.size()):
        out[i, j] = torch.nn.functional.silu(a[i, j]) * b[i, j]
    return out


@helion.kernel
def broadcast_on_the_host(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x, y = torch.broadcast_tensors(x, y)
    out = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, y.dtype))
    for tiles in hl.tile(out.size()):
        out[tiles] = x[tiles] + y[tiles]
    return out


@helion.kernel
def renamed(x: torch.Tensor) -> torch.Tensor:
    old = x
    x = x.t()
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] - old[a, b]
    return out


def test_views_on_the_host() -> None:
    def viewed(x):
        total = x.sum(1) + x[:, 3:6].sum(-1) + x.reshape(-1)[: x.size(0)] + x[0].sum()
        return x + total[:, None]

    verify(views, viewed, sample(5, 12), block_sizes=[2])
    verify(slices_of_host_tensors, lambda x: x[:-1, 0] + 10 * x[1:, 1], sample(37, 3))
    verify(chunks, lambda x: torch.nn.functional.silu(x[:, :37]) * x[:, 37:], sample(5, 74), block_sizes=[4, 16])
    verify(broadcast_on_the_host, lambda x, y: x + y, sample(5, 1, 7), sample(3, 1))
    verify(broadcast_on_the_host, lambda x, y: x + y, sample(7), sample(3, 7).bfloat16())
    verify(renamed, lambda x: x.t() - x, sample(9, 9))


@helion.kernel
def device_views(x: torch.Tensor) -> torch.Tensor:
    m, k, n = x.size()
    out = torch.empty([n, k, m])
    for a, c in hl.tile([m, n]):
        v = x[a, :, c]
        w = v.permute(2, 1, 0)
        w = w.transpose(0, 2).transpose(-1, 0)
        flat = v.reshape([a, k, c]).view(a, k, c).flatten(0, 0)
        w = w + flat.unsqueeze(0).squeeze(0).permute(2, 1, 0) + v.sum(1).t()[:, None, :]
        out[c, :, a] = w + torch.zeros_like(w) + w.new_zeros(w.shape)
    return out


@helion.kernel
def device_reshape(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 4])
    for tile in hl.tile(x.size(0)):
        v = x[tile, :].reshape([tile, 4, 8])
        w = v.view(tile, 32).view(tile, 4, -1)
        out[tile, :] = v.sum(-1) * 10 + w.amax(-1)
    return out


@helion.kernel
def expansions(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(0)])
    for a, b in hl.tile(out.size()):
        u, v = torch.broadcast_tensors(x[a][:, None], y[b][None, :])
        w = x[a, None].expand(a, b) + y[None, b].expand_as(u)
        out[a, b] = u * v + w + x[a].unsqueeze(-1).expand(-1, b) + torch.broadcast_to(y[b], [a, b])
    return out


def test_views_on_the_device() -> None:
    def permuted(x):
        return 2 * x.permute(2, 1, 0) + x.sum(1).t()[:, None, :]

    verify(device_views, permuted, sample(5, 3, 7), block_sizes=[2, 4])
    verify(device_views, permuted, sample(5, 4, 6))
    verify(
        device_reshape,
        lambda x: x.view(-1, 4, 8).sum(-1) * 10 + x.view(-1, 4, 8).amax(-1),
        sample(5, 32),
        block_sizes=[2],
    )

    def expanded(x, y):
        return x[:, None] * y[None] + 2 * x[:, None] + 2 * y[None]

    verify(expansions, expanded, sample(5), sample(37), block_sizes=[4, 8])


# --- ranges, indices and tiles as values --------------------------------------------------------------------------------


@helion.kernel
def ranges(x: torch.Tensor) -> torch.Tensor:
    n = x.size(1)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        ranks = hl.arange(n)
        out[tile, :] = x[tile, :] * ranks + torch.arange(n)[None, :] + hl.arange(3, 3 + 2 * n, 2)[None, :]
    return out


@helion.kernel
def fields(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 6], dtype=torch.int64)
    for tile in hl.tile(x.size(0)):
        ones = torch.ones_like(tile.index)
        out[tile, 0] = tile.index
        out[tile, 1] = ones * tile.begin
        out[tile, 2] = ones * tile.end
        out[tile, 3] = ones * tile.id
        out[tile, 4] = ones * tile.count
        out[tile, 5] = hl.tile_index(tile) + hl.tile_begin(tile) * 0 + tile.block_size
    return out


@helion.kernel
def offset_fields(x: torch.Tensor, begin: int) -> torch.Tensor:
    out = torch.zeros([x.size(0), 5], dtype=torch.int64)
    for tile in hl.tile(begin, x.size(0)):
        ones = torch.ones_like(tile.index)
        out[tile, 0] = tile.index
        out[tile, 1] = ones * tile.begin
        out[tile, 2] = ones * tile.end
        out[tile, 3] = ones * (tile.end - tile.begin)
        out[tile, 4] = ones * tile.count
    return out


def test_ranges() -> None:
    def expected(x):
        ranks = torch.arange(x.size(1))
        return x * ranks + ranks + 2 * ranks + 3

    verify(ranges, expected, sample(3, 37), block_sizes=[2])
    verify(ranges, expected, sample(3, 16), block_sizes=[2])


@pytest.mark.parametrize("size", [8, 16, 64])
def test_fields_of_a_tile(size: int) -> None:
    index = torch.arange(37)
    begin = index // size * size
    end = torch.clamp(begin + size, max=37)
    count = torch.full_like(index, -(-37 // size))
    expected = torch.stack([index, begin, end, index // size, count, index + size], 1)
    assert torch.equal(call(fields, torch.empty(37), block_sizes=[size]), expected)


@pytest.mark.parametrize("size", [8, 64])
@pytest.mark.parametrize("begin", [0, 3, 36, 37])
def test_fields_of_a_tile_that_begins_later(begin: int, size: int) -> None:
    index = torch.arange(begin, 37)
    first = (index - begin) // size * size + begin
    end = torch.clamp(first + size, max=37)
    count = torch.full_like(index, -(-(37 - begin) // size))
    expected = torch.zeros(37, 5, dtype=torch.int64)
    expected[begin:] = torch.stack([index, first, end, end - first, count], 1)
    assert torch.equal(call(offset_fields, torch.empty(37), begin, block_sizes=[size]), expected)


# --- grids and empty tensors --------------------------------------------------------------------------------------------


@helion.kernel
def grid_of_scalars(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i, j in hl.grid(x.size()):
        out[i, j] = x[i, j] * 2 + i * 10 + j
    return out


@helion.kernel
def grid_with_steps(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in hl.grid(1, x.size(0), step=3):
        for j in hl.grid(0, x.size(1), 2):
            out[i, j] = x[i, j] + 1
    return out


@helion.kernel
def grid_and_tile(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        for tile in hl.tile(x.size(1)):
            out[i, tile] = x[i, tile] / (i + 1)
    return out


def test_grids() -> None:
    x = sample(5, 7)
    verify(grid_of_scalars, lambda x: x * 2 + torch.arange(5)[:, None] * 10 + torch.arange(7), x)

    def stepped(x):
        out = torch.zeros_like(x)
        out[1::3, ::2] = x[1::3, ::2] + 1
        return out

    verify(grid_with_steps, stepped, x)
    verify(grid_and_tile, lambda x: x / (torch.arange(5)[:, None] + 1), x, block_sizes=[4])


@helion.kernel
def sum_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.full([x.size(0)], -1.0)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].sum(-1)
    return out


@helion.kernel
def tiled_sum_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.full([x.size(0)], -1.0)
    for a in hl.tile(x.size(0)):
        total = hl.zeros([a])
        for b in hl.tile(x.size(1)):
            total += x[a, b].sum(-1)
        out[a] = total
    return out


@pytest.mark.parametrize("kernel", [sum_rows, tiled_sum_rows], ids=lambda k: k.name)
def test_empty_tensors(kernel: helion.Kernel) -> None:
    assert torch.equal(call(kernel, torch.empty(5, 0)), torch.zeros(5))
    assert call(kernel, torch.empty(0, 5)).shape == (0,)
    assert call(kernel, torch.empty(0, 0)).shape == (0,)
    assert call(double, torch.empty(0, 3)).shape == (0, 3)
    assert call(double, torch.empty(3, 0)).shape == (3, 0)


@helion.kernel
def four_dimensions(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a, b, c, d in hl.tile(x.size()):
        out[a, b, c, d] = x[a, b, c, d] + y[b, d][None, :, None, :]
    return out


def test_four_dimensions() -> None:
    x, y = sample(2, 3, 5, 7), sample(3, 7)
    for sizes in ([1, 2, 4, 8], [2, 4, 1, 4]):
        verify(four_dimensions, lambda x, y: x + y[None, :, None, :], x, y, block_sizes=sizes)
    verify(
        four_dimensions,
        lambda x, y: x + y[None, :, None, :],
        x,
        y,
        block_sizes=[1, 2, 4, 8],
        loop_orders=[[2, 0, 3, 1]],
    )


@pytest.mark.parametrize("indexing", ["pointer", "block_ptr", "tensor_descriptor"])
def test_boolean_tensors_under_every_indexing(indexing: str) -> None:
    @helion.kernel(config=helion.Config(block_sizes=[16, 32], indexing=indexing))
    def chosen(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, inverse = torch.empty_like(x), torch.empty_like(mask)
        for tile in hl.tile(x.shape):
            taken = mask[tile]
            out[tile] = torch.where(taken, x[tile], 0.5)
            inverse[tile] = ~taken
        return out, inverse

    x, mask = torch.randn(64, 128), torch.rand(64, 128) > 0.5
    out, inverse = chosen(x, mask)
    torch.testing.assert_close(out, torch.where(mask, x, 0.5))
    assert torch.equal(inverse, ~mask)


# --- places in the way of users -----------------------------------------------------------------------------------------


@helion.kernel
def by_bounds(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    block = hl.register_block_size(x.size(0))
    for tile in hl.tile(x.size(0), block_size=block):
        begin = tile.begin
        out[tile.begin : tile.end, :] = x[begin : begin + block, :] * 2
    return out


def test_slices_between_the_bounds_of_a_tile() -> None:
    x = torch.randn(37, 5)
    for size in (1, 8, 64):
        torch.testing.assert_close(by_bounds.bind((x,)).compile_config({"block_sizes": [size]})(x), x * 2)


@helion.kernel(static_shapes=False)
def columns(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), 3])
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, -5:-2]
    return out


def test_slices_of_sizes_that_are_known_late() -> None:
    for width in (5, 9, 6):
        x = torch.randn(7, width)
        torch.testing.assert_close(columns(x), x[:, -5:-2])


@helion.kernel
def into_containers(x: torch.Tensor) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    parts = [torch.empty_like(x) for _ in range(2)]
    named = {"last": torch.empty_like(x)}
    for tile in hl.tile(x.size(0)):
        parts[0][tile] = x[tile]
        parts[1][tile] = x[tile] * 2
        named["last"][tile] = x[tile] * 3
    return parts, named


def test_tensors_in_containers_of_the_host_code() -> None:
    x = torch.randn(9)
    parts, named = into_containers(x)
    for factor, result in enumerate((*parts, named["last"]), 1):
        torch.testing.assert_close(result, x * factor)


@helion.kernel
def ragged(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    n = int(offsets[-1].item())
    scale = float(offsets.max().item())
    out = torch.zeros(2 * n, dtype=x.dtype)
    for tile in hl.tile(n):
        out[tile] = x[tile] * scale + n
    return out.reshape([2, n])


def test_sizes_that_the_host_reads_off_a_tensor() -> None:
    x = torch.randn(37)
    for n in (13, 37, 1):
        result = ragged(x, torch.tensor([0, 5, n]))
        torch.testing.assert_close(result[0], x[:n] * max(5, n) + n)
        assert result.shape == (2, n) and not result[1].any()


@helion.kernel
def counted(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    n = counts.sum().item()
    n = n + 1
    m = n
    first = int(counts[0].item())
    n = 0
    out = torch.zeros_like(x)
    for tile in hl.tile(m - 1):
        out[tile] = x[tile] + m + first + n
    return out


def test_numbers_off_tensors_keep_their_values_when_variables_change() -> None:
    x = torch.randn(9)
    for counts in ([2, 3], [4, 0], [9, 0]):
        m = sum(counts) + 1
        expected = torch.where(torch.arange(9) < m - 1, x + m + counts[0], 0.0)
        torch.testing.assert_close(counted(x, torch.tensor(counts)), expected)


@helion.kernel
def leading(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile_m, tile_n in hl.tile([counts[0], counts[1]]):
        out[tile_m, tile_n] = x[tile_m, tile_n]
    return out


def test_grids_whose_size_is_in_a_tensor() -> None:
    x = torch.randn(9, 11)
    for m, n in ((9, 11), (4, 7), (0, 3)):
        expected = torch.zeros_like(x)
        expected[:m, :n] = x[:m, :n]
        for pid_type in ("flat", "persistent_interleaved"):
            args = (x, torch.tensor([m, n]))
            run = leading.bind(args).compile_config({"block_sizes": [4, 4], "pid_type": pid_type})
            torch.testing.assert_close(run(*args), expected)


@helion.kernel
def swap(x: torch.Tensor, expected: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    before = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        before[tile] = hl.atomic_cas(x, [tile], expected[tile], value[tile])
    return before


def test_compare_and_swap_on_short_tiles() -> None:
    for first in (0, 3):
        x = torch.arange(first, 37 + first)
        expected, value = torch.where(x % 2 == 0, x, -1), x + 100
        for size in (8, 64):
            changed = x.clone()
            before = swap.bind((x, expected, value)).compile_config({"block_sizes": [size]})(changed, expected, value)
            torch.testing.assert_close(before, x)
            torch.testing.assert_close(changed, torch.where(x % 2 == 0, value, x))


@helion.kernel
def rows_of_experts(x: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for expert in hl.grid(counts.size(0)):
        for tile in hl.tile(x.size(0)):
            inside = tile.index < counts[expert]
            row = rows[expert, torch.where(inside, tile.index, 0)]
            hl.store(out, [row, slice(None)], x[row, :] * (expert + 1), extra_mask=inside[:, None])
    return out


def test_lanes_without_use_that_would_write_what_their_first_lane_does() -> None:
    """Without the mask several lanes would write one row, and which one is last is open on a GPU."""
    x = torch.randn(6, 5)
    rows, counts = torch.tensor([[4, 1, 0, 0, 0, 0], [2, 5, 3, 0, 0, 0]]), torch.tensor([3, 3])
    expert = torch.tensor([1, 1, 2, 2, 1, 2])
    result = rows_of_experts.bind((x, rows, counts)).compile_config({"block_sizes": [8]})(x, rows, counts)
    torch.testing.assert_close(result, x * expert[:, None])


@helion.kernel
def sums_of_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([x.size(0), 3])
    for i, j in hl.grid([x.size(0), 3]):
        total = hl.zeros([])
        for tile in hl.tile(x.size(1)):
            total = total + x[i, tile].sum() * (j + 1) + x[i, j]
        out[i, j] = total
    return out


@pytest.mark.parametrize("indexing", ["pointer", "block_ptr", "tensor_descriptor"])
def test_one_element_is_no_box(indexing: str) -> None:
    x = sample(9, 20)
    expected = x.sum(1, keepdim=True) * torch.arange(1, 4) + x[:, :3]
    result = call(sums_of_rows, x, block_sizes=[32], indexing=indexing)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_every_access_has_the_mechanism_of_its_own_slot() -> None:
    @helion.kernel
    def doubled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for a, b in hl.tile(x.size()):
            out[a, b] = x[a, b] * 2
        return out

    bound = doubled.bind((sample(16, 64),))
    for first, second in (("pointer", "tensor_descriptor"), ("tensor_descriptor", "pointer")):
        config = {"block_sizes": [8, 32], "indexing": [first, second]}
        text = bound.to_triton_code(config)
        assert "make_block_ptr" not in text
        assert (".load([" in text, ".store([" in text) == (first != "pointer", second != "pointer")
        torch.testing.assert_close(bound.compile_config(config)(sample(16, 64)), sample(16, 64) * 2)


def test_descriptors_move_no_boxes_that_are_too_small() -> None:
    @helion.kernel
    def doubled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for a, b in hl.tile(x.size()):
            out[a, b] = x[a, b] * 2
        return out

    x = sample(16, 64).to(torch.float16)
    bound = doubled.bind((x,))
    for rows, boxes in ((1, 0), (2, 0), (4, 2)):  # of 16 columns of 2 bytes
        config = {"block_sizes": [rows, 16], "indexing": "tensor_descriptor"}
        assert bound.to_triton_code(config).count("make_tensor_descriptor(") == boxes
        torch.testing.assert_close(bound.compile_config(config)(x), x * 2)


@pytest.mark.parametrize(("columns", "boxes"), [(66, 1), (68, 2), (64, 2)])
def test_descriptors_store_no_rows_that_end_within_16_bytes(columns: int, boxes: int) -> None:
    @helion.kernel
    def doubled(x: torch.Tensor, out: torch.Tensor) -> None:
        for a, b in hl.tile(x.size()):
            out[a, b] = x[a, b] * 2

    x, around = sample(16, 72)[:, :columns], torch.full([16, 72], 7.0)
    bound = doubled.bind((x, around[:, :columns]))
    config = {"block_sizes": [8, 32], "indexing": "tensor_descriptor"}
    assert bound.to_triton_code(config).count("make_tensor_descriptor(") == boxes
    bound.compile_config(config)(x, around[:, :columns])
    torch.testing.assert_close(around[:, :columns], x * 2)
    assert (around[:, columns:] == 7).all()


@helion.kernel(config=helion.Config(block_sizes=[16]))
def extremes(x: torch.Tensor, least: torch.Tensor, greatest: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        hl.atomic_min(least, [t.index % 4], x[t])
        hl.atomic_max(greatest, [t.index % 4], x[t])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_atomic_extremes_keep_nan(dtype: torch.dtype) -> None:
    x = torch.arange(-20, 20, dtype=dtype)
    x[5], x[10], x[3], x[7] = float("nan"), -float("nan"), float("inf"), -float("inf")
    least, greatest = torch.full([4], float("inf"), dtype=dtype), torch.full([4], -float("inf"), dtype=dtype)
    extremes(x, least, greatest)
    torch.testing.assert_close(least, x.view(10, 4).amin(0), equal_nan=True)
    torch.testing.assert_close(greatest, x.view(10, 4).amax(0), equal_nan=True)
