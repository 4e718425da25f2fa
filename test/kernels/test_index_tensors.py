"""Several index tensors in one subscript: 1-D ones select an outer product, those of more dimensions are paired."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import helion
import helion.language as hl
from helion import exc

N = 8


def lanes(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, out: torch.Tensor) -> None:
    for _ in hl.grid(1):
        a = hl.arange(8)
        out[:, :] = x[i[a], j[a]]


def one_tile(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, out: torch.Tensor) -> None:
    for t in hl.tile(8, block_size=8):
        out[t, t] = x[i[t], j[t]]


def two_tiles(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, out: torch.Tensor) -> None:
    for t, u in hl.tile([8, 8]):
        out[t, u] = hl.load(x, [i[t], j[u]])


def stored(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, out: torch.Tensor) -> None:
    places = torch.arange(8)
    for _ in hl.grid(1):
        a = hl.arange(8)
        rows = places[a]
        out[rows, rows] = x[i[a], :][:, :] * 0 + x[i[a], j[a]]


def added(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, out: torch.Tensor) -> None:
    for _ in hl.grid(1):
        a = hl.arange(8)
        hl.atomic_add(out, [a, a], x[i[a], j[a]])


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("function", [lanes, one_tile, two_tiles, stored, added], ids=lambda f: f.__name__)
def test_outer_products(function: Callable[..., None], eager: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(9, 10, generator=generator)
    i, j = torch.randint(9, (N,), generator=generator), torch.randint(10, (N,), generator=generator)
    x = x[:, : 8 if function is stored else 10]
    j = j % x.size(1)
    mode = helion.RefMode.EAGER if eager else helion.RefMode.OFF
    out = torch.zeros(N, N)
    helion.kernel(function, ref_mode=mode)(x, i, j, out)
    assert torch.equal(out, x[i][:, j])


def paired(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, out: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        rows, columns = i[t][:, None], j[t][:, None]
        out[t, :, 0] = x[rows, columns, :].squeeze(1)
        out[t, 0, 1] = x[rows, columns, 1].squeeze(1)
        # a number between them makes no dimension
        out[t, 1, 1] = x[rows, 1, columns].squeeze(1)


def apart(x: torch.Tensor, i: torch.Tensor, j: torch.Tensor, out: torch.Tensor) -> None:
    for t in hl.tile(x.size(0), block_size=4):
        rows = i[t][:, None]
        out[t, :, :] = x[rows, :, j[:]].squeeze(1)


@pytest.mark.parametrize("eager", [False, True])
def test_pairs(eager: bool) -> None:
    x = torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(2))
    i, j = torch.tensor([3, 0, 2, 1]), torch.tensor([1, 1, 0, 3])
    mode = helion.RefMode.EAGER if eager else helion.RefMode.OFF
    out = torch.zeros(4, 4, 4)
    helion.kernel(paired, ref_mode=mode)(x, i, j, out)
    assert torch.equal(out[:, 2:, 0], x[i, j][:, 2:])
    assert torch.equal(out[:, 0, 1], x[i, j, 1]) and torch.equal(out[:, 1, 1], x[i, 1, j])
    helion.kernel(apart, ref_mode=mode)(x, i, j, out)
    assert torch.equal(out, x[i][:, :, j])


def test_a_stored_value_of_fewer_dimensions_is_refused() -> None:
    @helion.kernel
    def kernel(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0)])
        for t in hl.tile(x.size(0)):
            out[t] = x[t.index, i[t]]
        return out

    with pytest.raises(exc.RankMismatch):
        kernel.bind((torch.randn(4, 4), torch.zeros(4, dtype=torch.int64)))


def picked(x: torch.Tensor, i: int, out: torch.Tensor) -> None:
    for t in hl.tile(x.size(0)):
        out[t, i] = x[t, i - 1] + x[i, 0]


@pytest.mark.parametrize("static", [True, False])
def test_negative_numbers_count_from_the_end(static: bool) -> None:
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(2))
    kernel = helion.kernel(picked, static_shapes=static)
    for i in (2, -1, 0, -3):
        out, expected = torch.zeros(5, 7), torch.zeros(5, 7)
        expected[:, i] = x[:, i - 1] + x[i, 0]
        kernel(x, i, out)
        assert torch.equal(out, expected)


def stored_as_pairs(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> None:
    for t in hl.tile(i.size(0)):
        x[i[t], i[t]] = v[t]


def test_values_of_pairs_do_not_fill_an_outer_product() -> None:
    with pytest.raises(exc.RankMismatch, match="to pair index tensors"):
        helion.kernel(stored_as_pairs).bind((torch.zeros(9, 9), torch.arange(5), torch.randn(5)))


def added_as_pairs(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> None:
    for t in hl.tile(i.size(0)):
        hl.atomic_add(x, [i[t], i[t]], v[t])


def marked_as_pairs(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> None:
    for t in hl.tile(i.size(0)):
        x[i[t], i[t]] = 1.0


def counted_as_pairs(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> None:
    for t in hl.tile(i.size(0)):
        hl.atomic_add(x, [i[t], v[t].long()], 1.0)


def summed_as_pairs(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> None:
    for t in hl.tile(i.size(0)):
        v[t] = x[t, i[t]].sum(-1)


def all_pairs(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> None:
    for t in hl.tile(i.size(0), block_size=8):
        x[i[t][:, None], i[t][None, :]] = x[t, t.index + 1] + x[t, t]


def rows_of_slices(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> None:
    """One index tensor, next to slices that have as many elements."""
    for t in hl.tile(1):
        rows = t.begin + hl.arange(8)
        hl.store(v, [rows], (hl.load(x, [i[rows], slice(None, 8)]) + x[i[rows], 1:9]).sum(-1))
        x[i[rows], 0:8] = x[rows, 0:8]


def paired_with_lanes(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> None:
    for t in hl.tile(1):
        rows = t.begin + hl.arange(8)
        v[rows] = x[rows, i[rows]].sum(-1)


def test_a_value_added_as_pairs_is_refused() -> None:
    with pytest.raises(exc.RankMismatch, match="to pair index tensors"):
        helion.kernel(added_as_pairs).bind((torch.zeros(9, 9), torch.arange(5), torch.randn(5)))


@pytest.mark.parametrize(
    "function", [marked_as_pairs, counted_as_pairs, summed_as_pairs, paired_with_lanes, all_pairs, rows_of_slices]
)
def test_index_tensors_of_one_tile_are_warned_about(
    function: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    kernel = helion.kernel(function, ignore_warnings=[exc.UpdateByLoadedIndex, exc.LoadOfOtherPrograms])
    kernel.bind((torch.zeros(9, 9), torch.arange(8), torch.zeros(8)))
    said = capfd.readouterr().err
    expected = function not in (all_pairs, rows_of_slices)
    shape = "[8, 8]" if function is paired_with_lanes else "[t, t]"
    assert said.count("WARNING[IndexTensorsNotPaired]: 1-D index tensors of one size") == expected
    assert not expected or (f"in 'x', {shape}" in said and "flat[rows * n + columns]" in said)
