"""Stores through tensors whose indices share memory: refused as in eager PyTorch, warned about, or reported when checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc

MODES: tuple[dict[str, Any], ...] = (
    {},
    {"static_shapes": False},
    {"checked": True},
    {"ref_mode": helion.RefMode.EAGER},
)


def tiles(out, x):
    for a, b in hl.tile(out.size()):
        out[a, b] = x[a, b]


def whole_rows(out, x):
    for b in hl.tile(out.size(1)):
        out[:, b] = x[:, b]


def updated(out, x):
    for a in hl.tile(out.size(0)):
        out[a, :] += x[a, :]


def inner_tiles(out, x):
    for b in hl.tile(out.size(1)):
        for a in hl.tile(out.size(0)):
            out[a, b] = x[a, b]


def gathered(out, x):
    for a in hl.tile(out.size(0)):
        out[x.size(0) - 1 - a.index, 0] = x[a, 0]


def masked(out, x):
    for a in hl.tile(out.size(0)):
        hl.store(out, [a, 0], x[a, 0], extra_mask=a.index == 1)


def made_by_the_host(out, x):
    made = torch.zeros([x.size(1)], dtype=x.dtype, device=x.device).expand(x.size(0), x.size(1))
    for a, b in hl.tile(made.size()):
        made[a, b] = x[a, b]
    return made


def viewed(out, x):
    turned = out.t()[1:]
    for b, a in hl.tile(turned.size()):
        turned[b, a] = x[a, b].t()


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    "function", [tiles, whole_rows, updated, inner_tiles, gathered, masked, made_by_the_host, viewed]
)
def test_stores_to_all_of_an_expanded_dimension_are_refused(function: Callable[..., Any], mode: dict[str, Any]) -> None:
    out, x = torch.zeros(7).expand(5, 7), torch.randn(5, 7)
    with pytest.raises(exc.OverlappingStore, match=r"All indices of dimension [01] of '\w+' are one element") as caught:
        helion.kernel(function, **mode)(out, x)
    assert caught.value.location is not None or "ref_mode" in mode
    assert not out.any()
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        out.copy_(x)


def one_row(out, x):
    for b in hl.tile(out.size(1)):
        out[3, b] = x[0, b]


def row_after_row(out, x):
    for b in hl.tile(out.size(1)):
        for i in range(5):
            out[i, b] = x[i, b]


def added(out, x):
    for a, b in hl.tile(x.size()):
        hl.atomic_add(out, [a, b], x[a, b])


def raised(out, x):
    for a, b in hl.tile(x.size()):
        hl.atomic_max(out, [a, b], x[a, b])


DEFINED: tuple[tuple[Callable[..., Any], Callable[[torch.Tensor], torch.Tensor]], ...] = (
    (one_row, lambda x: x[0]),
    (row_after_row, lambda x: x[4]),
    (added, lambda x: x.sum(0)),
    (raised, lambda x: x.amax(0).clamp(min=0)),
)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(("function", "want"), DEFINED, ids=lambda f: f.__name__)
def test_what_is_well_defined_runs(function: Callable[..., Any], want: Any, mode: dict[str, Any]) -> None:
    memory, x = torch.zeros(7), torch.randn(5, 7) + 0.5
    helion.kernel(function, **mode)(memory.expand(5, 7), x)
    torch.testing.assert_close(memory, want(x))


def test_a_dimension_of_one_index_is_none() -> None:
    memory, x = torch.zeros(7), torch.randn(1, 7)
    helion.kernel(tiles)(memory.expand(1, 7), x)
    assert torch.equal(memory, x[0])


def rows_by_program(out, x):
    for i in hl.grid(out.size(0)):
        out[i, :] = x[i, :]


@pytest.mark.parametrize("mode", MODES[:3], ids=str)
def test_programs_that_store_to_an_index_each(mode: dict[str, Any]) -> None:
    with pytest.raises(exc.OverlappingStore, match="dimension 0 of 'out'"):
        helion.kernel(rows_by_program, **mode)(torch.zeros(7).expand(5, 7), torch.randn(5, 7))


def test_the_same_kernel_for_other_strides() -> None:
    """Strides are a part of the key, also where sizes are not."""
    kernel, x = helion.kernel(tiles, static_shapes=False), torch.randn(5, 7)
    for _ in range(2):
        out = torch.zeros(5, 7)
        kernel(out, x)
        assert torch.equal(out, x)
        with pytest.raises(exc.OverlappingStore):
            kernel(torch.zeros(7).expand(5, 7), x)


def windows() -> torch.Tensor:
    return torch.zeros(30).unfold(0, 7, 1)[:5]


def test_windows_that_overlap_are_warned_about() -> None:
    bound = helion.kernel(tiles).bind((windows(), torch.ones(5, 7)))
    plan = bound._analysis.code(bound.default_config()).plan
    assert [type(warning) for warning in plan.warnings] == [exc.StoreToSharedElements]
    assert "'out', of strides [1, 1]" in str(plan.warnings[0])
    apart = torch.zeros(40).as_strided((5, 7), (8, 1))
    bound = helion.kernel(tiles).bind((apart, torch.ones(5, 7)))
    assert not bound._analysis.code(bound.default_config()).plan.warnings


def test_checked_kernels_report_lanes_that_differ() -> None:
    kernel = helion.kernel(tiles, checked=True, ignore_warnings=[exc.StoreToSharedElements])
    with pytest.raises(exc.DataRace, match=r"out\[1, 0\] is written .* lanes of one store have several values"):
        kernel(windows(), torch.randn(5, 7))
    kernel(windows(), torch.ones(5, 7))


def scattered(out, index, x):
    for t in hl.tile(index.size(0)):
        out[index[t]] = x[t]


def test_checked_kernels_report_equal_indices_of_unequal_values() -> None:
    index = torch.tensor([1, 2, 1, 3])
    kernel = helion.kernel(scattered, checked=True)
    with pytest.raises(exc.DataRace, match=r"out\[1\]"):
        kernel(torch.zeros(5), index, torch.arange(4.0))
    kernel(torch.zeros(5), index, torch.ones(4))


def test_atomics_through_windows() -> None:
    x, want = torch.randn(5, 7), torch.zeros(30)
    for row in range(5):
        want[row : row + 7] += x[row]
    for mode in MODES:
        memory = torch.zeros(30)
        helion.kernel(added, **mode)(memory.unfold(0, 7, 1)[:5], x)
        torch.testing.assert_close(memory, want)


def filled(x: torch.Tensor, width: int) -> torch.Tensor:
    out = torch.empty([x.size(0), width])
    for a, b in hl.tile([x.size(0), width]):
        out[a, b] = x[a][:, None] + b.index
    return out


def divided(x: torch.Tensor, width: int) -> torch.Tensor:
    ratio = float(x.size(0)) / width
    top = int(x.size(0) / ratio)
    out = torch.empty([x.size(0), width])
    for a, b in hl.tile([x.size(0), width]):
        out[a, b] = x[a][:, None] * ratio + b.index + top
    return out


def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a, b in hl.tile([x.size(0), x.size(1)]):
        out[a, b, :] = x[a, b, :] * 2
    return out


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_tensor_without_elements_has_no_elements_to_share(mode: dict[str, Any]) -> None:
    assert helion.kernel(doubled, **mode)(torch.randn(5).expand(0, 32, 5)).shape == (0, 32, 5)
    kernel, x = helion.kernel(filled, **mode), torch.randn(8)
    for width in (0, 4, 0, 1, 7):
        torch.testing.assert_close(kernel(x, width), x[:, None] + torch.arange(width))


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_division_by_zero_in_host_code_is_python_s(mode: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        helion.kernel(divided, **mode)(torch.randn(8), 0)
