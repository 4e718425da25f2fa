"""``backend="auto"`` takes whatever some backend takes: over all examples, and kernels that nothing was tuned on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from unseen_kernels import unseen
from varied_kernels import cells

import helion
import helion.language as hl
from helion import exc
from helion._compiler.ir.grammar import Program
from helion._testing import EXAMPLES_DIR, as_meta, import_path
from helion.backends import BACKENDS
from helion.hardware import Target

NOT_EXAMPLES = ("demo",)
TARGETS = ("h200", "b200")
#: The sample takes one of so many kernels, so as to meet each family.
EVERY = 29


@pytest.fixture(autouse=True)
def all_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning and printing need no DSL."""
    monkeypatch.setattr(type(BACKENDS["cute"]), "is_installed", True)


def _examples() -> Iterator[Any]:
    for path in sorted(EXAMPLES_DIR.glob("*.py")):
        if path.stem not in NOT_EXAMPLES:
            module = import_path(path)
            for case, kernel, args in module.cases():
                yield pytest.param(kernel, as_meta(args), id=f"{path.stem}-{case.replace(' ', '_')}")


def _others() -> Iterator[Any]:
    for varied in (*unseen(), *cells()):
        yield pytest.param(varied.kernel, varied.args, id=str(varied).replace(" ", "_"))


EXAMPLES, OTHERS = tuple(_examples()), tuple(_others())


def settled(kernel: helion.Kernel, args: tuple[Any, ...], backend: str, target: str) -> tuple[str, str]:
    """What runs a kernel with a backend, or "" and why it cannot have that kernel."""
    settings = {**kernel.settings.to_dict(), "backend": backend}
    own = helion.kernel(kernel.fn, configs=kernel.configs, settings=helion.Settings(**settings))
    try:
        bound = own.bind(args, target=target)
        text = bound.to_code()
    except exc.Base as refusal:
        return "", str(refusal)
    compile(text, f"<generated from {kernel.name}>", "exec")
    return bound.backend, ""


def check_total(kernel: helion.Kernel, args: tuple[Any, ...], target: str) -> None:
    """``auto`` runs what it should: a backend that takes the kernel, if there is one, and else it says why none does."""
    alone = {name: settled(kernel, args, name, target) for name in BACKENDS}
    taken = {name for name, (ran, _) in alone.items() if ran}
    chosen, refusal = settled(kernel, args, "auto", target)
    assert chosen in taken if taken else not chosen, (alone, chosen, refusal)
    if not taken:
        assert refusal, alone


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("kernel", "args"), EXAMPLES[::EVERY])
def test_a_sample_of_the_examples(kernel: helion.Kernel, args: tuple[Any, ...], target: str) -> None:
    check_total(kernel, args, target)


@pytest.mark.parametrize(("kernel", "args"), OTHERS[::EVERY])
def test_a_sample_of_other_kernels(kernel: helion.Kernel, args: tuple[Any, ...]) -> None:
    check_total(kernel, args, TARGETS[0])


@pytest.mark.prove
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("kernel", "args"), (*EXAMPLES, *OTHERS))
def test_every_kernel(kernel: helion.Kernel, args: tuple[Any, ...], target: str) -> None:
    check_total(kernel, args, target)


def no_dot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Refused by every backend for its dtype alone."""
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float64, device=x.device)
    for i, j in hl.tile(out.size()):
        total = hl.zeros([i, j], dtype=torch.float64)
        for k in hl.tile(x.size(1)):
            total = hl.dot(x[i, k], y[k, j], acc=total)
        out[i, j] = total
    return out


def test_where_no_backend_takes_a_kernel_each_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: Any, program: Program, target: Target) -> exc.Base:
        return exc.BackendUnsupported(what="this kernel", backend="triton", remedy="; it is a test")

    args = tuple(torch.empty(64, 64, dtype=torch.float64, device="meta") for _ in range(2))
    monkeypatch.setattr(type(BACKENDS["triton"]), "refusal", refuses)
    chosen, refusal = settled(helion.kernel(no_dot), args, "auto", "h200")
    assert not chosen and "it is a test" in refusal and "Not cute either: " in refusal
    check_total(helion.kernel(no_dot), args, "h200")
