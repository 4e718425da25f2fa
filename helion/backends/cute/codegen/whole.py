"""The text of a generated module: the kernel as source of its own, and the user's function around its launch."""

from __future__ import annotations

from .... import exc
from ...._compiler.host.print import SOURCE_IMPORT, print_comparisons, print_host, print_source
from ...._compiler.host.program import Form, HostProgram, Import, Module
from ..plan.kernel import CutePlan
from ..plan.records import WARP_THREADS
from .module import build, pointer_dtypes

RUNTIME = "helion.runtime"
KERNEL_IMPORT = Import(module=RUNTIME, name="gemm_kernel")
LAUNCHER_IMPORT = Import(module=RUNTIME, name="launch_gemm", alias="_default_launcher")


def render_module(plan: CutePlan, host: HostProgram, form: Form) -> Module:
    """A plan as a Python module whose function of the kernel's name runs it.

    The kernel stands there as text, so that loading the module needs no DSL. Raises ``exc.InvalidAPIUsage`` for a module
    that imports nothing of ours.
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
        *_kernel(plan),
        "",
        "",
        print_host(host),
        "",
    ]
    return Module(text="\n".join(lines), host=host)


def _kernel(plan: CutePlan) -> list[str]:
    source = build(plan.gemm)
    assert "'''" not in source and "\\" not in source, "the text of a kernel is a plain literal"
    described = {
        "name": plan.kernel_names[0],
        "unit": plan.gemm.unit,
        "pointers": pointer_dtypes(plan.gemm),
        "ctas": plan.gemm.ctas,
        "threads": plan.roles.warps * WARP_THREADS,
        "shared_bytes": plan.shared_bytes,
        "problem": repr(plan.gemm.problem),
    }
    return [
        f"{plan.kernel_names[0]} = gemm_kernel(",
        *(f"    {name}={value!r}," for name, value in described.items()),
        "    source='''",
        *source.splitlines(),
        "''',",
        ")",
    ]
