"""From a plain function and its arguments to what the compiler knows of it, for tests that run nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from helion._compiler.context import CompileContext
from helion._compiler.facts.collect import collect_facts
from helion._compiler.facts.records import KernelFacts
from helion._compiler.ir.grammar import Op, Program, Region
from helion._compiler.pipeline import front_end
from helion._compiler.rewrites.reduction_loops.roll import rollable_blocks
from helion.autotuner.space import ConfigSpace, build_space
from helion.backends import BACKENDS
from helion.hardware import target
from helion.settings import Settings


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


def program_of(fn: Callable[..., Any], *args: Any, on: str = "sm_90", **settings: Any) -> Program:
    """The device program of a kernel that is not decorated."""
    context = context_for(on, **settings)
    arguments = dict(zip(inspect.signature(fn).parameters, args, strict=True))
    return front_end(fn, arguments, context, frozenset()).program


def context_for(on: str = "sm_90", **settings: Any) -> CompileContext:
    """What tracing for Triton knows, with 32-bit offsets."""
    return CompileContext(
        settings=Settings(**settings),
        target=target(on),
        limits=BACKENDS["triton"].limits(target(on)),
        rules=BACKENDS["triton"].rules,
        device=torch.device("meta"),
        index_dtype=torch.int32,
    )


def facts_of(fn: Callable[..., Any], *args: Any, on: str = "sm_90", **settings: Any) -> KernelFacts:
    """The facts of a kernel; of the target they depend on the smallest dot alone."""
    program = program_of(fn, *args, on=on, **settings)
    return collect_facts(program, rollable_blocks(program)[0])


def space_of(fn: Callable[..., Any], *args: Any, on: str = "sm_90", **settings: Any) -> ConfigSpace:
    """The configs of a kernel for a target."""
    program = program_of(fn, *args, on=on, **settings)
    return build_space(program, rollable_blocks(program)[0], target(on), Settings(**settings), BACKENDS["triton"].keys)


def skeleton(program: Program) -> str:
    """The accesses, barriers and regions of a program: ``for(load x; barrier; store x)``."""
    return " | ".join(_region(program, root.body) for root in program.roots)


def _region(program: Program, region: Region) -> str:
    return "; ".join(filter(None, (_op(program, op) for op in region.ops)))


def _op(program: Program, op: Op) -> str:
    if op.kind in ("load", "store", "atomic"):
        return f"{op.kind} {program.tensors[op.attrs.tensor].name}"
    if op.kind == "if":
        return f"if({' / '.join(_region(program, r) for r in op.regions)})"
    if op.kind in ("for", "while", "inline"):
        return f"{op.kind}({' do '.join(_region(program, r) for r in op.regions)})"
    return "barrier" if op.kind == "barrier" else ""
