"""Random numbers that depend on the seed and on the element's position in the whole tensor, never on tile sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import torch

from .. import exc
from .._support.philox import WORD, philox, uniform
from ._reference.session import current
from ._registry import declare, reference
from .tiles import Span


@declare("device")
def rand(
    shape: Sequence[SupportsIndex], seed: int | torch.Tensor, device: Any = None, offsets: torch.Tensor | None = None
) -> torch.Tensor:
    """Generate uniform float32 numbers in [0, 1), by Philox, equal to those of ``triton.language.rand``.

    Args:
        shape: tiles, block sizes and constants.
        seed: an integer of up to 64 bits, or a scalar device value.
        device: accepted and not used.
        offsets: an integer tile that broadcasts to ``shape``: the position of each element in the seed's sequence. None
            means its position in a row-major tensor of the whole shape, so that tile sizes do not change the numbers.

    Raises:
        exc.TypeInferenceError: ``seed`` or ``offsets`` are not integers.
        exc.ShapeSpecializingCall: ``offsets`` is None and the end of a tile's loop is not known on the host.

    Example::

        @helion.kernel
        def add_noise(x: torch.Tensor, seed: int) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                out[tile] = x[tile] + hl.rand([tile], seed)
            return out

        add_noise(torch.zeros(10), 42)
    """


@declare("device")
def randint(
    shape: Sequence[SupportsIndex], low: int, high: int, seed: int | torch.Tensor, device: Any = None
) -> torch.Tensor:
    """Generate random int32 numbers in [low, high): ``low + abs(triton.language.randint(seed, offset)) % (high -
    low)``.

    ``offset`` is an element's place in a row-major tensor of the whole shape.

    Args:
        shape: tiles, block sizes and constants.
        low: smallest number, a constant.
        high: one past the largest number, a constant.
        seed: an integer of up to 64 bits, or a scalar device value.
        device: accepted and not used.

    Raises:
        exc.InvalidAPIUsage: the bounds are not constants, or ``low >= high``.
        exc.TypeInferenceError: ``seed`` is not an integer.

    Example::

        @helion.kernel
        def dice(out: torch.Tensor, seed: int) -> torch.Tensor:
            for tile in hl.tile(out.size(0)):
                out[tile] = hl.randint([tile], 1, 7, seed)
            return out

        dice(torch.empty(10, dtype=torch.int32), 42)
    """


@declare("device")
def rand4x(
    seed: int | torch.Tensor, offsets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Generate four tiles of uniform float32 numbers in [0, 1) for the cost of one, as ``triton.language.rand4x``.

    Args:
        seed: an integer of up to 64 bits, or a scalar device value.
        offsets: an integer tile; each result has its shape. Philox makes four words for each offset.

    Raises:
        exc.TypeInferenceError: ``seed`` or ``offsets`` are not integers.

    Example::

        @helion.kernel
        def four_uniform(out: torch.Tensor, seed: int) -> torch.Tensor:
            for tile in hl.tile(out.size(1)):
                a, b, c, d = hl.rand4x(seed, tile.index)
                out[0, tile] = a
                out[1, tile] = b
                out[2, tile] = c
                out[3, tile] = d
            return out

        four_uniform(torch.empty(4, 10), 42)
    """


# --- eager references ---------------------------------------------------------------------------------------------------


def words(offsets: torch.Tensor, seed: Any) -> tuple[torch.Tensor, ...]:
    """Return four 32-bit words at each offset, as int64; offsets of 32 bits are unsigned."""
    if offsets.dtype.itemsize <= 4:
        offsets = offsets.to(torch.int64) & WORD
    return philox(torch.as_tensor(seed, device=current().device).to(torch.int64), offsets.to(torch.int64))


def places(shape: Any) -> torch.Tensor:
    """Return the position of each element in a row-major tensor of the whole shape."""
    session = current()
    sizes = list(shape) if isinstance(shape, (tuple, list)) else [shape]
    offsets = torch.zeros([1] * len(sizes), dtype=torch.int64, device=session.device)
    for at, size in enumerate(sizes):
        begin, extent = (size.begin, size.extent) if isinstance(size, Span) else (0, int(size))
        index = torch.arange(begin, begin + int(size), device=session.device)
        offsets = offsets * extent + index.reshape([-1 if i == at else 1 for i in range(len(sizes))])
    return offsets


@reference(rand)
def _rand(shape: Any, seed: Any, device: Any = None, offsets: Any = None) -> torch.Tensor:
    sizes = [int(size) for size in shape] if isinstance(shape, (tuple, list)) else [int(shape)]
    given = places(shape) if offsets is None else torch.as_tensor(offsets, device=current().device).expand(sizes)
    return uniform(words(given, seed)[0])


@reference(rand4x)
def _rand4x(seed: Any, offsets: Any) -> tuple[torch.Tensor, ...]:
    return tuple(map(uniform, words(torch.as_tensor(offsets, device=current().device), seed)))


@reference(randint)
def _randint(shape: Any, low: int, high: int, seed: Any, device: Any = None) -> torch.Tensor:
    if not (isinstance(low, int) and isinstance(high, int) and low < high):
        raise exc.InvalidAPIUsage(f"hl.randint needs constant bounds low < high, got {low!r} and {high!r}.")
    word = words(places(shape), seed)[0].to(torch.int32)
    # in 32 bits, where the least integer has no absolute value, and with the remainder of C
    return (torch.fmod(word.abs().to(torch.int64), high - low) + low).to(torch.int32)
