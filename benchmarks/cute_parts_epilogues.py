"""Cases of ``benchmarks/cute_parts.py`` whose epilogues draw, search or add integers."""

from __future__ import annotations

import functools

import torch
import unseen_kernels

from benchmarks.cute_parts_cases import Arguments, Calls, Case, generator, made, of_bytes
from helion._support.philox import philox, uniform


def into_bytes(m: int, n: int, k: int) -> Case:
    """Return the case of an int8 product that is rounded to int8 again, after a bias in int32."""
    scale = 1 / (70.0 * k)

    def arguments() -> Arguments:
        x, w, *_ = of_bytes(m, n, k).arguments()
        bias = torch.randint(-(2**26), 2**26, (n,), generator=generator(2), dtype=torch.int32)
        return x, w.t(), bias, scale

    def exact(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, scale: float) -> torch.Tensor:
        sums = (x.double() @ y.double() + bias.double()).float()
        return (sums * scale).round().clamp(-128, 127).double()

    def library(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, scale: float) -> Calls:
        def composed() -> torch.Tensor:
            return ((torch._int_mm(x, y) + bias).float() * scale).round().clamp(-128, 127).to(torch.int8)

        return {"cublas": composed, "compiled": torch.compile(composed)}

    return Case(kernel=unseen_kernels.bytes_to_bytes.fn, arguments=arguments, exact=exact, library=library)


def of_centres(m: int, d: int, n: int) -> Case:
    """Return the case of the numbers of the nearest centres: each row is close to one, and none to the first, whose number
    has no relative error."""

    def arguments() -> Arguments:
        centres = made(n, d, seed=1)
        nearest = torch.arange(m) % (n - 1) + 1
        return centres[nearest] + made(m, d, scale=0.1), centres, centres.float().square().sum(1)

    def apart(x: torch.Tensor, centres: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
        return squares - 2.0 * torch.mm(x, centres.t())

    return Case(
        kernel=unseen_kernels.nearest_centres.fn,
        arguments=arguments,
        exact=lambda x, c, s: apart(x.double(), c.double(), s.double()).argmin(-1)[:, None].double(),
        library=lambda *given: {
            "compiled": torch.compile(functools.partial(lambda *each: apart(*each).argmin(-1), *given))
        },
    )


def with_dropout(m: int, n: int, k: int, seed: int = 7) -> Case:
    """Return the case of a dropped product with a bias."""

    def kept(bias: torch.Tensor) -> torch.Tensor:
        offsets = torch.arange(m * n, device=bias.device).view(m, n)
        return uniform(philox(torch.tensor(seed, device=bias.device), offsets)[0]) > 0.2

    def library(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, *rest: int) -> Calls:
        def composed() -> torch.Tensor:
            return torch.nn.functional.dropout(torch.addmm(bias, x, y), 0.2)

        return {"cublas": composed, "compiled": torch.compile(composed)}

    return Case(
        kernel=unseen_kernels.dropped_product.fn,
        arguments=lambda: (made(m, k, scale=k**-0.5), made(k, n, seed=1), made(n, seed=2), seed),
        exact=lambda x, y, bias, *rest: torch.where(kept(bias), (x.double() @ y.double() + bias.double()) * 1.25, 0.0),
        library=library,
    )
