"""Loops whose bounds are read off tensors: those of grid loops by the host, at every call, those of others by the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion.runtime.ref_mode import run_reference

CONFIG = helion.Config(block_sizes=[16])
X = torch.arange(50.0) + 1


@helion.kernel(config=CONFIG)
def up_to(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    end = lengths[0].item()
    for tile in hl.tile(end):
        out[tile] = x[tile] * end
    return out


@helion.kernel(config=CONFIG)
def between(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    begin = int(lengths[0].item())
    end = int(lengths[1].item())
    for tile in hl.tile(begin, end):
        out[tile] = x[tile]
    return out


@helion.kernel(config=CONFIG)
def row_by_row(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """A bound of its own in every iteration of a host loop."""
    out = torch.zeros([lengths.size(0), x.size(0)])
    for row in range(lengths.size(0)):
        end = lengths[row].item()
        for tile in hl.tile(end):
            out[row, tile] = x[tile]
    return out


@helion.kernel(config=CONFIG)
def element_of_a_tensor(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([lengths.size(0), x.size(0)])
    for row in range(lengths.size(0)):
        for tile in hl.tile(lengths[row]):
            out[row, tile] = x[tile]
    return out


def test_bounds_are_read_at_every_call() -> None:
    bound = up_to.bind((X, torch.tensor([3])))
    for n in (20, 3, 0, 50, 16):
        lengths = torch.tensor([n, 7])
        assert up_to.bind((X, torch.tensor([3]))) is bound
        torch.testing.assert_close(up_to(X, lengths), torch.where(torch.arange(50) < n, X * n, 0.0))


def test_both_bounds() -> None:
    for a, b in ((0, 50), (17, 33), (5, 5), (49, 50)):
        inside = (torch.arange(50) >= a) & (torch.arange(50) < b)
        torch.testing.assert_close(between(X, torch.tensor([a, b])), torch.where(inside, X, 0.0))


@pytest.mark.parametrize("kernel", [row_by_row, element_of_a_tensor], ids=lambda k: k.name)
def test_in_a_host_loop(kernel: helion.Kernel) -> None:
    lengths = torch.tensor([7, 0, 50, 16])
    expected = torch.where(torch.arange(50)[None, :] < lengths[:, None], X[None, :], 0.0)
    torch.testing.assert_close(kernel(X, lengths), expected)


# --- numbers are what they were where they were read --------------------------------------------------------------------


@helion.kernel
def rebound(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    m = n[0].item()
    end = m
    m = 3
    a, b = n[1].item(), int(n[2])
    a, b = b, a
    n = n[1:]
    for tile in hl.tile(end):
        out[tile] = x[tile] + m * a + b * 100
    return out


@helion.kernel
def read_several_times(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """One expression that is evaluated in every iteration of loops without launches."""
    out = torch.zeros_like(x)
    listed = [n[i].item() for i in range(3)]
    total = 0
    for i in range(3):
        total += n[i].item() * (i + 1)
    k = 0
    while k < 2:
        total += int(n[k]) * 1000
        k += 1
    doubled = [v * 2 for v in n.tolist()]
    for tile in hl.tile(listed[0]):
        out[tile] = x[tile] + listed[1] * 10 + listed[2] * 100 + total + doubled[2] * 10000
    return out


@helion.kernel
def in_the_header(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """What the header reads is read there: behind the first loop, which changes it."""
    out = torch.zeros_like(x)
    for tile in hl.tile(n.size(0)):
        n[tile] = n[tile] + 2
    hl.barrier()
    for tile in hl.tile(n[1]):
        out[tile] = x[tile]
    for tile in hl.tile(n[1].item(), int(n[0].item())):
        out[tile] = x[tile] * 2
    return out


@helion.kernel
def backwards(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Two dimensions that end before they begin, and a loop beside them."""
    out, beside = torch.zeros([9, 9]), torch.zeros_like(x)
    for tile, other in hl.tile([n[0].item() - 8, n[1].item() - 8]):
        out[tile, other] = 1.0
    for tile in hl.tile(n[2].item(), n[0].item()):
        beside[tile] = x[tile]
    return torch.cat([out.view(-1), beside])


def _third(n: torch.Tensor) -> tuple[torch.Tensor, Any]:
    return n[2:], n[2].item() * 2 + 1


@helion.kernel
def from_a_function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    tail, number = _third(n)
    n = n[1:]
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + number + tail[0]
    return out


@helion.kernel
def least_and_most(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    most = max([n[1].item(), n[2].item()])
    for tile in hl.tile(min(n[0].item(), 9)):
        out[tile] = x[tile] * most + n[0].item()
    return out


@helion.kernel
def of_unnamed_views(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """Tensors that no variable holds any more, or never did."""
    out = torch.zeros_like(x)
    size, x = x[3:].size(0), x[3:]
    views = [y for y in (x[2:], x[1:])]
    y = x[5:]
    x = y
    for tile in hl.tile(views[0].size(0)):
        out[tile] = views[0][tile] * size + views[1][tile] + x.size(0)
    return out


@helion.kernel
def carried(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    last = 1
    for i in range(3):
        now = n[i].item()
        inner = [n[j].item() * i for j in range(2)]
        for tile in hl.tile(now):
            out[tile] += x[tile] * last + inner[0] * 10 + inner[1]
        last = now
    return out + last


KERNELS = [
    rebound,
    read_several_times,
    in_the_header,
    from_a_function,
    least_and_most,
    of_unnamed_views,
    carried,
    backwards,
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("static", [True, False])
def test_numbers_are_captured(kernel: helion.Kernel, static: bool) -> None:
    kernel = helion.kernel(kernel.fn, static_shapes=static)
    for numbers in ([11, 5, 7], [2, 9, 30], [2, 1, 0], [12, 13, 3]):
        x, n = torch.arange(50.0) + 1, torch.tensor(numbers)
        expected_n = n.clone()
        expected = run_reference(kernel, (x.clone(), expected_n))
        torch.testing.assert_close(kernel(x, n), expected)
        torch.testing.assert_close(n, expected_n)


def refusal(function: Callable[..., Any], *texts: str) -> None:
    with pytest.raises(exc.TypeInferenceError) as caught:
        helion.kernel(function, config=CONFIG).bind((X, torch.tensor([3, 5])))
    assert all(text in caught.value.message for text in texts), caught.value.message
    assert caught.value.location is not None and "# here" in caught.value.location.excerpt()


def test_a_tensor_is_no_bound() -> None:
    def several(x, lengths):
        for tile in hl.tile(lengths):  # here
            x[tile] = 0
        return x

    remedy = "the host needs the number to size the grid, so bind its `.item()` to a variable and use that"
    refusal(
        several, "A bound of hl.tile must be an integer, got a host tensor", "write hl.tile(lengths.size())", remedy
    )

    def inside(x, lengths):
        for tile in hl.tile(x.size(0)):
            for other in hl.tile(lengths):  # here
                x[tile] = x[tile] + x[other].sum()
        return x

    refusal(inside, "A bound of hl.tile must be an integer, got a host tensor", "load the number from it first")


def test_a_fraction_is_no_bound() -> None:
    def loaded(x, lengths):
        for tile in hl.tile(x.size(0), block_size=1):
            for other in hl.tile(lengths[0].to(torch.float32)):  # here
                x[tile] = x[tile] + x[other].sum()
        return x

    refusal(loaded, "A bound of hl.tile must be an integer, got float32[]", "convert it with int(...)")

    def halved(x, lengths):
        for tile in hl.tile(x.size(0), block_size=1):
            for i in range(tile.end * 0.5):  # here
                x[tile] = x[tile] + i
        return x

    refusal(halved, "A bound of range must be an integer, got float32[]", "convert it with int(...)")

    @helion.kernel
    def given(x: torch.Tensor, n: float) -> torch.Tensor:
        out = torch.zeros_like(x)
        for tile in hl.tile(x.size(0)):
            for other in hl.tile(n):
                out[tile] += x[other].sum()
        return out

    with pytest.raises(exc.TypeInferenceError, match=r"must be an integer, got a float, 2\.5 in this call; convert"):
        given(X.clone(), 2.5)

    @helion.kernel
    def whole(x: torch.Tensor, n: float) -> torch.Tensor:
        out = torch.zeros_like(x)
        for tile in hl.tile(x.size(0)):
            for other in hl.tile(int(n)):
                out[tile] += x[other].sum()
        return out

    torch.testing.assert_close(whole(X.clone(), 2.5), torch.full_like(X, float(X[:2].sum())))


# --- loops of device code -----------------------------------------------------------------------------------------------


def nested_tiles(x: torch.Tensor, begin: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for a in hl.grid(x.size(0)):
        for b in hl.tile(begin, end):
            out[a, b] = x[a, b] + 1
    return out


def nested_sequences(x: torch.Tensor, begin: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Bounds of several dimensions at once, of whole tensors and of numbers loaded from them."""
    out = torch.zeros_like(x)
    for _ in hl.grid(1):
        for a, b in hl.tile([0, begin], [x.size(0), end]):
            out[a, b] = x[a, b] + 1
    hl.barrier()
    for a in hl.tile(x.size(0)):
        for b in hl.tile(begin[()], end[...]):
            out[a, b] = out[a, b] * 1.0
    return out


def nested_counters(x: torch.Tensor, begin: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for a in hl.tile(x.size(0)):
        for b in range(begin, end):
            out[a, b] = out[a, b] + x[a, b]
        for b in hl.grid(begin, end):
            out[a, b] = out[a, b] + 1
    return out


@pytest.mark.parametrize("mode", ["static", "dynamic", "eager", "checked"])
@pytest.mark.parametrize("function", [nested_tiles, nested_counters, nested_sequences], ids=lambda f: f.__name__)
def test_loops_of_device_code_read_tensors_without_dimensions(function: Callable[..., Any], mode: str) -> None:
    kernel = helion.kernel(
        function,
        static_shapes=mode != "dynamic",
        ref_mode=helion.RefMode.EAGER if mode == "eager" else helion.RefMode.OFF,
        checked=mode == "checked",
    )
    x, columns = torch.randn(3, 201) + 1, torch.arange(201)
    if function is nested_counters:
        x = x[:, :40]
    kinds = (
        (torch.int32, 3, 17),
        (torch.int64, 0, 40),
        (torch.uint8, 150, 200),
        (torch.int8, 5, 5),
        (torch.int16, 7, -3),
    )
    for dtype, begin, end in kinds if mode != "eager" else kinds[:4]:
        if end > x.size(1):
            continue
        found = kernel(x, torch.tensor(begin, dtype=dtype), torch.tensor(end, dtype=dtype))
        inside = (columns >= begin) & (columns < end)
        torch.testing.assert_close(found, torch.where(inside[: x.size(1)], x + 1, 0.0))


@pytest.mark.parametrize("target", ["h200", "gfx942"])
def test_such_loops_compile_for_gpus(target: str) -> None:
    bound = helion.kernel(nested_tiles, static_shapes=False).bind(
        (X.new_empty(8, 64, device="meta"), *(torch.empty((), dtype=torch.int32, device="meta") for _ in range(2))),
        target=target,
    )
    assert bound.resources().fits


def test_a_floating_point_number_is_no_bound() -> None:
    with pytest.raises(exc.TypeInferenceError, match="must be an integer, got a host tensor begin"):
        helion.kernel(nested_tiles).bind((torch.ones(3, 5), torch.tensor(1.0), torch.tensor(2)))
