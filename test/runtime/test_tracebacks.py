"""What a user sees of an error: frames of the user's, the message, the line; no more of ours than where it was called."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc


def helper(v: torch.Tensor) -> torch.Tensor:
    return v @ 3


@helion.kernel
def bad(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = helper(x[tile])
    return out


@helion.kernel
def good(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + 1
    return out


def called() -> None:
    bad(torch.randn(4))


def bound() -> None:
    bad.bind((torch.randn(4),))


def wrong_config() -> None:
    good.bind((torch.randn(4),)).compile_config({"num_warps": 3})


def other_arguments() -> None:
    good.bind((torch.randn(4),))(torch.randn(5))


def wrong_format() -> None:
    good.bind((torch.randn(4),)).explain("yaml")


@helion.kernel
def without_derivative(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.cummax(x[tile, :], 1)[0]
    return out


def differentiated() -> None:
    without_derivative.differentiable()(torch.randn(4, 5, requires_grad=True))


def differentiated_at_once() -> None:
    helion.experimental.backward(without_derivative, torch.randn(4, 5), torch.randn(4, 5))


CALLS = (called, bound, wrong_config, other_arguments, wrong_format, differentiated, differentiated_at_once)
NOTE = "HELION_FULL_TRACEBACK=1 shows them"


def frames_of(call: Callable[[], Any]) -> tuple[list[str], str]:
    """Files of the traceback, and its text."""
    with pytest.raises(exc.Base) as caught:
        call()
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    return files, "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_frames_of_the_compiler_are_left_out(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    files, text = frames_of(call)
    ours = [file for file in files if "/helion/" in file]
    assert files[1] == __file__ and len(ours) == 1
    assert text.count(NOTE) == (1 if sys.version_info >= (3, 11) and call is not other_arguments else text.count(NOTE))
    monkeypatch.setenv("HELION_FULL_TRACEBACK", "1")
    all_files, full = frames_of(call)
    assert len(all_files) > len(files) and NOTE not in full


def test_the_line_of_the_user_s_kernel_is_shown() -> None:
    _, text = frames_of(called)
    assert "return v @ 3" in text and "in helper" in text


def test_errors_of_the_compiler_itself_keep_their_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise exc.InternalError(step="launch", reason="for this test")

    monkeypatch.setattr("helion.runtime.kernel.check_call", fail)
    files, text = frames_of(called)
    assert sum("/helion/" in file for file in files) > 1 and NOTE not in text
