"""Backward kernels are kernels that no rule was made for: all of them have seeds for GPUs that are not here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradients.kernels import CASES, Case
from gradients.test_backward import incoming

import helion
from helion.runtime.torch_interop.gradients import BackwardKernel

TARGETS = ("h200", "sm_80", "sm_100", "gfx942")


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_backward_kernels_have_seeds(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[tuple[Any, tuple[Any, ...]]] = []
    run = BackwardKernel.__call__

    def recorded(self: BackwardKernel, step: Any, gradients: Any) -> Any:
        called.append((self.kernel, self.arguments(step, gradients)))
        return run(self, step, gradients)

    monkeypatch.setattr(BackwardKernel, "__call__", recorded)
    arguments = case.arguments(torch.float32)
    given = incoming(case, arguments, torch.float32)
    helion.experimental.backward(case.kernel, given if len(given) > 1 else given[0], *arguments)
    for kernel, values in called:
        for target in TARGETS:
            bound = kernel.bind(values, target=target)
            assert bound.seeds, f"{target}: {bound.declined}"
            assert bound.config_spec.normalize(bound.default_config())
