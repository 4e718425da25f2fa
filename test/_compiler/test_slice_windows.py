"""Windows of two axes that a kernel reduces: which have a load for each place of a row, and the values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import helion
import helion.language as hl


def means(x: torch.Tensor) -> torch.Tensor:
    n, c, rows, _, columns, _ = x.size()
    out = torch.empty([n, c, rows, columns], dtype=x.dtype, device=x.device)
    for tile_n, tile_c in hl.tile([n, c], block_size=[1, None]):
        windows = x[tile_n.begin, tile_c, :, :, :, :].to(torch.float32)
        out[tile_n.begin, tile_c, :, :] = windows.mean(-1).mean(2).to(x.dtype)
    return out


def largest(x: torch.Tensor) -> torch.Tensor:
    """Windows along tiles of rows and columns, both axes at once."""
    n, c, rows, _, columns, _ = x.size()
    out = torch.empty([n, c, rows, columns], dtype=x.dtype, device=x.device)
    for i, tile_r, tile_c in hl.tile([n * c, rows, columns], block_size=[1, None, None]):
        windows = x[i.begin // c, i.begin % c, tile_r, :, tile_c, :]
        out[i.begin // c, i.begin % c, tile_r, tile_c] = torch.amax(windows, (1, 3))
    return out


def deviations(x: torch.Tensor) -> torch.Tensor:
    """Two reductions, of which the second reads the first and the windows again."""
    n, c, rows, _, columns, _ = x.size()
    out = torch.empty([n, c, rows, columns], dtype=x.dtype, device=x.device)
    for tile_n, tile_c in hl.tile([n, c]):
        windows = x[tile_n, tile_c, :, :, :, :].to(torch.float32)
        mean = windows.mean(-1).mean(3)
        apart = windows - mean[:, :, :, None, :, None]
        out[tile_n, tile_c, :, :] = (apart * apart).sum(-1).sum(3).to(x.dtype)
    return out


def weighted(x: torch.Tensor) -> torch.Tensor:
    """Places with a weight each, which a tile of its own has."""
    n, c, rows, height, columns, width = x.size()
    out = torch.empty([n, c, rows, columns], dtype=x.dtype, device=x.device)
    weights = torch.ones([height, width], device=x.device).cumsum(0).cumsum(1)
    for tile_n, tile_c in hl.tile([n, c], block_size=[1, None]):
        windows = x[tile_n.begin, tile_c, :, :, :, :].to(torch.float32) * weights[:, :][None, None, :, None, :]
        out[tile_n.begin, tile_c, :, :] = windows.sum(-1).sum(2).to(x.dtype)
    return out


def shares(x: torch.Tensor) -> torch.Tensor:
    """Windows that are stored too stay whole."""
    n, c, *_ = x.size()
    out = torch.empty_like(x)
    for tile_n, tile_c in hl.tile([n, c], block_size=[1, None]):
        windows = x[tile_n.begin, tile_c, :, :, :, :].to(torch.float32)
        total = windows.sum(-1).sum(2)
        out[tile_n.begin, tile_c, :, :, :, :] = (windows / total[:, :, None, :, None]).to(x.dtype)
    return out


def updated(x: torch.Tensor) -> torch.Tensor:
    """The windows are read before they are written."""
    n, c, rows, _, columns, _ = x.size()
    out = torch.empty([n, c, rows, columns], dtype=x.dtype, device=x.device)
    y = x.clone()
    for tile_n, tile_c in hl.tile([n, c], block_size=[1, None]):
        windows = y[tile_n.begin, tile_c, :, :, :, :]
        y[tile_n.begin, tile_c, :, :, :, :] = hl.zeros([tile_c, rows, x.size(3), columns, x.size(5)], dtype=x.dtype)
        out[tile_n.begin, tile_c, :, :] = windows.to(torch.float32).sum(-1).sum(2).to(x.dtype)
    return out


def _sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum((3, 5))


def _weighted(x: torch.Tensor) -> torch.Tensor:
    return (x * torch.ones(x.size(3), x.size(5)).cumsum(0).cumsum(1)[:, None, :]).sum((3, 5))


Case = Callable[[torch.Tensor], torch.Tensor]
SLICED: tuple[tuple[Case, Case], ...] = (
    (means, lambda x: x.mean((3, 5))),
    (largest, lambda x: x.amax((3, 5))),
    (deviations, lambda x: ((x - x.mean((3, 5), keepdim=True)) ** 2).sum((3, 5))),
    (weighted, _weighted),
    (updated, _sum),
)
WHOLE: tuple[tuple[Case, Case], ...] = ((shares, lambda x: x / x.sum((3, 5), keepdim=True)),)


def _loads(bound: helion.BoundKernel) -> list[tuple[int, int]]:
    """Return the slot and the dimensions of each load of x."""
    program = bound._analysis.program
    return [(op.attrs.slot, len(op.result.dims)) for op in program.walk() if op.kind == "load"]


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("shape", [(2, 5, 7, 4, 7, 5), (3, 7, 5, 3, 6, 3), (1, 9, 3, 2, 5, 2)])
@pytest.mark.parametrize("case", [*SLICED, *WHOLE], ids=lambda case: case[0].__name__)
def test_the_values(case: tuple[Case, Case], shape: tuple[int, ...], static: bool) -> None:
    kernel, reference = case
    x = torch.rand(shape) + 0.5
    got = helion.kernel(kernel, static_shapes=static, ignore_warnings=[])(x)
    torch.testing.assert_close(got, reference(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", SLICED, ids=lambda case: case[0].__name__)
def test_places_are_loads(case: tuple[Case, Case]) -> None:
    x = torch.empty([2, 5, 7, 4, 7, 5], device="meta")
    loads = _loads(helion.kernel(case[0]).bind((x,), target="h200"))
    slot, _ = loads[0]
    assert [each for each in loads if each[0] == slot] == [loads[0]] * 5, "each place has a load of the same slot"


@pytest.mark.parametrize("places", [2, 4, 8])
def test_a_vector_stays_whole(places: int) -> None:
    """A power of two of places next to each other in memory is a vector, which a thread has."""
    x = torch.empty([2, 64, 112, 3, 112, places], device="meta")
    assert len(_loads(helion.kernel(largest).bind((x,), target="h200"))) == 1


def test_a_program_has_few_windows() -> None:
    """Each place reads the lines of all places of its row: programs of one window of 7 x 7 keep them in the cache."""
    x = torch.empty([64, 512, 7, 4, 7, 5], device="meta", dtype=torch.bfloat16)
    bound = helion.kernel(means, backend="triton").bind((x,), target="h200")
    assert bound.short_config(bound.default_config()).to_dict() == {
        "block_sizes": [1],
        "reduction_loops": [None],
        "num_warps": 1,
        "num_stages": 1,
    }


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case[0].__name__)
def test_windows_that_are_stored_are_whole(case: tuple[Case, Case]) -> None:
    x = torch.empty([2, 5, 7, 4, 7, 5], device="meta")
    assert len(_loads(helion.kernel(case[0]).bind((x,), target="h200"))) == 1


def test_long_windows_are_whole() -> None:
    x = torch.empty([2, 5, 12, 16, 12, 9], device="meta")
    assert len(_loads(helion.kernel(means).bind((x,), target="h200"))) == 1


def test_a_config_for_whole_windows_is_taken() -> None:
    """A config that names chunks of the windows' dimensions, and the source's accesses, stays valid."""
    x = torch.rand([2, 5, 7, 4, 7, 5])
    config = helion.Config(block_sizes=[2], reduction_loops=[None, None], indexing=["pointer", "pointer"])
    kernel = helion.kernel(means, config=config)
    torch.testing.assert_close(kernel(x), x.mean((3, 5)), atol=1e-5, rtol=1e-5)


def test_gradients_are_of_whole_windows() -> None:
    x = torch.rand([2, 5, 7, 4, 7, 5], requires_grad=True)
    helion.kernel(means).differentiable()(x).square().sum().backward()
    expected = torch.autograd.grad(x.mean((3, 5)).square().sum(), x)[0]
    torch.testing.assert_close(x.grad, expected, atol=1e-5, rtol=1e-5)
