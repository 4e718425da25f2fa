"""Lists and tuples of values that loops carry and branches choose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from helion import exc


def rotated(x, n: int):
    """A tuple of a tile and a number, and a list, in a loop over indices."""
    out = torch.empty_like(x[0])
    for tile in hl.tile(x.size(1)):
        pair, last = (x[0, tile], 1), [x[1, tile]]
        for i in range(n):
            pair, last = (last[0] + i, pair[1] + 2), [pair[0] * pair[1]]
        out[tile] = pair[0] + last[0] * pair[1]
    return out


def of_rotated(x, n: int):
    a, count, b = x[0], 1, x[1]
    for i in range(n):
        a, count, b = b + i, count + 2, a * count
    return a + b * count


def nested(x, n: int):
    """A matrix of tiles, in a loop over tiles, which a branch transposes."""
    out = torch.empty_like(x[0])
    for tile in hl.tile(x.size(1)):
        m = [[x[0, tile], x[1, tile]], [x[1, tile] - 1, x[0, tile] + 2]]
        for part in hl.tile(n, block_size=1):
            if part.begin % 2 == 0:
                m = [[m[0][0], m[1][0]], [m[0][1] + 1, m[1][1]]]
            else:
                m = [[m[1][1], m[0][1]], m[0]]
        out[tile] = m[0][0] + 2 * m[0][1] + 3 * m[1][0] + 5 * m[1][1]
    return out


def of_nested(x, n: int):
    m = [[x[0], x[1]], [x[1] - 1, x[0] + 2]]
    for part in range(n):
        m = [[m[0][0], m[1][0]], [m[0][1] + 1, m[1][1]]] if part % 2 == 0 else [[m[1][1], m[0][1]], m[0]]
    return m[0][0] + 2 * m[0][1] + 3 * m[1][0] + 5 * m[1][1]


def until(x, n: int):
    """A loop whose condition reads an item, with a conditional expression of two tuples."""
    out = torch.empty_like(x[0])
    for tile in hl.tile(x.size(1)):
        state = (x[0, tile], n)
        while state[1] > 0:
            state = (state[0] * 2, state[1] - 1) if state[1] % 2 == 0 else (state[0] + x[1, tile], state[1] - 1)
        out[tile] = state[0]
    return out


def of_until(x, n: int):
    value = x[0]
    for left in range(n, 0, -1):
        value = value * 2 if left % 2 == 0 else value + x[1]
    return value


def again(x, n: int):
    """A name that each iteration binds to a sequence of another length before it is read."""
    out = torch.empty_like(x[0])
    for tile in hl.tile(x.size(1)):
        pair = (x[0, tile], x[1, tile])
        acc = pair[0] - pair[1]
        for i in range(n):
            pair = [acc, acc + i, x[1, tile]]
            acc = pair[0] + pair[1] * pair[2]
        out[tile] = acc
    return out


def of_again(x, n: int):
    acc = x[0] - x[1]
    for i in range(n):
        acc = acc + (acc + i) * x[1]
    return acc


def assigned(x, n: int):
    """Items of lists that a comprehension makes, assigned where it makes them."""
    out = torch.empty_like(x[0])
    for tile in hl.tile(x.size(1)):
        rows = [[x[i, tile] * j for i in range(2)] for j in range(2)]
        for i in hl.static_range(2):
            rows[i][0] = rows[1 - i][1] + i
            rows[1].append(rows[0][0] * n)
        out[tile] = rows[0][0] + 2 * rows[1][0] + 3 * rows[1][2] + 5 * rows[1][3]
    return out


def of_assigned(x, n: int):
    first = x[1]
    second = x[1] * 0 + 1
    return first + 2 * second + 8 * first * n


CASES = [(rotated, of_rotated), (nested, of_nested), (until, of_until), (again, of_again), (assigned, of_assigned)]


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize(("fn", "reference"), CASES, ids=[fn.__name__ for fn, _ in CASES])
def test_results(fn: Callable[..., Any], reference: Callable[..., torch.Tensor], static: bool) -> None:
    x = torch.randn(2, 63)
    for n in (0, 1, 4):
        torch.testing.assert_close(helion.kernel(fn, static_shapes=static)(x, n), reference(x, n))


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_compiles_offline(target: str) -> None:
    for fn, _ in CASES:
        bound = helion.kernel(fn).bind((tensor(2, 1000), 3), target=target)
        assert bound.variant.compiled.resources(bound.default_config()) is not None


@helion.kernel
def longer(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        rows, count = [x[tile]], hl.zeros([tile])
        for _ in range(n):
            count = count + len(rows)
            rows = [*rows, x[tile]]
        out[tile] = count
    return out


@helion.kernel
def unequal_branches(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        if n > 2:
            rows = (x[tile],)
        else:
            rows = (x[tile], x[tile])
        out[tile] = rows[0]
    return out


@helion.kernel
def other_sizes(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        pair = (x[tile], 0)
        for _ in range(n):
            pair = (pair[0].sum(0), 1)
        out[tile] = pair[0]
    return out


@pytest.mark.parametrize(
    ("kernel", "error", "text"),
    [
        (longer, exc.CantCombineTypesInControlFlow, "'rows' is a list of 1 on one path through the loop and a list of 2"),
        (unequal_branches, exc.CantCombineTypesInControlFlow, "'rows' is a tuple of 1 on one path through the if and a tuple of 2"),
        (other_sizes, exc.ControlFlowTensorMismatch, r"'pair\[0\]' is "),
    ],
)  # fmt: skip
def test_sequences_of_another_structure_are_refused(kernel: helion.Kernel, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kernel.bind((torch.randn(63), 3))


@helion.kernel
def item_in_a_loop(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        sums = [hl.zeros([tile])]
        other = sums
        for i in range(n):
            sums[0] = other[0] + x[tile] * i
        out[tile] = other[0]
    return out


def test_items_of_a_list_from_outside_of_the_loop_are_not_assigned() -> None:
    with pytest.raises(exc.NonTensorSubscriptAssign, match="made outside of this loop or branch; assign a new list"):
        item_in_a_loop.bind((torch.randn(63), 3))


def same_list(x, n: int):
    """Lists that two names have, changed by operators."""
    out = torch.empty_like(x[0])
    for tile in hl.tile(x.size(1)):
        rows = [x[0, tile]]
        also, inner = rows, [rows]
        rows += (x[1, tile], x[1, tile] * n)
        inner[0] *= 2
        copied, rest, joined, doubled = list(rows), rows[1:], rows + rows, [x[0, tile]] * 2
        copied[0], rest[0], joined[0], doubled[0] = rest[1], joined[1] + 1, x[1, tile], rows[0] - 3
        out[tile] = also[2] * len(also) + copied[0] + 2 * rest[0] + 3 * joined[0] + 5 * doubled[0] + doubled[1]
    return out


def of_same_list(x, n: int):
    return x[1] * n * 6 + x[1] * n + 2 * (x[1] + 1) + 3 * x[1] + 5 * (x[0] - 3) + x[0]


def host_containers(x, n: int):
    """Containers of host code that two names have."""
    outs, sizes, kinds = [torch.empty_like(x[0])], {"a": n}, {1, 2}
    more, also, others = outs, sizes, kinds
    more += [torch.empty_like(x[0])]
    also |= {"b": 2 * n}
    others -= {1}
    others |= {4}
    total = sizes["b"] + len(kinds)
    for tile in hl.tile(x.size(1)):
        for i in hl.static_range(len(outs)):
            outs[i][tile] = x[i, tile] + total
    return outs[0] + 2 * outs[1]


def of_host_containers(x, n: int):
    return x[0] + 2 * x[1] + 3 * (2 * n + 2)


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("fn", "reference"), [(same_list, of_same_list), (host_containers, of_host_containers)], ids=["device", "host"]
)
def test_operators_change_a_container_for_all_its_names(
    fn: Callable[..., Any], reference: Callable[..., torch.Tensor], static: bool
) -> None:
    x = torch.randn(2, 63)
    torch.testing.assert_close(helion.kernel(fn, static_shapes=static)(x, 3), reference(x, 3))


@helion.kernel
def longer_argument(x: torch.Tensor, ys: list[torch.Tensor]) -> torch.Tensor:
    ys += [x]
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        acc = hl.zeros([tile])
        for i in hl.static_range(len(ys)):
            acc += ys[i][tile]
        out[tile] = acc
    return out


def test_a_list_of_the_caller_becomes_longer_by_one_in_each_call() -> None:
    x = torch.randn(63)
    ys = [x]
    for count in (2, 3):
        torch.testing.assert_close(longer_argument(x, ys), x * count)
        assert len(ys) == count


@helion.kernel
def longer_in_a_branch(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        rows = [x[tile]]
        if tile.begin > n:
            rows += [x[tile]]
        out[tile] = rows[-1]
    return out


def test_operators_do_not_change_a_list_from_outside_of_the_branch() -> None:
    with pytest.raises(exc.StatementNotSupported, match="made outside of this loop or branch"):
        longer_in_a_branch.bind((torch.randn(63), 3))
