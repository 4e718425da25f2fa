"""Arguments of every kind: numbers, containers, functions, constants, defaults; each call sees its own values."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion._testing import check


def call(kernel: helion.Kernel, *args: Any, **config: Any) -> Any:
    bound = kernel.bind(args)
    return bound.compile_config(config or bound.conservative_config())(*args)


def verify(kernel: helion.Kernel, reference: Callable[..., Any], *args: Any, **config: Any) -> None:
    bound = kernel.bind(args)
    check(kernel.name, bound.compile_config(config or bound.conservative_config()), reference, args)


def sample(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) + 1).to(dtype)


@helion.kernel
def axpy(x: torch.Tensor, a: float, k: int, flag: bool) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        v = x[tile] * a + k
        if flag:
            v = v * 2
        out[tile] = v
    return out


def axpy_reference(x: torch.Tensor, a: float, k: int, flag: bool) -> torch.Tensor:
    return (x * a + k) * (2 if flag else 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_numbers(dtype: torch.dtype) -> None:
    x = sample(37, dtype=dtype)
    for k in (1, 16, 17, 0, -1, 2, 2**30, -(2**31)):
        for a in (0.1, 1.0, -0.0, 1e-30, math.inf):
            for flag in (True, False):
                verify(axpy, axpy_reference, x, a, k, flag)
    x = sample(37)
    bound = axpy.bind((x, 0.1, 1, True))
    assert axpy.bind((x, 0.7, 16, False)) is bound  # numbers are run-time values


@helion.kernel
def integer_arithmetic(x: torch.Tensor, k: int) -> torch.Tensor:
    out = torch.empty([x.size(0), 8], dtype=torch.int64)
    for tile in hl.tile(x.size(0)):
        v = x[tile]
        out[tile, 0] = v + k // 2
        out[tile, 1] = v + k % 3
        out[tile, 2] = v + k**2
        out[tile, 3] = v // k
        out[tile, 4] = v % k
        out[tile, 5] = v * -k + (k + 1) * (k - 1)
        out[tile, 6] = v + max(k, 3) - min(k, 2) + abs(k)
        out[tile, 7] = (v + k) // 2 + (v - k) % 5
    return out


def integer_reference(x: torch.Tensor, k: int) -> torch.Tensor:
    return torch.stack(
        [
            x + k // 2, x + k % 3, x + k**2, x // k, x % k, x * -k + (k + 1) * (k - 1),
            x + max(k, 3) - min(k, 2) + abs(k), (x + k) // 2 + (x - k) % 5,
        ],
        1,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_arithmetic_of_integer_arguments(dtype: torch.dtype) -> None:
    x = torch.arange(-15, 15, dtype=dtype)
    for k in (1, 2, 16, 17, -1, -3, -4, 7):
        assert torch.equal(call(integer_arithmetic, x, k), integer_reference(x.long(), k)), k


@helion.kernel
def wide(x: torch.Tensor, k: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + k * 2
    return out


def test_integers_beyond_32_bits() -> None:
    x = torch.arange(9)
    for k in (5, 2**31, 2**40, -(2**40), 2**31 - 1):
        assert torch.equal(call(wide, x, k), x + k * 2)


@helion.kernel
def float_arithmetic(x: torch.Tensor, k: int, s: float) -> torch.Tensor:
    out = torch.empty([x.size(0), 5], dtype=x.dtype)
    for tile in hl.tile(x.size(0)):
        v = x[tile]
        out[tile, 0] = v * (k / 3)
        out[tile, 1] = v + s / k - s * 2
        out[tile, 2] = v / s + (1 - s)
        out[tile, 3] = v**k + s**2
        out[tile, 4] = torch.where(v > s, v * s, -s + k)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_arithmetic_of_floats(dtype: torch.dtype) -> None:
    def expected(x, k, s):
        return torch.stack(
            [x * (k / 3), x + s / k - s * 2, x / s + (1 - s), x**k + s**2, torch.where(x > s, x * s, -s + k)], 1
        )

    for k, s in [(1, 0.1), (2, -0.7), (3, 1.0), (17, 0.3)]:
        verify(float_arithmetic, expected, sample(37, dtype=dtype) / 2, k, s)


@helion.kernel
def promoted(x: torch.Tensor, k: int, s: float, flag: bool) -> tuple[torch.Tensor, ...]:
    """A number does not widen a tensor of its own category."""
    a = torch.empty(x.shape, dtype=torch.float32)
    b = torch.empty(x.shape, dtype=torch.float32)
    for tile in hl.tile(x.size(0)):
        v = x[tile]
        a[tile] = (v * k + k).to(torch.float32)
        b[tile] = (v * s + flag).to(torch.float32)
    return a, b


@pytest.mark.parametrize(
    "dtype",
    [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.bool],
    ids=str,
)
def test_promotion_with_numbers(dtype: torch.dtype) -> None:
    x = torch.arange(100).to(dtype)
    for k in (1, 3, 16):
        a, b = call(promoted, x, k, 0.25, True)
        torch.testing.assert_close(a, (x * k + k).float(), rtol=0, atol=0)
        torch.testing.assert_close(b, (x * 0.25 + True).float(), rtol=0, atol=0)


# --- containers ---------------------------------------------------------------------------------------------------------


class Parameters(NamedTuple):
    x: torch.Tensor
    scale: float
    inner: tuple[torch.Tensor, int]


@helion.kernel
def named(p: Parameters) -> torch.Tensor:
    out = torch.empty_like(p.x)
    for tile in hl.tile(p.x.size(0)):
        out[tile] = p.x[tile] * p.scale + p.inner[0][tile] * p.inner[1]
    return out


@helion.kernel
def listed(ts: list[torch.Tensor], numbers: tuple[float, int]) -> list[torch.Tensor]:
    outs = [torch.empty_like(ts[0]), torch.empty_like(ts[0])]
    first, second = outs
    for tile in hl.tile(ts[0].size(0)):
        total = hl.zeros([tile])
        for t in ts:
            total = total + t[tile]
        first[tile] = total * numbers[0]
        second[tile] = ts[-1][tile] - ts[0][tile] + numbers[1]
    return outs


@helion.kernel
def dictionary(d: dict[str, Any]) -> torch.Tensor:
    x, bias = d["x"], d["bias"]
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * d["scale"] + bias[tile] + d["nested"]["y"][tile]
    return out


@helion.kernel
def rebound_list(ts: list[torch.Tensor]) -> torch.Tensor:
    first = ts[0]
    other = ts[1]
    ts = [other, first]
    a, b = ts
    out = torch.empty_like(first)
    for tile in hl.tile(out.size(0)):
        out[tile] = a[tile] - 2 * b[tile]
    return out


def test_containers_are_read_again_on_every_call() -> None:
    x, y, z = sample(37), sample(37) * 2, sample(37) - 5
    for scale, k in [(2.0, 3), (3.0, 4), (0.5, 1)]:
        p = Parameters(x, scale, (y, k))
        torch.testing.assert_close(call(named, p), x * scale + y * k)
        results = call(listed, [x, y, z], (scale, k))
        torch.testing.assert_close(results[0], (x + y + z) * scale)
        torch.testing.assert_close(results[1], z - x + k)
        d = {"x": x, "bias": y, "scale": scale, "nested": {"y": z}}
        torch.testing.assert_close(call(dictionary, d), x * scale + y + z)
    torch.testing.assert_close(call(listed, [x, y], (1.0, 1))[0], x + y)
    torch.testing.assert_close(call(rebound_list, [x, y]), y - 2 * x)


def test_equal_tensors_in_containers_at_first_only() -> None:
    x, y, z = sample(37), sample(37) * 2, sample(37) - 5
    for ts in ([x, x, x], [x, y, z], [x, y, y], [y, y, z]):
        torch.testing.assert_close(call(listed, ts, (1.0, 0))[0], ts[0] + ts[1] + ts[2])
    for p in (Parameters(x, 1.0, (x, 1)), Parameters(x, 1.0, (y, 1))):
        torch.testing.assert_close(call(named, p), p.x + p.inner[0])


@helion.kernel
def with_shape(x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    out = torch.empty(shape)
    for tile in hl.tile(shape[0]):
        out[tile, :] = x[None, :] + shape[0]
    return out


def test_a_shape_as_argument() -> None:
    for rows in (3, 5):
        torch.testing.assert_close(call(with_shape, x := sample(7), torch.Size([rows, 7])), x.expand(rows, 7) + rows)


# --- constants ----------------------------------------------------------------------------------------------------------


@helion.kernel
def constants(x: torch.Tensor, mode: hl.constexpr, width: hl.constexpr, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty([x.size(0), width], dtype=dtype)
    for tile in hl.tile(x.size(0)):
        base = hl.zeros([tile, width])
        if mode == "double":
            base = base + x[tile, None] * 2
        elif mode is None:
            base = base - 1
        else:
            base = base + hl.arange(width)[None, :]
        out[tile, :] = base
    return out


def test_constants() -> None:
    x = sample(9)
    for width in (1, 4, 8, 7):
        torch.testing.assert_close(
            call(constants, x, "double", width, torch.float32), (2 * x[:, None]).expand(9, width)
        )
        torch.testing.assert_close(
            call(constants, x, None, width, torch.float64), torch.full((9, width), -1.0).double()
        )
        expected = torch.arange(width).expand(9, width).half()
        torch.testing.assert_close(call(constants, x, "other", width, torch.float16), expected)


@helion.kernel
def constant_shape(x: torch.Tensor, shape: hl.constexpr) -> torch.Tensor:
    out = torch.empty(shape)
    for tile in hl.tile(shape):
        out[tile] = x[tile]
    return out


def test_constant_lists() -> None:
    x = torch.randn(5, 6)
    for shape in ([5, 6], [3, 4], [1, 6]):
        torch.testing.assert_close(call(constant_shape, x, shape), x[: shape[0], : shape[1]])


@helion.kernel
def graph(x: torch.Tensor, f: Any) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = f(x[tile], 2.0)
    return out


def test_graphs_of_function_calls() -> None:
    x = sample(9)
    for f in (lambda a, b: torch.sin(a) + a.mul(b), lambda a, b: torch.clamp(torch.stack([a, a], -1).sum(-1), max=b)):
        torch.testing.assert_close(call(graph, x, torch.fx.symbolic_trace(f)), f(x, 2.0))
    with pytest.raises(exc.GraphModuleUnsupportedOps, match="call_module"):
        graph.bind((x, torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))))


@helion.kernel
def on_device(n: int, device: torch.device) -> torch.Tensor:
    out = torch.empty([n], device=device)
    for tile in hl.tile(n):
        out[tile] = 3.0
    return out


def test_a_device_says_where_a_kernel_without_tensors_runs() -> None:
    torch.testing.assert_close(on_device(5, torch.device("cpu")), torch.full([5], 3.0))
    with pytest.raises(exc.NoTensorArgs):
        on_device(5, None)


@helion.kernel
def wrapped(x: torch.Tensor, n: Any) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        v = x[tile]
        for _ in hl.static_range(n):
            v = v * 2
        out[tile] = v
    return out


def test_wrapped_constants() -> None:
    x = sample(9)
    for n in (0, 1, 3):
        torch.testing.assert_close(call(wrapped, x, hl.constexpr(n)), x * 2**n)


@helion.kernel
def specialized(x: torch.Tensor, n: int, scale: float) -> torch.Tensor:
    n = hl.specialize(n)
    m = hl.specialize(x.size(0))
    s = hl.specialize(scale)
    out = torch.empty([m, n])
    for tile in hl.tile(m):
        out[tile, :] = x[tile, None] + hl.zeros([tile, n]) + s
    return out


@helion.kernel
def specialized_pair(x: torch.Tensor, pair: tuple[int, int]) -> torch.Tensor:
    a, b = hl.specialize(pair)
    out = torch.empty([x.size(0), a * b])
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, None] + hl.zeros([tile, a * b])
    return out


def test_specialized_numbers() -> None:
    x = sample(9)
    for n in (1, 3, 16, 3):
        for scale in (0.5, 2.0):
            torch.testing.assert_close(call(specialized, x, n, scale), (x[:, None] + scale).expand(9, n))
        torch.testing.assert_close(call(specialized_pair, x, (n, 2)), x[:, None].expand(9, 2 * n))


@helion.kernel
def branch_on_the_host(x: torch.Tensor, k: int, flag: bool, name: str) -> torch.Tensor:
    out = torch.empty_like(x)
    if k > 3 and flag:
        scale = 2.0
    else:
        scale = 3.0 if name == "three" else 1.0
    rows = x.size(0) if not flag else min(k, x.size(0))
    out.zero_()
    for tile in hl.tile(rows):
        out[tile] = x[tile] * scale
    return out


def test_branches_on_the_host() -> None:
    x = sample(9)
    for k in (2, 5, 20):
        for flag in (True, False):
            for name in ("three", "one"):
                scale = 2.0 if k > 3 and flag else 3.0 if name == "three" else 1.0
                rows = min(k, 9) if flag else 9
                expected = torch.zeros(9)
                expected[:rows] = x[:rows] * scale
                torch.testing.assert_close(call(branch_on_the_host, x, k, flag, name), expected)


# --- defaults and keywords ----------------------------------------------------------------------------------------------

FACTOR = 3.0


@helion.kernel
def defaults(
    x: torch.Tensor,
    y: torch.Tensor | None = None,
    scale: float = FACTOR * 2,
    f: Callable[..., Any] = torch.exp,
    k: int = 1,
) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        v = f(x[tile]) * scale + k
        if y is not None:
            v = v + y[tile]
        out[tile] = v
    return out


def test_defaults_and_keywords() -> None:
    x, y = sample(37), sample(37) * 2

    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        full = defaults.normalize_args(*args, **kwargs)
        return call(defaults, *full)

    torch.testing.assert_close(run(x), torch.exp(x) * 6 + 1)
    torch.testing.assert_close(run(x, y), torch.exp(x) * 6 + 1 + y)
    torch.testing.assert_close(run(x, k=4, f=torch.cos), torch.cos(x) * 6 + 4)
    torch.testing.assert_close(run(x=x, y=y, scale=2), torch.exp(x) * 2 + 1 + y)
    with pytest.raises(TypeError, match="nonsense"):
        run(x, nonsense=1)
    host = defaults.bind((x,)).compile_config(defaults.bind((x,)).conservative_config())
    torch.testing.assert_close(host(x), torch.exp(x) * 6 + 1)


def test_methods_and_builtins_as_arguments() -> None:
    x = sample(37).abs() + 1
    for f in (torch.exp, torch.nn.functional.gelu, torch.Tensor.sqrt, torch.sigmoid, abs):
        torch.testing.assert_close(call(defaults, x, None, 1.0, f, 0), f(x))


def test_shapes_dtypes_and_strides_get_code_of_their_own() -> None:
    kernel = helion.kernel(defaults.fn)
    for x in (sample(37), sample(5), sample(37).double(), sample(74)[::2], sample(1).expand(37), sample(1)):
        torch.testing.assert_close(call(kernel, x), torch.exp(x) * 6 + 1)


def test_a_user_key() -> None:
    kernel = helion.kernel(defaults.fn, key=lambda *args: args[2] > 1)
    x = sample(5)
    assert kernel.bind((x, None, 0.5)) is not kernel.bind((x, None, 2.0))
    assert kernel.bind((x, None, 3.0)) is kernel.bind((x, None, 2.0))


def test_kernels_in_functions_may_have_strings_at_the_margin() -> None:
    @helion.kernel(config=helion.Config(block_sizes=[16]))
    def incremented(x: torch.Tensor) -> torch.Tensor:
        text = """begins here,
and ends at the margin"""
        assert "\nand" in text
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] + 1
        return out

    x = torch.randn(63)
    torch.testing.assert_close(incremented(x), x + 1)
    line = incremented.fn.__code__.co_firstlineno + 6
    assert f"test_arguments.py:{line}]: for tile in hl.tile" in incremented.bind((x,)).to_triton_code()


@helion.kernel
def scaled_by_group(x: torch.Tensor, group: hl.ProcessGroupName) -> torch.Tensor:
    ranks = {"pairs": 2, "all": 8}[group]
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] / ranks
    return out


def test_names_of_process_groups_are_constants() -> None:
    x = torch.randn(63)
    for name, ranks in (("pairs", 2), ("all", 8), (hl.ProcessGroupName("pairs"), 2)):
        torch.testing.assert_close(scaled_by_group(x, name), x / ranks)
