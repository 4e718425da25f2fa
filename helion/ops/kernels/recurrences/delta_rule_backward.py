"""Gradients of the gated delta rule, by whole chunks of the sequence.

A chunk has the matrices of ``delta_chunks_kernel``, and the rows that it adds to the state are
`added = fresh - erased @ state`. A first kernel computes the states before all chunks and these rows again. A second one
goes through the chunks from the last to the first: it computes the gradients of rows and states. The others compute the
gradients of the arguments, each chunk by itself: of scores and products with states, then of the triangular system (measurement
``delta_rule_gradients``).

In the kernels `since` is the decay from the beginning of a chunk up to each position, and `whole` that of the chunk.
"""

from __future__ import annotations

import torch

import helion
import helion.language as hl


@helion.kernel(static_shapes=False)
def delta_states_kernel(
    k: torch.Tensor,
    fresh: torch.Tensor,
    erased: torch.Tensor,
    decay: torch.Tensor,
    state: torch.Tensor,
    shared: int,
    chunk: hl.constexpr,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the states `[H, S / chunk, D, E]` before all chunks, and the rows `[H, S, E]` that are added to them."""
    heads, length = fresh.size(0), fresh.size(1)
    depth, width = hl.specialize(k.size(2)), hl.specialize(fresh.size(2))
    states = torch.empty([heads, helion.cdiv(length, chunk), depth, width], dtype=fresh.dtype, device=k.device)
    added = torch.empty([heads, length, width], dtype=fresh.dtype, device=k.device)
    for tile_h, tile_e in hl.tile([heads, width], block_size=[1, None]):
        head = tile_h.begin
        memory = state[head, :, tile_e]
        for tile in hl.tile(length, block_size=chunk):
            states[head, tile.id, :, tile_e] = memory
            steps = decay[head, tile]
            until = torch.sum(steps, dim=0) - hl.cumsum(steps, dim=0)
            read = hl.dot(erased[head, tile, :], memory.to(fresh.dtype))
            values = (fresh[head, tile, tile_e].to(torch.float32) - read).to(fresh.dtype)
            added[head, tile, tile_e] = values
            decayed = (k[head // shared, tile, :].to(torch.float32) * torch.exp(until)[:, None]).to(fresh.dtype)
            memory = memory * torch.exp(torch.sum(steps, dim=0)) + hl.dot(decayed.T, values)
    return states, added


@helion.kernel(static_shapes=False)
def delta_states_gradient_kernel(
    grad: torch.Tensor,
    last: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    erased: torch.Tensor,
    decay: torch.Tensor,
    shared: int,
    scale: float,
    chunk: hl.constexpr,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the gradients of the states after all chunks, of the added rows, and of the first state.

    `grad[H, S, E]` is that of the results, and `last[H, D, E]` that of the last state.
    """
    heads, length = grad.size(0), grad.size(1)
    depth, width = hl.specialize(k.size(2)), hl.specialize(grad.size(2))
    chunks = length // chunk
    of_states = torch.empty([heads, chunks, depth, width], dtype=grad.dtype, device=k.device)
    of_added = torch.empty([heads, chunks, chunk, width], dtype=grad.dtype, device=k.device)
    of_first = torch.empty([heads, depth, width], dtype=torch.float32, device=k.device)
    queries, keys, gone = (t.view(-1, chunks, chunk, depth) for t in (q, k, erased))
    grads, decays = grad.view(heads, chunks, chunk, width), decay.view(heads, chunks, chunk)
    for tile_h, tile_e in hl.tile([heads, width], block_size=[1, None]):
        head = tile_h.begin
        group = head // shared
        at = hl.arange(chunk)
        of_state = last[head, :, tile_e]
        for step in hl.grid(chunks):
            now = chunks - 1 - step
            of_states[head, now, :, tile_e] = of_state
            steps = decays[head, now, :]
            since = hl.cumsum(steps, dim=0)
            until = torch.sum(steps, dim=0) - since
            query, key = queries[group, now, :, :], keys[group, now, :, :]
            given = (grads[head, now, :, tile_e].to(torch.float32) * scale).to(grad.dtype)
            between = torch.exp(torch.where(at[:, None] >= at[None, :], since[:, None] - since[None, :], float("-inf")))
            scores = (hl.dot(query, key.T) * between).to(grad.dtype)
            written = hl.dot(key, of_state.to(grad.dtype)) * torch.exp(until)[:, None]
            values = (hl.dot(scores.T, given) + written).to(grad.dtype)
            of_added[head, now, :, tile_e] = values
            asked = (given.to(torch.float32) * torch.exp(since)[:, None]).to(grad.dtype)
            of_state = of_state * torch.exp(torch.sum(steps, dim=0)) + hl.dot(query.T, asked)
            of_state = of_state - hl.dot(gone[head, now, :, :].T, values)
        of_first[head, :, tile_e] = of_state
    return of_states, of_added.view(grad.shape), of_first


@helion.kernel(static_shapes=False)
def delta_scores_gradient_kernel(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    decay: torch.Tensor,
    added: torch.Tensor,
    states: torch.Tensor,
    of_states: torch.Tensor,
    shared: int,
    scale: float,
    chunk: hl.constexpr,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the gradients of `q`, of `since` and `whole`, and the part of that of `k`, from scores and states.

    Those of `q` and `k` are of each head of `v`, in fp32.
    """
    heads, length = grad.size(0), grad.size(1)
    depth, width = hl.specialize(k.size(2)), hl.specialize(grad.size(2))
    of_q = torch.empty([heads, length, depth], dtype=torch.float32, device=grad.device)
    of_k = torch.empty([heads, length, depth], dtype=torch.float32, device=grad.device)
    of_since = torch.empty([heads, length], dtype=torch.float32, device=grad.device)
    of_whole = torch.empty([heads, length // chunk], dtype=torch.float32, device=grad.device)
    chunks = length // chunk
    queries, keys, of_queries, of_keys = (t.view(-1, chunks, chunk, depth) for t in (q, k, of_q, of_k))
    grads, news = grad.view(heads, chunks, chunk, width), added.view(heads, chunks, chunk, width)
    decays, of_sums = decay.view(heads, chunks, chunk), of_since.view(heads, chunks, chunk)
    for tile_h, tile_n in hl.tile([heads, chunks], block_size=[1, 1]):
        head, now = tile_h.begin, tile_n.begin
        at = hl.arange(chunk)
        steps = decays[head, now, :]
        since = hl.cumsum(steps, dim=0)
        whole = torch.sum(steps, dim=0)
        of_scores = hl.zeros([chunk, chunk], dtype=torch.float32)
        of_query = hl.zeros([chunk, depth], dtype=torch.float32)
        of_decayed = hl.zeros([chunk, depth], dtype=torch.float32)
        product = hl.zeros([], dtype=torch.float32)
        for tile_e in hl.tile(width):
            given = (grads[head, now, :, tile_e].to(torch.float32) * scale).to(grad.dtype)
            state, of_state = states[head, now, :, tile_e], of_states[head, now, :, tile_e]
            values = news[head, now, :, tile_e]
            of_scores = of_scores + hl.dot(given, values.T)
            of_query = of_query + hl.dot(given, state.T)
            of_decayed = of_decayed + hl.dot(values, of_state.T)
            product = product + torch.sum(torch.sum(state.to(torch.float32) * of_state.to(torch.float32), dim=1), dim=0)
        query, key = queries[head // shared, now, :, :], keys[head // shared, now, :, :]
        earlier = at[:, None] >= at[None, :]
        of_scores = of_scores * torch.exp(torch.where(earlier, since[:, None] - since[None, :], float("-inf")))
        reached = of_scores * hl.dot(query, key.T)
        from_state = of_query * torch.exp(since)[:, None]
        to_state = of_decayed * torch.exp(whole - since)[:, None]
        kept = torch.sum(to_state * key.to(torch.float32), dim=1)
        asked = torch.sum(from_state * query.to(torch.float32), dim=1)
        of_queries[head, now, :, :] = hl.dot(of_scores.to(grad.dtype), key) + from_state
        of_keys[head, now, :, :] = hl.dot(of_scores.to(grad.dtype).T, query) + to_state
        of_sums[head, now, :] = torch.sum(reached, dim=1) - torch.sum(reached, dim=0) + asked - kept
        of_whole[head, now] = torch.sum(kept, dim=0) + torch.exp(whole) * product
    return of_q, of_k, of_since, of_whole


@helion.kernel(static_shapes=False)
def delta_chunks_gradient_kernel(
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    fresh: torch.Tensor,
    erased: torch.Tensor,
    solutions: torch.Tensor,
    states: torch.Tensor,
    of_added: torch.Tensor,
    of_k: torch.Tensor,
    of_since: torch.Tensor,
    of_whole: torch.Tensor,
    shared: int,
    chunk: hl.constexpr,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the gradients of `v`, `decay` and `beta` from those of the added rows, and add to that of `k`."""
    heads, length = v.size(0), v.size(1)
    depth, width = hl.specialize(k.size(2)), hl.specialize(v.size(2))
    of_v, of_decay, of_beta = torch.empty_like(v), torch.empty_like(decay), torch.empty_like(beta)
    chunks = length // chunk
    keys, gone, of_keys = (t.view(-1, chunks, chunk, depth) for t in (k, erased, of_k))
    values, news, of_news, of_values = (t.view(heads, chunks, chunk, width) for t in (v, fresh, of_added, of_v))
    decays, rates, of_sums, of_decays, of_rates = (
        t.view(heads, chunks, chunk) for t in (decay, beta, of_since, of_decay, of_beta)
    )
    inverses = solutions.view(heads, chunks, chunk, chunk)
    for tile_h, tile_n in hl.tile([heads, chunks], block_size=[1, 1]):
        head, now = tile_h.begin, tile_n.begin
        at = hl.arange(chunk)
        key = keys[head // shared, now, :, :]
        rate = rates[head, now, :].to(torch.float32)
        since = hl.cumsum(decays[head, now, :], dim=0)
        row, column = at[:, None], at[None, :]
        before = torch.exp(torch.where(row > column, since[:, None] - since[None, :], float("-inf")))
        alike = hl.dot(key, key.T) * before
        inverse = inverses[head, now, :, :]
        of_lower = hl.zeros([chunk, chunk], dtype=torch.float32)
        of_erased = hl.zeros([chunk, depth], dtype=torch.float32)
        of_rate = hl.zeros([chunk], dtype=torch.float32)
        for tile_e in hl.tile(width):
            of_new = of_news[head, now, :, tile_e]
            of_erased = of_erased - hl.dot(of_new, states[head, now, :, tile_e].T)
            solved = hl.dot(inverse.T, of_new)
            of_values[head, now, :, tile_e] = solved * rate[:, None]
            of_rate = of_rate + torch.sum(solved * values[head, now, :, tile_e].to(torch.float32), dim=1)
            of_lower = of_lower - hl.dot(solved.to(v.dtype), news[head, now, :, tile_e].T)
        faded = hl.dot(inverse.T, of_erased.to(v.dtype))
        of_lower = of_lower - hl.dot(faded.to(v.dtype), gone[head, now, :, :].T)
        of_alike = (of_lower * before * rate[:, None]).to(v.dtype)
        grows = torch.exp(since) * torch.sum(faded * key.to(torch.float32), dim=1)
        pairs = of_lower * alike
        through = pairs * rate[:, None]
        of_faded = (rate * torch.exp(since))[:, None] * faded
        of_keys[head, now, :, :] += of_faded + hl.dot(of_alike + of_alike.T, key)
        of_rates[head, now, :] = of_rate + grows + torch.sum(pairs, dim=1)
        here = of_sums[head, now, :] + rate * grows + torch.sum(through, dim=1) - torch.sum(through, dim=0)
        of_decays[head, now, :] = of_whole[head, now] + torch.sum(here, dim=0) - hl.cumsum(here, dim=0) + here
    return of_v, of_decay, of_beta


KERNELS = (
    delta_states_kernel,
    delta_states_gradient_kernel,
    delta_scores_gradient_kernel,
    delta_chunks_gradient_kernel,
)
