"""Sampling of tokens from logits, with temperature, top-k and top-p.

A row is not sorted. Its tokens are those from a threshold on. Thresholds are integers that are ordered like the logits, so
they are exact.

With top-k, few tokens matter. They are in the k groups of consecutive tokens with the largest maxima, so one program finds
them there by bisection. Without it, all programs add up the mass of tokens from 16 thresholds on. So each launch finds four
bits of the threshold for top-p.

The token is the first to arrive in a race, where token i arrives after an exponential time of rate `p[i]`.
"""

from __future__ import annotations

from typing import Any

import torch

import helion
import helion.language as hl

from .._operators import FLOATS, INDICES, Operator, check, check_tensor, rows

#: Low bits of the fp32 form that are equal in all numbers of a dtype and sign, so that bisection leaves them out.
FREE_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}
#: The largest vocabulary: fp32 counts its tokens exactly.
MOST = 2**24
#: Tokens of a group with one maximum.
GROUP = 32
#: Groups that a program reads at once.
GROUPS = 64
#: Tokens whose masses a program adds up.
PART = 2048
#: Thresholds that are compared at once, for four bits of the result.
PIVOTS = 16


def ordered(x: torch.Tensor, free: int) -> torch.Tensor:
    """Return int32 that are ordered like `x`, and equal where numbers are; they have `32 - free` bits."""
    bits = torch.where(x == 0, 0.0, x).view(torch.int32)
    return torch.where(bits >= 0, bits, bits ^ 0x7FFFFFFF) >> free


def between(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Return the middle of two int32, rounded up, without overflow."""
    return (low | high) - ((low ^ high) >> 1)


def heated(logits: torch.Tensor, highest: torch.Tensor, heat: torch.Tensor) -> torch.Tensor:
    """Return the probabilities of tokens, times a factor of the row."""
    return torch.exp((logits - highest) / heat)


def total(values: torch.Tensor) -> torch.Tensor:
    """Return the sums of values `[M, G, GROUP]`."""
    return torch.sum(torch.sum(values, dim=-1), dim=-1)


def speeds(weights: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Return the speeds in the race, from random numbers that are uniform in [0, 1)."""
    return weights / torch.clamp(-torch.log1p(-numbers), min=1e-12)


def first_of(speed: torch.Tensor, at: torch.Tensor, n: int) -> torch.Tensor:
    """Return the place, from 0 to n - 1, of the fastest of each row."""
    fastest = torch.amax(speed, dim=-1, keepdim=True)
    return torch.clamp(torch.amin(torch.where(speed == fastest, at, n), dim=-1), max=n - 1)


def reached(totals: torch.Tensor, masses: torch.Tensor, share: torch.Tensor | float) -> torch.Tensor:
    """Return the last of 16 thresholds whose mass reaches a share of the whole, which is the first of `totals`."""
    wanted = torch.amax(totals, dim=1) * share
    enough = torch.where(masses >= wanted[:, None], 1.0, 0.0)
    return torch.clamp(torch.sum(enough, dim=1).to(torch.int32) - 1, min=0)


@helion.kernel(static_shapes=False)
def best_groups_kernel(
    logits: torch.Tensor, top_k: torch.Tensor | int, free: hl.constexpr
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Find the groups of `logits[M, V]` that have the k largest of each row.

    Returns a list of groups `[M, V / GROUP]` for each row, its length, and the largest of the row.
    """
    m = logits.size(0)
    n = hl.specialize(logits.size(1))
    groups = (n + GROUP - 1) // GROUP
    maxima = torch.empty([m, groups], dtype=torch.float32, device=logits.device)
    highest = torch.empty([m], dtype=torch.float32, device=logits.device)
    chosen = torch.empty([m, groups], dtype=torch.int32, device=logits.device)
    counts = torch.empty([m], dtype=torch.int32, device=logits.device)
    for tile, tile_g in hl.tile([m, groups], block_size=[1, GROUPS]):
        at = (tile_g.index[:, None] * GROUP + hl.arange(GROUP)[None, :])[None, :, :]
        x = hl.load(logits, [tile.index[:, None, None], at], extra_mask=at < n).to(torch.float32)
        maxima[tile, tile_g] = torch.amax(torch.where(at < n, x, float("-inf")), dim=-1)
    hl.barrier()
    for tile in hl.tile(m):
        best = maxima[tile, :]
        key = ordered(best, free)
        limit = top_k[tile] if isinstance(top_k, torch.Tensor) else top_k
        low = hl.full([tile], -(2 ** (31 - free)), dtype=torch.int32)
        high = hl.full([tile], 2 ** (31 - free) - 1, dtype=torch.int32)
        for _ in hl.grid(32 - free):
            middle = between(low, high)
            enough = torch.sum(torch.where(key >= middle[:, None], 1.0, 0.0), dim=-1) >= limit
            low = torch.where(enough, middle, low)
            high = torch.where(enough, high, middle - 1)
        taken = key >= low[:, None]
        places = torch.cumsum(torch.where(taken, 1.0, 0.0), dim=1).to(torch.int32)
        hl.store(chosen, [tile.index[:, None], places - 1], hl.arange(groups)[None, :], extra_mask=taken)
        counts[tile] = torch.amax(places, dim=1)
        highest[tile] = torch.amax(best, dim=1)
    return chosen, counts, highest


# a program for each row, whose steps wait for each other: more warps have fewer elements each
@helion.kernel(static_shapes=False, config=helion.Config(block_sizes=[1], num_warps=8))
def sample_groups_kernel(
    logits: torch.Tensor,
    groups: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    temperature: torch.Tensor | float,
    top_k: torch.Tensor | int,
    top_p: torch.Tensor | float | None,
    seed: torch.Tensor,
    free: hl.constexpr,
) -> torch.Tensor:
    """Sample a token from the k largest of each row of `logits[M, V]`, which are in `groups`."""
    m = logits.size(0)
    n = hl.specialize(logits.size(1))
    chosen, counts, highest = groups
    out = torch.empty([m], dtype=torch.int64, device=logits.device)
    for tile in hl.tile(m):
        row, count, top = tile.index[:, None, None], counts[tile], highest[tile][:, None, None]
        end, inner = torch.amax(count), hl.arange(GROUP)[None, None, :]
        given = temperature[tile] if isinstance(temperature, torch.Tensor) else temperature
        heat = torch.clamp(hl.zeros([tile], dtype=torch.float32) + given, min=1e-20)[:, None, None]
        threshold = hl.full([tile], -(2 ** (31 - free)), dtype=torch.int32)
        wanted = hl.zeros([tile], dtype=torch.float32) + (top_k[tile] if isinstance(top_k, torch.Tensor) else top_k)
        for by_mass in hl.static_range(1 if top_p is None else 2):  # top-k by number, then top-p by mass
            if by_mass and top_p is not None:
                wanted = hl.zeros([tile], dtype=torch.float32)
                for tile_g in hl.tile(end, block_size=GROUPS):
                    at = chosen[tile, tile_g][:, :, None] * GROUP + inner
                    real = (tile_g.index[None, :] < count[:, None])[:, :, None] & (at < n)
                    x = hl.load(logits, [row, at], extra_mask=real).to(torch.float32)
                    kept = real & (ordered(x, free) >= threshold[:, None, None])
                    wanted = wanted + total(torch.where(kept, heated(x, top, heat), 0.0))
                wanted = wanted * (top_p[tile] if isinstance(top_p, torch.Tensor) else top_p)
            above = hl.full([tile], 2 ** (31 - free) - 1, dtype=torch.int32)
            for _ in hl.grid(32 - free):
                middle = between(threshold, above)
                found = hl.zeros([tile], dtype=torch.float32)
                for tile_g in hl.tile(end, block_size=GROUPS):
                    at = chosen[tile, tile_g][:, :, None] * GROUP + inner
                    real = (tile_g.index[None, :] < count[:, None])[:, :, None] & (at < n)
                    x = hl.load(logits, [row, at], extra_mask=real).to(torch.float32)
                    kept = real & (ordered(x, free) >= middle[:, None, None])
                    found = found + total(torch.where(kept, heated(x, top, heat) if by_mass else 1.0, 0.0))
                threshold = torch.where(found >= wanted, middle, threshold)
                above = torch.where(found >= wanted, above, middle - 1)
        fastest, token = hl.zeros([tile], dtype=torch.float32), hl.zeros([tile], dtype=torch.int32)
        for tile_g in hl.tile(end, block_size=GROUPS):
            at = chosen[tile, tile_g][:, :, None] * GROUP + inner
            real = (tile_g.index[None, :] < count[:, None])[:, :, None] & (at < n)
            x = hl.load(logits, [row, at], extra_mask=real).to(torch.float32)
            weights = torch.where(real & (ordered(x, free) >= threshold[:, None, None]), heated(x, top, heat), 0.0)
            speed = speeds(weights, hl.rand([tile, tile_g, GROUP], seed[0], offsets=row * n + at))
            best = torch.amax(torch.amax(speed, dim=-1), dim=-1)
            first = torch.amin(torch.amin(torch.where(speed == best[:, None, None], at, n), dim=-1), dim=-1)
            token = torch.where(best > fastest, first, token)
            fastest = torch.maximum(best, fastest)
        out[tile] = token.to(torch.int64)
    return out


# 16 masses a token take the registers of 8 warps; 4 spill
@helion.kernel(static_shapes=False, config=helion.Config(block_sizes=[1], num_warps=8))
def sample_kernel(
    logits: torch.Tensor,
    temperature: torch.Tensor | float,
    top_p: torch.Tensor | float | None,
    seed: torch.Tensor,
    free: hl.constexpr,
) -> torch.Tensor:
    """Sample a token from each row of `logits[M, V]`; options are numbers, or `[M]`."""
    m = logits.size(0)
    n = hl.specialize(logits.size(1))
    parts = (n + PART - 1) // PART
    passes = (32 - free + 3) // 4 if top_p is not None else 1
    highest = torch.empty([m, parts], dtype=torch.float32, device=logits.device)
    floors = torch.empty([passes, m, parts], dtype=torch.int32, device=logits.device)
    masses = torch.empty([passes, m, parts, PIVOTS], dtype=torch.float32, device=logits.device)
    out = torch.empty([m], dtype=torch.int64, device=logits.device)
    for tile, tile_n in hl.tile([m, n], block_size=[1, PART]):
        highest[tile, tile_n.id] = torch.amax(logits[tile, tile_n].to(torch.float32), dim=-1)
    for number in range(passes):
        turn = float(number)  # Triton compiles a kernel for integers of 1 and multiples of 16, but not for such floats
        for tile, tile_n in hl.tile([m, n], block_size=[1, PART]):
            step = hl.full([], turn, dtype=torch.float32).to(torch.int32)
            before, shift = torch.clamp(32 - free - 4 * step, min=0), torch.clamp(28 - free - 4 * step, min=0)
            given = temperature[tile] if isinstance(temperature, torch.Tensor) else temperature
            heat = torch.clamp(hl.zeros([tile], dtype=torch.float32) + given, min=1e-20)
            floor = hl.full([tile], -(2 ** (31 - free)), dtype=torch.int32)
            if top_p is not None:
                share = top_p[tile] if isinstance(top_p, torch.Tensor) else top_p
                if step > 0:
                    totals = torch.sum(masses[0, tile, :, :], dim=1)
                    of_step = torch.sum(masses[step - 1, tile, :, :], dim=1)
                    floor = floors[step - 1, tile, tile_n.id] + (reached(totals, of_step, share) << before)
            x = logits[tile, tile_n].to(torch.float32)
            weights = heated(x, torch.amax(highest[tile, :], dim=1)[:, None], heat[:, None])
            pivots = floor[:, None] + (hl.arange(PIVOTS)[None, :] << shift)
            kept = ordered(x, free)[:, :, None] >= pivots[:, None, :]
            masses[step, tile, tile_n.id, :] = torch.sum(torch.where(kept, weights[:, :, None], 0.0), dim=1)
            floors[step, tile, tile_n.id] = floor
    hl.barrier()
    for tile in hl.tile(m):
        given = temperature[tile] if isinstance(temperature, torch.Tensor) else temperature
        heat = torch.clamp(hl.zeros([tile], dtype=torch.float32) + given, min=1e-20)
        digit = hl.zeros([tile], dtype=torch.int32)
        if top_p is not None:
            share = top_p[tile] if isinstance(top_p, torch.Tensor) else top_p
            totals, of_step = torch.sum(masses[0, tile, :, :], dim=1), torch.sum(masses[passes - 1, tile, :, :], dim=1)
            digit = reached(totals, of_step, share)
        of_digit = hl.arange(PIVOTS)[None, None, :] == digit[:, None, None]
        of_parts = torch.sum(torch.where(of_digit, masses[passes - 1, tile, :, :], 0.0), dim=2)
        indices = hl.arange(parts)[None, :]
        numbers = hl.rand([tile, parts], seed[0], offsets=m * n + tile.index[:, None] * parts + indices)
        part = first_of(speeds(of_parts, numbers), indices, parts)
        at = part[:, None] * PART + hl.arange(PART)[None, :]
        x = hl.load(logits, [tile.index[:, None], at], extra_mask=at < n).to(torch.float32)
        kept = (at < n) & (ordered(x, free) >= (floors[passes - 1, tile, 0] + digit)[:, None])
        weights = torch.where(kept, heated(x, torch.amax(highest[tile, :], dim=1)[:, None], heat[:, None]), 0.0)
        numbers = hl.rand([tile, PART], seed[0], offsets=tile.index[:, None] * n + at)
        out[tile] = first_of(speeds(weights, numbers), at, n).to(torch.int64)
    return out


def _run(
    logits: torch.Tensor,
    temperatures: torch.Tensor | None,
    ks: torch.Tensor | None,
    ps: torch.Tensor | None,
    temperature: float,
    k: int | None,
    p: float | None,
    seed: torch.Tensor,
) -> torch.Tensor:
    heat = temperature if temperatures is None else temperatures
    top_k, top_p = k if ks is None else ks, p if ps is None else ps
    free = FREE_BITS[logits.dtype]
    if top_k is None:
        return sample_kernel(logits, heat, top_p, seed, free)
    groups = best_groups_kernel(logits, top_k, free)
    return sample_groups_kernel(logits, groups, heat, top_k, top_p, seed, free)


_sample = Operator(
    "sample(Tensor logits, Tensor? temperatures, Tensor? ks, Tensor? ps, float temperature, SymInt? k, float? p, Tensor seed)"
    " -> Tensor",
    sample_kernel,
    best_groups_kernel,
    sample_groups_kernel,
    run=_run,
    fake=lambda logits, *others: logits.new_empty(logits.size(0), dtype=torch.int64),
)


def _given(
    argument: str, value: float | torch.Tensor | None, logits: torch.Tensor, dtypes: tuple[torch.dtype, ...]
) -> tuple[torch.Tensor | None, Any]:
    """Return an option as a tensor with a number for each row, or else as a number."""
    if not isinstance(value, torch.Tensor):
        return None, value
    check_tensor("sample", argument, value, dtypes=dtypes, shape=logits.shape[:-1], like=logits)
    return value.reshape(-1), None


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
    check("sample", "logits", logits.size(-1) <= MOST, f"of at most {MOST} tokens", f"shape {list(logits.shape)}")
    if not isinstance(temperature, torch.Tensor):
        check("sample", "temperature", temperature >= 0, "at least 0", temperature)
    if top_k is not None and not isinstance(top_k, torch.Tensor):
        check("sample", "top_k", top_k >= 1, "at least 1", top_k)
    if top_p is not None and not isinstance(top_p, torch.Tensor):
        check("sample", "top_p", 0 < top_p <= 1, "above 0 and at most 1", top_p)
    temperatures, heat = _given("temperature", temperature, logits, (torch.float32,))
    ks, k = _given("top_k", top_k, logits, INDICES)
    ps, p = _given("top_p", top_p, logits, (torch.float32,))
    seed = torch.randint(2**62, [1], device=logits.device)
    numbers = 1.0 if heat is None else float(heat), None if k is None else min(k, logits.size(-1)), p
    out: torch.Tensor = _sample(rows(logits.detach()), temperatures, ks, ps, *numbers, seed)
    return out.view(logits.shape[:-1])
