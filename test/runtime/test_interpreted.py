"""Untuned calls with CPU tensors take large tiles."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl
from helion import exc


def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], -1)
    return out


def twice(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * 2
    return out


def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype)
    for m, n in hl.tile(out.size()):
        acc = hl.zeros([m, n])
        for k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[m, k], y[k, n])
        out[m, n] = acc
    return out


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_CPU_CONFIG", "large")


@pytest.mark.parametrize("static", [True, False])
def test_few_programs(static: bool, capsys: pytest.CaptureFixture[str]) -> None:
    for fn, args, programs in (
        (softmax, (torch.randn(301, 1000) + 1,), 3),
        (twice, (torch.randn(501, 500) + 1,), 2),
        (matmul, (torch.randn(201, 100) + 1, torch.randn(100, 150)), 1),
    ):
        kernel = helion.kernel(fn, static_shapes=static)
        eager = {"softmax": lambda x: torch.softmax(x, -1), "twice": lambda x: x * 2, "matmul": torch.matmul}
        torch.testing.assert_close(kernel(*args), eager[fn.__name__](*args), rtol=2e-3, atol=2e-2)
        said = capsys.readouterr().err
        assert "in larger tiles for CPU tensors (HELION_CPU_CONFIG=target keeps those of the target)" in said
        sizes = kernel.bind(args).config["block_sizes"]
        covered = 1
        for size, extent in zip(sizes, args[0].shape if fn is not matmul else (201, 150), strict=False):
            covered *= -(-extent // size)
        assert covered <= programs
        assert kernel.bind(args).default_config() != kernel.bind(args).config


def test_the_targets_own_config(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HELION_CPU_CONFIG", "target")
    x = torch.randn(101, 100)
    kernel = helion.kernel(twice)
    kernel(x)
    assert kernel.bind((x,)).config == kernel.bind((x,)).default_config()
    assert "larger tiles" not in capsys.readouterr().err


def test_checked_kernels_have_two_tiles_along_an_axis() -> None:
    """Races between programs need two of them; small tensors have one in tiles of the target."""
    for shape in ((101, 100), (1, 300), (3, 3)):
        checked = helion.kernel(twice, checked=True)
        checked(torch.randn(shape))
        tiles = checked.bind((torch.randn(shape),)).config["block_sizes"]
        assert all(tile < max(size, 2) for tile, size in zip(tiles, shape, strict=True))

    def moved(x: torch.Tensor) -> torch.Tensor:
        for tile in hl.tile(1, x.size(0)):
            x[tile] = x[tile.index - 1]
        return x

    with pytest.raises(exc.DataRace):
        helion.kernel(moved, checked=True)(torch.randn(63))


def test_given_configs_keep_their_tiles() -> None:
    x = torch.randn(101, 100)
    given = helion.kernel(twice, config=helion.Config(block_sizes=[8, 16]))
    given(x)
    assert given.bind((x,)).config["block_sizes"] == [8, 16]
