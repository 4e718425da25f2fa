"""Kernels run on CPU tensors: control flow, calls, launching, errors, and that Triton is left as it was."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import triton
import triton.language as tl
from costs import calls
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language.extra import libdevice
from triton.language.extra.cuda import libdevice as cuda_libdevice

from helion._support.locks import TRITON_LOCK
from helion.backends.triton.execute.interpreter import interpret

F32, BF16, I32 = torch.float32, torch.bfloat16, torch.int32


def randn(*shape: int, dtype: torch.dtype = F32, seed: int = 0, mean: float = 0.5) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + mean).to(dtype)


@triton.jit
def shifted_copy_kernel(x, out, shift, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i + shift))


@triton.jit
def softmax_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.softmax(tl.load(x + row + i, mask=i < n, other=float("-inf")), dim=0)
    tl.store(out + row + i, value, mask=i < n)


# Control flow and calls

SCALE = tl.constexpr(3)
OFFSET: tl.constexpr = 2


@triton.jit
def with_default(x, factor: tl.constexpr = SCALE, shift=1.0):
    return x * factor + shift


@triton.jit
def first_of(pair):
    return pair[0] + pair[1] * 0


@triton.jit
def control_kernel(x, out, n, pair, LIMIT: tl.constexpr, FLAG: tl.constexpr, FN: tl.constexpr):
    pid = tl.program_id(0)
    value = tl.load(x + pid)
    total = 0.0
    for i in tl.static_range(0, LIMIT, 2):
        total += value * i
    for i in tl.range(0, n, num_stages=2, loop_unroll_factor=1, flatten=True, disallow_acc_multi_buffer=True):
        if (i % 2 == 0 and i != 4) or i == 5:
            total += i.to(tl.float32)
    count = n
    while count > 3:
        count -= 2
        total = total + count
    if FLAG and value > 0:
        total += 100.0
    elif not FLAG or value < -1e9:
        total += 1000.0
    else:
        total -= 100.0
    total += first_of(pair)
    total = total if pid > 0 else -total
    assert total < 1e9, "too large"
    inside = 0 < value < 0.7
    total = tl.where(inside, total + 0.5, total)
    total += sum_of([with_default(value * k) for k in (0, 1)][1], FN(value, shift=OFFSET))
    tl.store(out + pid, total * min(n, 2) / max(n, 7, 3))
    tl.static_assert(LIMIT == 5)
    tl.multiple_of(n, 1)
    tl.debug_barrier()


@triton.jit
def sum_of(a, b):
    return a + b


@pytest.mark.parametrize("flag", [True, False])
def test_control_flow(flag: bool) -> None:
    x, out = torch.tensor([0.5, -2.0, 0.6, 3.0]), torch.empty(4)
    kwargs = {"LIMIT": 5, "FLAG": flag, "FN": with_default, "num_warps": 8, "num_stages": 3}
    interpret(control_kernel, (4,), (x, out, 9, (10, 4)), kwargs)
    for pid, value in enumerate(x.tolist()):
        total = value * (0 + 2 + 4) + (0 + 2 + 6 + 8 + 5) + (7 + 5 + 3)
        if flag:
            total += 100 if value > 0 else -100
        else:
            total += 1000
        total += 10
        total = total if pid > 0 else -total
        total += 0.5 if 0 < value < 0.7 else 0
        total += value * 3 + 1 + value * 3 + 2
        assert out[pid].item() == pytest.approx(total * 2 / 9, rel=1e-6)


def test_closures_and_changed_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    factor = tl.constexpr(5)

    @triton.jit
    def helper(x):
        return x * factor + OFFSET

    @triton.jit
    def kernel(out):
        tl.store(out, helper(1.0))

    out = torch.empty(1)
    interpret(kernel, (1,), (out,), {})
    assert out.item() == 7
    monkeypatch.setitem(globals(), "OFFSET", tl.constexpr(10))
    interpret(kernel, (1,), (out,), {})
    assert out.item() == 15


class Pair(NamedTuple):
    first: object
    second: object


@triton.jit(do_not_specialize=["free"])
def argument_kernel(
    out, one, free, wide: tl.int64, large, pair, nothing, numbers, FN: tl.constexpr, DTYPE: tl.constexpr
):
    tl.static_assert(isinstance(one, tl.constexpr))
    tl.static_assert(free.dtype == tl.int32)
    tl.static_assert(wide.dtype == tl.int64)
    tl.static_assert(large.dtype == tl.int64)
    tl.static_assert(pair.second.dtype == tl.float32)
    total = one + free.to(tl.int64) + wide + large + numbers[0] + numbers[1] + FN(tl.load(pair.first), pair.second)
    if nothing is None:
        total += 1000
    tl.store(out, total.to(DTYPE))


@triton.jit
def product(a, b):
    return a * b


def test_kinds_of_arguments() -> None:
    out, first = torch.empty(1, dtype=torch.float64), torch.tensor([3.0])
    args = (out, 1, 1, 5, 2**33, Pair(first, 0.5), None, (10, 20))
    interpret(argument_kernel, (1,), args, {"FN": product, "DTYPE": tl.float64, "num_stages": 2})
    assert out.item() == torch.tensor(1 + 1 + 5 + 2**33 + 30 + 1.5 + 1000).item()  # int64 + float32 is float32


def test_a_kernel_may_be_launched_while_another_runs() -> None:
    x, out, total = randn(8), torch.empty(8), torch.empty(2)

    def launch() -> float:
        interpret(shifted_copy_kernel, (1,), (x, out, 0), {"BLOCK": 8})
        return out[0].item()

    @triton.jit
    def outer_kernel(total, LAUNCH: tl.constexpr):
        tl.store(total + tl.program_id(0), LAUNCH() + tl.program_id(0))

    interpret(outer_kernel, (2,), (total, tl.constexpr(launch)), {})
    assert torch.equal(total, x[0] + torch.arange(2))


@triton.jit
def grid_kernel(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(axis=2)
    nx, ny = tl.num_programs(0), tl.num_programs(1)
    tl.store(out + (z * ny + y) * nx + x, x + 10 * y + 100 * z + 1000 * tl.num_programs(2))


def test_grid() -> None:
    out = torch.empty(2, 3, 4, dtype=I32)
    interpret(grid_kernel, (4, 3, 2), (out,), {})
    z, y, x = torch.meshgrid(torch.arange(2), torch.arange(3), torch.arange(4), indexing="ij")
    assert torch.equal(out, (x + 10 * y + 100 * z + 2000).int())
    interpret(grid_kernel, (0, 3), (out,), {})


@triton.jit
def rand_kernel(out, seed, N: tl.constexpr):
    tl.store(out + tl.arange(0, N), tl.randint(seed, tl.arange(0, N)))
    tl.store(out + N + tl.arange(0, N), (tl.rand(seed, tl.arange(0, N)) * 1e6).to(tl.int32))


def test_random_numbers_are_philox() -> None:
    out = torch.empty(128, dtype=I32)
    interpret(rand_kernel, (1,), (out, 42), {"N": 64})
    assert out[:64].tolist() == [philox(42, i) for i in range(64)]
    assert 4e5 < out[64:].float().mean() < 6e5


def philox(seed: int, offset: int) -> int:
    """First 32-bit word of Philox4x32-10 (Salmon et al., 2011), as a signed number."""
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    c = [offset, 0, 0, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ key0, b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ key1, a & 0xFFFFFFFF]
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return c[0] - 2**32 if c[0] >= 2**31 else c[0]


# Debugging aids and refusals


@triton.jit
def printing_kernel(x, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    tl.device_print("value", value)
    tl.static_print("N is", N)
    print("double", tl.sum(value) * 2)


def test_printing(capsys: pytest.CaptureFixture[str]) -> None:
    interpret(printing_kernel, (2,), (torch.arange(4, dtype=I32),), {"N": 4})
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"pid ({p}, 0, 0) {t}" if "N" not in t else t for p in (0, 1) for t in PRINTED]


PRINTED = ("value: [0 1 2 3]", "N is 4", "double: 12")


@triton.jit
def failing_kernel(x, MODE: tl.constexpr, N: tl.constexpr):
    value = tl.load(x + tl.arange(0, N))
    if MODE == "assert":
        tl.device_assert(value < 3, "value is too large")
    elif MODE == "statement":
        assert tl.max(value, axis=0) < 3, "statement"
    elif MODE == "static":
        tl.static_assert(N == 3, "N must be 3")
    elif MODE == "assume":
        tl.assume(tl.program_id(0) == 1)
    elif MODE == "asm":
        tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], dtype=tl.int32, is_pure=True, pack=1)
    elif MODE == "condition":
        if value > 1:
            tl.store(x, 0)
    elif MODE == "type":
        tl.exp(value)
    elif MODE == "python":
        undefined_name(value)  # noqa: F821


@pytest.mark.parametrize(
    ("mode", "error", "message"),
    [
        ("assert", AssertionError, r"'failing_kernel', program \(0, 0, 0\): tl.device_assert failed: value is too"),
        ("statement", AssertionError, "statement"),
        ("static", AssertionError, "tl.static_assert failed: N must be 3"),
        ("assume", AssertionError, r"kernel 'failing_kernel', program \(0, 0, 0\): tl.assume does not hold"),
        ("asm", NotImplementedError, r"'failing_kernel'.*tl.inline_asm_elementwise .*'mov.b32 \$0, \$1;'"),
        ("condition", ValueError, r"a condition needs a scalar, got a block of shape \[4\]"),
        ("type", ValueError, "Expected dtype .*fp32.* but got int32"),
        ("python", NameError, "undefined_name"),
    ],
)
def test_errors_in_kernels(mode: str, error: type[Exception], message: str) -> None:
    before = snapshot()
    with pytest.raises(error, match=message) as caught:
        interpret(failing_kernel, (2,), (torch.arange(4, dtype=I32),), {"MODE": mode, "N": 4})
    line = inspect.getsourcelines(failing_kernel.fn)[1]
    frames = [f for f in caught.traceback if f.name == "failing_kernel"]
    assert frames[0].path.name == "test_interpreter.py"
    assert line < frames[0].lineno < line + 30
    assert snapshot() == before
    assert TRITON_LOCK.acquire(blocking=False)
    TRITON_LOCK.release()


def test_unsuitable_arguments() -> None:
    x = torch.empty(4)
    with pytest.raises(ValueError, match=r"'shifted_copy_kernel': argument 'x' is on meta.*CPU"):
        interpret(shifted_copy_kernel, (1,), (x.to("meta"), x, 0), {"BLOCK": 4})
    with pytest.raises(TypeError, match=r"argument 'x' has dtype torch\.complex64"):
        interpret(shifted_copy_kernel, (1,), (torch.empty(4, dtype=torch.complex64), x, 0), {"BLOCK": 4})
    with pytest.raises(TypeError, match="argument 'shift' is a str"):
        interpret(shifted_copy_kernel, (1,), (x, x, "0"), {"BLOCK": 4})
    with pytest.raises(TypeError, match="kernel 'shifted_copy_kernel': missing a required argument: 'BLOCK'"):
        interpret(shifted_copy_kernel, (1,), (x, x, 0), {})
    for grid in ((), (1, 1, 1, 1), (-1,), (1.0,)):
        with pytest.raises(ValueError, match="'shifted_copy_kernel': the grid must be one to three integers"):
            interpret(shifted_copy_kernel, grid, (x, x, 0), {"BLOCK": 4})


# Triton stays as it is


def snapshot() -> dict[str, object]:
    """Every attribute, by identity, of what an interpreter could be tempted to replace."""
    import triton.runtime.interpreter as stock

    owners = [tl, tl.core, tl.math, tl.standard, tl.random, tl.core.tensor, tl.core.dtype]
    owners += [tl.core.tensor_descriptor_base, libdevice, cuda_libdevice, triton.runtime.jit.JITFunction, stock]
    owners += [stock.InterpreterBuilder, stock.GridExecutor, stock.InterpretedFunction, tl.semantic.TritonSemantic]
    return {f"{o.__name__}.{name}": id(value) for o in owners for name, value in vars(o).items() if name != "_cache"}


def compile_offline(block: int) -> str:
    source = ASTSource(shifted_copy_kernel, {"x": "*fp32", "out": "*fp32", "shift": "i32"}, {"BLOCK": block})
    with TRITON_LOCK:
        return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ttir"]


def test_triton_is_not_changed() -> None:
    before = snapshot()
    seen: list[dict[str, object]] = []
    out = torch.empty(8)

    def hook() -> int:
        seen.append(snapshot())
        return 1

    @triton.jit
    def kernel(out, HOOK: tl.constexpr):
        tl.store(out + tl.arange(0, 8), HOOK() * 1.0)

    interpret(kernel, (1,), (out, tl.constexpr(hook)), {})
    assert (out == 1).all()
    assert seen == [before]
    assert snapshot() == before
    assert "tt.load" in compile_offline(64)
    interpret(shifted_copy_kernel, (1,), (randn(8), out, 0), {"BLOCK": 8})
    assert torch.equal(out, randn(8))
    assert "tt.load" in compile_offline(128)


def test_one_thread_interprets_while_another_compiles() -> None:
    results: list[torch.Tensor] = []
    texts: list[str] = []
    failures: list[BaseException] = []

    def interpreting() -> None:
        for seed in range(30):
            x, out = randn(16, 27, seed=seed), torch.empty(16, 27)
            interpret(softmax_kernel, (16,), (x, out, 27), {"BLOCK": 32})
            results.append(out - torch.softmax(x, 1))

    def compiling() -> None:
        texts.extend(compile_offline(2**k) for k in range(4, 12))

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in (interpreting, compiling, interpreting)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(results) == 60
    assert max(r.abs().max().item() for r in results) < 1e-6
    assert len(texts) == 8
    assert all("tt.load" in text for text in texts)


@triton.jit
def empty_kernel(x):
    pass


def test_a_launch_costs_little() -> None:
    x = torch.empty(1)
    interpret(empty_kernel, (1,), (x,), {})
    assert calls(lambda: interpret(empty_kernel, (1,), (x,), {})) <= 170


def test_nothing_heavy_is_imported(tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            """
            import sys
            import torch, triton, triton.language as tl
            from helion.backends.triton.execute.interpreter import interpret
            @triton.jit
            def kernel(x, N: tl.constexpr):
                i = tl.arange(0, N)
                tl.store(x + i, tl.softmax(tl.erf(tl.load(x + i).to(tl.float32))).to(tl.bfloat16))
            x = torch.ones(8, dtype=torch.bfloat16)
            interpret(kernel, (1,), (x,), {"N": 8})
            assert (x == 0.125).all()
            heavy = ("torch._dynamo", "torch._inductor", "triton.runtime.interpreter", "scipy")
            print([name for name in sys.modules if name.startswith(heavy)])
            """
        )
    )
    environment = {**os.environ, "PYTHONPATH": REPOSITORY}
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


REPOSITORY = __file__.rsplit("/test/", 1)[0]
