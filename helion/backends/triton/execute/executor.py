"""Triton's executor (``backends.execution``)."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from triton.errors import TritonError
from triton.runtime.errors import OutOfResources as TritonOutOfResources

from .... import exc, knobs
from ...._compiler.host.program import HostProgram
from ...._support.lazy import lazy
from ....hardware import Target
from ...execution import InlineBody, KeptModule, Launcher, OutOfResources, SizeTable
from ..toolchain import offline
from . import c_launchers, compilable, deferred, fast_launch, inline_launch, native

if TYPE_CHECKING:
    from ..plan.records import Plan
    from ..toolchain import signature
    from .interpreter import races
else:
    # a kept kernel is launched without its plan
    signature = lazy("helion.backends.triton.toolchain.signature")
    races = lazy("helion.backends.triton.execute.interpreter.races")

#: Triton's message when a pass of its compiler fails; such errors have no class of their own.
_PASS_FAILED = "PassManager::run failed"
#: The driver's refusal of programs that cannot all be resident.
_TOO_MANY_RESIDENTS = "too many blocks in cooperative launch"


class TritonInlining:
    def body(
        self, host: HostProgram, function: types.FunctionType, prefix: str, launcher: Launcher
    ) -> InlineBody | None:
        return inline_launch.body(host, function, prefix, launcher)

    def guard(
        self,
        tensors: Sequence[torch.Tensor],
        sizes: Sequence[Sequence[int | None]],
        strides: Sequence[Sequence[int | None]],
        table: SizeTable | None = None,
    ) -> Callable[..., bool] | None:
        return native.guard(tensors, sizes, strides, table)

    def sharing(self, first: Sequence[int]) -> Callable[..., bool] | None:
        return native.sharing(first)


_INLINING = TritonInlining()


class TritonExecutor:
    error: type[exc.BaseError] = exc.TritonError
    errors: tuple[type[Exception], ...] = (TritonError, RuntimeError)
    aligned_only = False

    @property
    def inlining(self) -> TritonInlining | None:
        return None if knobs.TRITON_INTERPRET.read() else _INLINING

    def prepare(self, names: dict[str, Any]) -> None:
        offline.use_writable_cache()
        compilable.make_compilable(names)

    def kept_module(self, text: str, names: Mapping[str, Any]) -> KeptModule | None:
        return None if knobs.TRITON_INTERPRET.read() else deferred.kept_module(text, names)

    def globals_of(self, kept: KeptModule, text: str) -> dict[str, Any]:
        return deferred.globals_of(kept, text)

    def launcher(self, ordinary: Launcher, target: Target) -> Launcher:
        return ordinary if knobs.TRITON_INTERPRET.read() else fast_launch.launcher(ordinary, target)

    def expect_launch(self, names: Mapping[str, Any], plan: Plan, target: Target) -> None:
        if c_launchers.are_needed():
            for kernel, phase in plan.launched:
                facts = signature.offline_signature(plan, target, phase)
                given = offline.Signature(
                    types=facts["signature"], constexprs=facts["constexprs"], equal_to_one=facts["equal_to_one"]
                )
                c_launchers.begin(offline.argument_types(names[kernel], given, target))

    def is_failure(self, error: Exception) -> bool:
        return isinstance(error, TritonError) or any(text in str(error) for text in (_PASS_FAILED, _TOO_MANY_RESIDENTS))

    def reason(self, error: Exception) -> str:
        found = str(error).strip() or type(error).__name__
        if _TOO_MANY_RESIDENTS not in found:
            return found
        return f"{found}: not all of its programs fit at once; use a smaller num_sm_multiplier, or cooperative_launch=False"

    def out_of_resources(self, error: BaseException | None) -> OutOfResources | None:
        if not isinstance(error, TritonOutOfResources):
            return None
        return OutOfResources(name=error.name, required=error.required, limit=error.limit)

    def detecting_races(self) -> AbstractContextManager[None]:
        return races.detect_races()

    def without_alignment(self, needed: bool) -> Mapping[str, Any] | None:
        return {"indexing": "pointer"} if needed else None  # TMA takes no other tensors


EXECUTOR = TritonExecutor()
