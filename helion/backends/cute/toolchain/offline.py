"""Compilation of a printed module for its target. The DSL is imported here, on first use."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import tempfile
import types
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..codegen.module import ENTRY, pointer_dtypes
from ..plan.dtypes import DTYPES, NUMBER, PITCH, SEED, SIZE
from ..plan.records import GemmPlan
from .errors import ToolMissing

ARCHITECTURES = {"wgmma": "sm_90a", "tcgen05": "sm_100a"}
"""The architecture-specific targets of each matrix unit."""
ALIGNMENT_BYTES = 16
"""Alignment of every pointer, which launches check."""
MISSING = (
    "The cute backend compiles its kernels with NVIDIA's CuTe DSL, which is not installed here ({reason}); install it with"
    " pip install 'helion-tiles[cute]'. Kernels that are in the cache run without it."
)


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A compiled module; ``kernel`` is the DSL's object, whose host code can be exported."""

    kernel: Any
    cubin: bytes
    ptx: str


def compile_text(text: str, plan: GemmPlan) -> Compiled:
    """Compile the module of `plan`, in 0.3 to 3 s. Raises ``ToolMissing``."""
    return compile_source(text, plan.unit, pointer_dtypes(plan))


def compile_source(text: str, unit: str, pointers: Sequence[str], entry: str = ENTRY) -> Compiled:
    """Compile a printed module for a matrix unit; ``pointers`` are those of a ``GemmKernel``, ``entry`` its host
    function."""
    dsl = _dsl()
    from cutlass.cute.runtime import make_fake_stream, make_ptr

    # The DSL reads the source again when it compiles, and writes binaries to files that it reads back.
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = _load(Path(folder) / "gemm_module.py", text)
        numbers = {NUMBER: dsl.Float32(1.0), SIZE: dsl.Int32(1), PITCH: dsl.Int64(1), SEED: dsl.Int64(1)}
        arguments = [
            numbers[dtype]
            if dtype in numbers
            else make_ptr(getattr(dsl, DTYPES[dtype].dsl), 4096, dsl.AddressSpace.gmem, assumed_align=ALIGNMENT_BYTES)
            for dtype in pointers
        ]
        options = f"--gpu-arch {ARCHITECTURES[unit]} --keep-ptx --keep-cubin --dump-dir {folder}"
        # the host code is exported, so no engine of LLVM compiles it as well
        kernel = dsl.cute.compile(
            getattr(module, entry), *arguments, dsl.Int32(1), make_fake_stream(), options=options, no_jit_engine=True
        )
        return Compiled(kernel=kernel, cubin=bytes(kernel.__cubin__), ptx=str(kernel.__ptx__))


def runtime_libraries() -> list[str]:
    """Return the DSL's shared libraries that compiled kernels call, without those of TVM. Raises ``ToolMissing``."""
    _dsl()
    from cutlass import runtime

    return list(runtime.find_runtime_libraries(enable_tvm_ffi=False))


def dsl_version() -> str:
    """Return the version of the imported DSL. Raises ``ToolMissing``."""
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
