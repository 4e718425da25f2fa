"""Every example with one of its sizes made 0 or 1: eager's result, or an error that has a name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import helion
from helion import exc
from helion._testing import EXAMPLES_DIR, as_meta, check, import_path, map_tensors

NOT_EXAMPLES = ("demo",)
#: Kernels that run with no elements in the sample of `make test`, one per kind of loop.
SAMPLE = ("bmm", "embedding", "layer_norm", "matmul", "softmax", "split_k")
#: What sizes of 1 are refused for: a tile that walks over more is stored into, or masks, a dimension of size 1.
BROADCAST: tuple[str, ...] = ("concatenate", "grouped_gemm", "attention")
#: What the function itself refuses in eager mode: a view with -1 among sizes of 0, 0 heads shared by groups, a scale of
#: 1 / sqrt(0), the largest of no elements, a loop that stores nothing.
UNKNOWN_TO_EAGER = (
    "attention",
    "flex_attention",
    "mamba2_chunk_scan",
    "mamba2_chunk_state",
    "softmax",
    "batch_softmax",
    "scaled_masked_softmax",
    "low_memory_dropout",
)
#: Kernels whose assertions refuse sizes that the reference takes.
ASSERTING = ("flex_attention", "mamba2_chunk_scan", "mamba2_chunk_state", "nvfp4_gemm", "rope", "swiglu")
#: Indices out of range, which checked mode looks at, and a -1 of the reference's views that could be any size.
UNJUDGED = ("out of bounds for dimension", "is ambiguous")
#: Offsets of groups that point past the rows that are left: example and number of rows.
OFFSETS = ("grouped_gemm", 51)
#: The same with sizes that are not known when the kernel is compiled.
BROADCAST += ASSERTING


def sizes_of(args: tuple[Any, ...]) -> list[int]:
    found: set[int] = set()
    for arg in args:
        map_tensors(arg, lambda tensor: found.update(tensor.shape) or tensor)
    return sorted(found - {0, 1})


def with_size(args: tuple[Any, ...], size: int, other: int) -> tuple[Any, ...]:
    """`args` with `other` in place of every size, and every integer, that is `size`."""

    def shrink(tensor: torch.Tensor) -> torch.Tensor:
        made = tensor
        for dim in [d for d, n in enumerate(tensor.shape) if n == size]:
            made = made.narrow(dim, 0, other)
        return made.clone() if tensor.is_contiguous() else made

    return tuple(other if type(arg) is int and arg == size else map_tensors(arg, shrink) for arg in args)


def _cases() -> Iterator[Any]:
    for name in sorted(path.stem for path in EXAMPLES_DIR.glob("*.py") if path.stem not in NOT_EXAMPLES):
        module = import_path(EXAMPLES_DIR / f"{name}.py")
        seen = set()
        for _, kernel, args in module.cases():
            if kernel not in seen:
                seen.add(kernel)
                marks = () if name in SAMPLE else (pytest.mark.prove,)
                yield pytest.param(name, kernel, module.reference, args, id=f"{name}-{kernel.name}", marks=marks)


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize(("name", "kernel", "reference", "args"), tuple(_cases()))
def test_sizes_of_0_and_1(
    name: str, kernel: helion.Kernel, reference: Any, args: tuple[Any, ...], static: bool
) -> None:
    used = kernel if static else helion.kernel(kernel.fn, static_shapes=False)
    for size in sizes_of(args):
        for other in (0, 1):
            changed = with_size(args, size, other)
            copies = tuple(map_tensors(arg, lambda t: t.clone() if t.is_contiguous() else t) for arg in changed)
            try:
                reference(*(map_tensors(arg, lambda t: t.double() if t.is_floating_point() else t) for arg in changed))
            except Exception as error:  # eager refuses these sizes, so no kernel is asked for a result
                if isinstance(error, IndexError) or any(text in str(error) for text in UNJUDGED):
                    continue
                # host code raises torch's errors, and checked accesses an IndexError
                with pytest.raises((exc.BaseError, AssertionError, IndexError, RuntimeError)):
                    used(*copies)
                continue
            try:
                result = used(*copies)
            except AssertionError:
                assert name in ASSERTING
                continue
            except IndexError:
                assert (name, size) == OFFSETS
                continue
            except exc.BaseError:
                assert name in (UNKNOWN_TO_EAGER if other == 0 else BROADCAST)
                continue
            check(
                f"{name} with {other} in place of {size}",
                lambda *_, result=result: result,
                reference,
                changed,
                atol=3e-2,
            )


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize(("name", "kernel", "reference", "args"), tuple(_cases()))
def test_seeds_for_no_elements(
    name: str, kernel: helion.Kernel, reference: Any, args: tuple[Any, ...], target: str
) -> None:
    """Heuristics, default config and code, with no tensor that holds data."""
    for size in sizes_of(args):
        try:
            bound = kernel.bind(as_meta(with_size(args, size, 0)), target=target)
        except (exc.BaseError, AssertionError):
            continue
        assert bound.seeds or bound.declined
        compile(bound.to_triton_code(), "<generated>", "exec")
        assert bound._analysis.refusal() is None or 0 not in sizes_of(args)
