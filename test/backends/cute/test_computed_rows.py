"""Gradients of attention whose loop computes sums of rows, or scaled rows: a kernel before computes them in the workspace."""

from __future__ import annotations

import functools
import math
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from backends.cute import backward_kernels, computed_kernels
from backends.cute.printed_gradients import CUTLASS, Lanes

import helion
from helion import exc
from helion.backends.cute.codegen.chained.row_values import THREADS, launches, row_functions
from helion.backends.cute.execute.attention import _row_values
from helion.backends.cute.plan.attention.gradients import BackwardProblem
from helion.backends.cute.plan.attention.row_values import values_bytes

NAMES = (
    "queries with sums",
    "queries with sums, 96 dimensions",
    "keys with sums",
    "keys with sums, causal",
    "scaled queries",
    "scaled queries, by a power of two",
    "keys of scaled queries",
    "keys of scaled queries, by a power of two",
)
KERNELS_BEFORE = (1, 1, 1, 1, 1, 0, 2, 1)


@functools.cache
def cases() -> list[backward_kernels.Case]:
    torch.manual_seed(0)
    return computed_kernels.cases()


def bound_of(case: backward_kernels.Case, gpu: str = "h200", **settings: Any) -> helion.BoundKernel:
    meta = tuple(each.to("meta") if torch.is_tensor(each) else each for each in case.arguments)
    return helion.kernel(**{"backend": "cute", **settings})(case.kernel).bind(meta, target=gpu)


def test_names_are_those_of_the_cases() -> None:
    assert NAMES == tuple(case.name for case in cases())


@pytest.mark.parametrize("at", range(len(NAMES)), ids=NAMES)
def test_values_on_cpu_tensors(at: int) -> None:
    case = cases()[at]
    assert len(bound_of(case).plan().backward.problem.values) == KERNELS_BEFORE[at]
    found = helion.kernel(backend="cute")(case.kernel)(*case.arguments)
    for one, other in zip((found,) if torch.is_tensor(found) else found, case.wanted, strict=True):
        assert (one.double() - other).norm() < 4e-3 * other.norm()


# The printed text -------------------------------------------------------------------------------------------------------


class Pointer:
    """A place in memory, as its bytes from there on."""

    def __init__(self, held: torch.Tensor, dtype: torch.dtype) -> None:
        self.held, self.dtype = held, dtype

    def __add__(self, elements: int) -> Pointer:
        return Pointer(self.held[elements * self.dtype.itemsize :], self.dtype)

    @property
    def flat(self) -> torch.Tensor:
        return self.held[: self.held.numel() // self.dtype.itemsize * self.dtype.itemsize].view(self.dtype)


class Float32:
    """The type of fp32 numbers in the DSL: a conversion to it is the number."""

    def __new__(cls, value: Any) -> Any:
        return value


class View:
    """A tensor in memory, of which each thread takes an element, or with ``None`` those of the first mode."""

    def __init__(self, pointer: Pointer, layout: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        self.flat, (self.shape, self.strides) = pointer.flat, layout

    def __getitem__(self, places: Any) -> tuple[View, torch.Tensor]:
        places = [torch.zeros(THREADS, dtype=torch.long) if each is None else each for each in places]
        for place, size in zip(places, self.shape, strict=True):
            assert ((torch.as_tensor(place) >= 0) & (torch.as_tensor(place) < size)).all()
        found = sum(torch.as_tensor(place) * stride for place, stride in zip(places, self.strides, strict=True))
        return self, found + torch.zeros(THREADS, dtype=torch.long)


def _copy(source: Any, target: Any) -> None:
    """Load a row's elements to registers. Stores have a condition, and are ``_store``."""
    view, first = source
    for at in range(len(target)):
        target[at] = view.flat[first + at].float().as_subclass(Lanes)


def _store(condition: torch.Tensor, place: tuple[View, torch.Tensor], value: Any) -> None:
    view, first = place
    for at, each in enumerate(value if isinstance(value, list) else [value]):
        view.flat[(first + at)[condition]] = each[condition].as_subclass(torch.Tensor).to(view.flat.dtype)


def _shuffled(value: torch.Tensor, offset: int) -> torch.Tensor:
    return value[torch.arange(THREADS) ^ offset]


def _launcher(function: Any, block: list[int]) -> Any:
    def given(*tensors: View) -> SimpleNamespace:
        def launch(grid: tuple[int, ...], **named: Any) -> None:
            for block[0] in range(grid[0]):
                function(*tensors)

        return SimpleNamespace(launch=launch)

    return given


def _with_stores(text: str) -> str:
    """Return the text of a kernel with conditional stores as calls, since conditions differ by thread."""
    text = re.sub(r"if (.*):\n *cute.autovec_copy\(made, (.*)\)", r"store(\1, \2, made)", text)
    return re.sub(r"if (.*):\n *(target\[.*\]) = total", r"store(\1, \2, total)", text)


def computed_as_printed(problem: BackwardProblem, reads: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the values of rows after the printed launches, each as its memory."""
    block, held = [0], torch.full((values_bytes(problem.values),), -1, dtype=torch.int8)
    arch = SimpleNamespace(
        thread_idx=lambda: (torch.arange(THREADS), 0, 0),
        block_idx=lambda: (block[0], 0, 0),
        shuffle_sync_bfly=_shuffled,
        inline_ptx=lambda text, read_only_args, **named: read_only_args[0].bfloat16().float(),
    )
    cute = SimpleNamespace(
        arch=arch,
        kernel=lambda function: _launcher(function, block),
        make_rmem_tensor=lambda size, dtype: [None] * size,
        autovec_copy=_copy,
        recast_ptr=lambda pointer, dtype: Pointer(pointer.held, torch.float32 if dtype is Float32 else dtype),
        make_layout=lambda shape, stride: (shape, stride),
        make_tensor=View,
        Tensor=None,
    )
    kinds = SimpleNamespace(**{**vars(CUTLASS), "Float32": Float32, "range_constexpr": range})
    names = {"cute": cute, "cutlass": kinds, "store": _store, "stream": None, "workspace": Pointer(held, torch.float32)}
    given = iter(reads)
    for at, values in enumerate(problem.values):
        for number in range(len(values.reads)):
            tensor = next(given)
            names[f"rows_{at}_read_{number}"] = Pointer(tensor.flatten().view(torch.int8), tensor.dtype)
    for function in row_functions(problem.values):
        exec(_with_stores("\n".join(function)), names)
    pointers = tuple(f"pointer_{at}" for at in range(len(problem.matrices)))
    exec("\n".join(launches(problem, pointers)), names)
    labels = (*pointers, *(each.label for each in problem.sources))
    return [names[labels[at]].flat for at in problem.values_at]


@pytest.mark.parametrize("at", [1, 3, 6], ids=[NAMES[at] for at in (1, 3, 6)])
def test_printed_kernels_compute_the_values(at: int) -> None:
    """Run the printed kernels before for all threads, with their launches, beside the evaluation on CPU tensors."""
    case = cases()[at]
    plan = bound_of(case).plan()
    problem = plan.backward.problem
    by_name = dict(zip(("q", "k", "v", "do", "logsum", "out"), case.arguments, strict=False))
    reads = [by_name[tensor.name] for tensor in plan.arguments[len(plan.arguments) - len(problem.read_before) :]]
    found, given = computed_as_printed(problem, reads), iter(reads)
    for values, memory in zip(problem.values, found, strict=True):
        wanted = _row_values(values, [next(given) for _ in values.reads])
        stored = ~wanted.isnan()
        assert stored.sum() == values.total * (1 if values.sums else values.columns)
        assert torch.allclose(memory[: len(wanted)][stored].float(), wanted[stored].float(), rtol=1e-5, atol=1e-5)


# Decisions --------------------------------------------------------------------------------------------------------------


def test_memory_of_values_does_not_overlap() -> None:
    plan = bound_of(cases()[6]).plan()
    rows, sums = plan.backward.problem.values
    assert (rows.dtype, rows.sums, rows.pitch, rows.matrix.columns) == ("bfloat16", False, 64, 64)
    assert (sums.dtype, sums.sums, sums.pitch, sums.head_pitch) == ("float32", True, 1, 100)
    assert values_bytes((rows, sums)) == 4 * 4096 + rows.bytes + sums.bytes
    assert "a kernel before: rows_1, sums of do" in str(plan)


def test_sizes_of_launches_are_refused_by_name() -> None:
    with pytest.raises(exc.CuteUnsupported, match="known when the kernel is compiled; use static_shapes=True"):
        bound_of(cases()[0], static_shapes=False)


def test_predicted_time_has_the_kernel_before() -> None:
    case = cases()[1]
    delta = torch.empty(case.arguments[4].shape, device="meta")
    plain = replace(case, kernel=backward_kernels.gradient_of_queries, arguments=(*case.arguments[:5], delta, False))
    with_sums, without = (bound_of(each).seeds[0].predicted.time_us for each in (case, plain))
    assert math.isfinite(with_sums) and with_sums > without + 2


def test_tcgen05_launches_the_same_kernels() -> None:
    code = bound_of(cases()[2], "b200").to_code()
    assert code.count("compute_rows_0(") == 2 and "tcgen05" in code


@pytest.mark.parametrize("at", [0, 2, 4, 6], ids=[NAMES[at] for at in (0, 2, 4, 6)])
def test_auto_takes_them(at: int) -> None:
    """Compare with ``computed_rows`` of an H200."""
    assert bound_of(cases()[at], backend="auto").backend_on_gpu == "cute"
