"""Guarded memory, which reveals writes outside of tensors and unwritten results."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..._support.nested import map_nested

#: Bytes before and after every tensor. A multiple of the alignment of tensors.
GUARD = 4096
#: Contents of guards, and of allocated but unwritten memory: a NaN in every float format except those of 8 bits, and no
#: small integer.
_PATTERN, _POISON = 0x5A, 0xFF

_ALLOCATORS: frozenset[Any] = frozenset(
    getattr(owner, name)
    for owner in (torch, torch.Tensor)
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
    if hasattr(owner, name)
)


@dataclass
class Guards:
    """Buffers with guards around the memory in use."""

    buffers: list[torch.Tensor] = field(default_factory=list)

    def storage(self, size: int, device: torch.device, fill: int | None = None) -> torch.Tensor:
        """Allocate ``size`` bytes with guards around them, as a view of a new buffer."""
        buffer = torch.full((size + 2 * GUARD,), _PATTERN, dtype=torch.uint8, device=device)
        inner = buffer[GUARD : GUARD + size]
        if fill is not None:
            inner.fill_(fill)
        self.buffers.append(buffer)
        return inner

    def tensor(self, like: torch.Tensor) -> torch.Tensor:
        """Allocate a tensor of the same dtype, sizes and strides in poisoned memory."""
        count = _span(like)
        inner = self.storage(count * like.element_size(), like.device, _POISON)
        return _viewed(inner, like, 0)

    def broken(self) -> bool:
        """Return whether a guard was overwritten."""
        return any(
            bool((guard != _PATTERN).any()) for buffer in self.buffers for guard in (buffer[:GUARD], buffer[-GUARD:])
        )


def _span(tensor: torch.Tensor) -> int:
    """Return the number of elements from the first of a tensor to its last one."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _viewed(inner: torch.Tensor, like: torch.Tensor, offset: int) -> torch.Tensor:
    if like.numel() == 0:
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=inner.device)
    return inner.view(like.dtype).as_strided(
        like.shape, like.stride(), inner.view(like.dtype).storage_offset() + offset
    )


class _Poisoned(TorchFunctionMode):
    """Mode that adds guards and poison to memory that torch allocates without filling it."""

    def __init__(self, guards: Guards) -> None:
        super().__init__()
        self._guards = guards

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        plain = type(result) is torch.Tensor and result.layout is torch.strided and not result.is_meta
        return self._guards.tensor(result) if func in _ALLOCATORS and plain else result


@contextlib.contextmanager
def poisoned(guards: Guards) -> Iterator[None]:
    """Guard and poison memory of ``torch.empty`` and similar functions in the body."""
    with _Poisoned(guards):
        yield


@dataclass(frozen=True)
class Inputs:
    """Arguments in separate memory, with guards; ``restore`` resets their values. Tensors that share memory still do."""

    args: tuple[Any, ...]
    guards: Guards
    _pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]

    @classmethod
    def copied(cls, args: Sequence[Any]) -> Inputs:
        """Copy arguments, in which tensors may be nested."""
        guards = Guards()
        pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in pairs:
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
                inner = guards.storage(storage.nbytes(), tensor.device)
                inner.copy_(whole)
                pairs[storage.data_ptr()] = (inner, inner.clone())
            return _viewed(pairs[storage.data_ptr()][0], tensor, int(tensor.storage_offset()))

        return cls(map_nested(tuple(args), torch.Tensor, moved), guards, tuple(pairs.values()))

    def restore(self) -> None:
        for inner, original in self._pairs:
            inner.copy_(original)
