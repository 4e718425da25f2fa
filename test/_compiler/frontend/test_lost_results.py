"""Results that are lost, tensors on another device, and containers in arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc

CONFIG = helion.Config(block_sizes=[8])


def no_return(x: torch.Tensor) -> None:
    out = torch.empty_like(x)
    for t in hl.tile(out.size(0)):
        out[t, :] = x[t, :] + 1


def one_of_two(x: torch.Tensor) -> torch.Tensor:
    out, copy = torch.empty_like(x), 1
    sums = x.new_zeros([x.size(0)])
    for t in hl.tile(x.size(0)):
        out[t, :] = x[t, :] + copy
        hl.store(sums, [t], x[t, :].sum(-1))
    return out


def counted(x: torch.Tensor) -> None:
    total = torch.zeros([1], device=x.device)
    for t in hl.tile(x.size(0)):
        hl.atomic_add(total, [0], x[t, :].sum())


def in_place(x: torch.Tensor) -> None:
    flat = x.view(-1)
    for t in hl.tile(flat.size(0)):
        flat[t] = flat[t] + 1


def copied_by_host(x: torch.Tensor) -> None:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t, :] = x[t, :] + 1
    x.copy_(out)


def workspace(x: torch.Tensor) -> torch.Tensor:
    kept, out = torch.empty_like(x), torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        kept[t, :] = x[t, :] + 1
        out[t, :] = kept[t, :] * 2
    return out


def old_of_atomic(x: torch.Tensor) -> torch.Tensor:
    counter = torch.zeros([1], dtype=torch.int32, device=x.device)
    out = torch.empty([x.size(0)], dtype=torch.int32, device=x.device)
    for t in hl.grid(x.size(0)):
        out[t] = hl.atomic_add(counter, [0], 1)
    return out


def renamed(x: torch.Tensor) -> torch.Tensor:
    made = torch.empty_like(x)
    out = made.view(-1)
    for t in hl.tile(x.size(0)):
        made[t, :] = x[t, :] + 1
    return out


@pytest.mark.parametrize(("fn", "name"), [(no_return, "out"), (one_of_two, "sums"), (counted, "total")])
@pytest.mark.parametrize("static", [True, False])
def test_lost_results_are_warned_about(fn: Any, name: str, static: bool, capsys: pytest.CaptureFixture[str]) -> None:
    helion.kernel(fn, config=CONFIG, static_shapes=static)(torch.randn(13, 5) + 1)
    said = capsys.readouterr().err
    assert f"WARNING[ResultNotReturned]: Kernel '{fn.__name__}' makes '{name}'" in said
    assert said.count("ResultNotReturned") == 1 and f"Add `return {name}`" in said


def test_the_warning_can_be_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    helion.kernel(no_return, config=CONFIG, ignore_warnings=["ResultNotReturned"])(torch.randn(13, 5))
    assert "ResultNotReturned" not in capsys.readouterr().err


@pytest.mark.parametrize("fn", [in_place, copied_by_host, workspace, old_of_atomic, renamed])
def test_results_that_are_used_are_not(fn: Any, capsys: pytest.CaptureFixture[str]) -> None:
    config = helion.Config() if fn is old_of_atomic else CONFIG
    helion.kernel(fn, config=config)(torch.randn(13, 5) + 1)
    assert "ResultNotReturned" not in capsys.readouterr().err


def by_factory(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape, device="cuda")
    for t in hl.tile(x.size(0)):
        out[t, :] = x[t, :] + 1
    return out


def by_cuda(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x).cuda()
    for t in hl.tile(x.size(0)):
        out[t, :] = x[t, :] + 1
    return out


def by_to(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x).to("cuda")
    for t in hl.tile(x.size(0)):
        out[t, :] = x[t, :] + 1
    return out


@pytest.mark.parametrize("fn", [by_factory, by_cuda, by_to])
@pytest.mark.parametrize("static", [True, False])
def test_tensors_on_a_gpu_for_arguments_on_the_cpu(fn: Any, static: bool) -> None:
    kernel = helion.kernel(fn, config=CONFIG, static_shapes=static)
    x = torch.randn(13, 5)
    assert "tl.store" in kernel.bind((x,), target="h200").to_code()
    with pytest.raises(exc.TensorOnOtherDevice, match=r"'out' on cuda.*device=x\.device") as caught:
        kernel(x)
    assert "out[t, :] = x[t, :] + 1" in str(caught.value)


def added(x: torch.Tensor, y: Any) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t, :] = torch.maximum(x[t, :], x[t, :] + y)
    return out


def clamped(x: torch.Tensor, y: Any) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t, :] = torch.clamp(x[t, :], y)
    return out


def from_the_left(x: torch.Tensor, y: Any) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t, :] = y * x[t, :]
    return out


@pytest.mark.parametrize("fn", [added, clamped, from_the_left])
@pytest.mark.parametrize("y", [[1.0, 2.0], (1, 2), {"a": 1.0}])
def test_containers_are_no_operands(fn: Any, y: Any) -> None:
    kind = type(y).__name__
    with pytest.raises(exc.TypeInferenceError, match=f"a {kind} was used in .*one by one, or pass a tensor"):
        helion.kernel(fn, config=CONFIG)(torch.randn(13, 5), y)
