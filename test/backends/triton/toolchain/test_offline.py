"""Offline compilation and measured resources, against Triton and the CUDA tools called directly."""

from __future__ import annotations

import functools
import os
import pathlib
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import compiler as nvidia_compiler
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from helion import exc
from helion._support.terms import Terms
from helion.backends.triton.toolchain import (
    OfflineCompileError,
    Signature,
    compile_offline,
    measure,
    opcode_counts,
    ptxas_version,
)
from helion.backends.triton.toolchain.offline import _without_ptx_dump, together
from helion.hardware import target


@triton.jit
def matmul(a, b, c, m, n, k, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr = 32):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, k, BK):
        x = tl.load(a + rows[:, None] * sa + (start + inner)[None, :])
        y = tl.load(b + (start + inner)[:, None] * sb + columns[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + rows[:, None] * sc + columns[None, :], acc.to(c.dtype.element_ty))


@triton.jit
def row_sum(x, out, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(values, 0))


@triton.jit
def wrong(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), tl.zeros([BLOCK // 2], tl.float32))


POINTERS = ("a", "b", "c")
INTEGERS = ("m", "n", "k", "sa", "sb", "sc")
DIVISIBLE = frozenset(POINTERS + INTEGERS)


def matmul_types(dtype: str) -> dict[str, str]:
    return {**dict.fromkeys(POINTERS, f"*{dtype}"), **dict.fromkeys(INTEGERS, "i32")}


def compile_matmul(name: str, dtype: str, bm: int, bn: int, bk: int, **options: Any) -> Any:
    blocks = {"BM": bm, "BN": bn, "BK": bk}
    return compile_offline(
        matmul,
        signature=matmul_types(dtype),
        constexprs=blocks,
        divisible=DIVISIBLE,
        target=target(name),
        options=options,
    )


@pytest.fixture(scope="module", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


@pytest.mark.parametrize("name", ["sm_80", "sm_90", "sm_100"])
def test_cuda_agrees_with_triton_and_cuobjdump(name: str, tmp_path: pathlib.Path) -> None:
    row = target(name)
    compiled = compile_matmul(name, "bf16", 64, 64, 32, num_warps=4, num_stages=3)
    got = measure(compiled, row)

    attributes = {(i,): [["tt.divisibility", 16]] for i in range(9)}
    types = {**matmul_types("bf16"), **dict.fromkeys(("BM", "BN", "BK"), "constexpr")}
    source = ASTSource(matmul, signature=types, constexprs={"BM": 64, "BN": 64, "BK": 32}, attrs=attributes)
    options = {"num_warps": 4, "num_stages": 3}
    direct = triton.compile(source, target=GPUTarget("cuda", row.capability, 32), options=options)
    (tmp_path / "k.cubin").write_bytes(direct.asm["cubin"])
    command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(tmp_path / "k.cubin")]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert got.registers == int(re.findall(r"REG:(\d+)", listing)[0])
    assert 16 < got.registers <= got.registers_limit == 255
    assert got.spill_bytes == 0
    assert got.shared_bytes == direct.metadata.shared > 0
    assert got.tensor_memory_columns == (direct.metadata.tmem_size if name == "sm_100" else 0)
    assert (got.tensor_memory_columns > 0) == row.has("tcgen05")
    assert (got.fits, got.threads, got.source) == (True, 128, "ptxas")
    assert got.limit_bytes == row.smem_per_block_bytes

    opcodes = opcode_counts(compiled.asm["cubin"])
    assert opcodes[{"sm_80": "HMMA", "sm_90": "HGMMA", "sm_100": "UTCHMMA"}[name]] > 0
    assert opcodes["STL"] == opcodes["LDL"] == 0
    assert sum(opcodes.values()) > 100
    whole = opcode_counts(compiled.asm["cubin"], modifiers=True)
    assert sum(whole.values()) == sum(opcodes.values())
    assert any(opcode.startswith("LDGSTS.E") for opcode in whole)


def test_amd_agrees_with_the_assembly() -> None:
    got = measure(compiled := compile_matmul("gfx942", "bf16", 64, 64, 32, num_warps=4), target("gfx942"))
    assert got.registers == int(re.findall(r"\.vgpr_count:\s*(\d+)", compiled.asm["amdgcn"])[0]) > 16
    assert (got.spill_bytes, got.shared_bytes, got.fits) == (0, compiled.metadata.shared, True)
    assert (got.threads, got.registers_limit, got.source) == (256, 512, "amdgcn")


def test_amd_spills() -> None:
    compiled = compile_matmul("gfx942", "fp32", 256, 256, 32, num_warps=4)
    count = int(re.findall(r"\.vgpr_spill_count:\s*(\d+)", compiled.asm["amdgcn"])[0])
    assert measure(compiled, target("gfx942")).spill_bytes == 4 * count > 0


@pytest.mark.parametrize(("name", "maxnreg"), [("sm_80", 64), ("sm_90", 96)])
def test_cuda_spills(name: str, maxnreg: int, tmp_path: pathlib.Path) -> None:
    compiled = compile_matmul(name, "bf16", 128, 128, 32, num_warps=4, maxnreg=maxnreg)
    got = measure(compiled, target(name))
    assert got.registers <= maxnreg
    assert opcode_counts(compiled.asm["cubin"])["STL"] > 0
    (tmp_path / "k.ptx").write_text(compiled.asm["ptx"])
    logs = []
    for flags in ([], ["--regAllocOptLevel=2"]):  # versions of Triton differ in this flag
        gpu = name + "a" * (name != "sm_80")
        command = [get_ptxas(target(name).capability).path, "-v", *flags, f"--gpu-name={gpu}", "k.ptx", "-o", "k.cubin"]
        logs.append(subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stderr)
    expected = [sum(map(int, re.findall(r"(\d+) bytes spill", log))) for log in logs]
    assert got.spill_bytes > 0
    assert got.spill_bytes in expected


def test_too_much_shared_memory_is_an_answer() -> None:
    compiled = compile_matmul("sm_86", "bf16", 128, 128, 64, num_warps=8, num_stages=5)
    got = measure(compiled, target("sm_86"))
    assert got.shared_bytes > got.limit_bytes == 101376
    assert not got.fits
    assert got.overflow == (f"{got.shared_bytes} bytes of shared memory per block, sm_86 (A10) has 101376",)
    assert got == measure(compiled, target("sm_86"))  # from the cache


def test_too_many_threads_is_an_answer() -> None:
    compiled = compile_offline(
        row_sum,
        signature={"x": "*fp32", "out": "*fp32", "n": "i32", "stride": "i32"},
        constexprs={"BLOCK": 4096},
        target=target("sm_80"),
        options={"num_warps": 4},
    )
    got = measure(compiled, target("sm_80"))
    few = measure(compiled, type(target("sm_80"))(**{**vars(target("sm_80")), "max_threads_per_block": 64}))
    assert got.fits
    assert few.overflow == ("128 threads per block, sm_80 (A100 SXM 80 GB) has 64",)


def test_compilations_together_overlap_and_give_the_binaries_of_single_ones(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each waits inside of Triton's compiler until all others are there. One of them is refused."""
    widths, meeting = (16, 32, 64), threading.Barrier(4, timeout=600.0)
    original = triton.compile

    def met(*args: Any, **options: Any) -> Any:
        meeting.wait()
        return original(*args, **options)

    def compiled(width: int) -> bytes:
        found: bytes = compile_matmul("sm_90", "fp16", 64, width, 32).asm["cubin"]
        return found

    def refused() -> Any:
        with pytest.raises(OfflineCompileError):
            compile_offline(wrong, signature={"x": "*fp32"}, constexprs={"BLOCK": 64}, target=target("sm_90"))

    with monkeypatch.context() as patched, ThreadPoolExecutor(4) as threads, together() as run:
        patched.setattr(triton, "compile", met)
        jobs = [threads.submit(run, functools.partial(compiled, width)) for width in widths]
        threads.submit(run, refused).result()
        found = [job.result() for job in jobs]
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert found == [compiled(width) for width in widths] and len(set(found)) == 3
    assert "reproducer" not in capsys.readouterr().out
    vars(nvidia_compiler)["print"](DUMP)
    assert capsys.readouterr().out == DUMP + "\n"


def test_a_compilation_ends_before_a_stage_that_it_has_no_time_for(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    original = nvidia_compiler.CUDABackend.add_stages
    asked: list[float] = []

    def is_late(left: Callable[[], float]) -> bool:
        asked.append(left())
        return len(asked) == 3 and left() > 0.0

    def compiled(width: int) -> Any:
        return compile_matmul("sm_90", "fp16", 64, width, 32)

    terms, outside = Terms(is_late=lambda left: left() > 0.0), list[bool]()
    terms.outside.set()
    parse, stage = ASTSource.make_ir, nvidia_compiler.CUDABackend.make_llir

    def noted(original: Callable[..., Any], *args: Any) -> Any:
        outside.append(terms.outside.is_set())
        return original(*args)

    monkeypatch.setattr(ASTSource, "make_ir", lambda *args: noted(parse, *args))
    monkeypatch.setattr(nvidia_compiler.CUDABackend, "make_llir", lambda *args: noted(stage, *args))
    with together() as run:
        run(functools.partial(compiled, 16), terms)  # no time is known
        assert outside == [False, True]
        with pytest.raises(OfflineCompileError, match="there is no time for the stage llir"):
            run(functools.partial(compiled, 32), Terms(is_late=is_late))
        assert asked == sorted(asked, reverse=True)  # less from each stage on
        run(functools.partial(compiled, 32), None)
    assert nvidia_compiler.CUDABackend.add_stages is original


LEFT = """
import math, threading, time, triton, triton.language as tl
from triton.backends.nvidia.compiler import CUDABackend
from helion.autotuner.pool.threads import ThreadPool, left_running
from helion.backends.triton.toolchain.offline import compile_offline, together
from helion.hardware import target

@triton.jit
def twice(x, BLOCK: tl.constexpr):
    at = x + tl.arange(0, BLOCK)
    tl.store(at, 2 * tl.load(at))

begun, go, stages = threading.Event(), threading.Event(), []

def slow(self, *args, original=CUDABackend.STAGE):
    begun.set()
    go.wait(600.0)
    stages.append("STAGE")
    return original(self, *args)

CUDABackend.STAGE = slow

class Job:
    def run_within(self, seconds):
        return compile_offline(twice, signature={"x": "*fp32"}, constexprs={"BLOCK": 64}, target=target("sm_90"), options=OPTIONS)

with together() as run:
    pool = ThreadPool(run, 1, math.inf)
    pool.submit("a", Job())
    begun.wait()
    pool.close()
(job,) = pool._terms
print(left_running(), job.done(), flush=True)
threading.Timer(0.2, go.set).start()
job.add_done_callback(lambda job: print(stages, (job.result().failure or "compiled").splitlines()[-1], flush=True))
"""


@pytest.mark.parametrize(
    ("stage", "ends"),
    [("make_llir", ["there is no time for the stage ptx"]), ("make_cubin", ["ptxas was ended", "compiled"])],
)
def test_a_process_ends_after_the_stage_of_a_compilation_that_was_left(
    stage: str, ends: list[str], tmp_path: pathlib.Path
) -> None:
    """It prints neither errors nor PTX. The assembler is ended, unless it is done before."""
    options = "{'maxnreg': 8, 'num_warps': 1}" if stage == "make_cubin" else "{}"
    (tmp_path / "left.py").write_text(LEFT.replace("STAGE", stage).replace("OPTIONS", options))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, str(tmp_path / "left.py")], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first == "1 False" and any(second.startswith(f"['{stage}'] ") and second.endswith(end) for end in ends)


def test_two_threads_get_their_own_answers() -> None:
    jobs = [("sm_80", 64, 64), ("sm_90", 64, 32), ("sm_80", 32, 64), ("gfx942", 32, 32)]
    parallel: dict[tuple[str, int, int], Any] = {}
    start = threading.Barrier(2)

    def work(mine: list[tuple[str, int, int]]) -> None:
        start.wait()
        for name, bm, bn in mine:
            parallel[name, bm, bn] = measure(compile_matmul(name, "fp16", bm, bn, 64, num_stages=2), target(name))

    threads = [threading.Thread(target=work, args=(jobs[i::2],)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, bm, bn in jobs:  # Triton's cache answers now; the binaries are measured anew
        compiled = compile_matmul(name, "fp16", bm, bn, 64, num_stages=2)
        assert parallel[name, bm, bn] == measure(compiled, target(name))
        assert parallel[name, bm, bn].shared_bytes == compiled.metadata.shared
    assert len({(r.registers, r.shared_bytes) for r in parallel.values()}) == len(jobs)


def test_facts_change_the_code() -> None:
    def sass(**facts: Any) -> Any:
        types = {"x": "*bf16", "out": "*bf16", "n": "i32", "stride": "i32"}
        signature = Signature(types=types, constexprs={"BLOCK": 1024}, **facts)
        compiled = compile_offline(row_sum, signature=signature, target=target("sm_80"))
        return opcode_counts(compiled.asm["cubin"], modifiers=True)

    assert not any("128" in opcode for opcode in sass() if opcode.startswith("LDG"))
    wide = sass(divisible=frozenset({"x", "out", "n", "stride"}))
    assert any("128" in opcode for opcode in wide if opcode.startswith("LDG"))
    assert sum(sass(equal_to_one=frozenset({"stride"})).values()) < sum(sass().values())


def test_small_pointers_give_buffer_instructions_on_amd() -> None:
    def assembly(**facts: Any) -> str:
        signature = Signature(types=matmul_types("bf16"), constexprs={"BM": 32, "BN": 32}, divisible=DIVISIBLE, **facts)
        return compile_offline(matmul, signature=signature, target=target("gfx942")).asm["amdgcn"]

    assert "buffer_store" not in assembly()
    assert "buffer_store" in assembly(small_pointers=frozenset(POINTERS))


def test_a_default_constexpr_may_be_left_out() -> None:
    options = {"num_warps": 4, "num_stages": 3}
    compiled = compile_offline(
        matmul,
        signature=matmul_types("bf16"),
        constexprs={"BM": 64, "BN": 64},
        divisible=DIVISIBLE,
        target=target("sm_80"),
        options=options,
    )
    assert compiled.hash == compile_matmul("sm_80", "bf16", 64, 64, 32, **options).hash


def test_front_end_error_names_kernel_target_and_message() -> None:
    with pytest.raises(OfflineCompileError) as caught:
        signature = Signature(types={"x": "*fp32"}, constexprs={"BLOCK": 64})
        compile_offline(wrong, signature=signature, target=target("h200"), options={"num_warps": 2})
    error = caught.value
    assert isinstance(error, exc.BaseError)
    assert (error.kernel, error.target, error.options) == ("wrong", "sm_90 (H200)", {"num_warps": 2})
    first, second = str(error).splitlines()[:2]
    assert first == "Kernel 'wrong' does not compile for sm_90 (H200) with options {'num_warps': 2}:"
    assert second.startswith("CompilationError: ")
    assert "tl.store(" in error.detail
    assert error.__cause__ is not None
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.detail) == (str(error), error.detail)


def test_ptxas_error_leaves_no_ptx_on_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OfflineCompileError) as caught:
        compile_matmul("sm_80", "bf16", 64, 64, 32, maxnreg=8)
    assert "C7602" in caught.value.detail
    assert "Repro command" not in caught.value.detail
    assert len(caught.value.detail) < 2000
    assert capfd.readouterr().out == ""
    vars(nvidia_compiler)["print"](DUMP)  # of a compilation that is not ours
    assert capfd.readouterr().out == DUMP + "\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("xpu", r"no xpu backend \(it has amd, nvidia\); install one that has"),
        ("sm_95", r"ptxas [\d.]+ of this Triton does not know sm_95a; compile for one of sm_"),
    ],
)
def test_targets_without_a_compiler(name: str, message: str) -> None:
    with pytest.raises(OfflineCompileError, match=message):
        compile_matmul(name, "bf16", 64, 64, 32)


def test_wrong_arguments_and_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"has no argument 'z'; it has \['x', 'BLOCK'\]"):
        compile_offline(wrong, signature={"x": "*fp32", "z": "i32"}, constexprs={"BLOCK": 64}, target=target("sm_80"))
    with pytest.raises(ValueError, match=r"argument 'BLOCK' of kernel 'wrong' has neither a type nor a constexpr"):
        compile_offline(wrong, signature={"x": "*fp32"}, target=target("sm_80"))
    signature = Signature(types={"x": "*fp32"}, constexprs={"BLOCK": 64})
    with pytest.raises(ValueError, match=r"Triton's cuda backend has no option 'num_warp' for kernel 'wrong'; its opt"):
        compile_offline(wrong, signature=signature, target=target("sm_80"), options={"num_warp": 4})
    with pytest.raises(TypeError, match=r"takes a function made by triton\.jit"):
        compile_offline(len, signature={}, target=target("sm_80"))  # type: ignore[arg-type]


def test_measuring_for_another_kind_of_gpu_is_refused() -> None:
    compiled = compile_matmul("sm_80", "bf16", 64, 64, 32, num_warps=4, num_stages=3)
    with pytest.raises(
        ValueError, match=r"'matmul' was compiled for cuda and cannot be measured for gfx942 \(MI300X\)"
    ):
        measure(compiled, target("gfx942"))


def test_ptxas_version_is_a_release() -> None:
    assert re.fullmatch(r"\d+\.\d+", ptxas_version())
    assert re.fullmatch(r"\d+\.\d+", ptxas_version(target("sm_100")))


LAUNCH = '''
import torch, triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from helion.backends.triton.toolchain import compile_offline
from helion.hardware import target


class Driver:
    """As much of a GPU as a warm-up asks for."""

    def get_current_target(self):
        return GPUTarget(row.kind, row.arch, row.warp_size)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


@triton.jit
def kernel(x, out, n, stride, one, nothing, factor, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * one, tl.sum(tl.load(x + at * stride, mask=at < n, other=0.0) * factor, 0))


driver.set_active(Driver())
for name in ("sm_90", "gfx942"):
    row = target(name)
    kernel.device_caches.clear()
    launched = kernel.warmup(torch.zeros(9), torch.zeros(4), 1000, 32, 1, None, 0.5, BLOCK=64, num_warps=2, grid=(1,))
    compiled = compile_offline(
        kernel,
        signature={"x": "*fp32", "out": "*fp32", "n": "i32", "stride": "i32", "factor": "fp32"},
        constexprs={"nothing": None, "BLOCK": 64},
        divisible={"x", "out", "stride"},
        equal_to_one={"one"},
        small_pointers={"x", "out"},
        target=row,
        options={"num_warps": 2},
    )
    assert launched.hash == compiled.hash, name
print("same")
'''


def test_a_launch_has_the_same_key_in_tritons_cache(tmp_path: pathlib.Path) -> None:
    """In a process of its own: the stand-in for a driver is process-wide."""
    (tmp_path / "launch.py").write_text(LAUNCH)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "launch.py")], capture_output=True, text=True, env=environment
    )
    assert (done.stdout, done.returncode) == ("same\n", 0), done.stderr


DUMP = "kernel text\nplease share the reproducer above with Triton project.\n"


def test_the_dump_is_dropped_for_one_thread_only(capsys: pytest.CaptureFixture[str]) -> None:
    with _without_ptx_dump():
        say = vars(nvidia_compiler)["print"]
        say(DUMP)
        say("anything else")
        thread = threading.Thread(target=say, args=(DUMP,))
        thread.start()
        thread.join()
    assert capsys.readouterr().out == f"anything else\n{DUMP}\n"
