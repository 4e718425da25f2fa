"""Launches the kernels that `export.py` compiled, checks them against fp32 and times them. Needs torch and a Hopper GPU.

    python run_on_gpu.py FOLDER [--seconds N] [--check-only] [--launches N] [--sizes N] [NAME ...]

Prints one line of JSON per kernel: the largest error of a row, whether runs differ, microseconds beside torch's. A
kernel that hangs is given up after a while, and the rest goes on in a new process. ``--launches 10000`` repeats each kernel
so often, and compares every result with the first one; kernels whose launches are given their sizes get so many of them,
drawn at random, in random order. `sanitize_on_gpu.py` runs kernels under compute-sanitizer.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FIRST_LINE_SECONDS = 60.0  # importing torch and making a context
SILENT_SECONDS = 20.0
FLUSH_BYTES = 256 << 20
REPEATS = 20
ROW_ERROR = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2, "float8_e4m3fn": 4e-2, "int8": 4e-2}
"""Of the norm of a row, against sums in fp32; outputs of less than 32 bits are rounded once."""
COLUMN_ERROR = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2, "int32": 1e-5, "int64": 1e-5}
"""Of the norm of a whole column of numbers per row; of a place in a row, how far its value may lie from the largest."""
IMPRECISE_ROW_ERROR = 0.1
"""Where 8-bit products are summed within the matrix unit alone, which keeps 14 bits."""
PROMOTED_ROW_ERROR = 1e-3
"""Where they leave it every few K tiles."""


COUNTER_BYTES = 4 * 4096
"""Of a workspace, at its start, which every launch leaves at zero."""


def ctas_of(plan: dict[str, Any]) -> int:
    """Of one cluster."""
    return plan["cluster"][0] * plan["cluster"][1] * plan["splits"]


# One process that runs kernels -----------------------------------------------------------------------------------------


class Kernel:
    """One shared object, loaded on device 0."""

    def __init__(self, folder: Path, name: str, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.library = ctypes.CDLL(str(folder / f"{name}.so"))
        self.entry = self.library[plan["symbol"]]
        self.handle = ctypes.c_void_p(0)
        handle, status = ctypes.pointer(self.handle), ctypes.c_int32(0)
        device = ctypes.c_int32(0)
        self._call(self.library[f"_mlir_{name}_cuda_init"], ctypes.pointer(handle), ctypes.pointer(status))
        load = self.library[f"_mlir_{name}_cuda_load_to_device"]
        if status.value == 0:
            self._call(load, ctypes.pointer(handle), ctypes.pointer(device), ctypes.pointer(status))
        if status.value:
            raise RuntimeError(f"loading returned {status.value}")

    def share_sms(self, runtime: ctypes.CDLL) -> None:
        """All of an SM's memory is shared memory (attribute 9), so that several CTAs fit."""
        kernel = ctypes.c_void_p(0)
        if self.find(kernel, runtime) or runtime.cudaKernelSetAttributeForDevice(kernel, 9, 100, 0):
            raise RuntimeError("the share of shared memory could not be set")

    def find(self, kernel: ctypes.c_void_p, runtime: ctypes.CDLL) -> int:
        """The kernel that multiplies, the only one unless the plan names it; gives CUDA's status."""
        if self.plan["product"]:
            name = self.plan["product"].encode()
            return runtime.cudaLibraryGetKernel(ctypes.byref(kernel), self.handle, ctypes.c_char_p(name))
        return runtime.cudaLibraryEnumerateKernels(ctypes.byref(kernel), ctypes.c_uint(1), self.handle)

    @staticmethod
    def _call(function: Any, *pointers: Any) -> None:
        array = (ctypes.c_void_p * len(pointers))(*(ctypes.cast(pointer, ctypes.c_void_p) for pointer in pointers))
        function(array, ctypes.c_int32(len(pointers)))

    def clusters(self, runtime: ctypes.CDLL, fallback: int) -> tuple[int, bool]:
        """The most clusters that run at once, and whether the driver said so."""

        class Attribute(ctypes.Structure):
            _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16)]

        class Configuration(ctypes.Structure):
            _fields_ = [
                ("grid", ctypes.c_uint * 3),
                ("block", ctypes.c_uint * 3),
                ("shared", ctypes.c_size_t),
                ("stream", ctypes.c_void_p),
                ("attributes", ctypes.POINTER(Attribute)),
                ("count", ctypes.c_uint),
            ]

        kernel, found = ctypes.c_void_p(0), ctypes.c_int(0)
        if self.find(kernel, runtime):
            return fallback, False
        ctas = ctas_of(self.plan)
        attribute = Attribute(id=4)  # cudaLaunchAttributeClusterDimension
        attribute.value[0], attribute.value[1], attribute.value[2] = ctas, 1, 1
        configuration = Configuration(
            (ctypes.c_uint * 3)(ctas, 64, 1),
            (ctypes.c_uint * 3)(self.plan["threads"], 1, 1),
            self.plan["shared_bytes"],
            None,
            ctypes.pointer(attribute),
            1,
        )
        failed = runtime.cudaOccupancyMaxActiveClusters(ctypes.byref(found), kernel, ctypes.byref(configuration))
        return (found.value, True) if not failed and found.value else (fallback, False)

    def launcher(
        self,
        tensors: list[Any],
        clusters: int,
        stream: int,
        numbers: tuple[Any, ...] = (),
        space: list[Any] | None = None,
    ) -> Callable[[], None]:
        """``numbers`` are those of ``launch_numbers``, ``space`` has the workspace, if there is one."""
        values: list[Any] = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        status = ctypes.c_int32(0)
        values += [*numbers, *(ctypes.c_void_p(tensor.data_ptr()) for tensor in space or ())]
        values += [ctypes.c_int32(clusters), ctypes.c_void_p(stream), status]
        array = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        number = ctypes.c_int32(len(values))

        def launch() -> None:
            self.entry(array, number)
            if status.value:
                raise RuntimeError(f"launching returned {status.value}")

        launch.values = values  # type: ignore[attr-defined]  # the array holds only their addresses
        return launch


def launch_numbers(plan: dict[str, Any]) -> tuple[Any, ...]:
    """Sizes and strides of tensors without gaps, as far as each launch is given them."""
    m, n, k = plan["extents"]
    a_major, b_major = plan["majors"]
    known = {"size_m": m, "size_n": n, "size_k": k}
    known |= {"pitch_a": k if a_major == "k" else m, "pitch_b": k if b_major == "k" else n}
    for each in (*plan["outputs"], *plan["operands"]):
        known[f"pitch_{each['label']}"] = {"exact": n, "product": known["pitch_b"]}.get(each["kind"], 1)
    return tuple(
        (ctypes.c_int32 if name.startswith("size") else ctypes.c_int64)(known[name]) for name in plan["runtime"]
    )


def drawn(plan: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """`plan` itself, and with other sizes where each launch is given them: lines stay multiples of 16 bytes."""
    found, draw = [plan], random.Random(plan["symbol"])
    m, n, k = plan["extents"]
    while plan["runtime"] and len(found) < number:
        rows = draw.choice((draw.randint(1, 64), draw.randint(1, m), draw.randint(m, 2 * m)))
        columns = 16 * draw.randint(1, n // 8) if "size_n" in plan["runtime"] else n
        depth = 16 * draw.randint(1, k // 8) if "size_k" in plan["runtime"] else k
        found.append({**plan, "extents": [rows, columns, depth]})
    return found


def inputs(plan: dict[str, Any], torch: Any, device: str = "cuda") -> list[Any]:
    """A, B, the outputs and the operands. Rows and columns differ in scale, so that a wrong row or column shows."""
    m, n, k = plan["extents"]
    operand = getattr(torch, plan["dtypes"][0])
    generator = torch.Generator(device=device).manual_seed(m + 3 * n + 7 * k)

    def matrix(rows: int, columns: int, major: str, scale: Any) -> Any:
        values = (torch.randn(rows, columns, device=device, generator=generator) * scale).to(operand)
        return values if major == "k" else values.t().contiguous().t()

    rows = 0.5 + torch.rand(m, 1, device=device, generator=generator)
    tensors = [matrix(m, k, plan["majors"][0], rows), matrix(n, k, plan["majors"][1], 1.0)]
    for each in plan["outputs"]:
        shape = (m, n) if each["kind"] == "exact" else (m,)
        tensors.append(torch.zeros(*shape, device=device, dtype=getattr(torch, each["dtype"])))
    for each in plan["operands"]:
        if each["kind"] == "product":
            tensors.append(matrix(n, k, plan["majors"][1], 1.0))
            continue
        shape = {"exact": (m, n), "row": (n,), "column": (m,)}[each["kind"]]
        scale = k**0.5 if each["kind"] == "exact" else 1.0
        values = torch.randn(*shape, device=device, generator=generator) * scale
        tensors.append(values.to(getattr(torch, each["dtype"])))
    return [*tensors, *factors(plan, torch, device, generator)]


def factors(plan: dict[str, Any], torch: Any, device: str, generator: Any) -> list[Any]:
    """Of blocks of K, by line and block."""
    m, n, k = plan["extents"]
    found = []
    for each in plan["scales"]["factors"] if plan["scales"] else ():
        lines = -(-(m if each["side"] == "row" else n) // each["lines"])
        shape = (lines if each["pitch"] else 1, -(-k // plan["scales"]["k"]))
        values = 0.5 + torch.rand(*shape, device=device, generator=generator)
        found.append(values.to(getattr(torch, each["dtype"])))
    return found


def expanded(plan: dict[str, Any], tensors: list[Any], side: str) -> Any:
    """(rows or columns, blocks) factors in fp32; None where there are none."""
    lines = plan["extents"][0 if side == "row" else 1]
    described = plan["scales"]["factors"] if plan["scales"] else []
    for each, tensor in zip(described, tensors[len(tensors) - len(described) :], strict=True):
        if each["side"] == side:
            shared = each["lines"] if each["pitch"] else lines
            return tensor.float().repeat_interleave(shared, 0)[:lines]
    return None


def dequantized(plan: dict[str, Any], tensors: list[Any], matrix: Any, side: str) -> Any:
    """`matrix` in fp32, its blocks times their factors."""
    found = expanded(plan, tensors, side)
    if found is None:
        return matrix.float()
    size = plan["scales"]["k"]
    return matrix.float() * found.repeat_interleave(size, 1)[:, : matrix.shape[1]]


def epilogue(plan: dict[str, Any], sums: Any, operands: list[Any], torch: Any) -> list[Any]:
    """All values of the epilogue of `sums` in fp32; of a second product `operands` has the sums."""
    functional = torch.nn.functional
    operations: dict[str, Callable[..., Any]] = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "div": lambda x, y: x / y,
        "maximum": lambda x, y: x.clamp_min(y) if isinstance(y, float) else torch.maximum(x, y),
        "abs": torch.abs,
        "exp": torch.exp,
        "log": torch.log,
        "sqrt": torch.sqrt,
        "rsqrt": torch.rsqrt,
        "relu": torch.relu,
        "silu": functional.silu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "round": torch.round,
        "round_bfloat16": lambda x: x.bfloat16().float(),
        "round_float16": lambda x: x.half().float(),
        "row_sum": lambda x: x.sum(1, keepdim=True),
        "row_maximum": lambda x: x.amax(1, keepdim=True),
        "row_minimum": lambda x: x.amin(1, keepdim=True),
        "row_first": lambda x, at: (x == at).float().argmax(1, keepdim=True),
    }
    values = [sums]
    for described, tensor in zip(plan["operands"], operands, strict=True):
        values.append(tensor.float()[:, None] if described["kind"] == "column" else tensor.float())
    for name, arguments in plan["instructions"]:
        values.append(operations[name](*(values[x] if isinstance(x, int) else x for x in arguments)))
    return values


def parts(plan: dict[str, Any], tensors: list[Any]) -> tuple[Any, Any, list[Any], list[Any]]:
    """A, B, the outputs and the operands."""
    behind = 2 + len(plan["outputs"])
    return tensors[0], tensors[1], tensors[2:behind], tensors[behind : behind + len(plan["operands"])]


def compare(plan: dict[str, Any], tensors: list[Any], torch: Any) -> tuple[float, float, int]:
    """The largest error of a row relative to its norm, that of numbers per row in parts of what is allowed, and the number
    of values that are finite in one of both only."""
    a, b, outputs, operands = parts(plan, tensors)
    worst, columns, bad = 0.0, 0.0, 0
    left_all, right = dequantized(plan, tensors, a, "row"), dequantized(plan, tensors, b, "column")
    for start in range(0, a.shape[0], 1024):
        rows = slice(start, start + 1024)
        kinds = [each["kind"] for each in plan["operands"]]
        left = left_all[rows]
        local = []
        for kind, x in zip(kinds, operands, strict=True):
            local.append(left @ x.float().t() if kind == "product" else x if kind == "row" else x[rows])
        values = epilogue(plan, left @ right.t(), local, torch)
        for described, output in zip(plan["outputs"], outputs, strict=True):
            wanted, got = values[described["value"]], output[rows]
            if described["kind"] == "exact":
                error, here = compare_rows(wanted.expand(got.shape), got, torch)
                worst, bad = max(worst, error), bad + here
            else:
                error = compare_numbers(plan, described, values, got, torch)
                eight_bits = plan["dtypes"][0].startswith("float8")
                allowed = max(COLUMN_ERROR[described["dtype"]], PROMOTED_ROW_ERROR if eight_bits else 0.0)
                columns = max(columns, error / allowed)
    return worst, columns, bad


def compare_rows(wanted: Any, d: Any, torch: Any) -> tuple[float, int]:
    rounded = wanted.to(d.dtype).float()
    got, finite = d.float(), torch.isfinite(rounded)
    # Rounding to 8 bits is up to all of a small number; what is left then are numbers at the edge of two others.
    wanted = rounded if d.element_size() == 1 else wanted
    bad = int((torch.isfinite(got) != finite).sum())
    got, wanted = got.where(finite, 0), wanted.where(finite, 0)
    norms = wanted.norm(dim=1).clamp_min(1e-20)
    return float(((got - wanted).norm(dim=1) / norms).max()), bad


def compare_numbers(plan: dict[str, Any], described: dict[str, Any], values: list[Any], got: Any, torch: Any) -> float:
    """Relative to the norm of the column. Of places in a row, which may be others where sums differ in their last bits, it
    is what stands there that is compared."""
    wanted = values[described["value"]][:, 0]
    name, arguments = plan["instructions"][described["value"] - 1 - len(plan["operands"])]
    if name == "row_first":
        row, largest = values[arguments[0]], values[arguments[1]][:, 0]
        if not bool(((got >= 0) & (got < row.shape[1])).all()):
            return float("inf")
        got, wanted = row.gather(1, got.long()[:, None])[:, 0], largest
    scale = wanted.square().mean().sqrt().clamp_min(1e-20)
    error = (got.float() - wanted).abs().max() / scale
    return float(error) if bool(torch.isfinite(error)) else float("inf")


def timed(function: Callable[[], Any], torch: Any, flush: Any) -> float:
    """Microseconds of one call with a cold L2 cache, the median of ``REPEATS``."""
    for _ in range(2):
        function()
    events = []
    for _ in range(REPEATS):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        function()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    return round(statistics.median(start.elapsed_time(end) * 1e3 for start, end in events), 2)


def baseline(plan: dict[str, Any], tensors: list[Any], torch: Any) -> Callable[[], Any] | None:
    """torch's own product of the same operands, without the epilogue unless it is one of row and column scales."""
    a, b, (d, *_), operands = parts(plan, tensors)
    if d.dim() == 1:
        return None
    if a.element_size() == 1:
        if plan["dtypes"][0] != "float8_e4m3fn":
            return None
        one = torch.ones((), device="cuda")
        scales = (one, one)
        if [each["kind"] for each in plan["operands"]] == ["column", "row"]:
            scales = (operands[0][:, None].abs(), operands[1][None, :].abs())
        return lambda: torch._scaled_mm(a, b.t(), scale_a=scales[0], scale_b=scales[1], out_dtype=torch.bfloat16)
    if a.dtype != d.dtype:
        return None
    return lambda: torch.mm(a, b.t(), out=torch.empty_like(d))


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """One size of a kernel, whose first result was compared."""

    plan: dict[str, Any]
    tensors: list[Any]
    launch: Callable[[], None]
    errors: tuple[float, float, int]
    """As ``compare`` gives them."""
    first: list[Any]
    """The bytes of the outputs."""

    @property
    def outputs(self) -> list[Any]:
        return parts(self.plan, self.tensors)[2]


def prepare(
    plan: dict[str, Any], make: Callable[[dict[str, Any], list[Any]], Callable[[], None]], torch: Any
) -> Prepared:
    """`make` gives the launch of tensors."""
    tensors = inputs(plan, torch)
    outputs = parts(plan, tensors)[2]
    launch = make(plan, tensors)
    for output in outputs:
        output.view(torch.uint8).fill_(255)  # not a number, or -1
    launch()
    torch.cuda.synchronize()
    errors = compare(plan, tensors, torch)
    first = [output.view(torch.uint8).clone() for output in outputs]
    return Prepared(plan=plan, tensors=tensors, launch=launch, errors=errors, first=first)


def different_launches(prepared: list[Prepared], launches: int, torch: Any) -> int:
    """How many of ``launches``, of sizes in random order, give other bytes than the first one of their size. Each one is
    compared, since the next would hide what it wrote; on the device, so that launches follow each other closely."""
    found, draw = torch.zeros((), dtype=torch.int64, device="cuda"), random.Random(0)
    for _ in range(launches):
        one = draw.choice(prepared)
        one.launch()
        written = [output.view(torch.uint8) for output in one.outputs]
        same = [torch.eq(before, output).all() for before, output in zip(one.first, written, strict=True)]
        found += ~torch.stack(same).all()
    return int(found)


def allowed(plan: dict[str, Any]) -> float:
    """The error of a row, relative to its norm, below which it is right."""
    if plan["imprecise"]:
        return IMPRECISE_ROW_ERROR
    stored = max((ROW_ERROR[each["dtype"]] for each in plan["outputs"] if each["kind"] == "exact"), default=1.0)
    return max(stored, PROMOTED_ROW_ERROR) if plan["dtypes"][0].startswith("float8") else stored


def run(name: str, kernel: Kernel, options: argparse.Namespace, torch: Any, runtime: Any, flush: Any) -> dict[str, Any]:
    plan = kernel.plan
    if plan["ctas_per_sm"] > 1:
        kernel.share_sms(runtime)
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    clusters, known = kernel.clusters(runtime, sms * plan["ctas_per_sm"] // ctas_of(plan))
    space = [torch.zeros(plan["workspace_bytes"], dtype=torch.uint8, device="cuda")] if plan["workspace_bytes"] else []
    stream = torch.cuda.current_stream().cuda_stream

    def make(one: dict[str, Any], tensors: list[Any]) -> Callable[[], None]:
        return kernel.launcher(tensors, clusters, stream, launch_numbers(one), space)

    prepared = [prepare(one, make, torch) for one in drawn(plan, options.sizes)]
    error, columns, bad = (max(each) for each in zip(*(one.errors for one in prepared), strict=True))
    moved = different_launches(prepared, options.launches or (10_000 if space else 10), torch)
    counted = int(space[0][:COUNTER_BYTES].count_nonzero()) if space else 0
    row = {
        "name": name,
        "ok": bad == 0 and moved == 0 and error < allowed(plan) and columns < 1 and counted == 0,
        "sizes": len(prepared),
        "row_error": float(f"{error:.3g}"),
        "column_error_of_allowed": float(f"{columns:.3g}"),
        "not_finite": bad,
        "different_launches": moved,
        "clusters": clusters,
        "driver_said": known,
    }
    if not options.check_only:
        m, n, k = plan["extents"]
        row["us"] = timed(prepared[0].launch, torch, flush)
        row["tflops"] = round(2e-6 * m * n * k / row["us"], 1)
        other = baseline(plan, prepared[0].tensors, torch)
        if other is not None:
            row["torch_product_us"] = timed(other, torch, flush)
    return row


def child(folder: Path, plans: dict[str, Any], options: argparse.Namespace) -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    runtime = ctypes.CDLL("libcudart.so.13", mode=ctypes.RTLD_GLOBAL)
    print(json.dumps({"device": torch.cuda.get_device_name(0), "torch": torch.__version__}), flush=True)
    for name in options.names:
        print(json.dumps({"start": name}), flush=True)
        try:
            row = run(name, Kernel(folder, name, plans[name]), options, torch, runtime, flush)
        except Exception as error:
            print(json.dumps({"name": name, "ok": False, "error": repr(error)[:300]}), flush=True)
            if "CUDA" in repr(error):
                sys.exit(3)  # the context is lost; a new process goes on
            continue
        print(json.dumps(row), flush=True)


# The process that watches -------------------------------------------------------------------------------------------------


def watch(options: argparse.Namespace) -> None:
    deadline, left = time.monotonic() + options.seconds, list(options.names)
    while left and time.monotonic() < deadline:
        command = [sys.executable, __file__, str(options.folder), "--child", *left]
        command += ["--check-only"] if options.check_only else []
        command += ["--launches", str(options.launches), "--sizes", str(options.sizes)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1)
        heard = [time.monotonic() + FIRST_LINE_SECONDS - SILENT_SECONDS]
        begun: list[str] = []

        def listen(process: Any = process, heard: list[float] = heard, begun: list[str] = begun) -> None:
            for line in process.stdout:
                heard[0] = max(heard[0], time.monotonic())
                if line.startswith('{"start"'):
                    begun.append(json.loads(line)["start"])
                else:
                    print(line, end="", flush=True)

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        while process.poll() is None:
            time.sleep(0.2)
            now = time.monotonic()
            if now > heard[0] + SILENT_SECONDS or now > deadline:
                process.kill()
                why = "hangs" if now <= deadline else "no time left"
                print(json.dumps({"name": begun[-1] if begun else None, "ok": False, "error": why}), flush=True)
                break
        process.wait()
        listener.join(timeout=5)
        if not begun:
            return
        left = left[left.index(begun[-1]) + 1 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--check-only", action="store_true")
    parser.add_argument("--launches", type=int, default=0)
    parser.add_argument("--sizes", type=int, default=20)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    plans = json.loads((options.folder / "plans.json").read_text())
    options.names = options.names or list(plans)
    if options.child:
        child(options.folder, plans, options)
    else:
        watch(options)


if __name__ == "__main__":
    main()
