"""A stand-in for CUDA's runtime library: what shared objects of the cute backend call arrives in Python."""

from __future__ import annotations

import ctypes
import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

SOURCE = """
#include <stdint.h>
#include <stddef.h>
#include <string.h>

typedef struct { int32_t id; char padding[4]; uint32_t value[16]; } Attribute;
typedef struct {
  uint32_t grid[3]; uint32_t block[3]; size_t shared; void *stream; Attribute *attributes; uint32_t count;
} Configuration;
typedef int (*Receiver)(const uint64_t *, void **);
static Receiver receiver;
static int clusters, loads;
static char found_name[1024];

void fake_set(Receiver given, int resident) { receiver = given; clusters = resident; }
int fake_loads(void) { return loads; }
const char *fake_found(void) { return found_name; }

static void flatten(const Configuration *c, uint64_t *flat) {
  uint64_t numbers[] = {c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared,
                        (uint64_t)c->stream, 1};
  memcpy(flat, numbers, sizeof numbers);
  for (uint32_t i = 0; i < c->count; ++i)
    if (c->attributes[i].id == 4) flat[8] = c->attributes[i].value[0];
}
int cudaLaunchKernelExC(const Configuration *c, const void *f, void **arguments) {
  uint64_t flat[9];
  flatten(c, flat);
  return receiver(flat, arguments);
}
int cudaOccupancyMaxActiveClusters(int *found, void *kernel, const Configuration *c) { *found = clusters; return 0; }
int cudaLibraryEnumerateKernels(void **kernel, unsigned n, void *library) {
  *kernel = (void *)1; strcpy(found_name, "the only one"); return 0;
}
int cudaLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f) {
  *library = (void *)2; ++loads; return 0;
}
int cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  *kernel = (void *)1; strncpy(found_name, name, sizeof found_name - 1); return 0;
}
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaGetDeviceCount(int *count) { *count = 1; return 0; }
int cudaDriverGetVersion(int *version) { *version = 13000; return 0; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 97 ? 232448 : attribute == 75 ? 9 : attribute == 76 ? 0 : 132; return 0;
}
const char *cudaGetErrorName(int error) { return "fake"; }
const char *cudaGetErrorString(int error) { return "out of fake memory"; }
static int zero(void) { return 0; }
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned v, unsigned long long f, int *status) {
  *function = (void *)zero; if (status) *status = 0; return 0;
}
"""


DESCRIPTOR_BYTES = 128
"""Of a tensor map, which launches pass by value."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Received:
    """One launch; ``parameters`` are the bytes at the first parameters that were passed."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    stream: int
    cluster: int
    parameters: tuple[bytes, ...]


class FakeRuntime:
    """The library, built in ``folder`` with all that the shared object at ``user`` asks of CUDA, and visible to it and to
    all that are loaded later: one serves a process. ``parameters`` are looked at of each launch."""

    def __init__(self, folder: Path, user: Path, clusters: int, parameters: int) -> None:
        asked = subprocess.run(["nm", "-D", str(user)], capture_output=True, text=True, check=True).stdout
        missing = set(re.findall(r" U (cuda\w+)", asked)) - set(re.findall(r"\b(cuda\w+)\(", SOURCE))
        text = SOURCE + "".join(f"int {name}(void) {{ return 0; }}\n" for name in sorted(missing))
        source, self.path = folder / "fake_cudart.c", folder / "libfakecudart.so"
        source.write_text(text)
        compiler = shutil.which("gcc") or shutil.which("clang")
        assert compiler is not None, "the kernels themselves are linked with a C compiler"
        subprocess.run([compiler, "-shared", "-fPIC", "-w", str(source), "-o", str(self.path)], check=True)
        self.result = 0
        self.parameters = parameters
        self.launches: list[Received] = []
        self._receiver = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_void_p)
        )(self._receive)
        self._library = ctypes.CDLL(str(self.path), mode=ctypes.RTLD_GLOBAL)
        self._library.fake_found.restype = ctypes.c_char_p
        self._library.fake_set(self._receiver, clusters)

    @property
    def found(self) -> str:
        """The name of the kernel that was found last, or that it is the only one."""
        return self._library.fake_found().decode()

    @property
    def loads(self) -> int:
        """How often a binary was loaded."""
        return self._library.fake_loads()

    def _receive(self, flat: ctypes._Pointer[ctypes.c_uint64], params: ctypes._Pointer[ctypes.c_void_p]) -> int:
        def at_parameter(at: int) -> bytes:
            address = params[at]
            assert address is not None
            return ctypes.string_at(address, DESCRIPTOR_BYTES)

        if self.result == 0:
            self.launches.append(
                Received(
                    grid=tuple(flat[0:3]),
                    block=tuple(flat[3:6]),
                    shared=flat[6],
                    stream=flat[7],
                    cluster=flat[8],
                    parameters=tuple(map(at_parameter, range(self.parameters))),
                )
            )
        return self.result
