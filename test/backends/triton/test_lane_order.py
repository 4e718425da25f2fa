"""The order of lanes in accesses to elements that are not known to be neighbors."""

from __future__ import annotations

import pytest
import torch

import helion
import helion.language as hl
from helion.backends.triton.plan import lowered


@pytest.fixture(params=(True, False), ids=("first lanes", "last lanes"))
def first(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Triton's choice among dimensions of unknown neighbors, whatever version is installed."""
    monkeypatch.setattr(lowered, "prefers_first_lanes", lambda: request.param)
    return bool(request.param)


def strided(x: torch.Tensor) -> torch.Tensor:
    h, w, _ = x.shape
    out = torch.empty([h, w, 3], dtype=x.dtype, device=x.device)
    for tile_h, tile_w in hl.tile([h, w]):
        red, blue = x[tile_h, tile_w, 0], x[tile_h, tile_w, 2]
        out[tile_h, tile_w, 0] = red - blue
        out[tile_h, tile_w, 1] = red + blue
        out[tile_h, tile_w, 2] = red * blue
    return out


def gathered(x: torch.Tensor, width: int) -> torch.Tensor:
    n, h, w = x.shape
    out = torch.empty([n, h, width], dtype=x.dtype, device=x.device)
    for tile_n, tile_h, tile_w in hl.tile([n, h, width]):
        rows = torch.clamp(tile_h.index - 1, min=0)
        columns = torch.clamp((tile_w.index.float() * 0.7).to(torch.int64), max=w - 1)
        keep = (columns > 2)[None, None, :] & (rows > 0)[None, :, None]
        out[tile_n, tile_h, tile_w] = hl.load(x, [tile_n, rows, columns], extra_mask=keep)
    return out


def flat(x: torch.Tensor) -> torch.Tensor:
    m, n = x.shape
    view = x.view(-1)
    out = torch.empty([m, n // 3], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n // 3]):
        out[tile_m, tile_n] = view[tile_m.index[:, None] * n + tile_n.index[None, :] * 3]
    return out


def turned(x: torch.Tensor) -> torch.Tensor:
    m, n, _ = x.shape
    out = torch.empty([n, m], dtype=x.dtype, device=x.device)
    for tile_n, tile_m in hl.tile([n, m]):
        out[tile_n, tile_m] = x[tile_m, tile_n, 1].T
    return out


def in_place(x: torch.Tensor) -> torch.Tensor:
    m, n, _ = x.shape
    for tile_m, tile_n in hl.tile([m, n]):
        x[tile_m, tile_n, 0] = x[tile_m, tile_n, 1] + 1
    return x


def rows(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    out = torch.empty([at.size(0), x.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile(out.shape):
        out[tile_m, tile_n] = x[at[tile_m], tile_n]
    return out


def windows(x: torch.Tensor) -> torch.Tensor:
    b, h, w, _ = x.shape
    out = torch.empty([b, w, h], dtype=x.dtype, device=x.device)
    for tile_b, tile_w, tile_h in hl.tile([b, w, h]):
        out[tile_b, tile_w, tile_h] = x[tile_b, tile_h, tile_w, :].sum(-1).permute(0, 2, 1)
    return out


def paired(x: torch.Tensor) -> torch.Tensor:
    b, h, w, pair = x.shape
    out = torch.empty([b, w, h, pair], dtype=x.dtype, device=x.device)
    for tile_b, tile_w, tile_h in hl.tile([b, w, h]):
        out[tile_b, tile_w, tile_h, :] = x[tile_b, tile_h, tile_w, :].permute(0, 2, 1, 3) * 2
    return out


def code(function: object, args: tuple[object, ...]) -> str:
    sizes = [8] * (3 if function in (gathered, windows, paired) else 2)
    bound = helion.kernel(function).bind(args, target="sm_90")  # type: ignore[call-overload]
    return str(bound.to_triton_code(helion.Config(block_sizes=sizes)))


def test_lanes_lie_along_the_shortest_step(first: bool) -> None:
    text = code(strided, (torch.empty(33, 40, 3),))
    assert text.count("tl.permute(") == (5 if first else 0)
    assert ("indices_1[:, None] * 3" in text) == first
    assert code(gathered, (torch.empty(3, 33, 40), 50)).count("tl.permute(load") == int(first)
    assert code(flat, (torch.empty(33, 60),)).count("tl.permute(load") == int(first)
    # a run of 4 elements is no line: the columns have the other lanes
    text = code(windows, (torch.empty(16, 33, 40, 4),))
    assert ("tl.permute(load, [2, 1, 0, 3])" in text) == first
    assert "tl.permute(load" not in code(windows, (torch.empty(16, 33, 40, 32),))
    # accesses of a run in memory have their own order
    text = code(paired, (torch.empty(16, 33, 40, 2),))
    assert "run = " in text and text.count("tl.permute(") == 1


def test_an_order_that_is_right_stays(first: bool) -> None:
    assert "tl.permute(" not in code(rows, (torch.empty(33, 40), torch.zeros(9, dtype=torch.int64)))
    assert "tl.permute(" not in code(in_place, (torch.empty(33, 40, 2),))
    # a step of a line and more has no neighbors in either order
    assert code(strided, (torch.empty(33, 40, 300),)).count("tl.permute(load") == 0
    # the user's own transposition, and that of the access
    assert code(turned, (torch.empty(33, 40, 3),)).count("tl.permute(") == 1 + first


@pytest.mark.parametrize("static", (True, False))
def test_values_are_the_same(first: bool, static: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(33, 41, 3)

    def run(function: object, *args: object) -> torch.Tensor:
        made = helion.kernel(function, static_shapes=static, autotune_effort="none")(*args)  # type: ignore[call-overload]
        assert isinstance(made, torch.Tensor)
        return made

    a, b = x[..., 0], x[..., 2]
    torch.testing.assert_close(run(strided, x), torch.stack([a - b, a + b, a * b], -1))
    torch.testing.assert_close(run(turned, x), x[..., 1].T)
    columns = (torch.arange(50).float() * 0.7).long().clamp(max=2)
    at = (torch.arange(41) - 1).clamp(min=0)
    keep = (columns > 2)[None, :] & (at > 0)[:, None]
    expected = torch.where(keep, x[:, at][:, :, columns], 0.0)
    torch.testing.assert_close(run(gathered, x, 50), expected)
    z = torch.randn(5, 9, 11, 4)
    torch.testing.assert_close(run(windows, z), z.sum(-1).permute(0, 2, 1))
    torch.testing.assert_close(run(paired, z[..., :2].contiguous()), z[..., :2].permute(0, 2, 1, 3) * 2)
    y = torch.randn(7, 63)
    torch.testing.assert_close(run(flat, y), y[:, ::3])
    torch.testing.assert_close(run(in_place, x.clone())[..., 0], x[..., 1] + 1)
