"""The executor of GEMMs (``backends.execution``)."""

from __future__ import annotations

import contextlib
import marshal
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

from .... import exc
from ...._compiler.host.program import HostProgram
from ....hardware import Target
from ...execution import InlineBody, KeptModule, Launcher, OutOfResources, SizeTable
from ..toolchain.errors import CompilationFailed
from . import inline_launch
from .launcher import LaunchFailed
from .seen import SeenLauncher

if TYPE_CHECKING:
    from ..plan.launch import LaunchPlan


class CuteInlining:
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
        return None

    def sharing(self, first: Sequence[int]) -> Callable[..., bool] | None:
        return None


class CuteExecutor:
    error: type[exc.BaseError] = exc.CuteError
    errors: tuple[type[Exception], ...] = (CompilationFailed, LaunchFailed, RuntimeError)
    inlining = CuteInlining()
    aligned_only = True

    def prepare(self, names: dict[str, Any]) -> None:
        """Leave the globals as they are: modules describe their kernels, and the launcher compiles them."""

    def kept_module(self, text: str, names: Mapping[str, Any]) -> KeptModule | None:
        return KeptModule(code=marshal.dumps(compile(text, names["__file__"], "exec")))

    def globals_of(self, kept: KeptModule, text: str) -> dict[str, Any]:
        return {}

    def launcher(self, ordinary: Launcher, target: Target) -> Launcher:
        return SeenLauncher(ordinary)

    def expect_launch(self, names: Mapping[str, Any], plan: LaunchPlan, target: Target) -> None:
        """Do nothing: a launch needs the binary alone."""

    def is_failure(self, error: Exception) -> bool:
        return isinstance(error, (CompilationFailed, LaunchFailed))

    def reason(self, error: Exception) -> str:
        return str(error).strip() or type(error).__name__

    def out_of_resources(self, error: BaseException | None) -> OutOfResources | None:
        return None

    def detecting_races(self) -> AbstractContextManager[None]:
        """Return an empty context: on the CPU, GEMMs are evaluated as a whole, without threads that can race."""
        return contextlib.nullcontext()

    def without_alignment(self, needed: bool) -> Mapping[str, Any] | None:
        return None


EXECUTOR = CuteExecutor()
