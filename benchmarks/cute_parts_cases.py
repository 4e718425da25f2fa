"""Cases of ``benchmarks/cute_parts.py``: kernels with their arguments, exact results, and calls of libraries."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import unseen_fields
import unseen_kernels

import helion
from benchmarks.cute_parts_kernels import (
    adapted,
    added_experts,
    cosines,
    experts,
    filtered,
    gated_experts,
    gated_sums,
    halves,
    heads,
    integer_blocks,
    integers,
    into_zeros,
    masked,
    rotated,
    routed_experts,
    routed_gated_experts,
    shifted,
    turned_experts,
    weighted,
)
from benchmarks.unseen.products import grouped_int4_weights
from examples import mamba2_chunk_state, nvfp4_gemm

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
UNTOUCHED = 3.0


Arguments = tuple[Any, ...]
Calls = dict[str, Callable[[], Any]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel with its arguments. ``config`` has keys to set on Hopper."""

    kernel: Callable[..., Any]
    arguments: Callable[[], Arguments]
    exact: Callable[..., torch.Tensor]
    """The output in fp64, NaN where it stays as it was."""
    library: Callable[..., Calls]
    config: tuple[tuple[str, Any], ...] = ()
    static: bool = True
    ordered: bool = True
    """False if results depend on the order of atomic additions."""

    def bound(self, arguments: Arguments, backend: str, target: str | None = None) -> helion.BoundKernel:
        bound = helion.kernel(self.kernel, backend=backend, static_shapes=self.static).bind(arguments, target=target)
        if self.config and backend == "cute":
            bound.set_config({**bound.default_config().to_dict(), **dict(self.config)})
        return bound


def generator(seed: int) -> torch.Generator | None:
    """Return a generator of the default device; None on ``meta``, whose tensors have no elements."""
    device = torch.get_default_device()
    return None if device.type == "meta" else torch.Generator(device).manual_seed(seed)


def made(*shape: int, seed: int = 0, dtype: torch.dtype = BF16, scale: float = 1.0) -> torch.Tensor:
    return ((torch.randn(shape, generator=generator(seed)) + 0.25) * scale).to(dtype)


def grouped(
    *sizes: int,
    n: int = 2048,
    k: int = 1024,
    first: int = 0,
    dtype: torch.dtype = BF16,
    longest: int | None = None,
    **changes: Any,
) -> Case:
    """Return the case of groups of these sizes, from row ``first`` on, of which at most ``longest`` rows are computed."""
    bounds = list(itertools.accumulate(sizes, initial=first))
    groups = [(at, slice(*each)) for at, each in enumerate(itertools.pairwise(bounds)) if each[0] < each[1]]

    def arguments() -> Arguments:
        x, w = (
            made(*shape, seed=len(shape), dtype=dtype, scale=k**-0.25)
            for shape in ((bounds[-1] + 3, k), (len(sizes), n, k))
        )
        out = torch.full((len(x), n), UNTOUCHED, dtype=BF16)
        return x, w, torch.tensor(bounds, dtype=torch.int32), out

    def exact(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        wanted = torch.full(out.shape, torch.nan, dtype=torch.float64, device=out.device)
        for at, rows in groups:
            of_group = slice(rows.start, min(rows.stop, rows.start + (longest or len(x))))
            wanted[of_group] = x[of_group].double() @ w[at].double().t()
        return wanted

    def weighted_exact(*given: torch.Tensor) -> torch.Tensor:
        plain, (bias, weight, residual) = exact(*given[:4]), (each.double() for each in given[4:])
        for at, rows in groups:
            plain[rows] = (plain[rows] + bias[at]) * weight[rows, None] + residual[rows]
        return plain

    def library(*given: torch.Tensor) -> Calls:
        x, w, offsets, out = given[:4]
        calls: Calls = {"cublas": lambda: [torch.mm(x[rows], w[at].t(), out=out[rows]) for at, rows in groups]}
        if not first:
            calls["grouped_mm"] = lambda: torch._grouped_mm(x[: bounds[-1]], w.transpose(1, 2), offs=offsets[1:])
        return calls

    def weighted_arguments() -> Arguments:
        rows = bounds[-1] + 3
        more = made(len(sizes), n, seed=5), made(rows, seed=6, dtype=torch.float32), made(rows, n, seed=7)
        return *arguments(), *more

    known: dict[str, Any] = {"kernel": experts, "arguments": arguments, "exact": exact, "library": library}
    if longest is not None:
        known |= {
            "kernel": masked,
            "arguments": lambda: (*arguments(), longest),
            "exact": lambda *given: exact(*given[:4]),
        }
    if changes.get("kernel") is weighted:
        known |= {"arguments": weighted_arguments, "exact": weighted_exact}
    return Case(**{**known, **changes})


def finished(product: torch.Tensor, gated: bool) -> torch.Tensor:
    """Return SwiGLU of the halves of the columns if they are ``gated``."""
    if not gated:
        return product
    gate, up = product.chunk(2, 1)
    return torch.nn.functional.silu(gate) * up


def in_experts(
    *sizes: int, n: int, k: int, gated: bool = False, config: tuple[tuple[str, Any], ...] = (), static: bool = False
) -> Case:
    """Return the case of groups of these sizes whose matrices are contiguous along N, with SwiGLU if they are ``gated``."""
    bounds = list(itertools.accumulate(sizes, initial=0))
    groups = [(at, slice(*each)) for at, each in enumerate(itertools.pairwise(bounds)) if each[0] < each[1]]

    def arguments() -> Arguments:
        x = made(bounds[-1], k, seed=2, scale=k**-0.25)
        w = made(len(sizes), k, 2 * n if gated else n, seed=3, scale=k**-0.25)
        return x, w, torch.tensor(bounds, dtype=torch.int32), torch.full((len(x), n), UNTOUCHED, dtype=BF16)

    def exact(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return torch.cat([finished(x[rows].double() @ w[at].double(), gated) for at, rows in groups])

    def library(x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, out: torch.Tensor) -> Calls:
        def composed() -> torch.Tensor:
            return finished(torch._grouped_mm(x, w, offs=offsets[1:]), gated)

        cublas = {"cublas": lambda: [finished(torch.mm(x[rows], w[at]), gated) for at, rows in groups]}
        compiled = {"compiled": torch.compile(composed)} if gated else {}
        return {**cublas, "grouped_mm": composed, **compiled}

    kernel = gated_experts if gated else turned_experts
    return Case(kernel=kernel, arguments=arguments, exact=exact, library=library, config=config, static=static)


def by_tokens(kernel: Callable[..., Any], *sizes: int, tokens: int, n: int, k: int, dtype: torch.dtype = BF16) -> Case:
    """Return the case of groups whose rows, or those of their results, are picked by the numbers of tokens."""
    bounds = list(itertools.accumulate(sizes, initial=0))
    groups = [(at, slice(*each)) for at, each in enumerate(itertools.pairwise(bounds)) if each[0] < each[1]]
    gathers, adds = kernel in (routed_experts, routed_gated_experts), kernel is added_experts
    gated = kernel is routed_gated_experts

    def arguments() -> Arguments:
        x = made(tokens if gathers else bounds[-1], k, seed=2, scale=k**-0.25)
        w = made(len(sizes), k, 2 * n if gated else n, seed=3, scale=k**-0.25)
        picked = torch.randperm(bounds[-1] if gathers or adds else tokens, generator=generator(4))
        picked = picked % tokens if gathers or adds else picked[: bounds[-1]]
        out = torch.full((bounds[-1] if gathers else tokens, n), UNTOUCHED, dtype=dtype)
        return x, w, torch.tensor(bounds, dtype=torch.int32), picked, out

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return finished(torch.cat([x[rows].double() @ w[at].double() for at, rows in groups]), gated)

    def exact(
        x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, picked: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        if gathers:
            return product(x[picked], w)
        begun = torch.full(out.shape, 0.0 if adds else torch.nan, dtype=torch.float64, device=out.device)
        return begun.index_put((picked,), product(x, w), accumulate=adds)

    def library(
        x: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor, picked: torch.Tensor, out: torch.Tensor
    ) -> Calls:
        ends = offsets[1:]
        if gathers:
            return {"grouped_mm": lambda: finished(torch._grouped_mm(x[picked], w, offs=ends), gated)}
        if adds:
            return {
                "grouped_mm": lambda: torch.zeros_like(out).index_add_(
                    0, picked, torch._grouped_mm(x, w, offs=ends).to(dtype)
                )
            }
        return {"grouped_mm": lambda: out.index_copy_(0, picked, torch._grouped_mm(x, w, offs=ends))}

    return Case(kernel=kernel, arguments=arguments, exact=exact, library=library, ordered=not adds)


def batched(kernel: Callable[..., torch.Tensor], b: int, h: int, t: int, k: int, n: int, groups: int) -> Case:
    """Return the case of a batch of ``b`` by ``h`` matmuls."""
    with_heads = kernel is heads

    def arguments() -> Arguments:
        x = made(b, t, h, k).transpose(1, 2) if with_heads else made(b, t, k)
        return x, made(groups, k, n, seed=1), torch.empty(b, h, t, n, dtype=BF16)

    def exact(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        left = x if with_heads else x[:, None]
        return left.double() @ w.repeat_interleave(h // groups, 0).double()

    def library(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> Calls:
        left, right = x if with_heads else x[:, None], w.repeat_interleave(h // groups, 0)
        return {"cublas": lambda: torch.matmul(left, right)}

    return Case(kernel=kernel, arguments=arguments, exact=exact, library=library)


def side_by_side(kernel: Callable[..., Any], matrices: int, m: int, n: int, k: int) -> Case:
    """Return the case of several matrices that multiply the same rows."""

    def arguments() -> Arguments:
        weights = (made(n, k, seed=seed, scale=k**-0.5) for seed in range(1, 1 + matrices))
        return made(m, k), *weights

    def exact(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        products = torch.stack([x.double() @ each.double().t() for each in rest])
        return products.squeeze(0)

    def library(x: torch.Tensor, *rest: torch.Tensor) -> Calls:
        weights = torch.cat(rest)
        return {"cublas": lambda: [torch.mm(x, each.t()) for each in rest], "one": lambda: torch.mm(x, weights.t())}

    return Case(kernel=kernel, arguments=arguments, exact=exact, library=library)


def begun_within(m: int, n: int, k: int) -> Case:
    """Return the case of operands that begin within their tensors, between multiples of 16 bytes."""

    def library(x: torch.Tensor, y: torch.Tensor) -> Calls:
        return {"cublas": lambda: torch.mm(x[:, 1:], y[1:, 3:])}

    return Case(
        kernel=shifted,
        arguments=lambda: (made(m, k + 1, scale=k**-0.25), made(k + 1, n + 3, seed=1, scale=k**-0.25)),
        exact=lambda x, y: x[:, 1:].double() @ y[1:, 3:].double(),
        library=library,
    )


def of_nibbles(m: int, n: int, k: int) -> Case:
    """Return the case of 4-bit weights with scales of groups of 128 along K."""

    def arguments() -> Arguments:
        packed = torch.randint(-128, 128, (k // 2, n), generator=generator(1), dtype=torch.int8)
        return made(m, k), packed, made(k // 128, n, seed=2, scale=k**-0.5)

    def weights(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        numbers = torch.stack(((packed << 4) >> 4, packed >> 4), 1).flatten(0, 1).float()
        return (numbers * scales.float().repeat_interleave(128, 0)).to(scales.dtype)

    def library(x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> Calls:
        compiled = torch.compile(lambda x, packed, scales: x @ weights(packed, scales))
        whole = weights(packed, scales)
        return {"cublas": lambda: x @ whole, "compiled": lambda: compiled(x, packed, scales)}

    return Case(
        kernel=grouped_int4_weights.fn,
        arguments=arguments,
        exact=lambda x, packed, scales: x.double() @ weights(packed, scales).double(),
        library=library,
    )


def of_nvfp4(m: int, n: int, k: int) -> Case:
    """Return the case of two matrices of e2m1 with scales of 16 numbers."""

    def codes(rows: int, seed: int) -> Arguments:
        packed = torch.randint(0, 256, (rows, k // 2), generator=generator(seed), dtype=torch.uint8)
        return packed, made(rows, k // 16, seed=seed, dtype=torch.float32).abs().to(E4M3)

    def exact(
        x: torch.Tensor, x_scale: torch.Tensor, w: torch.Tensor, w_scale: torch.Tensor, whole: torch.Tensor
    ) -> Any:
        left, right = nvfp4_gemm.widened(x, x_scale.double()), nvfp4_gemm.widened(w, w_scale.double())
        return left @ right.t() * whole.double()

    return Case(
        kernel=nvfp4_gemm.nvfp4_gemm.fn,
        arguments=lambda: (*codes(m, 1), *codes(n, 2), torch.ones(1)),
        exact=exact,
        library=lambda *_: {},
    )


def in_halves(m: int, n: int, k: int) -> Case:
    """Return the case of two products by the halves of one matrix."""

    def library(x: torch.Tensor, w: torch.Tensor) -> Calls:
        def composed() -> torch.Tensor:
            gate, up = torch.mm(x, w.t()).chunk(2, 1)
            return torch.nn.functional.silu(gate) * up

        return {"cublas": composed, "compiled": torch.compile(composed)}

    def exact(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        gate, up = (x.double() @ w.double().t()).chunk(2, 1)
        return torch.nn.functional.silu(gate) * up

    return Case(
        kernel=halves,
        arguments=lambda: (made(m, k), made(2 * n, k, seed=1, scale=k**-0.5)),
        exact=exact,
        library=library,
    )


def by_heads(m: int, heads: int, k: int, half: int = 64, config: tuple[tuple[str, Any], ...] = ()) -> Case:
    """Return the case of heads that are rotated."""

    def rotation(product: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = product.view(m, heads, 2, half).unbind(2)
        c, s = cos[:, None], sin[:, None]
        return torch.stack([first * c - second * s, first * s + second * c], 2).view(m, -1)

    def library(x: torch.Tensor, w: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Calls:
        def composed() -> torch.Tensor:
            return rotation(torch.mm(x, w.t()), cos, sin)

        return {"cublas": composed, "compiled": torch.compile(composed)}

    return Case(
        kernel=rotated,
        arguments=lambda: (
            made(m, k),
            made(heads * 2 * half, k, seed=1, scale=k**-0.5),
            made(m, half, seed=2),
            made(m, half, seed=3),
        ),
        exact=lambda x, w, cos, sin: rotation(x.double() @ w.double().t(), cos.double(), sin.double()),
        library=library,
        config=config,
    )


def into_memory(m: int, n: int, k: int, split: int = 1) -> Case:
    """Return the case of a matmul that is added to zeros in fp32, of which ``split`` clusters have a part of K each."""

    def library(x: torch.Tensor, y: torch.Tensor) -> Calls:
        return {"cublas": lambda: torch.mm(x, y)}

    return Case(
        kernel=into_zeros,
        arguments=lambda: (made(m, k, scale=k**-0.25), made(k, n, seed=1, scale=k**-0.25)),
        exact=lambda x, y: x.double() @ y.double(),
        library=library,
        config=(("wgmma_k_splits", 1), ("wgmma_grid_splits", split)) if split > 1 else (),
    )


def of_bytes(m: int, n: int, k: int) -> Case:
    """Return the case of int8 operands."""

    def bytes_of(*shape: int, seed: int) -> torch.Tensor:
        return torch.randint(-128, 128, shape, generator=generator(seed), dtype=torch.int8)

    def arguments() -> Arguments:
        scales = (made(size, seed=2, dtype=torch.float32).abs() / k for size in (m, n))
        return bytes_of(m, k, seed=0), bytes_of(n, k, seed=1), *scales

    def exact(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
        return (x.double() @ w.double().t()) * x_scale.double()[:, None] * w_scale.double()

    def library(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> Calls:
        def composed() -> torch.Tensor:
            return (torch._int_mm(x, w.t()) * x_scale[:, None] * w_scale).to(torch.bfloat16)

        return {"cublas": lambda: torch._int_mm(x, w.t()), "compiled": torch.compile(composed)} if m > 16 else {}

    return Case(kernel=integers, arguments=arguments, exact=exact, library=library)


def of_blocks(m: int, n: int, blocks: int) -> Case:
    """Return the case of int8 operands with scales of blocks of 128 of K."""

    def arguments() -> Arguments:
        scales = (made(size, blocks, seed=2, dtype=torch.float32).abs() / 128 for size in (m, n))
        return *of_bytes(m, n, 128 * blocks).arguments()[:2], *scales

    def exact(x: torch.Tensor, w: torch.Tensor, x_scale: torch.Tensor, w_scale: torch.Tensor) -> torch.Tensor:
        scaled = ((each, scale.repeat_interleave(128, 1)) for each, scale in ((x, x_scale), (w, w_scale)))
        left, right = (each.double() * scale.double() for each, scale in scaled)
        return left @ right.t()

    return Case(kernel=integer_blocks, arguments=arguments, exact=exact, library=lambda *given: {})


def with_adapter(m: int, n: int, k: int, rank: int) -> Case:
    """Return the case of two terms."""

    def arguments() -> Arguments:
        return made(m, k), made(n, k, seed=1, scale=k**-0.5), made(m, rank, seed=2), made(n, rank, seed=3)

    def library(x: torch.Tensor, w: torch.Tensor, low: torch.Tensor, up: torch.Tensor) -> Calls:
        def composed() -> torch.Tensor:
            return torch.addmm(torch.mm(x, w.t()), low, up.t())

        return {"cublas": composed, "compiled": torch.compile(composed), "one": lambda: torch.mm(x, w.t())}

    return Case(
        kernel=adapted,
        arguments=arguments,
        exact=lambda x, w, low, up: x.double() @ w.double().t() + low.double() @ up.double().t(),
        library=library,
    )


def with_gates(m: int, n: int, k: int, rank: int) -> Case:
    """Return the case of two sums of two matmuls."""
    silu = torch.nn.functional.silu

    def arguments() -> Arguments:
        weights = made(n, k, seed=1, scale=k**-0.5), made(n, k, seed=2, scale=k**-0.5)
        return made(m, k), *weights, made(m, rank, seed=3), made(n, rank, seed=4)

    def exact(*given: torch.Tensor) -> torch.Tensor:
        x, w, v, h, u = (each.double() for each in given)
        return silu(x @ w.t() + h @ u.t()) * (x @ v.t() + h @ u.t())

    def library(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, h: torch.Tensor, u: torch.Tensor) -> Calls:
        def composed() -> torch.Tensor:
            low = torch.mm(h, u.t())
            return silu(torch.mm(x, w.t()) + low) * (torch.mm(x, v.t()) + low)

        return {"cublas": composed, "compiled": torch.compile(composed)}

    return Case(kernel=gated_sums, arguments=arguments, exact=exact, library=library)


def with_sums(kernel: Callable[..., Any], m: int, n: int, k: int) -> Case:
    """Return the case of a product with sums along K of its operands."""

    def composed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if kernel is cosines:
            normal = [torch.nn.functional.normalize(each.float()) for each in (x, y)]
            return torch.mm(x, y.t()) * (normal[0][:, :1] / x[:, :1]) * (normal[1][:, 0] / y[:, 0])
        return torch.mm(x.t(), y).float() + y.float().sum(0)

    def exact(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = x.double(), y.double()
        if kernel is cosines:
            return torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(y).t()
        return x.t() @ y + y.sum(0)

    def library(x: torch.Tensor, y: torch.Tensor) -> Calls:
        return {"cublas": lambda: composed(x, y), "compiled": functools.partial(torch.compile(composed), x, y)}

    shapes = ((m, k), (n, k)) if kernel is cosines else ((k, m), (k, n))
    return Case(
        kernel=kernel,
        arguments=lambda: (made(*shapes[0]), made(*shapes[1], seed=1)),
        exact=exact,
        library=library,
    )


def over_time(t: int, n: int, c: int) -> Case:
    """Return the case of three terms of one tensor."""

    def library(x: torch.Tensor, w: torch.Tensor) -> Calls:
        channels, taps = x.t()[None], w.permute(2, 1, 0).contiguous()
        return {
            "cudnn": lambda: torch.nn.functional.conv1d(channels, taps),
            "cublas": lambda: torch.addmm(torch.addmm(x[:-2] @ w[0], x[1:-1], w[1]), x[2:], w[2]),
        }

    return Case(
        kernel=filtered,
        arguments=lambda: (made(t + 2, c), made(3, c, n, seed=1, scale=c**-0.5)),
        exact=lambda x, w: sum(
            (x[tap : t + tap].double() @ w[tap].double() for tap in range(3)), start=torch.zeros(())
        ),
        library=library,
    )


def beside(composed: Callable[..., torch.Tensor], *given: torch.Tensor) -> Calls:
    """Return calls of torch's operations, and of the same compiled."""
    return {
        "cublas": functools.partial(composed, *given),
        "compiled": functools.partial(torch.compile(composed), *given),
    }


def of_states(b: int, chunks: int, length: int, h: int, p: int, n: int) -> Case:
    """Return the case of the states of chunks, with one group of heads."""

    def arguments() -> Arguments:
        dt = made(b, h, chunks, length, seed=2, dtype=torch.float32).abs()
        x, k = made(b, chunks * length, h, p), made(b, chunks * length, 1, n, seed=1)
        return x, k, dt, torch.cumsum(dt * -0.05, -1)

    def composed(x: torch.Tensor, k: torch.Tensor, dt: torch.Tensor, decay: torch.Tensor) -> torch.Tensor:
        return mamba2_chunk_state.reference(x, k, dt, decay)

    return Case(
        kernel=mamba2_chunk_state.mamba2_chunk_state.fn,
        arguments=arguments,
        exact=lambda *given: composed(*(each.double() for each in given)),
        library=lambda x, k, *rest: beside(composed, x, k, *(each.to(x.dtype) for each in rest)),
    )


def of_complex_numbers(m: int, n: int, k: int) -> Case:
    """Return the case of the four products of complex matrices."""

    def composed(ar: torch.Tensor, ai: torch.Tensor, br: torch.Tensor, bi: torch.Tensor) -> torch.Tensor:
        return torch.stack([ar @ br - ai @ bi, ar @ bi + ai @ br])

    return Case(
        kernel=unseen_kernels.complex_product.fn,
        arguments=lambda: tuple(
            made(*shape, seed=seed, scale=k**-0.25) for seed, shape in enumerate(((m, k), (m, k), (k, n), (k, n)))
        ),
        exact=lambda *given: composed(*(each.double() for each in given)),
        library=functools.partial(beside, composed),
    )


def of_cells(b: int, k: int, n: int) -> Case:
    """Return the case of a gated recurrent unit."""

    def composed(x: torch.Tensor, h: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        keep, reset = (torch.sigmoid(x @ w[at] + h @ u[at]) for at in range(2))
        return (1 - keep) * torch.tanh(x @ w[2] + reset * (h @ u[2])) + keep * h

    return Case(
        kernel=unseen_fields.gated_cell.fn,
        arguments=lambda: (
            made(b, k),
            made(b, n, seed=1),
            made(3, k, n, seed=2, scale=k**-0.5),
            made(3, n, n, seed=3, scale=n**-0.5),
        ),
        exact=lambda *given: composed(*(each.double() for each in given)),
        library=functools.partial(beside, composed),
    )


def of_mixtures(m: int, d: int, n: int) -> Case:
    """Return the case of the logarithm of a sum of Gaussians."""

    def composed(x: torch.Tensor, square: torch.Tensor, linear: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.logsumexp(x @ linear - (x * x) @ square + c, -1)[:, None]

    return Case(
        kernel=unseen_fields.mixture_density.fn,
        arguments=lambda: (
            made(m, d), made(d, n, seed=1).abs() * d**-0.5, made(d, n, seed=2), made(n, seed=3, dtype=torch.float32)
        ),
        exact=lambda x, *rest: torch.logsumexp(
            x.double() @ rest[1].double() - (x * x).double() @ rest[0].double() + rest[2].double(), -1
        )[:, None],
        library=lambda *given: {"compiled": functools.partial(torch.compile(composed), *given)},
    )  # fmt: skip
