"""Launches a compiled Triton kernel without Triton's own argument binder, which takes most of a launch's time.

A bound kernel fixes the properties that Triton reads from arguments at every launch, except alignment of pointers and
class of integers. ``FastLauncher`` checks those alone and picks the binary that Triton compiled for them. It calls the
function of Triton's ``CompiledKernel.run``, with pointers as numbers. Anything unsupported goes to the ordinary
launcher.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import triton
from triton import knobs as triton_knobs
from triton._utils import canonicalize_dtype

from .... import hardware, knobs
from ...._shapes import CONCRETE_TENSORS
from ...._support.lazy import lazy
from ...._support.locks import TRITON_LOCK, new_lock
from ...._support.records import dataclass
from ....hardware import Target
from ... import stub
from . import c_launchers, native

if TYPE_CHECKING:
    from ..toolchain import digest, offline
else:
    digest = lazy("helion.backends.triton.toolchain.digest")
    offline = lazy("helion.backends.triton.toolchain.offline")

Key = tuple[Any, ...]

#: Argument types that a launch handles here; other ones (subclasses, descriptors, tuples) take the ordinary launcher.
_TENSORS = CONCRETE_TENSORS
_INT32, _INT64 = 2**31, 2**63


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """One binary of a kernel, ready to launch.

    ``run`` is ``CompiledKernel.run``: grid, stream, function, packed metadata, launch metadata, two hooks, arguments.
    ``direct`` is the C function that it calls, with its constants, for binaries that need no scratch memory. ``binary``
    is the data that ``native`` gives the driver. ``current_device`` is None where there is only one.
    """

    compiled: Any
    run: Callable[..., Any]
    direct: Direct | None
    binary: native.Binary | None
    function: int
    packed: Any
    current_stream: Callable[[int], int]
    current_device: Callable[[], int] | None
    device: int
    globals_used: tuple[tuple[Mapping[str, Any], str, Any], ...]

    def globals_current(self) -> bool:
        """Return whether the globals compiled into the binary still have the same values."""
        for namespace, name, value in self.globals_used:
            found = namespace.get(name, _ABSENT)
            if found is not value and (found is _ABSENT or found != value):
                return False
        return True


@dataclass(frozen=True, kw_only=True, eq=False)
class Direct:
    """Triton's C launch function (one for all kernels from Triton 3.7 on) and its parameters besides the arguments."""

    launch: Callable[..., Any]
    cooperative: Any
    pdl: Any
    annotations: Any
    signature: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Parameter:
    """One parameter of a Triton kernel. ``specialized``: integers equal to 1 or divisible by 16 have separate
    binaries.
    """

    name: str
    constexpr: bool
    specialized: bool


class Site:
    """One Triton kernel as one config launches it: its binaries by key, and the last launch."""

    def __init__(self, kernel: triton.JITFunction) -> None:
        self.kernel = kernel
        self.parameters = tuple(
            Parameter(name=p.name, constexpr=p.is_constexpr, specialized=not p.do_not_specialize) for p in kernel.params
        )
        # a type in an annotation overrides that of the value
        self.supported = not any(p.annotation_type for p in kernel.params if not p.is_constexpr)
        self.entries: dict[Key, Entry] = {}
        self.last: tuple[Key, tuple[Any, ...], Entry] | None = None

    def key(self, args: Sequence[Any]) -> Key | None:
        """Return the key of the binary, or None for arguments that only Triton's binder supports."""
        if len(args) != len(self.parameters):
            return None
        parts: list[Any] = []
        for value, parameter in zip(args, self.parameters, strict=True):
            kind = type(value)
            if parameter.constexpr:
                if kind not in _CONSTANTS:
                    return None
                parts.append((kind, value))
            elif kind in _TENSORS:
                parts.append((value.dtype, value.data_ptr() & 15 == 0))
            elif kind is int:
                part = integer_class(value, parameter.specialized)
                if part is None:
                    return None
                parts.append(part)
            elif kind in (float, bool, type(None)):
                parts.append(kind)
            else:
                return None
        return tuple(parts)


_ABSENT = object()
_CONSTANTS = (int, bool, float, str, type(None))


def integer_class(value: int, specialized: bool = True) -> tuple[str, bool, bool] | None:
    """Return Triton's type of an integer argument, and flags for 1 and multiples of 16; None beyond 64 bits."""
    if -_INT32 <= value < _INT32:
        width = "i32"
    elif -_INT64 <= value < _INT64:
        width = "i64"
    elif 0 <= value < 2 * _INT64:
        width = "u64"
    else:
        return None
    if not specialized:
        return (width, False, False)
    return (width, value == 1, value % 16 == 0)


class FastLauncher:
    """The ``_launcher`` of one compiled config of a bound kernel, with the signature of ``default_launcher``.

    Keeps a binary per class of arguments, per device, and per state of Triton's debug and instrumentation knobs.
    ``ordinary`` compiles and launches a new class. If the installed Triton is not supported, ``ordinary`` launches
    everything.
    """

    def __init__(self, ordinary: Callable[..., Any], target: Target) -> None:
        self.ordinary = ordinary
        self.target = target
        self.dead = False
        self._sites: dict[int, Site] = {}
        self._stubs: dict[int, Site] = {}
        self._stub_changes = 0
        self._offline: dict[Key, Any] = {}
        self._lock = new_lock()

    def __call__(self, kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> Any:
        """Launch ``kernel`` over ``grid`` (one to three counts; nothing if one is 0) with these arguments."""
        for size in grid:
            if size == 0:
                return None
        if torch.compiler.is_compiling():
            return self.ordinary(kernel, grid, *args, **options)
        if stub.active():
            return self._launch_stub(kernel, grid, args, options)
        if self.dead or not any(map(stub.on_gpu, args)) or not _understood(kernel):
            return self.ordinary(kernel, grid, *args, **options)
        return self._launch(kernel, grid, args, options)

    def site(self, kernel: Any) -> Site | None:
        """Return the record of launches of ``kernel`` with the current driver."""
        return (self._stubs if stub.active() else self._sites).get(id(kernel))

    def _site(self, sites: dict[int, Site], kernel: triton.JITFunction) -> Site:
        found = sites.get(id(kernel))
        if found is None:
            with self._lock:
                found = sites.setdefault(id(kernel), Site(kernel))
        return found

    # --- on a GPU
    # --------------------------------------------------------------------------------------------------------

    def _launch(self, kernel: triton.JITFunction, grid: tuple[int, ...], args: tuple[Any, ...], options: Any) -> Any:
        site = self._site(self._sites, kernel)
        arguments = site.key(args) if site.supported else None
        runtime = triton_knobs.runtime
        if (
            arguments is None
            or kernel.pre_run_hooks
            or getattr(runtime, "add_stages_inspection_hook", None) is not None
        ):
            return self.ordinary(kernel, grid, *args, **options)
        device = torch.cuda.current_device()
        key = (device, *_modes(kernel), *options.items(), *arguments)
        entry = site.entries.get(key)
        if entry is None:
            types = None
            if c_launchers.are_needed():
                types = offline.argument_types(kernel, _signature(site, args), self.target)
                c_launchers.begin(types)
            digest.wait()
            with TRITON_LOCK, offline.said_when_slow(kernel, options):
                if self.target.has("wgmma"):  # checked before it is launched
                    offline.check(_compiled(kernel.run(*args, grid=grid, warmup=True, **options)), self.target)
                c_launchers.wait(types)
                compiled = kernel.run(*args, grid=grid, warmup=False, **options)
            found = _entry(kernel, compiled, device)
            if found is None:
                self.dead = compiled is not None  # None: a hook of Triton's handled the compilation
                return None
            site.entries[key] = found
            site.last = (arguments, args_seen(site, args), found)
            return None
        if not entry.globals_current():
            return self.ordinary(kernel, grid, *args, **options)  # it reports the change
        site.last = (arguments, args_seen(site, args), entry)
        x, y, z = (*grid, 1, 1)[:3]
        stream = entry.current_stream(device)
        enter, leave = _wanted(runtime.launch_enter_hook), _wanted(runtime.launch_exit_hook)
        metadata = None if enter is None and leave is None else entry.compiled.launch_metadata(grid, stream, *args)
        pointers = [a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args]
        entry.run(x, y, z, stream, entry.function, entry.packed, metadata, enter, leave, *pointers)
        return None

    # --- without a driver
    # ------------------------------------------------------------------------------------------------

    def _launch_stub(
        self, kernel: triton.JITFunction, grid: tuple[int, ...], args: tuple[Any, ...], options: Any
    ) -> None:
        if self._stub_changes != stub.changes():
            self._stubs, self._stub_changes = {}, stub.changes()
        site = self._site(self._stubs, kernel)
        arguments = site.key(args)
        if arguments is None:
            kinds = ", ".join(type(a).__name__ for a in args)
            raise TypeError(
                f"kernel {kernel.__name__!r}: stub_driver() takes plain tensors and numbers, got arguments of types {kinds}"
            )
        entry = site.entries.get(arguments)
        if entry is None:
            binary = (id(kernel), *options.items(), *arguments)
            if binary not in self._offline:
                self._offline[binary] = offline.compile_offline(
                    kernel, signature=_signature(site, args), target=self.target, options=dict(options)
                )
            entry = site.entries[arguments] = _stub_entry(site, self._offline[binary], arguments)
        site.last = (arguments, args_seen(site, args), entry)
        assert entry.direct is not None
        entry.direct.launch(*(*grid, 1, 1)[:3])


def launcher(ordinary: Callable[..., Any], target: Target) -> Callable[..., Any]:
    """Return the launcher of a compiled config; with ``HELION_SKIP_FAST_LAUNCHER=1`` that is ``ordinary``."""
    return ordinary if knobs.SKIP_FAST_LAUNCHER.read() else FastLauncher(ordinary, target)


def launch_stub(
    kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: Mapping[str, Any], target: str
) -> None:
    """Record a launch inside ``stub_driver()`` that no bound kernel made, compiled for the named target."""
    _unbound(target)(kernel, grid, *args, **options)


@functools.cache
def _unbound(target: str) -> FastLauncher:
    return FastLauncher(launch_stub, hardware.target(target))


def args_seen(site: Site, args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the constants among the arguments of a launch, by position; None for the others, which may be large."""
    return tuple(a if p.constexpr else None for a, p in zip(args, site.parameters, strict=True))


def _understood(kernel: Any) -> bool:
    return isinstance(kernel, triton.JITFunction) and torch.version.hip is None


def _modes(kernel: triton.JITFunction) -> tuple[Any, Any, Any]:
    compilation = triton_knobs.compilation
    return (
        kernel.debug or triton_knobs.runtime.debug,
        compilation.instrumentation_mode,
        getattr(compilation, "fpsan_homomorphic_casts", None),
    )


def _wanted(hook: Any) -> Any:
    """Return a launch hook, or None for an empty chain."""
    return None if hook is None or getattr(hook, "calls", None) == [] else hook


def _compiled(result: Any) -> Any:
    """Return the binary of a result of ``JITFunction.run``, which another thread may compile."""
    wait = getattr(result, "result", None)
    return wait() if callable(wait) and not hasattr(type(result), "run") else result


def _entry(kernel: triton.JITFunction, compiled: Any, device: int) -> Entry | None:
    """Return the entry of a result of ``JITFunction.run``, or None if it is not of a supported Triton."""
    compiled = _compiled(compiled)
    run = getattr(compiled, "run", None)
    function, packed = getattr(compiled, "function", None), getattr(compiled, "packed_metadata", None)
    used = getattr(kernel, "used_global_vals", None)
    current_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if not callable(run) or function is None or packed is None or not isinstance(used, dict) or current_stream is None:
        return None
    return Entry(
        compiled=compiled,
        run=run,
        direct=_direct(run),
        binary=native.binary(compiled, run, function),
        function=function,
        packed=packed,
        current_stream=current_stream,
        current_device=torch._C._cuda_getDevice if torch.cuda.device_count() > 1 else None,
        device=device,
        globals_used=_globals_used(kernel),
    )


def _globals_used(kernel: triton.JITFunction) -> tuple[tuple[Mapping[str, Any], str, Any], ...]:
    return tuple((namespace, name, value) for (name, _), (value, namespace) in kernel.used_global_vals.items())


#: Attributes of Triton's launcher object from 3.7 on, without scratch memory or instrumentation.
_DIRECT_PARTS = ("launch", "arg_annotations", "kernel_signature", "launch_cooperative_grid", "launch_pdl")


def _direct(run: Any) -> Direct | None:
    if type(run).__name__ != "CudaLauncher" or not all(hasattr(run, part) for part in _DIRECT_PARTS):
        return None
    if run.global_scratch_size or run.profile_scratch_size or getattr(run, "gsan_enabled", False):
        return None
    generic: Any = getattr(getattr(triton.runtime.driver.active, "utils", None), "launch", None)
    if run.launch is not generic:  # wrapped: host tensor descriptors are expanded in Python
        return None
    return Direct(
        launch=generic,
        cooperative=run.launch_cooperative_grid,
        pdl=run.launch_pdl,
        annotations=run.arg_annotations,
        signature=run.kernel_signature,
    )


def _stub_entry(site: Site, compiled: Any, arguments: Key) -> Entry:
    """Return the entry of a binary that is never loaded: its launch is only recorded."""
    on_device = (p for p, part in zip(site.parameters, arguments, strict=True) if not p.constexpr and not _is_one(part))
    record = stub.recorder(compiled.name, sum(1 for _ in on_device))
    return Entry(
        compiled=compiled,
        run=record,
        direct=Direct(launch=record, cooperative=False, pdl=False, annotations=(), signature=b""),
        binary=native.stub_binary(compiled, record),
        function=0,
        packed=compiled.packed_metadata,
        current_stream=stub.no_stream,
        current_device=None,
        device=0,
        globals_used=_globals_used(site.kernel),
    )


def _is_one(part: Any) -> bool:
    """Return whether Triton compiles the argument in, by its part of a key: integers equal to 1, and None."""
    return part is type(None) or (isinstance(part, tuple) and part[1:2] == (True,) and part[0] in ("i32", "i64", "u64"))


def _signature(site: Site, args: Sequence[Any]) -> offline.Signature:
    """Return the signature that a launch with these arguments would compile for."""
    types: dict[str, str] = {}
    constexprs: dict[str, Any] = {}
    divisible: set[str] = set()
    equal_to_one: set[str] = set()
    small: set[str] = set()
    for value, parameter in zip(args, site.parameters, strict=True):
        name = parameter.name
        if parameter.constexpr or value is None:
            types[name], constexprs[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            types[name] = f"*{canonicalize_dtype(value.dtype)}"
            if value.data_ptr() & 15 == 0:
                divisible.add(name)
            if value.untyped_storage().nbytes() < _INT32:
                small.add(name)
        elif isinstance(value, bool):
            types[name] = "u1"
        elif isinstance(value, int):
            found = integer_class(value, parameter.specialized)
            assert found is not None
            types[name] = found[0]
            if found[1]:
                equal_to_one.add(name)
            if found[2]:
                divisible.add(name)
        else:
            types[name] = "fp32"
    return offline.Signature(
        types=types,
        constexprs=constexprs,
        divisible=frozenset(divisible),
        equal_to_one=frozenset(equal_to_one),
        small_pointers=frozenset(small),
    )
