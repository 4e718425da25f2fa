"""Calibration: what is measured, that differences give it, and that its kernels compile where no GPU is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks import calibrate
from benchmarks.timing import Times
from helion.backends.triton.resources.time.model import issue_rate
from helion.backends.triton.resources.time.parameters import Parameters
from helion.hardware import target

H200 = target("h200")
#: Microseconds of one unit of each experiment on a device that does not exist, and of each call.
RATES = {
    "copy": 1 / 4.2e6,
    "cache": 1 / 9e6,
    "wait": 0.65,
    "cache wait": 0.27,
    "programs of 4 warps": 0.08,
    "programs of 8 warps": 0.11,
    "multiply": 1 / 9e5,
    "exponential": 1 / 2e5,
    "products of float16": 1 / 7e8,
    "products of bfloat16": 1 / 7e8,
    "products of tf32": 1 / 3.5e8,
}
CALL_US = 3.0


class Steady:
    """Every function says how long it takes."""

    def time(self, functions: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, Times], dict[str, str]]:
        found = {name: function() for name, function in functions.items()}
        return {name: Times(median=us, low=us, high=us) for name, us in found.items()}, {}


def simulated() -> tuple[calibrate.Experiment, ...]:
    def run(each: calibrate.Experiment) -> Callable[[int], Callable[[], float]]:
        return lambda amount: lambda: CALL_US + amount * each.of * RATES[each.name]

    return tuple(dataclasses.replace(each, run=run(each)) for each in calibrate.experiments(H200))


def test_differences_give_what_the_device_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_start", lambda programs, warps: lambda: CALL_US)
    measured = calibrate.measure(simulated(), Steady())
    assert measured == pytest.approx({"launch": CALL_US, **RATES})
    found = calibrate.parameters_of(measured, H200)
    assert set(found) <= set(Parameters.__dataclass_fields__)
    assert found["memory_share"] == pytest.approx(4.2e6 / (H200.bandwidth_gb_per_s * 1e3))
    assert found["cache_speedup"] == pytest.approx(9 / 4.2)
    assert (found["program_us"], found["warp_us"]) == (pytest.approx(0.05), pytest.approx(0.0075))
    assert found["special_ops"] == pytest.approx(issue_rate(H200) * H200.num_sms / 2e5)
    assert found["matrix"] == pytest.approx(H200.matrix_tflops_for("bfloat16") / 700)
    kept = json.loads(json.dumps(calibrate.record(measured, H200)))
    assert kept["parameters"] == found and kept["device"] == "H200" and torch.__version__ in kept["versions"]
    lines = calibrate.report(measured, H200)
    assert len([line for line in lines if line]) == len(measured) + 1 + len(found)


def test_more_that_takes_no_longer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "_start", lambda programs, warps: lambda: CALL_US)
    stuck = dataclasses.replace(simulated()[0], run=lambda amount: lambda: CALL_US)
    with pytest.raises(RuntimeError, match=r"copy: 536870912 take 3.0 µs and 134217728 3.0 µs"):
        calibrate.measure((stuck,), Steady())


def test_a_failure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def time(self, functions: Mapping[str, Any]) -> tuple[dict[str, Times], dict[str, str]]:
            return {}, dict.fromkeys(functions, "OutOfMemoryError: 8 GiB")

    monkeypatch.setattr(calibrate, "_start", lambda programs, warps: lambda: CALL_US)
    with pytest.raises(RuntimeError, match="launch: OutOfMemoryError: 8 GiB"):
        calibrate.measure(simulated(), Failing())


@pytest.mark.parametrize("entries", (1, 63, 4096))
def test_a_ring_comes_to_all_places(entries: int) -> None:
    apart = 8
    table = calibrate.ring(entries * apart, apart, torch.Generator().manual_seed(0))
    at, seen = 0, set()
    for _ in range(entries):
        seen.add(at)
        at = int(table[at])
    assert at == 0 and seen == {apart * place for place in range(entries)}


KERNELS: tuple[tuple[Any, dict[str, str], dict[str, int]], ...] = (
    (calibrate.nothing, {"out": "*fp32"}, {}),
    (calibrate.copied, {"source": "*fp32", "out": "*fp32"}, {"TILE": 4096}),
    (calibrate.summed, {"source": "*fp32", "out": "*fp32", "tiles": "i32", "rounds": "i32"}, {"TILE": 4096}),
    (calibrate.chased, {"table": "*i64", "out": "*i64", "steps": "i32"}, {}),
    (calibrate.multiplied, {"out": "*fp32", "factor": "fp32", "steps": "i32"}, {"TILE": 4096}),
    (calibrate.raised, {"out": "*fp32", "factor": "fp32", "steps": "i32"}, {"TILE": 4096}),
)


@pytest.mark.parametrize(
    ("kernel", "signature", "constants"), KERNELS, ids=lambda value: getattr(value, "__name__", "")
)
def test_kernels_compile_and_keep_what_is_timed(
    kernel: Any, signature: dict[str, str], constants: dict[str, int]
) -> None:
    types = {**signature, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(kernel, signature=types, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8})
    ptx = compiled.asm["ptx"]
    timed = {"multiplied": "fma.rn.f32", "raised": "ex2.approx", "chased": "ld.global.cg", "summed": "ld.global.cg"}
    assert timed.get(kernel.__name__, "ret") in ptx
