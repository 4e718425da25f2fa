"""Compile a Triton kernel for a GPU that is not present, with Triton's own compiler and the real ``ptxas`` or LLVM.

No driver is used and nothing is launched. Compilations run one at a time, under the process's Triton lock, except those
of ``together``.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import functools
import gc
import os
import pathlib
import re
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from .... import knobs
from ...._support import files as _files
from ...._support import logs
from ...._support.lazy import lazy
from ...._support.locks import TRITON_LOCK, is_held_elsewhere, new_lock, recover
from ...._support.terms import Terms
from ....hardware import Target
from ...execution import CompileError
from . import stages
from .descriptors import check_descriptors
from .ending import Ending, ending_assembler
from .narrow import check_narrow

if TYPE_CHECKING:
    import triton
    from triton.backends.compiler import BaseBackend, GPUTarget
    from triton.compiler import CompiledKernel

    from . import digest
else:
    digest = lazy("helion.backends.triton.toolchain.digest")

_DETAIL_LINES = 10

T = TypeVar("T")


class OfflineCompileError(CompileError):
    """Triton or ``ptxas`` rejected a kernel. ``__cause__`` is the original error, with the whole message."""

    template = "Kernel {kernel!r} does not compile for {target} with options {options}:\n{detail}"

    def __getattr__(self, name: str) -> Any:
        """Return ``kernel``, ``target``, ``options`` or ``detail``."""
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signature:
    """The facts that Triton specializes a kernel on, by argument name, as a launch derives them from its arguments."""

    types: Mapping[str, str]
    """Triton's type of every argument: ``*bf16``, ``i32``, ``fp32`` ... An entry may be left out for the rest."""
    constexprs: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Value of every ``tl.constexpr`` argument (one with a default may be left out) and of arguments that are None."""
    divisible: frozenset[str] = frozenset()
    """Pointers aligned to 16 bytes, and integers that are multiples of 16."""
    equal_to_one: frozenset[str] = frozenset()
    """Integers equal to 1, which Triton compiles in."""
    small_pointers: frozenset[str] = frozenset()
    """Pointers to less than 2 GiB: AMD's backend uses buffer instructions for them. Without effect elsewhere."""


def compile_offline(
    fn: triton.JITFunction,
    *,
    signature: Mapping[str, str] | Signature,
    constexprs: Mapping[str, object] | None = None,
    divisible: Iterable[str] = (),
    equal_to_one: Iterable[str] = (),
    small_pointers: Iterable[str] = (),
    target: Target,
    options: Mapping[str, object] | None = None,
    seconds: float | None = None,
) -> CompiledKernel:
    """Compile `fn` for `target`; the result's ``asm`` and ``metadata`` are Triton's, and so is the cache on disk.

    `signature` is a whole ``Signature``, or its ``types`` with the other fields as separate arguments. `options` are
    Triton's (``num_warps``, ``num_stages``, ``maxnreg``, ``waves_per_eu`` ...). `fn` must be defined in a real file. A
    launch with equal facts and options finds the result in Triton's cache.

    `seconds` bound ``ptxas``, which is ended after that time of the whole compilation.

    Raises ``OfflineCompileError`` if Triton, LLVM or ``ptxas`` rejects the kernel, or if ``ptxas`` was ended or is known to
    compile it wrongly. It is also raised if there is no compiler for `target`. Raises ``ValueError`` for arguments or
    options that do not exist or are missing; ``TypeError`` if `fn` is not compilable. Too much shared memory is not an
    error: see ``resources.measure``. On a rejection Triton prints the kernel's whole PTX; that text is dropped. MLIR's own
    diagnostics go from C++ to the process's stderr and are not captured.
    """
    import triton  # 0.25 s

    if not isinstance(fn, triton.JITFunction):
        raise TypeError(
            f"compile_offline takes a function made by triton.jit, got {fn!r}; unset TRITON_INTERPRET if set."
        )
    if not isinstance(signature, Signature):
        signature = _signature(signature, constexprs or {}, divisible, equal_to_one, small_pointers)
    options = dict(options or {})
    refuse = functools.partial(OfflineCompileError, kernel=fn.__name__, target=str(target), options=options)
    if (reason := _no_compiler(target)) is not None:
        raise refuse(detail=reason)
    is_dropped = _begun(refuse)
    gpu = _gpu_target(target)
    _check_options(fn.__name__, options, gpu)
    source = _ast_source(fn, signature, gpu)
    digest.wait()
    # Only the exceptions of this one call into third-party code are translated. For kernels that it cannot handle,
    # Triton raises its own TritonError, but also ValueError, AssertionError, KeyError and RuntimeError (a failed pass).
    use_writable_cache()
    ending = Ending()
    assembler = ptxas_path(target) if target.kind == "cuda" else ""
    limit = seconds if assembler else None
    try:
        with (
            _alone(),
            said_when_slow(fn, options),
            ending_assembler(assembler, limit, is_dropped) as ending,
        ):
            compiled = triton.compile(source, target=gpu, options=options)
            check(compiled, target)
            return compiled
    except Exception as error:
        raise refuse(detail=_ended(seconds) if ending.ended else _tail(error)) from error


def _ended(seconds: float | None) -> str:
    return "ptxas was ended" if seconds is None else f"ptxas was ended after {seconds:g} s"


def _begun(refuse: Callable[..., OfflineCompileError]) -> Callable[[], bool] | None:
    """Begin a compilation, which is not left before its first stage; raise ``refuse`` if it is dropped.

    Return a function that says so later; None if nothing drops it.
    """
    terms = _terms()
    if terms is None:
        return None
    terms.outside.clear()  # before it asks: the thread that waits drops it, then looks at this
    if terms.dropped.is_set():
        raise refuse(detail="it was dropped before it began")
    return terms.dropped.is_set


def argument_types(fn: triton.JITFunction, signature: Signature, target: Target) -> tuple[str, ...]:
    """Return Triton's types of all arguments of a kernel; those compiled in are ``constexpr``."""
    return tuple(_ast_source(fn, signature, _gpu_target(target)).signature.values())


#: ``inside``: True in a thread whose compilations are under the lock that another thread holds for it, or held until it
#: left them. ``terms``: those on which they run. ``quiet``: True while the dump of a kernel's PTX is dropped.
_TOGETHER = threading.local()


def _terms() -> Terms | None:
    found: Terms | None = getattr(_TOGETHER, "terms", None)
    return found


@contextlib.contextmanager
def together() -> Iterator[Callable[..., Any]]:
    """Yield a function that calls another one, whose compilations run at the same time as those of other threads.

    Its second argument has their terms. From the first stage after a kernel has been parsed, a compilation is outside
    of Python for the most part.

    This thread holds Triton's lock for all of them. It must wait for their end, or drop them while they are outside: they
    then end before their next stage. Triton compiles in threads by itself (``triton.AsyncCompileMode``): a compilation
    has its own context of MLIR, and most of it runs outside of Python.
    """

    def run(function: Callable[[], T], terms: Terms | None = None) -> T:
        _TOGETHER.inside, _TOGETHER.terms = True, terms
        try:
            return function()
        finally:
            _TOGETHER.inside, _TOGETHER.terms = False, None

    with TRITON_LOCK, _without_ptx_dump(), _one_parse_at_a_time(), stages.ending_late(_terms):
        yield run


@contextlib.contextmanager
def _one_parse_at_a_time() -> Iterator[None]:
    """Let one thread at a time parse a kernel: ``ast.parse`` of CPython counts its depth for all threads together."""
    from triton.runtime.jit import JITCallable

    lock, original = new_lock(), JITCallable.parse

    def parse(self: Any) -> Any:
        with lock:
            return original(self)

    JITCallable.parse = parse
    try:
        yield
    finally:
        JITCallable.parse = original


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Exclude other compilations, unless this one is ``together`` with others."""
    if getattr(_TOGETHER, "inside", False):
        yield
        return
    with TRITON_LOCK, _without_ptx_dump():
        yield


def _signature(
    types: Mapping[str, str],
    constexprs: Mapping[str, object],
    divisible: Iterable[str],
    equal_to_one: Iterable[str],
    small_pointers: Iterable[str],
) -> Signature:
    return Signature(
        types=types,
        constexprs=constexprs,
        divisible=frozenset(divisible),
        equal_to_one=frozenset(equal_to_one),
        small_pointers=frozenset(small_pointers),
    )


def check(compiled: CompiledKernel | None, target: Target) -> None:
    """Raise ``MiscompiledError`` for a binary that ``ptxas`` compiles wrongly. None, which hooks of Triton's give, passes."""
    if compiled is not None and target.has("wgmma"):
        check_descriptors(compiled, ptxas_version(target))
        check_narrow(compiled, ptxas_version(target))


@functools.cache
def use_writable_cache() -> None:
    """Let Triton keep binaries in helion's cache where its own folder in the user's home is not writable."""
    import triton.knobs

    if knobs.TRITON_CACHE_DIR.read():
        return
    folder = pathlib.Path(triton.knobs.cache.dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        triton.knobs.cache.dir = str(_files.cache_dir() / "triton")


def said_when_slow(fn: triton.JITFunction, options: Mapping[str, object]) -> contextlib.AbstractContextManager[None]:
    """Name a kernel on stderr, with its tiles, while its compilation takes long, unless it is dropped."""
    terms = _terms()

    def text(seconds: int) -> str:
        if terms is not None and terms.dropped.is_set():
            return ""
        sizes = [f"{name.lstrip('_')}={value.value}" for name, value in _constants(fn)]
        name = fn.__name__.removeprefix("_helion_")
        tiles = f": tile {', '.join(sizes)}" if sizes else ""
        return f"helion: compiling `{name}` for {seconds} s{tiles}, num_warps={options.get('num_warps', 4)}; smaller tiles or more warps compile faster"

    return logs.saying_when_slow(text)


def _constants(fn: triton.JITFunction) -> list[tuple[str, Any]]:
    """Return the tile sizes that the module of a kernel defines."""
    return [
        (name, value) for name, value in fn.fn.__globals__.items() if name.startswith(("_BLOCK_SIZE_", "_RDIM_SIZE_"))
    ]


def compiler_of(target: Target) -> str:
    """Return Triton's version and its hash of the assembler for `target`, which is read once per process."""
    import triton

    return f"triton {triton.__version__} {_backend(_gpu_target(target)).hash()}"


def prepare(target: Target) -> None:
    """Read once the data that compilations for ``target`` need: the versions of ``ptxas`` and the digest of Triton's
    own files.
    """
    _no_compiler(target)
    digest.read()


def ptxas_version(target: Target | None = None) -> str:
    """Return the release of the ``ptxas`` that Triton uses for `target` (sm_80 if None), such as ``12.8``."""
    return str(_ptxas(80 if target is None else target.capability).version)


def ptxas_path(target: Target) -> str:
    """Return the path of the ``ptxas`` that Triton uses for `target`, a CUDA one."""
    return str(_ptxas(target.capability).path)


def ptxas_architecture(target: Target) -> str:
    """Return ``ptxas --gpu-name`` for `target`, a CUDA one: ``sm_80``, but ``sm_90a`` from 9.0 on."""
    from triton.backends.nvidia.compiler import sm_arch_from_capability

    return str(sm_arch_from_capability(target.capability))


def _ptxas(capability: int) -> Any:
    from triton.backends.nvidia.compiler import get_ptxas

    return get_ptxas(capability)


@functools.cache
def _ptxas_architectures(path: str) -> frozenset[str]:
    helped = subprocess.run([path, "--help"], capture_output=True, text=True, check=True).stdout
    return frozenset(re.findall(r"'(sm_\d+[af]?)'", helped))


def _no_compiler(target: Target) -> str | None:
    """Return the reason why this Triton cannot compile for `target`, or None.

    ``ptxas --help`` is checked first, because LLVM ends the whole process ("LLVM ERROR: Cannot select") on instructions
    for an architecture it does not support, such as sm_101.
    """
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget

    gpu = GPUTarget(target.kind, target.arch, target.warp_size)
    if not any(backend.compiler.supports_target(gpu) for backend in backends.values()):
        return f"This Triton has no {target.kind} backend (it has {', '.join(sorted(backends))}); install one that has."
    if target.kind == "cuda":
        ptxas, wanted = _ptxas(target.capability), ptxas_architecture(target)
        if wanted not in (known := _ptxas_architectures(ptxas.path)):
            known_text = ", ".join(sorted(known, key=lambda name: (len(name.rstrip("af")), name)))
            return f"ptxas {ptxas.version} of this Triton does not know {wanted}; compile for one of {known_text}."
    return None


def _gpu_target(target: Target) -> GPUTarget:
    from triton.backends.compiler import GPUTarget

    return GPUTarget(target.kind, target.arch, target.warp_size)


def _backend(gpu: GPUTarget) -> BaseBackend:
    from triton.compiler.compiler import make_backend

    return make_backend(gpu)


def _check_options(kernel: str, options: Mapping[str, object], gpu: GPUTarget) -> None:
    """Raise ``ValueError`` for misspelt options: ``triton.compile`` silently drops unknown ones."""
    known = vars(_backend(gpu).parse_options({}))
    if unknown := [name for name in options if name not in known]:
        raise ValueError(
            f"Triton's {gpu.backend} backend has no option {', '.join(map(repr, unknown))} for kernel {kernel!r}; "
            f"its options are {', '.join(sorted(known))}."
        )


def _ast_source(fn: triton.JITFunction, signature: Signature, gpu: GPUTarget) -> Any:
    """Return Triton's source object exactly as a launch makes it, so that both have one key in Triton's cache."""
    from triton.compiler import ASTSource

    named = {
        *signature.types,
        *signature.constexprs,
        *signature.divisible,
        *signature.equal_to_one,
        *signature.small_pointers,
    }
    if stray := sorted(named - set(fn.arg_names)):
        raise ValueError(
            f"kernel {fn.__name__!r} has no argument {', '.join(map(repr, stray))}; it has {fn.arg_names}."
        )
    backend = _backend(gpu)
    types: dict[str, str] = {}
    constants: dict[tuple[int], object] = {}
    attributes: dict[tuple[int], object] = {}
    for parameter in fn.params:
        name, at = parameter.name, (parameter.num,)
        types[name] = signature.types.get(name, "constexpr")
        if name in signature.equal_to_one:
            constants[at] = 1
        elif name in signature.constexprs:
            constants[at] = signature.constexprs[name]
        elif types[name] == "constexpr" and parameter.is_constexpr and parameter.has_default:
            constants[at] = parameter.default
        elif types[name] == "constexpr":
            raise ValueError(f"argument {name!r} of kernel {fn.__name__!r} has neither a type nor a constexpr value.")
        if at in constants:
            types[name] = "constexpr"
        facts = "D" * (name in signature.divisible) + "S" * (name in signature.small_pointers)
        if _has_attributes(parameter, types[name]):
            attributes[at] = backend.parse_attr("" if at in constants else facts)
    return ASTSource(fn, signature=types, constexprs=constants, attrs=attributes)


def _has_attributes(parameter: Any, type_name: str) -> bool:
    """Return whether a launch lists the argument's attributes, even empty ones; the list is in Triton's cache key."""
    import triton

    if type_name == "constexpr":
        return tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7)
    return not parameter.do_not_specialize and re.match(r"\*|[iu](8|16|32|64)$", type_name) is not None


@contextlib.contextmanager
def _without_ptx_dump() -> Iterator[None]:
    """Drop the whole-PTX dump that Triton prints before a PTXASError, and print everything else as before.

    Redirecting ``sys.stdout`` would capture other threads' output too. ``print`` of the one module of Triton that dumps
    is shadowed for good: a compilation may dump later, after this thread left it. A text is dropped only if it comes from this
    thread, or one ``together`` with others, and ends in that dump's last sentence.
    """
    from triton.backends.nvidia import compiler as nvidia

    vars(nvidia)["print"] = _print_but_no_dump
    before, _TOGETHER.quiet = getattr(_TOGETHER, "quiet", False), True
    try:
        yield
    finally:
        _TOGETHER.quiet = before


def _print_but_no_dump(*values: Any, **kwargs: Any) -> None:
    dump = any("please share the reproducer above" in str(value)[-200:] for value in values)
    if not (dump and (getattr(_TOGETHER, "quiet", False) or getattr(_TOGETHER, "inside", False))):
        builtins.print(*values, **kwargs)


def _free_functions() -> None:
    """Reset the locks under which Triton hashes functions, in a process that was forked while another thread
    compiled.
    """
    from triton.runtime.jit import JITFunction

    for each in gc.get_objects():
        lock = getattr(each, "_hash_lock", None) if type(each) is JITFunction else None
        if lock is not None and is_held_elsewhere(lock):
            lock._at_fork_reinit()


recover(TRITON_LOCK, _free_functions)


def _tail(error: BaseException) -> str:
    """Return the last lines of an error's message, without ptxas's command line, and of the error that it wraps."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip() and not line.startswith("Repro command")]
    lines = [line[:300] for line in lines[-_DETAIL_LINES:]] or ["(no message)"]
    cause = error.__cause__
    if cause is not None and str(cause).strip() and str(cause).strip().splitlines()[-1].rstrip()[:300] not in lines:
        lines.append(f"{type(cause).__name__}: {str(cause).strip().splitlines()[-1][:300]}")
    return "\n".join([f"{type(error).__name__}: {lines[0]}", *lines[1:]])
