"""Every example against eager PyTorch, its generated source, and its binding to GPUs that are not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import helion
from helion._testing import EXAMPLES_DIR, as_meta, check, import_path, map_tensors
from helion.backends.triton.execute.interpreter.races import detect_races

# Shows kernels of the other files and has none of its own.
NOT_EXAMPLES = ("demo",)
EXAMPLES = tuple(sorted(path.stem for path in EXAMPLES_DIR.glob("*.py") if path.stem not in NOT_EXAMPLES))


def _module(name: str) -> ModuleType:
    return import_path(EXAMPLES_DIR / f"{name}.py")


def _cases() -> Iterator[Any]:
    for name in EXAMPLES:
        module = _module(name)
        for case, kernel, args in module.cases():
            yield pytest.param(kernel, module.reference, args, id=f"{name}-{case.replace(' ', '_')}")


every_case = pytest.mark.parametrize(("kernel", "reference", "args"), tuple(_cases()))


@every_case
def test_result_equals_reference(
    kernel: helion.Kernel, reference: Callable[..., Any], args: tuple[Any, ...], request: pytest.FixtureRequest
) -> None:
    with detect_races():
        check(request.node.name, kernel, reference, args)


@every_case
def test_generated_source_is_python(
    kernel: helion.Kernel, reference: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    source = kernel.bind(args).to_triton_code()
    compile(source, f"<generated from {kernel.name}>", "exec")


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@every_case
def test_binds_to_an_absent_gpu_on_meta_tensors(
    kernel: helion.Kernel, reference: Callable[..., Any], args: tuple[Any, ...], target: str
) -> None:
    source = kernel.bind(as_meta(args), target=target).to_triton_code()
    compile(source, f"<generated from {kernel.name} for {target}>", "exec")


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_reads_like_the_others(name: str) -> None:
    module = _module(name)
    assert module.__doc__ and 2 <= len(module.__doc__.strip().splitlines()) <= 5
    assert callable(module.main)
    labels = [case for case, _, _ in module.cases()]
    assert len(labels) == len(set(labels)) >= 3
    shown = {id(kernel) for _, kernel, _ in module.cases()}
    defined = {id(value) for value in vars(module).values() if isinstance(value, helion.Kernel)}
    assert shown == defined, "cases() must cover every kernel of the file"


# What the comparison itself must refuse.


def test_check_refuses_an_error_of_one_percent_of_small_values() -> None:
    x = torch.rand([7, 1000])
    assert check("exact", lambda x: torch.softmax(x, -1), lambda x: torch.softmax(x, -1), (x,)) < 1e-8
    with pytest.raises(AssertionError, match="scaled: output 0 of 1"):
        check("scaled", lambda x: torch.softmax(x, -1) * 1.01, lambda x: torch.softmax(x, -1), (x,))


def test_check_refuses_another_shape_and_another_number_of_outputs() -> None:
    x = torch.rand([7, 63])
    with pytest.raises(AssertionError, match="shape"):
        check("flat", lambda x: x.view(-1), lambda x: x, (x,))
    with pytest.raises(AssertionError, match="pair: 2 outputs, the reference has 1"):
        check("pair", lambda x: (x, x), lambda x: x, (x,))


def test_check_compares_integers_exactly() -> None:
    x = torch.arange(63)
    assert check("same", lambda x: x, lambda x: x, (x,)) == 0.0
    with pytest.raises(AssertionError, match="off by one"):
        check("off by one", lambda x: x + 1, lambda x: x, (x,))


def test_map_tensors_reaches_into_closures() -> None:
    bias = torch.ones(3)

    def epilogue(acc: torch.Tensor) -> torch.Tensor:
        return acc + bias

    mapped = map_tensors({"functions": (epilogue, len)}, lambda tensor: tensor * 10)
    assert mapped["functions"][0](torch.zeros(3)).tolist() == [10.0, 10.0, 10.0]
    assert mapped["functions"][1] is len
    assert epilogue(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]
