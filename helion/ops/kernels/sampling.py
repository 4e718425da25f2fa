"""Sampling of tokens from logits, with temperature, top-k and top-p.

A row is not sorted. Its tokens are those from a threshold on, which is found by bisection: for top-k by their number,
for top-p by their mass. Bisection runs over integers that are ordered like the logits, so the threshold is exact. The
token is the first to arrive in a race, where token i arrives after an exponential time of rate `p[i]`.
"""

from __future__ import annotations

import torch

import helion
import helion.language as hl

from .._operators import FLOATS, INDICES, Operator, check, check_tensor, rows

#: Low bits of the fp32 form that are equal in all numbers of a dtype and sign, so that bisection leaves them out.
FREE_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}


def ordered(x: torch.Tensor, free: int) -> torch.Tensor:
    """Return int32 that are ordered like `x`, and equal where numbers are; they have `32 - free` bits."""
    bits = torch.where(x == 0, 0.0, x).view(torch.int32)
    return torch.where(bits >= 0, bits, bits ^ 0x7FFFFFFF) >> free


def chances(
    logits: torch.Tensor, highest: torch.Tensor, heat: torch.Tensor, threshold: torch.Tensor, free: int
) -> torch.Tensor:
    """Return the probabilities of tokens from a threshold on, times a factor of the row; those of others are 0."""
    x = logits.to(torch.float32)
    weights = torch.exp((x - highest[:, None]) / heat[:, None])
    return torch.where(ordered(x, free) >= threshold[:, None], weights, 0.0)


@helion.kernel(static_shapes=False)
def sample_kernel(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    seed: torch.Tensor,
    free: hl.constexpr,
) -> torch.Tensor:
    """Sample a token from each row of `logits[M, V]`; the options are `[M]`."""
    m = logits.size(0)
    n = hl.specialize(logits.size(1))
    out = torch.empty([m], dtype=torch.int64, device=logits.device)
    block = hl.register_block_size(n)
    for tile in hl.tile(m):
        highest = hl.full([tile], float("-inf"), dtype=torch.float32)
        for tile_n in hl.tile(n, block_size=block):
            highest = torch.maximum(highest, torch.amax(logits[tile, tile_n].to(torch.float32), dim=-1))
        heat = torch.clamp(temperature[tile], min=1e-20)
        threshold = hl.full([tile], -(2 ** (31 - free)), dtype=torch.int32)
        if top_k is not None:
            above = hl.full([tile], 2 ** (31 - free) - 1, dtype=torch.int32)
            for _ in hl.grid(32 - free):
                middle = (threshold | above) - ((threshold ^ above) >> 1)  # rounded up, without overflow
                count = hl.zeros([tile], dtype=torch.int32)
                for tile_n in hl.tile(n, block_size=block):
                    key = ordered(logits[tile, tile_n].to(torch.float32), free)
                    count = count + torch.sum(torch.where(key >= middle[:, None], 1, 0), dim=-1, dtype=torch.int32)
                enough = count >= top_k[tile]
                threshold = torch.where(enough, middle, threshold)
                above = torch.where(enough, above, middle - 1)
        if top_p is not None:
            wanted = hl.zeros([tile], dtype=torch.float32)
            for tile_n in hl.tile(n, block_size=block):
                wanted = wanted + torch.sum(chances(logits[tile, tile_n], highest, heat, threshold, free), dim=-1)
            wanted = wanted * top_p[tile]
            above = hl.full([tile], 2 ** (31 - free) - 1, dtype=torch.int32)
            for _ in hl.grid(32 - free):
                middle = (threshold | above) - ((threshold ^ above) >> 1)
                mass = hl.zeros([tile], dtype=torch.float32)
                for tile_n in hl.tile(n, block_size=block):
                    mass = mass + torch.sum(chances(logits[tile, tile_n], highest, heat, middle, free), dim=-1)
                enough = mass >= wanted
                threshold = torch.where(enough, middle, threshold)
                above = torch.where(enough, above, middle - 1)
        fastest = hl.zeros([tile], dtype=torch.float32)
        token = hl.zeros([tile], dtype=torch.int32)
        for tile_n in hl.tile(n, block_size=block):
            times = torch.clamp(-torch.log1p(-hl.rand([tile, tile_n], seed[0])), min=1e-12)
            speed = chances(logits[tile, tile_n], highest, heat, threshold, free) / times
            best = torch.amax(speed, dim=-1)
            first = torch.amin(torch.where(speed == best[:, None], tile_n.index[None, :], n), dim=-1)
            token = torch.where(best > fastest, first, token)
            fastest = torch.maximum(best, fastest)
        out[tile] = token.to(torch.int64)
    return out


_sample = Operator(
    "sample(Tensor logits, Tensor temperature, Tensor? top_k, Tensor? top_p, Tensor seed) -> Tensor",
    sample_kernel,
    run=lambda logits, temperature, top_k, top_p, seed: sample_kernel(
        logits, temperature, top_k, top_p, seed, FREE_BITS[logits.dtype]
    ),
    fake=lambda logits, *others: logits.new_empty(logits.size(0), dtype=torch.int64),
)


def _per_row(
    argument: str, value: float | torch.Tensor, logits: torch.Tensor, dtypes: tuple[torch.dtype, ...]
) -> torch.Tensor:
    """Return a number of each row, from one number or a tensor of them."""
    if isinstance(value, torch.Tensor):
        check_tensor("sample", argument, value, dtypes=dtypes, shape=logits.shape[:-1], like=logits)
        return value.reshape(-1)
    return torch.full([rows(logits).size(0)], value, dtype=dtypes[-1], device=logits.device)


def sample(
    logits: torch.Tensor,
    *,
    temperature: float | torch.Tensor = 1.0,
    top_k: int | torch.Tensor | None = None,
    top_p: float | torch.Tensor | None = None,
) -> torch.Tensor:
    """Sample a token from the softmax of each row of `logits / temperature`. There is no gradient.

    With `top_k`, only the k tokens with the largest logits have a chance. With `top_p`, only the fewest most probable of
    them whose probabilities, divided by their sum, reach p. Tokens with equal logits are kept or left out together. The
    seed is drawn from torch's generator of the device, so `torch.manual_seed` makes a run repeatable. Options are one
    number for all rows, or a tensor with one for each. Numbers in tensors are not read, and so not checked.

    Args:
        logits: `[..., V]`; float32, bfloat16 or float16. Tokens with a logit of -inf have no chance.
        temperature: at least 0; 0 takes the token with the largest logit. fp32 `[...]` if it is a tensor.
        top_k: at least 1, or None for all tokens. int32 or int64 `[...]` if it is a tensor.
        top_p: above 0 and at most 1, or None for all tokens. fp32 `[...]` if it is a tensor.

    Returns:
        int64 tokens `[...]`.

    Raises:
        exc.WrongOpArgument: an argument has another dtype, shape, device or value.
    """
    check_tensor("sample", "logits", logits, dtypes=FLOATS, least_dims=1)
    if not isinstance(temperature, torch.Tensor):
        check("sample", "temperature", temperature >= 0, "at least 0", temperature)
    if top_k is not None and not isinstance(top_k, torch.Tensor):
        check("sample", "top_k", top_k >= 1, "at least 1", top_k)
    if top_p is not None and not isinstance(top_p, torch.Tensor):
        check("sample", "top_p", 0 < top_p <= 1, "above 0 and at most 1", top_p)
    seed = torch.randint(2**62, [1], device=logits.device)
    out: torch.Tensor = _sample(
        rows(logits.detach()),
        _per_row("temperature", temperature, logits, (torch.float32,)),
        None if top_k is None else _per_row("top_k", top_k, logits, INDICES),
        None if top_p is None else _per_row("top_p", top_p, logits, (torch.float32,)),
        seed,
    )
    return out.view(logits.shape[:-1])
