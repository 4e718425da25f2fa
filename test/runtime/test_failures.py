"""Launches that Triton refuses: what the error says, and when another config takes over."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import pytest
import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

import helion
import helion.language as hl
from helion import exc
from helion.runtime import bound as bound_module
from helion.runtime import repro
from helion.runtime.fast_launch import FastLauncher
from helion.runtime.ref_mode import run_reference


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def counted(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    count += 1
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + 1
    return out


def in_two_phases(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        x[tile] = x[tile] + 1
    hl.barrier()
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + 1
    return out


def in_a_host_loop(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for step in range(3):
        for tile in hl.tile(x.size()):
            out[tile] += x[tile] + step
    return out


def behind_a_host_loop(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for step in range(2):
        for tile in hl.tile(x.size()):
            out[tile] += x[tile] + step
        scale = step * 2
    for tile in hl.tile(x.size()):
        out[tile] = out[tile] * scale
    return out


X, Y = torch.randn(64, 64), torch.randn(64, 64)
TOO_BIG = OutOfResources(300_000, 232_448, "shared memory")


class Failing:
    """Launchers that fail with ``errors``, one a launch (None: it launches), and then launch. ``launches`` counts all."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.launches = 0

    def __call__(self, ordinary: Callable[..., Any], target: helion.hardware.Target) -> Callable[..., Any]:
        def launch(*args: Any, **options: Any) -> Any:
            self.launches += 1
            error = self.errors.pop(0) if self.errors else None
            if error is not None:
                raise error
            return ordinary(*args, **options)

        return FastLauncher(launch, target)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Failing]:
    def install(*errors: Exception) -> Failing:
        made = Failing(*errors)
        monkeypatch.setattr(bound_module, "launcher", made)
        return made

    return install


@pytest.mark.parametrize(
    "error",
    [
        PTXASError("ptxas fatal: too many registers"),
        CompilationError(None, ast.parse("1"), "what the kernel did wrong"),
        RuntimeError("PassManager::run failed"),
    ],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.parametrize("fast", [True, False])
def test_the_error_names_the_kernel_the_config_the_source_and_the_reason(
    error: Exception, fast: bool, failing: Callable[..., Failing], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = failing(error)
    if not fast:
        monkeypatch.setattr(bound_module, "launcher", lambda *args: made(*args).ordinary)
    kernel = helion.kernel(product)
    with pytest.raises(exc.TritonError) as caught:
        kernel(X, Y)
    bound = kernel.bind((X, Y))
    text = str(caught.value)
    assert "kernel 'product'" in text and str(error) in text
    assert bound.format_kernel_decorator(bound.default_config()) in text
    assert bound.get_cached_path(bound.default_config()) in text
    assert caught.value.__cause__ is error
    torch.testing.assert_close(kernel(X, Y), X @ Y, rtol=1e-2, atol=1e-2)


def test_other_errors_are_left_alone(failing: Callable[..., Failing]) -> None:
    for error in (RuntimeError("CUDA error: an illegal memory access was encountered"), KeyError("x")):
        failing(error)
        with pytest.raises(type(error)) as caught:
            helion.kernel(product)(X, Y)
        assert caught.value is error


def test_a_default_that_does_not_fit_gives_way_to_the_next_seed(
    failing: Callable[..., Failing], capsys: pytest.CaptureFixture[str]
) -> None:
    made = failing(TOO_BIG, TOO_BIG)
    kernel = helion.kernel(product)
    torch.testing.assert_close(kernel(X, Y), X @ Y, rtol=1e-2, atol=1e-2)
    bound = kernel.bind((X, Y))
    configs = [s.config for s in bound.seeds if s.config != bound.default_config()] + [bound.conservative_config()]
    assert bound._config == configs[1]
    lines = [line for line in capsys.readouterr().err.splitlines() if "does not fit" in line]
    assert len(lines) == 2 and "Required: 300000" in lines[0]
    assert bound.format_kernel_decorator(configs[0]) in lines[0]
    assert bound.format_kernel_decorator(configs[1]) in lines[1]
    assert made.launches == 3
    kernel(X, Y)
    assert made.launches == 4, "the config that works is kept"


def test_the_last_config_that_does_not_fit_is_an_error(failing: Callable[..., Failing]) -> None:
    kernel = helion.kernel(product)
    bound = kernel.bind((X, Y))
    configs = {bound.default_config(), bound.conservative_config(), *(s.config for s in bound.seeds)}
    made = failing(*[TOO_BIG] * 50)
    with pytest.raises(exc.TritonError, match="Required: 300000"):
        kernel(X, Y)
    assert made.launches == len(configs)


def test_a_config_that_was_asked_for_is_never_replaced(failing: Callable[..., Failing]) -> None:
    config = helion.Config(block_sizes=[16, 16, 16])
    failing(TOO_BIG)
    with pytest.raises(exc.TritonError):
        helion.kernel(product, config=config)(X, Y)
    failing(TOO_BIG, TOO_BIG)
    bound = helion.kernel(product).bind((X, Y))
    bound.set_config(bound.default_config())
    with pytest.raises(exc.TritonError):
        bound(X, Y)
    assert bound._config == bound.default_config()
    with pytest.raises(exc.TritonError):
        bound.compile_config(config)(X, Y)


def test_calls_that_have_changed_something_are_not_made_again(failing: Callable[..., Failing]) -> None:
    count = torch.zeros(1)
    failing(TOO_BIG)
    with pytest.raises(exc.TritonError):
        helion.kernel(counted, ignore_warnings=[exc.TensorOperationInWrapper])(X, count)
    assert count.item() == 1
    x = torch.zeros(16)
    made = failing()
    kernel = helion.kernel(in_two_phases)
    bound = kernel.bind((x,))
    bound.ensure_config_exists((x,))
    made.errors = [None, TOO_BIG]
    with pytest.raises(exc.TritonError):
        kernel(x)
    assert made.launches == 2


@pytest.mark.parametrize("function", [in_two_phases, in_a_host_loop, behind_a_host_loop])
@pytest.mark.parametrize("before", [0, 1])
def test_a_first_launch_that_does_not_fit_gives_way_wherever_it_stands(
    function: Callable[..., Any], before: int, failing: Callable[..., Failing]
) -> None:
    x = torch.arange(4096.0) / 100  # long enough for several seeds
    kernel = helion.kernel(function)
    expected = run_reference(kernel, (x.clone(),))
    made = failing(*[None] * before, TOO_BIG)
    if before:
        with pytest.raises(exc.TritonError):
            kernel(x)
        assert made.launches == 2
    else:
        torch.testing.assert_close(kernel(x), expected)


def test_a_failed_launch_is_shown_as_a_script(
    failing: Callable[..., Failing], capsys: pytest.CaptureFixture[str]
) -> None:
    failing(PTXASError("refused"))
    kernel = helion.kernel(product, print_repro=True)
    bound = kernel.bind((X, Y))
    with pytest.raises(exc.TritonError):
        bound.compile_config({"block_sizes": [16, 16, 16]})(X, Y)
    printed = capsys.readouterr().err
    assert printed.count(repro.BEGIN) == 1 and "block_sizes=[16, 16, 16]" in printed
