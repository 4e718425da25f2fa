"""The facts of a kernel in one line, for reports."""

from __future__ import annotations

import torch

from .records import AxisFact, KernelFacts, MatmulFact, ReductionFact


def summarize(facts: KernelFacts) -> str:
    """Return a one-line summary of the kernel for reports."""
    parts = [_axes_text(facts.axes)]
    parts += [_matmul_text(fact) for fact in facts.matmuls]
    parts += [_reduction_text(fact) for fact in facts.reductions]
    if facts.pointwise is not None:
        parts.append(f"pointwise over {facts.pointwise.total_numel} elements")
    if facts.matmul_with_reduction_epilogue is not None:
        parts.append(f"matmul with reduction epilogue over N={facts.matmul_with_reduction_epilogue.n_extent}")
    tiled = facts.matmul_with_tiled_reduction_epilogue
    if tiled is not None:
        applied = f", applied over {', '.join(map(str, tiled.apply_axes))}" if tiled.apply_axes else ""
        columns = ", ".join(map(str, tiled.n_block_ids))
        parts.append(f"matmul with reduction epilogue over tiles of axis {columns}{applied}")
    if facts.attention is not None:
        parts.append("attention")
    if facts.attention_gradients:
        parts.append("gradients of attention")
    parts += [f"{fact.kind} over axis {fact.axis}" for fact in facts.scans]
    parts += [f"sort over axis {fact.axis}" for fact in facts.sorts]
    parts += [f"{len(facts.atomics)} atomics"] * bool(facts.atomics)
    loads = sum(op.kind == "load" for op in facts.memory_ops)
    parts.append(f"{loads} loads, {len(facts.memory_ops) - loads} stores")
    return "; ".join(parts)


def _axes_text(axes: tuple[AxisFact, ...]) -> str:
    def one(axis: AxisFact) -> str:
        place = "grid" if axis.on_grid else "rolled" if axis.rollable else "whole" if axis.kind == "full" else "loop"
        extent = "?" if axis.extent is None else str(axis.extent)
        fixed = f" by {axis.size}" if axis.kind == "fixed" else ""
        return f"{axis.block_id}:{axis.name} {place} {extent}{fixed}"

    return f"axes {', '.join(map(one, axes))}"


def _matmul_text(fact: MatmulFact) -> str:
    extents = "x".join("?" if e is None else str(e) for e in (fact.static_m, fact.static_n, fact.static_k))
    lhs, rhs = fact.lhs_format or _dtype(fact.lhs_dtype), fact.rhs_format or _dtype(fact.rhs_dtype)
    types = ("scaled " if fact.lhs_format else "") + (lhs if lhs == rhs else f"{lhs}*{rhs}")
    return f"dot {extents} {types}"


def _reduction_text(fact: ReductionFact) -> str:
    detail = f"{fact.body_live_tiles} live" + (", re-read" if fact.re_read else "")
    if fact.per_feature_accumulator:
        detail += ", per-feature accumulator"
    return f"{'+'.join(fact.names)} over axis {fact.axis} ({fact.category} of {fact.extent or '?'}, {detail})"


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
