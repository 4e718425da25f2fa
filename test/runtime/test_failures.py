"""Launches that Triton refuses: what the error says, and when another config takes over."""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

import helion
import helion.language as hl
from helion import Config, exc
from helion.backends.triton.execute import fast_launch
from helion.backends.triton.execute.fast_launch import FastLauncher
from helion.runtime import stub_driver
from helion.runtime.ref_mode import run_reference
from helion.runtime.specialization import binary_check, repro


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


def softmax_of_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = torch.zeros_like(out[tile_m, :], dtype=torch.float32)
        for tile_k in hl.tile(k):
            # what is more than a sum of products cannot be computed by a kernel in front
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :]).clamp(min=-1e30)
        out[tile_m, :] = torch.softmax(acc, dim=-1)
    return out


def product_in_fixed_tiles(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, y.size(1)], block_size=[None, 8192]):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
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
        monkeypatch.setattr(fast_launch, "launcher", made)
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
        monkeypatch.setattr(fast_launch, "launcher", lambda *args: made(*args).ordinary)
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
    assert bound.config == configs[1]
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
    with pytest.raises(exc.NoFeasibleConfig) as caught:
        kernel(X, Y)
    assert made.launches == len(configs)
    last = bound.short_config(bound.conservative_config())
    assert caught.value.message == (
        f"No config of kernel 'product' fits sm_90 (H100 SXM): {last!r}, the last to try, needs 300000 bytes of shared "
        "memory, sm_90 (H100 SXM) has 232448; give a config with smaller block_sizes, or split the kernel"
    )
    assert isinstance(caught.value.__cause__, exc.TritonError) and caught.value.__cause__.__cause__ is TOO_BIG


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
    assert bound.config == bound.default_config()
    with pytest.raises(exc.TritonError):
        bound.compile_config(config)(X, Y)


def test_calls_that_have_changed_something_are_not_made_again(failing: Callable[..., Failing]) -> None:
    count = torch.zeros(1)
    failing(TOO_BIG)
    with pytest.raises(exc.TritonError):
        helion.kernel(counted, ignore_warnings=[exc.TensorOperationInWrapper])(X, count)
    assert count.item() == 1
    x = torch.zeros(1 << 18)  # long enough for a launch of each phase
    made = failing()
    kernel = helion.kernel(in_two_phases)
    bound = kernel.bind((x,))
    bound.variant.ensure_config_exists((x,))
    made.errors = [None, TOO_BIG]
    with pytest.raises(exc.TritonError):
        kernel(x)
    assert made.launches == 2


@pytest.mark.parametrize("function", [in_two_phases, in_a_host_loop, behind_a_host_loop])
@pytest.mark.parametrize("before", [0, 1])
def test_a_first_launch_that_does_not_fit_gives_way_wherever_it_stands(
    function: Callable[..., Any], before: int, failing: Callable[..., Failing]
) -> None:
    x = torch.arange(float(1 << 18)) / 1000  # long enough for several seeds, and a launch of each phase
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


# --- kernels that no config can launch ---------------------------------------------------------------------------------


def wide(n: int, m: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(m, 16, dtype=torch.bfloat16), torch.randn(16, n, dtype=torch.bfloat16)


NOTHING_FITS = [("sm_90", 8192, 262272, 232448), ("sm_120", 4096, 131200, 101376), ("gfx942", 4096, 131072, 65536)]


@pytest.mark.parametrize(("target", "n", "needed", "available"), NOTHING_FITS)
def test_whole_rows_that_never_fit_are_refused_before_anything_is_compiled(
    target: str,
    n: int,
    needed: int,
    available: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(binary_check, "decide", lambda *_: pytest.fail("a config is compiled to look at it"))
    args = wide(n)
    bound = helion.kernel(softmax_of_product).bind(args, target=target)
    assert not bound.seeds and bound.default_config() == bound.conservative_config()
    assert any(f"{needed} bytes" in reason and f"has {available}" in reason for _, reason in bound.declined)
    expected = (
        f"No config of kernel 'softmax_of_product' fits {bound.target}: even in the smallest tiles {needed} bytes of "
        f"shared memory are needed, {bound.target} has {available}; the kernel holds the whole of r0, {n} elements, at "
        "once: loop over it with hl.tile, as examples/matmul_*_tiled.py do, or split it"
    )
    with stub_driver() as stub:
        for run in (bound, lambda *args: bound.variant.ensure_config_exists(args), lambda *args: bound.autotune(args)):
            with pytest.raises(exc.NoFeasibleConfig) as caught:
                run(*args)
            assert caught.value.message == expected and caught.value.location is not None
    assert not stub.launches and not bound.variant.compiled._functions
    assert "no config given" not in capsys.readouterr().err
    assert json.loads(bound.explain("json"))["refusal"] == expected and expected in bound.explain()
    assert "softmax_of_product" in bound.to_triton_code()
    # CPU tensors are interpreted, whatever the target
    torch.testing.assert_close(bound(*args), torch.softmax(args[0] @ args[1], -1), rtol=2e-2, atol=2e-2)


def test_tiles_that_the_kernel_fixes_are_named() -> None:
    args = wide(16384)
    bound = helion.kernel(product_in_fixed_tiles).bind(args, target="sm_90")
    message = r"has 232448; the kernel fixes the tiles of tile_n at 8192 elements: make its block_size smaller"
    with stub_driver(), pytest.raises(exc.NoFeasibleConfig, match=message):
        bound(*args)


def test_what_may_fit_is_not_refused() -> None:
    args = wide(8192)
    with stub_driver():
        given = helion.kernel(softmax_of_product, config=Config(block_sizes=[1, 16])).bind(args, target="sm_90")
        given.variant.ensure_config_exists(args)  # the user's own
        empty = wide(8192, m=0)
        kernel = helion.kernel(softmax_of_product)
        assert kernel.bind(empty, target="sm_90")(*empty).shape == (0, 8192)  # launches nothing
        assert kernel.bind(wide(4096), target="sm_90")._analysis.refusal() is None


@pytest.mark.parametrize(("available", "refused"), [(236_567, True), (236_568, False)])
def test_only_what_is_certain_is_refused_ahead(available: int, refused: bool) -> None:
    """262272 bytes are predicted: at least (262272 - 2048) / 1.10 of them are real."""
    target = dataclasses.replace(helion.hardware.target("sm_90"), smem_per_block_bytes=available)
    bound = helion.kernel(softmax_of_product).bind(wide(5000), target=target)
    assert not bound.seeds and (bound._analysis.refusal() is not None) == refused
    assert not refused or "holds the whole of r0, 5000 elements padded to 8192, at once" in bound.explain()


def test_rows_that_differ_from_call_to_call_are_refused_when_they_do_not_fit(failing: Callable[..., Failing]) -> None:
    kernel = helion.kernel(softmax_of_product, static_shapes=False, size_hints=())
    bound = kernel.bind(wide(8192))
    assert not bound.seeds and bound._analysis.refusal() is None and kernel.bind(wide(100)) is bound
    failing(TOO_BIG)
    message = r"needs 300000 bytes .* has 232448; the kernel holds the whole of r0 at once: loop over it with hl.tile"
    with pytest.raises(exc.NoFeasibleConfig, match=message) as caught:
        kernel(*wide(8192))
    assert isinstance(caught.value.__cause__, exc.TritonError)
    x, y = wide(100)
    torch.testing.assert_close(kernel(x, y), torch.softmax(x @ y, -1), rtol=2e-2, atol=2e-2)
