"""Reference mode: torch's random functions as compiled kernels compute them.

Each call in the source is a site with its own seed for each grid loop. The numbers depend on the seed and on the
position of each element in the whole shape.
"""

from __future__ import annotations

import math
import sys
import types
from typing import Any

import torch

from ... import exc
from ..._support.philox import uniform
from ..random_ops import places, words
from ..tiles import RefAxis, RefTile
from .session import Session, axis_of, current

#: The least uniform number of ``triton.language.randn``.
_LEAST = 1.0e-7


def _site() -> tuple[Any, ...]:
    """Return the call stack of the site: positions in the kernel's own code and in the functions it calls."""
    found: list[Any] = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if found and module.startswith("helion.runtime"):
            break
        if module.split(".")[0] not in ("helion", "torch"):
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def _seed(session: Session) -> torch.Tensor:
    """Return the seed of the site that is running."""
    site = _site()
    if site not in session.seeds:
        session.seeds[site] = session.draw()
    return session.seeds[site]


def _spans(session: Session, value: torch.Tensor) -> list[Any]:
    """Return the dimensions of a value. A dimension with the axis or the lane count of a running tile is a part of
    that tile, any other one is whole."""
    axis = axis_of(value)
    if isinstance(axis, RefAxis) and axis.tile is not None:
        return [axis.tile.at(session, session.level, True)]
    tiles: list[RefTile] = [tile for tile in session.running if isinstance(tile, RefTile)]
    found: list[Any] = []
    for size in value.shape:
        spans = [(tile, tile.at(session, session.level, True)) for tile in tiles]
        mine = next(((tile, span) for tile, span in spans if len(span) == size < span.extent), None)
        if mine is not None:
            tiles.remove(mine[0])
        found.append(size if mine is None else mine[1])
    return found


def _uniform(offsets: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    return uniform(words(offsets, seed)[0])


def _normal(offsets: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    first, second = (uniform(word) for word in words(offsets, seed)[:2])
    length = torch.sqrt(-2.0 * torch.log(first.clamp_min(_LEAST)))
    return length * torch.cos(2.0 * math.pi * second)


def _checked(dtype: torch.dtype) -> torch.dtype:
    if not dtype.is_floating_point:
        raise exc.TypeInferenceError(
            f"Random numbers of torch are floating-point numbers, not {dtype}; use hl.randint."
        )
    return dtype


def _factory(make: Any) -> Any:
    def of_sizes(*size: Any, dtype: Any = None, device: Any = None, generator: None = None) -> torch.Tensor:
        session = current()
        sizes = size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
        dtype = _checked(dtype or torch.get_default_dtype())
        return make(places(sizes), _seed(session)).to(dtype)

    return of_sizes


def _like(make: Any) -> Any:
    def like(input: torch.Tensor, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
        session = current()
        dtype = _checked(dtype or input.dtype)
        return make(places(_spans(session, input)), _seed(session)).to(dtype)

    return like


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    if not training or p == 0:
        return input
    kept = _uniform(places(_spans(current(), input)), _seed(current())) >= p
    return torch.where(kept, input.to(torch.float32) * (1.0 / (1.0 - p) if p < 1 else 0.0), 0.0).to(input.dtype)


#: Eager references by torch's function.
RULES: dict[Any, Any] = {
    torch.rand: _factory(_uniform),
    torch.randn: _factory(_normal),
    torch.rand_like: _like(_uniform),
    torch.randn_like: _like(_normal),
    torch.nn.functional.dropout: _dropout,
}
