"""Runs exported kernels once each under compute-sanitizer and compares what they give with fp32.

    python sanitize_on_gpu.py FOLDER [--tool TOOL] [--seconds N] [NAME ...]

The process that is watched has nothing of CUDA but the kernel: torch's own kernels would be watched too, which takes minutes.
Prints one line of JSON per kernel; a kernel on which the tool takes longer than ``--seconds`` is given up.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from run_on_gpu import Kernel, allowed, compare, ctas_of, inputs, launch_numbers, parts

RUNTIME = "libcudart.so.13"
TO_DEVICE, TO_HOST = 1, 2
MULTIPROCESSORS = 16
"""``cudaDevAttrMultiProcessorCount``."""
FOUND = 9
"""The exit status that the tool is told to give where it finds something."""


# The process that is watched: no torch ---------------------------------------------------------------------------------------


class Memory:
    """Bytes on the device."""

    def __init__(self, runtime: ctypes.CDLL, size: int) -> None:
        self.runtime = runtime
        self.size = size
        self.address = ctypes.c_void_p(0)
        self._check(runtime.cudaMalloc(ctypes.byref(self.address), ctypes.c_size_t(size)))

    def data_ptr(self) -> int | None:
        return self.address.value

    def write(self, values: bytes) -> None:
        self._copy(self.address, ctypes.c_char_p(values), TO_DEVICE)

    def read(self) -> bytes:
        values = ctypes.create_string_buffer(self.size)
        self._copy(values, self.address, TO_HOST)
        return values.raw

    def _copy(self, target: Any, source: Any, way: int) -> None:
        self._check(self.runtime.cudaMemcpy(target, source, ctypes.c_size_t(self.size), ctypes.c_int(way)))

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise RuntimeError(f"CUDA error {status}")


def watched(folder: Path, name: str, plan: dict[str, Any], files: list[Path], runtime_path: str) -> None:
    """Launches a kernel with the tensors in `files`, which it overwrites with what they have become."""
    runtime = ctypes.CDLL(runtime_path, mode=ctypes.RTLD_GLOBAL)
    if runtime.cudaSetDevice(ctypes.c_int(0)) or runtime.cudaFree(None):
        raise RuntimeError("no CUDA device")
    kernel = Kernel(folder, name, plan)
    if plan["ctas_per_sm"] > 1:
        kernel.share_sms(runtime)
    contents = [file.read_bytes() for file in files]
    memories = [Memory(runtime, len(each)) for each in contents]
    space = [Memory(runtime, plan["workspace_bytes"])] if plan["workspace_bytes"] else []
    for memory, values in zip(memories, contents, strict=True):
        memory.write(values)
    for each in space:
        each.write(bytes(each.size))
    sms = ctypes.c_int(0)
    runtime.cudaDeviceGetAttribute(ctypes.byref(sms), ctypes.c_int(MULTIPROCESSORS), ctypes.c_int(0))
    clusters, _ = kernel.clusters(runtime, max(1, sms.value // ctas_of(plan)))
    kernel.launcher(memories, clusters, 0, launch_numbers(plan), space)()
    status = runtime.cudaDeviceSynchronize()
    if status:
        raise RuntimeError(f"CUDA error {status}")
    for memory, file in zip(memories, files, strict=True):
        file.write_bytes(memory.read())


# The process that compares ---------------------------------------------------------------------------------------------------


def runtime_library() -> str:
    """The CUDA runtime of torch's packages, else the system's."""
    found = importlib.util.find_spec("nvidia")
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        for path in Path(place).glob(f"*/lib/{RUNTIME}"):
            return str(path)
    return RUNTIME


def bytes_of(tensor: Any, torch: Any) -> bytes:
    """Of the tensor's memory, in its own order."""
    lines = tensor if tensor.is_contiguous() else tensor.t()
    return bytes(lines.contiguous().view(torch.uint8).numpy().tobytes())


def filled(tensor: Any, values: bytes, torch: Any) -> None:
    lines = tensor if tensor.is_contiguous() else tensor.t()
    lines.copy_(torch.frombuffer(bytearray(values), dtype=tensor.dtype).view(lines.shape))


def sanitize(name: str, plan: dict[str, Any], options: argparse.Namespace, torch: Any) -> dict[str, Any]:
    """What the tool said of one launch, and whether its results are right."""
    tensors = inputs(plan, torch, device="cpu")
    for output in parts(plan, tensors)[2]:
        output.view(torch.uint8).fill_(255)  # not a number, or -1
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        files = [Path(place) / f"{at}.bin" for at in range(len(tensors))]
        for file, tensor in zip(files, tensors, strict=True):
            file.write_bytes(bytes_of(tensor, torch))
        command = [
            "compute-sanitizer",
            "--tool",
            options.tool,
            "--error-exitcode",
            str(FOUND),
            sys.executable,
            __file__,
        ]
        command += [str(options.folder), name, "--watched", runtime_library(), *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=options.seconds)
        for file, tensor in zip(files, tensors, strict=True):
            filled(tensor, file.read_bytes(), torch)
    error, columns, bad = compare(plan, tensors, torch)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "SUMMARY" in line or "rror" in line]
    return {
        "name": name,
        "tool": options.tool,
        "ok": done.returncode == 0 and bad == 0 and error < allowed(plan) and columns < 1,
        "status": done.returncode,
        "not_finite": bad,
        "row_error": float(f"{error:.3g}"),
        "column_error_of_allowed": float(f"{columns:.3g}"),
        "seconds": round(time.monotonic() - start, 1),
        "said": said[:12],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tool", choices=("memcheck", "racecheck", "synccheck", "initcheck"), default="memcheck")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--watched", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    plans = json.loads((options.folder / "plans.json").read_text())
    if options.watched:
        runtime, *files = options.watched
        (name,) = options.names
        watched(options.folder, name, plans[name], [Path(file) for file in files], runtime)
        return
    import torch

    for name in options.names or list(plans):
        try:
            row = sanitize(name, plans[name], options, torch)
        except subprocess.TimeoutExpired:
            row = {"name": name, "tool": options.tool, "ok": False, "error": f"not done in {options.seconds} s"}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
