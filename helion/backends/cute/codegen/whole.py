"""The text of a generated module: the source of the kernel, and the user's function around its launch."""

from __future__ import annotations

import dataclasses

from .... import exc
from ...._compiler.host.print import SOURCE_IMPORT, print_comparisons, print_host, print_source
from ...._compiler.host.program import Form, HostProgram, Import, Module
from ..plan.kernel import CutePlan
from ..plan.records import WARP_THREADS
from ..plan.workspace import counter_bytes, workspace_bytes
from ..toolchain.kernel import GemmKernel
from .module import ENTRY, pointer_dtypes, render

RUNTIME = "helion.runtime"
KERNEL_IMPORT = Import(module=RUNTIME, name="gemm_kernel")
LAUNCHER_IMPORT = Import(module=RUNTIME, name="launch_gemm", alias="_default_launcher")


def render_module(kernel: GemmKernel, host: HostProgram, form: Form) -> Module:
    """Print a Python module whose function of the user's name runs ``kernel``. The caller verifies its roles.

    The kernel is a string in it, so that loading the module needs no DSL. Raises ``exc.InvalidAPIUsage`` for a module
    without imports from helion.
    """
    if form.alone:
        raise exc.InvalidAPIUsage(
            "A module of the cute backend needs helion to launch it; use bound.export_shared_object(path), which needs nothing."
        )
    imports = [*host.imports, *([SOURCE_IMPORT] if host.reads_source else []), KERNEL_IMPORT, LAUNCHER_IMPORT]
    lines = [
        "from __future__ import annotations",
        "",
        *(each.line for each in imports),
        *print_source(host, form),
        *print_comparisons(host),
        "",
        *_kernel(kernel),
        "",
        "",
        print_host(host),
        "",
    ]
    return Module(text="\n".join(lines), host=host)


def gemm_kernel_of(plan: CutePlan) -> GemmKernel:
    """Return the kernel in the module of a GEMM's plan."""
    return GemmKernel(
        name=plan.kernel_names[0],
        unit=plan.gemm.unit,
        pointers=pointer_dtypes(plan.gemm),
        ctas=plan.gemm.ctas,
        threads=plan.roles.warps * WARP_THREADS,
        shared_bytes=plan.shared_bytes,
        problem=repr(plan.gemm.whole),
        source=render(plan.roles),
        workspace_bytes=workspace_bytes(plan.gemm),
        counter_bytes=counter_bytes(plan.gemm),
        ctas_per_sm=plan.gemm.ctas_per_sm,
    )


def _kernel(kernel: GemmKernel) -> list[str]:
    assert "'''" not in kernel.source and "\\" not in kernel.source, "the text of a kernel is a plain literal"
    described = {field.name: getattr(kernel, field.name) for field in dataclasses.fields(kernel)}
    del described["source"]
    for name in ("workspace_bytes", "counter_bytes"):
        if not described[name]:
            del described[name]
    if kernel.ctas_per_sm == 1:
        del described["ctas_per_sm"]
    if kernel.entry == ENTRY:
        del described["entry"]
    return [
        f"{kernel.name} = gemm_kernel(",
        *(f"    {name}={value!r}," for name, value in described.items()),
        "    source='''",
        *kernel.source.splitlines(),
        "''',",
        ")",
    ]
