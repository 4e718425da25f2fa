"""What a backend has for those who run what it printed: an executor, and a toolchain that needs no GPU."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch

from .. import exc
from ..hardware import Target

if TYPE_CHECKING:
    # importing the product needs no compiler
    from .._compiler.host.program import HostProgram

#: Called as ``(kernel, grid, *arguments, **options)``.
Launcher = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class OutOfResources:
    """What a launch took more of than the GPU has."""

    name: str
    required: int
    limit: int


@dataclass(frozen=True, kw_only=True)
class InlineBody:
    """Statements, and the objects they name by what was made up for them."""

    statements: list[ast.stmt]
    cells: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class SizeTable:
    """Classes of the sizes and strides that are not fixed, those of all tensors in order, sizes before strides: equal ones
    stay equal, different ones different, and none is below ``symbolic``. ``wide`` says of each tensor whether the offset of
    its last element is ``limit`` or more."""

    classes: tuple[int, ...]
    wide: tuple[bool, ...]
    symbolic: int
    limit: int


class Inlining(Protocol):
    """Host code with its launches written out, and quick checks of arguments."""

    def body(
        self, host: HostProgram, function: types.FunctionType, prefix: str, launcher: Launcher
    ) -> InlineBody | None:
        """The statements of ``host``, loaded as ``function``, whose launches went through ``launcher``. None for what
        cannot be written out, or has names that begin with ``prefix``."""

    def guard(
        self,
        tensors: Sequence[torch.Tensor],
        sizes: Sequence[Sequence[int | None]],
        strides: Sequence[Sequence[int | None]],
        table: SizeTable | None = None,
    ) -> Callable[..., bool] | None:
        """A native function of as many tensors that says whether they are like these, with these sizes and strides (None:
        any, or what ``table`` says of them); None if there is none."""

    def sharing(self, first: Sequence[int]) -> Callable[..., bool] | None:
        """A native function of as many tensors that says whether those share memory that do here; None if there is
        none. ``first`` has for each the position of the first tensor on the same storage."""


class Executor(Protocol):
    """Launches the kernels of loaded modules.

    A module has a function of the kernel's name that runs it; what launches is its keyword ``_launcher``, whose default
    is the backend's own launcher.
    """

    @property
    def error(self) -> type[exc.BaseError]:
        """What the user is told of a launch that failed, with ``kernel``, ``decorator``, ``reason`` and ``path``."""
        ...

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What launches raise, failures among it."""
        ...

    @property
    def inlining(self) -> Inlining | None:
        """None where calls on GPUs go the full way."""
        ...

    def prepare(self, names: dict[str, Any]) -> None:
        """Change the globals of a module that was just loaded."""

    def launcher(self, ordinary: Launcher, target: Target) -> Launcher:
        """What launches the kernels of one config in place of ``ordinary``, the launcher of their module."""
        ...

    def is_failure(self, error: Exception) -> bool:
        """Whether one of ``errors`` is the backend's refusal of a kernel."""
        ...

    def out_of_resources(self, error: BaseException | None) -> OutOfResources | None:
        """What a failed launch wanted too much of, None if it failed for another reason."""
        ...

    def detecting_races(self) -> AbstractContextManager[None]:
        """Within it, launches that can be watched raise ``exc.DataRace``."""
        ...

    @property
    def aligned_only(self) -> bool:
        """Whether no config of its takes tensors that do not begin at multiples of 16 bytes."""
        ...

    def without_alignment(self, plan: Any) -> Mapping[str, Any] | None:
        """The keys of a config that takes tensors which do not begin at multiples of 16 bytes; None if the plan does."""
        ...


class CompileError(exc.BaseError):
    """A toolchain refuses a kernel, or has no compiler for a target."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Measured resources of one kernel, and whether the GPU has them."""

    registers: int
    """32-bit registers per thread (per lane on AMD, accumulation registers included)."""
    registers_limit: int
    """The most registers per thread that a block of this many threads leaves room for."""
    spill_bytes: int
    """0 if nothing spills. ptxas: bytes per thread of all spill stores and loads in the code, each counted once.
    AMD: bytes per lane of all spilled vector registers, each counted once."""
    shared_bytes: int
    """Per block, static and dynamic."""
    limit_bytes: int
    """The most shared memory per block that the target has."""
    tensor_memory_columns: int
    threads: int
    """Per block, all warps included that the compiler adds."""
    overflow: tuple[str, ...]
    """What the target does not have, in words with numbers; empty if the kernel fits."""
    source: str
    """``ptxas`` or ``amdgcn``: where registers and spills were read."""
    sass_counts: Mapping[str, int] = field(default_factory=dict)
    """How often each opcode stands in the binary, one in a loop once; empty where the backend does not count them."""

    @property
    def fits(self) -> bool:
        """Whether the kernel can be launched at all."""
        return not self.overflow


class Toolchain(Protocol):
    """Compiles and measures with no GPU."""

    def resources(
        self,
        names: Mapping[str, Any],
        plan: Any,
        target: Target,
        *,
        count_opcodes: bool = True,
        seconds: float | None = None,
    ) -> Resources:
        """What the kernels of ``plan`` take, whose module has these globals: as launched with 16-byte aligned tensors;
        of several kernels the one that takes most. ``sass_counts`` may be empty without ``count_opcodes``, which is
        quicker. An assembler that is a process of its own is ended after ``seconds``. Raises ``CompileError``."""
        ...

    def shared_object(self, names: Mapping[str, Any], plan: Any) -> bytes:
        """The kernel of ``plan``, whose module has these globals, in a form that runs by itself. Raises
        ``exc.InvalidAPIUsage`` where there is none."""
        ...

    def compiler(self, target: Target) -> str:
        """What compiles for ``target`` and its versions: equal ones make the same of the same code. It is found without
        starting a process that a launch would not start."""
        ...

    def prepare(self, target: Target) -> None:
        """Read what every compilation for ``target`` needs: processes forked afterwards need not."""
        ...

    def versions(self) -> Sequence[tuple[str, str]]:
        """Names and versions of what it consists of."""
        ...
