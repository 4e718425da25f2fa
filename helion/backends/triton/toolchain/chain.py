"""Triton's toolchain (``backends.execution``)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import triton

from .... import exc
from ...._support.lazy import lazy
from ....hardware import Target
from ...execution import Resources, Together
from . import digest
from .offline import compile_offline, compiler_of, prepare, ptxas_version, together
from .report import checked_residents, measure

if TYPE_CHECKING:
    from ... import assembly
    from ...assembly import Code
    from ..plan.records import Plan
    from . import signature
else:
    assembly = lazy("helion.backends.assembly")
    # versions need no plan
    signature = lazy("helion.backends.triton.toolchain.signature")


class TritonToolchain:
    def resources(
        self,
        names: Mapping[str, Any],
        plan: Plan,
        target: Target,
        *,
        count_opcodes: bool = True,
        seconds: float | None = None,
    ) -> Resources:
        """Return the resources of the kernel that takes the most; opcodes are not counted."""
        measured = []
        for kernel, phase in plan.launched:
            given = signature.offline_signature(plan, target, phase)
            found = measure(compile_offline(names[kernel], **given, seconds=seconds), target)
            resident = plan.launch.persistent if plan.are_together(plan.launch_of(phase)) else 0
            measured.append(found if not resident else checked_residents(found, resident, target))
        return max(measured, key=lambda r: (not r.fits, r.spill_bytes, r.shared_bytes, r.registers))

    def code(self, names: Mapping[str, Any], plan: Plan, target: Target) -> Mapping[str, Code]:
        if target.kind != "cuda":
            raise exc.InvalidAPIUsage(f"Assembled code is read for NVIDIA's GPUs, and {target} is another one.")
        found = {}
        for kernel, phase in plan.launched:
            given = signature.offline_signature(plan, target, phase)
            found[kernel] = assembly.disassembled(compile_offline(names[kernel], **given).kernel)
        return found

    def shared_object(self, names: Mapping[str, Any], plan: Plan) -> bytes:
        raise exc.InvalidAPIUsage(
            "Kernels of the Triton backend are launched by Triton; to_code(options=OutputCodeOptions(allow_helion_deps=False))"
            " gives a module that needs nothing else."
        )

    def compiler(self, target: Target) -> str:
        return compiler_of(target)

    def prepare(self, target: Target) -> None:
        prepare(target)

    def begin(self) -> None:
        digest.begin()

    def together(self) -> AbstractContextManager[Together]:
        return together()

    def versions(self) -> tuple[tuple[str, str], ...]:
        return (("triton", triton.__version__), ("ptxas", ptxas_version().strip().splitlines()[-1]))


TOOLCHAIN = TritonToolchain()
