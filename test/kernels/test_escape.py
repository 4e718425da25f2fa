"""Ways out of the language: Triton source, Triton functions of the user's, inline assembly and breakpoints."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
import user_triton
import user_triton as other
from triton.language.extra import libdevice as precise
from user_triton import nested as from_elsewhere

import helion
import helion.language as hl
from helion import exc
from helion.backends.triton.codegen.ops import bytes as ops_bytes
from helion.backends.triton.codegen.ops import lanes as ops_lanes
from helion.backends.triton.codegen.ops import literals
from helion.backends.triton.codegen.ops import marked as ops_marked
from helion.backends.triton.codegen.ops import reduction as ops_reduction
from helion.backends.triton.plan.build import HELPERS

_SHIFT = 3


@triton.jit
def _shifted(value):
    return value + _SHIFT


@triton.jit
def twice_shifted(a, b):
    return _shifted(a) * 2 + b


@triton.jit
def copy_doubled(source, target, place, mask):
    tl.store(target + place, tl.load(source + place, mask=mask, other=0.0) * 2, mask=mask)


@helion.kernel
def statements(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, difference = torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a, b = x[tile], y[tile]
        total, rest = hl.inline_triton(
            """
            total = {a} + {b}
            total, {a} - {b}
            """,
            args={"a": a, "b": b},
            output_like=(a, b),
        )
        out[tile] = hl.inline_triton("{0} * {1}", args=(total, 2.0), output_like=total)
        difference[tile] = rest
    return out, difference


@helion.kernel
def functions(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    by_value, by_name = torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a, b = x[tile], y[tile]
        by_value[tile] = hl.triton_kernel(twice_shifted, args=(a, b), output_like=a)
        by_name[tile] = hl.triton_kernel("twice_shifted", args={"b": a, "a": b}, output_like=a)
    return by_value, by_name


@helion.kernel
def through_pointers(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0)):
        inside = tile.index < x.size(0)
        hl.triton_kernel(copy_doubled, args=(x, out, tile.index, inside), output_like=None)
        hl.inline_triton(
            "tl.store({0} + {1}, tl.load({0} + {1}, mask={2}) + 1, mask={2})",
            args=(out, tile.index, inside),
            output_like=None,
        )
    return out


@triton.jit
def helper(value, more=None):
    """Named as one of the other module, as its constant is: {braces} are text."""
    result = from_elsewhere(value) + other.helper(value, 1) + user_triton.SCALE + _SHIFT
    if more is not None:
        result += more
    return result + precise.exp(value * 0)


@helion.kernel
def nested(x: torch.Tensor, reader: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a = hl.triton_kernel(helper, args=(x[tile], None), output_like=x[tile])
        b = hl.triton_kernel(user_triton.reader, args={"pointer": reader, "place": tile.index}, output_like=x[tile])
        c = hl.triton_kernel(user_triton.apart, args=(tile.begin,), output_like=tile.begin)
        out[tile] = hl.inline_triton("{a} + {b} + ({c} if {n} is None else 0)", {"a": a, "b": b, "c": c, "n": None}, a)
    return out


def test_functions_bring_what_they_name_in_any_module() -> None:
    """Names meet: of functions and constants of two modules, of the kernel, and of its tensors."""
    x, y = torch.randn(64), torch.randn(64)
    bound = nested.bind((x, y))
    want = (5 * x + 9) + (5 * x + 8) + 5 + 3 + 1 + y + (torch.arange(64) // 32 * 32 + 5)
    torch.testing.assert_close(bound.compile_config({"block_sizes": [32]})(x, y), want)
    code = bound.to_triton_code()
    assert code.count("import user_triton") == 0 and "noinline=True" in code and "{braces}" in code
    assert nested.bind((x, y), target="sm_90").resources().fits


def test_a_changed_constant_of_a_function_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(64)
    before = nested(x, x)
    monkeypatch.setattr(user_triton, "SCALE", tl.constexpr(6))
    torch.testing.assert_close(nested(x, x), before + 2 * x + 2)


@triton.jit
def nowhere(value):
    return value + _MISSING  # noqa: F821


@triton.jit
def endless(value):
    return endless(value)


def plain(value):
    return value


@triton.jit
def calls_plain(value):
    return plain_object(value)


plain_object = object()


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (nowhere, exc.UndefinedVariable, "'_MISSING' is not defined in the Triton function 'nowhere'"),
        (endless, exc.InvalidAPIUsage, "'endless' calls itself"),
        (calls_plain, exc.InvalidAPIUsage, "'calls_plain' names 'plain_object'"),
    ],
)
def test_functions_that_cannot_be_copied(function: object, error: type[exc.Base], message: str) -> None:
    @helion.kernel
    def kernel(x: torch.Tensor, called: hl.constexpr) -> torch.Tensor:
        for tile in hl.tile(x.size(0)):
            x[tile] = hl.triton_kernel(called, args=(x[tile],), output_like=x[tile])
        return x

    with pytest.raises(error, match=message):
        kernel.bind((torch.zeros(8), function))


@helion.kernel
def combine(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    sums, maxima = torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        sums[tile, :] = hl.associative_scan(lambda a, b: a + b + 0.0 * a, x[tile, :], dim=-1)
    hl.barrier()
    for tile in hl.tile(x.size(0)):
        maxima[tile, :] = hl.associative_scan(lambda a, b: torch.maximum(a, b) * 1.0, sums[tile, :], dim=-1)
    return sums, maxima


def test_functions_of_two_kernels_have_a_name_each() -> None:
    x = torch.randn(4, 8)
    sums, maxima = combine(x)
    torch.testing.assert_close(sums, x.cumsum(-1))
    torch.testing.assert_close(maxima, x.cumsum(-1).cummax(-1).values)


def test_helpers_of_the_printer_are_known_to_the_planner() -> None:
    printed = (literals, ops_reduction, ops_lanes, ops_marked, ops_bytes)
    assert set(HELPERS) == {name for each in printed for name in each.HELPERS}


def test_statements() -> None:
    x, y = torch.randn(37), torch.randn(37)
    out, difference = statements(x, y)
    torch.testing.assert_close(out, (x + y) * 2)
    torch.testing.assert_close(difference, x - y)


def test_functions_by_value_and_by_name_bring_what_they_use() -> None:
    x, y = torch.randn(37), torch.randn(37)
    by_value, by_name = functions(x, y)
    torch.testing.assert_close(by_value, (x + 3) * 2 + y)
    torch.testing.assert_close(by_name, (y + 3) * 2 + x)
    code = functions.bind((x, y), target="sm_90").to_triton_code()
    assert code.count("def twice_shifted(") == code.count("def _shifted(") == 1 and "_SHIFT = tl.constexpr(3)" in code
    assert functions.bind((x, y), target="sm_90").resources().fits


def test_host_tensors_are_passed_as_pointers() -> None:
    x = torch.randn(37)
    bound = through_pointers.bind((x,))
    for size in (8, 64):
        torch.testing.assert_close(bound.compile_config({"block_sizes": [size]})(x), 2 * x + 1)


@helion.kernel
def read_what_source_wrote(x: torch.Tensor) -> torch.Tensor:
    middle, out = torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        hl.triton_kernel(copy_doubled, args=(x, middle, tile.index, tile.index < 37), output_like=None)
    for tile in hl.tile(x.size(0)):
        out[tile] = middle[tile]
    return out


def test_source_counts_as_a_writer_of_its_tensors() -> None:
    with pytest.raises(exc.LoopDependencyError, match="'middle'"):
        read_what_source_wrote.bind((torch.randn(37),))


@helion.kernel
def copied(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [x[tile]], dtype=torch.int32, is_pure=True, pack=1
        )
    return out


def test_inline_assembly_compiles() -> None:
    bound = copied.bind((torch.zeros(37, dtype=torch.int32),), target="sm_90")
    assert "tl.inline_asm_elementwise('mov.b32 $0, $1;'" in bound.to_triton_code()
    assert bound.resources().fits


@helion.kernel
def stops(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        hl.breakpoint()
        x[tile] = 1
    return x


def test_breakpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(exc.BreakpointInDeviceLoopRequiresInterpret):
        stops.bind((torch.zeros(5),))
    seen = []
    monkeypatch.setattr("sys.breakpointhook", lambda *args: seen.append(args))
    eager = helion.kernel(stops.fn, ref_mode=helion.RefMode.EAGER)
    torch.testing.assert_close(eager(torch.zeros(5)), torch.ones(5))
    assert seen == [()]
