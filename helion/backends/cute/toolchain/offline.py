"""Compiles a printed module for its target. The DSL is imported here, when it is needed."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import tempfile
import types
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .... import exc
from ...execution import CompileError
from ..codegen.module import ENTRY, pointer_dtypes
from ..plan.dtypes import DTYPES, NUMBER, PITCH, SIZE
from ..plan.records import GemmPlan

ARCHITECTURES = {"wgmma": "sm_90a", "tcgen05": "sm_100a"}
"""The architectures whose own instructions the kernels of a matrix unit use."""
DISTRIBUTION = "nvidia-cutlass-dsl"
ALIGNMENT_BYTES = 16
"""Of every pointer, which launching checks."""
MISSING = (
    "The cute backend compiles its kernels with NVIDIA's CuTe DSL, which is not installed here ({reason}); install it with"
    " pip install 'helion-tiles[cute]'. Kernels that are in the cache run without it."
)


class ToolMissing(exc.CuteBackendUnavailable, CompileError):
    """Something that compiles kernels is not installed; the message says what, and how to get it."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """``kernel`` is the DSL's object, which launches where there is a GPU."""

    kernel: Any
    cubin: bytes
    ptx: str


def compile_text(text: str, plan: GemmPlan) -> Compiled:
    """The module of `plan` compiled, in 0.3 to 3 s. Raises ``ToolMissing``."""
    return compile_source(text, plan.unit, pointer_dtypes(plan))


def compile_source(text: str, unit: str, pointers: Sequence[str]) -> Compiled:
    """A printed module compiled for a matrix unit; ``pointers`` are those of a ``GemmKernel``."""
    dsl = _dsl()
    from cutlass.cute.runtime import make_fake_stream, make_ptr

    # The DSL reads the source of what it compiles again, and of binaries it keeps files that it reads back in time.
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = _load(Path(folder) / "gemm_module.py", text)
        numbers = {NUMBER: dsl.Float32(1.0), SIZE: dsl.Int32(1), PITCH: dsl.Int64(1)}
        arguments = [
            numbers[dtype]
            if dtype in numbers
            else make_ptr(getattr(dsl, DTYPES[dtype].dsl), 4096, dsl.AddressSpace.gmem, assumed_align=ALIGNMENT_BYTES)
            for dtype in pointers
        ]
        options = f"--gpu-arch {ARCHITECTURES[unit]} --keep-ptx --keep-cubin --dump-dir {folder}"
        kernel = dsl.cute.compile(getattr(module, ENTRY), *arguments, dsl.Int32(1), make_fake_stream(), options=options)
        return Compiled(kernel=kernel, cubin=bytes(kernel.__cubin__), ptx=str(kernel.__ptx__))


def runtime_libraries() -> list[str]:
    """The DSL's shared libraries that compiled kernels call, without those of TVM. Raises ``ToolMissing``."""
    _dsl()
    from cutlass import runtime

    return list(runtime.find_runtime_libraries(enable_tvm_ffi=False))


@functools.cache
def installed_version() -> str:
    """Of the DSL, by what pip has noted, which takes a millisecond; "" where it is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""


def dsl_version() -> str:
    """Raises ``ToolMissing``."""
    return str(_dsl().__version__)


def _dsl() -> Any:
    try:
        import cutlass
        import cutlass.cute
    except ImportError as error:
        raise ToolMissing(MISSING.format(reason=error)) from error
    return cutlass


def _load(path: Path, text: str) -> types.ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
