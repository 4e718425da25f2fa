"""Inputs of a fuzzed kernel: made on the CPU from a seed, so that they are the same on every machine.

A reproducer carries the text of this module: it imports torch and the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: Elements that a padded row, or a view that begins late, leaves out.
PADDING = 3
LAYOUTS = ("contiguous", "transposed", "strided", "padded", "offset", "expanded")


@dataclass(frozen=True, kw_only=True)
class Input:
    """One tensor argument.

    Attributes:
        name: parameter of the kernel.
        shape: its sizes.
        dtype: name of a torch dtype.
        layout: ``contiguous``, ``transposed`` (last two dimensions), ``strided`` (every second element), ``padded``
            (rows with gaps), ``offset`` (unaligned start) or ``expanded`` (first stride 0).
        data: ``normal`` (mean 0.5), ``small`` (mean 0.1), ``positive`` (0.5 to 1.5), ``near_one`` (0.9 to 1.1),
            ``ints`` (-50 to 99). Or ``index:N`` (0 to N - 1), ``mask``, ``distinct`` (no two equal along the last
            dimension), ``permutation`` or ``offsets:N`` (ascending from 0 to N).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str = "contiguous"
    data: str = "normal"


def values(spec: Input, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return contiguous values of ``spec.data`` in ``spec.dtype``."""
    kind, _, number = spec.data.partition(":")
    if kind == "index":
        found = torch.randint(0, max(int(number), 1), shape, generator=generator)
    elif kind == "ints":
        found = torch.randint(-50, 100, shape, generator=generator)
    elif kind == "mask":
        found = torch.rand(shape, generator=generator) > 0.4
    elif kind == "permutation":
        found = torch.randperm(shape[0], generator=generator)
    elif kind == "offsets":
        cuts = torch.randint(0, int(number) + 1, (shape[0] - 2,), generator=generator)
        found = torch.cat([torch.tensor([0]), cuts.sort().values, torch.tensor([int(number)])])
    elif kind == "distinct":
        order = torch.rand(shape, generator=generator).argsort(-1)
        found = (order - shape[-1] // 3) * 0.5
    elif kind == "small":
        found = torch.randn(shape, generator=generator) * 0.25 + 0.1
    elif kind == "positive":
        found = torch.rand(shape, generator=generator) + 0.5
    elif kind == "near_one":
        found = torch.rand(shape, generator=generator) * 0.2 + 0.9
    else:
        found = torch.randn(shape, generator=generator) * 0.7 + 0.5
    return found.to(getattr(torch, spec.dtype))


def laid_out(spec: Input, generator: torch.Generator) -> torch.Tensor:
    """Return the values of ``spec`` in memory of its layout; gaps hold other values of the same kind."""
    shape = spec.shape
    if spec.layout == "transposed" and len(shape) >= 2:
        return values(spec, (*shape[:-2], shape[-1], shape[-2]), generator).transpose(-1, -2)
    if spec.layout == "strided":
        return values(spec, (*shape[:-1], 2 * shape[-1]), generator)[..., ::2]
    if spec.layout == "padded":
        return values(spec, (*shape[:-1], shape[-1] + PADDING), generator)[..., : shape[-1]]
    if spec.layout == "offset":
        count = torch.Size(shape).numel()
        return values(spec, (count + 1,), generator)[1:].view(shape)
    if spec.layout == "expanded":
        return values(spec, (1, *shape[1:]), generator).expand(shape)
    return values(spec, shape, generator)


def make(specs: tuple[Input, ...], seed: int, device: str) -> tuple[torch.Tensor, ...]:
    """Return the tensors of ``specs`` on ``device``, each with the layout that its spec asks for."""
    made = []
    for number, spec in enumerate(specs):
        host = laid_out(spec, torch.Generator().manual_seed(seed * 1009 + number))
        made.append(moved(host, device))
    return tuple(made)


def moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Return ``tensor`` on ``device`` with the same strides and storage offset."""
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).to(device).untyped_storage()
    empty = torch.empty(0, dtype=tensor.dtype, device=device)
    return empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def exact(args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return ``args`` as the reference takes them: floats as fp64, integers as int64, on the CPU."""

    def widened(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.bool:
            return tensor.cpu().clone()
        return tensor.cpu().to(torch.float64 if tensor.is_floating_point() else torch.int64).clone()

    return tuple(map(widened, args))
