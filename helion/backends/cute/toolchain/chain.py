"""The toolchain of GEMMs (``backends.execution``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...._support.lazy import lazy
from ....hardware import REGISTER_BYTES, Target
from ...binaries import tool
from ...execution import Resources
from .installed import installed_version
from .library import CUBIN, SHARED_OBJECT, folder

if TYPE_CHECKING:
    from ... import assembly
    from ...assembly import Code
    from ..plan.launch import LaunchPlan
    from . import audit
else:
    assembly = lazy("helion.backends.assembly")
    audit = lazy("helion.backends.cute.toolchain.audit")


class CuteToolchain:
    def resources(
        self,
        names: Mapping[str, Any],
        plan: LaunchPlan,
        target: Target,
        *,
        count_opcodes: bool = True,
        seconds: float | None = None,
    ) -> Resources:
        """Return the resources of a kernel; ``seconds`` has no effect, since the DSL assembles in this process.

        Raises ``errors.ToolMissing`` if the kernel is not compiled and cannot be.
        """
        kernel = names[plan.kernel_names[0]]
        cubin = (folder(kernel) / CUBIN).read_bytes()
        nvdisasm, cuobjdump = tool("nvdisasm"), tool("cuobjdump")
        found = audit.audit(cubin, nvdisasm=nvdisasm, cuobjdump=cuobjdump, always_disassembled=count_opcodes)
        shared, columns = plan.shared_bytes, plan.tensor_memory_columns
        return Resources(
            registers=found.registers,
            registers_limit=target.max_registers_per_thread,
            spill_bytes=found.spills * REGISTER_BYTES,
            shared_bytes=shared,
            limit_bytes=target.smem_per_block_bytes,
            tensor_memory_columns=columns,
            threads=kernel.threads,
            overflow=_overflow(shared, columns, target),
            source="ptxas",
            sass_counts=dict(sorted(found.opcodes.items())),
        )

    def code(self, names: Mapping[str, Any], plan: LaunchPlan, target: Target) -> Mapping[str, Code]:
        """Return the code of the only kernel.

        Raises ``errors.ToolMissing`` if the kernel is not compiled and cannot be.
        """
        name = plan.kernel_names[0]
        return {name: assembly.disassembled((folder(names[name]) / CUBIN).read_bytes())}

    def shared_object(self, names: Mapping[str, Any], plan: LaunchPlan) -> bytes:
        """Return the shared object. Raises ``errors.ToolMissing`` if the kernel is not compiled and cannot be."""
        return (folder(names[plan.kernel_names[0]]) / SHARED_OBJECT).read_bytes()

    def compiler(self, target: Target) -> str:
        return f"CuTe DSL {installed_version()}"

    def prepare(self, target: Target) -> None:
        """Defer the import of the DSL: it starts threads, which forked processes do not inherit."""

    def begin(self) -> None:
        """Begin nothing: a binary in the cache is found by the text of its kernel."""

    def together(self) -> None:
        """Return None: the DSL compiles one kernel at a time."""

    def versions(self) -> tuple[tuple[str, str], ...]:
        return (("CuTe DSL", installed_version() or "not installed: pip install 'helion-tiles[cute]'"),)


def _overflow(shared_bytes: int, columns: int, target: Target) -> tuple[str, ...]:
    demands = (
        ("bytes of shared memory per block", shared_bytes, target.smem_per_block_bytes),
        ("columns of tensor memory", columns, target.tensor_memory_columns),
    )
    return tuple(f"{need} {what}, {target} has {limit}" for what, need, limit in demands if need > limit)


TOOLCHAIN = CuteToolchain()
