"""Gradients of attention of sequences that lie one after another, as the operators compute them, with fp64 references."""

from __future__ import annotations

import math

import torch
from backends.cute.backward_kernels import Case

from helion.ops.kernels.varlen import (
    ALL,
    _ranges,
    _rows_of_keys,
    varlen_keys_backward_kernel,
    varlen_queries_backward_kernel,
)

ENDS = (0, 70, 70, 100, 250, 251, 400)


def cases(device: str = "cpu", dtype: torch.dtype = torch.bfloat16, scale: int = 1) -> list[Case]:
    """Return cases of 408 rows, times ``scale``, of which the last ones are in no sequence, and not a number."""
    found = []
    for name, dims, causal, window in (
        ("", 64, False, None),
        (", causal", 128, True, None),
        (", window", 64, True, 40),
    ):
        offsets = torch.tensor(ENDS, device=device) * scale
        used, rows = int(offsets[-1]), 408 * scale
        begins, ends = _ranges(offsets, offsets, rows, ALL if window is None else window * scale, causal)
        at = torch.arange(rows, device=device)
        seen = (at >= begins[:, None]) & (at < ends[:, None])
        tensors = [(torch.randn(rows, heads, dims, device=device) + 0.2).to(dtype) for heads in (4, 2, 2, 4)]
        leaves = [each[:used].double().requires_grad_() for each in tensors[:3]]
        wide = [each.repeat_interleave(2, 1) for each in leaves[1:]]
        scores = torch.einsum("thd,shd->hts", leaves[0], wide[0]) * dims**-0.5
        scores = scores.masked_fill(~seen[:used, :used], -math.inf)
        out = torch.einsum("hts,shd->thd", torch.softmax(scores, -1), wide[1])
        upstream = tensors[3][:used].double()
        wanted = [
            torch.cat((each, each.new_zeros(rows - used, *each.shape[1:])))
            for each in torch.autograd.grad(out, leaves, upstream)
        ]
        logsum = torch.full((4, rows), math.inf, device=device)
        logsum[:, :used] = torch.logsumexp(scores, -1).detach() * math.log2(math.e)
        along = torch.zeros(4, rows, device=device)
        along[:, :used] = (upstream * out).sum(-1).T.detach()
        for each in tensors:
            each[used:] = math.nan
        q, k, v, do = tensors
        first, last = _rows_of_keys(begins, ends, rows)
        options = 2, dims**-0.5, 0.0
        for what, kernel, bounds, results in (
            ("queries", varlen_queries_backward_kernel.fn, (begins, ends), wanted[:1]),
            ("keys", varlen_keys_backward_kernel.fn, (first, last), wanted[1:]),
            ("all", varlen_keys_backward_kernel.fn, (first, last), (*wanted[1:], wanted[0])),
        ):
            arguments = (do, q, k, v, logsum, along, *bounds, *options, *([True] if what == "all" else []))
            found.append(
                Case(
                    name=f"{what}{name}",
                    kernel=kernel,
                    arguments=arguments,
                    wanted=tuple(results),
                    ordered=what != "all",
                )
            )
    return found
