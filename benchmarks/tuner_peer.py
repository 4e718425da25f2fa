"""Tunes one kernel of a file with whatever ``helion`` the interpreter has, and prints its microseconds as JSON.

    python benchmarks/tuner_peer.py KERNELS.py NAME SECONDS

Only what every version of the public interface has is used: the decorator, ``bind``, ``autotune`` and a call.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

FLUSH_BYTES = 256 * 2**20
RUNS = 15


def main(path: str, name: str, seconds: str) -> dict[str, Any]:
    """Seconds and microseconds of one tuning."""
    os.environ["HELION_AUTOTUNE_BUDGET_SECONDS"] = str(int(float(seconds)))
    os.environ["HELION_SKIP_CACHE"] = "1"
    _complete_torch()
    spec = importlib.util.spec_from_file_location("tuner_kernels", path)
    assert spec is not None and spec.loader is not None
    kernels = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = kernels
    spec.loader.exec_module(kernels)
    args = kernels.arguments(name, "cuda")
    bound = getattr(kernels, name).bind(args)
    began = time.perf_counter()
    config = bound.autotune(args, force=True)
    took = time.perf_counter() - began
    bound.set_config(config)
    return {"seconds": took, "microseconds": _microseconds(lambda: bound(*args)), "config": repr(config)}


def _complete_torch() -> None:
    """Defines a name that some versions import from torch and torch 2.11 does not have."""
    compat: Any = importlib.import_module("torch._inductor.runtime.triton_compat")
    if not hasattr(compat, "IntelGPUError"):
        compat.IntelGPUError = type("IntelGPUError", (Exception,), {})


def _microseconds(function: Callable[[], Any]) -> float:
    """Device time between two events in a graph, L2 overwritten before each run; as ``benchmarks/timing.py``."""
    torch: Any = importlib.import_module("torch")
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    start, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        flush.zero_()
        start.record()
        function()
        end.record()
    times = []
    for at in range(100 + RUNS):  # the first ones warm the device up
        graph.replay()
        torch.cuda.synchronize()
        if at >= 100:
            times.append(1e3 * start.elapsed_time(end))
    return statistics.median(times)


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:4])))
