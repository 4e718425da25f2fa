"""Grid loops inside of loops of the host: one kernel, launched in every iteration."""

from __future__ import annotations

import math
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion._testing import check, map_tensors
from helion.runtime import stub_driver
from helion.runtime.ref_mode import run_reference

CONFIG = helion.Config(block_sizes=[16])


def host_lines(bound: Any) -> list[str]:
    """The generated host function, without its head."""
    text = bound.to_triton_code(CONFIG)
    return text.split(f"def {bound.kernel.name}(")[1].splitlines()[1:]


def storages(bound: Any) -> list[int]:
    return [tensor.storage for tensor in bound._analysis.program.tensors]


# --- kernels ------------------------------------------------------------------------------------------------------------


@helion.kernel(config=CONFIG)
def ping_pong(x: torch.Tensor, steps: int) -> torch.Tensor:
    now, then = x.clone(), torch.empty_like(x)
    for step in range(steps):
        for tile in hl.tile(x.size(0)):
            then[tile] = now[tile] * 2 + step
        now, then = then, now
    return now


@helion.kernel(config=CONFIG)
def halving(x: torch.Tensor) -> torch.Tensor:
    """Numbers that the loop changes before and after the launch; grids of other sizes."""
    n, scale = x.size(0), 1.0
    while n > 1:
        n = n // 2
        for tile in hl.tile(n):
            x[tile] = x[tile] + hl.load(x, [tile.index + n]) * scale
        scale = scale * 0.5
    return x


@helion.kernel(config=CONFIG)
def layers(x: torch.Tensor, weights: list[torch.Tensor], scales: tuple[float, ...]) -> torch.Tensor:
    """Tensors and numbers of a sequence, and a tensor made in every iteration."""
    for at, (weight, scale) in enumerate(zip(weights, scales, strict=True)):
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = torch.relu(x[tile] * weight[tile] + at) * scale
        x = out
    return x


@helion.kernel(config=helion.Config(block_sizes=[16, 32]))
def two_loops(x: torch.Tensor, outer: int, inner: int) -> torch.Tensor:
    """A loop in a loop, a branch, and phases; the loop variable is assigned."""
    out = torch.zeros_like(x)
    for i in range(outer):
        for j in range(1, inner, 2):
            i = i + j
            if x.size(0) > 7:
                for tile in hl.tile(x.size(0)):
                    out[tile] = out[tile] + x[tile] * i
                hl.barrier()
                for tile in hl.tile(x.size(0)):
                    out[tile] = out[tile] * 0.5
                hl.barrier()
    return out


@helion.kernel(config=CONFIG)
def rows(x: torch.Tensor) -> torch.Tensor:
    """A view per iteration, a fixed tensor, and a value per iteration computed on the host."""
    out = torch.empty_like(x)
    for row in range(x.size(0)):
        shift = row * row
        for tile in hl.tile(x.size(1)):
            out[row, tile] = x[row, tile] + shift
    return out


@helion.kernel(config=CONFIG)
def history(x: torch.Tensor, steps: int) -> torch.Tensor:
    """A tensor goes from name to name, and begins as the argument."""
    first, second = x, x
    for _ in range(steps):
        new = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            new[tile] = first[tile] + second[tile] * 0.5
        first, second = new, first
    return first


def _ping_pong(x: torch.Tensor, steps: int) -> torch.Tensor:
    for step in range(steps):
        x = x * 2 + step
    return x


def _halving(x: torch.Tensor) -> torch.Tensor:
    n, scale = x.size(0), 1.0
    while n > 1:
        n //= 2
        x = torch.cat([x[:n] + x[n : 2 * n] * scale, x[n:]])
        scale *= 0.5
    return x


def _layers(x: torch.Tensor, weights: list[torch.Tensor], scales: tuple[float, ...]) -> torch.Tensor:
    for at, (weight, scale) in enumerate(zip(weights, scales, strict=True)):
        x = torch.relu(x * weight + at) * scale
    return x


def _two_loops(x: torch.Tensor, outer: int, inner: int) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(outer):
        factor = i
        for j in range(1, inner, 2):
            factor += j
            out = (out + x * factor) * 0.5
    return out


def _history(x: torch.Tensor, steps: int) -> torch.Tensor:
    first = second = x
    for _ in range(steps):
        first, second = first + second * 0.5, first
    return first


def _tensor(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) + 1


CASES: dict[str, tuple[helion.Kernel, tuple[Any, ...], Callable[..., Any]]] = {
    **{f"ping-pong {n}": (ping_pong, (_tensor(50), n), _ping_pong) for n in (0, 1, 2, 5)},
    "halving": (halving, (_tensor(64),), _halving),
    "halving, odd": (halving, (_tensor(50),), _halving),
    "layers": (layers, (_tensor(50), [_tensor(50), _tensor(50) * 2, _tensor(50) - 2], (1.0, 0.5, 2.0)), _layers),
    "no layers": (layers, (_tensor(50), [_tensor(50)], (3.0,)), _layers),
    "two loops": (two_loops, (_tensor(50), 3, 6), _two_loops),
    "rows": (rows, (_tensor(5, 21),), lambda x: x + torch.arange(5)[:, None] ** 2),
    "history": (history, (_tensor(50), 6), _history),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("static", [True, False])
def test_values(name: str, static: bool) -> None:
    kernel, args, reference = CASES[name]
    kernel = kernel if static else helion.kernel(kernel.fn, config=kernel.configs[0], static_shapes=False)
    for _ in range(2):
        check(name, kernel, reference, map_tensors(args, torch.Tensor.clone))
    check(name, lambda *a: run_reference(kernel, a), reference, map_tensors(args, torch.Tensor.clone))


def test_the_number_of_iterations_is_no_part_of_the_code() -> None:
    fresh = helion.kernel(ping_pong.fn, config=CONFIG)
    x = _tensor(50)
    first = fresh.bind((x, 3))
    assert fresh.bind((x, 4)) is first
    assert host_lines(first)[1:] == [
        "    for step in range(steps):",
        "        _helion_runtime.overwrites('ping_pong', ('then',), then)",
        "        _launcher(_helion_ping_pong, (4,), now, then, step, num_warps=4, num_stages=1)",
        "        now, then = (then, now)",
        "    return now",
    ]


def test_numbers_are_kept_as_they_were_when_an_iteration_began() -> None:
    lines = [line.strip() for line in host_lines(halving.bind((_tensor(64),)))]
    at = lines.index("while n > 1:")
    assert lines[at + 1 : at + 4] == ["n_now = n", "scale_now = scale", "n = n // 2"]
    assert lines[at + 4] == "if n_now // 2 > 64:" and "past_the_end(n_now // 2, 64" in lines[at + 5]
    assert lines[at + 6] == "_helion_runtime.overwrites('halving', ('x',), x)"
    assert "n_now // 2" in lines[at + 7] and "scale_now" in lines[at + 7]


# --- several launches ---------------------------------------------------------------------------------------------------


@helion.kernel
def statements_between(x: torch.Tensor, lengths: torch.Tensor, steps: int) -> torch.Tensor:
    out = torch.zeros_like(x)
    for step in range(steps):
        for tile in hl.tile(x.size(0)):
            out[tile] += x[tile] + step
        length = lengths[step].item()
        doubled = out * 2
        for tile in hl.tile(length):
            out[tile] = doubled[tile] + length
    return out


@helion.kernel
def swaps_between(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Variables hold other tensors in the second launch than in the first."""
    now, then = x.clone(), torch.zeros_like(x)
    for step in range(steps):
        for tile in hl.tile(x.size(0)):
            then[tile] = now[tile] + step
        now, then = then, now
        for tile in hl.tile(x.size(0)):
            then[tile] = now[tile] * 2 + then[tile]
        now, then = then, now
    return now


@helion.kernel
def before_and_behind(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Grid loops before, in and behind host loops, with what the loops left."""
    out, factor, rest = torch.zeros_like(x), 1, x[4:]
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * 2
    for step in range(steps):
        for tile in hl.tile(x.size(0)):
            out[tile] += x[tile] + step
        for inner in range(2):
            for tile in hl.tile(x.size(0)):
                out[tile] += inner * factor
            last = inner
        factor = factor * 3 + last
    hl.barrier()
    left = factor
    factor = 100
    for tile in hl.tile(rest.size(0)):
        out[tile] = out[tile] + rest[tile] * left + factor
    return out


@helion.kernel
def shrinks(x: torch.Tensor, steps: int) -> torch.Tensor:
    out, rest = torch.zeros_like(x), x[1:]
    for step in range(steps):
        for tile in hl.tile(rest.size(0)):
            out[tile] += rest[tile] + step
        rest = rest[2:]
    kept = rest
    rest = x[3:]
    for tile in hl.tile(kept.size(0) - 4):
        out[tile] += kept[tile] * rest[tile]
    return out


@helion.kernel
def nested_numbers(x: torch.Tensor, steps: int) -> torch.Tensor:
    """A number that both loops change."""
    out, q = torch.zeros_like(x), 1
    for i in range(steps):
        p = q
        for j in range(2):
            q = q + j + 1
            for tile in hl.tile(x.size(0)):
                out[tile] += x[tile] * p + q
        p = q
    for i in range(2):
        for tile in hl.tile(x.size(0)):
            out[tile] += q * i
    return out


@helion.kernel
def by_index(x: torch.Tensor, weights: list[torch.Tensor], scales: tuple[float, ...]) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(len(weights)):
        scale, weight = scales[i], weights[len(weights) - 1 - i]
        for tile in hl.tile(x.size(0)):
            out[tile] += x[tile] * weights[i][tile] * scale + weight[tile]
    return out


@helion.kernel
def over_nothing(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    out = x.clone()
    for weight in weights:
        for tile in hl.tile(x.size(0)):
            out[tile] += weight[tile]
    return out


@helion.kernel
def empty_range(x: torch.Tensor) -> torch.Tensor:
    for _ in range(0):
        for tile in hl.tile(x.size(0)):
            x[tile] = 0
    return x


@helion.kernel
def by_functions(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Numbers that functions of Python's make of one that changes, and views whose size does."""
    out = torch.zeros_like(x)
    for step in range(steps):
        scale, root = float(step) * 0.5, math.sqrt(step + 4)
        factor, rest = _stepped(step), x[step * 2 :]
        for tile in hl.tile(rest.size(0)):
            out[tile] += rest[tile] * scale + root + factor * min(step, 2)
    return out


def _stepped(step: int) -> float:
    return 3.0 if step > 1 else 0.25


@helion.kernel
def until_small(x: torch.Tensor, limit: float) -> torch.Tensor:
    """A loop whose end is read off what its own launches wrote."""
    largest, rounds = 100.0, 0
    while largest > limit and rounds < 9:
        for tile in hl.tile(x.size(0)):
            x[tile] = x[tile] * 0.5
        rounds += 1
        largest = x.abs().max().item()
    return x


_LENGTHS = torch.tensor([11, 0, 50])
IN_ORDER: dict[str, tuple[helion.Kernel, tuple[Any, ...]]] = {
    "statements between": (statements_between, (_tensor(50), _LENGTHS, 3)),
    "statements between, never": (statements_between, (_tensor(50), _LENGTHS, 0)),
    "swaps between": (swaps_between, (_tensor(50), 3)),
    "before and behind": (before_and_behind, (_tensor(50), 3)),
    "before and behind, never": (before_and_behind, (_tensor(50), 0)),
    "nested numbers": (nested_numbers, (_tensor(50), 3)),
    "by functions": (by_functions, (_tensor(50), 4)),
    "until small": (until_small, (_tensor(50), 0.1)),
    "by index": (by_index, (_tensor(50), [_tensor(50), _tensor(50) * 2], (1.0, 0.5))),
    "over nothing": (over_nothing, (_tensor(50), [])),
    "over something": (over_nothing, (_tensor(50), [_tensor(50)])),
    "empty range": (empty_range, (_tensor(50),)),
}


@pytest.mark.parametrize("name", IN_ORDER)
@pytest.mark.parametrize("static", [True, False])
def test_launches_in_order(name: str, static: bool) -> None:
    kernel, args = IN_ORDER[name]
    kernel = kernel if static else helion.kernel(kernel.fn, static_shapes=False)
    expected = run_reference(kernel, map_tensors(args, torch.Tensor.clone))
    for _ in range(2):
        torch.testing.assert_close(kernel(*map_tensors(args, torch.Tensor.clone)), expected)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_sizes_that_a_loop_leaves(steps: int) -> None:
    kernel = helion.kernel(shrinks.fn, static_shapes=False)
    x = _tensor(50)
    torch.testing.assert_close(kernel(x, steps), run_reference(kernel, (x, steps)))


def test_a_launch_takes_what_its_own_kernels_use() -> None:
    with stub_driver() as stub:
        helion.kernel(statements_between.fn)(_tensor(50), _LENGTHS, 2)
    names = [launch.name for launch in stub.launches]
    first, second = "_helion_statements_between", "_helion_statements_between_1"
    assert names == [first, second, first]  # the last grid is empty
    bound = statements_between.bind((_tensor(50), _LENGTHS, 2))
    before, behind = bound._analysis.code(bound.default_config()).plan.launches
    assert {a.tensor.source for a in before.tensors} == {"out", "x"}
    assert {a.tensor.source for a in behind.tensors} == {"doubled", "out"}
    assert {repr(a.expr) for a in behind.numbers} == {"host_item_0", "max(0, host_item_0)"}
    assert bound.resources().registers > 0


def test_a_loop_over_nothing_has_no_code() -> None:
    with pytest.raises(exc.NoDeviceLoopsInKernel):
        over_nothing.bind((_tensor(50), [])).to_triton_code()


# --- shared memory ------------------------------------------------------------------------------------------------------


def test_tensors_that_never_meet_keep_their_memory_apart() -> None:
    assert len(set(storages(ping_pong.bind((_tensor(50), 3))))) == 2
    of = {t.name: t.storage for t in history.bind((_tensor(50), 3))._analysis.program.tensors}
    assert of["first"] == of["second"] != of["new"]  # both begin as x


def test_tensors_that_meet_in_a_later_iteration_share_it() -> None:
    @helion.kernel(config=CONFIG)
    def in_turn(x: torch.Tensor) -> torch.Tensor:
        a, b, c = x.clone(), x.clone(), torch.zeros_like(x)
        for _ in range(4):
            for tile in hl.tile(x.size(0)):
                c[tile] = a[tile] + b[tile]
            a, b = b, c
        return c

    bound = in_turn.bind((_tensor(50),))
    assert len(set(storages(bound))) == 1
    a = b = _tensor(50)
    for _ in range(4):
        c = a + b
        a, b = b, c
    # the third sum overwrites what its second summand is
    assert bound(_tensor(50)).shape == c.shape
    eager = run_reference(in_turn, (_tensor(50),))
    torch.testing.assert_close(bound(_tensor(50)), eager)


def test_an_argument_that_is_written_in_a_later_iteration() -> None:
    @helion.kernel(config=CONFIG)
    def swap(x: torch.Tensor) -> torch.Tensor:
        now, then = x, torch.empty_like(x)
        for _ in range(3):
            for tile in hl.tile(x.size(0)):
                then[tile] = now[tile] + x[tile]
            now, then = then, now
        return now

    bound = swap.bind((_tensor(50),))
    x, now, then = (
        next(t.storage for t in bound._analysis.program.tensors if t.name == n) for n in ("x", "now", "then")
    )
    assert x == now == then
    torch.testing.assert_close(bound(_tensor(50)), run_reference(swap, (_tensor(50),)))


# --- what is refused ----------------------------------------------------------------------------------------------------


def refusal(function: Callable[..., Any], args: tuple[Any, ...], error: type[exc.Base], text: str) -> None:
    with pytest.raises(error) as caught:
        helion.kernel(function, config=CONFIG).bind(args)
    assert type(caught.value) is error
    assert text in caught.value.message
    assert caught.value.location is not None and "# here" in caught.value.location.excerpt()


def test_values_of_other_kinds() -> None:
    def grows(x):
        scale = 1
        for _ in range(3):  # here
            for tile in hl.tile(x.size(0)):
                x[tile] = x[tile] * scale
            scale = scale * 0.5
        return x

    refusal(grows, (_tensor(8),), exc.CantCombineTypesInControlFlow, "'scale' is 1 on one path through the host loop")

    def shrinks(x):
        for _ in range(3):  # here
            out = torch.empty([x.size(0) // 2], device=x.device)
            for tile in hl.tile(out.size(0)):
                out[tile] = x[tile]
            x = out
        return x

    refusal(shrinks, (_tensor(8),), exc.CantCombineTypesInControlFlow, "make both the same kind of value")

    def mixed(x, weights):
        for weight in weights:  # here
            for tile in hl.tile(x.size(0)):
                x[tile] = x[tile] * weight[tile]
        return x

    args = (_tensor(8), [_tensor(8), _tensor(8).double()])
    refusal(mixed, args, exc.CantCombineTypesInControlFlow, "'weight' is a host tensor")

    def appears(x):
        last = None
        for _ in range(3):  # here
            for tile in hl.tile(x.size(0)):
                x[tile] = x[tile] * 2
            last = x
        return last

    refusal(appears, (_tensor(8),), exc.CantCombineTypesInControlFlow, "'last' is None")


def test_branches_on_what_changes() -> None:
    @helion.kernel(config=CONFIG)
    def alternates(x):
        for step in range(4):
            factor = 2 if step > 1 else 3
            for tile in hl.tile(x.size(0)):
                x[tile] = x[tile] * factor
        return x

    torch.testing.assert_close(alternates(torch.ones(8)), torch.full((8,), 36.0))

    def launches(x):
        for step in range(4):
            if step > 1:  # here
                for tile in hl.tile(x.size(0)):
                    x[tile] = x[tile] * 2
        return x

    refusal(launches, (_tensor(8),), exc.ChangesInHostLoop, "'step' changes from one iteration of a host loop")

    def specializes(x):
        n = 1
        while n < 8:
            width = hl.specialize(n)  # here
            for tile in hl.tile(x.size(0)):
                x[tile] = x[tile] * width
            n = n * 2
        return x

    refusal(specializes, (_tensor(8),), exc.ChangesInHostLoop, "'n' changes")


def test_statements_around() -> None:
    @helion.kernel(config=helion.Config(block_sizes=[16, 16]))
    def between(x):
        for tile in hl.tile(x.size(0)):
            x[tile] = x[tile] * 2
        for step in range(3):
            x = x + step
        for tile in hl.tile(x.size(0)):
            x[tile] = x[tile] * 2
        return x

    torch.testing.assert_close(between(_tensor(8)), (_tensor(8) * 2 + 3) * 2)

    def returns(x):
        for _ in range(2):  # here
            for tile in hl.tile(x.size(0)):
                x[tile] = x[tile] * 2
            return x

    refusal(returns, (_tensor(8),), exc.StatementNotSupported, "A return statement in a host loop")

    def otherwise(x):
        for _ in range(2):  # here
            for tile in hl.tile(x.size(0)):
                x[tile] = x[tile] * 2
        else:  # once
            x = x + 1
        return x

    refusal(otherwise, (_tensor(8),), exc.DeviceLoopElseBlock, "else")


@pytest.mark.parametrize("native", ["0", "1"])
def test_one_launch_per_iteration(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the code that is written for further calls."""
    monkeypatch.setenv("HELION_NATIVE_LAUNCH", native)
    kernel, phases = (helion.kernel(k.fn, config=k.configs[0]) for k in (halving, two_loops))
    with stub_driver() as stub:
        for _ in range(4):
            kernel(_tensor(64))
        for outer in (1, 2, 2, 0, 3):
            phases(_tensor(50), outer, 4)
    grids = [launch.grid for launch in stub.launches]
    assert grids[:24] == 4 * [(n, 1, 1) for n in (2, 1, 1, 1, 1, 1)]
    names = [launch.name for launch in stub.launches[24:]]
    assert names == (1 + 2 + 2 + 0 + 3) * 2 * ["_helion_two_loops", "_helion_two_loops_1"]


def test_warnings_come_once(capsys: pytest.CaptureFixture[str]) -> None:
    @helion.kernel(config=CONFIG)
    def computes(x: torch.Tensor) -> torch.Tensor:
        scale = 1.0
        for _ in range(3):
            y = torch.abs(x)
            for tile in hl.tile(x.size(0)):
                x[tile] = y[tile] * scale
            scale = scale * 2
        return x

    torch.testing.assert_close(computes(_tensor(50)), _tensor(50).abs() * 8)
    printed = capsys.readouterr().err
    assert (
        printed.count("WARNING[TensorOperationInWrapper]") == 1
        and "    y = torch.abs(x)\n        ^^^^^^^^^^^^\n" in printed
    )


def test_a_refused_launch_in_a_loop_is_not_tried_again() -> None:
    def repeatable(bound: Any) -> bool:
        return bound.variant.choice._is_repeatable(bound.config)

    once = helion.kernel(two_loops.fn).bind((_tensor(50), 1, 2))
    once(_tensor(50), 1, 2)
    assert not repeatable(once)
    looped = helion.kernel(ping_pong.fn)
    looped(_tensor(50), 2)
    assert not repeatable(looped.bind((_tensor(50), 2)))


# --- what changes in place ----------------------------------------------------------------------------------------------

RECORD = [1]


class Counter:
    count = 1


def _touch(items: list[int]) -> None:
    items.append(time.time_ns())


def test_containers_that_change() -> None:
    def length(x: torch.Tensor, steps: int) -> torch.Tensor:
        seen: list[int] = []
        for step in range(steps):
            for tile in hl.tile(x.size(0)):
                x[tile] = x[tile] + len(seen)  # here
            seen.append(step)
        return x

    def item(x: torch.Tensor, steps: int) -> torch.Tensor:
        table = {"a": 1}
        for step in range(steps):
            for tile in hl.tile(x.size(0)):
                x[tile] = x[tile] + table["a"]  # here
            table["a"] = step
        return x

    def of_an_argument(x: torch.Tensor, items: list[int]) -> torch.Tensor:
        for _ in range(2):
            for tile in hl.tile(x.size(0)):
                x[tile] = x[tile] + len(items)  # here
            _touch(items)
        return x

    refusal(length, (_tensor(50), 3), exc.KnownAtRunTime, "the content of `seen`")
    refusal(item, (_tensor(50), 3), exc.KnownAtRunTime, "`for step in range(steps):` changes it")
    refusal(of_an_argument, (_tensor(50), [1]), exc.KnownAtRunTime, "the content of `items`")


def test_containers_from_outside_that_change() -> None:
    def directly(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            for tile in hl.tile(x.size(0)):
                x[tile] = x[tile] + len(RECORD)  # here
            RECORD.append(1)
        return x

    def by_another_name(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            for tile in hl.tile(x.size(0)):
                x[tile] = x[tile] + len(RECORD)  # here
            record = RECORD
            record[0] = 2
        return x

    def by_a_function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            for tile in hl.tile(x.size(0)):
                x[tile] = x[tile] + len(RECORD)  # here
            _touch(RECORD)
        return x

    for function in (directly, by_another_name, by_a_function):
        refusal(function, (_tensor(50),), exc.KnownAtRunTime, "the content of a container")


def test_attributes_that_change() -> None:
    def attribute(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            for tile in hl.tile(x.size(0)):
                x[tile] = x[tile] + Counter.count  # here
            Counter.count = Counter.count + 1
        return x

    def of_an_object_made_in_it(x: torch.Tensor) -> torch.Tensor:
        for step in range(2):  # here
            made = types.SimpleNamespace()
            made.count = step
            for tile in hl.tile(x.size(0)):
                x[tile] = x[tile] + 1
        return x

    refusal(attribute, (_tensor(50),), exc.KnownAtRunTime, "`for _ in range(2):` assigns it")
    refusal(of_an_object_made_in_it, (_tensor(50),), exc.StatementNotSupported, "make the object before the loop")


def test_containers_that_only_the_host_reads() -> None:
    @helion.kernel(config=CONFIG)
    def collected(x: torch.Tensor, steps: int) -> tuple[list[torch.Tensor], torch.Tensor]:
        made, sizes = [], [1]
        for step in range(steps):
            y = torch.empty_like(x)
            for tile in hl.tile(x.size(0)):
                y[tile] = x[tile] * step + sizes[0]
            made.append(y)
        return made, torch.stack(made)

    made, stacked = collected(_tensor(50), 3)
    torch.testing.assert_close(stacked, torch.stack([_tensor(50) * step + 1 for step in range(3)]))
    torch.testing.assert_close(torch.stack(made), stacked)


def added_multiples(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(n):
        for tile in hl.tile(x.size(0)):
            out[tile] += x[tile] * i
    return out


def added_shifts(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(n):
        for tile in hl.tile(x.size(0)):
            at = tile.index + i
            out[tile] += hl.load(x, [at], extra_mask=at < x.size(0))
    return out


def added_chunks(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for begin in range(0, x.size(0), n):
        for tile in hl.tile(begin, min(begin + n, x.size(0))):
            out[tile] = x[tile] + begin
    return out


def added_carried(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(n):
        for tile in hl.tile(x.size(0)):
            at = tile.index * 0 + i
            for _ in hl.grid(2):
                out[tile] += hl.load(x, [at])
                at = at + 1
    return out


@pytest.mark.parametrize(
    ("function", "n", "plain"),
    [(added_multiples, 18, True), (added_shifts, 5, False), (added_chunks, 128, False), (added_carried, 3, False)],
)
def test_triton_specializes_numbers_that_change_only_in_addresses(function: Any, n: int, plain: bool) -> None:
    kernel = helion.kernel(function, config=helion.Config(block_sizes=[64]), static_shapes=False)
    x = torch.randn(300) + 0.5
    expected = {
        added_multiples: lambda: x * sum(range(n)),
        added_shifts: lambda: sum(torch.cat((x[i:], x.new_zeros(i))) for i in range(n)),
        added_chunks: lambda: x + torch.arange(300) // n * n,
        added_carried: lambda: sum(x[i] + x[i + 1] for i in range(n)).expand(300),
    }[function]()
    torch.testing.assert_close(kernel(x, n), expected, rtol=1e-4, atol=1e-3)
    code = kernel.bind((x, n), target="h100").to_code()
    assert code.count('@triton.jit(do_not_specialize=["i"])') == plain and code.count("@triton.jit") == 1
