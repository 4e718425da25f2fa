"""Kernels whose threads meet in global memory: right in the interpreter, seen by the race detector without their
barriers, and right on a GPU every time."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_kernels import CASES, MemoryCase

import helion
import helion.language as hl
from helion import exc
from helion.backends.triton.execute.interpreter.races import detect_races


def config(case: MemoryCase, **options: Any) -> helion.Config:
    sizes = {} if case.tile is None else {"block_sizes": [case.tile]}
    return helion.Config(**sizes, num_warps=case.num_warps, **options)


def bound(case: MemoryCase, device: str = "cpu", **options: Any) -> tuple[Any, tuple[Any, ...]]:
    args = case.make(device)
    return helion.kernel(case.kernel, config=config(case, **options)).bind(args), args


def check(case: MemoryCase, result: Any, device: str = "cpu") -> None:
    torch.testing.assert_close(result, case.eager(*case.make(device)))


def without_barrier(text: str, number: int) -> str:
    parts = text.split("tl.debug_barrier()")
    return "tl.debug_barrier()".join(parts[: number + 1]) + "pass" + "tl.debug_barrier()".join(parts[number + 1 :])


def load(text: str, name: str, folder: Path) -> Any:
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", CASES)
def test_right_and_without_a_race(name: str) -> None:
    case = CASES[name]
    kernel, args = bound(case)
    assert kernel.to_triton_code().count("tl.debug_barrier()") == case.barriers
    with detect_races():
        check(case, kernel(*args))


@pytest.mark.parametrize("name", CASES)
def test_a_missing_barrier_is_seen(name: str, tmp_path: Path) -> None:
    """Every barrier is needed: the race detector says so where any one of them is taken away, on some path."""
    case = CASES[name]
    kernel, _ = bound(case)
    text = kernel.to_triton_code(output_origin_lines=True)
    for number in sorted(set(range(case.barriers)) - set(case.unseen)):
        module = load(without_barrier(text, number), f"missing_{number}", tmp_path)
        function = getattr(module, case.kernel.__name__)
        siblings = [other for other in CASES.values() if other.kernel is case.kernel]
        messages = []
        for other in siblings:
            with detect_races():
                try:
                    function(*other.make("cpu"))
                except exc.DataRace as error:
                    messages.append(str(error))
        assert messages, f"nothing seen without barrier {number} of\n{text}"
        assert "src[memory_kernels.py:" in messages[0]


def test_message_names_element_and_lines(tmp_path: Path) -> None:
    kernel, args = bound(CASES["stored twice"])
    text = kernel.to_triton_code(output_origin_lines=True)
    module = load(without_barrier(text, 0), "no_barrier", tmp_path)
    with detect_races(), pytest.raises(exc.DataRace) as caught:
        module.stored_twice(*args)
    message = str(caught.value)
    assert message.startswith("buf[4095] is written in program (0, 0, 0) at src[memory_kernels.py:")
    assert "hl.store(buf, [t.index], x[t] * 2), then written in program (0, 0, 0)" in message
    assert "no barrier in between" in message


def test_nothing_is_watched_unless_asked_for(tmp_path: Path) -> None:
    kernel, args = bound(CASES["stored twice"])
    module = load(without_barrier(kernel.to_triton_code(), 0), "unwatched", tmp_path)
    check(CASES["stored twice"], module.stored_twice(*args))


GPU_OPTIONS: tuple[dict[str, Any], ...] = ({}, {"num_stages": 3}, {"indexing": "tensor_descriptor"})


@pytest.mark.parametrize("flatten", [False, True])
def test_tiles_of_sizes_that_only_calls_know(flatten: bool) -> None:
    @helion.kernel(static_shapes=False, config=helion.Config(block_sizes=[16, 16], flatten_loops=[flatten]))
    def swap(x: torch.Tensor, y: torch.Tensor) -> None:
        for tile in hl.tile(x.size()):
            first, second = x[tile], y[tile]
            x[tile] = second * 2
            y[tile] = first + 1

    for shape in ((5, 9), (4, 33), (1, 7)):
        x, y = torch.randn(shape), torch.randn(shape)
        expected = (y * 2, x + 1)
        swap(x, y)
        assert torch.equal(x, expected[0]) and torch.equal(y, expected[1])


@pytest.mark.gpu
@pytest.mark.parametrize("options", GPU_OPTIONS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_right_every_time_on_a_gpu(name: str, options: dict[str, Any]) -> None:
    case = CASES[name]
    for warps in {case.num_warps, 4, 8}:
        kernel = helion.kernel(case.kernel, config=helion.Config(**{**config(case, **options), "num_warps": warps}))
        want = case.eager(*case.make("cuda"))
        for trial in range(50):
            torch.testing.assert_close(kernel(*case.make("cuda")), want, msg=lambda m, t=trial: f"trial {t}: {m}")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["shifted", "branch not taken", "reversed in place", "prefix sums"])
def test_many_programs_at_once_on_a_gpu(name: str) -> None:
    """The same beside work that keeps the SMs busy, so that warps of a program drift apart."""
    case = CASES[name]
    kernel, _ = bound(case, "cuda")
    noise = torch.randn(2048, 2048, device="cuda")
    other = torch.cuda.Stream()
    want = case.eager(*case.make("cuda"))
    for _ in range(50):
        with torch.cuda.stream(other):
            noise = noise @ noise * 1e-3
        torch.testing.assert_close(kernel(*case.make("cuda")), want)
