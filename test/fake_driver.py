"""A stand-in for CUDA's driver library: launches arrive in Python, as CUDA's own header reads what was passed."""

from __future__ import annotations

import ctypes
import dataclasses
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import triton

SOURCE = """
#include <cuda.h>
#include <stdint.h>

typedef int (*Receiver)(const uint64_t *, void **);
static Receiver receiver;
static CUcontext context;

void fake_set(Receiver given, uint64_t current) { receiver = given; context = (CUcontext)current; }

CUresult cuCtxGetCurrent(CUcontext *out) { *out = context; return CUDA_SUCCESS; }

CUresult cuGetErrorString(CUresult code, const char **text) { *text = "out of fake memory"; return CUDA_SUCCESS; }

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **params, void **extra) {
  uint64_t flat[64] = {c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
                       c->sharedMemBytes, (uint64_t)c->hStream, (uint64_t)function, extra != 0, c->numAttrs};
  uint64_t *next = flat + 11;
  for (unsigned i = 0; i < c->numAttrs; ++i) {
    const CUlaunchAttributeValue *value = &c->attrs[i].value;
    *next++ = c->attrs[i].id;
    uint64_t x = 0, y = 0, z = 0;
    switch (c->attrs[i].id) {
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
      x = value->programmaticStreamSerializationAllowed; break;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: x = value->cooperative; break;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
      x = value->clusterDim.x; y = value->clusterDim.y; z = value->clusterDim.z; break;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: x = value->clusterSchedulingPolicyPreference; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    *next++ = x; *next++ = y; *next++ = z;
  }
  return (CUresult)receiver(flat, params);
}
"""

PDL, COOPERATIVE, CLUSTER, SPREAD = 6, 2, 4, 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Received:
    """One launch. ``attributes`` are (id, x, y, z) in order; ``parameter(i)`` gives eight bytes at a parameter."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    stream: int
    function: int
    attributes: tuple[tuple[int, ...], ...]
    parameter: Callable[[int], bytes]


class FakeDriver:
    """The library at ``path``, built in ``folder``; ``result`` is what launches return, CUDA's success being 0."""

    def __init__(self, folder: Path) -> None:
        source, self.path = folder / "fake_driver.c", str(folder / "libfakecuda.so")
        source.write_text(SOURCE)
        include = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
        compiler = shutil.which("gcc") or shutil.which("clang")
        assert compiler is not None, "Triton needs a C compiler, too"
        subprocess.run([compiler, "-shared", "-fPIC", f"-I{include}", str(source), "-o", self.path], check=True)
        self.result = 0
        self.on_launch: Callable[[Received], None] = lambda received: None
        self._receiver = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_void_p)
        )(self._receive)
        self._library = ctypes.CDLL(self.path)
        self.set_context(1)

    def set_context(self, context: int) -> None:
        """What ``cuCtxGetCurrent`` gives; 0 for none."""
        self._library.fake_set(self._receiver, ctypes.c_uint64(context))

    def _receive(self, flat: ctypes._Pointer[ctypes.c_uint64], params: ctypes._Pointer[ctypes.c_void_p]) -> int:
        assert flat[9] == 0
        attributes = [tuple(flat[11 + 4 * i : 15 + 4 * i]) for i in range(flat[10])]

        def parameter(at: int) -> bytes:
            address = params[at]
            assert address is not None
            return ctypes.string_at(address, 8)

        if self.result == 0:
            self.on_launch(
                Received(
                    grid=tuple(flat[0:3]),
                    block=tuple(flat[3:6]),
                    shared=flat[6],
                    stream=flat[7],
                    function=flat[8],
                    attributes=tuple(attributes),
                    parameter=parameter,
                )
            )
        return self.result
