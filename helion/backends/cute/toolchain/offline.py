"""Compiles a printed module for its target. The DSL is imported here, when it is needed."""

from __future__ import annotations

import importlib.util
import tempfile
import types
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..codegen.module import ENTRY
from ..plan.dtypes import DTYPES
from ..plan.records import GemmPlan

ARCHITECTURES = {"wgmma": "sm_90a", "tcgen05": "sm_100a"}
"""The architectures whose own instructions the kernels of a matrix unit use."""
ALIGNMENT_BYTES = 16
"""Of every pointer, which launching checks."""


class DslMissing(ImportError):
    """The CuTe DSL is not installed."""

    def __init__(self) -> None:
        super().__init__("the CuTe DSL is not installed; pip install 'helion[cute]' brings it")


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """``kernel`` is the DSL's object, which launches where there is a GPU."""

    kernel: Any
    cubin: bytes
    ptx: str


def compile_text(text: str, plan: GemmPlan) -> Compiled:
    """The module of `plan` compiled, in 0.3 to 3 s. Raises ``DslMissing``."""
    dsl = _dsl()
    from cutlass.cute.runtime import make_fake_stream, make_ptr

    # The DSL reads the source of what it compiles again, and of binaries it keeps files that it reads back in time.
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = _load(Path(folder) / "gemm_module.py", text)
        pointers = [
            make_ptr(getattr(dsl, DTYPES[dtype].dsl), 4096, dsl.AddressSpace.gmem, assumed_align=ALIGNMENT_BYTES)
            for dtype in pointer_dtypes(plan)
        ]
        options = f"--gpu-arch {ARCHITECTURES[plan.unit]} --keep-ptx --keep-cubin --dump-dir {folder}"
        kernel = dsl.cute.compile(getattr(module, ENTRY), *pointers, dsl.Int32(1), make_fake_stream(), options=options)
        return Compiled(kernel=kernel, cubin=bytes(kernel.__cubin__), ptx=str(kernel.__ptx__))


def pointer_dtypes(plan: GemmPlan) -> tuple[str, ...]:
    """Of A, B, D and the epilogue's operands: the pointers that ``ENTRY`` takes."""
    problem = plan.problem
    extra = (operand.dtype for operand in problem.epilogue.operands)
    return problem.operand_dtype, problem.operand_dtype, problem.output_dtype, *extra


def dsl_version() -> str:
    """Raises ``DslMissing``."""
    return str(_dsl().__version__)


def _dsl() -> Any:
    try:
        import cutlass
        import cutlass.cute
    except ImportError as error:
        raise DslMissing() from error
    return cutlass


def _load(path: Path, text: str) -> types.ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
