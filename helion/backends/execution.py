"""The parts of a backend that run generated code: an executor, and a toolchain that needs no GPU."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from .. import exc
from .._support.records import dataclass, field
from ..hardware import Target

if TYPE_CHECKING:
    # `import helion` loads no compiler
    from .._compiler.host.program import HostProgram
    from .assembly import Code

#: Calls a function, whose compilations run on the ``Terms`` of the second argument, if there is one.
Together = Callable[..., Any]
#: Called as ``(kernel, grid, *arguments, **options)``.
Launcher = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class OutOfResources:
    """A resource of which a launch needs more than the GPU has."""

    name: str
    required: int
    limit: int


@dataclass(frozen=True, kw_only=True)
class InlineBody:
    """Statements, and the objects that their generated names refer to."""

    statements: list[ast.stmt]
    cells: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class SizeTable:
    """Classes of the dynamic sizes and strides of all tensors, in order, sizes before strides.

    Equal ones stay equal, different ones stay different, and none is below ``symbolic``. ``wide`` has for each tensor
    whether the offset of its last element is ``limit`` or more.
    """

    classes: tuple[int, ...]
    wide: tuple[bool, ...]
    symbolic: int
    limit: int


@dataclass(frozen=True, kw_only=True)
class KeptModule:
    """A generated module for later processes: its marshalled ``code``, and what a backend knows of its functions."""

    code: bytes
    known: Mapping[str, Any] = field(default_factory=dict)


class Inlining(Protocol):
    """Host code with inlined launches, and fast guards over arguments."""

    def body(
        self, host: HostProgram, function: types.FunctionType, prefix: str, launcher: Launcher
    ) -> InlineBody | None:
        """Return the statements of ``host``, loaded as ``function``, with the launches of ``launcher`` inlined.

        Returns None for code that cannot be inlined, or that has names beginning with ``prefix``.
        """

    def guard(
        self,
        tensors: Sequence[torch.Tensor],
        sizes: Sequence[Sequence[int | None]],
        strides: Sequence[Sequence[int | None]],
        table: SizeTable | None = None,
    ) -> Callable[..., bool] | None:
        """Return a native predicate over this many tensors: they match these, with these sizes and strides.

        None as a size or stride means any value, or what ``table`` requires. Returns None if there is no native guard.
        """

    def sharing(self, first: Sequence[int]) -> Callable[..., bool] | None:
        """Return a native predicate over this many tensors: those that share memory here share memory there.

        ``first`` has for each tensor the position of the first tensor on the same storage. Returns None if there is no
        native guard.
        """


class Executor(Protocol):
    """Launches the kernels of loaded modules.

    A module has a function of the kernel's name that runs it. Its keyword ``_launcher`` launches kernels, and defaults
    to the backend's own launcher.
    """

    @property
    def error(self) -> type[exc.BaseError]:
        """The error shown to the user for a failed launch, with ``kernel``, ``decorator``, ``reason`` and ``path``."""
        ...

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The exceptions that launches raise, failures included."""
        ...

    @property
    def inlining(self) -> Inlining | None:
        """Inlined launches and guards; None where calls on GPUs take the slow path."""
        ...

    def prepare(self, names: dict[str, Any]) -> None:
        """Update the globals of a module that was just loaded."""

    def kept_module(self, text: str, names: Mapping[str, Any]) -> KeptModule | None:
        """Return the module of ``text``, which was loaded with the globals ``names``, for later processes.

        Returns None if they are to compile the text.
        """
        ...

    def globals_of(self, kept: KeptModule, text: str) -> dict[str, Any]:
        """Return the globals that the code of a kept module runs with."""
        ...

    def launcher(self, ordinary: Launcher, target: Target) -> Launcher:
        """Return the launcher for the kernels of one config, in place of ``ordinary``, their module's own."""
        ...

    def expect_launch(self, names: Mapping[str, Any], plan: Any, target: Target) -> None:
        """Begin in the background what a first launch of the kernels of a module needs besides their binaries."""

    def is_failure(self, error: Exception) -> bool:
        """Return whether one of ``errors`` is the backend's refusal of a kernel."""
        ...

    def reason(self, error: Exception) -> str:
        """Return the text of a refusal, with a remedy where the error has none."""
        ...

    def out_of_resources(self, error: BaseException | None) -> OutOfResources | None:
        """Return the resource that a failed launch exceeded, or None if it failed for another reason."""
        ...

    def detecting_races(self) -> AbstractContextManager[None]:
        """Enter a context in which launches that can be checked raise ``exc.DataRace``."""
        ...

    @property
    def aligned_only(self) -> bool:
        """True if every config needs tensors that begin at multiples of 16 bytes."""
        ...

    def without_alignment(self, needed: bool) -> Mapping[str, Any] | None:
        """Return the keys of a config that takes tensors not aligned to 16 bytes; None if none is ``needed``."""
        ...


class CompileError(exc.BaseError):
    """A toolchain's refusal of a kernel, or of a target that it has no compiler for."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Measured resources of one kernel, and whether they fit the GPU."""

    registers: int
    """32-bit registers per thread (per lane on AMD, accumulation registers included)."""
    registers_limit: int
    """The register limit per thread for a block of this many threads."""
    spill_bytes: int
    """0 if nothing spills. ptxas: bytes per thread of all spill stores and loads in the code, each counted once. AMD:
    bytes per lane of all spilled vector registers, each counted once."""
    shared_bytes: int
    """Per block, static and dynamic."""
    limit_bytes: int
    """The shared-memory limit of the target per block."""
    tensor_memory_columns: int
    threads: int
    """Per block, including the warps that the compiler adds."""
    overflow: tuple[str, ...]
    """The exceeded limits, in words with numbers; empty if the kernel fits."""
    source: str
    """``ptxas`` or ``amdgcn``: the source of registers and spills."""
    sass_counts: Mapping[str, int] = field(default_factory=dict)
    """Static count of each opcode in the binary; empty where the backend does not count them."""

    @property
    def fits(self) -> bool:
        """True if the kernel can be launched."""
        return not self.overflow


class Toolchain(Protocol):
    """Compiles kernels and measures their resources without a GPU."""

    def resources(
        self,
        names: Mapping[str, Any],
        plan: Any,
        target: Target,
        *,
        count_opcodes: bool = True,
        seconds: float | None = None,
    ) -> Resources:
        """Return the resources of the kernels of ``plan``, whose module has these globals.

        They are those of a launch with 16-byte aligned tensors, and of the most demanding of several kernels.
        ``sass_counts`` may be empty without ``count_opcodes``, which is faster. An assembler that runs as its own process
        is ended after ``seconds``. Raises ``CompileError``.
        """
        ...

    def code(self, names: Mapping[str, Any], plan: Any, target: Target) -> Mapping[str, Code]:
        """Return the assembled code of each kernel of ``plan``, whose module has these globals, by name.

        Raises ``CompileError``, and ``exc.InvalidAPIUsage`` for a GPU whose code is not read.
        """
        ...

    def shared_object(self, names: Mapping[str, Any], plan: Any) -> bytes:
        """Return the kernel of ``plan``, whose module has these globals, as a self-contained shared object.

        Raises ``exc.InvalidAPIUsage`` where there is none.
        """
        ...

    def compiler(self, target: Target) -> str:
        """Return the compiler for ``target`` with its versions: equal strings compile equal code to equal binaries.

        It starts no process that a launch would not start.
        """
        ...

    def prepare(self, target: Target) -> None:
        """Load what every compilation for ``target`` needs, so that processes forked later share it."""
        ...

    def begin(self) -> None:
        """Begin in a thread to load what the first launch of a process needs, whatever its kernel is."""
        ...

    def together(self) -> AbstractContextManager[Together] | None:
        """Enter a context whose value calls a function in any thread; compilations inside run at the same time.

        The value's second argument has the ``Terms`` of the compilations inside. The thread that enters the context waits
        for the others, except for those that it drops while they are outside. None if compilations run one at a time.
        """
        ...

    def versions(self) -> Sequence[tuple[str, str]]:
        """Return the names and versions of the components."""
        ...
