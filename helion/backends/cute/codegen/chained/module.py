"""The module of products in sequence: both matmuls, and a host function that launches one after the other."""

from __future__ import annotations

from ...plan.chained.records import ChainedPlan
from ...plan.dtypes import DTYPES
from ...plan.records import SUM_BYTES, WARP_THREADS, GemmPlan
from ...plan.workspace import counter_bytes, workspace_bytes
from ...toolchain.kernel import GemmKernel
from ..module import ENTRY, pointer_dtypes, render
from ..writer import Writer

BOTH, FIRST = "chained", "_before"
"""The host function, and the end of the names of the first matmul's functions."""


def chained_kernel_of(plan: ChainedPlan) -> GemmKernel:
    """Return the kernel of products in sequence."""
    return GemmKernel(
        name=plan.kernel_names[0],
        unit=plan.gemm.unit,
        pointers=(*_pointers(plan), "float32"),
        ctas=plan.gemm.ctas,
        threads=plan.roles.warps * WARP_THREADS,
        shared_bytes=plan.shared_bytes,
        problem=repr(plan.problem),
        source=_source(plan),
        entry=BOTH,
        workspace_bytes=plan.workspace_bytes,
        counter_bytes=counter_bytes(plan.gemm),
        ctas_per_sm=plan.gemm.ctas_per_sm,
    )


def _own_pointers(plan: GemmPlan) -> tuple[str, ...]:
    """Return the pointer types of a matmul, without its workspace."""
    found = pointer_dtypes(plan)
    return found[:-1] if workspace_bytes(plan) else found


def _pointers(plan: ChainedPlan) -> tuple[str, ...]:
    """Return the pointer types of a launch without the workspace."""
    first = _own_pointers(plan.before)
    return (*_own_pointers(plan.gemm), *first[:2], *first[3:])


def _source(plan: ChainedPlan) -> str:
    main = len(_own_pointers(plan.gemm))
    given = [f"p{at}" for at in range(len(_pointers(plan)))]
    dtype = DTYPES[plan.before.whole.output_dtype].dsl
    of_main = [("middle" if at == plan.at else name) for at, name in enumerate(given[:main])]
    of_main += ["workspace"] if workspace_bytes(plan.gemm) else []
    of_first = [*given[main : main + 2], "middle", *given[main + 2 :]]
    of_first += ["workspace"] if workspace_bytes(plan.before) else []
    types = ["cutlass.Float32" if each == "number" else "cute.Pointer" for each in _pointers(plan)]
    out = Writer()
    out.lines(render(plan.roles_before, FIRST).splitlines())
    out.lines(("", ""))
    out.lines(render(plan.roles).splitlines())
    out.lines(("", "", "@cute.jit", f"def {BOTH}("))
    out.lines(f"    {name}: {kind}," for name, kind in zip(given, types, strict=True))
    out.lines(("    workspace: cute.Pointer,", "    clusters: cutlass.Int32,", "    stream: CUstream,"))
    with out.block(") -> None:"):
        out.line(f"middle = cute.recast_ptr(workspace + {plan.middle_offset // SUM_BYTES}, dtype=cutlass.{dtype})")
        out.line(f"{ENTRY}{FIRST}({', '.join(of_first)}, cutlass.Int32({plan.before.pieces}), stream)")
        out.line(f"{ENTRY}({', '.join(of_main)}, clusters, stream)")
    return out.text()
