"""What programs of one launch do to each other: refused where changes get lost, warned about where only luck orders."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import helion
import helion.language as hl
from helion import exc


def warnings(kernel: Callable[..., Any], *args: Any, **config: Any) -> list[str]:
    bound = helion.kernel(kernel).bind(args)
    plan = bound._analysis.code(bound._analysis.space.normalize(config)).plan
    return [type(w).__name__ for w in plan.warnings]


def x(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


# --- changes that get lost ----------------------------------------------------------------------------------------------


def total(x, out):
    for t in hl.tile(x.size(0)):
        out[0] += x[t].sum()  # here
    return out


def total_in_a_loop(x, out):
    for t in hl.tile(x.size(0)):
        for i in range(3):
            out[i] = out[i] + x[t].sum()  # here
    return out


def total_of_columns(x, out):
    for a in hl.tile(x.size(0)):
        for b in hl.tile(x.size(1)):
            out[b] += x[a, b].sum(0)  # here
    return out


def total_of_whole_rows(x, out):
    for a in hl.tile(x.size(0)):
        out[:] = torch.maximum(out[:], x[a, :].amax(0))  # here
    return out


def count(x, out):
    for _ in hl.grid(x.size(0)):
        out[0] = out[0] + 1  # here
    return out


def total_over_rows(x, out):
    for a, b in hl.tile(x.size()):
        out[a] += x[a, b].sum(-1)  # here
    return out


LOST: list[tuple[Callable[..., Any], tuple[Any, ...], list[int], list[int]]] = [
    # with the sizes of several programs, and of one
    (total, (x(100), x(1)), [32], [128]),
    (total_in_a_loop, (x(100), x(3)), [32], [128]),
    (total_of_columns, (x(30, 40), x(40)), [8, 16], [32, 16]),
    (total_of_whole_rows, (x(30, 40), x(40)), [8], [32]),
    (total_over_rows, (x(30, 40), x(30)), [8, 8], [8, 64]),
]


@pytest.mark.parametrize(("kernel", "args", "many", "one"), LOST, ids=lambda v: getattr(v, "__name__", ""))
def test_lost_changes_are_refused(
    kernel: Callable[..., Any], args: tuple[Any, ...], many: list[int], one: list[int]
) -> None:
    with pytest.raises(exc.ReadModifyWriteRace, match=r"store the same elements of 'out'.*hl.atomic_add") as caught:
        warnings(kernel, *args, block_sizes=many)
    assert "# here" in str(caught.value)
    assert warnings(kernel, *args, block_sizes=one) == []


def test_lost_counts_are_refused() -> None:
    with pytest.raises(exc.ReadModifyWriteRace, match="Programs at every tile of '_'"):
        warnings(count, x(100), x(1))
    assert warnings(count, x(1), x(1)) == []


def test_refused_when_called() -> None:
    kernel = helion.kernel(total, config=helion.Config(block_sizes=[32]))
    with pytest.raises(exc.ReadModifyWriteRace):
        kernel(x(100), x(1))
    ones = torch.ones(100)
    assert helion.kernel(total, config=helion.Config(block_sizes=[128]))(ones, x(1)).item() == 100


# --- what only luck orders ----------------------------------------------------------------------------------------------


def last_tile(x, out):
    for t in hl.tile(x.size(0)):
        out[0] = x[t].sum()  # here
    return out


def before(x, out):
    for t in hl.tile(1, x.size(0)):
        x[t] = hl.load(x, [t.index - 1]) + 1  # here
    return x


def after(x, out):
    for i in hl.grid(x.size(0) - 1):
        x[i] = x[i + 1] + 1  # here
    return x


def first(x, out):
    for t in hl.tile(x.size(0)):
        x[t] = x[t] - x[0]  # here
    return x


def whole(x, out):
    for t in hl.tile(x.size(0)):
        x[t] = x[t] - x[:].sum()  # here
    return x


def inner_loop(x, out):
    for t in hl.tile(x.size(0)):
        acc = hl.zeros([t])
        for b in hl.tile(x.size(0)):
            acc += x[b].sum()  # here
        x[t] = acc
    return x


def rows_of_others(x, out):
    for a, b in hl.tile(x.size()):
        x[a, b] = x[a, b] - x[a, :].mean(-1)[:, None]  # here
    return x


LUCK: list[tuple[Callable[..., Any], torch.Tensor, list[int], str]] = [
    (last_tile, x(100), [32], "StoreFromSeveralPrograms"),
    (before, x(100), [32], "LoadOfOtherPrograms"),
    (after, x(100), [], "LoadOfOtherPrograms"),
    (first, x(100), [32], "LoadOfOtherPrograms"),
    (whole, x(100), [32], "LoadOfOtherPrograms"),
    (inner_loop, x(100), [32, 16], "LoadOfOtherPrograms"),
    (rows_of_others, x(30, 40), [8, 8], "LoadOfOtherPrograms"),
]


@pytest.mark.parametrize(("kernel", "data", "sizes", "name"), LUCK, ids=lambda v: getattr(v, "__name__", ""))
def test_luck_is_warned_about(
    kernel: Callable[..., Any], data: torch.Tensor, sizes: list[int], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"block_sizes": sizes} if sizes else {}
    assert warnings(kernel, data, x(100), **config) == [name]
    if sizes:
        assert warnings(kernel, data, x(100), block_sizes=[128] * len(sizes)) == []
    run = helion.kernel(kernel, config=helion.Config(**config))
    run(data.clone(), x(100))
    printed = capsys.readouterr().err
    assert len(re.findall(rf"WARNING\[{name}\]", printed)) == 1
    assert "# here" in printed
    run(data.clone(), x(100))
    assert name not in capsys.readouterr().err
    helion.kernel(kernel, config=helion.Config(**config), ignore_warnings=[name])(data.clone(), x(100))
    assert name not in capsys.readouterr().err


# --- elements of other programs by computed positions and in other views ---------------------------------------------------


def reversed_in_place(x, n):
    for i in hl.grid(n):
        x[i] = x[n - 1 - i]  # here
    return x


def at_half(x, n):
    for t in hl.tile(n):
        x[t] = x[t.index // 2]  # here
    return x


def at_multiples(x, n):
    for t in hl.tile(n):
        x[t] = x[(t.index * 7 + 3) % n]  # here
    return x


def at_other_bits(x, n):
    for t in hl.tile(n):
        x[t] = x[t.index ^ 32]  # here
    return x


def clamped(x, n):
    for t in hl.tile(n):
        x[t] = x[torch.clamp(t.index + 1, max=n - 1)]  # here
    return x


def chosen(x, n):
    for t in hl.tile(n):
        x[t] = x[torch.where(t.index > 0, t.index - 1, 0)]  # here
    return x


def where_it_begins(x, n):
    for t in hl.tile(n):
        x[t] = hl.load(x, [t.index - 1], extra_mask=t.index >= 1)  # here
    return x


def stored_reversed(x, n):
    for t in hl.tile(n):
        x[n - 1 - t.index] = x[t]  # here
    return x


def moved_views(x, n):
    a, b = x[1:], x[:-1]
    for t in hl.tile(a.size(0)):
        a[t] = b[t]  # here
    return x


def columns_of_others(x, n):
    rows = x.view(2, -1)
    for t in hl.tile(rows.size(1)):
        rows[1, t] = x[t.index + n // 2 - 1]  # here
    return x


def shared_total(x, n):
    total = torch.zeros([1], device=x.device)
    for t in hl.tile(n):
        hl.atomic_add(total, [0], x[t].sum())
        x[t] = x[t] / total[0]  # here
    return x


OTHERS = (reversed_in_place, at_half, at_multiples, at_other_bits, clamped, chosen, where_it_begins, stored_reversed)
OTHERS += (moved_views, columns_of_others, shared_total)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("kernel", OTHERS, ids=lambda v: v.__name__)
def test_elements_of_others_are_found(
    kernel: Callable[..., Any], static: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {} if kernel is reversed_in_place else {"block_sizes": [32]}
    helion.kernel(kernel, config=helion.Config(**config), static_shapes=static)(x(128), 128)
    printed = capsys.readouterr().err
    assert "WARNING[LoadOfOtherPrograms]" in printed and "# here" in printed
    if config:
        helion.kernel(kernel, config=helion.Config(block_sizes=[128]), static_shapes=static)(x(128), 128)
        assert "LoadOfOtherPrograms" not in capsys.readouterr().err


@pytest.mark.parametrize("around", [torch.device("meta"), FakeTensorMode(), torch.inference_mode()])
def test_modes_of_the_caller_do_not_matter(around: Any) -> None:
    data = x(128)
    with around:
        assert warnings(at_half, data, 128, block_sizes=[32]) == ["LoadOfOtherPrograms"]


def test_arguments_that_overlap_are_one_memory(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(a, b):
        for t in hl.tile(a.size(0)):
            a[t] = b[t] + 1
        return a

    run, memory = helion.kernel(kernel, config=helion.Config(block_sizes=[32])), x(100)
    run(memory[1:], memory[:-1])
    assert "LoadOfOtherPrograms" in capsys.readouterr().err
    run(memory[:50], memory[50:])
    run(memory[:50], memory[:50])
    assert "LoadOfOtherPrograms" not in capsys.readouterr().err


def transposed_in_place(x):
    y = x.t()
    for a, b in hl.tile(x.size()):
        x[a, b] = y[a, b]
    return x


def transposed_apart(x):
    """Exchange two blocks of rows and columns, which share no elements."""
    n = x.size(0) // 2
    y, z = x[:n, n:], x[n:, :n].t()
    for a, b in hl.tile(y.size()):
        y[a, b] = z[a, b]
    return x


def test_programs_that_differ_along_two_axes_are_compared() -> None:
    found = ["LoadOfOtherPrograms"]
    assert warnings(transposed_in_place, x(16, 16), block_sizes=[4, 4]) == found
    assert warnings(transposed_apart, x(16, 16), block_sizes=[4, 4]) == []


def own_pairs(x, n):
    for t in hl.tile(n // 2):
        x[t.index * 2] = x[t.index * 2 + 1] + x[t.index * 2]
    return x


def swapped_columns(x, n):
    rows = x.view(-1, 4)
    for t in hl.tile(rows.size(0)):
        rows[t, :] = rows[t, :] + 1
        for c in hl.grid(2):
            rows[t, c] = rows[t, 3 - c]
    return x


def other_half(x, n):
    low, high = x[: n // 2], x[n // 2 :]
    for t in hl.tile(n // 2):
        low[t] = high[t] * 2
    return x


def other_columns(x, n):
    wide = x.view(10, 10)
    left, right = wide[:, :5], wide[:, 5:]
    for a, b in hl.tile(left.size(), block_size=[None, 4]):
        left[a, b] = right[a, b] + 1
    return x


def from_data(x, n):
    at = torch.arange(n, device=x.device)
    for t in hl.tile(n):
        x[t] = x[at[t]]
    return x


def masked_apart(x, n):
    for t in hl.tile(n):
        x[t] = hl.load(x, [t.index + n], extra_mask=t.index < 0) + 1
    return x


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(
    "kernel",
    [own_pairs, swapped_columns, other_half, other_columns, from_data, masked_apart],
    ids=lambda v: v.__name__,
)
def test_own_elements_pass(kernel: Callable[..., Any], static: bool, capsys: pytest.CaptureFixture[str]) -> None:
    helion.kernel(kernel, config=helion.Config(block_sizes=[8]), static_shapes=static)(x(100), 100)
    assert "LoadOfOtherPrograms" not in capsys.readouterr().err


# --- what is let pass ---------------------------------------------------------------------------------------------------


def same_value(x, out):
    for _ in hl.tile(x.size(0)):
        out[0] = 1.0
    return out


def by_one(x, out):
    for t in hl.tile(x.size(0)):
        if t.id == 0:
            out[0] = x[t].sum()
    return out


def masked(x, out):
    for t in hl.tile(x.size(0)):
        hl.store(out, [t.index * 0], x[t], extra_mask=t.index == 0)
    return out


def atomically(x, out):
    for t in hl.tile(x.size(0)):
        hl.atomic_add(out, [0], x[t].sum())
    return out


def pairs(x, out):
    for i in hl.grid(x.size(0)):
        out[i // 2] = x[i]
    return out


def scattered(x, out, index):
    for t in hl.tile(x.size(0)):
        out[index[t]] = x[t]
    return out


def by_tile(x, out):
    for t in hl.tile(x.size(0)):
        out[t.id] = x[t].sum()
    return out


def own_rows(x, out):
    for a in hl.tile(x.size(0)):
        for b in hl.tile(x.size(1)):
            x[a, b] = x[a, b] + 1
        for b in hl.tile(x.size(1)):
            x[a, b] = x[a, b] - x[a, :].mean(-1)[:, None]
    return x


def other_plane(x, out):
    for a, b in hl.tile([x.size(1), x.size(2)]):
        x[0, a, b] = x[1, a, b] - x[1, a, :].mean(-1)[:, None]
    return x


def one_program(x, out):
    for _ in hl.grid(1):
        out[0] = out[0] + x[:].sum()
    return out


def two_phases(x, out):
    for t in hl.tile(x.size(0)):
        out[t] = x[t] + 1
    hl.barrier()
    for t in hl.tile(x.size(0)):
        x[t] = out[t] + out[0]
    return x


def rows_of_a_jagged_tensor(x, out, offsets):
    for r in hl.grid(offsets.size(0) - 1):
        total = hl.zeros([1])
        for c in hl.tile(offsets[r], offsets[r + 1]):
            total = total + x[c].sum()
            out[c] = x[c] + 1
    return out


PASS: list[tuple[Callable[..., Any], tuple[Any, ...], list[int]]] = [
    (same_value, (x(100), x(1)), [32]),
    (by_one, (x(100), x(1)), [32]),
    (masked, (x(100), x(2)), [32]),
    (atomically, (x(100), x(1)), [32]),
    (pairs, (x(100), x(50)), []),
    (scattered, (x(100), x(100), torch.arange(100)), [32]),
    (by_tile, (x(100), x(100)), [32]),
    (own_rows, (x(30, 40), x(1)), [8, 16, 16]),
    (other_plane, (x(2, 30, 40), x(1)), [8, 8]),
    (one_program, (x(100), x(1)), []),
    (two_phases, (x(100), x(100)), [32, 32]),
    (rows_of_a_jagged_tensor, (x(100), x(100), torch.tensor([0, 40, 100])), [16]),
]


@pytest.mark.parametrize(("kernel", "args", "sizes"), PASS, ids=lambda v: getattr(v, "__name__", ""))
def test_what_is_in_order_or_unclear_passes(
    kernel: Callable[..., Any], args: tuple[Any, ...], sizes: list[int]
) -> None:
    assert warnings(kernel, *args, **({"block_sizes": sizes} if sizes else {})) == []


# --- updates by loaded indices -------------------------------------------------------------------------------------------


def counted(ids, x):
    for t in hl.tile(ids.size(0)):
        x[ids[t]] += 1  # here
    return x


def decayed(ids, x):
    for i in hl.grid(ids.size(0)):
        x[ids[i]] = x[ids[i]] * 0.5 + 1  # here
    return x


def computed(ids, x):
    for t in hl.tile(ids.size(0)):
        one, other = ids[t], ids[t]
        for _ in hl.static_range(24):
            one, other = (one + one) % 7, (other + other) % 7
        x[one // 2 + 1] = x[other // 2 + 1] + 1  # here
    return x


def gradient(ids, x):
    for t in hl.tile(ids.size(0)):
        x[t.index * 2 + ids[t]] -= 1
    return x


def other_elements(ids, x):
    for t in hl.tile(ids.size(0)):
        x[ids[t]] = x[t] + 1
    return x


@pytest.mark.parametrize(
    ("kernel", "warned"),
    [(counted, True), (decayed, True), (computed, True), (gradient, False), (other_elements, False)],
)
def test_updates_by_loaded_indices_are_warned_about(kernel: Callable[..., Any], warned: bool) -> None:
    """Repeated indices lose updates also in one program; those of a row of each lane do not repeat."""
    ids = torch.randint(0, 2, [60], generator=torch.Generator().manual_seed(0))
    config = {} if kernel is decayed else {"block_sizes": [64]}
    assert ("UpdateByLoadedIndex" in warnings(kernel, ids, x(120), **config)) == warned
