"""Functions that say something about all of a dimension: refused along tiles, which a config cuts; parts stay legal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import helion
import helion.language as hl
from helion import exc

#: By name: from tiles [a, b] to what broadcasts to them.
REFUSED: dict[str, Callable[..., Any]] = {
    "softmax": lambda v: torch.softmax(v, -1),
    "softmax of rows": lambda v: v.softmax(0),
    "F.softmax": lambda v: F.softmax(v, dim=1),
    "softmin": lambda v: F.softmin(v, 1),
    "log_softmax": lambda v: F.log_softmax(v, -1),
    "mean": lambda v: v.mean(-1)[:, None],
    "mean of all": lambda v: torch.mean(v),
    "var": lambda v: v.var(1, keepdim=True),
    "std": lambda v: torch.std(v, 0),
    "var_mean": lambda v: torch.var_mean(v, -1)[1][:, None],
    "norm": lambda v: torch.linalg.vector_norm(v, dim=-1, keepdim=True),
    "normalize": lambda v: F.normalize(v, dim=1),
    "cumsum": lambda v: torch.cumsum(v, 1),
    "cumprod": lambda v: v.cumprod(0),
}
LEGAL: dict[str, Callable[..., Any]] = {
    "sum": lambda v: v.sum(-1)[:, None],
    "amax": lambda v: v.amax(0),
    "prod": lambda v: torch.prod(v, 1)[:, None],
    "any": lambda v: (v > 0).any(-1)[:, None] * 1.0,
    "logsumexp": lambda v: torch.logsumexp(v, -1)[:, None],
    "norm of order 1": lambda v: v.norm(1, -1)[:, None],
    "hl.cumsum": lambda v: hl.cumsum(v, dim=0),
    "hl.associative_scan": lambda v: hl.associative_scan(lambda a, b: a + b, v, dim=1),
}


@helion.kernel
def tiles(x: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] + f(x[a, b])
    return out


@helion.kernel
def constant_tiles(x: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size(), block_size=[8, 4]):
        out[a, b] = x[a, b] + f(x[a, b])
    return out


@helion.kernel
def covering_tiles(x: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty_like(x)
    rows, columns = hl.register_block_size(8, 8), hl.register_block_size(16, 16)
    for a, b in hl.tile(x.size(), block_size=[rows, columns]):
        out[a, b] = x[a, b] + f(x[a, b])
    return out


@pytest.mark.parametrize("name", REFUSED)
def test_refused_along_tiles(name: str) -> None:
    with pytest.raises(exc.UnsupportedTorchFunction, match="along a tile.*`:`") as caught:
        tiles.bind((torch.randn(8, 16), REFUSED[name]))
    assert "test_along_tiles.py" in str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_tiles_that_no_config_changes(name: str) -> None:
    x = torch.rand(8, 16) + 0.5
    f = REFUSED[name]
    expected = torch.cat([part + f(part) for part in x.split(4, 1)], 1)
    torch.testing.assert_close(constant_tiles(x, f), expected)
    torch.testing.assert_close(covering_tiles(x, f), x + f(x))


@pytest.mark.parametrize("name", LEGAL)
def test_parts_of_a_dimension(name: str) -> None:
    tiles.bind((torch.randn(8, 16), LEGAL[name]))


def test_normalisations_of_a_tile() -> None:
    for f in (lambda v: F.layer_norm(v, [v.size(-1)]), lambda v: F.rms_norm(v, [v.size(-1)])):
        with pytest.raises(exc.UnsupportedTorchFunction, match="norm along a tile"):
            tiles.bind((torch.randn(8, 16), f))
