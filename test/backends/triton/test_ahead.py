"""Loads of later steps: which are made ahead, that nothing else changes, and where the key is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.workloads.products import gated_state_scan
from helion import exc
from helion._compiler.rewrites.prefetch_distance import prefetchable_loads


def _states(q, k, v, gates):
    q, k, v, gates = (x.double() for x in (q, k, v, gates))
    state, rows = torch.zeros(q.size(0), q.size(2), v.size(2), dtype=torch.float64), []
    for t in range(q.size(1)):
        state = state * gates[:, t, :, None] + k[:, t, :, None] * v[:, t, None, :]
        rows.append((q[:, t, :, None] * state).sum(1))
    return torch.stack(rows, 1)


def backwards(x):
    """Sums from the last row on, at places that are computed of the step; one load does not depend on it."""
    t, n = x.size()
    out = torch.empty([t, n], dtype=torch.float32, device=x.device)
    for tile in hl.tile(n):
        acc = hl.zeros([tile], dtype=torch.float32)
        for step in hl.grid(t):
            at = t - 1 - step
            acc = acc * 0.5 + x[at, tile].to(torch.float32) + x[0, tile].to(torch.float32)
            out[at, tile] = acc
    return out


def _backwards(x):
    x = x.double()
    acc, rows = torch.zeros(x.size(1), dtype=torch.float64), []
    for t in range(x.size(0)):
        acc = acc * 0.5 + x[x.size(0) - 1 - t] + x[0]
        rows.append(acc)
    return torch.stack(rows[::-1])


def strided(x):
    """Every third step from the second on; each swaps what it carries."""
    t, n = x.size()
    out = torch.empty([2, n], dtype=torch.float32, device=x.device)
    for tile in hl.tile(n):
        one, other = hl.zeros([tile], dtype=torch.float32), hl.zeros([tile], dtype=torch.float32)
        for step in hl.grid(1, t, 3):
            one, other = other + x[step, tile].to(torch.float32), one
        out[0, tile] = one
        out[1, tile] = other
    return out


def _strided(x):
    one, other = torch.zeros(x.size(1), dtype=torch.float64), torch.zeros(x.size(1), dtype=torch.float64)
    for t in range(1, x.size(0), 3):
        one, other = other + x[t].double(), one
    return torch.stack([one, other])


def nested(x, y):
    """Steps in steps; the outer ones load for the inner ones."""
    s, t, n = x.size()
    out = torch.empty([s, n], dtype=torch.float32, device=x.device)
    for tile in hl.tile(n):
        acc = hl.zeros([tile], dtype=torch.float32)
        for i in hl.grid(s):
            scale = y[i, tile].to(torch.float32)
            for j in hl.grid(t):
                acc = acc * 0.5 + x[i, j, tile].to(torch.float32) * scale
            out[i, tile] = acc
    return out


def _nested(x, y):
    acc, rows = torch.zeros(x.size(2), dtype=torch.float64), []
    for i in range(x.size(0)):
        for j in range(x.size(1)):
            acc = acc * 0.5 + x[i, j].double() * y[i].double()
        rows.append(acc)
    return torch.stack(rows)


def _inputs(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return tuple((torch.randn(shape) * 0.5 + 0.7).to(dtype) for shape in shapes)


_BF16 = torch.bfloat16
#: Kernel, reference, arguments, tiles, loads that can be made ahead, loads of the first two steps in front of loops.
CASES: tuple[tuple[Callable[..., Any], Callable[..., Any], tuple[torch.Tensor, ...], list[int], int, int], ...] = (
    (gated_state_scan.fn, _states, _inputs((2, 9, 12), (2, 9, 12), (2, 9, 21), (2, 9, 12)), [8], 4, 8),
    (gated_state_scan.fn, _states, _inputs((1, 7, 63), (1, 7, 63), (1, 7, 5), (1, 7, 63), dtype=_BF16), [4], 4, 8),
    (backwards, _backwards, _inputs((6, 63)), [16], 1, 2),
    (strided, _strided, _inputs((13, 37), dtype=_BF16), [16], 1, 2),
    (strided, _strided, _inputs((5, 37)), [64], 1, 1),
    (nested, _nested, _inputs((5, 4, 37), (5, 37)), [16], 2, 4),
)


def _bound(kernel: Callable[..., Any], args: tuple[Any, ...], **settings: Any) -> helion.BoundKernel:
    return helion.kernel(kernel, static_shapes=True, **settings).bind(args)


def _found(bound: helion.BoundKernel) -> int:
    program = bound.plan(helion.Config()).program
    return sum(len(prefetchable_loads(program, op)) for op in program.walk() if op.kind == "for")


@pytest.mark.parametrize("steps", [1, 2, 3, 8])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__name__} {tuple(case[2][0].shape)}")
def test_loads_ahead_change_nothing(case: tuple[Any, ...], steps: int) -> None:
    kernel, reference, args, sizes, *_ = case
    bound = _bound(kernel, args)
    plain = bound.compile_config(helion.Config(block_sizes=sizes))(*args)
    ahead = bound.compile_config(helion.Config(block_sizes=sizes, prefetch_distance=steps))(*args)
    assert torch.equal(plain, ahead)
    expected = reference(*args)
    close = 2**-7 if plain.dtype == _BF16 else 1e-5
    assert (ahead.double() - expected).abs().max() <= close * expected.abs().max()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__name__} {tuple(case[2][0].shape)}")
def test_loads_stand_before_the_stores_of_the_step(case: tuple[Any, ...]) -> None:
    kernel, _, args, sizes, count, first = case
    bound = _bound(kernel, args)
    assert _found(bound) == count
    code = bound.to_triton_code(helion.Config(block_sizes=sizes, prefetch_distance=2))
    plain = bound.to_triton_code(helion.Config(block_sizes=sizes))
    assert code.count("tl.load(") == plain.count("tl.load(") + first
    assert code.count("tl.minimum(") == code.count("in tl.range(")


def test_a_loop_of_few_steps_loads_all_of_them_first() -> None:
    (x,) = _inputs((4, 32))
    code = _bound(backwards, (x,)).to_triton_code(helion.Config(block_sizes=[32], prefetch_distance=8))
    assert code.split("for offset")[0].count("tl.load(") == 3


# --- where nothing can be made ahead -------------------------------------------------------------------------------------


def in_place(x):
    """Each row is the sum of it and the one before, which the step before has written."""
    t, n = x.size()
    for tile in hl.tile(n):
        for step in hl.grid(1, t):
            x[step, tile] = x[step, tile] + x[step - 1, tile]
    return x


def picked(x, rows):
    """What a step loads decides what it loads."""
    t, n = rows.size(0), x.size(1)
    out = torch.empty([n], dtype=torch.float32, device=x.device)
    for tile in hl.tile(n):
        acc = hl.zeros([tile], dtype=torch.float32)
        for step in hl.grid(t):
            acc = acc + x[rows[step], tile].to(torch.float32)
        out[tile] = acc
    return out


def sometimes(x, flags):
    """A step loads where a flag says so; the flag itself can be loaded ahead."""
    t, n = x.size()
    out = torch.empty([n], dtype=torch.float32, device=x.device)
    for tile in hl.tile(n):
        acc = hl.zeros([tile], dtype=torch.float32)
        for step in hl.grid(t):
            if flags[step] > 0:
                acc = acc + x[step, tile].to(torch.float32)
        out[tile] = acc
    return out


def once(x):
    """A loop of one step."""
    t, n = x.size()
    out = torch.empty([n], dtype=torch.float32, device=x.device)
    for tile in hl.tile(n):
        acc = hl.zeros([tile], dtype=torch.float32)
        for step in hl.grid(t):
            acc = acc + x[step, tile].to(torch.float32)
        out[tile] = acc
    return out


def posted(x, flag):
    """An atomic that orders memory: loads stay behind it."""
    t, n = x.size()
    out = torch.empty([t, n], dtype=torch.float32, device=x.device)
    for tile in hl.tile(n):
        for step in hl.grid(t):
            hl.atomic_add(flag, [0], 1, sem="acq_rel")
            out[step, tile] = x[step, tile].to(torch.float32)
    return out


_INT = torch.tensor([2, 0, 1], dtype=torch.int32)


@pytest.mark.parametrize(
    ("kernel", "args"),
    [
        (in_place, (tensor(5, 32),)),
        (posted, (tensor(5, 32), _INT)),
    ],
)
def test_what_must_stay_has_no_key(kernel: Callable[..., Any], args: tuple[Any, ...]) -> None:
    bound = _bound(kernel, args)
    assert _found(bound) == 0
    with pytest.raises(exc.InvalidConfig, match=r"prefetch_distance.*no loop over single indices"):
        bound.to_triton_code(helion.Config(prefetch_distance=2))


@pytest.mark.parametrize(
    ("kernel", "args", "checked", "why"),
    [
        (once, (tensor(1, 32),), False, "no loop over single indices"),
        (backwards, (tensor(5, 32),), True, "checked kernels"),
    ],
)
def test_what_other_arguments_and_settings_have_is_dropped(
    kernel: Callable[..., Any], args: tuple[Any, ...], checked: bool, why: str
) -> None:
    bound = _bound(kernel, args, checked=checked)
    assert checked or _found(bound) == 0
    (change,) = bound.config_spec.adjusted(helion.Config(prefetch_distance=2))
    assert change.what == "prefetch_distance" and change.why.startswith(why)
    assert bound.to_triton_code(helion.Config(prefetch_distance=2)) == bound.to_triton_code(helion.Config())


# --- bounds that the run knows -------------------------------------------------------------------------------------------


def ranges(x, bounds):
    """Data says where the steps of each program begin and end."""
    count, n = bounds.size(0) - 1, x.size(1)
    out = torch.empty([count, n], dtype=torch.float32, device=x.device)
    for i, tile in hl.tile([count, n], block_size=[1, None]):
        acc = hl.zeros([tile], dtype=torch.float32)
        for step in hl.grid(bounds[i.begin], bounds[i.begin + 1]):
            acc = acc * 0.5 + x[step, tile].to(torch.float32)
        out[i.begin, tile] = acc
    return out


def every_second(x, bounds):
    n = x.size(1)
    out = torch.empty([n], dtype=torch.float32, device=x.device)
    for tile in hl.tile(n):
        acc = hl.zeros([tile], dtype=torch.float32)
        for step in hl.grid(bounds[0], bounds[1], 2):
            acc = acc * 0.5 + x[step, tile].to(torch.float32)
        out[tile] = acc
    return out


@pytest.mark.parametrize("steps", [1, 3, 8])
@pytest.mark.parametrize("bounds", [[0, 0, 0], [0, 0, 5], [5, 5, 5], [0, 1, 5], [2, 4, 5]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_data_may_bound_a_loop(bounds: list[int], steps: int, dtype: torch.dtype) -> None:
    (x,) = _inputs((5, 37), dtype=dtype)
    args = x, torch.tensor(bounds, dtype=torch.int32)
    bound = _bound(ranges, args)
    assert _found(bound) == 1
    ahead = bound.compile_config(helion.Config(block_sizes=[16], prefetch_distance=steps))(*args)
    assert torch.equal(ahead, bound.compile_config(helion.Config(block_sizes=[16]))(*args))
    for i, row in enumerate(ahead):
        acc = torch.zeros(37, dtype=torch.float64)
        for step in range(bounds[i], bounds[i + 1]):
            acc = acc * 0.5 + x[step].double()
        assert (row.double() - acc).abs().max() < 1e-5


def test_strides_of_loops_that_the_run_bounds_stay() -> None:
    assert _found(_bound(every_second, (tensor(5, 32), _INT))) == 0


@pytest.mark.parametrize("rows", [2, 7, 9])
def test_sizes_may_be_those_of_the_run(rows: int) -> None:
    for t in (rows, 4, 2):
        (x,) = _inputs((t, 37))
        kernel = helion.kernel(
            backwards, static_shapes=False, config=helion.Config(block_sizes=[16], prefetch_distance=3)
        )
        assert (kernel(x).double() - _backwards(x)).abs().max() < 1e-5
    assert "load_2" in kernel.bind((x,)).to_triton_code(helion.Config(block_sizes=[16], prefetch_distance=3))


# --- beside copies -------------------------------------------------------------------------------------------------------


def test_what_is_copied_is_not_loaded_ahead() -> None:
    shapes = [(2, 64, 64), (2, 64, 64), (2, 64, 64), (2, 64, 64)]
    bound = _bound(gated_state_scan.fn, tuple(tensor(*shape) for shape in shapes))
    config = {"block_sizes": [8], "num_warps": 1, "prefetch_distance": 4, "range_unroll_factors": [0, 4]}

    def in_front(**more: Any) -> int:
        return bound.to_triton_code(helion.Config(**config, **more)).split("for offset")[0].count("tl.load(")

    assert in_front() == 16
    assert in_front(range_num_stages=[0, 4]) == 4  # 8 numbers of 16 bits are too few for 32 threads
    assert in_front(range_num_stages=[0, 1]) == 16


@pytest.mark.parametrize("kernel", [picked, sometimes])
def test_what_depends_on_loads_stays(kernel: Callable[..., Any]) -> None:
    (x,) = _inputs((3, 37))
    bound = _bound(kernel, (x, _INT))
    assert _found(bound) == 1
    result = bound.compile_config(helion.Config(block_sizes=[16], prefetch_distance=2))(x, _INT)
    rows = x.double()[_INT.long()] if kernel is picked else x.double()[_INT > 0]
    assert (result.double() - rows.sum(0)).abs().max() < 1e-5
