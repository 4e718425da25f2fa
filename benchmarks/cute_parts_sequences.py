"""Cases of ``benchmarks/cute_parts.py``: products in sequence, whose narrow middle is in the workspace."""

from __future__ import annotations

import torch
from unseen_kernels import bottleneck

from benchmarks.cute_parts_cases import Arguments, Calls, Case, made
from benchmarks.unseen.products import adapter


def with_low_rank(m: int, n: int, k: int, rank: int) -> Case:
    """Return the case of a linear layer and a low-rank adapter, which a loop computes both."""

    def arguments() -> Arguments:
        scale = k**-0.5
        weights = made(n, k, seed=1, scale=scale), made(rank, k, seed=2, scale=scale), made(n, rank, seed=3)
        return made(m, k), *weights

    def exact(x: torch.Tensor, w: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        low = (x.double() @ down.double().T).to(x.dtype).double()
        return x.double() @ w.double().T + low @ up.double().T

    def library(x: torch.Tensor, w: torch.Tensor, down: torch.Tensor, up: torch.Tensor) -> Calls:
        compiled = torch.compile(lambda x, w, down, up: x @ w.T + (x @ down.T) @ up.T)
        return {"cublas": lambda: x @ w.T, "compiled": lambda: compiled(x, w, down, up)}

    return Case(kernel=adapter.fn, arguments=arguments, exact=exact, library=library)


def through_few_columns(m: int, n: int, k: int, rank: int) -> Case:
    """Return the case of two matmuls with few columns between them."""

    def exact(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x.double() @ a.double()).to(x.dtype).double() @ b.double()

    def library(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Calls:
        compiled = torch.compile(lambda x, a, b: torch.tanh(x @ a) @ b)
        return {"compiled": lambda: compiled(x, a, b)}

    return Case(
        kernel=bottleneck.fn,
        arguments=lambda: (made(m, k), made(k, rank, seed=1, scale=k**-0.5), made(rank, n, seed=2)),
        exact=exact,
        library=library,
    )
