"""Gradients of rows whose streamed rows are bounded by loaded integers, on the cute backend."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from backends.cute import sequence_gradients as kernels
from backends.cute.backward_kernels import Case
from backends.cute.edited_roles import edited, without
from backends.cute.printed_gradients import computed_as_printed
from backends.cute.printed_registers import unwritten_registers
from backends.cute.test_backward import bound_of, launch_arguments

import helion
from helion import exc
from helion.backends.cute.codegen.attention.backward_kernel import backward_kernel
from helion.backends.cute.plan.attention.backward import BackwardChoice, least_choice, plan_backward
from helion.backends.cute.plan.attention.numbers import filled
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.attention import grammar as a
from helion.backends.cute.roles.attention.backward import backward_program
from helion.backends.cute.verify.attention.verify import verify_backward
from helion.backends.cute.verify.state import Fault
from helion.hardware import target
from helion.ops.kernels.varlen import varlen_keys_backward_kernel, varlen_queries_backward_kernel

NAMES = tuple(f"{what}{mask}" for mask in ("", ", causal", ", window") for what in ("queries", "keys", "all"))


@functools.cache
def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    return {case.name: case for case in kernels.cases()}


def test_names_are_those_of_the_cases() -> None:
    assert NAMES == tuple(cases())


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_values_on_cpu_tensors(name: str, static: bool) -> None:
    case = cases()[name]
    found = helion.kernel(backend="cute", static_shapes=static)(case.kernel)(*case.arguments)
    for one, other in zip((found,) if torch.is_tensor(found) else found, case.wanted, strict=True):
        assert (one.double() - other).norm() < 6e-3 * other.norm()


@pytest.mark.parametrize(
    "at",
    [
        pytest.param(at, marks=[pytest.mark.prove] if name in ("all", "all, causal") else [], id=name)
        for at, name in enumerate(NAMES)
    ],
)
def test_printed_text_computes_the_gradients(at: int) -> None:
    """Run the printed functions for every thread: rows out of a tile's span are read as 0, as what is no number."""
    case = cases()[NAMES[at]]
    plan = bound_of(case).plan()
    problem, given = plan.backward.problem, launch_arguments(case, plan)
    count = len(given) - len(problem.runtime)
    problem = filled(problem, dict(zip(problem.runtime, given[count:], strict=True)))
    keys = 48 if NAMES[at] == "keys, causal" else (48, 64, 80)[at % 3]  # registers of one group hold no more
    choice = BackwardChoice(groups=1 + at % 2, keys=keys)
    choice = least_choice(problem) if problem.atomic is not None else choice
    made = plan_backward(problem, choice, target("h100"))
    program = backward_program(made)
    verify_backward(program)
    assert not unwritten_registers(backward_kernel("gradients", program).source)
    found = computed_as_printed(made, given[:count])
    order = [each.output.name[:6] for each in made.problem.gradients]
    names = ("grad_k", "grad_v", "grad_q")[-1 if len(order) == 1 else 0 :][: len(case.wanted)]
    wanted, order = dict(zip(names, case.wanted, strict=True)), [*order, "grad_q"][: len(found)]
    for name, one in zip(order, found, strict=True):
        assert (one.double() - wanted[name]).norm() < 6e-3 * wanted[name].norm()


@pytest.mark.parametrize("dims", (64, 128))
def test_one_kernel_computes_all_gradients(dims: int) -> None:
    """It took 708 and 494 us for these sizes on an H200, and two kernels 1265 and 821 (``sequence_times``)."""
    rows, heads = 32768, 16
    tensors = [torch.empty(rows, heads, dims, dtype=torch.bfloat16, device="meta")] * 4
    numbers = [torch.empty(heads, rows, device="meta")] * 2
    integers = [torch.empty(rows, dtype=torch.int32, device="meta")] * 2
    arguments = (*tensors, *numbers, *integers, 1, None, 0.0, True)
    assert varlen_keys_backward_kernel.bind(arguments, target="h200").backend_on_gpu == "cute"


@pytest.mark.parametrize("name", ["all", "all, causal"])
def test_numbers_of_rows_are_loaded_from_aligned_places(name: str) -> None:
    """An H200 met an illegal instruction where TMA loaded numbers from row 37 on, of 4 bytes each, and none from 48 on."""
    plan = bound_of(cases()[name]).plan().backward
    text = backward_kernel("gradients", backward_program(plan)).source
    places = set(re.findall(r"domain_offset\(\((.*?), 0,\), tensor_(?:logsum|normalizers)", text))
    assert places == {f"origin // 4 * 4 + block * {plan.keys}"}
    assert plan.vector_rows == plan.keys + 4 and text.count(f"({plan.vector_rows},)") == 6
    assert text.count(".iterator + origin % 4, ") == 2


@pytest.mark.parametrize("fault", [a.ClearRows(), g.FenceShared()], ids=["rows", "fence"])
def test_rows_that_are_not_cleared_are_found(fault: g.Step) -> None:
    """Rows of no sequence may be no numbers, which times 0 are none."""
    problem = bound_of(cases()["all"]).plan().backward.problem
    program = backward_program(plan_backward(problem, least_choice(problem), target("h100")))
    with pytest.raises(Fault, match="cleared and fenced|without a fence"):
        verify_backward(edited(program, "multiply", without(fault)))


@pytest.mark.prove
@pytest.mark.parametrize("name", NAMES)
def test_binaries_are_not_spilled(name: str) -> None:
    torch.manual_seed(0)
    case = next(each for each in kernels.cases(scale=5) if each.name == name)
    bound = bound_of(case)
    for seed in bound.seeds[:2]:
        found, plan = bound.resources(seed.config), bound.plan(seed.config)
        atomic = plan.backward.problem.atomic is not None
        assert found.spill_bytes <= (96 if atomic else 0), "of addresses, once a tile"
        fences = 1 + len(plan.backward.parts) + (plan.backward.problem.repeats > 1)
        assert found.sass_counts["WARPGROUP"] <= (9 * fences + 2 if atomic else 7 * fences)


@pytest.mark.parametrize("name", ["queries", "keys, causal"])
def test_tiles_of_sequences_are_handed_out(name: str) -> None:
    """Their lengths differ, so that a counter hands them out."""
    assert bound_of(cases()[name]).seeds[0].config["wgmma_tile_scheduler"] == "dynamic"


@pytest.mark.parametrize("dims", (64, 128))
@pytest.mark.parametrize("kernel", (varlen_queries_backward_kernel, varlen_keys_backward_kernel))
def test_auto_takes_the_backend_that_is_faster_on_a_gpu(kernel: helion.Kernel, dims: int) -> None:
    """Compare with ``sequence_times`` of an H200: Triton is faster for heads of 64 dimensions, and slower for 128."""
    rows, heads = 32768, 16
    tensors = [torch.empty(rows, heads, dims, dtype=torch.bfloat16, device="meta")] * 4
    numbers = [torch.empty(heads, rows, device="meta")] * 2
    integers = [torch.empty(rows, dtype=torch.int32, device="meta")] * 2
    bound = helion.kernel(kernel.fn, static_shapes=False).bind(
        (*tensors, *numbers, *integers, 1, dims**-0.5, 0.0), target="h200"
    )
    assert bound.backend_on_gpu == ("triton" if dims == 64 else "cute")


def test_ends_of_another_row_are_refused() -> None:
    """Refuse a loop to the last row of a tile that no mask of the same numbers follows."""
    *tensors, begins, ends = cases()[NAMES[0]].arguments[:-3]

    def unmasked(do, q, k, v, logsum, along, begins, ends):
        import helion.language as hl

        rows, dims = q.size(0), hl.specialize(q.size(2))
        dq = torch.empty_like(q)
        for h, tile_m in hl.tile([q.size(1), rows], block_size=[1, None]):
            query, upstream = q[tile_m, h.begin, :], do[tile_m, h.begin, :]
            acc = hl.zeros([tile_m, dims], dtype=torch.float32)
            for tile_n in hl.tile(torch.amin(begins[tile_m]), torch.amax(ends[tile_m])):
                key = k[tile_n, h.begin // 2, :]
                weights = torch.exp2(hl.dot(query, key.T) - logsum[h.begin, tile_m][:, None])
                changes = hl.dot(upstream, v[tile_n, h.begin // 2, :].T) - along[h.begin, tile_m][:, None]
                acc = hl.dot((weights * changes).to(k.dtype), key, acc=acc)
            dq[tile_m, h.begin, :] = acc
        return dq

    with pytest.raises(exc.CuteUnsupported, match="the result would depend on the size of tiles"):
        helion.kernel(backend="cute")(unmasked)(*tensors, begins, ends)
