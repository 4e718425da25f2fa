"""Constants that ``==`` takes for each other, or not for themselves, as code sees them: zeros with signs, NaN, 1 and True."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import helion
import helion.language as hl
from helion._exact import are_same, exact_key

ONE_CONFIG = helion.Config(block_sizes=[8])


@dataclasses.dataclass(frozen=True)
class Scale:
    value: float = 0.0


@dataclasses.dataclass
class Mutable:
    value: float = 0.0


class Level(enum.IntEnum):
    ONE = 1


class Other(enum.IntEnum):
    ONE = 1


def _numbers(value: Any) -> list[Any]:
    """Forms of a constant that a kernel can read a number out of."""
    return [(value,), [value], {"a": value}, Scale(value), Mutable(value), value, hl.constexpr(value)]


def _read(s: Any) -> Any:
    if isinstance(s, (tuple, list)):
        return s[0]
    if isinstance(s, dict):
        return s["a"]
    if isinstance(s, (Scale, Mutable)):
        return s.value
    return s


@helion.kernel(config=ONE_CONFIG)
def filled(x: torch.Tensor, s: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = hl.full([t], _read(s), dtype=torch.float32)
    return out


@helion.kernel(config=ONE_CONFIG)
def applied(x: torch.Tensor, f: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = f(x[t])
    return out


@helion.kernel(config=ONE_CONFIG)
def applied_constant(x: torch.Tensor, f: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = f(x[t])
    return out


def bits(tensor: torch.Tensor) -> int:
    """The bits of a float of which all elements are."""
    (number,) = set(tensor.view(torch.int32).tolist())
    return number


def bits_of(value: float) -> int:
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


def fresh_nan() -> float:
    return struct.unpack("<d", struct.pack("<d", math.nan))[0]


@pytest.mark.parametrize("form", range(len(_numbers(0.0))))
def test_constant_arguments(form: int) -> None:
    kernel, x = helion.kernel(filled.fn, config=ONE_CONFIG), torch.ones(11)
    for value in (0.0, -0.0, 0.0, math.inf, -math.inf):
        assert bits(kernel(x, _numbers(value)[form])) == bits_of(value)
    count = len(kernel.variants)
    for _ in range(3):
        assert kernel(x, _numbers(fresh_nan())[form]).isnan().all()
    assert len(kernel.variants) == count + 1


def closure(s: Any) -> Callable[..., Any]:
    return lambda v: torch.full_like(v, _read(s))


def default(s: Any) -> Callable[..., Any]:
    def function(v: torch.Tensor, s: Any = s) -> torch.Tensor:
        return torch.full_like(v, _read(s))

    return function


def keyword_default(s: Any) -> Callable[..., Any]:
    def function(v: torch.Tensor, *, s: Any = s) -> torch.Tensor:
        return torch.full_like(v, _read(s))

    return function


def _with(v: torch.Tensor, s: Any) -> torch.Tensor:
    return torch.full_like(v, _read(s))


def partial(s: Any) -> Callable[..., Any]:
    return functools.partial(_with, s=s)


@pytest.mark.parametrize("make", (closure, default, keyword_default, partial))
@pytest.mark.parametrize("definition", (applied, applied_constant))
def test_functions(definition: Any, make: Callable[[Any], Callable[..., Any]]) -> None:
    x = torch.ones(11)
    for form in (2, 5):
        kernel = helion.kernel(definition.fn, config=ONE_CONFIG)
        for value in (0.0, -0.0, 0.0):
            assert bits(kernel(x, make(_numbers(value)[form]))) == bits_of(value)
        for _ in range(3):
            assert kernel(x, make(_numbers(fresh_nan())[form])).isnan().all()
        assert len(kernel.variants) == 3


def test_a_constant_function_whose_closure_changes() -> None:
    factor = 2.0

    def scaled(v: torch.Tensor) -> torch.Tensor:
        return v * factor

    x = torch.ones(5)
    assert applied_constant(x, scaled).tolist() == [2.0] * 5
    factor = 3.0
    assert applied_constant(x, scaled).tolist() == [3.0] * 5


GLOBAL: Any = 0.0
PAIR: Any = (0.0, 1)
NESTED: dict[str, Any] = {"a": [0.0]}
HELD = Mutable()


@helion.kernel(config=ONE_CONFIG)
def of_globals(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b, c, d = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        a[t] = hl.full([t], GLOBAL, dtype=torch.float32)
        b[t] = hl.full([t], PAIR[0], dtype=torch.float32)
        c[t] = hl.full([t], NESTED["a"][0], dtype=torch.float32)
        d[t] = hl.full([t], HELD.value, dtype=torch.float32)
    return a, b, c, d


def test_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(11)
    names = ("GLOBAL", "PAIR", "NESTED", "HELD")
    values = (lambda v: v, lambda v: (v, 1), None, None)
    of_globals.reset()
    for number in (0.0, -0.0, 0.0):
        for at in range(len(names)):
            make = values[at]
            if make is not None:
                monkeypatch.setitem(globals(), names[at], make(number))
            elif at == 2:
                NESTED["a"][0] = number
            else:
                HELD.value = number
            expected = bits_of(number)
            assert bits(of_globals(x)[at]) == expected
    count = len(of_globals.variants)
    for _ in range(3):  # made anew, and the same constants
        monkeypatch.setitem(globals(), "GLOBAL", fresh_nan())
        monkeypatch.setitem(globals(), "PAIR", (float("0"), int("1")))
        assert of_globals(x)[0].isnan().all()
    assert len(of_globals.variants) == count + 1


ORDER: dict[Any, float] = {"a": 1.0, "b": 2.0}
MEMBERS: set[Any] = {1}


@helion.kernel(config=ONE_CONFIG)
def of_containers(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        v = x[t]
        for number in ORDER.values():
            v = v * 10 + number
        for member in MEMBERS:
            v = v + (0.5 if isinstance(member, bool) else 0.25)
        out[t] = v
    return out


def test_the_order_of_a_dict_and_the_types_in_a_set() -> None:
    x = torch.zeros(3)
    assert of_containers(x).tolist() == [12.25] * 3
    ORDER["a"] = ORDER.pop("a")
    assert of_containers(x).tolist() == [21.25] * 3
    MEMBERS.clear()
    MEMBERS.add(True)
    assert of_containers(x).tolist() == [21.5] * 3


@helion.kernel(config=ONE_CONFIG)
def by_type(x: torch.Tensor, s: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(x)
    kind = 1.0 if isinstance(s, bool) else 2.0 if isinstance(s, int) else 3.0
    for t in hl.tile(x.size(0)):
        out[t] = x[t] * 0 + kind
    return out


@helion.kernel(config=ONE_CONFIG)
def specialized(x: torch.Tensor, s: float) -> torch.Tensor:
    number = hl.specialize(s)
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = hl.full([t], number, dtype=torch.float32)
    return out


def test_types_and_specialized_numbers() -> None:
    x = torch.ones(3)
    assert [by_type(x, s)[0].item() for s in (1, True, 1.0, 1, True, Level.ONE)] == [2, 1, 3, 2, 1, 2]
    specialized.reset()
    for value in (0.0, -0.0, 0.0):
        assert bits(specialized(x, value)) == bits_of(value)
    for _ in range(3):
        assert specialized(x, fresh_nan()).isnan().all()
    assert len(specialized.variants) == 3


def test_keys() -> None:
    different = [
        0.0, -0.0, 0, False, 1, True, 1.0, 1 + 0j, complex(-0.0, 0), complex(0.0, 0), math.nan, -math.nan, math.inf, "1", b"1", None,
        np.float32(0), np.float32(-0.0), np.float64(0), np.int32(1), np.int64(1), np.bool_(True), Level.ONE, Other.ONE,
        torch.float32, torch.float16, torch.Size([1]), (1,), [1], (True,), (1.0,), {1: 0}, {True: 0}, {1: False}, {1}, {True}, frozenset((1,)),
        Scale(0.0), Scale(-0.0), Mutable(0.0), range(0, 3, 2), range(0, 4, 2), slice(0, 1), slice(0, True), ((0.0,), 1), ((-0.0,), 1),
    ]  # fmt: skip
    for at, a in enumerate(different):
        assert exact_key(a) == exact_key(a) and hash(exact_key(a)) == hash(exact_key(a))
        assert all(exact_key(a) != exact_key(b) for b in different[:at]), a
    assert are_same(math.nan, fresh_nan()) and not are_same(0.0, -0.0) and not are_same((1,), (True,))
    assert exact_key({"a": 1, "b": 2}) != exact_key({"b": 2, "a": 1})


@helion.kernel(config=ONE_CONFIG)
def signed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a, b, c, d = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        v = x[t]
        a[t] = v * 0.0
        b[t] = v * -0.0
        c[t] = torch.where(v > 2, 0.0, -0.0)
        d[t] = torch.clamp(v, max=-0.0) + -0.0
    return a, b, c, d


@pytest.mark.parametrize("dtype", (torch.float32, torch.float16, torch.bfloat16, torch.float64))
def test_negative_zeros_in_device_code(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 2, 3, -4, 5], dtype=dtype)
    expected = (x * 0.0, x * -0.0, torch.where(x > 2, 0.0, -0.0), torch.clamp(x, max=-0.0) + -0.0)
    for ours, theirs in zip(signed(x), expected, strict=True):
        assert torch.equal(ours, theirs.to(dtype)) and torch.equal(ours.signbit(), theirs.signbit())
