"""Build of one kernel as a shared object that runs without the DSL and needs only CUDA's runtime library."""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..plan.dtypes import NUMBER, PITCH, SEED, SIZE
from ..plan.workspace import COUNTER_BYTES, MAX_COUNTERS
from .errors import CompilationFailed, ToolMissing
from .kernel import NAME, GemmKernel
from .offline import Compiled, compile_source, runtime_libraries

COMPILERS = ("gcc", "cc", "clang", "g++")
TIMEOUT_SECONDS = 60

# No CUDA headers are needed for these calls: the layouts are those of its stable binary interface.
_SOURCE = """\
#include <stdint.h>
#include <stddef.h>

extern void module_init(void **, int32_t) __asm__("_mlir_{name}_cuda_init");
extern void module_load(void **, int32_t) __asm__("_mlir_{name}_cuda_load_to_device");
extern void entry(void **, int32_t) __asm__("{entry}");

typedef struct {{ int32_t id; char padding[4]; uint32_t value[16]; }} Attribute;
typedef struct {{
  uint32_t grid[3]; uint32_t block[3]; size_t shared; void *stream; Attribute *attributes; uint32_t count;
}} Configuration;
extern int cudaLibraryEnumerateKernels(void **, uint32_t, void *);
extern int cudaLibraryGetKernel(void **, void *, const char *);
extern int cudaOccupancyMaxActiveClusters(int *, void *, const Configuration *);

{declared}static void *library;

/* The name of the matmul if the library has other kernels. */
extern const char product_of_kernel[] __attribute__((weak, visibility("hidden")));

/* Finds the matmul, or the only kernel. */
static int find(void **kernel) {{
  if (product_of_kernel) return cudaLibraryGetKernel(kernel, library, product_of_kernel);
  return cudaLibraryEnumerateKernels(kernel, 1, library);
}}

/* Loads the kernel on a device. Calls must not overlap. */
int32_t helion_load(int32_t device) {{
  int32_t status = 0;
  void **handle = &library;
  if (!library) {{
    void *given[] = {{&handle, &status}};
    module_init(given, 2);
    if (status) return status;
  }}
  void *given[] = {{&handle, &device, &status}};
  module_load(given, 3);
{residents}  return status;
}}

/* The most clusters of the kernel that run at once on the current device; 0 if the driver does not say. */
int32_t helion_clusters(void) {{
  void *kernel = 0;
  int found = 0;
  if (find(&kernel)) return 0;
  Attribute attribute = {{.id = 4, .value = {{{ctas}, 1, 1}}}};
  Configuration configuration = {{
    {{{ctas}, 64, 1}}, {{{threads}, 1, 1}}, {shared}, 0, &attribute, 1,
  }};
  return cudaOccupancyMaxActiveClusters(&found, kernel, &configuration) ? 0 : found;
}}

/* Bytes of the workspace that a launch takes behind its tensors, none if 0. Its counters, the first {counter_bytes} bytes, are to be
   zero before the first launch; each launch leaves them so. Launches that may overlap need one each. */
int64_t helion_workspace(void) {{
  return {workspace};
}}

/* One launch: addresses of the tensors in device memory, or numbers, what only the launch knows of sizes and strides, the
   address of the workspace, clusters that run at once, the stream. 0 is success. */
int32_t helion_launch({parameters}int32_t clusters, void *stream) {{
  int32_t status = 0;
  void *given[] = {{{addresses}&clusters, &stream, &status}};
  entry(given, {count});
  return status;
}}
"""

#: The symbol of the DSL's export in the C functions, which are compiled before its name is known.
_ENTRY = "entry_of_kernel"
#: A name of a kernel, which is assembled when the binary has several.
_PRODUCT = """\
.section .rodata
.globl product_of_kernel
.hidden product_of_kernel
product_of_kernel: .asciz "{name}"
.section .note.GNU-stack,"",%progbits
"""
_KERNELS = re.compile(r"\.entry (kernel_cutlass_(\w+?)_\w+)\(")
_DECLARED = "extern int cudaKernelSetAttributeForDevice(void *, int, int, int);\n"
_RESIDENTS = """\
  /* All of an SM's memory is shared memory (attribute 9, percent): CTAs that share an SM fit no other way. */
  void *kernel = 0;
  if (!status) status = find(&kernel);
  if (!status) status = cudaKernelSetAttributeForDevice(kernel, 9, 100, device);
"""


def build_shared_object(kernel: GemmKernel) -> tuple[bytes, bytes]:
    """Compile and link a kernel; return the shared object and the binary for the GPU.

    Most of the time is the DSL's, to trace and to compile (measurement ``first_call_worst``).

    Raises ``ToolMissing`` without the DSL or without a C compiler, ``CompilationFailed`` if one of them fails.
    """
    compiler = _compiler()
    _load_runtime()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(1) as beside:
        folder = Path(name)
        functions = beside.submit(_compile, compiler, folder, source(kernel))
        compiled = _compiled(kernel)
        host = compiled.kernel.dump_to_object(NAME)
        (folder / f"{NAME}.o").write_bytes(host)
        symbol = launching_function(host)
        functions.result()
        return _link(compiler, folder, symbol, product_of_two(compiled.ptx)), compiled.cubin


def launching_function(host: bytes) -> str:
    """Return the symbol of the function that launches the kernel in the DSL's object of host code.

    The DSL's header of C, which also has it, would be made from a second copy of the module. Raises
    ``CompilationFailed`` unless the object has one such symbol.
    """
    found = set(re.findall(rf"\0(_mlir_{NAME}__mlir_ciface_\w+)(?=\0)".encode(), host))
    if len(found) != 1:
        raise CompilationFailed(f"the DSL exported {len(found)} functions that launch the kernel, not one")
    return found.pop().decode()


def product_of_two(ptx: str) -> str:
    """Return the name of the matmul kernel if a second kernel follows it; else ""."""
    entries = _KERNELS.findall(ptx)
    return next(name for name, short in entries if short == "kernel") if len(entries) > 1 else ""


def _compiled(kernel: GemmKernel) -> Compiled:
    try:
        return compile_source(kernel.source, kernel.unit, kernel.pointers, kernel.entry)
    except ToolMissing:
        raise
    except Exception as error:  # the DSL raises errors of many classes, and assertions
        raise CompilationFailed(f"the DSL failed: {type(error).__name__}: {error}") from error


def source(kernel: GemmKernel) -> str:
    """Return the C functions around the DSL's export, linked as ``_ENTRY``."""
    kinds = {NUMBER: "float ", SIZE: "int32_t ", PITCH: "int64_t ", SEED: "int64_t "}
    names = {f"p{at}": kinds.get(dtype, "void *") for at, dtype in enumerate(kernel.pointers)}
    return _SOURCE.format(
        name=NAME,
        entry=_ENTRY,
        ctas=kernel.ctas,
        threads=kernel.threads,
        shared=kernel.shared_bytes,
        workspace=kernel.workspace_bytes,
        counter_bytes=MAX_COUNTERS * COUNTER_BYTES,
        parameters="".join(f"{kind}{name}, " for name, kind in names.items()),
        addresses="".join(f"&{name}, " for name in names),
        count=len(names) + 3,
        declared=_DECLARED if kernel.ctas_per_sm > 1 else "",
        residents=_RESIDENTS if kernel.ctas_per_sm > 1 else "",
    )


def _compile(compiler: str, folder: Path, text: str) -> None:
    """Compile the C functions."""
    (folder / "launch.c").write_text(text)
    _run([compiler, "-c", "-fPIC", "-O1", "-o", str(folder / "launch.o"), str(folder / "launch.c")])


def _link(compiler: str, folder: Path, symbol: str, product: str) -> bytes:
    """Return the shared object of the C functions and the DSL's export ``symbol``; ``product`` names the first of two
    kernels."""
    (folder / "exports").write_text("{ global: helion_*; local: *; };")
    made = folder / f"{NAME}.so"
    command = [compiler, "-shared", "-o", str(made), str(folder / "launch.o"), f"-Wl,--defsym={_ENTRY}={symbol}"]
    command += ["-Wl,--whole-archive", str(folder / f"{NAME}.o"), "-Wl,--no-whole-archive"]
    if product:
        named = folder / "product.s"
        named.write_text(_PRODUCT.format(name=product))
        command.append(str(named))
    command += [*map(str, _static_libraries()), f"-Wl,--version-script={folder / 'exports'}"]
    _run(command)
    return made.read_bytes()


def _run(command: list[str]) -> None:
    """Run a C compiler. Raises ``CompilationFailed``."""
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if result.returncode:
        raise CompilationFailed(f"{command[0]} failed ({result.returncode}): {result.stderr.strip()}")


def _compiler() -> str:
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        raise ToolMissing(
            f"The cute backend links its kernels with a C compiler, and none of {', '.join(COMPILERS)} is in PATH; install gcc."
        )
    return found


def _static_libraries() -> list[Path]:
    """Return the static libraries. Symbols of CUDA's runtime stay undefined: the library that torch loads provides
    them."""
    shared = Path(runtime_libraries()[0])
    return [shared.with_name("libcuda_dialect_runtime_static.a")]


@functools.cache
def _load_runtime() -> None:
    """Load the DSL's runtime, which exported code links to during compilation; without a driver it is not loaded yet."""
    ctypes.CDLL(runtime_libraries()[0], ctypes.RTLD_GLOBAL)
