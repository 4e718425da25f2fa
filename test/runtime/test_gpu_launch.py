"""Calls after the first on a GPU, whose results are looked at: with guards and launches in Python, and with native ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from triton import knobs as triton_knobs

import helion
import helion.language as hl
from helion.backends.triton.execute import native
from helion.runtime import stub_driver

pytestmark = pytest.mark.gpu

N = 1000
CONFIG = helion.Config(block_sizes=[128])
SCALE = 2.0


@pytest.fixture(scope="module", params=["python", pytest.param("native", marks=pytest.mark.cxx)], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELION_NATIVE_LAUNCH", "1" if request.param == "native" else "0")
        if request.param == "native":
            assert native.wanted(), (
                "no extension was built: see the warning of helion.backends.triton.execute.native.build"
            )
        yield request.param


def adder(**options: Any) -> helion.Kernel:
    @helion.kernel(**{"config": CONFIG, **options})
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size()):
            out[tile] = x[tile] + y[tile]
        return out

    return add


@helion.kernel(config=CONFIG, static_shapes=False)
def plus_number(x: torch.Tensor, n: int, half: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * half + n
    return out


@helion.kernel(config=CONFIG)
def scaled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * SCALE
    return out


@helion.kernel(config=CONFIG)
def add_into(x: torch.Tensor, out: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        out[tile] = out[tile] + x[tile]


def random(*shape: int, offset: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor that begins ``offset`` elements into its memory."""
    count = torch.Size(shape).numel()
    return torch.randn(count + offset, device="cuda").to(dtype)[offset:].view(shape)


def check(kernel: helion.Kernel, x: torch.Tensor, y: torch.Tensor) -> None:
    torch.testing.assert_close(kernel(x, y), x + y, rtol=0, atol=0)


def check_way(kernel: helion.Kernel, way: str) -> None:
    """The next call goes first to code of this way."""
    cells = {type(cell.cell_contents).__name__ for cell in kernel.__call__.__closure__ or ()}
    assert kernel.__call__.__code__.co_filename.startswith("<helion dispatch")
    assert cells & {"Guard", "Launch"} == ({"Guard", "Launch"} if way == "native" else set())


def test_calls_go_this_way(way: str) -> None:
    add = adder()
    for _ in range(3):
        check(add, random(N), random(N))
    check_way(add, way)


def test_alignment_alternates() -> None:
    add = adder()
    for first, second in ((0, 0), (1, 0), (0, 1), (0, 0), (1, 1), (2, 3), (4, 0), (0, 0), (1, 0)):
        check(add, random(N, offset=first), random(N, offset=second))


@pytest.mark.parametrize("static", [True, False])
def test_shapes_and_dtypes_alternate(static: bool) -> None:
    add = adder(config=None, static_shapes=static)  # of any rank
    for _ in range(3):
        for shape in ((N,), (N + 1,), (17, 33), (4, 5, 6), (1,), (N,)):
            for dtype in (torch.float32, torch.float16, torch.int32):
                check(add, random(*shape, dtype=dtype), random(*shape, dtype=dtype))
    check(add, random(33, 17).t(), random(17, 33))


def test_empty_tensors() -> None:
    add = adder(static_shapes=False)
    for n in (N, 0, N, 0):
        check(add, random(n), random(n))


def test_numbers_of_all_classes() -> None:
    x = random(N)
    for _ in range(2):
        for n in (1, 16, 17, 0, -16, -1, 1, 2**31 - 1, 17, 16):
            for half in (0.5, -0.25):
                torch.testing.assert_close(plus_number(x, n, half), x * half + n, rtol=1e-6, atol=1e-6)


def test_mutated_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(N)
    for scale in (2.0, 2.0, 3.0, 3.0, 2.0, 5.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        torch.testing.assert_close(scaled(x), x * scale)


def test_arguments_that_are_written_and_share_memory() -> None:
    memory = random(2 * N)
    for first, second in ((0, N), (0, N), (N, 0), (0, 0), (0, N)):
        x, out = memory[first : first + N], memory[second : second + N]
        expected = out + x
        add_into(x, out)
        torch.testing.assert_close(out, expected, rtol=0, atol=0)


def test_kinds_of_tensors() -> None:
    add = adder()
    y = random(N)
    for _ in range(2):
        check(add, random(N), y)
        check(add, torch.nn.Parameter(random(N)), y)
        check(add, random(N).requires_grad_(), y)
        with torch.inference_mode():
            check(add, random(N), y)
            check(add, random(N), random(N))
        with torch.no_grad():
            check(add, random(N), y)
        check(add, y, y)


def test_streams(way: str) -> None:
    add = adder()
    y = random(N)
    check(add, random(N), y)
    check_way(add, way)
    side = torch.cuda.Stream()
    for stream in (side, torch.cuda.current_stream(), side):
        x = random(N)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # a launch on another stream would be first
            x.fill_(3.0)
            out = add(x, y)
        stream.synchronize()
        torch.testing.assert_close(out, 3.0 + y, rtol=0, atol=0)


def test_graph_capture_and_replay(way: str) -> None:
    add = adder()
    x, y, odd = random(N), random(N), random(N, offset=1)
    for _ in range(2):
        check(add, x, y)
        check(add, odd, y)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = add(add(x, y), add(odd, y))
    for value in (1.0, 2.0):
        x.fill_(value)
        odd.fill_(10 * value)
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(out, 11 * value + 2 * y)
    check(add, x, y)


def test_threads_share_a_kernel() -> None:
    add = adder()
    inputs = [(random(N + i % 3, offset=i % 2), random(N + i % 3)) for i in range(8)]
    check(add, *inputs[0])
    torch.cuda.synchronize()  # the threads have streams of their own

    def work(at: int) -> bool:
        x, y = inputs[at]
        with torch.cuda.stream(torch.cuda.Stream()):
            results = [add(x, y) for _ in range(100)]
            torch.cuda.current_stream().synchronize()
            return all(torch.equal(result, x + y) for result in results)

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, range(8)))


def test_first_use_of_the_gpu_in_a_thread() -> None:
    add = adder()
    x, y = random(N), random(N)
    check(add, x, y)
    torch.cuda.synchronize()
    results: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: results.extend((add(x, y), add(x, y))))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert len(results) == 2 and all(torch.equal(result, x + y) for result in results)


def test_hooks(way: str) -> None:
    add = adder()
    x, y = random(N), random(N)
    check(add, x, y)
    seen: list[str] = []

    def enter(metadata: Any) -> None:
        seen.append(metadata.get()["name"])

    triton_knobs.runtime.launch_enter_hook.add(enter)
    try:
        check(add, x, y)
    finally:
        triton_knobs.runtime.launch_enter_hook.remove(enter)
    check(add, x, y)
    check_way(add, way)
    assert seen == ["_helion_add"]


def test_configs_and_reset() -> None:
    add = adder()
    x, y = random(N), random(N)
    for size, warps in ((128, 4), (256, 8), (32, 1), (128, 4)):
        add.bind((x, y)).set_config(helion.Config(block_sizes=[size], num_warps=warps))
        check(add, x, y)
        check(add, x, y)
    add.reset()
    check(add, x, y)
    check(add, x, y)


def test_stub_entered_and_left(way: str) -> None:
    add = adder()
    x, y = random(N), random(N)
    check(add, x, y)
    with stub_driver() as stub:
        for _ in range(3):
            add(x, y)
        assert len(stub.launches) == 3
    for _ in range(2):
        check(add, x, y)
    assert len(stub.launches) == 3
    check_way(add, way)


def test_left_to_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_SKIP_FAST_LAUNCHER", "1")
    add = adder()
    for offset in (0, 0, 1, 0):
        check(add, random(N, offset=offset), random(N))


def test_torch_compile_around_a_call() -> None:
    add = adder()
    x, y = random(N), random(N)
    check(add, x, y)

    def around(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return add(x * 2, y) + 1

    compiled = torch.compile(around, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(x, y), x * 2 + y + 1)


def test_many_arguments(way: str) -> None:
    @helion.kernel(config=CONFIG)
    def total(a, b, c, d, e, f, g, h):  # type: ignore[no-untyped-def]
        out = torch.empty_like(a)
        for tile in hl.tile(a.size(0)):
            out[tile] = a[tile] + b[tile] + c[tile] + d[tile] + e[tile] + f[tile] + g[tile] + h[tile]
        return out

    for _ in range(3):
        args = [random(N) for _ in range(8)]
        torch.testing.assert_close(total(*args), sum(args[1:], args[0]))
    check_way(total, way)
